//! What a peer can do wrong on an RDMA link.
//!
//! Owns [`ProtocolError`]. Every variant is the peer's fault and ends the connection: over a reliable,
//! ordered queue pair an honest peer causes none of them. Never: describes a local failure, or backpressure.

use std::fmt;

use byway_runtime::session::{CallId, ConnectionError};

use super::wire::{LandingId, TransferId};

/// The peer broke the protocol of the link; the connection ends.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A message or an item ends before it should.
    Truncated(&'static str),
    /// A message says another length than it has.
    Length {
        /// What its header says.
        said: u32,
        /// What came, in bytes.
        came: usize,
    },
    /// Flags that this version does not know.
    UnknownFlags(u8),
    /// An item of a kind that this version does not know.
    UnknownItem(u8),
    /// A frame that the session's rules do not allow.
    Frame(ConnectionError),
    /// An item whose values contradict each other.
    Inconsistent(&'static str),
    /// Credits that were used without being there, or a total that no honest side reaches.
    Credits(&'static str),
    /// More transfers or offers at once than this side said it accepts.
    TooMany(&'static str),
    /// Something about a transfer that its state does not allow, or that is over.
    Transfer(TransferId, &'static str),
    /// Something about a landing that its state does not allow, or that is over.
    Landing(LandingId, &'static str),
    /// An offer that its call does not allow.
    Offer(CallId, &'static str),
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the peer broke the protocol of the RDMA link: ")?;
        match self {
            Self::Truncated(what) => write!(f, "{what} ends too early"),
            Self::Length { said, came } => write!(f, "a message of {came} bytes says it has {said}"),
            Self::UnknownFlags(flags) => write!(f, "unknown message flags {flags:#04x}"),
            Self::UnknownItem(kind) => write!(f, "unknown item kind {kind}"),
            Self::Frame(error) => error.fmt(f),
            Self::Inconsistent(what) | Self::Credits(what) => f.write_str(what),
            Self::TooMany(what) => write!(f, "more {what} at once than this side accepts"),
            Self::Transfer(id, what) => write!(f, "{what} (transfer {:#x})", id.0),
            Self::Landing(id, what) => write!(f, "{what} (landing {:#x})", id.0),
            Self::Offer(call, what) => write!(f, "{what} (call {:#x})", call.0),
        }
    }
}

impl std::error::Error for ProtocolError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Frame(error) => Some(error),
            _ => None,
        }
    }
}

impl From<ConnectionError> for ProtocolError {
    fn from(error: ConnectionError) -> Self {
        Self::Frame(error)
    }
}
