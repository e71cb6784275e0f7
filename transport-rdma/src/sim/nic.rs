//! [`Nic`] on a simulated device.
//!
//! Owns a handle: the device is the fabric's. Invariant: a call does what a device's driver does while it is called
//! (take, refuse, hand out) and nothing else; what follows from it happens when the fabric takes its steps. Dropping the
//! handle ends the device as the end of its process would.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use super::device::Device;
use super::fabric::Shared;
use super::queue_pair::{Route, Stage};
use super::request::Action;
use super::schedule::QpRef;
use crate::memory::{Buffer, Memory, Slab};
use crate::nic::{
    Completion, Endpoint, Event, Limits, Mtu, Nic, NicError, QueuePairId, QueuePairSpec, Receive, RecvQueue,
    Rejected, RemoteAccess, RemoteSlice, Request, WindowId, WorkId,
};

pub(super) const NO_SHARED_QUEUE: &str = "the NIC was made without a shared receive queue";

/// A NIC of a fabric; they are numbered in the order in which they were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NicId(pub u32);

/// What to make a simulated NIC with. Nothing is clamped but inline bytes: what is beyond is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimNicOptions {
    /// How many requests may be outstanding on all queue pairs together, shared receives included.
    pub completions: u32,
    /// How many receives the shared queue holds; zero for none.
    pub shared_receives: u32,
    /// Requests of one queue.
    pub depth_max: u32,
    /// Pieces of one request.
    pub pieces_max: u32,
    /// How many inline bytes a queue pair is granted at most.
    pub inline_max: u32,
    /// How many queue pairs there may be at a time.
    pub queue_pairs_max: u32,
    /// How many bytes may be registered at a time, like a limit on locked memory.
    pub memory_max: u64,
    /// Packet payload of the port.
    pub mtu: Mtu,
    /// Whether windows can be allocated.
    pub windows: bool,
    /// Whether the device tells of [`Event::LastReceiveConsumed`]. Soft-RoCE does not, though the standard asks for it.
    pub last_receive_event: bool,
    /// Whether a failed send-side request wakes those who armed for solicited completions only. Soft-RoCE does not wake
    /// them, though the standard asks for it.
    pub failed_sends_wake: bool,
}

impl Default for SimNicOptions {
    fn default() -> Self {
        Self {
            completions: 16 * 1024,
            shared_receives: 1024,
            depth_max: 16 * 1024,
            pieces_max: 16,
            inline_max: 256,
            queue_pairs_max: 1024,
            memory_max: u64::MAX,
            mtu: Mtu::B1024,
            windows: true,
            last_receive_event: false,
            failed_sends_wake: false,
        }
    }
}

/// Why a simulated device refused.
#[derive(Debug)]
struct Refused(&'static str);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the simulated device refused: {}", self.0)
    }
}

impl Error for Refused {}

pub(super) fn refused(why: &'static str) -> NicError {
    NicError::Device(Box::new(Refused(why)))
}

/// A simulated NIC. It may be used from any thread.
pub struct SimNic {
    shared: Arc<Shared>,
    id: u32,
    options: SimNicOptions,
}

impl SimNic {
    pub(super) fn add(shared: Arc<Shared>, options: &SimNicOptions) -> Self {
        let mut options = *options;
        options.completions = options.completions.max(1);
        options.shared_receives = options.shared_receives.min(options.completions);
        let id = shared.with(|state| {
            let id = state.devices.len() as u32;
            let start = state.schedule.up_to(0xffff) as u32;
            state.devices.push(Device::new(id, start, &options));
            id
        });
        Self { shared, id, options }
    }

    /// This NIC's place in its fabric.
    pub fn id(&self) -> NicId {
        NicId(self.id)
    }

    /// Registers whom to wake when a wake-up was raised or an event came. It stands in for the descriptors that a real
    /// device has, and stays registered; `None` ends it.
    pub fn set_waker(&self, waker: Option<Waker>) {
        self.shared.lock().device_mut(self.id).waker = waker;
    }

    /// Whether [`take_wakes`](Nic::take_wakes) or [`take_events`](Nic::take_events) has something to give.
    pub fn has_news(&self) -> bool {
        let state = self.shared.lock();
        let device = state.device(self.id);
        device.completions.wakes() > 0 || !device.events.is_empty()
    }

    /// Asks for [`Event::SharedReceiveLow`] once fewer than `limit` shared receives are left.
    pub fn set_shared_low_mark(&self, limit: u32) -> Result<(), NicError> {
        match &mut self.shared.lock().device_mut(self.id).shared {
            Some(shared) => {
                shared.set_low_mark(limit);
                Ok(())
            }
            None => Err(NicError::State(NO_SHARED_QUEUE)),
        }
    }

    fn at(&self, queue_pair: QueuePairId) -> QpRef {
        QpRef { nic: self.id, qp: queue_pair.0 }
    }
}

impl Nic for SimNic {
    fn limits(&self) -> Limits {
        Limits {
            completions_max: self.options.completions,
            shared_receives_max: self.options.shared_receives,
            depth_max: self.options.depth_max,
            pieces_max: self.options.pieces_max,
            windows: self.options.windows,
        }
    }

