//! Writing one message into memory that the driver chose.
//!
//! Owns [`Message`], which puts items behind each other and the header before them, last, so that credits are
//! those of the moment in which it is posted. Invariant: what it wrote decodes. A frame whose encoding panics
//! leaves the message as it was. Never: allocates, or writes past the memory: its user asks for
//! [`room`](Message::room) first.

use bytes::BufMut;
use byway_runtime::output::Output;
use byway_runtime::session::Frame;

use super::credit::Total;
use super::wire::{HEADER_LEN, Item, LandingId, MessageHeader, Place, TransferId, kind};
use crate::nic::RemoteSlice;

/// A message that is being filled.
#[derive(Debug)]
pub struct Message<'a> {
    memory: &'a mut [u8],
    filled: usize,
}

impl<'a> Message<'a> {
    /// Begins a message.
    pub fn new(memory: &'a mut [u8]) -> Self {
        Self::resume(memory, HEADER_LEN)
    }

    /// Goes on with a message of which `filled` bytes are there.
    pub fn resume(memory: &'a mut [u8], filled: usize) -> Self {
        Self { memory, filled }
    }

    /// Bytes that are there, the header's included.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Bytes that items can still take.
    pub fn room(&self) -> usize {
        self.memory.len().saturating_sub(self.filled)
    }

    /// Adds an item that is neither a frame nor a piece.
    ///
    /// # Panics
    /// Without room for it, or for an item that has a function of its own.
    pub fn put(&mut self, item: &Item<'_>) {
        self.write(|rest| match *item {
            Item::Grant { transfer, landing, place: Place::Slice(slice) } => {
                put_numbers(rest, kind::GRANT, [transfer.0, landing.0]);
                put_slice(rest, slice);
            }
            Item::Grant { transfer, landing, place: Place::Pieces } => {
                put_numbers(rest, kind::GRANT_PIECES, [transfer.0, landing.0]);
            }
            Item::Refused { transfer, reason } => {
                put_numbers(rest, kind::REFUSED, [transfer.0]);
                rest.put_u8(reason.code());
            }
            Item::Release { landing } => put_numbers(rest, kind::RELEASE, [landing.0]),
            Item::Offer { call, landing, slice } => {
                put_numbers(rest, kind::OFFER, [call.0, landing.0]);
                put_slice(rest, slice);
            }
            Item::Probe(nonce) => {
                rest.put_u8(kind::PROBE);
                rest.put_u64_le(nonce);
            }
            Item::Ask(credits) => {
                rest.put_u8(kind::ASK);
                rest.put_u16_le(u16::try_from(credits.0).unwrap_or(u16::MAX));
            }
            Item::GivenBack(credits) => {
                rest.put_u8(kind::GIVEN_BACK);
                rest.put_u16_le(u16::try_from(credits.0).expect("a window has no more"));
            }
            Item::Frame { .. } | Item::Announced { .. } | Item::Placed { .. } | Item::Piece { .. } => {
                panic!("frames and pieces are encoded in place")
            }
        });
    }

    /// Adds a whole frame.
    ///
    /// # Panics
    /// Without room for it.
    pub fn put_frame(&mut self, frame: &Frame<'_>) {
        self.write(|rest| {
            rest.put_u8(kind::FRAME);
            put_encoded(rest, frame.encoded_len(), |output| frame.encode(output));
        });
    }

    /// Adds a frame whose body is announced.
    ///
    /// # Panics
    /// Without room for it.
    pub fn put_announced(&mut self, transfer: TransferId, frame: &Frame<'_>) {
        self.put_without_body(kind::ANNOUNCED, transfer.0, frame);
    }

    /// Adds a frame whose body is written into memory that the peer offered.
    ///
    /// # Panics
    /// Without room for it.
    pub fn put_placed(&mut self, landing: LandingId, frame: &Frame<'_>) {
        self.put_without_body(kind::PLACED, landing.0, frame);
    }

    /// Adds `len` bytes of a body, which `fill` writes.
    ///
    /// # Panics
    /// Without room for it.
    pub fn put_piece(&mut self, landing: LandingId, len: u32, fill: impl FnOnce(&mut [u8])) {
        self.write(|rest| {
            put_numbers(rest, kind::PIECE, [landing.0, len]);
            let (piece, after) = std::mem::take(rest).split_at_mut(len as usize);
            fill(piece);
            *rest = after;
        });
    }

    /// Writes the header of a message that is complete; returns the message's length.
    pub fn finish(self, total: Total, wants_credits: bool) -> usize {
        let len = (self.filled - HEADER_LEN) as u32;
        let header = MessageHeader { total, wants_credits, len };
        self.memory[..HEADER_LEN].copy_from_slice(&header.encode());
        self.filled
    }

    fn put_without_body(&mut self, kind: u8, number: u32, frame: &Frame<'_>) {
        let head_only = Frame { header: frame.header, head: frame.head, body: None, path: None };
        let len = head_only.encoded_len() - frame.header.body_len as usize;
        self.write(|rest| {
            put_numbers(rest, kind, [number]);
            put_encoded(rest, len, |output| head_only.encode(output));
        });
    }

    /// Lets `fill` write behind what is there, and notes how much it wrote; nothing when it panics.
    fn write(&mut self, fill: impl FnOnce(Rest<'_, '_>)) {
        let mut rest = &mut self.memory[self.filled..];
        let room = rest.len();
        fill(&mut rest);
        self.filled += room - rest.len();
    }
}

/// What is free of a message; it moves on as it is written.
type Rest<'r, 'm> = &'r mut &'m mut [u8];

fn put_numbers<const N: usize>(rest: Rest<'_, '_>, kind: u8, numbers: [u32; N]) {
    rest.put_u8(kind);
    numbers.into_iter().for_each(|number| rest.put_u32_le(number));
}

fn put_slice(rest: Rest<'_, '_>, slice: RemoteSlice) {
    rest.put_u32_le(u32::try_from(slice.len).expect("no message is longer"));
    rest.put_u64_le(slice.address);
    rest.put_u32_le(slice.key);
}

fn put_encoded(rest: Rest<'_, '_>, len: usize, encode: impl FnOnce(&mut Output<'_>)) {
    let (memory, after) = std::mem::take(rest).split_at_mut(len);
    let mut output = Output::contiguous(memory);
    encode(&mut output);
    debug_assert_eq!(output.filled(), len, "a frame has the length that it announced");
    *rest = after;
}
