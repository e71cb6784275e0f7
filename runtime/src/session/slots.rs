//! The calls that are open, by slot and generation.
//!
//! Owns the table from [`CallId`] to call. Invariant: a slot's generation only goes forward, so a frame is for the open
//! call, for one that was, or for one that never was. A slot keeps its inbox when its call ends, so that calls
//! allocate nothing once a connection is warm.

use std::collections::VecDeque;
use std::task::Waker;

use bytes::Bytes;

use super::frame::CallId;
use super::half::Half;
use super::head::Metadata;
use super::window::{ReceiveWindow, SendWindow};
use crate::deadline::Deadline;
use crate::invoke::End;
use crate::link::Body;

/// Room for parts that a slot keeps between its calls: enough for a prompt reader, little enough for every slot.
const KEEP_PARTS: usize = 8;

/// An open call.
pub(super) struct Open {
    pub(super) send: Half,
    pub(super) receive: Half,
    pub(super) send_window: SendWindow,
    pub(super) receive_window: ReceiveWindow,
    /// As a client: when the call ends by itself.
    pub(super) deadline: Option<Deadline>,
    /// The link's position when the call began.
    pub(super) began: u64,
    /// What the message that came with the call is charged until its handler asks for more or the call ends.
    pub(super) held: u64,
    /// Whether this side ended the call by itself. The peer may not know yet: what it still sends is ignored.
    pub(super) deaf: bool,
    /// Whether its writer is in the crowd that waits for room in the link.
    pub(super) in_crowd: bool,
    pub(super) reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
    pub(super) observer: Option<Waker>,
}

impl Open {
    /// A call of which nothing else is known yet.
    pub(super) fn new(
        send: Half,
        receive: Half,
        send_window: SendWindow,
        receive_window: ReceiveWindow,
    ) -> Self {
        Self {
            send,
            receive,
            send_window,
            receive_window,
            deadline: None,
            began: 0,
            held: 0,
            deaf: false,
            in_crowd: false,
            reader: None,
            writer: None,
            observer: None,
        }
    }
}

/// A part that waits for its reader.
pub(super) struct Arrived {
    pub(super) head: Option<Metadata>,
    pub(super) body: Body,
    pub(super) end: Option<End>,
    pub(super) cost: u64,
}

impl Arrived {
    pub(super) fn end(end: End) -> Self {
        Self { head: None, body: Body::None, end: Some(end), cost: 0 }
    }

    /// Whether its body was announced and is not there.
    pub(super) fn is_unlanded(&self) -> bool {
        matches!(self.body, Body::Later(_))
    }
}

#[derive(Default)]
pub(super) struct Slot {
    generation: u16,
    pub(super) open: Option<Open>,
    pub(super) inbox: VecDeque<Arrived>,
}

/// What a call id refers to.
pub(super) enum Found<'a> {
    Open(&'a mut Open, &'a mut VecDeque<Arrived>),
    /// The call is over. Frames for it may still be under way.
    Over,
    /// No such call was ever opened.
    Never,
}

#[derive(Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u16>,
    open: usize,
}

impl Slots {
    /// Calls that are open.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// Whether [`reserve`](Self::reserve) would find a slot.
    #[inline]
    pub(super) fn has_free(&self, max_calls: u16) -> bool {
        !self.free.is_empty() || self.slots.len() < usize::from(max_calls)
    }

    /// As a client: the id of the next call. Nothing is taken until the caller [`insert`](Self::insert)s it.
    #[inline]
    pub(super) fn reserve(&mut self, max_calls: u16) -> Option<CallId> {
        if self.free.is_empty() && self.slots.len() < usize::from(max_calls) {
            self.free.push(self.slots.len() as u16);
            self.slots.push(Slot::default());
        }
        let slot = *self.free.last()?;
        Some(CallId::new(slot, next(self.slots[usize::from(slot)].generation)))
    }

