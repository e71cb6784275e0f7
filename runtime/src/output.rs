//! Where outgoing messages are encoded.
//!
//! Owns [`Output`], the `BufMut` that prost writes into, and [`Segments`], a queue of bytes that goes
//! to a socket in vectored writes. Small writes are copied into one contiguous memory; a large
//! [`Bytes`] is taken by reference and remembered as an [`Insert`] at its place in that memory, so a
//! large `bytes` field is never copied.
//!
//! Invariant: the inserts of one memory are sorted by offset, and no offset is past the memory's length.
//! Never: blocks, allocates for a payload it can reference, or fails for lack of space in `Segments`.
#![expect(
    unsafe_code,
    reason = "BufMut is an unsafe trait; its contract is delegated to bytes' own implementations"
)]

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::buf::UninitSlice;
use bytes::{Buf, BufMut, Bytes};

/// A `Bytes` of at least this many bytes travels by reference.
///
/// Below it one more `IoSlice`, a reference count and a queue entry cost more than copying the bytes.
pub const REFERENCE_MIN: usize = 4096;

/// Memory that `Segments` keeps once it is empty. A larger buffer, left by one large message, is freed.
const KEEP_CAPACITY: usize = 256 * 1024;

/// A `Bytes` that belongs at `offset` of the memory beside it.
#[derive(Debug, Clone)]
pub struct Insert {
    /// How many bytes of the memory come before it.
    pub offset: usize,
    /// What is sent there, by reference.
    pub bytes: Bytes,
}

/// The buffer that one frame is encoded into.
///
/// A link chooses the memory: a growing queue for byte streams, or a fixed buffer, which for RDMA is a
/// registered one. Encoding more than a fixed buffer holds panics, as `BufMut` asks; a link therefore
/// asks [`Encode::encoded_len`](crate::Encode::encoded_len) first.
#[derive(Debug)]
pub struct Output<'a> {
    memory: Memory<'a>,
    /// `None` when everything must be copied.
    inserts: Option<&'a mut VecDeque<Insert>>,
    inserted: usize,
}

#[derive(Debug)]
enum Memory<'a> {
    Growing(&'a mut Vec<u8>),
    Fixed { rest: &'a mut [u8], filled: usize },
}

impl<'a> Output<'a> {
    /// Encodes into `memory`; what is taken by reference goes to `inserts`, its offsets counted from the
    /// start of `memory`.
    pub fn fixed(memory: &'a mut [u8], inserts: &'a mut VecDeque<Insert>) -> Self {
        Self { memory: Memory::Fixed { rest: memory, filled: 0 }, inserts: Some(inserts), inserted: 0 }
    }

    /// Encodes into `memory` in one piece: nothing is taken by reference.
    pub fn contiguous(memory: &'a mut [u8]) -> Self {
        Self { memory: Memory::Fixed { rest: memory, filled: 0 }, inserts: None, inserted: 0 }
    }

    /// Bytes in the memory so far, those taken by reference not counted.
    pub fn filled(&self) -> usize {
        match &self.memory {
            Memory::Growing(memory) => memory.len(),
            Memory::Fixed { filled, .. } => *filled,
        }
    }

    /// Bytes taken by reference so far.
    pub fn inserted(&self) -> usize {
        self.inserted
    }

    /// Writes the first `len` of `bytes`: all of them are copied, which takes less than to copy few, where there is room.
    #[inline]
    pub(crate) fn put_short(&mut self, bytes: &[u8; 16], len: usize) {
        match &mut self.memory {
            Memory::Growing(memory) => {
                let end = memory.len() + len;
                memory.extend_from_slice(bytes);
                memory.truncate(end);
            }
            Memory::Fixed { .. } => self.put_slice(&bytes[..len]),
        }
    }

    /// Sends `bytes` from where they are, if this output takes anything by reference.
    pub fn insert(&mut self, bytes: Bytes) {
        let offset = self.filled();
        match &mut self.inserts {
            Some(inserts) => {
                self.inserted += bytes.len();
                inserts.push_back(Insert { offset, bytes });
            }
            None => self.put_slice(&bytes),
        }
    }
}

// SAFETY: `chunk_mut`, `advance_mut` and `remaining_mut` forward to the implementations that bytes has
// for `Vec<u8>` and `&mut [u8]`, always of the same memory, so whatever they promise holds.
unsafe impl BufMut for Output<'_> {
    #[inline]
    fn remaining_mut(&self) -> usize {
        match &self.memory {
            Memory::Growing(memory) => memory.remaining_mut(),
            Memory::Fixed { rest, .. } => rest.len(),
        }
    }

    #[inline]
    unsafe fn advance_mut(&mut self, count: usize) {
        match &mut self.memory {
            // SAFETY: the caller has initialised `count` bytes of the chunk that `Vec` handed out.
            Memory::Growing(memory) => unsafe { memory.advance_mut(count) },
            Memory::Fixed { rest, filled } => {
                // SAFETY: the caller has initialised `count` bytes of the chunk, which was `rest`.
                unsafe { rest.advance_mut(count) };
                *filled += count;
            }
        }
    }

    #[inline]
    fn chunk_mut(&mut self) -> &mut UninitSlice {
        match &mut self.memory {
            Memory::Growing(memory) => memory.chunk_mut(),
            Memory::Fixed { rest, .. } => rest.chunk_mut(),
        }
    }

    #[inline]
    fn put<T: Buf>(&mut self, mut source: T) {
        // For a `Bytes` that is its only chunk, `copy_to_bytes` is a reference, not a copy.
        if source.remaining() >= REFERENCE_MIN && self.inserts.is_some() {
            let bytes = source.copy_to_bytes(source.remaining());
            return self.insert(bytes);
        }
        while source.has_remaining() {
            let count = source.chunk().len();
            self.put_slice(source.chunk());
            source.advance(count);
        }
    }

    #[inline]
    fn put_u8(&mut self, byte: u8) {
        match &mut self.memory {
            Memory::Growing(memory) => memory.push(byte),
            Memory::Fixed { .. } => self.put_slice(&[byte]),
        }
    }

    #[inline]
    fn put_slice(&mut self, source: &[u8]) {
        match &mut self.memory {
            Memory::Growing(memory) => memory.extend_from_slice(source),
            Memory::Fixed { rest, filled } => {
                rest.put_slice(source);
                *filled += source.len();
            }
        }
    }
}

