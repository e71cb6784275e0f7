//! How connections share one receive queue.
//!
//! Owns [`Ledger`]: every entry of the queue belongs to one connection's share, or is free. A share is what
//! its connection's [`ReceiveCredits`](super::credit::ReceiveCredits) have as their window, so an entry that
//! a message used and that is not back yet still counts. Invariant: shares add up to no more than the queue
//! has, hence credits that peers hold never exceed entries that are posted. A connection holds a minimum,
//! borrows when its peer asks, and gives back when asked: nobody waits for an entry that somebody else has to
//! give back first, since the minimum is enough to go on. Never: takes a credit away. Only the peer can give
//! one back, since it may be using it now.

use super::credit::{Credits, MIN_WINDOW};

/// One connection's share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ShareId(usize);

#[derive(Debug, Clone, Copy)]
struct Share {
    entries: u32,
    /// Whether its peer was asked to give back, and has not answered.
    asked: bool,
}

/// The entries of one shared receive queue.
#[derive(Debug)]
pub struct Ledger {
    free: u32,
    minimum: u32,
    maximum: u32,
    shares: Vec<Option<Share>>,
    /// Entries that somebody wanted and did not get.
    missing: u32,
}

impl Ledger {
    /// A queue in which `posted` entries are kept posted. A share has at least `minimum` of them, which is
    /// raised to what works, and at most `maximum`.
    pub fn new(posted: Credits, minimum: Credits, maximum: Credits) -> Self {
        let minimum = minimum.0.max(MIN_WINDOW);
        let maximum = maximum.0.max(minimum);
        Self { free: posted.0, minimum, maximum, shares: Vec::new(), missing: 0 }
    }

    /// Entries that are nobody's.
    pub fn free(&self) -> Credits {
        Credits(self.free)
    }

    /// Notes that more entries were posted.
    pub fn add(&mut self, posted: Credits) {
        self.free = self.free.saturating_add(posted.0);
    }

    /// Notes that fewer entries are posted, of those that are nobody's; returns how many.
    pub fn lose(&mut self, lost: Credits) -> Credits {
        let lost = lost.0.min(self.free);
        self.free -= lost;
        Credits(lost)
    }

    /// Entries of one share; none when it is closed.
    pub fn share(&self, id: ShareId) -> Credits {
        Credits(self.shares.get(id.0).copied().flatten().map_or(0, |share| share.entries))
    }

    /// A new connection's share, of the minimum; `None` when it is not there. The others are then asked to
    /// give back, so that a later attempt may succeed; this one goes on without RDMA.
    pub fn open(&mut self) -> Option<ShareId> {
        if self.free < self.minimum {
            self.missing = self.missing.saturating_add(self.minimum - self.free);
            return None;
        }
        self.free -= self.minimum;
        let share = Some(Share { entries: self.minimum, asked: false });
        let index = self.shares.iter().position(Option::is_none).unwrap_or(self.shares.len());
        match self.shares.get_mut(index) {
            Some(place) => *place = share,
            None => self.shares.push(share),
        }
        Some(ShareId(index))
    }

    /// Adds to a share; returns how much, which may be nothing. At most half of what is free, so that the
    /// next one finds something too.
    pub fn borrow(&mut self, id: ShareId, wanted: Credits) -> Credits {
        let Some(share) = self.shares.get_mut(id.0).and_then(Option::as_mut) else { return Credits(0) };
        let wanted = wanted.0.min(self.maximum - share.entries);
        let lent = wanted.min(self.free.div_ceil(2));
        share.entries += lent;
        self.free -= lent;
        self.missing = self.missing.saturating_add(wanted - lent);
        Credits(lent)
    }

    /// Whom to ask for how much, when somebody did not get enough: whoever has most above the minimum. Each
    /// is asked once until it has answered.
    pub fn poll_ask(&mut self) -> Option<(ShareId, Credits)> {
        if self.missing == 0 {
            return None;
        }
        let minimum = self.minimum;
        let asked =
            self.shares.iter_mut().enumerate().filter_map(|(index, share)| Some((index, share.as_mut()?)));
        let willing = asked.filter(|(_, share)| !share.asked && share.entries > minimum);
        let Some((index, share)) = willing.max_by_key(|(_, share)| share.entries) else {
            // Nobody has more than it needs, or all were asked: who is still short asks again.
            self.missing = 0;
            return None;
        };
        let amount = self.missing.min((share.entries - minimum).div_ceil(2));
        self.missing -= amount;
        share.asked = true;
        Some((ShareId(index), Credits(amount)))
    }

    /// Takes a peer's answer, which its connection's credits have checked.
    pub fn handle_given_back(&mut self, id: ShareId, entries: Credits) {
        let Some(share) = self.shares.get_mut(id.0).and_then(Option::as_mut) else { return };
        let given = entries.0.min(share.entries - self.minimum);
        share.asked = false;
        share.entries -= given;
        self.free += given;
    }

