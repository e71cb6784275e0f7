//! Memory that begins where a page does.
//!
//! The kernel copies to and from sockets with `rep movsb`, which some processors (AMD's Zen, for one) slow down tenfold
//! when the target is 1 to 31 bytes past the source, modulo 4096. A socket's memory begins at a page; that of a large
//! `Vec` begins 16 bytes past one, and then a few bytes before the payload decide whether 1 MiB takes twice as long.
//! Payloads of every path, and the buffers of the raw one, begin at a page, so that what is compared is not that.

use std::ops::{Deref, DerefMut};

use bytes::Bytes;

pub(crate) struct Pages {
    memory: Vec<u8>,
    start: usize,
}

impl Pages {
    const PAGE: usize = 4096;

    pub(crate) fn zeroed(len: usize) -> Self {
        let mut memory = vec![0; len + Self::PAGE];
        let start = memory.as_ptr().align_offset(Self::PAGE);
        memory.truncate(start + len);
        Self { memory, start }
    }

    /// A copy with room for `len` bytes.
    pub(crate) fn grown(&self, len: usize) -> Self {
        let mut grown = Self::zeroed(len);
        grown[..self.len()].copy_from_slice(self);
        grown
    }

    pub(crate) fn freeze(self) -> Bytes {
        Bytes::from(self.memory).slice(self.start..)
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..]
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..]
    }
}
