//! Reliable connected queue pairs, with their state in the type.
//!
//! ```text
//!  create            ready_to_receive             ready_to_send
//!  -----> Initialized -----------> ReadyToReceive -------------> ReadyToSend
//!             |                          |                            |
//!             `--------------------------+------- fail / error -------+--> (error: everything comes back flushed)
//! ```
//!
//! Owns the queue pair and, through its queues, every posted payload. Invariants: receives may be posted in every state,
//! sends only in the last; after a failed transition a queue pair is only good to be destroyed, and none is ever reset, since packets
//! of its old connection could still arrive; payloads are released only by a report or after the device has confirmed
//! the destruction. Never chooses addresses, numbers or time limits: the caller gives them.
#![expect(unsafe_code, reason = "foreign calls")]

use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::completion::{CompletionQueue, WorkCompletion};
use super::error::{VerbsError, check};
use super::ffi::*;
use super::receive_queue::{ReceiveSlots, SharedReceiveQueue, accepted};
use super::region::ProtectionDomain;
use super::send_queue::{Entry, SendLimits, SendQueue, blank};
use super::window::Window;
use super::work_id;
use crate::memory::Buffer;
use crate::nic::{
    Completion, Kind, Mtu, NicError, Payload, QueuePairId, QueuePairSpec, Receive, Rejected, RemoteAccess,
    RemoteSlice, Request, WorkId,
};

/// How many routers a packet may cross: all of them. A limit would only hide that a peer is far.
const HOP_LIMIT: u8 = 255;

/// State: takes receives; the device does not listen yet.
#[derive(Debug)]
pub struct Initialized(());
/// State: the device accepts the peer's packets.
#[derive(Debug)]
pub struct ReadyToReceive(());
/// State: both directions work.
#[derive(Debug)]
pub struct ReadyToSend(());

/// What a queue pair reports to and where it takes shared receives from.
#[derive(Debug, Clone)]
pub struct Attachments {
    /// Its protection domain.
    pub domain: Arc<ProtectionDomain>,
    /// Where all of its requests are reported.
    pub completions: Arc<CompletionQueue>,
    /// Used when the specification asks for no receives of its own.
    pub shared_receives: Option<Arc<SharedReceiveQueue>>,
}

/// The way to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Our port.
    pub port: u8,
    /// Our address's place in the port's table.
    pub gid_index: u8,
    /// Whether packets carry a global header: always on Ethernet.
    pub global: bool,
    /// The peer's address.
    pub peer_gid: [u8; 16],
    /// The peer's InfiniBand address; zero on Ethernet.
    pub peer_lid: u16,
    /// The peer's queue pair.
    pub peer_number: u32,
    /// The sequence number of the peer's first packet.
    pub peer_psn: u32,
    /// The smaller one of both ends' packet sizes.
    pub mtu: Mtu,
    /// Reads and atomics that the peer may have in flight to us.
    pub reads_max: u8,
}

/// A queue pair in state `S`.
pub struct QueuePair<S> {
    core: Core,
    state: PhantomData<S>,
}

struct Core {
    raw: NonNull<ibv_qp>,
    number: u32,
    attached: Attachments,
    spec: QueuePairSpec,
    sends: SendQueue,
    receives: Option<ReceiveSlots>,
    post_send: PostSend,
    post_recv: PostRecv,
    destroyed: bool,
}

// SAFETY: providers lock their queue pairs, and our queues lock themselves.
unsafe impl Send for Core {}
// SAFETY: as above.
unsafe impl Sync for Core {}

impl QueuePair<Initialized> {
    /// Creates a queue pair on a port. `spec` is clamped to nothing: what the device cannot do fails.
    pub fn create(attached: &Attachments, port: u8, spec: &QueuePairSpec) -> Result<Self, VerbsError> {
        let core = Core::create(attached, spec)?;
        let mut attributes = blank_attributes(IBV_QPS_INIT);
        attributes.port_num = port;
        attributes.qp_access_flags = attached.domain.remote_access();
        core.modify(&mut attributes, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)?;
        Ok(Self::from_core(core))
    }

