//! One simulated queue pair: what it has been given, how far it is, and what its requests own.
//!
//! ```text
//!  create              accept               activate
//!  -------> Initial ----------> Receiving ------------> Sending        receives are taken in every state
//!              |                    |                      |
//!              `--------------------+--- any failure ------+--> failed: nothing arrives or leaves any more; what is
//!                                                               posted, before or after, comes back flushed, in order
//!
//!  positions of the send queue, each at most the next one:
//!  first <= retired <= sent <= end          `first..retired`  complete, waiting for a report to be polled
//!                                           `retired..sent`   on the way, or waiting for an answer
//!                                           `sent..end`       not looked at yet
//! ```
//!
//! Invariants: a request is complete only when all before it are; a message is numbered (`wire`) once, and sending it
//! again changes nothing; a queue pair that failed never recovers. Never schedules an answer: that is the responder's.

use std::collections::VecDeque;

use super::receive::ReceiveQueue;
use super::request::{Action, Entry};
use super::schedule::{QpRef, Schedule, Step};
use crate::nic::{Endpoint, Mtu, QueuePairSpec, Request, WorkId};

/// Both ends of a connection, as one end was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) peer: QpRef,
    pub(super) peer_psn: u32,
    pub(super) mtu: Mtu,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Initial,
    Receiving(Route),
    Sending(Route),
}

/// A message that has come in part.
#[derive(Debug, Clone, Copy)]
pub(super) struct Incoming {
    pub(super) received: u32,
    /// The receive that it uses, unless it is a write.
    pub(super) slot: Option<u32>,
}

pub(super) struct QueuePair {
    pub(super) consumer: u32,
    pub(super) endpoint: Endpoint,
    pub(super) spec: QueuePairSpec,
    pub(super) stage: Stage,
    pub(super) failed: bool,
    /// Whether a flush is scheduled.
    pub(super) flush_due: bool,

    pub(super) ring: VecDeque<Entry>,
    pub(super) first: u64,
    pub(super) retired: u64,
    pub(super) sent: u64,
    /// Positions below were reported, one by one or by a report of a later one.
    pub(super) reported: u64,
    /// Local requests at positions below are executed.
    pub(super) executed: u64,
    /// Local requests at positions below are scheduled or executed.
    local_due: u64,
    /// Behind the last local request that was posted.
    last_local: u64,
    /// A local request that could not be executed: nothing behind it is.
    pub(super) broken: Option<u64>,
    unsignaled: u32,
    next_wire: u64,
    /// Messages below have left at least once.
    sent_wire: u64,
    /// Messages below are acknowledged.
    pub(super) acked: u64,
    /// Waiting until the peer may have a receive.
    pub(super) waiting: bool,
    pub(super) retries_left: u8,
    pub(super) rnr_left: u8,
    pub(super) deadline: Option<u64>,
    pub(super) timer_due: bool,
    /// When the last request leaves, and when its message arrives.
    last_leaves: u64,
    last_arrives: u64,

    /// The number of the message that must arrive next.
    pub(super) expected: u64,
    pub(super) incoming: Option<Incoming>,
    /// Whether the peer was told that the expected message is missing.
    pub(super) told_missing: bool,
    pub(super) told_established: bool,
    pub(super) told_last: bool,
    pub(super) last_answer: u64,
    pub(super) receives: Option<ReceiveQueue>,
}

impl QueuePair {
    pub(super) fn new(consumer: u32, spec: &QueuePairSpec, endpoint: Endpoint) -> Self {
        Self {
            consumer,
            endpoint,
            spec: *spec,
            stage: Stage::Initial,
            failed: false,
            flush_due: false,
            ring: VecDeque::new(),
            first: 0,
            retired: 0,
            sent: 0,
            reported: 0,
            executed: 0,
            local_due: 0,
            last_local: 0,
            broken: None,
            unsignaled: 0,
            next_wire: 0,
            sent_wire: 0,
            acked: 0,
            waiting: false,
            retries_left: spec.retry,
            rnr_left: spec.rnr_retry,
            deadline: None,
            timer_due: false,
            last_leaves: 0,
            last_arrives: 0,
            expected: 0,
            incoming: None,
            told_missing: false,
            told_established: false,
            told_last: false,
            last_answer: 0,
            receives: spec.recv_depth.map(ReceiveQueue::new),
        }
    }

    /// The connection, once a peer was accepted.
    pub(super) fn route(&self) -> Option<Route> {
        match self.stage {
            Stage::Initial => None,
            Stage::Receiving(route) | Stage::Sending(route) => Some(route),
        }
    }

    /// The shared receive that a message which came only in part has used up.
    pub(super) fn begun_shared(&self) -> Option<u32> {
        let begun = self.incoming.and_then(|incoming| incoming.slot);
        begun.filter(|_| self.receives.is_none())
    }

    pub(super) fn end(&self) -> u64 {
        self.first + self.ring.len() as u64
    }

    pub(super) fn entry_mut(&mut self, position: u64) -> Option<&mut Entry> {
        self.ring.get_mut(position.checked_sub(self.first)? as usize)
    }

    pub(super) fn room(&self) -> usize {
        (self.spec.send_depth as usize).saturating_sub(self.ring.len())
    }

