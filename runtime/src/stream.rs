//! Frames over a stream of bytes.
//!
//! Owns [`Outbox`], the sending half of every link that is a byte stream, and [`Inbox`], which cuts what was read into
//! frames. Small frames are cut out of one shared buffer. The body of a large one is read directly into memory of its
//! own exact size, so that it is not copied and holds nothing else alive. Never: reads or writes by itself.

use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

use crate::limits::Limits;
use crate::link::Link;
use crate::output::Segments;
use crate::session::{ConnectionError, Frame, HEADER_LEN, Header};

/// Bytes that may wait to be written before senders wait too.
///
/// More than a socket's buffer, so that the socket never runs dry; little enough that a peer that does not read
/// costs little.
const ROOM: usize = 1 << 20;

/// Size of the buffer for small frames: what one read of a busy socket returns, and a message of 64 KiB whole.
const READ_BUFFER: usize = 72 << 10;

/// A body of at least this size that is not yet there gets memory of its own.
pub(crate) const OWN_MEMORY_MIN: usize = 16 << 10;

/// Frames that wait to be written to a byte stream.
#[derive(Debug, Default)]
pub struct Outbox {
    queued: Segments,
    /// Bytes that the driver has taken and not yet written.
    taken: usize,
    pushed: u64,
}

impl Link for Outbox {
    fn push(&mut self, frame: &Frame<'_>) {
        let before = self.queued.len();
        self.queued.append(|output| frame.encode(output));
        let written = self.queued.len() - before;
        debug_assert_eq!(written, frame.encoded_len(), "a message has the length that it announced");
        self.pushed += written as u64;
    }

    fn has_room(&self) -> bool {
        self.queued.len() + self.taken < ROOM
    }

    fn position(&self) -> u64 {
        self.pushed
    }
}

impl Outbox {
    /// Moves everything that waits into `segments`, which must be empty. The driver writes it without the lock.
    pub fn take(&mut self, segments: &mut Segments) {
        debug_assert!(segments.is_empty(), "what was taken before has been written");
        std::mem::swap(&mut self.queued, segments);
        self.taken = segments.len();
    }

    /// Notes how much of what was taken is still to be written; `true` when there is room again that there was not.
    pub fn note_unwritten(&mut self, unwritten: usize) -> bool {
        let had_room = self.has_room();
        self.taken = unwritten;
        !had_room && self.has_room()
    }

    /// Whether nothing waits to be taken.
    pub fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }

    /// The position up to which bytes were written.
    pub fn delivered(&self) -> u64 {
        self.pushed - (self.queued.len() + self.taken) as u64
    }
}

/// The most slices that one vectored write takes: more than a batch ever has, few enough for the stack.
pub const MAX_SLICES: usize = 64;

/// Room for the slices of one vectored write.
pub fn empty_slices<'a>() -> [IoSlice<'a>; MAX_SLICES] {
    [IoSlice::new(&[]); MAX_SLICES]
}

/// Bytes that were read and are not yet frames.
#[derive(Debug)]
pub struct Inbox {
    limits: Limits,
    buffer: BytesMut,
    /// A large frame of which only the body's end is missing.
    landing: Option<Landing>,
}

#[derive(Debug)]
struct Landing {
    header: Header,
    head: Bytes,
    body: BytesMut,
}

/// A frame that arrived whole.
#[derive(Debug)]
pub struct ReceivedFrame {
    /// Its header, checked against the limits.
    pub header: Header,
    /// Its head.
    pub head: Bytes,
    /// Its body; empty when it has none.
    pub body: Bytes,
}

impl Inbox {
    /// An inbox for frames within `limits`; `rest` is what was read after the hello.
    pub fn new(limits: Limits, rest: BytesMut) -> Self {
        Self { limits, buffer: rest, landing: None }
    }

    /// Where the next bytes are to be read to, with room for at least one and never for more than belongs there.
    pub fn space(&mut self) -> (&mut BytesMut, usize) {
        if let Some(landing) = &mut self.landing {
            let missing = landing.header.body_len as usize - landing.body.len();
            return (&mut landing.body, missing);
        }
        if self.buffer.capacity() - self.buffer.len() < HEADER_LEN.max(READ_BUFFER / 4) {
            self.buffer.reserve(READ_BUFFER);
        }
        let room = self.buffer.capacity() - self.buffer.len();
        (&mut self.buffer, room)
    }

