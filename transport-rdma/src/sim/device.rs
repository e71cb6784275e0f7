//! What one simulated NIC owns, and what a poll of it gives.
//!
//! Invariant: the depths of all queues that report here never exceed the completion queue, counting those of destroyed
//! queue pairs until the queue was seen empty. A report about a queue pair that is gone releases nothing.

use std::collections::VecDeque;
use std::task::Waker;

use super::completion::{CompletionQueue, Report, Source};
use super::keys::{Regions, Windows};
use super::nic::SimNicOptions;
use super::queue_pair::QueuePair;
use super::receive::ReceiveQueue;
use super::request::{Action, Entry};
use crate::memory::{Buffer, new_domain};
use crate::nic::{Completion, Event, Failure, Kind, Payload, QueuePairId, Status, WorkId};

/// How many inline vectors are kept to be used again.
const SPARE_MAX: usize = 256;

/// What happened at one NIC, in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Requests that were posted, of every kind but receives.
    pub posted: u64,
    /// Messages that arrived, each counted once.
    pub arrived: u64,
    /// Bytes that arrived.
    pub bytes: u64,
    /// Refusals of this NIC's sends because the peer had no receive. A transport with credits keeps it at zero.
    pub not_ready: u64,
    /// How often this NIC sent again what had not been acknowledged.
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
    pub(super) shared: Option<ReceiveQueue>,
    pub(super) completions: CompletionQueue,
    /// Reports that living queues may still cause.
    pub(super) reserved: u32,
    /// Reports of destroyed queue pairs that may still be in the completion queue.
    pub(super) retiring: u32,
    /// Completions that no report will bring.
    pub(super) flushed: Vec<Completion>,
    pub(super) events: VecDeque<Event>,
    pub(super) health: Health,
    pub(super) link_up: bool,
    pub(super) withholds_flushes: bool,
    pub(super) last_receive_event: bool,
    pub(super) failed_sends_wake: bool,
    pub(super) waker: Option<Waker>,
    pub(super) counters: Counters,
    /// Vectors for inline bytes, to be used again.
    pub(super) spare: Vec<Vec<u8>>,
}

impl Device {
    pub(super) fn new(nic: u32, start: u32, options: &SimNicOptions) -> Self {
        let shared = (options.shared_receives > 0).then(|| ReceiveQueue::new(options.shared_receives));
        Self {
            queue_pairs: Vec::new(),
            first_number: 1 + start,
            regions: Regions::new(nic, new_domain(), options.memory_max),
            windows: Windows::new(1 + start),
            shared,
            completions: CompletionQueue::new(options.completions),
            reserved: options.shared_receives,
            retiring: 0,
            flushed: Vec::new(),
            events: VecDeque::new(),
            health: Health::Running,
            link_up: true,
            withholds_flushes: false,
            last_receive_event: options.last_receive_event,
            failed_sends_wake: options.failed_sends_wake,
            waker: None,
            counters: Counters::default(),
            spare: Vec::new(),
        }
    }

    /// Takes out everything that owns memory.
    pub(super) fn empty(&mut self) -> impl Sized + use<> {
        let queue_pairs = std::mem::take(&mut self.queue_pairs);
        let windows = std::mem::replace(&mut self.windows, Windows::new(0));
        let flushed = std::mem::take(&mut self.flushed);
        (queue_pairs, windows, flushed, self.shared.take(), self.waker.take())
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

    /// Appends completions for up to `max` reports.
    pub(super) fn poll(&mut self, into: &mut Vec<Completion>, max: usize) -> usize {
        let before = into.len();
        into.append(&mut self.flushed);
        let mut taken = 0;
        while taken < max {
            let Some(report) = self.completions.pop() else {
                // No report of a destroyed queue pair is left.
                self.retiring = 0;
                break;
            };
            taken += usize::from(self.complete(report, into));
        }
        into.len() - before
    }

    /// `false` when the report is about nothing that is still there.
    fn complete(&mut self, report: Report, into: &mut Vec<Completion>) -> bool {
        let alive = self.qp(report.qp).is_some();
        let queue_pair = alive.then_some(QueuePairId(report.qp));
        match report.source {
            Source::Send { position } => self.complete_sends(report, position, into),
            Source::Own { slot } => {
                let receives = self.qp_mut(report.qp).and_then(|qp| qp.receives.as_mut());
                let taken = receives.and_then(|receives| receives.finish(slot));
                taken.map(|taken| into.push(receive_completion(queue_pair, taken, report))).is_some()
            }
            Source::Shared { slot } => {
                let taken = self.shared.as_mut().and_then(|shared| shared.finish(slot));
                taken.map(|taken| into.push(receive_completion(queue_pair, taken, report))).is_some()
            }
        }
    }

    /// Ends the request at `position` and all before it, which succeeded: a failed request is always reported.
    fn complete_sends(&mut self, report: Report, position: u64, into: &mut Vec<Completion>) -> bool {
        let mut found = false;
        while let Some(qp) = self.qp_mut(report.qp).filter(|qp| qp.first <= position) {
            let Some(entry) = qp.ring.pop_front() else { break };
            let failure = report.outcome.err().filter(|_| qp.first == position);
            qp.first += 1;
            found = true;
            into.push(self.finish(entry, report.qp, failure));
        }
        found
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

pub(super) fn flushed_receive(queue_pair: u32, taken: (WorkId, Buffer)) -> Completion {
    let (source, outcome) = (Source::Own { slot: 0 }, Err(Status::Flushed));
    let report = Report { qp: queue_pair, source, outcome, by_write: false };
    receive_completion(Some(QueuePairId(queue_pair)), taken, report)
}

fn receive_completion(
    queue_pair: Option<QueuePairId>,
    (work, mut buffer): (WorkId, Buffer),
    report: Report,
) -> Completion {
    let arrived = report.outcome.unwrap_or_default().len as usize;
    buffer.set_filled(if report.by_write { 0 } else { arrived });
    Completion {
        queue_pair,
        work,
        kind: if report.by_write { Kind::ReceiveWrite } else { Kind::Receive },
        outcome: report.outcome.map_err(|status| Failure { status, vendor: 0 }),
        payload: Payload::buffer(buffer),
    }
}
