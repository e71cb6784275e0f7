//! The receiving end of a connection: what a message does when it arrives.
//!
//! Invariants: messages are executed in the order in which they were sent, each at most once, however often they come;
//! a byte of memory changes only where a posted receive or an active window of this queue pair allows it; what is not
//! for this queue pair, from its very peer, is dropped without an answer. Refusing a message fails both ends.

use super::completion::{Report, Source};
use super::fabric::State;
use super::queue_pair::{Incoming, Stage};
use super::request::{Action, Message, Way};
use super::schedule::{Answer, QpRef, Step};
use crate::nic::{Event, QueuePairId, Status, Success};

/// What executing a part of a message came to.
enum Executed {
    Done,
    NotReady,
    /// Too long for the path, or for this receive.
    Invalid(Option<u32>),
    Access,
}

impl State {
    /// Bytes `from..to` of a request arrive at the other end, if they get that far.
    pub(super) fn arrive(&mut self, sender: QpRef, position: u64, from: u32, to: u32) {
        if let Some(mut orphan) = self.orphans.remove(&(sender, position)) {
            self.deliver(&orphan.message, from, to);
            orphan.in_flight -= 1;
            if orphan.in_flight > 0 {
                self.orphans.insert((sender, position), orphan);
            }
            return;
        }
        let Some(qp) = self.qp_mut(sender).filter(|qp| !qp.failed) else { return };
        let Stage::Sending(route) = qp.stage else { return };
        let (psn, broken, executed) = (qp.endpoint.first_psn, qp.broken, qp.executed);
        let Some(entry) = qp.entry_mut(position) else { return };
        entry.in_flight -= 1;
        // A device that stopped in between, or could not do what was asked before, has not sent it.
        if entry.behind > executed || broken.is_some_and(|broken| position > broken) {
            return;
        }
        let message = entry.take_message(Way { sender, to: route.peer, psn, mtu: route.mtu });
        self.deliver(&message, from, to);
        // Delivering to oneself may have failed the queue pair, but only a poll removes an entry.
        if let Some(entry) = self.qp_mut(sender).and_then(|qp| qp.entry_mut(position)) {
            entry.put_back(message);
        }
    }

    fn deliver(&mut self, message: &Message, from: u32, to: u32) {
        let at = message.way.to;
        if !self.passes(message.way.sender.nic, at.nic) || !self.device(at.nic).is_running() {
            return;
        }
        let Some(qp) = self.qp_mut(at).filter(|qp| !qp.failed) else { return };
        let Some(route) = qp.route() else { return };
        if route.peer != message.way.sender || route.peer_psn != message.way.psn {
            return;
        }
        let is_last = to == message.len;
        let expected = qp.expected;
        let follows = from == 0 || qp.incoming.is_some_and(|incoming| incoming.received == from);
        if message.wire > expected || (message.wire == expected && !follows) {
            if !std::mem::replace(&mut qp.told_missing, true) {
                self.answer(message, expected, Answer::Missing);
            }
            return;
        }
        if matches!(qp.stage, Stage::Receiving(_)) && !std::mem::replace(&mut qp.told_established, true) {
            self.tell(at.nic, Event::Established(QueuePairId(at.qp)));
        }
        if message.wire < expected {
            // Executed already: the answer may have been lost.
            if is_last {
                self.answer(message, expected, Answer::Ack);
            }
            return;
        }
        let fits_path = message.way.mtu <= route.mtu || message.len <= route.mtu.bytes();
        let executed = if fits_path { self.execute(message, from, to) } else { Executed::Invalid(None) };
        match executed {
            Executed::Done => self.executed(message, is_last),
            Executed::NotReady => {
                if let Some(qp) = self.qp_mut(at) {
                    // Whatever comes behind it is known to be too early.
                    qp.told_missing = true;
                }
                self.answer(message, expected, Answer::NotReady);
            }
            Executed::Invalid(slot) => {
                if let Some(slot) = slot {
                    self.report_receive(at, slot, Err(Status::LocalLength), false, true);
                }
                self.refuse(message, expected, Answer::Invalid);
            }
            Executed::Access => {
                self.device_mut(at.nic).counters.refused += 1;
                self.refuse(message, expected, Answer::Access);
            }
        }
    }

