//! [`Nic`] on verbs: one completion queue of an adapter, with its channel.
//!
//! Owns the queue pairs and windows, and counts what the completion queue must hold. Invariant: the depths of all
//! queues that report to the completion queue, and the shared receives set aside for it, never exceed its capacity,
//! counting those of destroyed queue pairs until their last reports are read. Never waits.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::adapter::{NO_SHARED_QUEUE, VerbsAdapter};
use super::completion::{CompletionQueue, WorkCompletion};
use super::error::{Unavailable, VerbsError};
use super::probe::Located;
use super::queue_pair::{Attachments, Initialized, QueuePair, ReadyToReceive, ReadyToSend, Route};
use super::region::ProtectionDomain;
use super::settings::DeviceChoice;
use super::window::Window;
use crate::memory::{Buffer, Memory, Slab};
use crate::nic::{
    Adapter, Completion, Endpoint, Event, Limits, Nic, NicError, QueuePairId, QueuePairSpec, Receive,
    RecvQueue, Rejected, RemoteAccess, RemoteSlice, Request, WindowId, WorkId,
};

/// Reads that a peer may have in flight to us. The transport uses none; the verbs tests use a few.
const READS_MAX: u8 = 4;

/// How many reports are read at once from the queue of a NIC that is dropped.
const UNREAD_AT_ONCE: usize = 64;

/// What to open a device with for one NIC alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicOptions {
    /// Which device.
    pub choice: DeviceChoice,
    /// How many requests may be outstanding on all queue pairs together, shared receives included.
    /// Clamped to the device.
    pub completions: u32,
    /// How many receives the shared queue holds; zero for none. Clamped to the device.
    pub shared_receives: u32,
}

impl Default for NicOptions {
    fn default() -> Self {
        Self { choice: DeviceChoice::default(), completions: 16 * 1024, shared_receives: 1024 }
    }
}

/// A NIC that is reached through libibverbs.
#[derive(Debug)]
pub struct VerbsNic {
    queue_pairs: BTreeMap<QueuePairId, Slot>,
    /// Which queue pair a queue's reports belong to; the shared queue is not in here.
    owners: BTreeMap<u32, QueuePairId>,
    windows: BTreeMap<WindowId, Arc<Window>>,
    attached: Attachments,
    adapter: VerbsAdapter,
    limits: Limits,
    next_id: u32,
    /// Reports that living queues may still cause.
    reserved: u32,
    /// Reports of destroyed queue pairs that may still be in the completion queue.
    retiring: u32,
    /// Completions that no report will bring.
    flushed: Vec<Completion>,
    reports: Vec<WorkCompletion>,
}

#[derive(Debug)]
struct Slot {
    stage: Stage,
    endpoint: Endpoint,
    spec: QueuePairSpec,
}

#[derive(Debug)]
enum Stage {
    Initialized(QueuePair<Initialized>),
    Receiving(QueuePair<ReadyToReceive>),
    Sending(QueuePair<ReadyToSend>),
    /// A transition failed, which destroyed the queue pair.
    Gone,
}

/// Runs the same expression on the queue pair of whichever stage.
macro_rules! any_stage {
    ($stage:expr, $queue_pair:ident => $use:expr) => {
        match $stage {
            Stage::Initialized($queue_pair) => Some($use),
            Stage::Receiving($queue_pair) => Some($use),
            Stage::Sending($queue_pair) => Some($use),
            Stage::Gone => None,
        }
    };
}

impl VerbsNic {
    /// Opens the first usable device for the NIC that is its only user.
    pub fn open(options: &NicOptions) -> Result<Self, Unavailable> {
        let shared_receives = options.shared_receives.min(options.completions);
        let adapter = VerbsAdapter::open(&options.choice, shared_receives)?;
        let completions = adapter.completion_queue(options.completions)?;
        let all = adapter.limits().shared_receives_max;
        Ok(Self::new(&adapter, completions, all))
    }

    /// A NIC that reports to `completions`, where room for `shared_receives` is set aside.
    pub(super) fn new(
        adapter: &VerbsAdapter,
        completions: Arc<CompletionQueue>,
        shared_receives: u32,
    ) -> Self {
        let limits = Limits { completions_max: completions.capacity(), ..adapter.limits() };
        adapter.events().add_nic(completions.number());
        Self {
            queue_pairs: BTreeMap::new(),
            owners: BTreeMap::new(),
            windows: BTreeMap::new(),
            attached: Attachments {
                domain: Arc::clone(adapter.domain()),
                completions,
                shared_receives: adapter.shared_receives().cloned(),
            },
            adapter: adapter.clone(),
            limits,
            next_id: 0,
            reserved: shared_receives,
            retiring: 0,
            flushed: Vec::new(),
            reports: Vec::new(),
        }
    }

