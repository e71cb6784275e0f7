//! What the session's tests share: a link that keeps its frames, a seeded source of numbers, a waker that remembers,
//! and frames as a peer would write them.
#![allow(dead_code, reason = "every test file uses a part of it")]

pub(crate) mod model;
mod oracle;
pub(crate) mod pair;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Wake, Waker};

use bytes::{BufMut, Bytes, BytesMut};
use byway_runtime::link::{Body, Link};
use byway_runtime::output::Segments;
use byway_runtime::session::{
    CallId, ConnectionError, Event, Flags, Frame, HEADER_LEN, Header, Incoming, Kind, RequestHead, Role,
    Session,
};
use byway_runtime::{End, Inbound, Limits, NewCall, Part, SendError};
use tonic::Code;
use tonic::metadata::MetadataMap;

/// A frame that was pushed, as it would arrive.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) header: Header,
    pub(crate) head: Bytes,
    pub(crate) body: Bytes,
    /// The link's position before the frame.
    pub(crate) position: u64,
}

/// A link that keeps what was pushed until the test delivers or drops it.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) frames: VecDeque<Sent>,
    pub(crate) pushed: u64,
    /// Frames that may wait before there is no room.
    pub(crate) room: usize,
}

impl Default for Wire {
    fn default() -> Self {
        Self { frames: VecDeque::new(), pushed: 0, room: usize::MAX }
    }
}

impl Link for Wire {
    fn push(&mut self, frame: &Frame<'_>) {
        let mut segments = Segments::default();
        segments.append(|output| frame.encode(output));
        let bytes: Bytes = segments.pieces().flatten().copied().collect::<Vec<u8>>().into();
        assert_eq!(bytes.len(), frame.encoded_len(), "a frame has the length that it announces");
        let first = bytes.first_chunk::<HEADER_LEN>().expect("a frame has a header");
        let header = Header::decode(first, &anything()).expect("a session pushes valid headers");
        let head = bytes.slice(HEADER_LEN..HEADER_LEN + usize::from(header.head_len));
        let body = bytes.slice(HEADER_LEN + usize::from(header.head_len)..);
        self.frames.push_back(Sent { header, head, body, position: self.pushed });
        self.pushed += bytes.len() as u64;
    }

    fn has_room(&self) -> bool {
        self.frames.len() < self.room
    }

    fn position(&self) -> u64 {
        self.pushed
    }
}

/// Limits that refuse nothing.
pub(crate) fn anything() -> Limits {
    Limits {
        max_message: u32::MAX,
        max_head: u16::MAX,
        max_calls: u16::MAX,
        window: u32::MAX,
        receive_budget: u64::MAX,
    }
}

/// A reproducible source of numbers: xorshift64*, which is enough to pick operations.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        ((self.next() >> 33) % end as u64) as usize
    }

    /// True once in `times`.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// A task that only notes whether it was woken.
#[derive(Debug, Default)]
pub(crate) struct Task(AtomicBool);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Task {
    pub(crate) fn waker(self: &Arc<Self>) -> Waker {
        Arc::clone(self).into()
    }

