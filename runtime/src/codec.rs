//! Messages to bytes and back.
//!
//! Owns [`Encode`], what a link asks of anything it sends, and [`decode`]. Protobuf is the only format.
//! Never: copies a large `bytes` field in either direction.

use bytes::{BufMut, Bytes};
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
pub fn decode<M: Message + Default>(bytes: Bytes) -> Result<M, Status> {
    let decoded = if bytes.len() < ALIAS_MIN { M::decode(&bytes[..]) } else { M::decode(bytes) };
    decoded.map_err(|error| Status::internal(format!("the message could not be decoded: {error}")))
}