    /// Does what the message asks for, as far as it has come.
    fn execute(&mut self, message: &Message, from: u32, to: u32) -> Executed {
        let at = message.way.to;
        let device = self.device_mut(at.nic);
        let Some(qp) = device.queue_pairs.get_mut(at.qp as usize).and_then(Option::as_deref_mut) else {
            return Executed::NotReady;
        };
        let Some(receives) = qp.receives.as_mut().or(device.receives.as_mut()) else {
            return Executed::NotReady;
        };
        match message.action {
            Action::Send { .. } => {
                let begun = qp.incoming.and_then(|incoming| incoming.slot);
                let Some(slot) = begun.or_else(|| receives.consume()) else { return Executed::NotReady };
                let Some(buffer) = receives.buffer_mut(slot) else { return Executed::NotReady };
                if message.len as usize > buffer.capacity() {
                    qp.incoming = None;
                    return Executed::Invalid(Some(slot));
                }
                message.copy_part(from, to, buffer, from as usize);
                qp.incoming = Some(Incoming { received: to, slot: Some(slot) });
            }
            Action::Write { to: target, immediate } => {
                // Nothing is looked up for an empty write.
                if message.len > 0 {
                    let found = device.windows.writable(at.qp, target.key, target.address, message.len);
                    let Some((buffer, offset)) = found else { return Executed::Access };
                    if immediate.is_some() && to == message.len && receives.is_empty() {
                        return Executed::NotReady;
                    }
                    message.copy_part(from, to, buffer, offset + from as usize);
                } else if immediate.is_some() && receives.is_empty() {
                    return Executed::NotReady;
                }
                qp.incoming = Some(Incoming { received: to, slot: None });
            }
            // These never leave their device.
            Action::Bind { .. } | Action::Invalidate { .. } => {}
        }
        device.counters.bytes += u64::from(to - from);
        Executed::Done
    }

    /// A part of the expected message was executed.
    fn executed(&mut self, message: &Message, is_last: bool) {
        let at = message.way.to;
        let device = self.device_mut(at.nic);
        let Some(qp) = device.queue_pairs.get_mut(at.qp as usize).and_then(Option::as_deref_mut) else {
            return;
        };
        qp.told_missing = false;
        if is_last {
            device.counters.arrived += 1;
            qp.expected += 1;
            let expected = qp.expected;
            let begun = qp.incoming.take().and_then(|incoming| incoming.slot);
            let (slot, immediate, by_write) = match message.action {
                Action::Send { immediate } => (begun, immediate, false),
                Action::Write { immediate: Some(immediate), .. } => {
                    let receives = qp.receives.as_mut().or(device.receives.as_mut());
                    (receives.and_then(|receives| receives.consume()), Some(immediate), true)
                }
                _ => (None, None, false),
            };
            if let Some(slot) = slot {
                let arrived = Success { len: message.len, immediate };
                self.report_receive(at, slot, Ok(arrived), by_write, message.solicited);
            }
            if message.asks {
                self.answer(message, expected, Answer::Ack);
            }
        }
        if self.device_mut(at.nic).receives.as_mut().is_some_and(|receives| receives.is_newly_low()) {
            self.tell(at.nic, Event::SharedReceiveLow);
        }
    }

    fn refuse(&mut self, message: &Message, wire: u64, answer: Answer) {
        self.answer(message, wire, answer);
        let at = message.way.to;
        self.tell(at.nic, Event::QueuePairFailed(QueuePairId(at.qp)));
        self.fail(at, None);
    }

    pub(super) fn report_receive(
        &mut self,
        at: QpRef,
        slot: u32,
        outcome: Result<Success, Status>,
        by_write: bool,
        solicited: bool,
    ) {
        let owns = self.qp_mut(at).is_some_and(|qp| qp.receives.is_some());
        let source = if owns { Source::Own { slot } } else { Source::Shared { slot } };
        self.report(at.nic, Report { qp: at.qp, source, outcome, by_write }, solicited);
    }

    /// Sends an answer back, if the queue pair can still send one.
    fn answer(&mut self, message: &Message, wire: u64, answer: Answer) {
        let (from, to) = (message.way.to, message.way.sender);
        if !self.passes(from.nic, to.nic) || self.schedule.loses() {
            return;
        }
        let arrives = self.schedule.arrival(self.schedule.now, 0);
        let Some(qp) = self.qp_mut(from).filter(|qp| !qp.failed) else { return };
        let arrives = arrives.max(qp.last_answer);
        qp.last_answer = arrives;
        self.schedule.push(arrives, Step::Answer { to, wire, answer });
    }
}
