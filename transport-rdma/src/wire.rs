//! One queue pair at work: what goes to its send queue, and what comes out of its completion queue.
//!
//! Owns the NIC of one connection and [`Wire`]. Invariants: requests are posted in the order in which they were queued,
//! never more than the send queue holds; whatever a completion brings back is given back at once, and a receive is
//! posted again before anybody hears of its message. Every 16th request asks for a report of its own, and so does the
//! last of a batch while registered memory waits for one, so that no buffer stays out for want of later traffic. A message
//! that has its credit is posted whatever the pool has: what the peer needs to go on may be behind it. Never: waits, or
//! knows what is in a message.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;

use crate::counters::{Counters, add};
use crate::memory::Buffer;
use crate::nic::{
    Completion, Endpoint, Event, Kind, Nic, NicError, Operation, Payload, Piece, QueuePairId, QueuePairSpec,
    Receive, RecvQueue, RemoteAccess, RemoteSlice, Request, Status, WindowId, WorkId,
};
use crate::pool::{Owner, Pool, Staging, View};
use crate::protocol::Outbound;

/// Whoever gets the memory of a connection that is gone clears it.
const NOBODY: Owner = Owner(u64::MAX);

/// How many requests may go unreported, or half of what may be queued where that is less: a full queue must empty.
const SIGNAL_EVERY: u32 = 16;

/// Completions of one poll.
const POLL: usize = 64;

/// Polls of one turn: what is beyond waits for the next, so that one connection does not hold up others.
const POLLS: usize = 4;

/// Places of the send queue that messages and writes leave free, for binding and ending windows; half of a small queue.
const RESERVE: u32 = 16;

/// Memory that one message is written into.
#[derive(Debug)]
pub(crate) enum Slip {
    /// Registered: it is sent from here.
    Staging(Staging),
    /// Not registered: copied when it is posted, which short messages are anyway.
    Plain(Vec<u8>),
}

impl AsMut<[u8]> for Slip {
    fn as_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Staging(staging) => staging.bytes_mut(),
            Self::Plain(bytes) => bytes,
        }
    }
}

/// A part of a body, ready to be written.
#[derive(Debug)]
pub(crate) enum Chunk {
    /// Copied into staging; the length.
    Copied(Staging, usize),
    /// A caller's own registered memory.
    View(View),
}

impl Chunk {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Copied(_, len) => *len,
            Self::View(view) => view.len(),
        }
    }
}

/// A request that waits for its place in the send queue.
#[derive(Debug)]
enum Out {
    Message(Outbound<Slip>),
    Write { chunk: Chunk, to: RemoteSlice, immediate: Option<u32> },
}

/// Something that came from the peer, in order.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// A message.
    Message(Bytes),
    /// A write with this immediate.
    Write(u32),
}

/// Whether one poll found completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Came {
    Nothing,
    /// All that there were.
    All,
    /// So many that there may be more.
    More,
}

/// What the completions of one poll brought, beside memory.
#[derive(Debug, Default)]
pub(crate) struct Polled {
    /// What came from the peer.
    pub(crate) arrivals: VecDeque<Arrival>,
    /// Windows that the peer can no longer use, and the memory that they covered.
    pub(crate) closed: Vec<(WindowId, Buffer)>,
    /// How many messages the peer's NIC has acknowledged.
    pub(crate) acknowledged: u64,
}

