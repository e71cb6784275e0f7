//! The sending end of a connection: what leaves, what is repeated, and how a queue pair ends.
//!
//! Invariants: a request is reported as done only after its message was executed by the peer; one that failed may or may
//! not have been; a failure is reported once, everything behind it is flushed, and everything is reported in order.
//! Repeats are patient as long as the specification says and no longer. Never touches the peer's memory.

use super::completion::{Report, Source};
use super::fabric::{Orphan, State};
use super::queue_pair::Stage;
use super::request::{Action, Entry, Way, check};
use super::schedule::{Answer, QpRef, Step};
use crate::nic::{Event, NicError, Payload, QueuePairId, Request, Status, Success};

/// How long a sender waits after it met no receive, before it tries again: what the verbs layer asks for (code 12).
const NOT_READY_DELAY: u64 = 640_000;

/// Seven means for ever.
const RNR_FOR_EVER: u8 = 7;

impl State {
    /// Takes sends and writes, in order; those that are not taken stay in `batch`.
    pub(super) fn post(&mut self, at: QpRef, batch: &mut Vec<Request<'_>>) -> Result<(), NicError> {
        let device = &mut self.devices[at.nic as usize];
        let domain = device.regions.domain();
        let qp = device.queue_pairs.get_mut(at.qp as usize).and_then(Option::as_deref_mut);
        let qp = qp.ok_or(NicError::UnknownQueuePair(QueuePairId(at.qp)))?;
        let room = qp.room();
        let mut refused = (batch.len() > room).then_some(NicError::Full);
        let mut taken = 0;
        for request in batch.iter().take(room) {
            if let Err(error) = check(request, &qp.spec, domain) {
                refused = Some(error);
                break;
            }
            taken += 1;
        }
        for request in batch.drain(..taken) {
            let len = check(&request, &qp.spec, domain).unwrap_or(0);
            let spare = match request.payload {
                Payload::Inline(_) => device.spare.pop(),
                _ => None,
            };
            qp.push(request, len, spare.unwrap_or_default());
        }
        device.counters.posted += taken as u64;
        self.transmit(at);
        refused.map_or(Ok(()), Err)
    }

    /// Lets a queue pair send what it has not sent.
    pub(super) fn transmit(&mut self, at: QpRef) {
        if !self.device(at.nic).is_running() {
            return;
        }
        let Some(qp) = self.device(at.nic).qp(at.qp) else { return };
        if qp.failed {
            return self.flush_soon(at);
        }
        let reachable = qp.route().is_some_and(|route| self.passes(at.nic, route.peer.nic));
        let Self { devices, schedule, .. } = self;
        if let Some(qp) = devices[at.nic as usize].qp_mut(at.qp) {
            qp.transmit(at, schedule, reachable);
        }
    }

    fn repeat(&mut self, at: QpRef) {
        self.device_mut(at.nic).counters.repeats += 1;
        if let Some(qp) = self.qp_mut(at) {
            qp.rewind();
        }
        self.transmit(at);
    }

    /// An answer has reached a requester.
    pub(super) fn answered(&mut self, to: QpRef, wire: u64, answer: Answer) {
        let now = self.schedule.now;
        if !self.device(to.nic).is_running() {
            return;
        }
        let Some(qp) = self.qp_mut(to).filter(|qp| !qp.failed) else { return };
        qp.acknowledge(wire, now);
        // About a message that was repeated or confirmed meanwhile, or one that waits already.
        let stale = wire != qp.acked || qp.waiting || !qp.is_waiting_for_answer();
        self.retire(to);
        if stale {
            return;
        }
        match answer {
            Answer::Ack => {}
            Answer::Missing => self.lose_patience(to),
            Answer::NotReady => self.wait_for_receive(to),
            Answer::Invalid => self.fail_oldest(to, Status::RemoteInvalidRequest),
            Answer::Access => self.fail_oldest(to, Status::RemoteAccess),
        }
    }

    /// No answer came in time, or one that something is missing.
    fn lose_patience(&mut self, at: QpRef) {
        let Some(qp) = self.qp_mut(at) else { return };
        qp.deadline = None;
        match qp.retries_left.checked_sub(1) {
            Some(left) => {
                qp.retries_left = left;
                self.repeat(at);
            }
            None => self.fail_oldest(at, Status::RetryExceeded),
        }
    }

    fn wait_for_receive(&mut self, at: QpRef) {
        self.device_mut(at.nic).counters.not_ready += 1;
        let Some(qp) = self.qp_mut(at) else { return };
        if qp.spec.rnr_retry < RNR_FOR_EVER {
            match qp.rnr_left.checked_sub(1) {
                Some(left) => qp.rnr_left = left,
                None => return self.fail_oldest(at, Status::RnrRetryExceeded),
            }
        }
        qp.waiting = true;
        qp.deadline = None;
        self.schedule.push(self.schedule.now + NOT_READY_DELAY, Step::Resume { of: at });
    }

    pub(super) fn resume(&mut self, of: QpRef) {
        if self.device(of.nic).is_running() && self.qp_mut(of).is_some_and(|qp| qp.waiting && !qp.failed) {
            self.repeat(of);
        }
    }

    pub(super) fn timed_out(&mut self, of: QpRef) {
        let running = self.device(of.nic).is_running();
        let Some(qp) = self.qp_mut(of) else { return };
        qp.timer_due = false;
        if !running {
            qp.deadline = None;
        } else if !qp.failed {
            self.lose_patience(of);
        }
    }

