//! gRPC over HTTP/2, both directions, on hyper and with byway's own framing of messages.
//!
//! [`connect`] makes what begins calls to any gRPC server, [`serve`] answers any gRPC client from the router that the
//! native path uses too. Policy (deadlines, admission, panics, cardinality) lives above both; here are only the rules of
//! gRPC over HTTP/2. hyper runs one task per open call, so calls share no lock but hyper's own.

mod calling;
mod client;
mod headers;
mod outgoing;
mod peer;
mod server;
mod serving;
mod status;
mod tasks;

pub use client::{Caller, ConnectError, connect};
pub use server::{Host, Served, serve};

use std::sync::Arc;

use byway_runtime::framing::{Acceptance, Budget};
use byway_runtime::{Limits, Status};

/// Largest frame that a peer may send, in bytes. Every frame costs its sender a write, so the 16 KiB that HTTP/2 begins
/// with make a large message slow; a frame holds up all other calls of the connection, so it must not be much longer.
const MAX_FRAME: u32 = 1 << 20;

/// Largest flow window of HTTP/2, in bytes.
const MAX_WINDOW: u32 = (1 << 31) - 1;

/// Bytes that a peer may send for one call before they are read.
///
/// Not an adaptive one: hyper's grows the windows of a call and of the whole connection together, so that one call that
/// nobody reads stops all others.
fn call_window(limits: &Limits) -> u32 {
    limits.window.min(MAX_WINDOW)
}

/// Bytes that a peer may send over all calls before they are read.
fn connection_window(limits: &Limits) -> u32 {
    let budget = u32::try_from(limits.receive_budget).unwrap_or(MAX_WINDOW).min(MAX_WINDOW);
    budget.max(call_window(limits))
}

/// What the bodies of one connection accept; a message with the compression flag set ends its call with `compressed`.
fn acceptance(limits: &Limits, compressed: fn(u8) -> Status) -> Acceptance {
    let budget = usize::try_from(limits.receive_budget).unwrap_or(usize::MAX);
    Acceptance {
        max_message: limits.max_message as usize,
        compressed,
        budget: Some(Arc::new(Budget::new(budget))),
    }
}
