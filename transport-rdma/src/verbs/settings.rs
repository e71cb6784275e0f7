//! What a user asks for about devices: by configuration, or by environment.
//!
//! Owns [`DeviceChoice`] and how it is completed from the environment. Invariants: explicit configuration beats the
//! environment, which is then not even read, so that a stale variable cannot break a program that does not need it; a
//! value that cannot be meant is an error that names its variable, never a silent default. Never looks at a device.

use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;

use super::error::Unavailable;

/// Names the device to use: `mlx5_0`, or `mlx5_0:2` for its second port.
pub const DEVICE_VARIABLE: &str = "BYWAY_RDMA_DEVICE";

/// Names the address to use by its place in the port's table.
pub const GID_INDEX_VARIABLE: &str = "BYWAY_RDMA_GID_INDEX";

/// Which device to use. The default takes the first that works.
///
/// What is not given here is taken from the environment: [`DEVICE_VARIABLE`] and [`GID_INDEX_VARIABLE`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceChoice {
    /// The kernel's name of the device.
    pub device: Option<String>,
    /// The port, from 1.
    pub port: Option<u8>,
    /// The address's place in the port's table.
    pub gid_index: Option<u8>,
    /// The local address of the TCP connection over which both sides agree on RDMA; `None` where it has none (a Unix
    /// socket). Its peer is known to be reachable from there, so the device that has this address is preferred.
    pub local: Option<IpAddr>,
}

/// Who asked for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The program, in [`DeviceChoice`].
    Configuration,
    /// The user, by this environment variable.
    Variable(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Configuration => "the configuration",
            Self::Variable(name) => name,
        })
    }
}

/// A wish, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked<T> {
    /// What is asked for.
    pub value: T,
    /// By whom.
    pub by: Origin,
}

/// A [`DeviceChoice`] that the environment has completed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The device's name.
    pub device: Option<Asked<String>>,
    /// The port, from 1.
    pub port: Option<Asked<u8>>,
    /// The address's place in the port's table.
    pub gid_index: Option<Asked<u8>>,
    /// The local address of the connection, if it tells one device from another: no loopback address does.
    pub local: Option<IpAddr>,
}

