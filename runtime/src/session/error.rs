//! What can go wrong between two sessions, whose fault it is, and how far the damage goes.
//!
//! Owns [`ConnectionError`] (the whole connection), [`Reset`] (one call) and [`Failure`] (why a connection is
//! over, as its calls see it). Invariant: an unknown code from a peer becomes `Unknown(n)`, never a panic.

use std::fmt;
use std::sync::Arc;

use tonic::{Code, Status};

use super::frame::CallId;

/// The peer broke the protocol; the connection ends. Every variant is the peer's fault.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionError {
    /// A frame kind that this version does not know.
    UnknownKind(u8),
    /// Flags that this version does not know.
    UnknownFlags(u8),
    /// A head over this side's limit, in bytes.
    HeadTooLarge {
        /// What the peer announced.
        len: u16,
        /// What this side accepts.
        limit: u16,
    },
    /// A message over this side's limit, in bytes.
    MessageTooLarge {
        /// What the peer announced.
        len: u32,
        /// What this side accepts.
        limit: u32,
    },
    /// A body in a frame that carries no message.
    UnexpectedBody,
    /// A head that cannot be decoded.
    MalformedHead(&'static str),
    /// A frame for a call that never was.
    NoSuchCall(CallId),
    /// A call opened in a slot that is taken, out of turn, or beyond the limit.
    BadCallId(CallId),
    /// A frame that the state of its call does not allow.
    OutOfPlace(CallId),
    /// More bytes for one call than its window allows.
    WindowExceeded(CallId),
    /// A frame kind that this role never receives.
    WrongDirection(&'static str),
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the peer broke byway's protocol: ")?;
        match self {
            Self::UnknownKind(kind) => write!(f, "unknown frame kind {kind}"),
            Self::UnknownFlags(flags) => write!(f, "unknown frame flags {flags:#04x}"),
            Self::HeadTooLarge { len, limit } => write!(f, "a head of {len} bytes, the limit is {limit}"),
            Self::MessageTooLarge { len, limit } => {
                write!(f, "a message of {len} bytes, the limit is {limit}")
            }
            Self::UnexpectedBody => f.write_str("a body in a frame that carries no message"),
            Self::MalformedHead(what) => write!(f, "a head that cannot be read ({what})"),
            Self::NoSuchCall(call) => write!(f, "a frame for call {:#x}, which was never opened", call.0),
            Self::BadCallId(call) => {
                write!(f, "call {:#x} opened in a slot that is taken, out of turn or over the limit", call.0)
            }
            Self::OutOfPlace(call) => {
                write!(f, "a frame that call {:#x} does not allow in its state", call.0)
            }
            Self::WindowExceeded(call) => {
                write!(f, "more data for call {:#x} than its window allows", call.0)
            }
            Self::WrongDirection(kind) => write!(f, "{kind} came from the wrong side"),
        }
    }
}

impl std::error::Error for ConnectionError {}

/// Why one side ended a call without a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reset {
    /// The caller has gone or does not want the reply any more.
    Cancelled,
    /// The server never looked at the call: it is safe to send it again elsewhere.
    Refused,
    /// A reason of a later version.
    Unknown(u8),
}

impl Reset {
    pub(crate) fn encode(self) -> u8 {
        match self {
            Self::Cancelled => 0,
            Self::Refused => 1,
            Self::Unknown(code) => code,
        }
    }

    pub(crate) fn decode(code: u8) -> Self {
        match code {
            0 => Self::Cancelled,
            1 => Self::Refused,
            code => Self::Unknown(code),
        }
    }
}

/// Why a connection is over, for its calls and for the log.
#[derive(Debug, Clone)]
pub struct Failure {
    reason: Arc<str>,
    told: bool,
}

impl Failure {
    /// `reason` completes "the connection is over: …".
    pub fn new(reason: impl Into<Arc<str>>) -> Self {
        Self { reason: reason.into(), told: false }
    }

    /// The same, for a reason that the peer should be told before the connection closes.
    pub fn told(reason: impl Into<Arc<str>>) -> Self {
        Self { reason: reason.into(), told: true }
    }

    /// Whether the peer should be told.
    pub fn is_told(&self) -> bool {
        self.told
    }

    /// What happened, for a person.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// What calls end with.
    pub fn status(&self) -> Status {
        Status::new(Code::Unavailable, format!("the connection is over: {}", self.reason))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl From<ConnectionError> for Failure {
    fn from(error: ConnectionError) -> Self {
        Self::told(error.to_string())
    }
}
