//! What the transport needs from a device: the [`Adapter`] and [`Nic`] traits, and the values that cross them.
//!
//! Owns no device and no state. Invariants that every implementation keeps, and that the NIC suite checks:
//! - **Ownership.** A payload given with a work request comes back exactly once: in that request's [`Completion`]
//!   (also a failed one), or at once when posting is refused.
//! - **Every request completes.** An unsignalled request yields a completion too, just before that of the next
//!   signalled request of its queue pair: signalling saves work, it loses no bookkeeping.
//! - **Order.** Requests of one queue pair complete in the order they were posted, and arrive at the peer in that order.
//! - **No lost wake-up.** After [`Nic::arm`], a completion that [`Nic::poll`] has not returned yet raises a wake-up.
//!   So: arm, poll once more, and only then sleep.
//! - **No overrun.** The completion queue has room for every request that its queue pairs can have outstanding, and for
//!   the shared receives that were set aside for them ([`Adapter::nic`]). Peers that use up more can overrun it, which
//!   ends the queue pairs of this NIC and of no other.
//!
//! Never blocks, and knows nothing of calls, credits or grants.

use std::error::Error;
use std::fmt;

use crate::memory::{Buffer, Frozen, Memory, Slab};

/// The caller's own number of a work request; it comes back in the completion and means nothing to the NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkId(pub u64);

/// A queue pair of one NIC. Never reused for another one during the NIC's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueuePairId(pub u32);

/// A memory window of one NIC. Never reused for another one during the NIC's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WindowId(pub u32);

/// Memory of a peer, as the peer described it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteSlice {
    /// Where the slice starts in the peer's address space.
    pub address: u64,
    /// Length in bytes.
    pub len: u64,
    /// The key that grants access. It is a bearer token within the queue pair that it was bound to.
    pub key: u32,
}

/// What a peer may do through a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteAccess {
    /// Read only.
    Read,
    /// Write only.
    Write,
}

/// The largest payload of one packet on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1024 bytes.
    B1024,
    /// 2048 bytes.
    B2048,
    /// 4096 bytes.
    B4096,
}

impl Mtu {
    /// The size in bytes.
    pub fn bytes(self) -> u32 {
        256 << self as u32
    }

    /// The largest size that is not above `bytes`; `None` below 256.
    pub fn at_most(bytes: u32) -> Option<Self> {
        [Self::B4096, Self::B2048, Self::B1024, Self::B512, Self::B256]
            .into_iter()
            .find(|mtu| mtu.bytes() <= bytes)
    }
}

/// One end of a connection: all that the other end needs to connect to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// The port's address; for RoCE an IPv6 address or an IPv4-mapped one.
    pub gid: [u8; 16],
    /// The port's address on an InfiniBand subnet; zero on RoCE.
    pub lid: u16,
    /// The queue pair's number, 24 bits.
    pub number: u32,
    /// The sequence number of its first packet, 24 bits, random: a guessable one lets stale packets in.
    pub first_psn: u32,
    /// The largest packet payload of its port. A connection uses the smaller one of both ends.
    pub mtu: Mtu,
}

/// What to create a queue pair with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePairSpec {
    /// How many send-side requests (sends, writes, binds, invalidations) may be outstanding.
    pub send_depth: u32,
    /// How many receives may be outstanding; `None` takes receives from the shared queue.
    pub recv_depth: Option<u32>,
    /// How many pieces one request may gather.
    pub pieces_max: u32,
    /// Payloads up to this length are copied into the request, so that the NIC need not read memory for them.
    /// A device may grant more or less; see [`Nic::inline_max`].
    pub inline_max: u32,
    /// How often a send is repeated while the peer has no receive posted; 7 is for ever. Only a safety net.
    pub rnr_retry: u8,
    /// How long to wait for an acknowledgement: 4.096 µs × 2^`ack_timeout`.
    pub ack_timeout: u8,
    /// How often a packet is repeated when no acknowledgement comes.
    pub retry: u8,
    /// How long a peer waits before it repeats a send that found no receive here, by the code of the verbs interface.
    /// The simulator waits as long as the default says.
    pub min_rnr_timer: u8,
    /// The IP header's traffic class of packets to the peer: the DSCP times 4. Ignored by the simulator.
    pub traffic_class: u8,
    /// The InfiniBand service level; on RoCE the priority where packets carry a VLAN tag. Ignored by the simulator.
    pub service_level: u8,
}