    /// As a server: moves the slot to the generation that the client opened; `false` when that is not the next one.
    #[must_use]
    #[inline]
    pub(super) fn advance(&mut self, id: CallId, max_calls: u16) -> bool {
        if id.slot() >= max_calls {
            return false;
        }
        let index = usize::from(id.slot());
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, Slot::default);
        }
        let slot = &mut self.slots[index];
        if slot.open.is_some() || id.generation() != next(slot.generation) {
            return false;
        }
        slot.generation = id.generation();
        true
    }

    /// Opens a call in a slot that was reserved or advanced.
    #[inline]
    pub(super) fn insert(&mut self, id: CallId, open: Open) {
        self.free.pop_if(|slot| *slot == id.slot());
        let slot = &mut self.slots[usize::from(id.slot())];
        slot.generation = id.generation();
        slot.open = Some(open);
        self.open += 1;
    }

    #[inline]
    pub(super) fn find(&mut self, id: CallId) -> Found<'_> {
        let Some(slot) = self.slots.get_mut(usize::from(id.slot())) else { return Found::Never };
        if id.generation() == slot.generation {
            return match &mut slot.open {
                Some(open) => Found::Open(open, &mut slot.inbox),
                None if slot.generation == 0 => Found::Never,
                None => Found::Over,
            };
        }
        let age = slot.generation.wrapping_sub(id.generation());
        if id.generation() != 0 && slot.generation != 0 && age < 0x8000 { Found::Over } else { Found::Never }
    }

    /// Closes a call, if it is open, after `last` has seen it and the parts that nobody read.
    #[inline]
    pub(super) fn remove(
        &mut self,
        id: CallId,
        reuse: bool,
        last: impl FnOnce(&mut Open, &VecDeque<Arrived>),
    ) {
        let Some(slot) = self.slots.get_mut(usize::from(id.slot())) else { return };
        let Some(open) = slot.open.as_mut().filter(|_| slot.generation == id.generation()) else { return };
        last(open, &slot.inbox);
        slot.open = None;
        if !slot.inbox.is_empty() {
            slot.inbox.clear();
        }
        if slot.inbox.capacity() > KEEP_PARTS {
            slot.inbox.shrink_to(KEEP_PARTS);
        }
        self.open -= 1;
        if reuse {
            self.free.push(id.slot());
        }
    }

    /// Every open call.
    pub(super) fn ids(&self) -> Vec<CallId> {
        let open = self.slots.iter().enumerate().filter(|(_, slot)| slot.open.is_some());
        open.map(|(index, slot)| CallId::new(index as u16, slot.generation)).collect()
    }
}

/// The generation after `generation`; never zero, which only a fresh slot has.
#[inline]
fn next(generation: u16) -> u16 {
    generation.checked_add(1).unwrap_or(1)
}

/// The bytes of a body that is there.
#[inline]
pub(super) fn landed(body: Body) -> Option<Bytes> {
    match body {
        Body::Here(bytes) => Some(bytes),
        Body::None | Body::Later(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> Open {
        Open::new(Half::Open, Half::Open, SendWindow::new(1), ReceiveWindow::new(1))
    }

    #[test]
    fn a_reused_slot_tells_old_frames_from_new_ones_even_after_its_generations_wrapped() {
        let mut slots = Slots::default();
        let mut previous: Option<CallId> = None;
        for _ in 0..70_000 {
            let id = slots.reserve(1).expect("the only slot is free");
            assert_ne!(id, CallId::CONNECTION);
            slots.insert(id, call());
            assert!(matches!(slots.find(id), Found::Open(..)));
            assert!(slots.reserve(1).is_none());
            if let Some(previous) = previous {
                assert!(matches!(slots.find(previous), Found::Over));
            }
            let future = CallId::new(id.slot(), next(id.generation()));
            assert!(matches!(slots.find(future), Found::Never));
            slots.remove(id, true, |_, _| {});
            assert!(matches!(slots.find(id), Found::Over));
            previous = Some(id);
        }
    }

    #[test]
    fn a_server_follows_its_clients_generations_and_refuses_jumps() {
        let mut slots = Slots::default();
        assert!(!slots.advance(CallId::new(3, 1), 3), "beyond the limit");
        assert!(!slots.advance(CallId::new(0, 2), 3), "out of turn");
        assert!(!slots.advance(CallId::CONNECTION, 3));
        assert!(slots.advance(CallId::new(2, 1), 3));
        slots.insert(CallId::new(2, 1), call());
        assert!(!slots.advance(CallId::new(2, 2), 3), "taken");
        assert!(matches!(slots.find(CallId::new(1, 1)), Found::Never));
        assert!(matches!(slots.find(CallId::new(9, 1)), Found::Never));
    }
}
