//! Messages to bytes and back.
//!
//! Owns [`Encode`], what a link asks of anything it sends, and [`decode`]. Protobuf is the only format.
//! Never: copies a large `bytes` field in either direction.

use bytes::{Buf, BufMut, Bytes};
use prost::Message;
use tonic::Status;

use crate::output::Output;

/// A received message up to this size is decoded from a slice, so that its `bytes` fields become exact
/// copies. A larger one is decoded in place and its `bytes` fields alias the memory it landed in.
///
/// Without it one field of a few bytes, kept by the user, would hold the whole read buffer that it
/// came in.
pub const ALIAS_MIN: usize = 1024;

/// Something that can be written into memory that a link chose.
pub trait Encode: Sync {
    /// Exact length of what [`encode`](Self::encode) writes, in bytes.
    fn encoded_len(&self) -> usize;
    /// Writes exactly [`encoded_len`](Self::encoded_len) bytes.
    fn encode(&self, output: &mut Output<'_>);
}

impl<M: Message> Encode for M {
    fn encoded_len(&self) -> usize {
        Message::encoded_len(self)
    }

    fn encode(&self, output: &mut Output<'_>) {
        self.encode_raw(output);
    }
}

/// A message that is encoded already, for adapters that carry messages they cannot read.
#[derive(Debug, Clone)]
pub struct Encoded(pub Bytes);

impl Encode for Encoded {
    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn encode(&self, output: &mut Output<'_>) {
        output.put(self.0.clone());
    }
}

/// Decodes one message.
///
/// # Errors
/// `INTERNAL`, as gRPC asks, when the bytes are not a message of this type.
#[inline]
pub fn decode<M: Message + Default>(bytes: Bytes) -> Result<M, Status> {
    let mut message = M::default();
    decode_into(&mut message, bytes)?;
    Ok(message)
}

/// Decodes one message where it is to stay, as [`decode`] does otherwise.
pub(crate) fn decode_into<M: Message>(message: &mut M, bytes: Bytes) -> Result<(), Status> {
    let merged = if bytes.len() < ALIAS_MIN { message.merge(Small(&bytes)) } else { message.merge(bytes) };
    merged.map_err(|error| Status::internal(format!("the message could not be decoded: {error}")))
}

/// A message that is decoded from a slice.
struct Small<'a>(&'a [u8]);

impl Buf for Small<'_> {
    #[inline]
    fn remaining(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn chunk(&self) -> &[u8] {
        self.0
    }

    #[inline]
    fn advance(&mut self, count: usize) {
        self.0.advance(count);
    }

    #[inline]
    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        let (field, rest) = self.0.split_at(len);
        self.0 = rest;
        match len {
            0 => Bytes::new(),
            1..=32 => Field::<32>::copy(field),
            33..=64 => Field::<64>::copy(field),
            65..=128 => Field::<128>::copy(field),
            _ => Bytes::copy_from_slice(field),
        }
    }
}

/// A short field with its reference count beside it. `Bytes` of a vector allocate theirs when they are first cloned,
/// which is when a field is sent on.
struct Field<const ROOM: usize> {
    len: u8,
    memory: [u8; ROOM],
}

impl<const ROOM: usize> Field<ROOM> {
    fn copy(field: &[u8]) -> Bytes {
        let mut memory = [0; ROOM];
        memory[..field.len()].copy_from_slice(field);
        Bytes::from_owner(Self { len: field.len() as u8, memory })
    }
}

impl<const ROOM: usize> AsRef<[u8]> for Field<ROOM> {
    fn as_ref(&self) -> &[u8] {
        &self.memory[..usize::from(self.len)]
    }
}