    /// The adapter that this NIC is of.
    pub fn adapter(&self) -> &VerbsAdapter {
        &self.adapter
    }

    /// The device, port and address in use.
    pub fn located(&self) -> &Located {
        self.adapter.located()
    }

    /// The domain that all memory of this NIC is registered in.
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.attached.domain
    }

    /// A connected queue pair, for the operations that the trait leaves out (reads, atomics).
    pub fn queue_pair(&self, id: QueuePairId) -> Result<&QueuePair<ReadyToSend>, NicError> {
        match &self.slot(id)?.stage {
            Stage::Sending(queue_pair) => Ok(queue_pair),
            Stage::Gone => Err(NicError::UnknownQueuePair(id)),
            _ => Err(NicError::State("the queue pair must be activated before it sends")),
        }
    }

    /// [`VerbsAdapter::set_shared_low_mark`] of this NIC's adapter.
    pub fn set_shared_low_mark(&self, limit: u32) -> Result<(), NicError> {
        self.adapter.set_shared_low_mark(limit)
    }

    /// Registers whom to wake when another NIC or [`VerbsAdapter::route_events`] has found an event for this one; it stays
    /// registered. After it take events once, and only then sleep.
    pub fn set_event_waker(&self, waker: Option<Waker>) {
        self.adapter.events().set_waker(self.number(), waker);
    }

    /// Sleeps until a wake-up waits, at most for `limit`; see [`CompletionChannel::wait`](super::CompletionChannel::wait).
    pub fn wait(&self, limit: Duration) -> Result<bool, VerbsError> {
        self.attached.completions.channel().wait(limit)
    }

    /// [`VerbsAdapter::event_fd`] of this NIC's adapter.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.adapter.event_fd()
    }

    /// What the router of events calls this NIC.
    fn number(&self) -> u32 {
        self.attached.completions.number()
    }

    fn slot(&self, id: QueuePairId) -> Result<&Slot, NicError> {
        self.queue_pairs.get(&id).ok_or(NicError::UnknownQueuePair(id))
    }

    fn slot_mut(&mut self, id: QueuePairId) -> Result<&mut Slot, NicError> {
        self.queue_pairs.get_mut(&id).ok_or(NicError::UnknownQueuePair(id))
    }

    fn window(&self, id: WindowId) -> Result<&Arc<Window>, NicError> {
        self.windows.get(&id).ok_or(NicError::UnknownWindow(id))
    }

    fn new_id(&mut self) -> Result<u32, NicError> {
        let id = self.next_id;
        self.next_id = id.checked_add(1).ok_or(NicError::Invalid("this NIC has numbered 2^32 objects"))?;
        Ok(id)
    }

    /// Destroys a queue pair whose transition failed; what it had comes back from the next poll.
    fn give_up<S>(&mut self, id: QueuePairId, error: VerbsError, broken: QueuePair<S>) -> NicError {
        self.adapter.events().remove_queue_pair(broken.number());
        // Should that fail too, the first error tells more.
        drop(broken.destroy(Some(id), &mut self.flushed));
        error.into()
    }

    fn by_number(&self, number: u32) -> Option<QueuePairId> {
        // The number of one that is gone may be another's by now.
        let named = |slot: &Slot| slot.endpoint.number == number && !matches!(slot.stage, Stage::Gone);
        self.queue_pairs.iter().find(|(_, slot)| named(slot)).map(|(&id, _)| id)
    }

    fn dispatch(&self, report: WorkCompletion, into: &mut Vec<Completion>) {
        // A report that names no request of ours is dropped: nothing can be released on its word.
        if let Some(&id) = self.owners.get(&report.queue()) {
            if let Some(slot) = self.queue_pairs.get(&id) {
                let id = Some(id);
                let _ = any_stage!(&slot.stage, queue_pair => queue_pair.complete(report, id, into).is_ok());
            }
        } else if let Some(shared) = &self.attached.shared_receives {
            let queue_pair = self.by_number(report.queue_pair_number());
            let _ = shared.complete(report, queue_pair, into);
        }
    }
}

/// The descriptor that is readable after an armed completion.
impl AsFd for VerbsNic {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.attached.completions.channel().as_fd()
    }
}

impl Nic for VerbsNic {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn register(&mut self, memory: Memory) -> Result<Slab, Rejected<Memory>> {
        self.adapter.register(memory)
    }

