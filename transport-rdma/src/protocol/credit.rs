//! Who may use how many receive-queue entries: arithmetic only.
//!
//! Owns [`SendCredits`] (entries of the peer that we may use) and [`ReceiveCredits`] (entries of ours that
//! the peer may use). One entry is one credit, whatever consumes it: a message, or a write with immediate.
//! Totals are cumulative and wrap, so that saying one twice changes nothing.
//!
//! Invariants: a side never uses an entry that was not announced to it. And two sides never wait for each
//! other, if
//! 1. both windows are at least [`MIN_WINDOW`],
//! 2. the last credit is used by a *bare* message only, one that carries nothing but credits,
//! 3. every message carries all credits that are owed,
//! 4. a side that owes more than half of the window, and has nothing else to send or no credit to send it
//!    with, sends a bare message. Entries that hold frames back do not count as part of the window here.
//!
//! More than half of three is two, so a bare message uses up at least two credits that are owed, and is owed
//! one itself: bare messages die out. Only a server holds frames back, so that one of both needs two.
//! docs/rdma-deadlock.md has the argument. Never: knows what a message is.

use super::error::ProtocolError;

/// Smallest window. With two, each side sends one message and one bare message, and neither is owed more.
pub const MIN_WINDOW: u32 = 3;

/// Largest window. More entries than one connection can keep busy; it keeps every total comparable.
pub const MAX_WINDOW: u32 = u16::MAX as u32;

/// What only a bare message may use.
const RESERVE: u32 = 1;

/// A number of receive-queue entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Credits(pub u32);

/// All entries that were ever announced to a side: what travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Total(pub u32);

/// The peer's entries that we may use.
#[derive(Debug, Clone, Copy)]
pub struct SendCredits {
    announced: u32,
    used: u32,
}

impl SendCredits {
    /// What the peer's offer says.
    pub fn new(window: Credits) -> Self {
        Self { announced: window.0, used: 0 }
    }

    /// Entries that may still be used.
    pub fn available(&self) -> Credits {
        Credits(self.announced.wrapping_sub(self.used))
    }

    /// Whether a message that carries something, or a write with immediate, may go.
    #[inline]
    pub fn may_send(&self) -> bool {
        self.available().0 > RESERVE
    }

    /// Whether a bare message may go.
    #[inline]
    pub fn may_send_bare(&self) -> bool {
        self.available().0 > 0
    }

    /// Counts a message or a write with immediate that is about to be posted.
    ///
    /// # Panics
    /// Without a credit: whoever sends has asked before.
    #[inline]
    pub fn use_one(&mut self) {
        assert!(self.may_send_bare(), "a message is posted with a credit");
        self.used = self.used.wrapping_add(1);
    }

    /// Takes the total of a message that arrived; whether it brought anything new. An older one changes
    /// nothing.
    ///
    /// # Errors
    /// A total beyond what a window can be.
    #[inline]
    pub fn handle_total(&mut self, total: Total) -> Result<bool, ProtocolError> {
        let gained = total.0.wrapping_sub(self.announced);
        if gained == 0 || gained > i32::MAX as u32 {
            return Ok(false);
        }
        if total.0.wrapping_sub(self.used) > MAX_WINDOW {
            return Err(ProtocolError::Credits("credits for more entries than a queue has"));
        }
        self.announced = total.0;
        Ok(true)
    }

    /// Gives back what the peer asked for, except what a side needs to go on; returns how much.
    pub fn give_back(&mut self, asked: Credits) -> Credits {
        let given = asked.0.min(self.available().0.saturating_sub(MIN_WINDOW));
        self.used = self.used.wrapping_add(given);
        Credits(given)
    }
}

/// Our entries that the peer may use.
#[derive(Debug, Clone, Copy)]
pub struct ReceiveCredits {
    /// Entries that are the peer's, used or not.
    window: u32,
    /// All that the peer used.
    arrived: u32,
    /// All of these that are back in the receive queue.
    returned: u32,
    announced: u32,
    /// Entries in use whose frames wait until there is room for their answers.
    held: u32,
    /// Whether the window has grown and the peer, which waits for it, does not know.
    grown: bool,
}

