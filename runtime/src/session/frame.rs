//! What travels between two sessions.
//!
//! Owns the fixed header of a frame, its kinds and flags, and their bounds-checked decoding. docs/wire.md is the
//! same text for other implementations. Never: looks into a head or a body.

use bytes::BufMut;

use super::error::ConnectionError;
use crate::codec::Encode;
use crate::limits::Limits;
use crate::output::Output;

/// Which call a frame belongs to: a slot in the low 16 bits, its generation in the high 16.
///
/// The client reuses a slot as soon as its call is over; the generation, one more each time, tells a late frame of
/// the old call from one of the new. Zero, which no call has, names the connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CallId(pub u32);

impl CallId {
    /// The connection itself, in frames that concern no call.
    pub const CONNECTION: Self = Self(0);

    #[inline]
    pub(crate) fn new(slot: u16, generation: u16) -> Self {
        Self(u32::from(generation) << 16 | u32::from(slot))
    }

    /// Its place among the calls that may be open at once: an index for what belongs to the call.
    #[inline]
    pub fn slot(self) -> u16 {
        self.0 as u16
    }

    #[inline]
    pub(crate) fn generation(self) -> u16 {
        (self.0 >> 16) as u16
    }
}

/// What a frame is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Begins a call. Head: path, time-out and metadata. Client to server only.
    Open = 1,
    /// Goes on with a call: any of initial metadata, a message, the end.
    Data = 2,
    /// Ends a call without a status. Head: one byte, a [`Reset`](super::error::Reset).
    Reset = 3,
    /// Grants bytes of one call's window. Head: u32.
    Window = 4,
    /// Asks for a `Pong` with the same head of eight bytes.
    Ping = 5,
    /// Answers a `Ping`.
    Pong = 6,
    /// No further calls will be accepted on this connection; open ones go on.
    Drain = 7,
    /// The connection is over. Head: UTF-8 text for a person.
    Close = 8,
}

impl Kind {
    fn decode(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Open,
            2 => Self::Data,
            3 => Self::Reset,
            4 => Self::Window,
            5 => Self::Ping,
            6 => Self::Pong,
            7 => Self::Drain,
            8 => Self::Close,
            _ => return None,
        })
    }
}

/// What an `Open` or `Data` frame carries.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Flags(u8);

impl Flags {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// The head begins with initial metadata.
    pub const HEAD: Self = Self(1);
    /// The body is one message.
    pub const MESSAGE: Self = Self(2);
    /// Nothing follows from this side; a server's head ends with the status.
    pub const END: Self = Self(4);
    const KNOWN: u8 = 7;

    /// Whether all of `other` is set.
    #[inline]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both.
    #[must_use]
    #[inline]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// `self` and, when `condition` holds, `other`.
    #[must_use]
    #[inline]
    pub fn with_if(self, other: Self, condition: bool) -> Self {
        if condition { self.with(other) } else { self }
    }
}

/// The first [`HEADER_LEN`] bytes of a frame: little-endian, then `head_len` bytes of head and `body_len` of body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What the frame is for.
    pub kind: Kind,
    /// What it carries.
    pub flags: Flags,
    /// Bytes of head.
    pub head_len: u16,
    /// The call, or [`CallId::CONNECTION`].
    pub call: CallId,
    /// Bytes of body.
    pub body_len: u32,
}

/// Bytes of a header.
pub const HEADER_LEN: usize = 12;

impl Header {
    /// Bytes of the whole frame.
    #[inline]
    pub fn frame_len(&self) -> usize {
        HEADER_LEN + usize::from(self.head_len) + self.body_len as usize
    }

    /// Reads a header and checks it against what this side accepts, before anything is allocated for it.
    ///
    /// # Errors
    /// An unknown kind or flag, or a length over `limits`, is the peer's fault and ends the connection.
    pub fn decode(bytes: &[u8; HEADER_LEN], limits: &Limits) -> Result<Self, ConnectionError> {
        let [kind, flags, h0, h1, c0, c1, c2, c3, b0, b1, b2, b3] = *bytes;
        let kind = Kind::decode(kind).ok_or(ConnectionError::UnknownKind(kind))?;
        let known = if matches!(kind, Kind::Open | Kind::Data) { Flags::KNOWN } else { 0 };
        if flags & !known != 0 {
            return Err(ConnectionError::UnknownFlags(flags));
        }
        let header = Self {
            kind,
            flags: Flags(flags),
            head_len: u16::from_le_bytes([h0, h1]),
            call: CallId(u32::from_le_bytes([c0, c1, c2, c3])),
            body_len: u32::from_le_bytes([b0, b1, b2, b3]),
        };
        if header.head_len > limits.max_head {
            return Err(ConnectionError::HeadTooLarge { len: header.head_len, limit: limits.max_head });
        }
        if header.body_len > limits.max_message {
            return Err(ConnectionError::MessageTooLarge { len: header.body_len, limit: limits.max_message });
        }
        if header.body_len > 0 && !header.flags.contains(Flags::MESSAGE) {
            return Err(ConnectionError::UnexpectedBody);
        }
        Ok(header)
    }

