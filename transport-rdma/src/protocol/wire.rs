//! What one SEND carries: a header and items.
//!
//! Owns the layout of both and the bounds-checked decoding of what a peer sent. docs/wire.md, "Over RDMA", is
//! the same text for other implementations. Invariant: decoding allocates nothing and reads each byte once;
//! an item is inside its message. Never: knows whether an item is allowed now.

use byway_runtime::Limits;
use byway_runtime::session::{CallId, Flags, HEADER_LEN as FRAME_HEADER_LEN, Header};

use super::credit::{Credits, Total};
use super::error::ProtocolError;
use crate::nic::RemoteSlice;

/// Bytes of a message's header.
pub const HEADER_LEN: usize = 8;

/// Longest message: its length has 24 bits.
pub const MAX_MESSAGE: usize = (1 << 24) - 1;

/// Bytes that frames leave free at the end of a message, so that grants, refusals and releases always find a
/// place and frames that never stop coming cannot keep them from leaving. Room for two of the longest.
pub const CONTROL_ROOM: usize = 2 * SLICE_ITEM_LEN;

/// Bytes of an offer or of a grant with a slice.
pub const SLICE_ITEM_LEN: usize = 1 + 4 + 4 + 16;

/// The smallest receive that holds every message about heads of up to `max_head` bytes: a frame, what the
/// link says about it, an offer that rides on it, and the room for control.
pub fn least_receive(max_head: u16) -> usize {
    HEADER_LEN + SLICE_ITEM_LEN + NUMBERED_FRAME_LEN + usize::from(max_head) + CONTROL_ROOM
}

/// Bytes of an item with a frame that is all here, beside head and body.
pub(super) const FRAME_ITEM_LEN: usize = 1 + FRAME_HEADER_LEN;

/// Bytes of an item with a frame whose body comes later, beside its head.
pub(super) const NUMBERED_FRAME_LEN: usize = 1 + 4 + FRAME_HEADER_LEN;

/// Bytes of a piece beside its content.
pub(super) const PIECE_ITEM_LEN: usize = 1 + 4 + 4;

/// A body on its way from its sender, numbered by the sender: slot and generation, unique among those on
/// their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransferId(pub u32);

/// Memory for one body, numbered by the side that owns it: slot and generation. The immediate of the write that
/// completes a body is this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LandingId(pub u32);

impl LandingId {
    /// The slot, below the number of landings that there can be: an index for what belongs to the landing.
    pub fn slot(self) -> u16 {
        self.0 as u16
    }
}

/// How a granted body travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// By writes into this memory, which has exactly the body's length.
    Slice(RemoteSlice),
    /// In pieces, by messages: the receiver cannot bind windows.
    Pieces,
}

/// Why a receiver does not take a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It is longer than any landing.
    Limit,
    /// There is no memory for it.
    Budget,
    /// Its call is over.
    Over,
    /// A reason of a later version.
    Unknown(u8),
}

/// What a message says beside its items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageHeader {
    /// All entries that the receiver of this message may ever have used.
    pub total: Total,
    /// Whether the sender of this message has more to say than it has credits for.
    pub wants_credits: bool,
    /// Bytes of items.
    pub len: u32,
}

const WANTS_CREDITS: u8 = 1;

