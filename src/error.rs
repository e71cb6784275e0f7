//! Why a channel or a server could not begin its work.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::address::{Address, AddressError};
use crate::path::{TRANSPORT_VARIABLE, Transport};

/// Why a channel has no connection.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The target is not an address.
    Address(AddressError),
    /// The environment variable holds something else than a transport.
    Variable(String),
    /// The transport that was asked for is not there.
    Unavailable {
        /// What was asked for.
        transport: Transport,
        /// Why it is not there.
        reason: String,
    },
    /// The address could not be reached.
    Unreachable {
        /// The address.
        address: Address,
        /// What the system said last.
        source: io::Error,
    },
    /// The peer was reached but did not answer as a byway server.
    Handshake {
        /// The address.
        address: Address,
        /// What it answered.
        source: byway_tcp::native::ConnectError,
    },
    /// The peer was reached but did not answer as a gRPC server.
    #[cfg(feature = "grpc")]
    Grpc {
        /// The address.
        address: Address,
        /// What it answered.
        source: byway_tcp::grpc::ConnectError,
        /// Why byway's own framing was given up before, where it was tried.
        given_up: Option<String>,
    },
    /// Connecting took longer than it may.
    TimedOut {
        /// The address.
        address: Address,
        /// How long it may take.
        limit: Duration,
    },
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(error) => error.fmt(f),
            Self::Variable(text) => {
                write!(f, "{TRANSPORT_VARIABLE} is \"{text}\", which is none of auto, rdma, tcp and grpc")
            }
            Self::Unavailable { transport, reason } => {
                write!(f, "the transport \"{transport}\" was asked for, but {reason}")
            }
            Self::Unreachable { address, source } => write!(f, "{address} could not be reached: {source}"),
            Self::Handshake { address, source } => write!(f, "{address} was reached, but {source}"),
            #[cfg(feature = "grpc")]
            Self::Grpc { address, source, given_up: None } => {
                write!(f, "{address} was reached, but {source}")
            }
            #[cfg(feature = "grpc")]
            Self::Grpc { source, given_up: Some(reason), .. } => {
                write!(f, "{reason}; nor is it a gRPC server: {source}")
            }
            Self::TimedOut { address, limit } => {
                write!(
                    f,
                    "connecting to {address} took longer than {limit:?}: is a byway server listening there?"
                )
            }
        }
    }
}

impl std::error::Error for ConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Address(error) => Some(error),
            Self::Unreachable { source, .. } => Some(source),
            Self::Handshake { source, .. } => Some(source),
            #[cfg(feature = "grpc")]
            Self::Grpc { source, .. } => Some(source),
            Self::Variable(_) | Self::Unavailable { .. } | Self::TimedOut { .. } => None,
        }
    }
}

impl From<AddressError> for ConnectError {
    fn from(error: AddressError) -> Self {
        Self::Address(error)
    }
}

/// Why a server does not serve.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeError {
    /// The address is not one.
    Address(AddressError),
    /// The address cannot be listened on.
    Listen {
        /// The address.
        address: Address,
        /// What the system said.
        source: io::Error,
    },
    /// Two services answer the same path.
    Duplicate(&'static str),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(error) => error.fmt(f),
            Self::Listen { address, source } => write!(f, "{address} cannot be listened on: {source}"),
            Self::Duplicate(path) => write!(f, "two services answer {path}: add each service once"),
        }
    }
}

impl std::error::Error for ServeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Address(error) => Some(error),
            Self::Listen { source, .. } => Some(source),
            Self::Duplicate(_) => None,
        }
    }
}

impl From<AddressError> for ServeError {
    fn from(error: AddressError) -> Self {
        Self::Address(error)
    }
}
