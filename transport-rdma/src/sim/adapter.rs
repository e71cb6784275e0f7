//! [`Adapter`] on a simulated device.
//!
//! Owns a handle: the device is the fabric's. Invariant: the device lives as long as its adapter and the NICs made from
//! it; when the last of these handles is dropped it ends as its process would.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use super::device::{Counters, Device};
use super::fabric::Shared;
use super::nic::SimNic;
use super::receive::ReceiveQueue;
use crate::memory::{Memory, Slab};
use crate::nic::{Adapter, Limits, Mtu, NicError, Receive, Rejected};

pub(super) const NO_SHARED_QUEUE: &str = "the adapter was made without a shared receive queue";

/// A device of a fabric; they are numbered in the order in which they were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NicId(pub u32);

/// What to make a simulated device with. Nothing is clamped but completions and inline bytes: what is beyond is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimNicOptions {
    /// How many requests may be outstanding on all queue pairs of one NIC together, shared receives included.
    pub completions: u32,
    /// How many receives the shared queue holds; zero for none.
    pub shared_receives: u32,
    /// Requests of one queue.
    pub depth_max: u32,
    /// Pieces of one request.
    pub pieces_max: u32,
    /// How many inline bytes a queue pair is granted at most.
    pub inline_max: u32,
    /// How many NICs, each with a completion queue, there may be at a time.
    pub nics_max: u32,
    /// How many queue pairs there may be at a time.
    pub queue_pairs_max: u32,
    /// How many bytes may be registered at a time, like a limit on locked memory.
    pub memory_max: u64,
    /// Packet payload of the port.
    pub mtu: Mtu,
    /// Whether windows can be allocated.
    pub windows: bool,
    /// Whether the device tells of [`Event::LastReceiveConsumed`](crate::nic::Event::LastReceiveConsumed). Soft-RoCE does
    /// not, though the standard asks for it.
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
            nics_max: 1024,
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

/// A simulated device, from which NICs are made. Clones are the same device.
#[derive(Clone)]
pub struct SimAdapter {
    handle: Arc<Handle>,
}

/// What keeps a device going.
struct Handle {
    shared: Arc<Shared>,
    id: u32,
    options: SimNicOptions,
}

impl SimAdapter {
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
        Self { handle: Arc::new(Handle { shared, id, options }) }
    }

    /// The device's place in its fabric.
    pub fn id(&self) -> NicId {
        NicId(self.number())
    }

    /// What happened at this device.
    pub fn counters(&self) -> Counters {
        self.shared().lock().device(self.number()).counters
    }

    /// How many bytes are registered with this device: zero once every buffer is gone.
    pub fn registered(&self) -> u64 {
        self.shared().lock().device(self.number()).regions.registered()
    }

    /// Asks for [`Event::SharedReceiveLow`](crate::nic::Event::SharedReceiveLow), at every NIC, once fewer than `limit`
    /// shared receives are left.
    pub fn set_shared_low_mark(&self, limit: u32) -> Result<(), NicError> {
        match &mut self.shared().lock().device_mut(self.number()).receives {
            Some(receives) => {
                receives.set_low_mark(limit);
                Ok(())
            }
            None => Err(NicError::State(NO_SHARED_QUEUE)),
        }
    }

    /// How many shared receives are posted and wait for messages.
    pub fn shared_posted(&self) -> usize {
        let state = self.shared().lock();
        state.device(self.number()).receives.as_ref().map_or(0, ReceiveQueue::posted)
    }

    pub(super) fn number(&self) -> u32 {
        self.handle.id
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.handle.shared
    }

    pub(super) fn options(&self) -> &SimNicOptions {
        &self.handle.options
    }
}

impl Adapter for SimAdapter {
    type Nic = SimNic;

    fn limits(&self) -> Limits {
        let options = self.options();
        Limits {
            completions_max: options.completions,
            shared_receives_max: options.shared_receives,
            depth_max: options.depth_max,
            pieces_max: options.pieces_max,
            windows: options.windows,
        }
    }

    fn nic(&self, completions: u32, shared_receives: u32) -> Result<SimNic, NicError> {
        let completions = completions.clamp(1, self.options().completions);
        if shared_receives > completions {
            return Err(NicError::CompletionsExhausted { needed: shared_receives, free: completions });
        }
        let consumer = self.shared().lock().device_mut(self.number()).open(completions, shared_receives)?;
        Ok(SimNic::new(self.clone(), consumer, completions))
    }

    fn register(&self, memory: Memory) -> Result<Slab, Rejected<Memory>> {
        let mut state = self.shared().lock();
        let device = state.device_mut(self.number());
        if let Err(error) = device.usable() {
            return Err(Rejected { error, returned: memory });
        }
        match device.regions.register(&memory) {
            Some(region) => Ok(Slab::new(memory, Box::new(region))),
            None => Err(Rejected { error: refused("too much memory would be registered"), returned: memory }),
        }
    }

    fn post_shared(&self, batch: &mut Vec<Receive>) -> Result<(), NicError> {
        self.shared().with(|state| {
            let device = state.device_mut(self.number());
            device.usable()?;
            let domain = device.regions.domain();
            let receives = device.receives.as_mut().ok_or(NicError::State(NO_SHARED_QUEUE))?;
            receives.post(batch, domain)
        })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // What the device still owns is freed after the lock was released.
        let left = self.shared.with(|state| state.remove(self.id));
        drop(left);
    }
}

impl fmt::Debug for SimAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimAdapter({})", self.number())
    }
}