/// The queue pair of one connection.
#[derive(Debug)]
pub(crate) struct Wire<N: Nic> {
    nic: N,
    queue_pair: QueuePairId,
    pool: Arc<Pool>,
    counters: Arc<Counters>,
    inline_max: usize,
    depth: u32,
    reserve: u32,
    signal_every: u32,
    /// Requests that were posted and have not come back.
    outstanding: u32,
    /// Of those, how many no report was asked for since the last that one was.
    unreported: u32,
    /// Whether registered memory is among the unreported.
    holds_memory: bool,
    /// Staging that was posted.
    staging_out: u32,
    /// Windows that are being closed.
    closing: usize,
    waiting: VecDeque<Out>,
    /// Memory for one message when the pool has none, and where it is. Made when it is needed first.
    own: Option<Buffer>,
    own_address: Option<u64>,
    /// Whether the first that waits has no staging to be copied to.
    wants_staging: bool,
    completions: Vec<Completion>,
    events: Vec<Event>,
    returned: Vec<Receive>,
    free_windows: Vec<WindowId>,
    /// All windows that are bound.
    bound: Vec<WindowId>,
    /// Slips whose messages were copied.
    pub(crate) spent: Vec<Slip>,
    /// Whether the completion queue had no place for a completion: the device then fails the queue pair, and a receive
    /// that the completion was for is lost.
    overran: bool,
    /// Whether the device told that the queue pair failed. Why is better known from a request that failed with it.
    event_failed: bool,
    /// Whether the last request of every batch asks for a report: when it is waited for.
    pub(crate) report_last: bool,
}

impl<N: Nic> Wire<N> {
    pub(crate) fn new(
        mut nic: N,
        spec: &QueuePairSpec,
        pool: Arc<Pool>,
        counters: Arc<Counters>,
    ) -> Result<Self, NicError> {
        let queue_pair = nic.create_queue_pair(spec)?;
        let inline_max = nic.inline_max(queue_pair)? as usize;
        let reserve = RESERVE.min(spec.send_depth / 2);
        Ok(Self {
            nic,
            queue_pair,
            pool,
            counters,
            inline_max,
            depth: spec.send_depth,
            reserve,
            signal_every: SIGNAL_EVERY.min((spec.send_depth - reserve) / 2).max(1),
            outstanding: 0,
            unreported: 0,
            holds_memory: false,
            staging_out: 0,
            closing: 0,
            waiting: VecDeque::new(),
            own: None,
            own_address: None,
            wants_staging: false,
            completions: Vec::new(),
            events: Vec::new(),
            returned: Vec::new(),
            free_windows: Vec::new(),
            bound: Vec::new(),
            spent: Vec::new(),
            overran: false,
            event_failed: false,
            report_last: false,
        })
    }

    pub(crate) fn nic(&self) -> &N {
        &self.nic
    }

    pub(crate) fn nic_mut(&mut self) -> &mut N {
        &mut self.nic
    }

    pub(crate) fn endpoint(&self) -> Result<Endpoint, NicError> {
        self.nic.endpoint(self.queue_pair)
    }

    pub(crate) fn connect(&mut self, peer: &Endpoint) -> Result<(), NicError> {
        self.nic.connect(self.queue_pair, peer)
    }

    /// Posts what no driver would.
    #[cfg(test)]
    pub(crate) fn post_raw(&mut self, operation: Operation, bytes: &[u8]) {
        let mut staging = self.pool.staging(bytes.len(), Waker::noop()).expect("there is some");
        staging.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        let buffer = staging.into_buffer(bytes.len()).expect("there is memory");
        let mut batch = vec![Request::signaled(WorkId(0), operation, Payload::buffer(buffer))];
        self.nic.post(self.queue_pair, &mut batch).expect("there is room in the send queue");
        (self.outstanding, self.staging_out) = (self.outstanding + 1, self.staging_out + 1);
    }

    #[cfg(test)]
    pub(crate) fn is_closing(&self) -> bool {
        self.closing > 0
    }

    /// How far it is, for whoever looks for the reason why it hangs.
    #[cfg(test)]
    pub(crate) fn describe(&self) -> String {
        let Self { depth, outstanding, unreported, waiting, wants_staging, closing, .. } = self;
        format!(
            "depth {depth}, outstanding {outstanding}, unreported {unreported}, closing {closing}, wants staging {wants_staging}, waiting {waiting:?}"
        )
    }

    /// Requests that may still be queued.
    pub(crate) fn room(&self) -> usize {
        let taken = self.outstanding as usize + self.waiting.len();
        ((self.depth - self.reserve) as usize).saturating_sub(taken)
    }

