//! What each side says about RDMA before there is any, and what both conclude.
//!
//! Owns [`Offer`], the records that carry it in a hello's extension, and [`Verdict`], the last word over TCP.
//! Records are type, length and value: a type that a side does not know is skipped, and bytes behind those it
//! knows too, so that a later version can say more. Invariant: whether verdicts follow depends on one thing
//! that both sides see alike, an endpoint record in both hellos ([`Extension::offers`]), not on whether a
//! side can use what it says. Never: trusts a length from the peer before it is compared with what is left.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::credit::{MAX_WINDOW, MIN_WINDOW};
use super::wire::{MAX_MESSAGE, least_receive};
use crate::nic::{Endpoint, Mtu};

mod record {
    pub(super) const ENDPOINT: u16 = 1;
    pub(super) const CAPABILITIES: u16 = 2;
    pub(super) const NONCE: u16 = 3;
    pub(super) const UNAVAILABLE: u16 = 4;
}

/// Longest reason that travels, in bytes.
const MAX_REASON: usize = 512;

/// What one side of a link accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Receives that the peer may use from the start: its first credits.
    pub receive_depth: u16,
    /// Bytes of each receive.
    pub receive_size: u32,
    /// Bodies that may be on their way to this side at once, each announced or granted.
    pub transfers: u16,
    /// Offers for replies that this side takes at once.
    pub offers: u16,
    /// Whether this side can bind windows. If not, its grants ask for pieces.
    pub windows: bool,
}

/// Everything that one side offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Where its queue pair is.
    pub endpoint: Endpoint,
    /// What it accepts.
    pub capabilities: Capabilities,
    /// A random number that the peer's probe repeats.
    pub nonce: u64,
}

impl Capabilities {
    /// Whether a link to a side with these can work.
    ///
    /// # Errors
    /// What is wrong with them, for a person.
    pub fn check(&self, max_head: u16) -> Result<(), String> {
        let depth = u32::from(self.receive_depth);
        let (size, least) = (self.receive_size as usize, least_receive(max_head));
        if !(MIN_WINDOW..=MAX_WINDOW).contains(&depth) {
            return Err(format!("{depth} receives are too few: at least {MIN_WINDOW} are needed"));
        }
        if size < least || size > MAX_MESSAGE {
            return Err(format!(
                "receives of {size} bytes do not work: with heads of up to {max_head} bytes they have {least} to {MAX_MESSAGE}"
            ));
        }
        if self.transfers == 0 {
            return Err("no large message is accepted at all".into());
        }
        Ok(())
    }
}

/// A hello's extension, as far as it concerns RDMA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Extension {
    /// The side would use RDMA.
    Offer(Offer),
    /// It says so, but in a way that cannot be used; this is what is wrong.
    Unusable(String),
    /// It would not, for this reason. Empty when it gave none: it may not know of RDMA.
    Unavailable(String),
}

impl Extension {
    /// Whether the side offers RDMA, usable or not. If both do, both send a verdict.
    pub fn offers(&self) -> bool {
        !matches!(self, Self::Unavailable(_))
    }

    /// The bytes to put into a hello.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::new();
        match self {
            Self::Offer(Offer { endpoint, capabilities, nonce }) => {
                put_record(&mut bytes, record::ENDPOINT, |bytes| {
                    bytes.put_slice(&endpoint.gid);
                    bytes.put_u16_le(endpoint.lid);
                    bytes.put_u32_le(endpoint.number);
                    bytes.put_u32_le(endpoint.first_psn);
                    bytes.put_u32_le(endpoint.mtu.bytes());
                });
                put_record(&mut bytes, record::CAPABILITIES, |bytes| {
                    bytes.put_u16_le(capabilities.receive_depth);
                    bytes.put_u32_le(capabilities.receive_size);
                    bytes.put_u16_le(capabilities.transfers);
                    bytes.put_u16_le(capabilities.offers);
                    bytes.put_u8(u8::from(capabilities.windows));
                });
                put_record(&mut bytes, record::NONCE, |bytes| bytes.put_u64_le(*nonce));
            }
            Self::Unavailable(reason) | Self::Unusable(reason) if reason.is_empty() => {}
            Self::Unavailable(reason) | Self::Unusable(reason) => {
                put_record(&mut bytes, record::UNAVAILABLE, |bytes| {
                    bytes.put_slice(shortened(reason).as_bytes())
                });
            }
        }
        bytes.freeze()
    }

    /// Reads an extension. Whatever it holds, this has an answer.
    pub fn decode(mut rest: &[u8]) -> Self {
        let (mut endpoint, mut capabilities, mut nonce) = (None, None, None);
        let (mut reason, mut offered, mut wrong) = (String::new(), false, None);
        while rest.len() >= 4 {
            let (kind, len) = (rest.get_u16_le(), usize::from(rest.get_u16_le()));
            let Some((mut value, after)) = rest.split_at_checked(len) else {
                // The kind counts all the same: the sender sees its own offer.
                offered |= kind == record::ENDPOINT;
                rest = &[0];
                break;
            };
            rest = after;
            match kind {
                record::ENDPOINT => {
                    offered = true;
                    endpoint = take_endpoint(&mut value);
                }
                record::CAPABILITIES => capabilities = take_capabilities(&mut value),
                record::NONCE => nonce = value.try_get_u64_le().ok(),
                record::UNAVAILABLE => reason = readable(value),
                _ => {}
            }
        }
        if !rest.is_empty() {
            wrong = Some("the peer's offer is cut off");
        }
        match (endpoint, capabilities, nonce) {
            _ if !offered => Self::Unavailable(reason),
            (Some(endpoint), Some(capabilities), Some(nonce)) if wrong.is_none() => {
                Self::Offer(Offer { endpoint, capabilities, nonce })
            }
            (None, ..) => Self::Unusable(
                wrong.unwrap_or("the peer describes its queue pair in no way that this version knows").into(),
            ),
            _ => Self::Unusable(wrong.unwrap_or("the peer's offer is not complete").into()),
        }
    }
}