    /// The next frame; `None` when more bytes are needed.
    ///
    /// # Errors
    /// A header that breaks the protocol; nothing after it can be understood.
    pub fn next_frame(&mut self) -> Result<Option<ReceivedFrame>, ConnectionError> {
        if let Some(landing) =
            self.landing.take_if(|landing| landing.body.len() == landing.header.body_len as usize)
        {
            return Ok(Some(ReceivedFrame {
                header: landing.header,
                head: landing.head,
                body: landing.body.freeze(),
            }));
        }
        if self.landing.is_some() {
            return Ok(None);
        }
        let Some(bytes) = self.buffer.first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let header = Header::decode(bytes, &self.limits)?;
        let (head_len, body_len) = (usize::from(header.head_len), header.body_len as usize);
        if self.buffer.len() >= header.frame_len() {
            let mut head = self.buffer.split_to(header.frame_len()).freeze();
            head.advance(HEADER_LEN);
            // When one of the two is empty, the other keeps the only reference.
            let body = head.split_off(head_len);
            return Ok(Some(ReceivedFrame { header, head, body }));
        }
        if body_len >= OWN_MEMORY_MIN && self.buffer.len() >= HEADER_LEN + head_len {
            let head = self.buffer.split_to(HEADER_LEN + head_len).freeze().slice(HEADER_LEN..);
            let mut body = BytesMut::with_capacity(body_len);
            body.extend_from_slice(&self.buffer);
            self.buffer.clear();
            self.landing = Some(Landing { header, head, body });
            return Ok(None);
        }
        // A small frame, or the head of a large one: the rest has room in the shared buffer.
        let needed = HEADER_LEN + head_len + if body_len < OWN_MEMORY_MIN { body_len } else { 0 };
        self.buffer.reserve(needed.saturating_sub(self.buffer.len()));
        Ok(None)
    }

    /// Whether nothing of a frame has been read.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty() && self.landing.is_none()
    }
}

#[cfg(test)]
mod tests {
    use bytes::BufMut;

    use super::*;
    use crate::session::{CallId, Flags, Kind};

    fn frame(body: &[u8]) -> Vec<u8> {
        let header = Header {
            kind: Kind::Data,
            flags: Flags::MESSAGE,
            head_len: 3,
            call: CallId(7),
            body_len: body.len() as u32,
        };
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        bytes.extend_from_slice(b"abc");
        bytes.extend_from_slice(body);
        bytes
    }

    /// Feeds `bytes` in pieces of at most `step`, as a socket would.
    fn feed(inbox: &mut Inbox, mut bytes: &[u8], step: usize) -> Vec<ReceivedFrame> {
        let mut frames = Vec::new();
        loop {
            while let Some(frame) = inbox.next_frame().expect("well formed") {
                frames.push(frame);
            }
            if bytes.is_empty() {
                return frames;
            }
            let (space, room) = inbox.space();
            let count = room.min(step).min(bytes.len());
            assert!(count > 0, "there is always room");
            space.put_slice(&bytes[..count]);
            bytes = &bytes[count..];
        }
    }

    #[test]
    fn frames_come_out_whole_however_they_come_in() {
        let sizes = [0, 1, 5000, OWN_MEMORY_MIN - 1, OWN_MEMORY_MIN, 200_000, 0, 3];
        let stream: Vec<u8> = sizes.iter().flat_map(|size| frame(&vec![*size as u8; *size])).collect();
        for step in [1, 7, 4096, 65_536, stream.len()] {
            let mut inbox = Inbox::new(Limits::default(), BytesMut::new());
            let frames = feed(&mut inbox, &stream, step);
            let received: Vec<_> = frames.iter().map(|frame| frame.body.len()).collect();
            assert_eq!(received, sizes, "in steps of {step}");
            for frame in &frames {
                assert_eq!(&frame.head[..], b"abc");
                assert!(frame.body.iter().all(|byte| *byte == frame.body.len() as u8));
            }
            assert!(inbox.is_empty());
        }
    }

    #[test]
    fn a_large_body_lands_in_memory_of_its_own_exact_size() {
        let mut inbox = Inbox::new(Limits::default(), BytesMut::new());
        let stream = frame(&vec![1; 1 << 20]);
        assert!(feed(&mut inbox, &stream[..100], 100).is_empty());
        let (space, missing) = inbox.space();
        let landing = space.as_ptr();
        assert_eq!(space.capacity(), 1 << 20);
        assert_eq!(missing, stream.len() - 100);
        let frames = feed(&mut inbox, &stream[100..], usize::MAX);
        assert_eq!(frames[0].body.as_ptr(), landing, "never moved");
    }

    #[test]
    fn memory_stays_bounded_while_small_frames_stream_through() {
        let mut inbox = Inbox::new(Limits::default(), BytesMut::new());
        let stream: Vec<u8> = (0..10_000).flat_map(|_| frame(&[7; 100])).collect();
        for piece in stream.chunks(10_007) {
            drop(feed(&mut inbox, piece, 10_007));
            assert!(inbox.buffer.capacity() <= 2 * READ_BUFFER, "{}", inbox.buffer.capacity());
        }
    }
}