impl ReceiveCredits {
    /// A window of entries that are posted, as the own offer says. `None` for one that is too small or too
    /// large.
    pub fn new(window: Credits) -> Option<Self> {
        (MIN_WINDOW..=MAX_WINDOW).contains(&window.0).then_some(Self {
            window: window.0,
            arrived: 0,
            returned: 0,
            announced: window.0,
            held: 0,
            grown: false,
        })
    }

    /// Any window, to show what a smaller one does.
    #[cfg(test)]
    pub(super) fn any(window: Credits) -> Self {
        Self { window: window.0, arrived: 0, returned: 0, announced: window.0, held: 0, grown: false }
    }

    /// Entries that are the peer's, used or not.
    pub fn window(&self) -> Credits {
        Credits(self.window)
    }

    /// Entries that the peer may use without hearing from us.
    pub fn outstanding(&self) -> Credits {
        Credits(self.announced.wrapping_sub(self.arrived))
    }

    /// Entries that arrivals used and that are not back yet.
    pub fn in_use(&self) -> Credits {
        Credits(self.arrived.wrapping_sub(self.returned))
    }

    /// Entries that the peer may use once it hears from us.
    #[inline]
    pub fn owed(&self) -> Credits {
        Credits(self.total().wrapping_sub(self.announced))
    }

    /// Counts an entry that the peer used.
    ///
    /// # Errors
    /// When the peer had no credit for it. With a shared queue nothing else would notice.
    #[inline]
    pub fn handle_arrival(&mut self) -> Result<(), ProtocolError> {
        if self.outstanding().0 == 0 {
            return Err(ProtocolError::Credits("a message without a credit"));
        }
        self.arrived = self.arrived.wrapping_add(1);
        Ok(())
    }

    /// Counts entries of arrivals that are back in the receive queue.
    ///
    /// # Panics
    /// When more come back than were used.
    #[inline]
    pub fn handle_returned(&mut self, entries: Credits) {
        assert!(entries <= self.in_use(), "an entry is returned once");
        self.returned = self.returned.wrapping_add(entries.0);
    }

    /// Says how many of the entries in use hold frames back now.
    pub fn set_held(&mut self, entries: Credits) {
        self.held = entries.0;
    }

    /// Whether a bare message is due.
    #[inline]
    pub fn wants_bare(&self) -> bool {
        self.grown || self.owed().0 > self.window.saturating_sub(self.held) / 2
    }

    /// The total for a message that is about to be posted: now nothing is owed.
    #[inline]
    pub fn announce(&mut self) -> Total {
        self.announced = self.total();
        self.grown = false;
        Total(self.announced)
    }

    /// Adds entries to the window, as far as it may grow; returns how many. They are owed from now on.
    pub fn grow(&mut self, entries: Credits) -> Credits {
        let grown = entries.0.min(MAX_WINDOW - self.window);
        self.window += grown;
        self.grown |= grown > 0;
        Credits(grown)
    }

    /// Takes credits that the peer gives back, unused, out of the window.
    ///
    /// # Errors
    /// When it gives back what it does not have, or more than it may.
    pub fn handle_given_back(&mut self, entries: Credits) -> Result<(), ProtocolError> {
        let spare = self.window.saturating_sub(MIN_WINDOW).min(self.outstanding().0);
        if entries.0 > spare {
            return Err(ProtocolError::Credits("more credits given back than there were"));
        }
        // As if they had been used and returned, so that the total goes on.
        self.arrived = self.arrived.wrapping_add(entries.0);
        self.returned = self.returned.wrapping_add(entries.0);
        self.window -= entries.0;
        Ok(())
    }