impl QueuePairSpec {
    /// How many completions the queue pair's own queues can have outstanding.
    pub fn completions_max(&self) -> u32 {
        self.send_depth.saturating_add(self.recv_depth.unwrap_or(0))
    }
}

impl Default for QueuePairSpec {
    /// Detects a dead peer after about half a second: (67 ms, 7 times), the values that brpc, TensorFlow and 3FS use.
    ///
    /// ```text
    /// rnr_retry 6       not 7, which is for ever: a peer that never posts would block the queue pair, not fail it
    /// ack_timeout 14    67 ms: above any healthy network's delay; with NCCL's 18 (1 s) a dead peer is found after 7 s
    /// retry 6           not 7, which is for ever on Soft-RoCE: a dead peer would be found by its silence alone
    /// min_rnr_timer 12  0.64 ms; at 1 (0.01 ms) a software device spends its time on refusals, at 0 it is 655 ms
    /// traffic_class 0   best effort, which every network carries; a lossless class exists only where switches have it
    /// service_level 0   the one that every subnet manager sets up
    /// ```
    fn default() -> Self {
        Self {
            send_depth: 128,
            recv_depth: None,
            pieces_max: 4,
            inline_max: 128,
            rnr_retry: 6,
            ack_timeout: 14,
            retry: 6,
            min_rnr_timer: 12,
            traffic_class: 0,
            service_level: 0,
        }
    }
}

/// Which receive queue a buffer is posted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecvQueue {
    /// The one that all queue pairs without receives of their own share.
    Shared,
    /// A queue pair's own.
    Own(QueuePairId),
}

/// A part of a gathered payload.
#[derive(Debug)]
pub enum Piece {
    /// The content of a buffer.
    Owned(Buffer),
    /// A read-only view.
    Shared(Frozen),
}

/// What a send or a write transmits.
#[derive(Debug)]
pub enum Payload<'a> {
    /// Nothing.
    Empty,
    /// Bytes that need no registration; copied while posting, so at most [`Nic::inline_max`] of them.
    Inline(&'a [u8]),
    /// One piece.
    One(Piece),
    /// Several pieces, gathered in order.
    Gather(Vec<Piece>),
}

impl Payload<'_> {
    /// The content of one buffer.
    pub fn buffer(buffer: Buffer) -> Self {
        Self::One(Piece::Owned(buffer))
    }

    /// The buffers that the payload owns, in order; views are dropped.
    pub fn into_buffers(self) -> Vec<Buffer> {
        let owned = |piece| match piece {
            Piece::Owned(buffer) => Some(buffer),
            Piece::Shared(_) => None,
        };
        match self {
            Self::Empty | Self::Inline(_) => Vec::new(),
            Self::One(piece) => owned(piece).into_iter().collect(),
            Self::Gather(pieces) => pieces.into_iter().filter_map(owned).collect(),
        }
    }
}

/// What a request does with its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Into the peer's next receive.
    Send {
        /// 32 bits that arrive with the message.
        immediate: Option<u32>,
    },
    /// Into memory that the peer granted. With an immediate it also consumes one of the peer's receives, whose
    /// completion tells the peer that this and all earlier writes are in place.
    Write {
        /// Where the payload goes; it must not be longer than the slice.
        to: RemoteSlice,
        /// 32 bits that arrive with the completion.
        immediate: Option<u32>,
    },
}

/// One send-side work request.
#[derive(Debug)]
pub struct Request<'a> {
    /// Comes back in the completion.
    pub work: WorkId,
    /// What to do.
    pub operation: Operation,
    /// With what.
    pub payload: Payload<'a>,
    /// Whether the NIC must report this one by itself. The implementation signals at least one request in half a
    /// send queue, so a full queue always empties.
    pub signaled: bool,
    /// Whether its arrival wakes a peer that armed for solicited completions only.
    pub solicited: bool,
}