/// A queue of encoded bytes that leaves by vectored writes.
#[derive(Debug, Default)]
pub struct Segments {
    memory: Vec<u8>,
    inserts: VecDeque<Insert>,
    /// Bytes of `memory` that have left.
    read: usize,
    /// Bytes that have not left, inserts included.
    len: usize,
}

impl Segments {
    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes room for `additional` bytes that are copied.
    pub fn reserve(&mut self, additional: usize) {
        self.memory.reserve(additional);
    }

    /// Appends what `encode` writes. When it panics, nothing is appended.
    pub fn append(&mut self, encode: impl FnOnce(&mut Output<'_>)) {
        let rollback = Rollback::new(&mut self.memory, &mut self.inserts);
        let mut output =
            Output { memory: Memory::Growing(rollback.memory), inserts: Some(rollback.inserts), inserted: 0 };
        encode(&mut output);
        let inserted = output.inserted;
        self.len += rollback.keep() + inserted;
    }

    /// What to write next, piece by piece, in order. None is empty.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let places = self.inserts.iter().map(|insert| (insert.offset, &insert.bytes[..]));
        places
            .chain([(self.memory.len(), &[][..])])
            .scan(self.read, |from, (offset, inserted)| {
                let before = &self.memory[*from..offset];
                *from = offset;
                Some([before, inserted])
            })
            .flatten()
            .filter(|piece| !piece.is_empty())
    }

    /// Fills `slices` with what to write next, in order, and returns how many it filled.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let filled = slices.iter_mut().zip(self.pieces()).map(|(slice, piece)| *slice = IoSlice::new(piece));
        filled.count()
    }

    /// Forgets the first `count` bytes: they have left.
    ///
    /// # Panics
    /// When `count` is more than [`len`](Self::len).
    pub fn advance(&mut self, mut count: usize) {
        assert!(count <= self.len, "advanced past the end of the queue");
        self.len -= count;
        while let Some(insert) = self.inserts.front_mut() {
            let before = count.min(insert.offset - self.read);
            self.read += before;
            count -= before;
            let within = count.min(insert.bytes.len());
            insert.bytes.advance(within);
            count -= within;
            if self.read < insert.offset || !insert.bytes.is_empty() {
                return;
            }
            self.inserts.pop_front();
        }
        self.read += count;
        if self.len == 0 {
            self.reset();
        }
    }

    fn reset(&mut self) {
        self.read = 0;
        self.memory.clear();
        if self.memory.capacity() > KEEP_CAPACITY {
            self.memory = Vec::new();
        }
    }
}

impl From<Bytes> for Segments {
    /// One piece, by reference.
    fn from(bytes: Bytes) -> Self {
        let mut segments = Self::default();
        segments.append(|output| output.insert(bytes));
        segments
    }
}

impl Buf for Segments {
    fn remaining(&self) -> usize {
        self.len
    }

    fn chunk(&self) -> &[u8] {
        self.pieces().next().unwrap_or_default()
    }

    fn advance(&mut self, count: usize) {
        Segments::advance(self, count);
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.slices(slices)
    }
}

