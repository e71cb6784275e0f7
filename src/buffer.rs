//! Memory for large payloads that a channel sends from where it is.
//!
//! Owns [`PayloadBuffer`]. Invariant: it is usable on every path; on RDMA it is registered memory of the device, and what
//! is frozen from it is not copied on its way out.

use std::fmt;
use std::ops::{Deref, DerefMut};

use bytes::Bytes;
use byway_rdma::pool::Lease;

/// Memory to write a payload into; see [`Channel::buffer`](crate::Channel::buffer).
pub struct PayloadBuffer(Memory);

enum Memory {
    Registered(Lease),
    Plain(Vec<u8>),
}

impl PayloadBuffer {
    pub(crate) fn registered(lease: Lease) -> Self {
        Self(Memory::Registered(lease))
    }

    pub(crate) fn plain(len: usize) -> Self {
        Self(Memory::Plain(vec![0; len]))
    }

    /// Whether it is registered with a device, so that sending it copies nothing.
    pub fn is_registered(&self) -> bool {
        matches!(self.0, Memory::Registered(_))
    }

    /// The bytes as they are now, for a `bytes` field of a message. The memory is used again when the last reference to them
    /// is gone and no device reads them any more.
    pub fn freeze(self) -> Bytes {
        match self.0 {
            Memory::Registered(lease) => lease.freeze(),
            Memory::Plain(bytes) => bytes.into(),
        }
    }
}

impl Deref for PayloadBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Memory::Registered(lease) => lease.bytes(),
            Memory::Plain(bytes) => bytes,
        }
    }
}

impl DerefMut for PayloadBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Registered(lease) => lease.bytes_mut(),
            Memory::Plain(bytes) => bytes,
        }
    }
}

impl fmt::Debug for PayloadBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PayloadBuffer")
            .field("len", &self.len())
            .field("registered", &self.is_registered())
            .finish()
    }
}