/// A buffer to receive into.
#[derive(Debug)]
pub struct Receive {
    /// Comes back in the completion.
    pub work: WorkId,
    /// Its whole capacity may be written.
    pub buffer: Buffer,
}

/// What kind of request has completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A send.
    Send,
    /// A write.
    Write,
    /// A read (not used by the transport).
    Read,
    /// An atomic operation (not used by the transport).
    Atomic,
    /// A window was bound.
    Bind,
    /// A window was invalidated; the payload is the buffer that it covered.
    Invalidate,
    /// A receive was consumed by a send, or it failed.
    Receive,
    /// A receive was consumed by a write with immediate; its buffer is unused.
    ReceiveWrite,
}

/// A work request's end.
#[derive(Debug)]
pub struct Completion {
    /// The queue pair; `None` when the request belonged to the shared receive queue and the NIC named none that lives.
    pub queue_pair: Option<QueuePairId>,
    /// The caller's number of the request.
    pub work: WorkId,
    /// What it was.
    pub kind: Kind,
    /// How it ended.
    pub outcome: Result<Success, Failure>,
    /// What it owned.
    pub payload: Payload<'static>,
}

/// What a successful completion tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Success {
    /// Of a receive: how many bytes arrived (in the buffer, or in the granted memory). Otherwise zero.
    pub len: u32,
    /// Of a receive: the sender's immediate.
    pub immediate: Option<u32>,
}

/// What a failed completion tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// The reason.
    pub status: Status,
    /// The vendor's own code; zero when it has none.
    pub vendor: u32,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (vendor code {:#x})", self.status, self.vendor)
    }
}

/// Declares [`Status`] with the codes of `enum ibv_wc_status` and their texts.
macro_rules! statuses {
    ($($code:literal $name:ident $text:literal)*) => {
        /// Why a work request failed. The numbers are those of the verbs interface.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Status {
            $(#[doc = $text] $name,)*
            /// A code that this version does not know.
            Unknown(u32),
        }

        impl Status {
            /// The status that a code stands for; zero is success, which is no failure and so unknown here.
            pub fn from_code(code: u32) -> Self {
                match code { $($code => Self::$name,)* other => Self::Unknown(other) }
            }
        }

        impl fmt::Display for Status {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$name => f.write_str($text),)*
                    Self::Unknown(code) => write!(f, "unknown completion status {code}"),
                }
            }
        }
    };
}

statuses! {
    1 LocalLength "the message does not fit the receive buffer, or exceeds what the port can carry"
    2 LocalOperation "the request is not consistent with the queue pair"
    3 LocalEndToEndOperation "the end-to-end context is not consistent"
    4 LocalProtection "local memory is not registered for this access"
    5 Flushed "the queue pair failed before this request was executed"
    6 WindowBind "the memory window could not be bound"
    7 BadResponse "the peer answered with an unexpected packet"
    8 LocalAccess "a write with immediate was not allowed here"
    9 RemoteInvalidRequest "the peer refused the request as invalid; perhaps its receive buffer is too small"
    10 RemoteAccess "the peer did not grant this access"
    11 RemoteOperation "the peer failed to execute the request"
    12 RetryExceeded "the peer did not answer: it is gone, or the network loses packets"
    13 RnrRetryExceeded "the peer posted no receive in time: flow control failed"
    14 LocalReadDomain "the reliable datagram domain does not match"
    15 RemoteReadDomain "the peer refused the reliable datagram domain"
    16 RemoteAborted "the peer aborted the operation"
    17 EndToEndNumber "the end-to-end context number is invalid"
    18 EndToEndState "the end-to-end context is in a wrong state"
    19 Fatal "the device failed"
    20 ResponseTimeout "no response came in time"
    21 General "an error without further detail"
}

