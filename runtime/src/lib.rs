//! What a call is, whatever carries it.
//!
//! byway's runtime has no I/O. It owns two seams and everything between them:
//!
//! - [`Invoke`] and [`Carrier`]: one call, at the level of heads, messages and outcomes. Policy lives above it, once:
//!   [`client`] for callers, [`dispatch`] for servers.
//! - [`Link`](link::Link): frames between two [`session`]s, which own the wire state of calls.
//!
//! Users depend on the `byway` crate, which re-exports what they need from here.

pub mod adapter;
mod alarm;
pub mod client;
mod codec;
pub mod connection;
mod context;
mod deadline;
pub mod dispatch;
pub mod farewell;
pub mod framing;
mod intercept;
mod invoke;
pub mod keepalive;
mod limits;
pub mod link;
pub mod loopback;
mod method;
mod options;
pub mod output;
mod server;
pub mod session;
pub mod stream;
mod streaming;

pub use alarm::Alarm;
pub use client::CallOptions;
pub use codec::{ALIAS_MIN, Encode, Encoded, decode};
pub use context::{CallContext, ConnectionInfo, Endpoint};
pub use deadline::{Deadline, TIMEOUT_HEADER, format_timeout, parse_timeout};
pub use intercept::Intercepted;
pub use invoke::{
    Call, CallRef, Carrier, End, Expected, Inbound, Invoke, NewCall, Part, ReadyFuture, SendError,
    StartError, register,
};
pub use keepalive::Keepalive;
pub use limits::{DEFAULT_MAX_DECODING, Limits};
pub use method::{Idempotency, MethodDescriptor, MethodKind};
pub use options::Options;
#[doc(no_inline)]
pub use tonic::Status;

pub use server::{Direct, Handling, HttpCall, MethodCall, ServerCall, ServiceSettings};