    fn create_queue_pair(&mut self, spec: &QueuePairSpec) -> Result<QueuePairId, NicError> {
        if spec.recv_depth.is_none() && self.attached.shared_receives.is_none() {
            return Err(NicError::State(NO_SHARED_QUEUE));
        }
        let needed = spec.completions_max();
        let free = self.limits.completions_max.saturating_sub(self.reserved + self.retiring);
        if needed > free {
            return Err(NicError::CompletionsExhausted { needed, free });
        }
        let id = QueuePairId(self.new_id()?);
        let Located { port, mtu, gid, .. } = self.adapter.located();
        let queue_pair = QueuePair::create(&self.attached, port.number, spec)?;
        let (number, first_psn) = (queue_pair.number(), random_psn());
        let endpoint = Endpoint { gid: gid.raw, lid: port.lid, number, first_psn, mtu: *mtu };
        self.adapter.events().add_queue_pair(number, self.number(), id);
        let (sends, receives) = queue_pair.queues();
        self.owners.insert(sends, id);
        self.owners.extend(receives.map(|queue| (queue, id)));
        self.reserved += needed;
        let stage = Stage::Initialized(queue_pair);
        self.queue_pairs.insert(id, Slot { stage, endpoint, spec: *spec });
        Ok(id)
    }

    fn endpoint(&self, queue_pair: QueuePairId) -> Result<Endpoint, NicError> {
        Ok(self.slot(queue_pair)?.endpoint)
    }

    fn inline_max(&self, queue_pair: QueuePairId) -> Result<u32, NicError> {
        any_stage!(&self.slot(queue_pair)?.stage, queue_pair => queue_pair.inline_max())
            .ok_or(NicError::UnknownQueuePair(queue_pair))
    }

    fn accept(&mut self, queue_pair: QueuePairId, peer: &Endpoint) -> Result<(), NicError> {
        let Located { port, mtu, gid, .. } = self.adapter.located();
        let route = Route {
            port: port.number,
            gid_index: gid.index,
            // Without a local identifier the peer is on Ethernet or behind a router.
            global: port.ethernet || peer.lid == 0,
            peer_gid: peer.gid,
            peer_lid: peer.lid,
            peer_number: peer.number,
            peer_psn: peer.first_psn,
            mtu: peer.mtu.min(*mtu),
            reads_max: READS_MAX,
        };
        let slot = self.slot_mut(queue_pair)?;
        match std::mem::replace(&mut slot.stage, Stage::Gone) {
            Stage::Initialized(initialized) => match initialized.ready_to_receive(&route) {
                Ok(receiving) => {
                    slot.stage = Stage::Receiving(receiving);
                    Ok(())
                }
                Err((error, broken)) => Err(self.give_up(queue_pair, error, *broken)),
            },
            other => {
                slot.stage = other;
                Err(NicError::State("a queue pair accepts a peer once"))
            }
        }
    }

    fn activate(&mut self, queue_pair: QueuePairId) -> Result<(), NicError> {
        let slot = self.slot_mut(queue_pair)?;
        match std::mem::replace(&mut slot.stage, Stage::Gone) {
            Stage::Receiving(receiving) => {
                match receiving.ready_to_send(slot.endpoint.first_psn, READS_MAX) {
                    Ok(sending) => {
                        slot.stage = Stage::Sending(sending);
                        Ok(())
                    }
                    Err((error, broken)) => Err(self.give_up(queue_pair, error, *broken)),
                }
            }
            other => {
                slot.stage = other;
                Err(NicError::State("a queue pair is activated once, after it accepted a peer"))
            }
        }
    }

    fn fail_queue_pair(&mut self, queue_pair: QueuePairId) -> Result<(), NicError> {
        match any_stage!(&self.slot(queue_pair)?.stage, queue_pair => queue_pair.fail()) {
            Some(result) => Ok(result?),
            None => Err(NicError::UnknownQueuePair(queue_pair)),
        }
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairId) -> Result<(), NicError> {
        let slot = self.queue_pairs.remove(&queue_pair).ok_or(NicError::UnknownQueuePair(queue_pair))?;
        self.owners.retain(|_, owner| *owner != queue_pair);
        if !matches!(slot.stage, Stage::Gone) {
            self.adapter.events().remove_queue_pair(slot.endpoint.number);
        }
        let reports = slot.spec.completions_max();
        self.reserved -= reports;
        self.retiring += reports;
        let (id, flushed) = (Some(queue_pair), &mut self.flushed);
        match any_stage!(slot.stage, queue_pair => queue_pair.destroy(id, flushed)) {
            Some(result) => Ok(result?),
            None => Ok(()),
        }
    }