/// Something that happened outside any work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The queue pair failed; its requests come back flushed.
    QueuePairFailed(QueuePairId),
    /// A packet arrived at a queue pair that cannot send yet.
    Established(QueuePairId),
    /// No further receive will be consumed from the shared queue for this queue pair. Some devices never tell.
    LastReceiveConsumed(QueuePairId),
    /// The completion queue is unusable: it overran.
    CompletionQueueFailed,
    /// The shared receive queue is unusable.
    SharedReceiveFailed,
    /// The shared receive queue fell below its limit.
    SharedReceiveLow,
    /// The port can carry traffic.
    PortUp(u8),
    /// The port cannot carry traffic.
    PortDown(u8),
    /// The port's addresses changed.
    AddressesChanged(u8),
    /// The device is unusable.
    DeviceFailed,
    /// A kind that this version does not know.
    Unknown(u32),
}

/// What a NIC can do, after what the caller asked for was clamped to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Entries of the completion queue; of an adapter, of the largest that a NIC of it can have.
    pub completions_max: u32,
    /// Entries of the shared receive queue; zero without one.
    pub shared_receives_max: u32,
    /// Requests of one queue pair's queue.
    pub depth_max: u32,
    /// Pieces of one request.
    pub pieces_max: u32,
    /// Whether windows can be bound.
    pub windows: bool,
}

/// Why the NIC did not take what it was given.
#[derive(Debug)]
#[non_exhaustive]
pub enum NicError {
    /// The queue is full. Not a failure: try again after the next completion.
    Full,
    /// The completion queue has no room for another queue pair of this depth.
    CompletionsExhausted {
        /// Entries that the request would need.
        needed: u32,
        /// Entries that are free.
        free: u32,
    },
    /// No such queue pair, or it is gone.
    UnknownQueuePair(QueuePairId),
    /// No such window, or it is freed.
    UnknownWindow(WindowId),
    /// The object's state does not allow this; the text says what is needed.
    State(&'static str),
    /// The request breaks a limit of the queue pair; the text says which.
    Invalid(&'static str),
    /// The memory is not registered with this NIC.
    ForeignMemory,
    /// The device refused; the source says which operation, on what, and what to do.
    Device(Box<dyn Error + Send + Sync>),
}

impl fmt::Display for NicError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("the queue is full"),
            Self::CompletionsExhausted { needed, free } => write!(
                f,
                "the completion queue has room for {free} more requests, and {needed} are needed: open the NIC with more completions"
            ),
            Self::UnknownQueuePair(id) => write!(f, "queue pair {} does not exist", id.0),
            Self::UnknownWindow(id) => write!(f, "window {} does not exist", id.0),
            Self::State(text) | Self::Invalid(text) => f.write_str(text),
            Self::ForeignMemory => f.write_str("the memory is not registered with this NIC"),
            Self::Device(source) => source.fmt(f),
        }
    }
}

impl Error for NicError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Device(source) => Some(&**source),
            _ => None,
        }
    }
}

/// A refusal that gives back what it was given.
#[derive(Debug)]
pub struct Rejected<T> {
    /// Why.
    pub error: NicError,
    /// What was to be taken.
    pub returned: T,
}

/// A channel adapter: one device, its protection domain and, if asked for, its shared receive queue, once per process.
///
/// One domain for all connections, because receives from a shared queue are looked up in the queue pair's domain;
/// peers are kept apart by windows, which are bound to one queue pair.
///
/// ```text
///  Adapter   device, domain, shared receive queue          one per process, from any thread at once
///    |-- Nic   completion queue, wake-ups, events          one per task
///    |     `-- queue pairs, windows
///    `-- Nic ...
/// ```
///
/// The adapter's objects live until the adapter and the last of its NICs are gone. Buffers may outlive both.
pub trait Adapter: Send + Sync + 'static {
    /// A NIC of this adapter.
    type Nic: Nic + Send + 'static;

    /// What each NIC of this adapter can do at most.
    fn limits(&self) -> Limits;

    /// Makes a NIC with a completion queue of its own: wake-ups and events of its own, and an overrun of its own.
    ///
    /// `completions` is how many entries the queue has: requests that may be outstanding on all queue pairs of the NIC
    /// together, shared receives included. It is clamped to the device. `shared_receives` of them are set aside for
    /// receives of the shared queue, as many as peers of this NIC's queue pairs can use up before they are polled: the
    /// sum of the credits that these peers are given. Nobody but the caller can know it, since which queue pair uses up a
    /// shared receive is decided by who sends. What is left bounds the depths of the queue pairs
    /// ([`Nic::create_queue_pair`]); [`NicError::CompletionsExhausted`] if nothing can be left.
    ///
    /// Before a NIC is dropped its owner fails its queue pairs, polls until all has come back, and destroys them. What it
    /// leaves behind is ended with it. Receives of the shared queue that it had not polled go back to the end of
    /// that queue with the numbers they had; those whose end the device has not reported by then stay out of
    /// use until the adapter is gone, as do those whose reports an overrun has lost.
    fn nic(&self, completions: u32, shared_receives: u32) -> Result<Self::Nic, NicError>;

    /// Makes memory usable in requests of every NIC of this adapter. Costly (pages are pinned): done once for big
    /// regions, never per call.
    fn register(&self, memory: Memory) -> Result<Slab, Rejected<Memory>>;

    /// Posts receives to the shared queue, in order. On an error those not taken are still in `batch`. Each comes back
    /// from the [`Nic::poll`] of the NIC whose queue pair used it up.
    fn post_shared(&self, batch: &mut Vec<Receive>) -> Result<(), NicError>;
}

