//! Events that wait for the owner of one NIC.
//!
//! Invariants: bounded; an event that waits already moves to the end instead of waiting twice, so the last word about
//! a port is the last that its owner reads. Never wakes anybody: who puts an event in does.

use std::collections::VecDeque;

use crate::nic::Event;

/// Far above the number of different events that one NIC's objects can cause. If that many wait nobody reads them, and
/// the oldest are dropped; a smaller number could drop the failure of a queue pair that somebody still looks for.
const EVENTS_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    waiting: VecDeque<Event>,
}

impl Mailbox {
    pub(crate) fn put(&mut self, event: Event) {
        if let Some(place) = self.waiting.iter().position(|&waiting| waiting == event) {
            self.waiting.remove(place);
        } else if self.waiting.len() == EVENTS_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back(event);
    }

    #[cfg_attr(not(feature = "sim"), expect(dead_code, reason = "the simulator's"))]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Moves everything to the end of `into`, in order.
    pub(crate) fn take(&mut self, into: &mut Vec<Event>) {
        into.extend(self.waiting.drain(..));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(mailbox: &mut Mailbox) -> Vec<Event> {
        let mut events = Vec::new();
        mailbox.take(&mut events);
        events
    }

    #[test]
    fn the_last_word_is_read_last() {
        let mut mailbox = Mailbox::default();
        for event in [Event::PortDown(1), Event::PortUp(1), Event::DeviceFailed, Event::PortDown(1)] {
            mailbox.put(event);
        }
        assert_eq!(taken(&mut mailbox), [Event::PortUp(1), Event::DeviceFailed, Event::PortDown(1)]);
        assert!(mailbox.is_empty());
    }

    #[test]
    fn a_full_mailbox_drops_the_oldest() {
        let mut mailbox = Mailbox::default();
        let events = EVENTS_MAX as u32 + 2;
        (0..events).for_each(|code| mailbox.put(Event::Unknown(code)));
        let left = taken(&mut mailbox);
        assert_eq!((left.len(), left[0]), (EVENTS_MAX, Event::Unknown(2)));
    }
}
