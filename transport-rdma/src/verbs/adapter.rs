//! [`Adapter`] on verbs: one open device, one protection domain, one shared receive queue.
//!
//! Owns what the NICs of one device share. Invariant: it lives as long as the last of them. Never waits.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::completion::{CompletionChannel, CompletionQueue};
use super::error::{Unavailable, VerbsError};
use super::nic::VerbsNic;
use super::probe::{Located, locate};
use super::receive_queue::SharedReceiveQueue;
use super::region::ProtectionDomain;
use super::router::EventRouter;
use super::settings::DeviceChoice;
use crate::memory::{Memory, Slab};
use crate::nic::{Adapter, Limits, NicError, Receive, Rejected};

pub(super) const NO_SHARED_QUEUE: &str = "the adapter was opened without a shared receive queue";

/// An open device. Clones are the same one.
#[derive(Clone)]
pub struct VerbsAdapter {
    opened: Arc<Opened>,
}

struct Opened {
    shared_receives: Option<Arc<SharedReceiveQueue>>,
    domain: Arc<ProtectionDomain>,
    located: Located,
    limits: Limits,
    events: EventRouter,
}

impl VerbsAdapter {
    /// Opens the first usable device, with a shared queue of `shared_receives` receives, or none for zero; clamped to
    /// the device.
    pub fn open(choice: &DeviceChoice, shared_receives: u32) -> Result<Self, Unavailable> {
        let located = locate(choice)?;
        let attributes = located.context.attributes()?;
        let domain = ProtectionDomain::allocate(&located.context)?;
        let depth = shared_receives.min(attributes.shared_receives_max);
        let shared_receives = (depth > 0).then(|| SharedReceiveQueue::create(&domain, depth)).transpose()?;
        let limits = Limits {
            completions_max: attributes.completions_max,
            shared_receives_max: depth,
            depth_max: attributes.depth_max,
            pieces_max: attributes.pieces_max,
            windows: attributes.windows,
        };
        let events = EventRouter::default();
        Ok(Self { opened: Arc::new(Opened { shared_receives, domain, located, limits, events }) })
    }

    /// The device, port and address in use.
    pub fn located(&self) -> &Located {
        &self.opened.located
    }

    /// The domain that all memory of this adapter is registered in.
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.opened.domain
    }

    /// Asks for [`Event::SharedReceiveLow`](crate::nic::Event::SharedReceiveLow), at every NIC, once fewer than `limit`
    /// shared receives are left.
    pub fn set_shared_low_mark(&self, limit: u32) -> Result<(), NicError> {
        match self.shared_receives() {
            Some(shared) => Ok(shared.set_low_mark(limit)?),
            None => Err(NicError::State(NO_SHARED_QUEUE)),
        }
    }

    /// The descriptor that is readable when an asynchronous event waits, at the device, for any of the NICs. One task
    /// should watch it and call [`route_events`](Self::route_events).
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.located().context.async_fd()
    }

    /// Moves waiting events to the NICs that they concern, and wakes who registered with
    /// [`VerbsNic::set_event_waker`]. `true` means that there may be more: call again before sleeping.
    pub fn route_events(&self) -> Result<bool, NicError> {
        Ok(self.events().route(&self.located().context, None)?)
    }

    /// A completion queue of at least so many entries, clamped to the device, with a channel of its own.
    pub(super) fn completion_queue(&self, entries: u32) -> Result<Arc<CompletionQueue>, VerbsError> {
        let channel = CompletionChannel::create(&self.located().context)?;
        CompletionQueue::create(&channel, entries.min(self.opened.limits.completions_max).max(1))
    }

    pub(super) fn shared_receives(&self) -> Option<&Arc<SharedReceiveQueue>> {
        self.opened.shared_receives.as_ref()
    }

    pub(super) fn events(&self) -> &EventRouter {
        &self.opened.events
    }
}

impl Adapter for VerbsAdapter {
    type Nic = VerbsNic;

    fn limits(&self) -> Limits {
        self.opened.limits
    }

    fn nic(&self, completions: u32, shared_receives: u32) -> Result<VerbsNic, NicError> {
        let queue = self.completion_queue(completions)?;
        if shared_receives > queue.capacity() {
            let (needed, free) = (shared_receives, queue.capacity());
            return Err(NicError::CompletionsExhausted { needed, free });
        }
        Ok(VerbsNic::new(self, queue, shared_receives))
    }

    fn register(&self, memory: Memory) -> Result<Slab, Rejected<Memory>> {
        let registered = self.domain().register(memory);
        registered.map_err(|(error, returned)| Rejected { error: error.into(), returned })
    }

    fn post_shared(&self, batch: &mut Vec<Receive>) -> Result<(), NicError> {
        match self.shared_receives() {
            Some(shared) => shared.post(batch),
            None => Err(NicError::State(NO_SHARED_QUEUE)),
        }
    }
}

impl fmt::Debug for VerbsAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerbsAdapter({})", self.located())
    }
}
