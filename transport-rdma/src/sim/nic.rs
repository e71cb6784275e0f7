//! [`Nic`] on a simulated device.
//!
//! Owns a handle: the device is the fabric's. Invariant: a call does what a device's driver does while it is called
//! (take, refuse, hand out) and nothing else; what follows from it happens when the fabric takes its steps. Dropping the
//! handle ends its queue pairs as the end of their owner would, and with the last one the device.

use std::fmt;
use std::sync::MutexGuard;
use std::task::Waker;

use super::adapter::{NicId, SimAdapter, refused};
use super::consumer::Consumer;
use super::fabric::State;
use super::queue_pair::{Route, Stage};
use super::request::Action;
use super::schedule::QpRef;
use crate::memory::{Buffer, Memory, Slab};
use crate::nic::{
    Adapter, Completion, Endpoint, Event, Limits, Nic, NicError, QueuePairId, QueuePairSpec, Receive,
    RecvQueue, Rejected, RemoteAccess, RemoteSlice, Request, WindowId, WorkId,
};

/// A simulated NIC. It may be used from any thread.
pub struct SimNic {
    adapter: SimAdapter,
    number: u32,
    completions: u32,
}

impl SimNic {
    pub(super) fn new(adapter: SimAdapter, number: u32, completions: u32) -> Self {
        Self { adapter, number, completions }
    }

    /// The NIC for which all that a fresh device has is set aside.
    pub(super) fn only(adapter: &SimAdapter) -> Self {
        let limits = adapter.limits();
        let nic = adapter.nic(limits.completions_max, limits.shared_receives_max);
        nic.expect("a fresh device has a completion queue, and no more shared receives than fit in it")
    }

    /// The adapter that this NIC is of.
    pub fn adapter(&self) -> &SimAdapter {
        &self.adapter
    }

    /// This NIC's device, by its place in its fabric.
    pub fn id(&self) -> NicId {
        self.adapter.id()
    }

    /// Registers whom to wake when a wake-up was raised or an event came. It stands in for the descriptors that a real
    /// device has, and stays registered; `None` ends it.
    pub fn set_waker(&self, waker: Option<Waker>) {
        let old = self.consumer(|consumer| std::mem::replace(&mut consumer.waker, waker));
        // After the lock was released: a waker may do anything when it is dropped.
        drop(old);
    }

    /// Whether [`take_wakes`](Nic::take_wakes) or [`take_events`](Nic::take_events) has something to give.
    pub fn has_news(&self) -> bool {
        self.consumer(|consumer| consumer.completions.wakes() > 0 || !consumer.events.is_empty())
    }

    /// Whether [`take_wakes`](Nic::take_wakes) has something to give.
    pub fn has_wakes(&self) -> bool {
        self.consumer(|consumer| consumer.completions.wakes() > 0)
    }

    /// [`SimAdapter::set_shared_low_mark`] of this NIC's adapter.
    pub fn set_shared_low_mark(&self, limit: u32) -> Result<(), NicError> {
        self.adapter.set_shared_low_mark(limit)
    }

    /// Where the memory is that peers may write through this NIC's windows: real addresses of this process.
    pub fn granted(&self) -> Vec<u64> {
        self.lock().device(self.device()).windows.addresses(self.number)
    }

    fn at(&self, queue_pair: QueuePairId) -> QpRef {
        QpRef { nic: self.device(), qp: queue_pair.0 }
    }

    fn device(&self) -> u32 {
        self.adapter.number()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.adapter.shared().lock()
    }

    fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        self.adapter.shared().with(act)
    }

    fn consumer<R>(&self, act: impl FnOnce(&mut Consumer) -> R) -> R {
        let mut state = self.lock();
        let consumer = state.device_mut(self.device()).consumer_mut(self.number);
        act(consumer.expect("a consumer stays until its handle is dropped"))
    }
}

impl Nic for SimNic {
    fn limits(&self) -> Limits {
        Limits { completions_max: self.completions, ..self.adapter.limits() }
    }

    fn register(&mut self, memory: Memory) -> Result<Slab, Rejected<Memory>> {
        self.adapter.register(memory)
    }

    fn create_queue_pair(&mut self, spec: &QueuePairSpec) -> Result<QueuePairId, NicError> {
        self.lock().create(self.device(), self.number, spec, self.adapter.options())
    }

    fn endpoint(&self, queue_pair: QueuePairId) -> Result<Endpoint, NicError> {
        Ok(self.lock().device(self.device()).known(self.number, queue_pair)?.endpoint)
    }

    fn inline_max(&self, queue_pair: QueuePairId) -> Result<u32, NicError> {
        Ok(self.lock().device(self.device()).known(self.number, queue_pair)?.spec.inline_max)
    }

    fn accept(&mut self, queue_pair: QueuePairId, peer: &Endpoint) -> Result<(), NicError> {
        self.with(|state| {
            let way = state.find(peer);
            let device = state.device_mut(self.device());
            device.usable()?;
            let qp = device.known_mut(self.number, queue_pair)?;
            if qp.failed || qp.stage != Stage::Initial {
                return Err(NicError::State("a queue pair accepts a peer once"));
            }
            let Some(peer_at) = way else {
                state.fail(self.at(queue_pair), None);
                return Err(refused("no route leads to the peer's address"));
            };
            let mtu = peer.mtu.min(qp.endpoint.mtu);
            qp.stage = Stage::Receiving(Route { peer: peer_at, peer_psn: peer.first_psn, mtu });
            Ok(())
        })
    }