impl DeviceChoice {
    /// Completes the choice from this process' environment.
    ///
    /// # Errors
    /// [`Unavailable::BadSetting`] for a variable that is needed and has no valid value.
    pub fn with_environment(&self) -> Result<Wanted, Unavailable> {
        self.with_variables(std::env::var_os::<&'static str>)
    }

    /// Completes the choice from variables, of which empty ones count as not set.
    pub(super) fn with_variables(
        &self,
        variable: impl Fn(&'static str) -> Option<OsString>,
    ) -> Result<Wanted, Unavailable> {
        let set = |name: &'static str| {
            let value = variable(name).filter(|value| !value.is_empty())?;
            Some(value.to_string_lossy().into_owned())
        };
        let mut wanted = Wanted {
            device: self.device.clone().map(Asked::configured),
            port: self.port.map(Asked::configured),
            gid_index: self.gid_index.map(Asked::configured),
            local: self.local.map(|local| local.to_canonical()).filter(tells_devices_apart),
        };
        if wanted.device.is_none()
            && let Some(text) = set(DEVICE_VARIABLE)
        {
            let (device, port) = parse_device(&text)?;
            let by = Origin::Variable(DEVICE_VARIABLE);
            wanted.device = Some(Asked { value: device, by });
            wanted.port = wanted.port.or(port.map(|value| Asked { value, by }));
        }
        if wanted.gid_index.is_none()
            && let Some(text) = set(GID_INDEX_VARIABLE)
        {
            let value = text.parse().map_err(|_| Unavailable::BadSetting {
                variable: GID_INDEX_VARIABLE,
                value: text,
                expected: "a number from 0 to 255",
            })?;
            wanted.gid_index = Some(Asked { value, by: Origin::Variable(GID_INDEX_VARIABLE) });
        }
        Ok(wanted)
    }
}

impl<T> Asked<T> {
    fn configured(value: T) -> Self {
        Self { value, by: Origin::Configuration }
    }
}

/// Every device reaches this host itself, and an unspecified address is not one.
fn tells_devices_apart(address: &IpAddr) -> bool {
    !address.is_loopback() && !address.is_unspecified()
}

fn parse_device(text: &str) -> Result<(String, Option<u8>), Unavailable> {
    let bad = || Unavailable::BadSetting {
        variable: DEVICE_VARIABLE,
        value: text.to_owned(),
        expected: "a device's name, or a name and a port from 1 as in mlx5_0:1",
    };
    let (name, port) = match text.split_once(':') {
        Some((name, port)) => (name, Some(port.parse().ok().filter(|&port| port > 0).ok_or_else(bad)?)),
        None => (text, None),
    };
    // The kernel's names have no white space and no slash; both are slips of a user.
    if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c == '/') {
        return Err(bad());
    }
    Ok((name.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(choice: &DeviceChoice, device: &str, gid_index: &str) -> Result<Wanted, String> {
        let variable = |name| Some(OsString::from(if name == DEVICE_VARIABLE { device } else { gid_index }));
        choice.with_variables(variable).map_err(|error| error.to_string())
    }

    #[test]
    fn variables_fill_what_the_configuration_leaves_open() {
        let none = DeviceChoice::default();
        let found = wanted(&none, "mlx5_1:2", "3").expect("valid");
        let by = Origin::Variable(DEVICE_VARIABLE);
        assert_eq!(found.device, Some(Asked { value: "mlx5_1".into(), by }));
        assert_eq!(found.port, Some(Asked { value: 2, by }));
        assert_eq!(found.gid_index, Some(Asked { value: 3, by: Origin::Variable(GID_INDEX_VARIABLE) }));
        assert_eq!(wanted(&none, "rxe0", "").map(|wanted| wanted.port), Ok(None));
        assert_eq!(wanted(&none, "", ""), Ok(Wanted::default()));
    }

    #[test]
    fn explicit_configuration_beats_the_environment_even_where_that_is_wrong() {
        let choice = DeviceChoice { device: Some("rxe0".into()), gid_index: Some(1), ..Default::default() };
        let found = wanted(&choice, "mlx5_0:9999", "x").expect("not read");
        assert_eq!(found.device, Some(Asked::configured("rxe0".into())));
        assert_eq!((found.port, found.gid_index), (None, Some(Asked::configured(1))));
        let port = DeviceChoice { port: Some(1), ..Default::default() };
        assert_eq!(wanted(&port, "mlx5_0:2", "").expect("valid").port, Some(Asked::configured(1)));
    }

    #[test]
    fn a_bad_value_is_an_error_that_names_the_variable() {
        for text in ["mlx5_0:", "mlx5_0:0", "mlx5_0:256", ":1", "mlx5_0:1:2", "/dev/infiniband", "mlx5_0 "] {
            let error = wanted(&DeviceChoice::default(), text, "").expect_err(text);
            assert!(error.contains("BYWAY_RDMA_DEVICE") && error.contains(text), "{error}");
        }
        for text in ["-1", "256", "one", " 1"] {
            let error = wanted(&DeviceChoice::default(), "", text).expect_err(text);
            assert!(error.contains("BYWAY_RDMA_GID_INDEX") && error.contains(text), "{error}");
        }
    }

    #[test]
    fn only_an_address_of_this_host_alone_tells_devices_apart() {
        let local = |text: &str| {
            let local = Some(text.parse().expect("an address"));
            wanted(&DeviceChoice { local, ..Default::default() }, "", "").expect("valid").local
        };
        assert_eq!(local("127.0.0.1"), None);
        assert_eq!(local("::1"), None);
        assert_eq!(local("::ffff:127.0.0.1"), None);
        assert_eq!(local("0.0.0.0"), None);
        assert_eq!(local("::ffff:10.0.0.1"), Some(IpAddr::from([10, 0, 0, 1])));
    }
}