/// One item of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'a> {
    /// A frame, whole.
    Frame {
        /// Its header.
        header: Header,
        /// Its head.
        head: &'a [u8],
        /// Its body.
        body: &'a [u8],
    },
    /// A frame whose body waits for a grant.
    Announced {
        /// The body's number.
        transfer: TransferId,
        /// The frame's header, with the body's exact length.
        header: Header,
        /// Its head.
        head: &'a [u8],
    },
    /// A frame whose body is written into memory that was offered.
    Placed {
        /// The offered memory.
        landing: LandingId,
        /// The frame's header, with the body's exact length.
        header: Header,
        /// Its head.
        head: &'a [u8],
    },
    /// Memory for an announced body.
    Grant {
        /// The body.
        transfer: TransferId,
        /// The memory's number.
        landing: LandingId,
        /// Where the body goes.
        place: Place,
    },
    /// An announced body that is not taken.
    Refused {
        /// The body.
        transfer: TransferId,
        /// Why.
        reason: Refusal,
    },
    /// A granted or offered landing that will not be written, or no further.
    Release {
        /// The landing.
        landing: LandingId,
    },
    /// Memory for a reply.
    Offer {
        /// The call whose reply it is for.
        call: CallId,
        /// The memory's number.
        landing: LandingId,
        /// The memory.
        slice: RemoteSlice,
    },
    /// The next bytes of a body that travels in pieces.
    Piece {
        /// Where they go.
        landing: LandingId,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The first message: it proves that the queue pairs are joined.
    Probe(u64),
    /// Please give back credits that you do not need.
    Ask(Credits),
    /// Credits that are given back, perhaps none: the answer to one `Ask`.
    GivenBack(Credits),
}

/// The first byte of each item.
pub(super) mod kind {
    pub(in super::super) const FRAME: u8 = 1;
    pub(in super::super) const ANNOUNCED: u8 = 2;
    pub(in super::super) const PLACED: u8 = 3;
    pub(in super::super) const GRANT: u8 = 4;
    pub(in super::super) const GRANT_PIECES: u8 = 5;
    pub(in super::super) const REFUSED: u8 = 6;
    pub(in super::super) const RELEASE: u8 = 7;
    pub(in super::super) const OFFER: u8 = 8;
    pub(in super::super) const PIECE: u8 = 9;
    pub(in super::super) const PROBE: u8 = 10;
    pub(in super::super) const ASK: u8 = 11;
    pub(in super::super) const GIVEN_BACK: u8 = 12;
}

impl MessageHeader {
    /// The header's bytes.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let flags = if self.wants_credits { WANTS_CREDITS } else { 0 };
        let [c0, c1, c2, c3] = self.total.0.to_le_bytes();
        let [l0, l1, l2, _] = self.len.to_le_bytes();
        [c0, c1, c2, c3, l0, l1, l2, flags]
    }
}

impl Refusal {
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Limit => 1,
            Self::Budget => 2,
            Self::Over => 3,
            Self::Unknown(code) => code,
        }
    }

    fn from_code(code: u8) -> Self {
        match code {
            1 => Self::Limit,
            2 => Self::Budget,
            3 => Self::Over,
            other => Self::Unknown(other),
        }
    }
}

/// Reads what one SEND carried.
///
/// # Errors
/// When it is shorter than a header, or not as long as its header says.
pub fn decode(message: &[u8]) -> Result<(MessageHeader, Items<'_>), ProtocolError> {
    let Some((&[c0, c1, c2, c3, l0, l1, l2, flags], rest)) = message.split_first_chunk::<HEADER_LEN>() else {
        return Err(ProtocolError::Truncated("a message's header"));
    };
    if flags & !WANTS_CREDITS != 0 {
        return Err(ProtocolError::UnknownFlags(flags));
    }
    let header = MessageHeader {
        total: Total(u32::from_le_bytes([c0, c1, c2, c3])),
        wants_credits: flags & WANTS_CREDITS != 0,
        len: u32::from_le_bytes([l0, l1, l2, 0]),
    };
    if header.len as usize != rest.len() {
        return Err(ProtocolError::Length { said: header.len, came: rest.len() });
    }
    Ok((header, Items(rest)))
}

/// The items of a message that have not been read.
#[derive(Debug, Clone, Copy)]
pub struct Items<'a>(&'a [u8]);