    fn activate(&mut self, queue_pair: QueuePairId) -> Result<(), NicError> {
        let mut state = self.lock();
        let device = state.device_mut(self.device());
        device.usable()?;
        let qp = device.known_mut(self.number, queue_pair)?;
        match qp.stage {
            Stage::Receiving(route) if !qp.failed => {
                qp.stage = Stage::Sending(route);
                Ok(())
            }
            _ => Err(NicError::State("a queue pair is activated once, after it accepted a peer")),
        }
    }

    fn fail_queue_pair(&mut self, queue_pair: QueuePairId) -> Result<(), NicError> {
        self.with(|state| {
            state.device(self.device()).known(self.number, queue_pair)?;
            state.fail(self.at(queue_pair), None);
            Ok(())
        })
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairId) -> Result<(), NicError> {
        self.with(|state| state.destroy(self.at(queue_pair), self.number))
    }

    fn post_recv(&mut self, queue: RecvQueue, batch: &mut Vec<Receive>) -> Result<(), NicError> {
        let RecvQueue::Own(id) = queue else { return self.adapter.post_shared(batch) };
        self.with(|state| {
            let device = state.device_mut(self.device());
            device.usable()?;
            let domain = device.regions.domain();
            let receives = device.known_mut(self.number, id)?.receives.as_mut();
            let posted = receives
                .ok_or(NicError::State("this queue pair takes its receives from the shared queue"))?
                .post(batch, domain);
            state.flush_soon(self.at(id));
            posted
        })
    }

    fn post(&mut self, queue_pair: QueuePairId, batch: &mut Vec<Request<'_>>) -> Result<(), NicError> {
        self.with(|state| {
            state.device(self.device()).can_send(self.number, queue_pair)?;
            state.post(self.at(queue_pair), batch)
        })
    }

    fn allocate_window(&mut self) -> Result<WindowId, NicError> {
        let mut state = self.lock();
        let device = state.device_mut(self.device());
        device.usable()?;
        let window = if self.adapter.options().windows { device.windows.allocate(self.number) } else { None };
        window.map(WindowId).ok_or_else(|| refused("it has no window left, or none at all"))
    }

    fn bind(
        &mut self,
        queue_pair: QueuePairId,
        window: WindowId,
        work: WorkId,
        buffer: Buffer,
        access: RemoteAccess,
    ) -> Result<RemoteSlice, Rejected<Buffer>> {
        self.with(|state| {
            let device = state.device_mut(self.device());
            if let Err(error) = device.can_bind(self.number, queue_pair, window, &buffer) {
                return Err(Rejected { error, returned: buffer });
            }
            let slice = device
                .windows
                .bind(window.0, queue_pair.0, buffer, access)
                .expect("the window was checked, and a buffer of this domain is of a region of this device");
            state.post_local(self.at(queue_pair), work, Action::Bind { window: window.0, key: slice.key });
            Ok(slice)
        })
    }

    fn invalidate(
        &mut self,
        queue_pair: QueuePairId,
        window: WindowId,
        work: WorkId,
    ) -> Result<(), NicError> {
        self.with(|state| {
            let device = state.device_mut(self.device());
            device.can_post_about(self.number, queue_pair, window)?;
            let key = device.windows.invalidate(window.0)?;
            state.post_local(self.at(queue_pair), work, Action::Invalidate { window: window.0, key });
            Ok(())
        })
    }

    fn free_window(&mut self, window: WindowId) -> Result<Option<Buffer>, NicError> {
        let freed = self.lock().device_mut(self.device()).windows.free(self.number, window.0);
        freed.ok_or(NicError::UnknownWindow(window))
    }

    fn poll(&mut self, into: &mut Vec<Completion>, max: usize) -> Result<usize, NicError> {
        Ok(self.with(|state| state.device_mut(self.device()).poll(self.number, into, max)))
    }

    fn arm(&mut self, solicited_only: bool) -> Result<(), NicError> {
        self.with(State::pass_arming);
        self.consumer(|consumer| consumer.completions.arm(solicited_only));
        Ok(())
    }

    fn take_wakes(&mut self) -> Result<usize, NicError> {
        Ok(self.consumer(|consumer| consumer.completions.take_wakes()))
    }

    fn take_events(&mut self, into: &mut Vec<Event>) -> Result<(), NicError> {
        self.consumer(|consumer| consumer.events.take(into));
        Ok(())
    }
}

impl Drop for SimNic {
    fn drop(&mut self) {
        // What it still owns is freed after the lock was released: a waker may do anything when dropped.
        let left = self.with(|state| state.close(self.device(), self.number));
        drop(left);
    }
}

impl fmt::Debug for SimNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimNic({} of {:?})", self.number, self.adapter)
    }
}