    /// Ends a share. Its queue pair is gone, and every entry that it used is posted again.
    pub fn close(&mut self, id: ShareId) {
        if let Some(share) = self.shares.get_mut(id.0).and_then(Option::take) {
            self.free += share.entries;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::credit::ReceiveCredits;
    use super::*;

    fn ledger(posted: u32) -> Ledger {
        Ledger::new(Credits(posted), Credits(4), Credits(64))
    }

    #[test]
    fn a_connection_without_its_minimum_is_not_opened_and_others_are_asked() {
        let mut ledger = ledger(10);
        let first = ledger.open().expect("ten are free");
        assert_eq!(ledger.borrow(first, Credits(60)), Credits(3), "half of what is free");
        assert!(ledger.open().is_none());
        assert_eq!(ledger.poll_ask().map(|(id, _)| id), Some(first));
        assert_eq!(ledger.poll_ask(), None, "asked once");
        ledger.handle_given_back(first, Credits(3));
        assert!(ledger.open().is_some(), "the second attempt");
    }

    #[test]
    fn whoever_has_most_is_asked_for_half_of_what_it_can_spare() {
        let mut ledger = ledger(64);
        let (rich, poor) = (ledger.open().expect("free"), ledger.open().expect("free"));
        assert_eq!(ledger.borrow(rich, Credits(20)), Credits(20));
        assert_eq!(
            ledger.borrow(poor, Credits(1000)),
            Credits(18),
            "no more than a share may have, and half"
        );
        assert_eq!(ledger.poll_ask(), Some((rich, Credits(10))));
        ledger.close(rich);
        ledger.handle_given_back(rich, Credits(10));
        assert_eq!(ledger.free(), Credits(64 - 22), "an answer after the end changes nothing");
        assert_eq!(ledger.borrow(rich, Credits(1)), Credits(0));
        ledger.handle_given_back(poor, Credits(1000));
        assert_eq!(ledger.share(poor), Credits(4), "never below the minimum");
    }

    /// Connections come, use, borrow, give back and go; what their peers may use is always there.
    #[test]
    fn peers_never_hold_more_credits_than_entries_are_posted() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let capacity = random.u32(8..200);
            let (mut ledger, mut posted) = (ledger(capacity), capacity);
            let mut open: Vec<(ShareId, ReceiveCredits, u32)> = Vec::new();
            for _ in 0..2000 {
                let index = random.usize(0..open.len().max(1));
                match (random.u8(0..8), open.get_mut(index)) {
                    (0, _) => {
                        if let Some(id) = ledger.open() {
                            let credits =
                                ReceiveCredits::new(ledger.share(id)).expect("a minimum that works");
                            open.push((id, credits, 0));
                        }
                    }
                    (1, Some((id, credits, _))) => {
                        let lent = ledger.borrow(*id, Credits(random.u32(0..40)));
                        assert_eq!(credits.grow(lent), lent);
                    }
                    (2, _) => {
                        if let Some((id, asked)) = ledger.poll_ask() {
                            let (_, credits, _) = open
                                .iter_mut()
                                .find(|(other, ..)| *other == id)
                                .expect("an open share is asked");
                            let given = credits.outstanding().0.saturating_sub(4).min(asked.0);
                            credits.handle_given_back(Credits(given)).expect("an honest answer");
                            ledger.handle_given_back(id, Credits(given));
                        }
                    }
                    (3, Some((id, credits, _))) if random.u8(0..20) == 0 => {
                        posted += credits.in_use().0;
                        ledger.close(*id);
                        open.swap_remove(index);
                    }
                    (4 | 5, Some((_, credits, _))) if credits.outstanding().0 > 0 => {
                        posted =
                            posted.checked_sub(1).unwrap_or_else(|| panic!("seed {seed}: nothing is posted"));
                        credits.handle_arrival().expect("a credit");
                    }
                    (_, Some((_, credits, _))) => {
                        posted += credits.in_use().0;
                        credits.handle_returned(credits.in_use());
                        credits.announce();
                    }
                    _ => {}
                }
                let shares: u32 = open
                    .iter()
                    .map(|(id, credits, _)| {
                        assert_eq!(ledger.share(*id), credits.window(), "seed {seed}");
                        credits.window().0
                    })
                    .sum();
                assert_eq!(shares + ledger.free().0, capacity, "seed {seed}");
                let held: u32 = open.iter().map(|(_, credits, _)| credits.outstanding().0).sum();
                assert!(held <= posted, "seed {seed}: peers hold {held} credits for {posted} entries");
            }
        }
    }
}