    /// Lets the peer's packets in. Post receives first: its first message may arrive at once.
    /// On an error the queue pair comes back, to be destroyed.
    pub fn ready_to_receive(
        self,
        route: &Route,
    ) -> Result<QueuePair<ReadyToReceive>, (VerbsError, Box<Self>)> {
        let mut attributes = blank_attributes(IBV_QPS_RTR);
        attributes.ah_attr = ibv_ah_attr {
            grh: ibv_global_route {
                dgid: ibv_gid { raw: route.peer_gid },
                flow_label: 0,
                sgid_index: route.gid_index,
                hop_limit: HOP_LIMIT,
                traffic_class: self.core.spec.traffic_class,
            },
            dlid: route.peer_lid,
            sl: self.core.spec.service_level,
            src_path_bits: 0,
            static_rate: 0,
            is_global: u8::from(route.global),
            port_num: route.port,
        };
        attributes.path_mtu = 1 + route.mtu as u32;
        attributes.dest_qp_num = route.peer_number;
        attributes.rq_psn = route.peer_psn;
        attributes.max_dest_rd_atomic = route.reads_max;
        attributes.min_rnr_timer = self.core.spec.min_rnr_timer;
        let mask = IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        self.advance(&mut attributes, mask)
    }
}

impl QueuePair<ReadyToReceive> {
    /// Lets us send; `first_psn` is the sequence number that the peer was told.
    /// On an error the queue pair comes back, to be destroyed.
    pub fn ready_to_send(
        self,
        first_psn: u32,
        reads_max: u8,
    ) -> Result<QueuePair<ReadyToSend>, (VerbsError, Box<Self>)> {
        let mut attributes = blank_attributes(IBV_QPS_RTS);
        attributes.sq_psn = first_psn;
        attributes.timeout = self.core.spec.ack_timeout;
        attributes.retry_cnt = self.core.spec.retry;
        attributes.rnr_retry = self.core.spec.rnr_retry;
        attributes.max_rd_atomic = reads_max;
        let mask =
            IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        self.advance(&mut attributes, mask)
    }
}

impl<S> QueuePair<S> {
    fn from_core(core: Core) -> Self {
        Self { core, state: PhantomData }
    }

    fn advance<T>(
        self,
        attributes: &mut ibv_qp_attr,
        mask: i32,
    ) -> Result<QueuePair<T>, (VerbsError, Box<Self>)> {
        match self.core.modify(attributes, mask) {
            Ok(()) => Ok(QueuePair::from_core(self.core)),
            Err(error) => Err((error, Box::new(self))),
        }
    }

    /// The number that a peer connects to, 24 bits.
    pub fn number(&self) -> u32 {
        self.core.number
    }

    /// How many bytes a request can carry inside itself.
    pub fn inline_max(&self) -> u32 {
        self.core.sends.limits().inline_max
    }

    /// Posts receives to the queue pair's own queue, in order. On an error those not taken are still in `batch`.
    pub fn post_recv(&self, batch: &mut Vec<Receive>) -> Result<(), NicError> {
        let core = &self.core;
        let slots = core
            .receives
            .as_ref()
            .ok_or(NicError::State("this queue pair takes its receives from the shared queue"))?;
        slots.post(batch, |first, count| {
            let mut refused = ptr::null_mut();
            // SAFETY: the list is linked and complete; each buffer it names moves into a slot, where it stays until
            // the device reports it or the queue pair is destroyed.
            let code = unsafe { (core.post_recv)(core.raw.as_ptr(), first, &mut refused) };
            accepted(code, first, refused, count, "ibv_post_recv", core.device())
        })
    }

    /// Puts the queue pair into the error state, so that everything posted comes back flushed.
    pub fn fail(&self) -> Result<(), VerbsError> {
        self.core.modify(&mut blank_attributes(IBV_QPS_ERR), 0)
    }

