//! What waits for a credit: messages that are being filled, and items of the link's own.
//!
//! Owns [`Outbox`]. Frames go into the last message, in the order in which they were pushed, and messages
//! leave first to last, so no frame overtakes another. Items of the link's own go into whichever message
//! leaves next: a grant must not wait behind megabytes. Only a release keeps its place behind what was queued
//! before it, since that may name the landing. Invariant: every message keeps [`CONTROL_ROOM`] for such
//! items, so they leave however many frames come. Never: decides whether a message may go.

use std::collections::VecDeque;

use super::credit::Total;
use super::message::Message;
use super::wire::{CONTROL_ROOM, HEADER_LEN, Item, LandingId, SLICE_ITEM_LEN, TransferId};

#[derive(Debug)]
struct Batch<M> {
    memory: M,
    filled: usize,
    /// How many frames were pushed up to the last one in it.
    frames: u64,
}

/// A message that is complete.
#[derive(Debug, PartialEq, Eq)]
pub struct Outbound<M> {
    /// Where it is, from the first byte.
    pub memory: M,
    /// Its length in bytes.
    pub len: usize,
}

/// What waits for a credit.
#[derive(Debug)]
pub(super) struct Outbox<M> {
    batches: VecDeque<Batch<M>>,
    /// Messages taken out of `batches`.
    taken: u64,
    /// Longest message.
    capacity: usize,
    /// Frames pushed, and those of them that have left.
    pushed: u64,
    delivered: u64,
    /// Items that go with the next message.
    urgent: VecDeque<Item<'static>>,
    /// Releases, each with the number of messages that must have been taken when it goes, and the body that
    /// it ends.
    releases: VecDeque<(u64, LandingId, Option<TransferId>)>,
}

impl<M: AsMut<[u8]>> Outbox<M> {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            batches: VecDeque::new(),
            taken: 0,
            capacity,
            pushed: 0,
            delivered: 0,
            urgent: VecDeque::new(),
            releases: VecDeque::new(),
        }
    }

    /// Gives up everything that waits.
    #[must_use]
    pub(super) fn close(&mut self) -> impl Sized + use<M> {
        self.urgent.clear();
        self.releases.clear();
        std::mem::take(&mut self.batches)
    }

    /// Longest message, in bytes.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// The most that a frame or a piece can take in one message.
    pub(super) fn longest_item(&self) -> usize {
        self.capacity - HEADER_LEN - CONTROL_ROOM
    }

    /// Messages that wait, those of items alone not counted.
    pub(super) fn batches(&self) -> usize {
        self.batches.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty() && self.urgent.is_empty() && self.releases.is_empty()
    }

    pub(super) fn pushed(&self) -> u64 {
        self.pushed
    }

    pub(super) fn delivered(&self) -> u64 {
        self.delivered
    }

    pub(super) fn releases(&self) -> usize {
        self.releases.len()
    }

    /// Appends a frame, or the next piece of a body, of `len` bytes with everything around it.
    pub(super) fn push(
        &mut self,
        len: usize,
        is_frame: bool,
        memory: impl FnOnce() -> M,
        write: impl FnOnce(&mut Message<'_>),
    ) {
        debug_assert!(len <= self.longest_item(), "the endpoint sends what is longer in another way");
        let room = self.capacity - CONTROL_ROOM;
        if self.batches.back().is_none_or(|last| last.filled + len > room) {
            let batch = Batch { memory: memory(), filled: HEADER_LEN, frames: self.pushed };
            self.batches.push_back(batch);
        }
        let Some(last) = self.batches.back_mut() else { return };
        let mut message = Message::resume(&mut last.memory.as_mut()[..room], last.filled);
        write(&mut message);
        last.filled = message.filled();
        self.pushed += u64::from(is_frame);
        last.frames = self.pushed;
    }

    /// Lets an item go with the next message.
    pub(super) fn push_urgent(&mut self, item: Item<'static>) {
        self.urgent.push_back(item);
    }

    /// Lets a release go behind everything that waits.
    pub(super) fn push_release(&mut self, landing: LandingId, body: Option<TransferId>) {
        self.releases.push_back((self.taken + self.batches.len() as u64, landing, body));
    }

    /// The next message, with the credits that it carries; `left` sees the items that go with it, and the
    /// body that a release ends. Without anything to say it is a bare one.
    pub(super) fn take(
        &mut self,
        total: Total,
        wants_credits: bool,
        memory: impl FnOnce() -> M,
        mut left: impl FnMut(Item<'static>, Option<TransferId>),
    ) -> Outbound<M> {
        let batch = self.batches.pop_front();
        self.taken += u64::from(batch.is_some());
        let mut batch =
            batch.unwrap_or_else(|| Batch { memory: memory(), filled: HEADER_LEN, frames: self.delivered });
        self.delivered = batch.frames;
        let mut message = Message::resume(&mut batch.memory.as_mut()[..self.capacity], batch.filled);
        while message.room() >= SLICE_ITEM_LEN
            && let Some((item, body)) = self.next_item()
        {
            message.put(&item);
            left(item, body);
        }
        let len = message.finish(total, wants_credits);
        Outbound { memory: batch.memory, len }
    }

    fn next_item(&mut self) -> Option<(Item<'static>, Option<TransferId>)> {
        if let Some(item) = self.urgent.pop_front() {
            return Some((item, None));
        }
        let &(_, landing, body) = self.releases.front().filter(|(after, ..)| *after <= self.taken)?;
        self.releases.pop_front();
        Some((Item::Release { landing }, body))
    }
}