    /// Writes the header.
    pub fn encode(&self, output: &mut impl BufMut) {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = self.kind as u8;
        bytes[1] = self.flags.0;
        bytes[2..4].copy_from_slice(&self.head_len.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.call.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.body_len.to_le_bytes());
        output.put_slice(&bytes);
    }
}

/// A frame to be sent: a header, and what its head and body are encoded from.
pub struct Frame<'a> {
    /// The header; its lengths are those of `head` and `body`.
    pub header: Header,
    /// Encodes the head, when it is not empty.
    pub head: Option<&'a dyn Encode>,
    /// Encodes the body, when there is a message.
    pub body: Option<&'a dyn Encode>,
    /// Of a frame that opens a call: its path, from which a link may learn how large replies are.
    pub path: Option<&'a str>,
}

impl<'a> Frame<'a> {
    /// A frame of a call. The caller has checked both lengths against the peer's limits.
    #[inline]
    pub(crate) fn new(
        kind: Kind,
        flags: Flags,
        call: CallId,
        head: Option<(&'a dyn Encode, u16)>,
        body: Option<(&'a dyn Encode, u32)>,
    ) -> Self {
        Self {
            header: Header {
                kind,
                flags,
                head_len: head.map_or(0, |(_, len)| len),
                call,
                body_len: body.map_or(0, |(_, len)| len),
            },
            head: head.map(|(head, _)| head),
            body: body.map(|(body, _)| body),
            path: None,
        }
    }

    /// Bytes of the whole frame.
    pub fn encoded_len(&self) -> usize {
        self.header.frame_len()
    }

    /// Writes the whole frame.
    pub fn encode(&self, output: &mut Output<'_>) {
        self.header.encode(output);
        if let Some(head) = self.head {
            head.encode(output);
        }
        if let Some(body) = self.body {
            body.encode(output);
        }
    }
}

/// A head that is a few raw bytes.
pub(crate) struct Raw<'a>(pub(crate) &'a [u8]);

impl Encode for Raw<'_> {
    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn encode(&self, output: &mut Output<'_>) {
        output.put_slice(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            kind: Kind::Data,
            flags: Flags::HEAD.with(Flags::MESSAGE).with(Flags::END),
            head_len: 0x0201,
            call: CallId::new(7, 9),
            body_len: 0x0403,
        }
    }

    fn bytes(header: &Header) -> [u8; HEADER_LEN] {
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        bytes.try_into().expect("a header's length")
    }

    #[test]
    fn a_header_is_laid_out_as_documented() {
        assert_eq!(bytes(&header()), [2, 7, 1, 2, 7, 0, 9, 0, 3, 4, 0, 0]);
        assert_eq!(Header::decode(&bytes(&header()), &Limits::default()), Ok(header()));
        assert_eq!(header().call.slot(), 7);
        assert_eq!(header().call.generation(), 9);
    }

    #[test]
    fn what_exceeds_a_limit_is_refused_before_it_is_allocated() {
        let limits = Limits { max_message: 100, max_head: 10, ..Limits::default() };
        let long_body = Header { body_len: 101, head_len: 0, ..header() };
        assert_eq!(
            Header::decode(&bytes(&long_body), &limits),
            Err(ConnectionError::MessageTooLarge { len: 101, limit: 100 })
        );
        let long_head = Header { head_len: 11, body_len: 0, ..header() };
        assert_eq!(
            Header::decode(&bytes(&long_head), &limits),
            Err(ConnectionError::HeadTooLarge { len: 11, limit: 10 })
        );
    }

    #[test]
    fn unknown_kinds_flags_and_stray_bodies_are_refused() {
        let mut raw = bytes(&header());
        raw[0] = 9;
        assert_eq!(Header::decode(&raw, &Limits::default()), Err(ConnectionError::UnknownKind(9)));
        let mut raw = bytes(&header());
        raw[1] = 0x80;
        assert_eq!(Header::decode(&raw, &Limits::default()), Err(ConnectionError::UnknownFlags(0x80)));
        let stray = Header { flags: Flags::END, ..header() };
        assert_eq!(Header::decode(&bytes(&stray), &Limits::default()), Err(ConnectionError::UnexpectedBody));
    }
}