fn take_endpoint(value: &mut &[u8]) -> Option<Endpoint> {
    let mut gid = [0; 16];
    value.try_copy_to_slice(&mut gid).ok()?;
    let lid = value.try_get_u16_le().ok()?;
    let number = value.try_get_u32_le().ok()?;
    let first_psn = value.try_get_u32_le().ok()?;
    let mtu = Mtu::at_most(value.try_get_u32_le().ok()?)?;
    // Both have 24 bits on the wire; zero is a queue pair of the subnet's own.
    let fits = (1..1 << 24).contains(&number) && first_psn < 1 << 24;
    fits.then_some(Endpoint { gid, lid, number, first_psn, mtu })
}

fn take_capabilities(value: &mut &[u8]) -> Option<Capabilities> {
    Some(Capabilities {
        receive_depth: value.try_get_u16_le().ok()?,
        receive_size: value.try_get_u32_le().ok()?,
        transfers: value.try_get_u16_le().ok()?,
        offers: value.try_get_u16_le().ok()?,
        windows: value.try_get_u8().ok()? & 1 != 0,
    })
}

fn put_record(bytes: &mut BytesMut, kind: u16, fill: impl FnOnce(&mut BytesMut)) {
    let start = bytes.len();
    bytes.put_u16_le(kind);
    bytes.put_u16_le(0);
    fill(bytes);
    let len = (bytes.len() - start - 4) as u16;
    bytes[start + 2..start + 4].copy_from_slice(&len.to_le_bytes());
}

/// A peer's text for a person: whatever it is, it prints.
fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_REASON)]);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn shortened(reason: &str) -> &str {
    let mut len = reason.len().min(MAX_REASON);
    while !reason.is_char_boundary(len) {
        len -= 1;
    }
    &reason[..len]
}

/// Whether a side goes on over RDMA; if not, why.
pub type Verdict = Result<(), String>;

const VERDICT_MAGIC: [u8; 4] = *b"RDMA";
const VERDICT_LEN: usize = 8;

/// The bytes of a verdict, which follow the hello on the TCP connection.
pub fn encode_verdict(verdict: &Verdict) -> Bytes {
    let reason = verdict.as_ref().err().map_or("", |reason| shortened(reason));
    let mut bytes = BytesMut::with_capacity(VERDICT_LEN + reason.len());
    bytes.put_slice(&VERDICT_MAGIC);
    bytes.put_u8(u8::from(verdict.is_ok()));
    bytes.put_u8(0);
    bytes.put_u16_le(reason.len() as u16);
    bytes.put_slice(reason.as_bytes());
    bytes.freeze()
}

/// Takes a verdict off the front of what was read; `None` when more bytes are needed.
///
/// # Errors
/// When the bytes are no verdict: the stream cannot be used any more.
pub fn take_verdict(buffer: &mut BytesMut) -> Result<Option<Verdict>, &'static str> {
    let seen = buffer.len().min(VERDICT_MAGIC.len());
    if buffer[..seen] != VERDICT_MAGIC[..seen] {
        return Err("something else where the peer's verdict about RDMA should be");
    }
    let Some(&[.., yes, _, l0, l1]) = buffer.first_chunk::<VERDICT_LEN>() else { return Ok(None) };
    let len = usize::from(u16::from_le_bytes([l0, l1]));
    if yes > 1 || len > MAX_REASON {
        return Err("a verdict about RDMA that is neither yes nor no, or too long");
    }
    if buffer.len() < VERDICT_LEN + len {
        return Ok(None);
    }
    let reason = readable(&buffer.split_to(VERDICT_LEN + len)[VERDICT_LEN..]);
    Ok(Some(if yes == 1 { Ok(()) } else { Err(reason) }))
}
