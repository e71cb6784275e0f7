//! The first bytes of each side.
//!
//! Owns [`Hello`]: magic, versions, limits and an extension that later versions and other transports fill. The client
//! speaks first; the server answers with its own hello, or with one that says why it refuses. Invariant: a hello is
//! at least 32 bytes, more than an HTTP/2 preface, so that a gRPC server has read one whole and answers; and its
//! first line ends at once, so that an HTTP/1 server answers too.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::limits::{Limits, MIN_HEAD};

/// What every byway connection begins with.
pub const MAGIC: [u8; 8] = *b"BYWAY\r\n\0";

/// Bytes of a hello without its extension.
pub const HELLO_LEN: usize = 32;

/// Longest extension that is accepted, in bytes.
const MAX_EXTENSION: u32 = 4096;

/// The version that this implementation speaks, and the oldest that it still understands.
pub const VERSION: u16 = 1;

const REFUSED: u32 = 1;

/// What one side says before anything else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Newest version of the protocol that the side speaks.
    pub version: u16,
    /// Oldest version of the protocol that the side speaks.
    pub oldest: u16,
    /// What the side accepts. Its receive budget is not sent.
    pub limits: Limits,
    /// Set by a server that will not serve the client; the extension is then the reason, in UTF-8.
    pub refused: bool,
    /// Empty in version 1, unless refused.
    pub extension: Bytes,
}

/// Why the bytes of a peer are not a hello that we can work with.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum HelloError {
    /// The peer does not speak byway; these are its first bytes.
    NotByway(Bytes),
    /// The peer speaks versions that this side does not.
    Version {
        /// Oldest version of the peer.
        oldest: u16,
        /// Newest version of the peer.
        newest: u16,
    },
    /// A field has a value that no version allows.
    Invalid(&'static str),
    /// The server refused, and said why.
    Refused(String),
}

impl std::fmt::Display for HelloError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotByway(first) => {
                write!(
                    f,
                    "the peer does not speak byway's protocol: its first bytes are \"{}\"",
                    first.escape_ascii()
                )
            }
            Self::Version { oldest, newest } => {
                write!(
                    f,
                    "the peer speaks versions {oldest} to {newest} of byway's protocol, this side speaks version {VERSION}: update the older one"
                )
            }
            Self::Invalid(what) => write!(f, "the peer's hello is not valid: {what}"),
            Self::Refused(reason) => write!(f, "the server refused the connection: {reason}"),
        }
    }
}

impl std::error::Error for HelloError {}

impl Hello {
    /// This implementation's hello.
    pub fn new(limits: &Limits) -> Self {
        Self { version: VERSION, oldest: VERSION, limits: *limits, refused: false, extension: Bytes::new() }
    }

    /// A server's answer to a client that it will not serve.
    pub fn refusal(limits: &Limits, reason: &str) -> Self {
        let reason = &reason.as_bytes()[..reason.len().min(MAX_EXTENSION as usize)];
        Self { refused: true, extension: Bytes::copy_from_slice(reason), ..Self::new(limits) }
    }