/// One completion queue, and the queue pairs that report to it, on the domain and the shared receive queue of an
/// [`Adapter`].
///
/// Ids name objects of this NIC only: another NIC of the same adapter does not know them.
pub trait Nic {
    /// What this NIC can do.
    fn limits(&self) -> Limits;

    /// [`Adapter::register`] of this NIC's adapter.
    fn register(&mut self, memory: Memory) -> Result<Slab, Rejected<Memory>>;

    /// Creates a queue pair. It takes receives at once, and sends after [`connect`](Self::connect).
    fn create_queue_pair(&mut self, spec: &QueuePairSpec) -> Result<QueuePairId, NicError>;

    /// What a peer needs to connect to this queue pair.
    fn endpoint(&self, queue_pair: QueuePairId) -> Result<Endpoint, NicError>;

    /// How many bytes [`Payload::Inline`] may hold on this queue pair.
    fn inline_max(&self, queue_pair: QueuePairId) -> Result<u32, NicError>;

    /// Lets the queue pair receive from `peer` (ready to receive). Post receives before this.
    /// After [`NicError::Device`] the queue pair has failed, and its receives come back flushed.
    fn accept(&mut self, queue_pair: QueuePairId, peer: &Endpoint) -> Result<(), NicError>;

    /// Lets the queue pair send (ready to send). The peer should have accepted. Fails as [`accept`](Self::accept) does.
    fn activate(&mut self, queue_pair: QueuePairId) -> Result<(), NicError>;

    /// [`accept`](Self::accept), then [`activate`](Self::activate).
    fn connect(&mut self, queue_pair: QueuePairId, peer: &Endpoint) -> Result<(), NicError> {
        self.accept(queue_pair, peer)?;
        self.activate(queue_pair)
    }

    /// Fails the queue pair, so that every outstanding request comes back flushed. It never recovers.
    fn fail_queue_pair(&mut self, queue_pair: QueuePairId) -> Result<(), NicError>;

    /// Destroys the queue pair. Requests that the NIC has not reported come back flushed from the next
    /// [`poll`](Self::poll). Free the windows bound to it first: some devices wait for them.
    fn destroy_queue_pair(&mut self, queue_pair: QueuePairId) -> Result<(), NicError>;

    /// Posts receives, in order. On an error those not taken are still in `batch`.
    fn post_recv(&mut self, queue: RecvQueue, batch: &mut Vec<Receive>) -> Result<(), NicError>;

