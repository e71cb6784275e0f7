//! Where a server listens and a channel leads.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use crate::path::Transport;

/// A port or a Unix socket.
///
/// Text of the forms `host:port`, `byway://host:port`, `[::1]:port`, `unix:/path` and `unix:///path` converts into it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A host name or IP address, and a port.
    Internet {
        /// Name or address, without brackets.
        host: String,
        /// Port; zero asks a listener for a free one.
        port: u16,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// Text that is not an [`Address`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressError {
    text: String,
    reason: &'static str,
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "\"{}\" is not an address: {}; use byway://host:port, host:port, unix:///path, or grpc://host:port for a server of gRPC",
            self.text, self.reason
        )
    }
}

impl std::error::Error for AddressError {}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        parse(text).map_err(|reason| AddressError { text: text.to_owned(), reason })
    }
}

const NO_TLS: &str = "TLS is not part of this version";

fn parse(text: &str) -> Result<Address, &'static str> {
    if let Some(path) = text.strip_prefix("unix:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        return if path.is_empty() { Err("the path is missing") } else { Ok(Address::Unix(path.into())) };
    }
    let authority = match text.split_once("://") {
        None => text,
        Some(("byway", authority)) => authority.strip_suffix('/').unwrap_or(authority),
        Some(("grpc" | "http", _)) => return Err("a server listens for every protocol at once"),
        Some(("grpcs" | "https", _)) => return Err(NO_TLS),
        Some(_) => return Err("the scheme is unknown"),
    };
    let (host, port) = authority.rsplit_once(':').ok_or("the port is missing")?;
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').ok_or("a bracket is missing")?,
        None if host.contains(':') => return Err("an IPv6 address needs brackets"),
        None => host,
    };
    if host.is_empty() || host.contains(['/', '@', '?', '#', ' ']) {
        return Err("the host is missing or not one");
    }
    let port = port.parse().map_err(|_| "the port is not a number up to 65535")?;
    Ok(Address::Internet { host: host.to_owned(), port })
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Internet { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Internet { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Internet { host: address.ip().to_string(), port: address.port() }
    }
}

/// Whatever is read from text converts from all that holds text.
macro_rules! try_from_text {
    ($target:ty: $($text:ty),*) => {$(
        impl TryFrom<$text> for $target {
            type Error = AddressError;

            fn try_from(text: $text) -> Result<Self, AddressError> {
                text.parse()
            }
        }
    )*};
}

try_from_text!(Address: &str, String, &String);
try_from_text!(Target: &str, String, &String);

impl From<std::convert::Infallible> for AddressError {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

/// What a channel is to reach: an [`Address`], and perhaps the only protocol to speak there.
///
/// Beside the forms of an address, `grpc://host:port` and `http://host:port` convert into it: a server of gRPC that
/// is reached over HTTP/2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub(crate) address: Address,
    pub(crate) transport: Transport,
}

impl FromStr for Target {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let grpc = ["grpc://", "http://"].iter().find_map(|scheme| text.strip_prefix(scheme));
        let Some(authority) = grpc else { return Ok(text.parse::<Address>()?.into()) };
        let address = parse(authority.strip_suffix('/').unwrap_or(authority));
        let address = address.map_err(|reason| AddressError { text: text.to_owned(), reason })?;
        Ok(Self { address, transport: Transport::Grpc })
    }
}

impl From<Address> for Target {
    fn from(address: Address) -> Self {
        Self { address, transport: Transport::Auto }
    }
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        Address::from(address).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_may_name_its_only_protocol() {
        for text in ["grpc://10.0.0.1:80", "http://10.0.0.1:80/"] {
            let target: Target = text.parse().expect("a target");
            assert_eq!(
                (target.address.to_string().as_str(), target.transport),
                ("10.0.0.1:80", Transport::Grpc)
            );
        }
        assert_eq!("byway://a:1".parse::<Target>().map(|target| target.transport), Ok(Transport::Auto));
        let error = "grpc://nowhere".parse::<Target>().expect_err("no port").to_string();
        assert!(error.contains("grpc://nowhere") && error.contains("port is missing"), "{error}");
    }

    #[test]
    fn every_documented_form_is_understood() {
        let internet = |host: &str, port| Ok(Address::Internet { host: host.into(), port });
        assert_eq!("byway://embed.local:50051".parse(), internet("embed.local", 50051));
        assert_eq!("byway://10.0.0.1:1/".parse(), internet("10.0.0.1", 1));
        assert_eq!("localhost:0".parse(), internet("localhost", 0));
        assert_eq!("[::1]:80".parse(), internet("::1", 80));
        assert_eq!("unix:///run/a.sock".parse(), Ok(Address::Unix("/run/a.sock".into())));
        assert_eq!("unix:a.sock".parse(), Ok(Address::Unix("a.sock".into())));
        let address: Address = "[::1]:80".parse().expect("an address");
        assert_eq!(address.to_string(), "[::1]:80");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, reason) in [
            ("localhost", "port is missing"),
            ("::1:80", "brackets"),
            ("[::1:80", "bracket"),
            ("localhost:99999", "65535"),
            (":80", "host"),
            ("byway://a/b:80", "host"),
            ("grpc://host:1", "every protocol"),
            ("https://host:1", "TLS"),
            ("ftp://host:1", "scheme"),
            ("unix:", "path"),
        ] {
            let error = text.parse::<Address>().expect_err(text).to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