    /// Whether a window may be bound or closed now.
    fn has_place(&self) -> bool {
        self.outstanding < self.depth
    }

    /// Whether something was posted that has not come back.
    pub(crate) fn is_busy(&self) -> bool {
        self.outstanding > 0
    }

    /// Whether something waits to be posted, or will be reported as delivered.
    pub(crate) fn has_to_send(&self) -> bool {
        self.outstanding > self.unreported || !self.waiting.is_empty()
    }

    /// Whether completions of this side's own requests are waited for, not only the peer's messages; by whoever needs the
    /// memory that they bring back.
    pub(crate) fn awaits_own(&self) -> bool {
        let is_full = self.outstanding > (self.depth - self.reserve) / 2;
        is_full
            || self.closing > 0
            || !self.waiting.is_empty()
            || (self.staging_out > 0 && self.pool.is_scarce())
    }

    /// Queues a message.
    pub(crate) fn send(&mut self, message: Outbound<Slip>) {
        self.waiting.push_back(Out::Message(message));
    }

    /// Queues a write.
    pub(crate) fn write(&mut self, chunk: Chunk, to: RemoteSlice, immediate: Option<u32>) {
        self.waiting.push_back(Out::Write { chunk, to, immediate });
    }

    /// Forgets what waits to be posted.
    pub(crate) fn forget(&mut self) {
        self.waiting.clear();
    }

    /// Lets the peer write into `buffer`; `Ok(None)` when the send queue is full, and the buffer is dropped into the
    /// pool by the caller.
    pub(crate) fn bind(
        &mut self,
        buffer: Buffer,
    ) -> Result<(WindowId, RemoteSlice), (Option<String>, Buffer)> {
        if !self.has_place() {
            return Err((None, buffer));
        }
        let window = match self.free_windows.pop() {
            Some(window) => window,
            None => match self.nic.allocate_window() {
                Ok(window) => window,
                Err(error) => return Err((Some(format!("a memory window cannot be had: {error}")), buffer)),
            },
        };
        let work = WorkId(window.0.into());
        match self.nic.bind(self.queue_pair, window, work, buffer, RemoteAccess::Write) {
            Ok(slice) => {
                self.outstanding += 1;
                self.bound.push(window);
                Ok((window, slice))
            }
            Err(rejected) => {
                self.free_windows.push(window);
                let full = matches!(rejected.error, NicError::Full);
                let reason = format!("a memory window cannot be bound: {}", rejected.error);
                Err(((!full).then_some(reason), rejected.returned))
            }
        }
    }

    /// Ends the peer's access; the memory comes with [`Polled::closed`]. `Ok(false)` when the send queue is full.
    pub(crate) fn close(&mut self, window: WindowId) -> Result<bool, String> {
        if !self.has_place() {
            return Ok(false);
        }
        match self.nic.invalidate(self.queue_pair, window, WorkId(window.0.into())) {
            Ok(()) => {
                self.outstanding += 1;
                self.closing += 1;
                Ok(true)
            }
            Err(NicError::Full) => Ok(false),
            Err(error) => Err(format!("a memory window cannot be closed: {error}")),
        }
    }

    /// Takes what has completed.
    ///
    /// # Errors
    /// Why the queue pair is of no more use, for a person. What came before counts.
    pub(crate) fn poll(&mut self, into: &mut Polled) -> Result<Came, String> {
        let mut came = Came::Nothing;
        let known = into.arrivals.len();
        let mut failure = None;
        for round in 0..POLLS {
            let mut completions = std::mem::take(&mut self.completions);
            let polled = self.nic.poll(&mut completions, POLL);
            for completion in completions.drain(..) {
                came = Came::All;
                if let Err(reason) = self.complete(completion, into)
                    && failure.as_ref().is_none_or(|(_, flushed)| *flushed)
                {
                    failure = Some(reason);
                }
            }
            self.completions = completions;
            match polled {
                Err(error) => return Err(format!("its completions cannot be read: {error}")),
                Ok(count) if count < POLL => break,
                Ok(_) if round + 1 == POLLS => came = Came::More,
                Ok(_) => {}
            }
        }
        add(&self.counters.messages_received, (into.arrivals.len() - known) as u64);
        self.post_receives()?;
        match failure {
            Some((reason, _)) => Err(reason),
            // Without a request that is out, nothing says more.
            None if self.event_failed => Err("the queue pair failed: the device told so".into()),
            None => Ok(came),
        }
    }

