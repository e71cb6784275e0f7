//! Peers that break the protocol, by malice or by mistake, against a server and against a channel.
//!
//! Owns the promise that an offender is told what it did wrong or is cut off, that whoever else is connected notices
//! nothing, and that memory stays bounded. Every server is on a free loopback port.

mod first_bytes;
mod floods;
mod frames;
#[path = "../server/harness.rs"]
mod harness;
mod raw;
mod server;
