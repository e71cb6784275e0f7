//! byway's own frames over any stream that reads and writes.
//!
//! [`connect`] and [`accept`] exchange hellos; then one task per connection, its driver, reads, dispatches and
//! writes. There is no task per message and none per call that is ready at once.

mod driver;
mod handshake;
mod keepalive;

pub use byway_runtime::dispatch::Drain;
pub use driver::Driver;
pub use handshake::{Accepted, ConnectError, accept, connect, refuse};