    fn post_receives(&mut self) -> Result<(), String> {
        if self.returned.is_empty() {
            return Ok(());
        }
        let posted = self.nic.post_recv(RecvQueue::Shared, &mut self.returned);
        posted.map_err(|error| format!("a receive cannot be posted again: {error}"))
    }

    /// Acts on one completion; an error is why the queue pair is of no more use, and whether that is only the
    /// consequence of another.
    fn complete(&mut self, completion: Completion, into: &mut Polled) -> Result<(), (String, bool)> {
        let Completion { kind, outcome, payload, work, .. } = completion;
        match kind {
            Kind::Receive | Kind::ReceiveWrite => {
                let Payload::One(Piece::Owned(mut buffer)) = payload else { return Ok(()) };
                if let Ok(success) = outcome {
                    into.arrivals.extend(match (kind, success.immediate) {
                        (Kind::ReceiveWrite, Some(immediate)) => Some(Arrival::Write(immediate)),
                        (Kind::Receive, None) => {
                            Some(Arrival::Message(Bytes::copy_from_slice(buffer.filled())))
                        }
                        // Neither is part of the protocol: an empty message is found wanting.
                        _ => Some(Arrival::Message(Bytes::new())),
                    });
                }
                buffer.set_filled(0);
                self.returned.push(Receive { work: WorkId(0), buffer });
            }
            Kind::Invalidate => {
                self.outstanding -= 1;
                self.closing -= 1;
                if let (Ok(_), Payload::One(Piece::Owned(buffer))) = (&outcome, payload) {
                    let window = WindowId(work.0 as u32);
                    self.bound.retain(|bound| *bound != window);
                    self.free_windows.push(window);
                    into.closed.push((window, buffer));
                }
            }
            Kind::Bind => self.outstanding -= 1,
            _ => {
                self.outstanding -= 1;
                into.acknowledged += u64::from(outcome.is_ok() && kind == Kind::Send);
                self.give_back(payload);
            }
        }
        // Requests come back in order.
        self.unreported = self.unreported.min(self.outstanding);
        match outcome {
            Ok(_) => Ok(()),
            Err(failure) => {
                add(&self.counters.rnr, u64::from(failure.status == Status::RnrRetryExceeded));
                Err((format!("the queue pair failed: {failure}"), failure.status == Status::Flushed))
            }
        }
    }

    fn give_back(&mut self, payload: Payload<'_>) {
        let pieces = match payload {
            Payload::Empty | Payload::Inline(_) => return,
            Payload::One(piece) => vec![piece],
            Payload::Gather(pieces) => pieces,
        };
        for piece in pieces {
            match piece {
                Piece::Owned(buffer) if Some(buffer.address()) == self.own_address => self.own = Some(buffer),
                Piece::Owned(buffer) => {
                    self.staging_out -= 1;
                    self.pool.give_back(buffer);
                }
                Piece::Shared(frozen) => self.pool.view_back(frozen),
            }
        }
    }