    fn register(&mut self, memory: Memory) -> Result<Slab, Rejected<Memory>> {
        let mut state = self.shared.lock();
        let device = state.device_mut(self.id);
        if let Err(error) = device.usable() {
            return Err(Rejected { error, returned: memory });
        }
        match device.regions.register(&memory) {
            Some(region) => Ok(Slab::new(memory, Box::new(region))),
            None => Err(Rejected { error: refused("too much memory would be registered"), returned: memory }),
        }
    }

    fn create_queue_pair(&mut self, spec: &QueuePairSpec) -> Result<QueuePairId, NicError> {
        self.shared.lock().create(self.id, spec, &self.options)
    }

    fn endpoint(&self, queue_pair: QueuePairId) -> Result<Endpoint, NicError> {
        Ok(self.shared.lock().device(self.id).known(queue_pair)?.endpoint)
    }

    fn inline_max(&self, queue_pair: QueuePairId) -> Result<u32, NicError> {
        Ok(self.shared.lock().device(self.id).known(queue_pair)?.spec.inline_max)
    }

    fn accept(&mut self, queue_pair: QueuePairId, peer: &Endpoint) -> Result<(), NicError> {
        self.shared.with(|state| {
            let way = state.find(peer);
            let device = state.device_mut(self.id);
            device.usable()?;
            let qp = device.known_mut(queue_pair)?;
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
        let mut state = self.shared.lock();
        let device = state.device_mut(self.id);
        device.usable()?;
        let qp = device.known_mut(queue_pair)?;
        match qp.stage {
            Stage::Receiving(route) if !qp.failed => {
                qp.stage = Stage::Sending(route);
                Ok(())
            }
            _ => Err(NicError::State("a queue pair is activated once, after it accepted a peer")),
        }
    }

    fn fail_queue_pair(&mut self, queue_pair: QueuePairId) -> Result<(), NicError> {
        self.shared.with(|state| {
            state.device(self.id).known(queue_pair)?;
            state.fail(self.at(queue_pair), None);
            Ok(())
        })
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairId) -> Result<(), NicError> {
        self.shared.with(|state| state.destroy(self.at(queue_pair)))
    }

    fn post_recv(&mut self, queue: RecvQueue, batch: &mut Vec<Receive>) -> Result<(), NicError> {
        self.shared.with(|state| {
            let device = state.device_mut(self.id);
            device.usable()?;
            let domain = device.regions.domain();
            match queue {
                RecvQueue::Shared => {
                    let shared = device.shared.as_mut().ok_or(NicError::State(NO_SHARED_QUEUE))?;
                    shared.post(batch, domain)
                }
                RecvQueue::Own(id) => {
                    let receives = device.known_mut(id)?.receives.as_mut();
                    let posted = receives
                        .ok_or(NicError::State("this queue pair takes its receives from the shared queue"))?
                        .post(batch, domain);
                    state.flush_soon(self.at(id));
                    posted
                }
            }
        })
    }

    fn post(&mut self, queue_pair: QueuePairId, batch: &mut Vec<Request<'_>>) -> Result<(), NicError> {
        self.shared.with(|state| {
            state.device(self.id).can_send(queue_pair)?;
            state.post(self.at(queue_pair), batch)
        })
    }

    fn allocate_window(&mut self) -> Result<WindowId, NicError> {
        let mut state = self.shared.lock();
        let device = state.device_mut(self.id);
        device.usable()?;
        let window = if self.options.windows { device.windows.allocate() } else { None };
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
        self.shared.with(|state| {
            let device = state.device_mut(self.id);
            if let Err(error) = device.can_bind(queue_pair, window, &buffer) {
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
        self.shared.with(|state| {
            let device = state.device_mut(self.id);
            device.can_post_about(queue_pair, window)?;
            let key = device.windows.invalidate(window.0)?;
            state.post_local(self.at(queue_pair), work, Action::Invalidate { window: window.0, key });
            Ok(())
        })
    }

    fn free_window(&mut self, window: WindowId) -> Result<Option<Buffer>, NicError> {
        let freed = self.shared.lock().device_mut(self.id).windows.free(window.0);
        freed.ok_or(NicError::UnknownWindow(window))
    }

    fn poll(&mut self, into: &mut Vec<Completion>, max: usize) -> Result<usize, NicError> {
        Ok(self.shared.with(|state| state.device_mut(self.id).poll(into, max)))
    }

    fn arm(&mut self, solicited_only: bool) -> Result<(), NicError> {
        self.shared.lock().device_mut(self.id).completions.arm(solicited_only);
        Ok(())
    }

    fn take_wakes(&mut self) -> Result<usize, NicError> {
        Ok(self.shared.lock().device_mut(self.id).completions.take_wakes())
    }

    fn take_events(&mut self, into: &mut Vec<Event>) -> Result<(), NicError> {
        into.extend(self.shared.lock().device_mut(self.id).events.drain(..));
        Ok(())
    }
}

impl Drop for SimNic {
    fn drop(&mut self) {
        // What the device still owns is freed after the lock was released: a waker may do anything when dropped.
        let left = self.shared.with(|state| state.remove(self.id));
        drop(left);
    }
}

impl fmt::Debug for SimNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimNic({})", self.id)
    }
}
