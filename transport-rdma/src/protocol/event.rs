//! What goes into an endpoint and comes out of it.
//!
//! Owns the values of that interface and no logic. Never: holds memory, but for a message on its way to the
//! NIC.

use byway_runtime::Limits;
use byway_runtime::session::{Header, Role};

use super::credit::Credits;
use super::incoming::Landed;
use super::offer::Capabilities;
use super::outbox::Outbound;
use super::outgoing::{Ended, Job};
use super::wire::{LandingId, TransferId};

/// What an endpoint is made of.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Which side of the connection this is.
    pub role: Role,
    /// What this side's offer said.
    pub local: Capabilities,
    /// What the peer's offer said.
    pub remote: Capabilities,
    /// What this side accepts, as its hello said.
    pub limits: Limits,
    /// What the peer accepts, as its hello said.
    pub remote_limits: Limits,
    /// Bodies of at least this many bytes are written into the peer's memory, in bytes; below that they
    /// travel in their frames.
    pub large_from: u32,
}

/// What became of a frame that was pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pushed {
    /// The body's number, when it does not travel in its frame: the driver keeps the body until it is `Ended`.
    pub transfer: Option<TransferId>,
    /// The number of the memory that was offered for the reply. Without it the memory is still the driver's.
    pub offered: Option<LandingId>,
}

/// A request to be posted now, in this order.
#[derive(Debug, PartialEq, Eq)]
pub enum Transmit<M> {
    /// A send.
    Message(Outbound<M>),
    /// The last write of a body, with the landing's number as immediate. The other writes were posted before.
    LastWrite(Job),
}

/// What happened, for the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A body of ours needs nothing more: its memory is free, but for what is posted.
    Ended(TransferId, Ended),
    /// A body is in its memory: end the peer's access, then hand it to the session.
    Landed(Landed),
    /// The peer is done with memory that nobody wants: end its access and take it back.
    Freed(LandingId),
    /// The peer has more to say than it has credits for.
    CreditsWanted,
    /// The peer gave back credits.
    CreditsGivenBack(Credits),
}

/// The body of a frame that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceivedBody<'a> {
    /// In its frame; empty when there is none.
    Here(&'a [u8]),
    /// It will be [`Event::Landed`] under this number.
    Later {
        /// Unique among the bodies on their way.
        number: u64,
        /// Set when it waits for [`Endpoint::grant`](super::Endpoint::grant) or
        /// [`Endpoint::refuse`](super::Endpoint::refuse).
        announced: Option<TransferId>,
    },
}

/// What a message carried that is for the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received<'a> {
    /// A frame for the session.
    Frame {
        /// Its header.
        header: Header,
        /// Its head.
        head: &'a [u8],
        /// Its body.
        body: ReceivedBody<'a>,
    },
    /// Bytes of a body.
    Piece {
        /// The memory.
        landing: LandingId,
        /// Where in it.
        offset: u32,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The peer's probe.
    Probe(u64),
}

/// The next part of a body that travels in pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The body.
    pub transfer: TransferId,
    pub(super) landing: LandingId,
    /// Where it begins.
    pub offset: u32,
    /// Its length in bytes.
    pub len: u32,
}

/// The link had no room for a message: [`Endpoint::has_room`](super::Endpoint::has_room) was not asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoom;