    /// Posts what waits, as far as there is room in the send queue and staging to copy to; whether anything was posted.
    /// `waker` is woken when staging comes back.
    ///
    /// # Errors
    /// Why the queue pair is of no more use, for a person.
    pub(crate) fn flush(&mut self, waker: &Waker) -> Result<bool, String> {
        self.wants_staging = false;
        let room = self.depth.saturating_sub(self.outstanding).saturating_sub(self.reserve / 2) as usize;
        let mut ready = Vec::new();
        while ready.len() < room
            && let Some(out) = self.waiting.pop_front()
        {
            match self.made_ready(out, waker) {
                Ok(posting) => ready.push(posting),
                Err(out) => {
                    self.wants_staging = true;
                    self.waiting.push_front(out);
                    break;
                }
            }
        }
        if ready.is_empty() {
            return Ok(false);
        }
        let count = ready.len();
        self.count(&ready);
        let mut batch = Vec::with_capacity(count);
        for (index, posting) in ready.iter_mut().enumerate() {
            self.unreported += 1;
            self.holds_memory |= posting.payload.is_some();
            let last = index + 1 == count;
            let signaled =
                self.unreported >= self.signal_every || (last && (self.holds_memory || self.report_last));
            if signaled {
                (self.unreported, self.holds_memory) = (0, false);
            }
            let payload = match (posting.payload.take(), &mut posting.slip) {
                (Some(piece), _) => {
                    let is_own = |buffer: &Buffer| Some(buffer.address()) == self.own_address;
                    self.staging_out += u32::from(matches!(&piece, Piece::Owned(buffer) if !is_own(buffer)));
                    Payload::One(piece)
                }
                (None, Some((slip, len))) => Payload::Inline(&slip.as_mut()[..*len]),
                (None, None) => Payload::Empty,
            };
            let solicited = !matches!(posting.operation, Operation::Write { immediate: None, .. });
            batch.push(Request {
                work: WorkId(0),
                operation: posting.operation,
                payload,
                signaled,
                solicited,
            });
        }
        let posted = self.nic.post(self.queue_pair, &mut batch);
        self.outstanding += (count - batch.len()) as u32;
        let left: Vec<_> = batch.into_iter().map(|request| request.payload).collect();
        left.into_iter().for_each(|payload| self.give_back(payload));
        self.spent.extend(ready.into_iter().filter_map(|posting| Some(posting.slip?.0)));
        posted.map_err(|error| format!("the send queue refused a request: {error}"))?;
        Ok(true)
    }

    fn count(&self, ready: &[Posting]) {
        let (mut messages, mut writes, mut last) = (0, 0, 0);
        for posting in ready {
            match posting.operation {
                Operation::Send { .. } => messages += 1,
                Operation::Write { immediate: None, .. } => writes += 1,
                Operation::Write { .. } => last += 1,
            }
            if let (Operation::Write { .. }, Some(piece)) = (posting.operation, &posting.payload) {
                match piece {
                    Piece::Owned(buffer) => add(&self.counters.bytes_copied, buffer.filled().len() as u64),
                    Piece::Shared(view) => add(&self.counters.bytes_by_reference, view.bytes().len() as u64),
                }
            }
        }
        add(&self.counters.messages_sent, messages);
        add(&self.counters.writes, writes);
        add(&self.counters.writes_with_imm, last);
    }

    /// The memory for one message that is this connection's own, unless it is out: the device may have no more.
    fn take_own(&mut self, len: usize) -> Option<Buffer> {
        if self.own_address.is_none() {
            let buffer = self.pool.register_one(len.max(self.pool.message_max()))?;
            (self.own_address, self.own) = (Some(buffer.address()), Some(buffer));
        }
        self.own.take_if(|own| own.capacity() >= len)
    }

    fn made_ready(&mut self, out: Out, waker: &Waker) -> Result<Posting, Out> {
        let (payload, slip, operation) = match out {
            Out::Write { chunk, to, immediate } => {
                let to = RemoteSlice { len: chunk.len() as u64, ..to };
                let piece = match chunk {
                    Chunk::Copied(staging, len) => staging.into_buffer(len).map(Piece::Owned),
                    Chunk::View(view) => view.into_frozen().map(Piece::Shared),
                };
                (piece, None, Operation::Write { to, immediate })
            }
            Out::Message(Outbound { mut memory, len }) => {
                let operation = Operation::Send { immediate: None };
                if len <= self.inline_max {
                    return Ok(Posting { payload: None, slip: Some((memory, len)), operation });
                }
                match memory {
                    Slip::Staging(staging) => (staging.into_buffer(len).map(Piece::Owned), None, operation),
                    Slip::Plain(_) => {
                        let staging =
                            self.pool.staging(len, waker).and_then(|staging| staging.into_buffer(len));
                        let Some(mut buffer) = staging.or_else(|| self.take_own(len)) else {
                            return Err(Out::Message(Outbound { memory, len }));
                        };
                        buffer.bytes_mut()[..len].copy_from_slice(&memory.as_mut()[..len]);
                        buffer.set_filled(len);
                        // An empty length: only its memory is of use now.
                        (Some(Piece::Owned(buffer)), Some((memory, 0)), operation)
                    }
                }
            }
        };
        Ok(Posting { payload, slip, operation })
    }