    /// Whether the device has put the queue pair into the error state.
    pub fn is_failed(&self) -> Result<bool, VerbsError> {
        let mut attributes = blank_attributes(0);
        let mut init = MaybeUninit::<ibv_qp_init_attr>::zeroed();
        let query = self.core.attached.domain.context.library.ibv_query_qp;
        // SAFETY: the queue pair is alive and both structs are writable.
        let code = unsafe { query(self.core.raw.as_ptr(), &mut attributes, IBV_QP_STATE, init.as_mut_ptr()) };
        check(code, "ibv_query_qp", || self.core.describe())?;
        Ok(attributes.qp_state == IBV_QPS_ERR)
    }

    /// Numbers of the queues whose reports belong to this queue pair: sends, and receives of its own.
    pub(super) fn queues(&self) -> (u32, Option<u32>) {
        (self.core.sends.id(), self.core.receives.as_ref().map(ReceiveSlots::id))
    }

    /// Appends the completions that a report of one of this queue pair's requests tells of (several when unsignalled
    /// ones end with it); gives any other report back. `id` is the caller's name of this queue pair.
    pub fn complete(
        &self,
        report: WorkCompletion,
        id: Option<QueuePairId>,
        into: &mut Vec<Completion>,
    ) -> Result<(), WorkCompletion> {
        let (queue, core) = (report.queue(), &self.core);
        let found = if queue == core.sends.id() {
            core.sends.complete(report.position(), report.outcome(), id, into)
        } else {
            let slots = core.receives.as_ref().filter(|slots| slots.id() == queue);
            slots.is_some_and(|slots| slots.complete(&report, id, into))
        };
        if found { Ok(()) } else { Err(report) }
    }

    /// Destroys the queue pair and appends, flushed, what the device had not reported. When the device refuses,
    /// everything is leaked, since it may still be used.
    pub fn destroy(mut self, id: Option<QueuePairId>, into: &mut Vec<Completion>) -> Result<(), VerbsError> {
        self.core.destroy(id, into)
    }
}

impl QueuePair<ReadyToSend> {
    /// Posts sends and writes, in order, as one linked list. On an error those not taken are still in `batch`.
    pub fn post(&self, batch: &mut Vec<Request<'_>>) -> Result<(), NicError> {
        self.core.sends.post(batch, |first, count| self.core.post_list(first, count))
    }

    /// Posts a read of remote memory into `buffer`.
    pub fn post_read(&self, work: WorkId, buffer: Buffer, from: RemoteSlice) -> Result<(), Rejected<Buffer>> {
        let mut wr = blank(IBV_WR_RDMA_READ);
        wr.wr = wr_target { rdma: wr_rdma { remote_addr: from.address, rkey: from.key } };
        let len = u32::try_from(from.len).unwrap_or(u32::MAX);
        self.post_into(work, Kind::Read, wr, buffer, len)
    }

    /// Posts an atomic operation on 8 bytes of remote memory; their old value arrives in `buffer`, in host order.
    pub fn post_atomic(
        &self,
        work: WorkId,
        buffer: Buffer,
        target: RemoteSlice,
        atomic: Atomic,
    ) -> Result<(), Rejected<Buffer>> {
        let (opcode, compare_add, swap) = match atomic {
            Atomic::FetchAdd(value) => (IBV_WR_ATOMIC_FETCH_AND_ADD, value, 0),
            Atomic::CompareSwap { expected, new } => (IBV_WR_ATOMIC_CMP_AND_SWP, expected, new),
        };
        let mut wr = blank(opcode);
        wr.wr = wr_target {
            atomic: wr_atomic { remote_addr: target.address, compare_add, swap, rkey: target.key },
        };
        self.post_into(work, Kind::Atomic, wr, buffer, 8)
    }

