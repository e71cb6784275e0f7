//! One port for byway's own framing, gRPC over HTTP/2 and HTTP/1: the first bytes decide.
//!
//! Owns the promise that each is served beside the others, that whoever speaks none of them is told or cut off, and that
//! no peer holds a connection that it does not use. Every server is on a free loopback port.

mod beginnings;
mod channels;
#[path = "../server/harness.rs"]
mod harness;
#[path = "../hostile/raw.rs"]
mod raw;
mod router;
#[path = "../protocol/wire.rs"]
mod wire;
