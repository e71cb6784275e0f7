//! What can go wrong between this crate and libibverbs, worded for the person who has to mend it.
//!
//! Owns the error types of `verbs`. Invariant: an error of a verb names the verb, the object, the system's error and,
//! where one is known, what to do. Never panics, whatever the driver returned.

use std::error::Error;
use std::{fmt, fs, io};

use super::settings::Origin;

/// A verb that failed.
#[derive(Debug)]
pub struct VerbsError {
    /// The C function.
    pub verb: &'static str,
    /// What it was called on, or what it was to make.
    pub object: String,
    /// What the system said.
    pub source: io::Error,
}

impl VerbsError {
    pub(super) fn new(verb: &'static str, object: impl Into<String>, source: io::Error) -> Self {
        Self { verb, object: object.into(), source }
    }

    /// The error of a verb that returned null and left its reason in `errno`.
    pub(super) fn from_errno(verb: &'static str, object: impl Into<String>) -> Self {
        Self::new(verb, object, io::Error::last_os_error())
    }

    /// Whether the system had no memory, locked memory or table entry left.
    pub fn is_out_of_memory(&self) -> bool {
        self.source.raw_os_error() == Some(libc::ENOMEM)
    }

    fn advice(&self) -> Option<String> {
        match self.source.raw_os_error()? {
            libc::ENOMEM => Some(locked_memory_advice()),
            libc::EACCES | libc::EPERM => {
                Some("give the user access to /dev/infiniband/uverbs* (group rdma on most systems)".into())
            }
            libc::EOPNOTSUPP => Some("the device or its driver does not have this operation".into()),
            libc::EINVAL => Some("an argument is beyond what the device supports".into()),
            libc::EIO | libc::ENODEV => Some("the device is gone or was reset".into()),
            _ => None,
        }
    }
}

impl fmt::Display for VerbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed for {}: {}", self.verb, self.object, self.source)?;
        match self.advice() {
            Some(advice) => write!(f, "; {advice}"),
            None => Ok(()),
        }
    }
}

impl Error for VerbsError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

/// The outcome of a verb that returns zero or an error number: in most libraries positive, in some negated, and in old
/// ones -1 with the number in `errno`.
pub(super) fn check(
    code: i32,
    verb: &'static str,
    object: impl FnOnce() -> String,
) -> Result<(), VerbsError> {
    let source = match code {
        0 => return Ok(()),
        -1 => io::Error::last_os_error(),
        code => io::Error::from_raw_os_error(code.saturating_abs()),
    };
    Err(VerbsError::new(verb, object(), source))
}

/// The soft limit of locked memory in bytes; `None` when it is unlimited or unknown.
pub fn locked_memory_limit() -> Option<u64> {
    parse_locked_memory_limit(&fs::read_to_string("/proc/self/limits").ok()?)
}

fn parse_locked_memory_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn locked_memory_advice() -> String {
    match locked_memory_limit() {
        Some(limit) => format!(
            "this process may lock only {} KiB of memory and a NIC needs all of its buffers and queues locked: \
             raise the limit (ulimit -l unlimited; LimitMEMLOCK=infinity in a systemd unit; \
             --ulimit memlock=-1 for a container)",
            limit / 1024
        ),
        None => "the system is out of memory, or the device of table entries".into(),
    }
}

/// Why this process cannot use RDMA. Each is an ordinary state of a machine: the caller carries on over TCP.
#[derive(Debug)]
#[non_exhaustive]
pub enum Unavailable {
    /// libibverbs.so.1 could not be loaded.
    Library(String),
    /// libibverbs.so.1 lacks a function that every supported version has.
    Symbol(String),
    /// The kernel has no RDMA subsystem.
    Kernel(VerbsError),
    /// The kernel has devices, but libibverbs has no provider for them.
    Provider {
        /// The kernel's names of the devices.
        devices: Vec<String>,
    },
    /// No device.
    NoDevice,
    /// A setting has a value that cannot be meant.
    BadSetting {
        /// The environment variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What it could be.
        expected: &'static str,
    },
    /// No device of the name that was asked for.
    NoSuchDevice {
        /// The name.
        name: String,
        /// Who asks for it.
        by: Origin,
        /// The devices that are there.
        present: Vec<String>,
    },
    /// The device has no port of the number that was asked for.
    NoSuchPort {
        /// The device.
        device: String,
        /// The number.
        port: u8,
        /// Who asks for it.
        by: Origin,
    },
    /// The port has no address at the place that was asked for.
    NoSuchGid {
        /// The device.
        device: String,
        /// Its port.
        port: u8,
        /// The place in the port's table.
        index: u8,
        /// Who asks for it.
        by: Origin,
    },
    /// The device speaks iWARP, which has no write with immediate.
    Iwarp(String),
    /// No port of the device can carry traffic.
    PortDown {
        /// The device.
        device: String,
        /// The state of its last port, in the words of the verbs interface.
        state: String,
    },
    /// The port has no address that a peer could reach.
    NoGid {
        /// The device.
        device: String,
        /// Its port.
        port: u8,
    },
    /// Locked memory is limited to less than a connection needs.
    LockedMemory {
        /// The limit in bytes, where known.
        limit: Option<u64>,
        /// What failed.
        source: VerbsError,
    },
    /// A verb failed for another reason.
    Verbs(VerbsError),
}

