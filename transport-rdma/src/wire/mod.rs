//! One queue pair at work: what goes to its send queue, and what comes out of its completion queue.
//!
//! Owns the NIC of one connection and [`Wire`]. Invariants: requests are posted in the order in which they were queued,
//! never more than the send queue holds; whatever a completion brings back is given back at once, and a receive is
//! posted again before anybody hears of its message. Every 16th request asks for a report of its own, and so does the
//! last of a batch while registered memory waits for one, so that no buffer stays out for want of later traffic. A message
//! that has its credit is posted whatever the pool has: what the peer needs to go on may be behind it. Never: waits, or
//! knows what is in a message.

mod completing;
mod posting;

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use crate::counters::Counters;
use crate::memory::Buffer;
use crate::nic::{
    Completion, Endpoint, Event, Nic, NicError, QueuePairId, QueuePairSpec, Receive, RemoteAccess,
    RemoteSlice, WindowId, WorkId,
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

    #[cfg(test)]
    pub(crate) fn is_closing(&self) -> bool {
        self.closing > 0
    }

    /// How far it is, for whoever looks for the reason why it hangs.
    #[cfg(test)]
    pub(crate) fn describe(&self) -> String {
        let Self { depth, outstanding, unreported, waiting, closing, .. } = self;
        format!(
            "depth {depth}, outstanding {outstanding}, unreported {unreported}, closing {closing}, waiting {waiting:?}"
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

    /// Lets the peer write into `buffer`. An error gives it back, with the reason, or without one when the send queue is
    /// full.
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
