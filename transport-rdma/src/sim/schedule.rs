//! What is still to happen in a fabric, and when.
//!
//! Owns virtual time, the queue of steps and the dice. Invariants: steps are taken in order of time, and in order of
//! scheduling within one instant; time moves only when a step is taken or when the fabric is told; all chance comes from
//! one seed, drawn in the order in which things happen. Never looks at a clock.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::fabric::Delays;

/// A queue pair anywhere in the fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct QpRef {
    pub(super) nic: u32,
    pub(super) qp: u32,
}

/// What a responder tells a requester. Everything before the message that it names has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Answer {
    /// Nothing else.
    Ack,
    /// There was no receive for it.
    NotReady,
    /// It is missing: a later one came.
    Missing,
    /// It does not fit its receive, or the path.
    Invalid,
    /// It was not allowed.
    Access,
}

/// One thing that happens at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Step {
    /// Bytes `from..to` of a request reach the peer. Long messages come in two parts.
    Arrive { sender: QpRef, position: u64, from: u32, to: u32 },
    /// An answer reaches the requester; `wire` is the first message that it does not acknowledge.
    Answer { to: QpRef, wire: u64, answer: Answer },
    /// The device executes a bind or an invalidation.
    Local { at: QpRef, position: u64 },
    /// The requester has waited for an answer, unless one came meanwhile.
    Timer { of: QpRef },
    /// The requester has waited for a receive.
    Resume { of: QpRef },
    /// A failed queue pair gives back what it has.
    Flush { of: QpRef },
    /// The planned fault of this number.
    Fault(usize),
}

struct Scheduled {
    at: u64,
    order: u64,
    step: Step,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    /// The earliest is the greatest, since the heap gives the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// Time in nanoseconds since the fabric was made, and what is due.
pub(super) struct Schedule {
    pub(super) now: u64,
    queue: BinaryHeap<Scheduled>,
    order: u64,
    dice: fastrand::Rng,
    delays: Delays,
    /// Of a million messages or answers, how many are lost.
    pub(super) loss_ppm: u32,
}

impl Schedule {
    pub(super) fn new(seed: u64, delays: Delays, loss_ppm: u32) -> Self {
        let dice = fastrand::Rng::with_seed(seed);
        Self { now: 0, queue: BinaryHeap::new(), order: 0, dice, delays, loss_ppm }
    }

    pub(super) fn push(&mut self, at: u64, step: Step) {
        self.order += 1;
        self.queue.push(Scheduled { at: at.max(self.now), order: self.order, step });
    }

    /// The next step and its time, which stays in the queue.
    pub(super) fn peek(&self) -> Option<(u64, Step)> {
        self.queue.peek().map(|next| (next.at, next.step))
    }

    /// Takes the next step and moves time to it.
    pub(super) fn pop(&mut self) -> Option<Step> {
        let next = self.queue.pop()?;
        self.now = next.at;
        Some(next.step)
    }

    /// Takes the next step away as if it had not been there.
    pub(super) fn discard(&mut self) {
        self.queue.pop();
    }

    /// A number from `0..=most`.
    pub(super) fn up_to(&mut self, most: u64) -> u64 {
        if most == 0 { 0 } else { self.dice.u64(0..=most) }
    }

    /// When something that leaves at `leaves` arrives at the other end.
    pub(super) fn arrival(&mut self, leaves: u64, len: u32) -> u64 {
        let jitter = nanos(self.delays.jitter);
        let transfer = u64::from(len).saturating_mul(nanos(self.delays.per_kib)) >> 10;
        leaves + nanos(self.delays.least) + transfer + self.up_to(jitter)
    }

    /// When the device gets around to something that it could do at `from`.
    pub(super) fn device(&mut self, from: u64) -> u64 {
        let most = nanos(self.delays.device);
        from.max(self.now) + self.up_to(most)
    }

    /// How long an arming takes to hold.
    pub(super) fn arming(&mut self) -> u64 {
        let most = nanos(self.delays.arming);
        self.up_to(most)
    }

    /// Whether the network loses this one.
    pub(super) fn loses(&mut self) -> bool {
        self.loss_ppm > 0 && self.dice.u32(0..1_000_000) < self.loss_ppm
    }

    /// 24 bits that a peer cannot guess, but whoever knows the seed can.
    pub(super) fn psn(&mut self) -> u32 {
        self.dice.u32(0..1 << 24)
    }
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_come_by_time_and_then_in_the_order_they_were_scheduled() {
        let mut schedule = Schedule::new(1, Delays::NONE, 0);
        for (at, number) in [(5, 0), (3, 1), (5, 2), (3, 3)] {
            schedule.push(at, Step::Fault(number));
        }
        let taken: Vec<_> = std::iter::from_fn(|| schedule.pop().map(|step| (schedule.now, step))).collect();
        assert_eq!(taken, [(3, 1), (3, 3), (5, 0), (5, 2)].map(|(at, number)| (at, Step::Fault(number))));
    }

    #[test]
    fn nothing_is_scheduled_in_the_past() {
        let mut schedule = Schedule::new(1, Delays::NONE, 0);
        schedule.now = 10;
        schedule.push(3, Step::Fault(0));
        assert_eq!(schedule.peek(), Some((10, Step::Fault(0))));
    }
}