    /// Whether it was woken since the last time it was asked.
    pub(crate) fn take_woken(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn is_woken(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The id of the call in `slot` of this generation.
pub(crate) fn call(slot: u16, generation: u16) -> CallId {
    CallId(u32::from(generation) << 16 | u32::from(slot))
}

pub(crate) const HEAD: Flags = Flags::HEAD;
pub(crate) const MESSAGE: Flags = Flags::MESSAGE;
pub(crate) const END: Flags = Flags::END;
pub(crate) const NONE: Flags = Flags::NONE;

/// The head of a request for `/a` without time-out or metadata.
pub(crate) const REQUEST: &[u8] = &[2, b'/', b'a', 0, 0];

/// A frame from a peer that may say anything.
#[derive(Debug, Clone)]
pub(crate) struct Raw {
    pub(crate) header: Header,
    pub(crate) head: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

/// A frame with lengths that fit.
pub(crate) fn raw(kind: Kind, flags: Flags, call: CallId, head: &[u8], body_len: usize) -> Raw {
    let header = Header { kind, flags, head_len: head.len() as u16, call, body_len: body_len as u32 };
    Raw { header, head: head.to_vec(), body: vec![7; body_len] }
}

/// An `Open` for `/a`.
pub(crate) fn open(id: CallId, flags: Flags, body_len: usize) -> Raw {
    raw(Kind::Open, HEAD.with(flags), id, REQUEST, body_len)
}

/// A `Data` frame.
pub(crate) fn data(id: CallId, flags: Flags, head: &[u8], body_len: usize) -> Raw {
    raw(Kind::Data, flags, id, head, body_len)
}

/// A frame that concerns the connection or ends a call.
pub(crate) fn control(kind: Kind, id: CallId, head: &[u8]) -> Raw {
    raw(kind, NONE, id, head, 0)
}

impl Raw {
    pub(crate) fn head(&self) -> Bytes {
        Bytes::copy_from_slice(&self.head)
    }

    /// The body as a link reports it.
    pub(crate) fn body(&self) -> Body {
        if self.body.is_empty() { Body::None } else { Body::Here(Bytes::copy_from_slice(&self.body)) }
    }

    /// The frame on the wire.
    pub(crate) fn bytes(&self) -> Bytes {
        let mut bytes = BytesMut::new();
        self.header.encode(&mut bytes);
        bytes.put_slice(&self.head);
        bytes.put_slice(&self.body);
        bytes.freeze()
    }
}

/// A session whose peer is the test.
pub(crate) struct Victim {
    pub(crate) session: Session,
    pub(crate) link: Wire,
}

impl Victim {
    /// Both sides accept `limits`.
    pub(crate) fn new(role: Role, limits: Limits) -> Self {
        Self { session: Session::new(role, limits, limits), link: Wire::default() }
    }

    pub(crate) fn hears(&mut self, frame: &Raw) -> Result<Event, ConnectionError> {
        self.session.handle_frame(&mut self.link, &frame.header, frame.head(), frame.body())
    }

    /// Hears of something that is nobody's fault and needs nothing more.
    pub(crate) fn takes(&mut self, frame: &Raw) {
        match self.hears(frame) {
            Ok(Event::Handled) => {}
            other => panic!("{frame:?}: {other:?}"),
        }
    }

    /// As a server: hears of a call that it dispatches.
    pub(crate) fn dispatches(&mut self, frame: &Raw) -> Incoming {
        match self.hears(frame) {
            Ok(Event::Call(incoming)) => incoming,
            other => panic!("not a call: {other:?}"),
        }
    }

    /// As a client: opens a call and leaves its request open.
    pub(crate) fn opens(&mut self) -> CallId {
        let metadata = MetadataMap::new();
        let head = RequestHead { path: "/a", timeout: None, metadata: &metadata };
        self.session.open(&mut self.link, &NewCall::new(head)).expect("a call is free")
    }

    pub(crate) fn poll(&mut self, id: CallId) -> Poll<Inbound> {
        self.session.poll_receive(&mut self.link, id, Waker::noop())
    }

    pub(crate) fn reads(&mut self, id: CallId) -> Inbound {
        match self.poll(id) {
            Poll::Ready(part) => part,
            Poll::Pending => panic!("nothing has arrived for {id:?}"),
        }
    }

    /// The length of the message that comes next.
    pub(crate) fn reads_message(&mut self, id: CallId) -> usize {
        self.reads(id).message.expect("a message comes next").len()
    }

    /// What the call ends with: whether it was sent, and the status.
    pub(crate) fn ends(&mut self, id: CallId) -> (&'static str, Code, String) {
        let (sent, status) = match self.reads(id).end {
            Some(End::NotSent(status)) => ("not sent", status),
            Some(End::Outcome(Err(status))) => ("status", status),
            other => panic!("not a status: {other:?}"),
        };
        (sent, status.code(), status.message().into())
    }

    pub(crate) fn sends(&mut self, id: CallId, part: Part<'_>) -> Poll<Result<(), SendError>> {
        self.session.poll_send(&mut self.link, id, part, Waker::noop())
    }

    pub(crate) fn is_over(&mut self, id: CallId) -> bool {
        self.session.poll_over(id, Waker::noop()).is_ready()
    }

    /// What was said since it was last asked, as kinds and calls.
    pub(crate) fn said(&mut self) -> Vec<(Kind, CallId)> {
        self.link.frames.drain(..).map(|sent| (sent.header.kind, sent.header.call)).collect()
    }
}
