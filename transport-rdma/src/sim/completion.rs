//! A simulated completion queue, and the wake-ups of whoever sleeps on it.
//!
//! ```text
//!             arm(solicited)              arm(any)
//!  Unarmed ------------------> Solicited ----------> Any       a report that matches: one wake-up, then Unarmed
//!      `----------------------- arm(any) ----------->'         arming again never weakens what was asked for
//! ```
//!
//! Owns reports between the device and the poll. Invariants: reports are polled in the order they were made; an arming
//! raises at most one wake-up, and only for a report that comes after it (what was there before is for the poll
//! that follows); once the queue overran it takes no report any more. Never releases what a request owned.

use std::collections::VecDeque;

use crate::nic::{Status, Success};

/// Which request a report is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Source {
    /// A send-side request, and with it all before it.
    Send { position: u64 },
    /// A receive of the queue pair's own.
    Own { slot: u32 },
    /// A shared receive.
    Shared { slot: u32 },
}

/// One entry of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Report {
    pub(super) qp: u32,
    pub(super) source: Source,
    pub(super) outcome: Result<Success, Status>,
    /// Of a receive: whether a write with immediate used it.
    pub(super) by_write: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Armed {
    Unarmed,
    Solicited,
    Any,
}

/// What a new report does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pushed {
    Quiet,
    Wakes,
    Overran,
}

pub(super) struct CompletionQueue {
    reports: VecDeque<Report>,
    capacity: usize,
    armed: Armed,
    wakes: usize,
    overran: bool,
}

impl CompletionQueue {
    pub(super) fn new(capacity: u32) -> Self {
        let capacity = capacity as usize;
        Self { reports: VecDeque::new(), capacity, armed: Armed::Unarmed, wakes: 0, overran: false }
    }

    /// Adds a report; `solicited` when it wakes also those who asked for such reports only.
    pub(super) fn push(&mut self, report: Report, solicited: bool) -> Pushed {
        if self.overran {
            return Pushed::Quiet;
        }
        if self.reports.len() >= self.capacity {
            self.overran = true;
            return Pushed::Overran;
        }
        let matches = match self.armed {
            Armed::Unarmed => false,
            Armed::Solicited => solicited,
            Armed::Any => true,
        };
        self.reports.push_back(report);
        if !matches {
            return Pushed::Quiet;
        }
        self.armed = Armed::Unarmed;
        self.wakes += 1;
        Pushed::Wakes
    }

    pub(super) fn pop(&mut self) -> Option<Report> {
        self.reports.pop_front()
    }

    pub(super) fn arm(&mut self, solicited_only: bool) {
        self.armed = match (self.armed, solicited_only) {
            (Armed::Any, _) | (_, false) => Armed::Any,
            (_, true) => Armed::Solicited,
        };
    }

    pub(super) fn wakes(&self) -> usize {
        self.wakes
    }

    pub(super) fn take_wakes(&mut self) -> usize {
        std::mem::take(&mut self.wakes)
    }

    /// Makes the device's queue smaller than it had told.
    pub(super) fn shrink(&mut self, capacity: u32) {
        self.capacity = self.capacity.min(capacity as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcome: Result<Success, Status>) -> Report {
        Report { qp: 0, source: Source::Own { slot: 0 }, outcome, by_write: false }
    }

    /// (armed how, report, whether it wakes): every state and every kind of report.
    #[test]
    fn an_arming_wakes_once_for_what_it_asked_for() {
        let fine = Ok(Success::default());
        let failed = Err(Status::Flushed);
        let table = [
            (&[][..], fine, true, false),
            (&[], failed, true, false),
            (&[false], fine, false, true),
            (&[false], failed, true, true),
            (&[true], fine, false, false),
            (&[true], failed, false, false),
            (&[true], fine, true, true),
            (&[true, false], fine, false, true),
            (&[false, true], fine, false, true),
        ];
        for (armings, outcome, solicited, wakes) in table {
            let mut queue = CompletionQueue::new(8);
            armings.iter().for_each(|&solicited_only| queue.arm(solicited_only));
            let pushed = queue.push(report(outcome), solicited);
            assert_eq!(pushed == Pushed::Wakes, wakes, "{armings:?} {outcome:?} {solicited}");
            assert_eq!(queue.push(report(failed), true) == Pushed::Wakes, !armings.is_empty() && !wakes);
            assert_eq!(queue.take_wakes(), usize::from(!armings.is_empty()));
        }
    }

    #[test]
    fn arming_does_not_wake_for_what_was_there_before() {
        let mut queue = CompletionQueue::new(8);
        queue.push(report(Ok(Success::default())), true);
        queue.arm(false);
        assert_eq!(queue.take_wakes(), 0);
    }

    #[test]
    fn a_queue_that_overran_keeps_what_fitted_and_takes_nothing_more() {
        let mut queue = CompletionQueue::new(1);
        assert_eq!(queue.push(report(Ok(Success::default())), true), Pushed::Quiet);
        assert_eq!(queue.push(report(Err(Status::Flushed)), true), Pushed::Overran);
        assert!(queue.pop().is_some());
        assert_eq!(queue.push(report(Ok(Success::default())), true), Pushed::Quiet);
        assert!(queue.pop().is_none());
    }
}
