//! Where a server listens and a channel leads.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

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
            "\"{}\" is not an address: {}; use byway://host:port, host:port or unix:///path",
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

fn parse(text: &str) -> Result<Address, &'static str> {
    if let Some(path) = text.strip_prefix("unix:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        return if path.is_empty() { Err("the path is missing") } else { Ok(Address::Unix(path.into())) };
    }
    let authority = match text.split_once("://") {
        None => text,
        Some(("byway", authority)) => authority.strip_suffix('/').unwrap_or(authority),
        Some(("grpc" | "http" | "https", _)) => {
            return Err("gRPC over HTTP/2 is not part of this version, only byway's own framing is");
        }
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

impl TryFrom<&str> for Address {
    type Error = AddressError;

    fn try_from(text: &str) -> Result<Self, AddressError> {
        text.parse()
    }
}

impl TryFrom<String> for Address {
    type Error = AddressError;

    fn try_from(text: String) -> Result<Self, AddressError> {
        text.parse()
    }
}

impl TryFrom<&String> for Address {
    type Error = AddressError;

    fn try_from(text: &String) -> Result<Self, AddressError> {
        text.parse()
    }
}

impl From<std::convert::Infallible> for AddressError {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("grpc://host:1", "HTTP/2"),
            ("ftp://host:1", "scheme"),
            ("unix:", "path"),
        ] {
            let error = text.parse::<Address>().expect_err(text).to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