    #[inline]
    fn total(&self) -> u32 {
        self.returned.wrapping_add(self.window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receiver(window: u32) -> ReceiveCredits {
        ReceiveCredits::new(Credits(window)).expect("a window that works")
    }

    #[test]
    fn a_total_is_taken_once_in_any_order() {
        let mut send = SendCredits::new(Credits(4));
        (0..4).for_each(|_| send.use_one());
        assert_eq!(send.handle_total(Total(6)), Ok(true), "the future");
        assert_eq!(send.handle_total(Total(6)), Ok(false), "a duplicate");
        assert_eq!(send.handle_total(Total(5)), Ok(false), "the past");
        assert_eq!(send.available(), Credits(2));
        assert!(send.handle_total(Total(5 + MAX_WINDOW)).is_err(), "more than a queue has");
        assert_eq!(send.available(), Credits(2), "what was refused changed nothing");
    }

    #[test]
    fn totals_go_on_past_their_last_number() {
        let (mut send, mut receive) = (SendCredits::new(Credits(3)), receiver(3));
        let before = u32::MAX - 5;
        (send.used, send.announced) = (before, before.wrapping_add(3));
        (receive.arrived, receive.returned, receive.announced) = (before, before, before.wrapping_add(3));
        for _ in 0..20 {
            send.use_one();
            receive.handle_arrival().expect("it had a credit");
            receive.handle_returned(Credits(1));
            assert_eq!(send.handle_total(receive.announce()), Ok(true));
            assert_eq!((send.available(), receive.outstanding()), (Credits(3), Credits(3)));
        }
    }

    #[test]
    fn the_last_credit_is_for_credits() {
        let mut send = SendCredits::new(Credits(2));
        assert!(send.may_send());
        send.use_one();
        assert!(!send.may_send() && send.may_send_bare());
        send.use_one();
        assert!(!send.may_send_bare());
    }

    #[test]
    fn a_bare_message_is_due_above_half_a_window_that_is_back() {
        for window in MIN_WINDOW..100 {
            let mut receive = receiver(window);
            for arrived in 1..=window {
                receive.handle_arrival().expect("a credit");
                assert_eq!(receive.wants_bare(), arrived - 1 > window / 2, "not before the entry is back");
                receive.handle_returned(Credits(1));
                assert_eq!(receive.owed(), Credits(arrived));
                assert_eq!(receive.wants_bare(), arrived > window / 2);
                assert!(!receive.wants_bare() || arrived >= 2, "two bare messages answer each other");
            }
            assert_eq!(receive.announce(), Total(2 * window));
            assert!(!receive.wants_bare());
        }
    }

    #[test]
    fn entries_that_hold_frames_back_do_not_make_the_peer_wait_for_the_others() {
        let mut receive = receiver(32);
        (0..32).for_each(|_| receive.handle_arrival().expect("a credit"));
        receive.handle_returned(Credits(1));
        assert!(!receive.wants_bare());
        receive.set_held(Credits(31));
        assert!(receive.wants_bare(), "the one that the peer has");
        receive.announce();
        assert!(!receive.wants_bare());
    }

    #[test]
    fn an_entry_without_a_credit_is_noticed() {
        let mut receive = receiver(3);
        (0..3).for_each(|_| receive.handle_arrival().expect("a credit"));
        assert!(receive.handle_arrival().is_err());
        receive.handle_returned(Credits(3));
        assert!(receive.handle_arrival().is_err(), "returned is not announced");
    }

    #[test]
    #[should_panic(expected = "returned once")]
    fn an_entry_is_returned_once() {
        let mut receive = receiver(3);
        receive.handle_arrival().expect("a credit");
        receive.handle_returned(Credits(1));
        receive.handle_returned(Credits(1));
    }

    #[test]
    fn what_is_borrowed_is_owed_and_what_is_given_back_is_gone() {
        let (mut send, mut receive) = (SendCredits::new(Credits(3)), receiver(3));
        assert_eq!(receive.grow(Credits(7)), Credits(7));
        assert_eq!(receive.owed(), Credits(7));
        assert!(receive.wants_bare(), "the peer waits for it");
        assert_eq!(send.handle_total(receive.announce()), Ok(true));
        assert_eq!(send.give_back(Credits(100)), Credits(7), "it keeps what it needs");
        assert_eq!(receive.handle_given_back(Credits(7)), Ok(()));
        assert_eq!((send.available(), receive.outstanding()), (Credits(3), Credits(3)));
        assert_eq!(receive.window(), Credits(3));
        assert!(receive.handle_given_back(Credits(1)).is_err(), "below the least");
        assert_eq!(receive.grow(Credits(u32::MAX)), Credits(MAX_WINDOW - 3));
        assert!(ReceiveCredits::new(Credits(2)).is_none());
    }
}
