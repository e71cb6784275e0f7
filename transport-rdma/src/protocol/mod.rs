//! The protocol of an RDMA link, without I/O.
//!
//! Owns everything that two sides agree on between the session's frames and the NIC's requests: credits,
//! messages, bodies that are written into the peer's memory, and the agreement to use RDMA at all.
//! docs/wire.md, "Over RDMA", has the bytes, docs/rdma-deadlock.md why nobody waits for ever. Pure values: no
//! tasks, no NIC, no clock, no memory of their own.
//!
//! Before frames: [`Handshake`] says what to do next, from the peer's hello to the last verdict. Then an
//! [`Endpoint`], under the connection's lock, and one driver over [`Nic`](crate::nic::Nic), which in every
//! turn does this:
//!
//! 1. **What arrived.** For a receive that a send consumed: [`Endpoint::handle_message`], then
//!    [`Endpoint::next_received`] until there is nothing more. Frames go to the session; while
//!    [`Endpoint::accepts`] is false, a server keeps them, and tells how many receives they hold by
//!    [`Endpoint::set_held`]. For one that a write consumed: [`Endpoint::handle_write`]. An error is the
//!    peer's fault and ends the connection.
//! 2. **Events**, after each of them, by [`Endpoint::poll_event`]: a body that landed (invalidate its window,
//!    then [`Turn::landed`](byway_runtime::connection::Turn::landed)), memory that came back, a body of ours
//!    that needs nothing more.
//! 3. **Receives posted again**, without waiting for any reader: [`Endpoint::handle_returned`].
//! 4. **Announcements.** When [`Turn::awaits`](byway_runtime::connection::Turn::awaits) says that nobody
//!    reads it: [`Endpoint::refuse`] with [`Refusal::Over`]. When the [`Budget`](budget::Budget) has no room:
//!    with [`Refusal::Budget`], and the call ends with `RESOURCE_EXHAUSTED`. Else bind a window, then
//!    [`Endpoint::grant`]; perhaps in a later turn, if memory has to be made.
//! 5. **Bodies to send.** [`Endpoint::poll_job`]: copy it into staging, off the lock; before each write ask
//!    [`Endpoint::may_write`]; when all but the last are posted, [`Endpoint::handle_staged`].
//!    [`Endpoint::poll_piece`] and [`Endpoint::push_piece`] for a peer that cannot bind windows.
//! 6. **To the NIC.** [`Endpoint::poll_transmit`] until it has nothing, or the send queue has no room: what
//!    it returns is posted at once and in order. When [`Endpoint::has_room`] was false before and is true
//!    now, the session is told.
//!
//! The link pushes frames by [`Endpoint::push`]. A message goes out with it, or becomes a body under a
//! number: then the driver keeps it, encoded, until [`Event::Ended`].
//!
//! Invariants, which `tests/` checks after every step of random schedules: every receive is in use, owed, or
//! the peer's; every landing is the peer's until it gives it back; each body ends once; the frames of a call
//! arrive in their order. A frame whose body comes later keeps its place and no later frame leaves before it;
//! putting the body back into that place is the session's part
//! ([`Body::Later`](byway_runtime::link::Body::Later)), and bodies themselves complete in any order.
//!
//! Failure: there is none here. When the queue pair or the TCP connection beside it fails, the driver drops
//! the endpoint, frees windows before the queue pair, and reports [`Endpoint::delivered`].

mod arrivals;
pub mod budget;
pub mod credit;
mod endpoint;
mod error;
mod event;
mod handshake;
pub mod history;
mod incoming;
pub mod ledger;
pub mod message;
pub mod offer;
mod outbox;
mod outgoing;
mod table;
mod transfer;
pub mod wire;

#[cfg(test)]
mod tests;

pub use endpoint::Endpoint;
pub use error::ProtocolError;
pub use event::{Event, NoRoom, Piece, Pushed, Received, ReceivedBody, Settings, Transmit};
pub use handshake::{Action, Handshake, Outcome};
pub use incoming::Landed;
pub use outbox::Outbound;
pub use outgoing::{Ended, Job};
pub use wire::{LandingId, Place, Refusal, TransferId};
