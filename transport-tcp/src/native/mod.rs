//! byway's own frames over any stream that reads and writes.
//!
//! [`connect`], and [`hear`] with [`answer`], exchange hellos, between which the two sides may agree on something better
//! than TCP; if they do not, [`client`] and [`server`] go on here: one task per connection, its driver, reads, dispatches and
//! writes. There is no task per message and none per call that is ready at once.

mod driver;
mod handshake;

pub use byway_runtime::dispatch::Drain;
pub use driver::Driver;
pub use handshake::{ConnectError, Greeted, Heard, answer, client, connect, greet, hear, refuse, server};