    fn post_into(
        &self,
        work: WorkId,
        kind: Kind,
        wr: ibv_send_wr,
        buffer: Buffer,
        len: u32,
    ) -> Result<(), Rejected<Buffer>> {
        if buffer.domain() != self.core.attached.domain.id() {
            return Err(Rejected { error: NicError::ForeignMemory, returned: buffer });
        }
        if len as usize > buffer.capacity() {
            let error = NicError::Invalid("the buffer is smaller than what would arrive");
            return Err(Rejected { error, returned: buffer });
        }
        let piece = ibv_sge { addr: buffer.address(), length: len, lkey: buffer.local_key() };
        let entry = Entry { work, kind, payload: Payload::buffer(buffer), window: None, arriving: len };
        let sends = &self.core.sends;
        sends.post_one(wr, vec![piece], entry, |first, count| self.core.post_list(first, count)).map_err(
            |(error, entry)| {
                let returned = entry.payload.into_buffers().pop();
                Rejected { error, returned: returned.expect("the entry was made with a buffer") }
            },
        )
    }

    /// Posts the bind of a window; see [`crate::nic::Nic::bind`].
    pub fn post_bind(
        &self,
        work: WorkId,
        window: &Arc<Window>,
        buffer: Buffer,
        access: RemoteAccess,
    ) -> Result<RemoteSlice, Rejected<Buffer>> {
        let post = |bind| {
            let mut wr = blank(IBV_WR_BIND_MW);
            wr.bind_mw = bind;
            self.post_about(work, Kind::Bind, window, wr)
        };
        window.bind(buffer, access, post).map_err(|(error, returned)| Rejected { error, returned })
    }

    /// Posts the invalidation of a bound window; its completion carries the buffer.
    pub fn post_invalidate(&self, work: WorkId, window: &Arc<Window>) -> Result<(), NicError> {
        window.invalidate(|key| {
            let mut wr = blank(IBV_WR_LOCAL_INV);
            wr.imm_or_key = key;
            self.post_about(work, Kind::Invalidate, window, wr)
        })
    }

    fn post_about(
        &self,
        work: WorkId,
        kind: Kind,
        window: &Arc<Window>,
        wr: ibv_send_wr,
    ) -> Result<(), NicError> {
        let window = Some(Arc::clone(window));
        let entry = Entry { work, kind, payload: Payload::Empty, window, arriving: 0 };
        let sends = &self.core.sends;
        sends
            .post_one(wr, Vec::new(), entry, |first, count| self.core.post_list(first, count))
            .map_err(|(error, _)| error)
    }
}

/// An atomic operation on 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomic {
    /// Adds, wrapping.
    FetchAdd(u64),
    /// Stores `new` if the value is `expected`.
    CompareSwap {
        /// The value to find.
        expected: u64,
        /// The value to store.
        new: u64,
    },
}

