//! Receives that are posted to a simulated queue: a queue pair's own, or the shared one.
//!
//! Owns posted buffers. Invariants: receives are taken in the order they were posted; a slot is occupied from posting
//! until its report is polled, so a consumer that does not poll fills the queue, as on a device.
//! Never copies or reads what arrives.

use std::collections::VecDeque;

use crate::memory::Buffer;
use crate::nic::{NicError, Receive, WorkId};

pub(super) struct ReceiveQueue {
    depth: usize,
    slots: Vec<Option<(WorkId, Buffer)>>,
    free: Vec<u32>,
    posted: VecDeque<u32>,
    low_mark: Option<usize>,
}

impl ReceiveQueue {
    pub(super) fn new(depth: u32) -> Self {
        let (slots, free, posted) = (Vec::new(), Vec::new(), VecDeque::new());
        Self { depth: depth as usize, slots, free, posted, low_mark: None }
    }

    /// Takes receives in order; those that are not taken stay in `batch`.
    pub(super) fn post(&mut self, batch: &mut Vec<Receive>, domain: u64) -> Result<(), NicError> {
        let room = self.depth - (self.slots.len() - self.free.len());
        let ours = batch.iter().take(room).take_while(|receive| receive.buffer.domain() == domain).count();
        let refused = match batch.len() - ours {
            0 => None,
            _ if ours == room => Some(NicError::Full),
            _ => Some(NicError::ForeignMemory),
        };
        for receive in batch.drain(..ours) {
            let taken = Some((receive.work, receive.buffer));
            let slot = match self.free.pop() {
                Some(slot) => {
                    self.slots[slot as usize] = taken;
                    slot
                }
                None => {
                    self.slots.push(taken);
                    self.slots.len() as u32 - 1
                }
            };
            self.posted.push_back(slot);
        }
        refused.map_or(Ok(()), Err)
    }

    pub(super) fn posted(&self) -> usize {
        self.posted.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    /// The next receive, for a message to use up.
    pub(super) fn consume(&mut self) -> Option<u32> {
        self.posted.pop_front()
    }

    /// Where a message that uses this receive is written to.
    pub(super) fn buffer_mut(&mut self, slot: u32) -> Option<&mut Buffer> {
        self.slots.get_mut(slot as usize)?.as_mut().map(|(_, buffer)| buffer)
    }

    /// Frees the slot of a receive that was reported.
    pub(super) fn finish(&mut self, slot: u32) -> Option<(WorkId, Buffer)> {
        let taken = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(taken)
    }

    /// Lets a receive that was used up be used again, after all others.
    pub(super) fn put_back(&mut self, slot: u32) {
        if let Some((_, buffer)) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) {
            buffer.set_filled(0);
            self.posted.push_back(slot);
        }
    }

    /// Everything that is left: what was used up but not polled, then the rest in the order it was posted.
    pub(super) fn into_left(mut self) -> Vec<(WorkId, Buffer)> {
        let unused: Vec<_> =
            self.posted.iter().filter_map(|&slot| self.slots[slot as usize].take()).collect();
        self.slots.into_iter().flatten().chain(unused).collect()
    }

    pub(super) fn set_low_mark(&mut self, limit: u32) {
        self.low_mark = Some(limit as usize);
    }

    /// Whether the queue has fallen below the mark. Tells once.
    pub(super) fn is_newly_low(&mut self) -> bool {
        self.low_mark.take_if(|limit| self.posted.len() < *limit).is_some()
    }
}