impl<'a> Items<'a> {
    /// Reads the next item; `None` after the last. Frames are checked against what this side accepts.
    ///
    /// # Errors
    /// When the rest of the message does not begin with an item.
    pub fn next(&mut self, limits: &Limits) -> Result<Option<Item<'a>>, ProtocolError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        Ok(Some(match self.byte()? {
            kind::FRAME => {
                let (header, head) = self.frame(limits)?;
                Item::Frame { header, head, body: self.bytes(header.body_len as usize)? }
            }
            kind::ANNOUNCED => {
                let transfer = TransferId(self.number()?);
                let (header, head) = self.frame_without_body(limits)?;
                Item::Announced { transfer, header, head }
            }
            kind::PLACED => {
                let landing = LandingId(self.number()?);
                let (header, head) = self.frame_without_body(limits)?;
                Item::Placed { landing, header, head }
            }
            kind::GRANT => {
                let (transfer, landing) = (TransferId(self.number()?), LandingId(self.number()?));
                Item::Grant { transfer, landing, place: Place::Slice(self.slice()?) }
            }
            kind::GRANT_PIECES => {
                let (transfer, landing) = (TransferId(self.number()?), LandingId(self.number()?));
                Item::Grant { transfer, landing, place: Place::Pieces }
            }
            kind::REFUSED => {
                let transfer = TransferId(self.number()?);
                Item::Refused { transfer, reason: Refusal::from_code(self.byte()?) }
            }
            kind::RELEASE => Item::Release { landing: LandingId(self.number()?) },
            kind::OFFER => {
                let (call, landing) = (CallId(self.number()?), LandingId(self.number()?));
                Item::Offer { call, landing, slice: self.slice()? }
            }
            kind::PIECE => {
                let landing = LandingId(self.number()?);
                let len = self.number()? as usize;
                if len == 0 {
                    return Err(ProtocolError::Inconsistent("a piece of no bytes"));
                }
                Item::Piece { landing, bytes: self.bytes(len)? }
            }
            kind::PROBE => Item::Probe(u64::from_le_bytes(self.array()?)),
            kind::ASK => Item::Ask(Credits(u16::from_le_bytes(self.array()?).into())),
            kind::GIVEN_BACK => Item::GivenBack(Credits(u16::from_le_bytes(self.array()?).into())),
            other => return Err(ProtocolError::UnknownItem(other)),
        }))
    }

    fn frame(&mut self, limits: &Limits) -> Result<(Header, &'a [u8]), ProtocolError> {
        let header = Header::decode(&self.array()?, limits)?;
        Ok((header, self.bytes(usize::from(header.head_len))?))
    }

    fn frame_without_body(&mut self, limits: &Limits) -> Result<(Header, &'a [u8]), ProtocolError> {
        let (header, head) = self.frame(limits)?;
        if header.body_len == 0 || !header.flags.contains(Flags::MESSAGE) {
            return Err(ProtocolError::Inconsistent("a body of no bytes cannot come later"));
        }
        Ok((header, head))
    }

    fn slice(&mut self) -> Result<RemoteSlice, ProtocolError> {
        let len = self.number()?;
        if len == 0 {
            return Err(ProtocolError::Inconsistent("memory of no bytes"));
        }
        let address = u64::from_le_bytes(self.array()?);
        if address.checked_add(len.into()).is_none() {
            return Err(ProtocolError::Inconsistent("memory beyond the last address"));
        }
        Ok(RemoteSlice { address, len: len.into(), key: self.number()? })
    }

    fn byte(&mut self) -> Result<u8, ProtocolError> {
        self.array().map(|[byte]| byte)
    }

    fn number(&mut self) -> Result<u32, ProtocolError> {
        self.array().map(u32::from_le_bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        let (array, rest) = self.0.split_first_chunk().ok_or(ProtocolError::Truncated("an item"))?;
        self.0 = rest;
        Ok(*array)
    }

    fn bytes(&mut self, len: usize) -> Result<&'a [u8], ProtocolError> {
        let (bytes, rest) =
            self.0.split_at_checked(len).ok_or(ProtocolError::Truncated("a frame or a piece"))?;
        self.0 = rest;
        Ok(bytes)
    }
}