    fn post_recv(&mut self, queue: RecvQueue, batch: &mut Vec<Receive>) -> Result<(), NicError> {
        match queue {
            RecvQueue::Shared => self.adapter.post_shared(batch),
            RecvQueue::Own(id) => {
                any_stage!(&self.slot(id)?.stage, queue_pair => queue_pair.post_recv(batch))
                    .unwrap_or(Err(NicError::UnknownQueuePair(id)))
            }
        }
    }

    fn post(&mut self, queue_pair: QueuePairId, batch: &mut Vec<Request<'_>>) -> Result<(), NicError> {
        self.queue_pair(queue_pair)?.post(batch)
    }

    fn allocate_window(&mut self) -> Result<WindowId, NicError> {
        let window = Window::allocate(&self.attached.domain)?;
        let id = WindowId(self.new_id()?);
        self.windows.insert(id, window);
        Ok(id)
    }

    fn bind(
        &mut self,
        queue_pair: QueuePairId,
        window: WindowId,
        work: WorkId,
        buffer: Buffer,
        access: RemoteAccess,
    ) -> Result<RemoteSlice, Rejected<Buffer>> {
        let found = self.queue_pair(queue_pair).and_then(|qp| Ok((qp, self.window(window)?)));
        match found {
            Ok((queue_pair, window)) => queue_pair.post_bind(work, window, buffer, access),
            Err(error) => Err(Rejected { error, returned: buffer }),
        }
    }

    fn invalidate(
        &mut self,
        queue_pair: QueuePairId,
        window: WindowId,
        work: WorkId,
    ) -> Result<(), NicError> {
        self.queue_pair(queue_pair)?.post_invalidate(work, self.window(window)?)
    }

    fn free_window(&mut self, window: WindowId) -> Result<Option<Buffer>, NicError> {
        let removed = self.windows.remove(&window).ok_or(NicError::UnknownWindow(window))?;
        Ok(removed.free()?)
    }

    fn poll(&mut self, into: &mut Vec<Completion>, max: usize) -> Result<usize, NicError> {
        let before = into.len();
        if !self.flushed.is_empty() {
            into.append(&mut self.flushed);
        }
        loop {
            let mut reports = std::mem::take(&mut self.reports);
            let polled = self.attached.completions.poll(&mut reports, max);
            for report in reports.drain(..) {
                self.dispatch(report, into);
            }
            self.reports = reports;
            if polled? < max {
                // The queue was empty: no report of a destroyed queue pair is left in it.
                self.retiring = 0;
                break;
            }
            // Such reports yield nothing; others may be behind them, and zero means that there are none.
            if into.len() > before || max == 0 {
                break;
            }
        }
        Ok(into.len() - before)
    }

    fn arm(&mut self, solicited_only: bool) -> Result<(), NicError> {
        Ok(self.attached.completions.arm(solicited_only)?)
    }

    fn take_wakes(&mut self) -> Result<usize, NicError> {
        Ok(self.attached.completions.channel().drain()?)
    }

    fn take_events(&mut self, into: &mut Vec<Event>) -> Result<(), NicError> {
        let number = self.number();
        let routed = self.adapter.events().route(&self.adapter.located().context, Some(number));
        self.adapter.events().take(number, into);
        routed?;
        Ok(())
    }
}

impl Drop for VerbsNic {
    fn drop(&mut self) {
        // Windows first: destroying a queue pair that has bound ones can wait for ever on some devices.
        for window in self.windows.values() {
            drop(window.free());
        }
        // Before the queue pairs: their numbers may be used again as soon as they are destroyed.
        self.adapter.events().remove_nic(self.number());
        for slot in self.queue_pairs.values() {
            // So that the device gives back the shared receive that it was filling, if it does so in time.
            let _ = any_stage!(&slot.stage, queue_pair => queue_pair.fail().is_ok());
        }
        self.queue_pairs.clear();
        // Nothing reports here any more. Shared receives whose reports nobody has read are for other NICs to use.
        let Some(shared) = &self.attached.shared_receives else { return };
        let mut reports = std::mem::take(&mut self.reports);
        while matches!(self.attached.completions.poll(&mut reports, UNREAD_AT_ONCE), Ok(1..)) {
            reports.drain(..).for_each(|report| shared.repost(report));
        }
    }
}

impl From<VerbsError> for NicError {
    fn from(error: VerbsError) -> Self {
        Self::Device(Box::new(error))
    }
}

/// 24 random bits. Not predictable from outside, so that a stale or forged packet is not taken for one of ours.
fn random_psn() -> u32 {
    // Each `RandomState` has keys of its own, seeded by the system.
    RandomState::new().hash_one(0u8) as u32 & 0x00ff_ffff
}