impl Core {
    fn create(attached: &Attachments, spec: &QueuePairSpec) -> Result<Self, VerbsError> {
        let context = &attached.domain.context;
        let describe = || {
            let receives = spec.recv_depth.map_or("shared".into(), |depth| depth.to_string());
            format!("a queue pair of {} sends and {receives} receives on {}", spec.send_depth, context.name())
        };
        let refused =
            |code| VerbsError::new("ibv_create_qp", describe(), std::io::Error::from_raw_os_error(code));
        let (Some(post_send), Some(post_recv)) = (context.ops().post_send, context.ops().post_recv) else {
            return Err(refused(libc::EOPNOTSUPP));
        };
        let srq = match (spec.recv_depth, &attached.shared_receives) {
            (Some(_), _) => ptr::null_mut(),
            (None, Some(shared)) => shared.raw.as_ptr(),
            (None, None) => return Err(refused(libc::EINVAL)),
        };
        let send_queue = work_id::new_queue().ok_or_else(|| refused(libc::ENOSPC))?;
        let receive_queue = work_id::new_queue().ok_or_else(|| refused(libc::ENOSPC))?;
        let completions = attached.completions.raw.as_ptr();
        let mut init = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: completions,
            recv_cq: completions,
            srq,
            cap: ibv_qp_cap {
                max_send_wr: spec.send_depth,
                max_recv_wr: spec.recv_depth.unwrap_or(0),
                max_send_sge: spec.pieces_max,
                max_recv_sge: 1,
                max_inline_data: spec.inline_max,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain, completion queue and shared queue are alive, and `attached` keeps them so.
        let raw = unsafe { (context.library.ibv_create_qp)(attached.domain.raw.as_ptr(), &mut init) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::from_errno("ibv_create_qp", describe()))?;
        // SAFETY: the library returned a valid queue pair, whose number never changes.
        let number = unsafe { raw.as_ref() }.qp_num;
        let domain = attached.domain.id();
        let limits = SendLimits {
            depth: spec.send_depth,
            pieces_max: spec.pieces_max,
            inline_max: init.cap.max_inline_data,
            domain,
        };
        Ok(Self {
            raw,
            number,
            attached: attached.clone(),
            spec: *spec,
            sends: SendQueue::new(send_queue, limits),
            receives: spec.recv_depth.map(|depth| ReceiveSlots::new(receive_queue, depth, domain)),
            post_send,
            post_recv,
            destroyed: false,
        })
    }

    fn modify(&self, attributes: &mut ibv_qp_attr, mask: i32) -> Result<(), VerbsError> {
        let modify = self.attached.domain.context.library.ibv_modify_qp;
        // SAFETY: the queue pair is alive, and the mask names the fields that the caller has set.
        let code = unsafe { modify(self.raw.as_ptr(), attributes, mask | IBV_QP_STATE) };
        check(code, "ibv_modify_qp", || {
            let state = match attributes.qp_state {
                IBV_QPS_INIT => "initialized",
                IBV_QPS_RTR => "ready to receive",
                IBV_QPS_RTS => "ready to send",
                _ => "error",
            };
            format!("{}, to the state `{state}`", self.describe())
        })
    }

    fn post_list(&self, first: *mut ibv_send_wr, count: usize) -> (usize, Option<NicError>) {
        let mut refused = ptr::null_mut();
        // SAFETY: the list is linked and complete; what it names moves into the ring, where it stays until the device
        // reports it or the queue pair is destroyed. Inline bytes are copied by this call.
        let code = unsafe { (self.post_send)(self.raw.as_ptr(), first, &mut refused) };
        accepted(code, first, refused, count, "ibv_post_send", self.device())
    }

    /// Destroys the queue pair, unless that has been tried already.
    fn destroy(&mut self, id: Option<QueuePairId>, into: &mut Vec<Completion>) -> Result<(), VerbsError> {
        if std::mem::replace(&mut self.destroyed, true) {
            return Ok(());
        }
        // SAFETY: reached once; whatever named the queue pair in an event was acknowledged when it was taken.
        let code = unsafe { (self.attached.domain.context.library.ibv_destroy_qp)(self.raw.as_ptr()) };
        let outcome = check(code, "ibv_destroy_qp", || self.describe());
        let mut left = Vec::new();
        self.sends.flush(id, &mut left);
        if let Some(slots) = &self.receives {
            slots.flush(id, &mut left);
        }
        match outcome {
            Ok(()) => into.append(&mut left),
            // The device may still use what was posted.
            Err(_) => std::mem::forget(left),
        }
        outcome
    }

    fn device(&self) -> &str {
        self.attached.domain.context.name()
    }

    fn describe(&self) -> String {
        format!("queue pair {} on {}", self.number, self.device())
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // A failure has leaked what it must; there is nobody left to tell.
        drop(self.destroy(None, &mut Vec::new()));
    }
}

impl<S> fmt::Debug for QueuePair<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = std::any::type_name::<S>().rsplit("::").next().unwrap_or("?");
        write!(f, "{} ({state})", self.core.describe())
    }
}

fn blank_attributes(state: u32) -> ibv_qp_attr {
    // SAFETY: the struct consists of integers, for which zero is valid.
    let mut attributes = unsafe { MaybeUninit::<ibv_qp_attr>::zeroed().assume_init() };
    attributes.qp_state = state;
    attributes
}
