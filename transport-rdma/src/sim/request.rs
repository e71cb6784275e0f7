//! One posted send-side request: what it does, what it owns, and its bytes.
//!
//! Invariant: what a request owns moves in when it is posted and out when it is reported, or when its queue pair is
//! destroyed. Never changes a byte of what it owns: it may be sent more than once.

use super::schedule::QpRef;
use crate::memory::Buffer;
use crate::nic::{
    Completion, Failure, Kind, Mtu, NicError, Operation, Payload, Piece, QueuePairId, QueuePairSpec,
    RemoteSlice, Request, Status, Success, WorkId,
};

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Send { immediate: Option<u32> },
    Write { to: RemoteSlice, immediate: Option<u32> },
    Bind { window: u32, key: u32 },
    Invalidate { window: u32, key: u32 },
}

impl Action {
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Send { .. } => Kind::Send,
            Self::Write { .. } => Kind::Write,
            Self::Bind { .. } => Kind::Bind,
            Self::Invalidate { .. } => Kind::Invalidate,
        }
    }

    /// Executed by the device alone, without a message.
    pub(super) fn is_local(self) -> bool {
        matches!(self, Self::Bind { .. } | Self::Invalidate { .. })
    }
}

/// A posted send-side request.
pub(super) struct Entry {
    pub(super) work: WorkId,
    pub(super) action: Action,
    pub(super) payload: Payload<'static>,
    /// The bytes of an inline payload.
    pub(super) inline: Vec<u8>,
    pub(super) len: u32,
    /// The message's number; of a local request that of the next message.
    pub(super) wire: u64,
    pub(super) signaled: bool,
    pub(super) solicited: bool,
    /// Every local request at a position below this must be executed before the message leaves.
    pub(super) behind: u64,
    /// Whether the peer answers this one by itself.
    pub(super) asks: bool,
    /// How many of its arrivals are scheduled.
    pub(super) in_flight: u32,
}

impl Entry {
    /// A checked send or write; `inline` is a vector to use again.
    pub(super) fn message(request: Request<'_>, len: u32, wire: u64, mut inline: Vec<u8>) -> Self {
        let Request { work, signaled, solicited, .. } = request;
        let action = match request.operation {
            Operation::Send { immediate } => Action::Send { immediate },
            Operation::Write { to, immediate } => Action::Write { to, immediate },
        };
        let payload = match request.payload {
            Payload::Empty => Payload::Empty,
            Payload::Inline(bytes) => {
                inline.extend_from_slice(bytes);
                Payload::Empty
            }
            Payload::One(piece) => Payload::One(piece),
            Payload::Gather(pieces) => Payload::Gather(pieces),
        };
        Self {
            work,
            action,
            payload,
            inline,
            len,
            wire,
            signaled,
            solicited,
            behind: 0,
            asks: signaled,
            in_flight: 0,
        }
    }

    /// A bind or an invalidation.
    pub(super) fn local(work: WorkId, action: Action, wire: u64) -> Self {
        Self {
            work,
            action,
            payload: Payload::Empty,
            inline: Vec::new(),
            len: 0,
            wire,
            signaled: true,
            solicited: false,
            behind: 0,
            asks: false,
            in_flight: 0,
        }
    }

    /// The message on the wire; it takes the payload with it until it is put back.
    pub(super) fn take_message(&mut self, way: Way) -> Message {
        Message {
            way,
            action: self.action,
            payload: std::mem::replace(&mut self.payload, Payload::Empty),
            inline: std::mem::take(&mut self.inline),
            len: self.len,
            wire: self.wire,
            solicited: self.solicited,
            asks: self.asks,
        }
    }

    pub(super) fn put_back(&mut self, message: Message) {
        self.payload = message.payload;
        self.inline = message.inline;
    }

    /// The request's end.
    pub(super) fn finish(self, queue_pair: QueuePairId, failure: Option<Status>) -> Completion {
        Completion {
            queue_pair: Some(queue_pair),
            work: self.work,
            kind: self.action.kind(),
            outcome: match failure {
                None => Ok(Success::default()),
                Some(status) => Err(Failure { status, vendor: 0 }),
            },
            payload: self.payload,
        }
    }
}