    /// The device executes a bind or an invalidation.
    pub(super) fn execute_local(&mut self, at: QpRef, position: u64) {
        let device = self.device_mut(at.nic);
        let running = device.is_running();
        let Some(qp) = device.qp_mut(at.qp).filter(|qp| running && !qp.failed) else { return };
        if qp.broken.is_some() || position < qp.executed {
            return;
        }
        let Some(action) = qp.entry_mut(position).map(|entry| entry.action) else { return };
        qp.executed = position + 1;
        let done = match action {
            Action::Bind { window, key } => device.windows.execute_bind(window, key),
            Action::Invalidate { window, key } => device.windows.execute_invalidate(window, at.qp, key),
            Action::Send { .. } | Action::Write { .. } => true,
        };
        if let Some(qp) = device.qp_mut(at.qp).filter(|_| !done) {
            qp.broken = Some(position);
        }
        self.retire(at);
    }

    /// Reports what has become complete.
    fn retire(&mut self, at: QpRef) {
        while let Some(qp) = self.qp_mut(at) {
            let Some((position, signaled)) = qp.retire() else { break };
            if qp.broken == Some(position) {
                return self.fail(at, Some((position, Status::WindowBind)));
            }
            if signaled {
                self.report_send(at, position, Ok(Success::default()));
            }
        }
    }

    fn report_send(&mut self, at: QpRef, position: u64, outcome: Result<Success, Status>) {
        if let Some(qp) = self.qp_mut(at) {
            qp.reported = position + 1;
        }
        let report = Report { qp: at.qp, source: Source::Send { position }, outcome, by_write: false };
        let wakes = outcome.is_err() && self.device(at.nic).failed_sends_wake;
        self.report(at.nic, report, wakes);
    }

    /// Fails a queue pair because its oldest unconfirmed message did.
    fn fail_oldest(&mut self, at: QpRef, status: Status) {
        let position = self.qp_mut(at).map(|qp| qp.retired);
        self.fail(at, position.map(|position| (position, status)));
    }

    /// Puts a queue pair into the error state; `cause` is the request that failed, if one did.
    pub(super) fn fail(&mut self, at: QpRef, cause: Option<(u64, Status)>) {
        let Some(qp) = self.qp_mut(at).filter(|qp| !qp.failed) else { return };
        qp.failed = true;
        qp.deadline = None;
        self.orphan(at);
        if let Some((position, status)) = cause {
            self.report_send(at, position, Err(status));
        }
        self.flush_soon(at);
    }

    /// Decides which of the messages that are on their way were really sent: those up to a point, in order.
    pub(super) fn orphan(&mut self, at: QpRef) {
        let Self { devices, schedule, orphans, .. } = self;
        let Some(qp) = devices[at.nic as usize].qp_mut(at.qp) else { return };
        let Stage::Sending(route) = qp.stage else { return };
        let executed = qp.executed;
        let flies = |entry: &Entry| entry.in_flight > 0 && entry.behind <= executed;
        let flying = qp.ring.iter().filter(|entry| flies(entry)).count() as u64;
        if flying == 0 {
            return;
        }
        let sent = schedule.up_to(flying) as usize;
        let (first, psn) = (qp.first, qp.endpoint.first_psn);
        let flying = qp.ring.iter_mut().enumerate().filter(|(_, entry)| flies(entry));
        for (index, entry) in flying.take(sent) {
            let in_flight = std::mem::take(&mut entry.in_flight);
            let message = entry.take_message(Way { sender: at, to: route.peer, psn, mtu: route.mtu });
            let orphan = Orphan { message: message.detached(), in_flight };
            entry.put_back(message);
            orphans.insert((at, first + index as u64), orphan);
        }
    }

    /// Schedules the return of what a failed queue pair still has.
    pub(super) fn flush_soon(&mut self, at: QpRef) {
        let when = self.schedule.device(0);
        if let Some(qp) = self.qp_mut(at).filter(|qp| qp.failed && !qp.flush_due) {
            qp.flush_due = true;
            self.schedule.push(when, Step::Flush { of: at });
        }
    }

    /// Returns everything that a failed queue pair still has, in order.
    pub(super) fn flush(&mut self, of: QpRef) {
        let device = self.device_mut(of.nic);
        let able = device.is_running() && !device.withholds_flushes;
        let tells = device.last_receive_event;
        let Some(qp) = device.qp_mut(of.qp) else { return };
        qp.flush_due = false;
        if !able {
            return;
        }
        let tells = tells && qp.receives.is_none() && !std::mem::replace(&mut qp.told_last, true);
        let (from, end) = (qp.reported.max(qp.retired), qp.end());
        let slot = qp.incoming.take().and_then(|incoming| incoming.slot);
        for position in from..end {
            self.report_send(of, position, Err(Status::Flushed));
        }
        if let Some(slot) = slot {
            self.report_receive(of, slot, Err(Status::Flushed), false, true);
        }
        while let Some(slot) =
            self.qp_mut(of).and_then(|qp| qp.receives.as_mut()).and_then(|receives| receives.consume())
        {
            self.report_receive(of, slot, Err(Status::Flushed), false, true);
        }
        if tells {
            self.tell(of.nic, Event::LastReceiveConsumed(QueuePairId(of.qp)));
        }
    }
}