    /// Asks for a wake-up: by whatever completes, or only by what the peer sends.
    pub(crate) fn arm(&mut self, all: bool) -> Result<(), String> {
        self.nic.arm(!all).map_err(|error| format!("its completions cannot be waited for: {error}"))
    }

    /// Fails the queue pair, so that it takes no more receives, and takes what has come.
    pub(crate) fn stop(&mut self, into: &mut Polled) {
        let _ = self.nic.fail_queue_pair(self.queue_pair);
        while let Ok(Came::All | Came::More) = self.poll(into) {}
    }

    /// Receives that were used up and that no completion will bring back.
    pub(crate) fn lost_receives(&self) -> u32 {
        u32::from(self.overran)
    }

    /// Takes the wake-ups; without any, what the device tells.
    ///
    /// # Errors
    /// Why the queue pair is of no more use, for a person.
    pub(crate) fn take_wakes(&mut self) -> Result<(), String> {
        let taken = self.nic.take_wakes().map_err(|error| format!("its wake-ups cannot be read: {error}"))?;
        if taken == 0 { self.take_events() } else { Ok(()) }
    }

    /// Takes what the device tells beside completions.
    ///
    /// # Errors
    /// Why the queue pair is of no more use, for a person.
    pub(crate) fn take_events(&mut self) -> Result<(), String> {
        let taken = self.nic.take_events(&mut self.events);
        taken.map_err(|error| format!("the device cannot be asked: {error}"))?;
        let mut failure = None;
        for event in self.events.drain(..) {
            let reason = match event {
                Event::CompletionQueueFailed => {
                    self.overran = true;
                    "its completion queue overran"
                }
                Event::SharedReceiveFailed => "the device's receive queue failed",
                Event::DeviceFailed => "the device failed or was removed",
                Event::QueuePairFailed(failed) if failed == self.queue_pair => {
                    self.event_failed = true;
                    continue;
                }
                // Requests go on.
                _ => continue,
            };
            failure = failure.or(Some(reason));
        }
        failure.map_or(Ok(()), |reason| Err(reason.into()))
    }
}

/// A request as it is posted: with registered memory, or inline from a slip, which is also kept when it was copied.
struct Posting {
    payload: Option<Piece>,
    slip: Option<(Slip, usize)>,
    operation: Operation,
}

impl<N: Nic> Drop for Wire<N> {
    /// Windows first, then the queue pair; then what it had comes back.
    fn drop(&mut self) {
        self.waiting.clear();
        let _ = self.nic.fail_queue_pair(self.queue_pair);
        for window in self.bound.drain(..).chain(self.free_windows.drain(..)) {
            if let Ok(Some(buffer)) = self.nic.free_window(window) {
                self.pool.landing_back(buffer, NOBODY);
            }
        }
        // When this fails the device keeps what it had, and the memory with it.
        let _ = self.nic.destroy_queue_pair(self.queue_pair);
        let mut polled = Polled::default();
        let mut completions = Vec::new();
        while let Ok(1..) = self.nic.poll(&mut completions, POLL) {
            for completion in completions.drain(..) {
                // That they failed is what was asked for.
                let _ = self.complete(completion, &mut polled);
            }
            let _ = self.post_receives();
        }
        for (_, buffer) in polled.closed {
            self.pool.landing_back(buffer, NOBODY);
        }
    }
}