    /// Whether messages have left that no answer has confirmed.
    pub(super) fn is_waiting_for_answer(&self) -> bool {
        self.acked < self.sent_wire
    }

    /// Takes a checked request; `inline` is a vector to use again.
    pub(super) fn push(&mut self, request: Request<'_>, len: u32, inline: Vec<u8>) {
        let entry = Entry::message(request, len, self.next_wire, inline);
        self.next_wire += 1;
        self.append(entry);
    }

    /// Takes a bind or an invalidation.
    pub(super) fn push_local(&mut self, work: WorkId, action: Action) {
        self.append(Entry::local(work, action, self.next_wire));
    }

    fn append(&mut self, mut entry: Entry) {
        self.unsignaled += 1;
        if self.unsignaled >= self.spec.send_depth / 2 {
            (entry.signaled, entry.asks) = (true, true);
        }
        if entry.signaled {
            self.unsignaled = 0;
        }
        entry.behind = self.last_local;
        if entry.action.is_local() {
            self.last_local = self.end() + 1;
        }
        self.ring.push_back(entry);
    }

    /// Sends whatever has not left yet, in order. `reachable` is false while the path to the peer is cut.
    pub(super) fn transmit(&mut self, me: QpRef, schedule: &mut Schedule, reachable: bool) {
        let Stage::Sending(route) = self.stage else { return };
        if self.failed || self.waiting {
            return;
        }
        // The last of what leaves together is always answered.
        if let Some(last) = self.ring.back_mut() {
            last.asks = true;
        }
        while self.sent < self.end() {
            let position = self.sent;
            self.sent += 1;
            self.last_leaves = schedule.device(self.last_leaves);
            let entry = &self.ring[(position - self.first) as usize];
            if entry.action.is_local() {
                if position >= self.local_due {
                    self.local_due = position + 1;
                    schedule.push(self.last_leaves, Step::Local { at: me, position });
                }
            } else if entry.wire >= self.acked {
                self.sent_wire = self.sent_wire.max(entry.wire + 1);
                if reachable {
                    self.launch(me, position, route.mtu, schedule);
                }
            }
        }
        self.start_timer(me, schedule);
    }

    /// Puts one message on its way, in two parts if it is longer than a packet.
    fn launch(&mut self, me: QpRef, position: u64, mtu: Mtu, schedule: &mut Schedule) {
        let entry = &mut self.ring[(position - self.first) as usize];
        let (len, mtu) = (entry.len, mtu.bytes());
        let arrives = schedule.arrival(self.last_leaves, len).max(self.last_arrives);
        let mut from = 0;
        if len > mtu {
            let packets = len.div_ceil(mtu);
            let cut = mtu * (1 + schedule.up_to(u64::from(packets - 2)) as u32);
            // Anywhere between the earliest instant and the last: a message can be held up between two packets.
            let earliest = self.last_leaves.max(self.last_arrives).min(arrives);
            let begins = arrives - schedule.up_to(arrives - earliest);
            if !schedule.loses() {
                entry.in_flight += 1;
                schedule.push(begins, Step::Arrive { sender: me, position, from, to: cut });
            }
            from = cut;
        }
        if !schedule.loses() {
            entry.in_flight += 1;
            schedule.push(arrives, Step::Arrive { sender: me, position, from, to: len });
        }
        self.last_arrives = arrives;
    }

    /// Makes everything that is not acknowledged leave again.
    pub(super) fn rewind(&mut self) {
        self.waiting = false;
        self.sent = self.sent.min(self.retired);
    }

    /// Schedules again what the device had not executed when it stopped.
    pub(super) fn forget_scheduled(&mut self) {
        self.local_due = self.executed;
    }

    fn start_timer(&mut self, me: QpRef, schedule: &mut Schedule) {
        if self.deadline.is_some() || !self.is_waiting_for_answer() || self.spec.ack_timeout == 0 {
            return;
        }
        let deadline = schedule.now + self.timeout();
        self.deadline = Some(deadline);
        if !std::mem::replace(&mut self.timer_due, true) {
            schedule.push(deadline, Step::Timer { of: me });
        }
    }

    /// The peer has made progress: patience starts over.
    pub(super) fn acknowledge(&mut self, wire: u64, now: u64) {
        if wire <= self.acked || wire > self.sent_wire {
            return;
        }
        self.acked = wire;
        self.retries_left = self.spec.retry;
        self.rnr_left = self.spec.rnr_retry;
        let waits = self.is_waiting_for_answer() && self.deadline.is_some();
        self.deadline = waits.then(|| now + self.timeout());
    }

    /// 4.096 µs × 2^`ack_timeout`, in nanoseconds.
    fn timeout(&self) -> u64 {
        4096 << self.spec.ack_timeout.min(31)
    }

    /// The next request that has become complete, and whether it is reported by itself.
    pub(super) fn retire(&mut self) -> Option<(u64, bool)> {
        let position = self.retired;
        let index = (position - self.first) as usize;
        let entry = self.ring.get(index)?;
        let done = if entry.action.is_local() { position < self.executed } else { entry.wire < self.acked };
        done.then(|| {
            self.retired += 1;
            (position, entry.signaled)
        })
    }
}
