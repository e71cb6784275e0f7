//! One of those who use a simulated device: what each NIC of it has of its own, and what a poll of it gives.
//!
//! Invariant: the depths of all queues that report to a completion queue and the shared receives set aside for it never
//! exceed it, counting those of destroyed queue pairs until the queue was seen empty.
//! A report about a queue pair that is gone releases nothing but a shared receive.

use std::task::Waker;

use super::adapter::refused;
use super::completion::{CompletionQueue, Report, Source};
use super::device::Device;
use super::fabric::State;
use crate::mailbox::Mailbox;
use crate::memory::Buffer;
use crate::nic::{Completion, Event, Failure, Kind, NicError, Payload, QueuePairId, Status, WorkId};

pub(super) struct Consumer {
    pub(super) completions: CompletionQueue,
    /// Entries that the queue was made with.
    pub(super) capacity: u32,
    /// Reports that living queues may still cause.
    pub(super) reserved: u32,
    /// Reports of destroyed queue pairs that may still be in the completion queue.
    pub(super) retiring: u32,
    /// Completions that no report will bring.
    pub(super) flushed: Vec<Completion>,
    pub(super) events: Mailbox,
    pub(super) waker: Option<Waker>,
}

impl Device {
    /// Adds a consumer; its number. Numbers of those that are gone are used again: nothing names them any more.
    pub(super) fn open(&mut self, completions: u32, shared_receives: u32) -> Result<u32, NicError> {
        self.usable()?;
        if self.consumers.iter().flatten().count() >= self.consumers_max {
            return Err(refused("it has no completion queue left"));
        }
        let consumer = Consumer {
            completions: CompletionQueue::new(completions),
            capacity: completions,
            reserved: shared_receives,
            retiring: 0,
            flushed: Vec::new(),
            events: Mailbox::default(),
            waker: None,
        };
        let free = self.consumers.iter().position(Option::is_none);
        let index = free.unwrap_or(self.consumers.len());
        match free {
            Some(free) => self.consumers[free] = Some(consumer),
            None => self.consumers.push(Some(consumer)),
        }
        Ok(index as u32)
    }

    pub(super) fn consumer(&self, number: u32) -> Option<&Consumer> {
        self.consumers.get(number as usize)?.as_ref()
    }

    pub(super) fn consumer_mut(&mut self, number: u32) -> Option<&mut Consumer> {
        self.consumers.get_mut(number as usize)?.as_mut()
    }

    /// Appends completions for up to `max` reports.
    pub(super) fn poll(&mut self, number: u32, into: &mut Vec<Completion>, max: usize) -> usize {
        let before = into.len();
        let Some(consumer) = self.consumer_mut(number) else { return 0 };
        into.append(&mut consumer.flushed);
        let mut taken = 0;
        while taken < max {
            let Some(consumer) = self.consumer_mut(number) else { break };
            let Some(report) = consumer.completions.pop() else {
                // No report of a destroyed queue pair is left.
                consumer.retiring = 0;
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
                let taken = self.receives.as_mut().and_then(|receives| receives.finish(slot));
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

    /// Puts shared receives back that were reported to a consumer and that it has not polled.
    fn return_unread(&mut self, consumer: &mut Consumer) {
        while let Some(report) = consumer.completions.pop() {
            if let (Source::Shared { slot }, Some(receives)) = (report.source, &mut self.receives) {
                receives.put_back(slot);
            }
        }
    }
}

impl State {
    /// Ends what a consumer has, as the end of its owner would, and returns what it owned.
    pub(super) fn close(&mut self, nic: u32, number: u32) -> impl Sized + use<> {
        self.fail_all(nic, Some(number), false);
        let device = self.device_mut(nic);
        let windows = device.windows.free_all_of(number);
        let ours = |qp: &u32| device.qp(*qp).is_some_and(|qp| qp.consumer == number);
        let ours: Vec<u32> = (0..device.queue_pairs.len() as u32).filter(ours).collect();
        let mut queue_pairs = Vec::with_capacity(ours.len());
        for qp in ours {
            let gone = device.queue_pairs[qp as usize].take();
            let begun = gone.as_ref().and_then(|qp| qp.begun_shared());
            if let (Some(slot), Some(receives)) = (begun, &mut device.receives) {
                receives.put_back(slot);
            }
            queue_pairs.push(gone);
        }
        let consumer = device.consumers.get_mut(number as usize).and_then(Option::take);
        let consumer = consumer.map(|mut consumer| {
            device.return_unread(&mut consumer);
            consumer
        });
        (windows, queue_pairs, consumer)
    }

    /// Raises an event outside any request, at whomever it concerns.
    pub(super) fn tell(&mut self, nic: u32, event: Event) {
        let device = self.device(nic);
        let concerned = match event {
            Event::QueuePairFailed(id) | Event::Established(id) | Event::LastReceiveConsumed(id) => {
                let Some(qp) = device.qp(id.0) else { return };
                qp.consumer..qp.consumer + 1
            }
            _ => 0..device.consumers.len() as u32,
        };
        concerned.for_each(|number| self.tell_one(nic, number, event));
    }

    pub(super) fn tell_one(&mut self, nic: u32, number: u32, event: Event) {
        if let Some(consumer) = self.device_mut(nic).consumer_mut(number) {
            consumer.events.put(event);
            self.wake(nic, number);
        }
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