/// From where to where a message goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    pub(super) sender: QpRef,
    pub(super) to: QpRef,
    /// The first number of the sender's end.
    pub(super) psn: u32,
    pub(super) mtu: Mtu,
}

/// A request on the wire.
pub(super) struct Message {
    pub(super) way: Way,
    pub(super) action: Action,
    pub(super) payload: Payload<'static>,
    pub(super) inline: Vec<u8>,
    pub(super) len: u32,
    pub(super) wire: u64,
    pub(super) solicited: bool,
    pub(super) asks: bool,
}

impl Message {
    /// Copies bytes `from..to` of the message to `at` in `buffer`; the caller has checked that they fit.
    pub(super) fn copy_part(&self, from: u32, to: u32, buffer: &mut Buffer, at: usize) {
        let (mut skip, mut left) = (from as usize, (to - from) as usize);
        let mut target = &mut buffer.bytes_mut()[at..at + left];
        let mut copy = |bytes: &[u8]| {
            let start = skip.min(bytes.len());
            let count = left.min(bytes.len() - start);
            let (head, tail) = std::mem::take(&mut target).split_at_mut(count);
            head.copy_from_slice(&bytes[start..start + count]);
            target = tail;
            skip -= start;
            left -= count;
        };
        match &self.payload {
            Payload::Empty => copy(&self.inline),
            Payload::Inline(bytes) => copy(bytes),
            Payload::One(piece) => copy(content(piece)),
            Payload::Gather(pieces) => pieces.iter().for_each(|piece| copy(content(piece))),
        }
    }

    /// The message without the payload that it was made from: its bytes are copied.
    pub(super) fn detached(&self) -> Self {
        let mut inline = Vec::with_capacity(self.len as usize);
        match &self.payload {
            Payload::Empty => inline.extend_from_slice(&self.inline),
            Payload::Inline(bytes) => inline.extend_from_slice(bytes),
            Payload::One(piece) => inline.extend_from_slice(content(piece)),
            Payload::Gather(pieces) => {
                pieces.iter().for_each(|piece| inline.extend_from_slice(content(piece)));
            }
        }
        Self { payload: Payload::Empty, inline, ..*self }
    }
}

fn content(piece: &Piece) -> &[u8] {
    match piece {
        Piece::Owned(buffer) => buffer.filled(),
        Piece::Shared(view) => view.bytes(),
    }
}

/// What a request must satisfy to be taken; its length.
pub(super) fn check(request: &Request<'_>, spec: &QueuePairSpec, domain: u64) -> Result<u32, NicError> {
    let len = payload_len(&request.payload, spec, domain)?;
    match request.operation {
        Operation::Write { to, .. } if len > to.len => {
            Err(NicError::Invalid("a write longer than the memory it goes to"))
        }
        _ => u32::try_from(len)
            .ok()
            .filter(|&len| len <= MESSAGE_MAX)
            .ok_or(NicError::Invalid("a message of more than 2 GiB")),
    }
}

/// The longest message of a reliable connection.
const MESSAGE_MAX: u32 = 1 << 31;

fn payload_len(payload: &Payload<'_>, spec: &QueuePairSpec, domain: u64) -> Result<u64, NicError> {
    let piece_len = |piece: &Piece| {
        let (len, home) = match piece {
            Piece::Owned(buffer) => (buffer.filled().len(), buffer.domain()),
            Piece::Shared(view) => (view.bytes().len(), view.domain()),
        };
        if home == domain { Ok(len as u64) } else { Err(NicError::ForeignMemory) }
    };
    match payload {
        Payload::Empty => Ok(0),
        Payload::Inline(bytes) if bytes.len() > spec.inline_max as usize => {
            Err(NicError::Invalid("more inline bytes than the queue pair takes"))
        }
        Payload::Inline(bytes) => Ok(bytes.len() as u64),
        Payload::One(piece) => piece_len(piece),
        Payload::Gather(pieces) if pieces.len() > spec.pieces_max as usize => {
            Err(NicError::Invalid("more pieces than the queue pair gathers"))
        }
        Payload::Gather(pieces) => pieces.iter().map(piece_len).sum(),
    }
}
