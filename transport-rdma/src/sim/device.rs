//! What one simulated device owns.
//!
//! Invariant: queue pairs and windows belong to one consumer each; domain and shared receive queue are everybody's.

use super::adapter::SimNicOptions;
use super::consumer::Consumer;
use super::keys::{Regions, Windows};
use super::queue_pair::QueuePair;
use super::receive::ReceiveQueue;
use super::request::{Action, Entry};
use crate::memory::new_domain;
use crate::nic::{Completion, Payload, QueuePairId, Status};

/// How many inline vectors are kept to be used again.
const SPARE_MAX: usize = 256;

/// What happened at one device, in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Requests that were posted, of every kind but receives.
    pub posted: u64,
    /// Messages that arrived, each counted once.
    pub arrived: u64,
    /// Bytes that arrived.
    pub bytes: u64,
    /// Refusals of this device's sends because the peer had no receive. A transport with credits keeps it at zero.
    pub not_ready: u64,
    /// How often this device sent again what had not been acknowledged.
    pub repeats: u64,
    /// Writes of peers that were not allowed.
    pub refused: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    Running,
    Frozen,
    Dead,
}

pub(super) struct Device {
    pub(super) queue_pairs: Vec<Option<Box<QueuePair>>>,
    /// The number of queue pair 0.
    pub(super) first_number: u32,
    pub(super) regions: Regions,
    pub(super) windows: Windows,
    /// The shared receive queue.
    pub(super) receives: Option<ReceiveQueue>,
    pub(super) consumers: Vec<Option<Consumer>>,
    pub(super) consumers_max: usize,
    pub(super) health: Health,
    pub(super) link_up: bool,
    pub(super) withholds_flushes: bool,
    pub(super) last_receive_event: bool,
    pub(super) failed_sends_wake: bool,
    pub(super) counters: Counters,
    /// Vectors for inline bytes, to be used again.
    pub(super) spare: Vec<Vec<u8>>,
}

impl Device {
    pub(super) fn new(nic: u32, start: u32, options: &SimNicOptions) -> Self {
        let receives = (options.shared_receives > 0).then(|| ReceiveQueue::new(options.shared_receives));
        Self {
            queue_pairs: Vec::new(),
            first_number: 1 + start,
            regions: Regions::new(nic, new_domain(), options.memory_max),
            windows: Windows::new(1 + start),
            receives,
            consumers: Vec::new(),
            consumers_max: options.nics_max as usize,
            health: Health::Running,
            link_up: true,
            withholds_flushes: false,
            last_receive_event: options.last_receive_event,
            failed_sends_wake: options.failed_sends_wake,
            counters: Counters::default(),
            spare: Vec::new(),
        }
    }

    /// Takes out everything that owns memory.
    pub(super) fn empty(&mut self) -> impl Sized + use<> {
        let queue_pairs = std::mem::take(&mut self.queue_pairs);
        let windows = std::mem::replace(&mut self.windows, Windows::new(0));
        (queue_pairs, windows, std::mem::take(&mut self.consumers), self.receives.take())
    }

    pub(super) fn qp(&self, id: u32) -> Option<&QueuePair> {
        self.queue_pairs.get(id as usize)?.as_deref()
    }

    pub(super) fn qp_mut(&mut self, id: u32) -> Option<&mut QueuePair> {
        self.queue_pairs.get_mut(id as usize)?.as_deref_mut()
    }

    pub(super) fn is_running(&self) -> bool {
        self.health == Health::Running
    }

    pub(super) fn finish(&mut self, mut entry: Entry, qp: u32, failure: Option<Status>) -> Completion {
        if entry.inline.capacity() > 0 && self.spare.len() < SPARE_MAX {
            let mut inline = std::mem::take(&mut entry.inline);
            inline.clear();
            self.spare.push(inline);
        }
        let action = entry.action;
        let mut completion = entry.finish(QueuePairId(qp), failure);
        if let Action::Invalidate { window, .. } = action {
            match failure {
                None => {
                    let buffer = self.windows.invalidated(window);
                    completion.payload = buffer.map_or(Payload::Empty, Payload::buffer);
                }
                Some(_) => self.windows.still_bound(window),
            }
        }
        completion
    }
}
