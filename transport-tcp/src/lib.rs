//! Calls over a stream of bytes: byway's own framing, and gRPC over HTTP/2.
//!
//! [`native`] carries byway's frames, [`grpc`] speaks HTTP/2 to every other gRPC client and server, and [`web`] hands HTTP
//! that is not gRPC to a service of the user's. All of them over any stream that reads and writes.

#[cfg(feature = "grpc")]
pub mod grpc;
pub mod native;
#[cfg(feature = "grpc")]
pub mod web;
#[cfg(feature = "grpc")]
mod wire;

pub use byway_runtime::{Keepalive, Options};