/// Takes back what was appended, unless it is kept: half a frame would spoil everything behind it.
struct Rollback<'a> {
    memory: &'a mut Vec<u8>,
    inserts: &'a mut VecDeque<Insert>,
    memory_len: usize,
    inserts_len: usize,
}

impl<'a> Rollback<'a> {
    fn new(memory: &'a mut Vec<u8>, inserts: &'a mut VecDeque<Insert>) -> Self {
        Self { memory_len: memory.len(), inserts_len: inserts.len(), memory, inserts }
    }

    /// Keeps everything; returns by how much the memory grew.
    fn keep(self) -> usize {
        let grown = self.memory.len() - self.memory_len;
        std::mem::forget(self);
        grown
    }
}

impl Drop for Rollback<'_> {
    fn drop(&mut self) {
        self.memory.truncate(self.memory_len);
        self.inserts.truncate(self.inserts_len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flatten(segments: &Segments) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 16];
        let count = segments.slices(&mut slices);
        slices[..count].iter().flat_map(|slice| slice.to_vec()).collect()
    }

    #[test]
    fn small_writes_are_copied_together_and_large_bytes_are_referenced() {
        let large = Bytes::from(vec![7; REFERENCE_MIN]);
        let mut segments = Segments::default();
        segments.append(|out| {
            out.put_slice(b"ab");
            out.put(large.clone());
            out.put(Bytes::from_static(b"cd"));
        });
        let mut slices = [IoSlice::new(&[]); 4];
        assert_eq!(segments.slices(&mut slices), 3);
        assert_eq!(&*slices[0], b"ab");
        assert_eq!(slices[1].as_ptr(), large.as_ptr(), "sent from where it is");
        assert_eq!(&*slices[2], b"cd");
        assert_eq!(segments.len(), 4 + REFERENCE_MIN);
    }

    #[test]
    fn every_split_of_the_queue_leaves_the_right_rest() {
        let large = Bytes::from((0..REFERENCE_MIN).map(|n| n as u8).collect::<Vec<_>>());
        let build = || {
            let mut segments = Segments::default();
            for _ in 0..2 {
                segments.append(|out| {
                    out.put_slice(b"head");
                    out.put(large.clone());
                    out.put(large.clone());
                    out.put_slice(b"tail");
                });
            }
            segments
        };
        let whole = flatten(&build());
        // Miri needs a while for each.
        for first in (0..whole.len()).step_by(if cfg!(miri) { 4001 } else { 61 }) {
            let mut segments = build();
            segments.advance(first);
            assert_eq!(flatten(&segments), whole[first..], "after {first}");
            segments.advance(whole.len() - first);
            assert!(segments.is_empty());
            segments.append(|out| out.put_slice(b"again"));
            assert_eq!(flatten(&segments), b"again");
        }
    }

    #[test]
    fn a_fixed_buffer_holds_what_is_copied_and_lists_what_is_not() {
        let large = Bytes::from(vec![7; REFERENCE_MIN]);
        let mut memory = [0; 8];
        let mut inserts = VecDeque::new();
        let mut output = Output::fixed(&mut memory, &mut inserts);
        output.put_u8(1);
        output.put(large.clone());
        output.put_slice(&[2, 3]);
        assert_eq!((output.filled(), output.inserted(), output.remaining_mut()), (3, REFERENCE_MIN, 5));
        assert_eq!(inserts[0].offset, 1);
        assert_eq!(inserts[0].bytes.as_ptr(), large.as_ptr());
    }

    #[test]
    fn a_contiguous_buffer_holds_everything_in_one_piece() {
        let large = Bytes::from(vec![7; REFERENCE_MIN]);
        let mut memory = vec![0; REFERENCE_MIN + 2];
        let mut output = Output::contiguous(&mut memory);
        output.put_u8(1);
        output.put(large.clone());
        output.put_u8(2);
        assert_eq!((output.filled(), output.inserted()), (REFERENCE_MIN + 2, 0));
        assert_eq!(memory, [&[1], &large[..], &[2]].concat());
    }

    #[test]
    fn a_panic_within_a_frame_leaves_what_was_there_before() {
        let mut segments = Segments::default();
        segments.append(|out| out.put_slice(b"whole"));
        let half = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            segments.append(|out| {
                out.put_slice(b"ha");
                out.insert(Bytes::from_static(b"lf"));
                panic!("while encoding");
            });
        }));
        assert!(half.is_err());
        assert_eq!(flatten(&segments), b"whole");
        assert_eq!(segments.len(), 5);
    }

    #[test]
    fn memory_left_by_a_large_copy_is_given_back() {
        let mut segments = Segments::default();
        segments.append(|out| out.put_slice(&vec![0; 2 * KEEP_CAPACITY]));
        segments.advance(2 * KEEP_CAPACITY);
        assert_eq!(segments.memory.capacity(), 0);
    }
}