    /// Posts sends and writes, in order, handing them to the device together where it can.
    /// On an error those not taken are still in `batch`.
    fn post(&mut self, queue_pair: QueuePairId, batch: &mut Vec<Request<'_>>) -> Result<(), NicError>;

    /// Posts one signalled send.
    fn post_send<'a>(
        &mut self,
        queue_pair: QueuePairId,
        work: WorkId,
        payload: Payload<'a>,
        immediate: Option<u32>,
    ) -> Result<(), Rejected<Payload<'a>>> {
        let operation = Operation::Send { immediate };
        post_one(self, queue_pair, Request::signaled(work, operation, payload))
    }

    /// Posts one signalled write.
    fn post_write<'a>(
        &mut self,
        queue_pair: QueuePairId,
        work: WorkId,
        payload: Payload<'a>,
        to: RemoteSlice,
        immediate: Option<u32>,
    ) -> Result<(), Rejected<Payload<'a>>> {
        let operation = Operation::Write { to, immediate };
        post_one(self, queue_pair, Request::signaled(work, operation, payload))
    }

    /// Allocates an unbound window.
    fn allocate_window(&mut self) -> Result<WindowId, NicError>;

    /// Posts a request that lets this queue pair's peer access `buffer`, which the window then owns. The result may be
    /// told to the peer by a later request of the same queue pair. The buffer should be a registration of its own
    /// ([`Buffer::is_whole_registration`]): some devices let a peer write beyond a window, inside its registration.
    fn bind(
        &mut self,
        queue_pair: QueuePairId,
        window: WindowId,
        work: WorkId,
        buffer: Buffer,
        access: RemoteAccess,
    ) -> Result<RemoteSlice, Rejected<Buffer>>;

    /// Posts a request that ends the peer's access. Its completion returns the buffer.
    fn invalidate(&mut self, queue_pair: QueuePairId, window: WindowId, work: WorkId)
    -> Result<(), NicError>;

    /// Frees a window in any state, which ends the peer's access, and returns the buffer that it covered.
    /// The way to a buffer whose queue pair has failed.
    fn free_window(&mut self, window: WindowId) -> Result<Option<Buffer>, NicError>;

    /// Appends completions to `into`: about `max` of them, more when unsignalled requests end with one. Zero means
    /// that the queue is empty.
    fn poll(&mut self, into: &mut Vec<Completion>, max: usize) -> Result<usize, NicError>;

    /// Asks for a wake-up at the next completion (or the next solicited or failed one; some devices do not count failed
    /// sends). Then poll before sleeping.
    fn arm(&mut self, solicited_only: bool) -> Result<(), NicError>;

    /// Takes all pending wake-ups and tells how many there were. Each arming raises at most one.
    fn take_wakes(&mut self) -> Result<usize, NicError>;

    /// Appends what happened outside any work request: to this NIC's queue pairs and completion queue, to the shared queue,
    /// to the port, and to the device. An event that still waits when it happens again is told once, in its later place.
    fn take_events(&mut self, into: &mut Vec<Event>) -> Result<(), NicError>;
}

fn post_one<'a, N: Nic + ?Sized>(
    nic: &mut N,
    queue_pair: QueuePairId,
    request: Request<'a>,
) -> Result<(), Rejected<Payload<'a>>> {
    let mut batch = vec![request];
    nic.post(queue_pair, &mut batch).map_err(|error| Rejected {
        error,
        returned: batch.pop().map_or(Payload::Empty, |request| request.payload),
    })
}

impl<'a> Request<'a> {
    /// A request that the NIC reports by itself and that wakes a peer in any case.
    pub fn signaled(work: WorkId, operation: Operation, payload: Payload<'a>) -> Self {
        Self { work, operation, payload, signaled: true, solicited: true }
    }

    /// A request that is reported together with the next signalled one.
    pub fn unsignaled(work: WorkId, operation: Operation, payload: Payload<'a>) -> Self {
        Self { signaled: false, solicited: false, ..Self::signaled(work, operation, payload) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mtu_is_never_above_what_the_port_carries() {
        assert_eq!(Mtu::at_most(4096), Some(Mtu::B4096));
        assert_eq!(Mtu::at_most(1500), Some(Mtu::B1024));
        assert_eq!(Mtu::at_most(255), None);
        assert_eq!(Mtu::B2048.bytes(), 2048);
    }

    #[test]
    fn unknown_statuses_keep_their_number() {
        assert_eq!(Status::from_code(12), Status::RetryExceeded);
        assert_eq!(Status::from_code(4711), Status::Unknown(4711));
        assert_eq!(Status::Unknown(4711).to_string(), "unknown completion status 4711");
    }
}