    /// The bytes to send.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(HELLO_LEN + self.extension.len());
        bytes.put_slice(&MAGIC);
        bytes.put_u16_le(self.version);
        bytes.put_u16_le(self.oldest);
        bytes.put_u32_le(self.extension.len() as u32);
        bytes.put_u32_le(self.limits.max_message);
        bytes.put_u32_le(self.limits.window);
        bytes.put_u16_le(self.limits.max_calls);
        bytes.put_u16_le(self.limits.max_head);
        bytes.put_u32_le(if self.refused { REFUSED } else { 0 });
        bytes.put_slice(&self.extension);
        bytes.freeze()
    }

    /// Takes a hello off the front of `buffer`; `None` when more bytes are needed.
    ///
    /// # Errors
    /// As soon as the bytes cannot become a hello that this side understands; see [`HelloError`].
    pub fn take(buffer: &mut BytesMut) -> Result<Option<Self>, HelloError> {
        let seen = buffer.len().min(MAGIC.len());
        if buffer[..seen] != MAGIC[..seen] {
            return Err(HelloError::NotByway(Bytes::copy_from_slice(&buffer[..buffer.len().min(64)])));
        }
        if buffer.len() < HELLO_LEN {
            return Ok(None);
        }
        let mut fields = &buffer[MAGIC.len()..HELLO_LEN];
        let version = fields.get_u16_le();
        let oldest = fields.get_u16_le();
        let extension_len = fields.get_u32_le();
        let max_message = fields.get_u32_le();
        let window = fields.get_u32_le();
        let max_calls = fields.get_u16_le();
        let max_head = fields.get_u16_le();
        let flags = fields.get_u32_le();
        if extension_len > MAX_EXTENSION {
            return Err(HelloError::Invalid("an extension of more than 4,096 bytes"));
        }
        let len = HELLO_LEN + extension_len as usize;
        if buffer.len() < len {
            return Ok(None);
        }
        let extension = buffer.split_to(len).freeze().slice(HELLO_LEN..);
        if flags & REFUSED != 0 {
            return Err(HelloError::Refused(String::from_utf8_lossy(&extension).into_owned()));
        }
        if oldest > VERSION || version < VERSION {
            return Err(HelloError::Version { oldest, newest: version });
        }
        if max_message == 0 || window == 0 || max_head < MIN_HEAD {
            return Err(HelloError::Invalid("a limit of zero, or of less than 256 bytes for heads"));
        }
        let limits = Limits { max_message, max_head, max_calls, window, receive_budget: u64::MAX };
        Ok(Some(Self { version, oldest, limits, refused: false, extension }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(bytes: &[u8]) -> Result<Option<Hello>, HelloError> {
        Hello::take(&mut BytesMut::from(bytes))
    }

    #[test]
    fn a_hello_survives_the_wire_in_any_pieces() {
        let sent = Hello { extension: Bytes::from_static(b"later"), ..Hello::new(&Limits::default()) };
        let bytes = sent.encode();
        for len in 0..bytes.len() {
            assert_eq!(taken(&bytes[..len]), Ok(None), "at {len}");
        }
        let mut buffer = BytesMut::from(&bytes[..]);
        buffer.extend_from_slice(b"frames");
        let received = Hello::take(&mut buffer).expect("valid").expect("whole");
        assert_eq!(received.extension, sent.extension);
        assert_eq!(received.limits.max_message, sent.limits.max_message);
        assert_eq!(&buffer[..], b"frames", "what follows is left");
    }

    #[test]
    fn other_protocols_are_told_apart_by_their_first_byte() {
        for other in [&b"P"[..], b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01"]
        {
            assert!(matches!(taken(other), Err(HelloError::NotByway(_))), "{other:?}");
        }
    }

    #[test]
    fn versions_limits_and_refusals_are_checked() {
        let newer = Hello { version: 9, oldest: 2, ..Hello::new(&Limits::default()) };
        assert_eq!(taken(&newer.encode()), Err(HelloError::Version { oldest: 2, newest: 9 }));
        let compatible = Hello { version: 9, oldest: 1, ..Hello::new(&Limits::default()) };
        assert!(matches!(taken(&compatible.encode()), Ok(Some(_))));
        let zero = Hello::new(&Limits { window: 0, ..Limits::default() });
        assert!(matches!(taken(&zero.encode()), Err(HelloError::Invalid(_))));
        let refusal = Hello::refusal(&Limits::default(), "too many connections");
        assert_eq!(taken(&refusal.encode()), Err(HelloError::Refused("too many connections".into())));
        let mut long = Hello::new(&Limits::default()).encode().to_vec();
        long[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(taken(&long), Err(HelloError::Invalid(_))));
    }
}