impl Unavailable {
    /// The same reason once more; loading is tried only once, but asked about often.
    pub(super) fn again(&self) -> Self {
        match self {
            Self::Symbol(detail) => Self::Symbol(detail.clone()),
            Self::Library(detail) => Self::Library(detail.clone()),
            other => Self::Library(other.to_string()),
        }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library(detail) => write!(
                f,
                "libibverbs.so.1 cannot be loaded: {detail}; install it (libibverbs1 on Debian and Ubuntu, libibverbs on Fedora)"
            ),
            Self::Symbol(detail) => write!(f, "libibverbs.so.1 is too old or broken: {detail}"),
            Self::Kernel(source) => {
                write!(f, "the kernel has no RDMA support: {source}; load ib_uverbs and the device's driver")
            }
            Self::Provider { devices } => write!(
                f,
                "libibverbs has no provider for {}: install the providers (ibverbs-providers on Debian and Ubuntu)",
                devices.join(", ")
            ),
            Self::NoDevice => f.write_str("there is no RDMA device"),
            Self::BadSetting { variable, value, expected } => {
                write!(f, "{variable} is \"{value}\", not {expected}: correct it or unset it")
            }
            Self::NoSuchDevice { name, by, present } => {
                write!(f, "there is no RDMA device named {name}{}", asking(by))?;
                match present.is_empty() {
                    true => Ok(()),
                    false => write!(f, "; there is {}", present.join(", ")),
                }
            }
            Self::NoSuchPort { device, port, by } => {
                write!(f, "{device} has no port {port}{}", asking(by))
            }
            Self::NoSuchGid { device, port, index, by } => write!(
                f,
                "port {port} of {device} has no address {index}{}: leave the choice to byway, or see which there are \
                 with `byway doctor`",
                asking(by)
            ),
            Self::Iwarp(device) => write!(
                f,
                "{device} speaks iWARP, which lacks the operation that large payloads need (write with immediate)"
            ),
            Self::PortDown { device, state } if state == "initializing" || state == "armed" => write!(
                f,
                "no port of {device} is active, the last one is {state}: it waits for a subnet manager (opensm)"
            ),
            Self::PortDown { device, state } => write!(
                f,
                "no port of {device} is active, the last one is {state}: bring its network interface up"
            ),
            Self::NoGid { device, port } => write!(
                f,
                "port {port} of {device} has no address: give its network interface an IP address; \
                 in a container, use the host's network or a RoCE-aware network plugin"
            ),
            Self::LockedMemory { source, .. } => source.fmt(f),
            Self::Verbs(source) => source.fmt(f),
        }
    }
}

/// The part of a sentence that says whose wish it is, where that is not the program's own.
fn asking(by: &Origin) -> String {
    match by {
        Origin::Configuration => String::new(),
        Origin::Variable(name) => format!(", which {name} asks for"),
    }
}

impl Error for Unavailable {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Kernel(source) | Self::LockedMemory { source, .. } | Self::Verbs(source) => Some(source),
            _ => None,
        }
    }
}

impl From<VerbsError> for Unavailable {
    fn from(source: VerbsError) -> Self {
        if source.is_out_of_memory() {
            let limit = locked_memory_limit();
            return Self::LockedMemory { limit, source };
        }
        Self::Verbs(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_verb_object_and_system_error() {
        let error =
            check(libc::EINVAL, "ibv_create_cq", || "a queue of 9 on rxe0".into()).expect_err("not zero");
        let text = error.to_string();
        assert!(
            text.starts_with("ibv_create_cq failed for a queue of 9 on rxe0: Invalid argument"),
            "{text}"
        );
        assert!(text.contains("beyond what the device supports"), "{text}");
    }

    #[test]
    fn negated_error_numbers_are_understood() {
        let error = check(-libc::ENOMEM, "ibv_reg_mr", String::new).expect_err("not zero");
        assert!(error.is_out_of_memory());
        assert!(check(i32::MIN, "ibv_reg_mr", String::new).is_err());
        assert!(check(0, "ibv_reg_mr", String::new).is_ok());
    }

    #[test]
    fn the_locked_memory_limit_is_read_in_bytes() {
        let table = "Limit                     Soft Limit           Hard Limit           Units     \n\
                     Max locked memory         65536                131072               bytes     \n";
        assert_eq!(parse_locked_memory_limit(table), Some(65536));
        assert_eq!(parse_locked_memory_limit("Max locked memory         unlimited unlimited bytes"), None);
        assert_eq!(parse_locked_memory_limit(""), None);
    }
}
