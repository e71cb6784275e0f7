//! One side of a simulated link: an endpoint, a driver, memory, and the calls of `calls`.
//!
//! Every step is small and chosen by the schedule, so that anything may happen between two others. What would
//! fail a queue pair or break a promise panics here: a message without a receive, a write through a window
//! that is gone, memory that comes back twice, a part of a call out of order.

use std::collections::{HashMap, VecDeque};

use byway_runtime::Limits;
use byway_runtime::session::{CallId, Header, Role};
use fastrand::Rng;

use super::super::budget::Budget;
use super::super::credit::Credits;
use super::super::endpoint::Endpoint;
use super::super::event::{Event, Received, ReceivedBody, Settings, Transmit};
use super::super::offer::Capabilities;
use super::super::outgoing::{Ended, Job};
use super::super::wire::{LandingId, Place, Refusal, TransferId};
use super::calls::{Call, Part};
use crate::nic::RemoteSlice;

/// What travels, in order.
pub(super) enum Wire {
    Send(Vec<u8>),
    Write { address: u64, offset: usize, bytes: Vec<u8> },
    WriteImmediate { address: u64, offset: usize, bytes: Vec<u8>, immediate: u32 },
}

/// A frame that was held back.
struct OwnedFrame {
    header: Header,
    head: Vec<u8>,
    body: Result<Vec<u8>, (u64, Option<TransferId>)>,
}

#[derive(Default)]
pub(super) struct Counts {
    pub(super) delivered: usize,
    pub(super) refused: usize,
    pub(super) no_memory: usize,
    pub(super) no_reader: usize,
    pub(super) cancelled: usize,
    pub(super) landed: usize,
    pub(super) freed: usize,
    pub(super) placed: usize,
    pub(super) small: usize,
    pub(super) ended: usize,
}

pub(super) struct Side {
    pub(super) endpoint: Endpoint<Vec<u8>>,
    pub(super) role: Role,
    pub(super) windows: bool,
    pub(super) incoming: VecDeque<Wire>,
    posted: u32,
    spare: u32,
    /// Memory that the peer may write, by address.
    open: HashMap<u64, Vec<u8>>,
    pub(super) by_landing: HashMap<LandingId, u64>,
    /// Memory that holds bodies which nobody has read.
    held: HashMap<u64, Vec<u8>>,
    next_address: u64,
    budget: Budget,
    pub(super) bodies: HashMap<TransferId, Vec<u8>>,
    copying: Vec<Job>,
    pub(super) pending: Vec<(TransferId, CallId, u64, u32)>,
    pub(super) calls: HashMap<CallId, Call>,
    pub(super) next_call: u32,
    /// Frames that a server does not take while it has no room for answers, and the message that each came in.
    waiting: VecDeque<(u64, OwnedFrame)>,
    messages: u64,
    pub(super) counts: Counts,
}

pub(super) fn memory() -> Vec<u8> {
    vec![0xaa; 1024]
}

impl Side {
    pub(super) fn new(
        role: Role,
        local: Capabilities,
        remote: Capabilities,
        large_from: u32,
        budget: u64,
    ) -> Self {
        let limits = Limits { max_head: 256, ..Limits::default() };
        let settings = Settings { role, local, remote, limits, remote_limits: limits, large_from };
        Self {
            endpoint: Endpoint::new(settings).expect("offers that fit"),
            role,
            windows: local.windows,
            incoming: VecDeque::new(),
            posted: local.receive_depth.into(),
            spare: 8,
            open: HashMap::new(),
            by_landing: HashMap::new(),
            held: HashMap::new(),
            next_address: 1,
            budget: Budget::new(budget),
            bodies: HashMap::new(),
            copying: Vec::new(),
            pending: Vec::new(),
            calls: HashMap::new(),
            next_call: 1,
            waiting: VecDeque::new(),
            messages: 0,
            counts: Counts::default(),
        }
    }

    // ---- Memory ----

    pub(super) fn allocate(&mut self, len: u32) -> Option<RemoteSlice> {
        if !self.budget.reserve(len.into()) {
            return None;
        }
        let address = self.next_address;
        self.next_address += 1;
        self.open.insert(address, vec![0; len as usize]);
        Some(RemoteSlice { address, len: len.into(), key: address as u32 })
    }

    /// Ends the peer's access and takes the memory back.
    pub(super) fn close(&mut self, address: u64) {
        let memory = self.open.remove(&address).expect("memory comes back once");
        self.budget.release(memory.len() as u64);
    }

    pub(super) fn read(&mut self, address: u64) {
        let memory = self.held.remove(&address).expect("a body is read once");
        self.budget.release(memory.len() as u64);
    }

    fn take_events(&mut self) {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::Ended(transfer, ended) => {
                    self.bodies.remove(&transfer).expect("each body ends once");
                    self.copying.retain(|job| job.transfer != transfer);
                    match ended {
                        Ended::Delivered => self.counts.delivered += 1,
                        Ended::Refused(_) => self.counts.refused += 1,
                        Ended::Cancelled => self.counts.cancelled += 1,
                    }
                }
                Event::Landed(landed) => {
                    self.counts.landed += 1;
                    let address = self.by_landing.remove(&landed.landing).expect("it was granted");
                    let later = self.calls.get_mut(&landed.call).and_then(|call| {
                        call.inbox
                            .iter_mut()
                            .find(|part| matches!(part, Part::Later(n) if *n == landed.number))
                    });
                    let Some(part) = later else {
                        self.close(address);
                        continue;
                    };
                    *part = Part::Here(Some(address));
                    let memory = self.open.remove(&address).expect("memory comes back once");
                    let first = u32::from(memory[0]);
                    let is_whole = (0..landed.len).all(|at| memory[at as usize] == (first + at) as u8);
                    assert!(is_whole, "every byte is where it belongs");
                    self.held.insert(address, memory);
                }
                Event::Freed(landing) => {
                    self.counts.freed += 1;
                    let address = self.by_landing.remove(&landing).expect("it was granted");
                    self.close(address);
                }
                Event::CreditsWanted => {
                    let lent = self.endpoint.grow(Credits(self.spare.min(2)));
                    self.spare -= lent.0;
                    self.posted += lent.0;
                }
                Event::CreditsGivenBack(credits) => {
                    self.posted -= credits.0;
                    self.spare += credits.0;
                }
            }
        }
    }

    // ---- The driver ----

    /// Answers an announcement.
    pub(super) fn decide(&mut self, random: &mut Rng) -> bool {
        if self.pending.is_empty() {
            return false;
        }
        let (transfer, id, number, len) = self.pending.swap_remove(random.usize(0..self.pending.len()));
        let awaited = self.calls.get(&id).is_some_and(|call| {
            call.inbox.iter().any(|part| matches!(part, Part::Later(other) if *other == number))
        });
        if !awaited {
            self.counts.no_reader += 1;
            self.endpoint.refuse(transfer, Refusal::Over);
            return true;
        }
        // What a pool has is rarely of the exact size.
        let Some(slice) = self.allocate(len + random.u32(0..9)) else {
            if self.endpoint.refuse(transfer, Refusal::Budget) {
                self.counts.no_memory += 1;
                self.cancel(id);
            }
            return true;
        };
        let place = if self.windows { Place::Slice(slice) } else { Place::Pieces };
        let Some(landing) = self.endpoint.grant(transfer, place) else {
            // The end of the call has arrived, and waits for room to be handed over.
            self.close(slice.address);
            return true;
        };
        assert!(self.by_landing.insert(landing, slice.address).is_none());
        true
    }

    pub(super) fn transmit(&mut self) -> Option<Wire> {
        let transmit = self.endpoint.poll_transmit(memory)?;
        let wire = match transmit {
            Transmit::Message(outbound) => {
                assert!(
                    outbound.len <= self.endpoint.message_capacity(),
                    "no longer than the peer's receives"
                );
                Wire::Send(outbound.memory[..outbound.len].to_vec())
            }
            Transmit::LastWrite(job) => {
                let (offset, bytes) = self.half(&job, true);
                Wire::WriteImmediate { address: address(&job), offset, bytes, immediate: job.landing.0 }
            }
        };
        self.take_events();
        Some(wire)
    }

    fn half(&self, job: &Job, second: bool) -> (usize, Vec<u8>) {
        let bytes = &self.bodies[&job.transfer];
        assert_eq!(bytes.len(), job.len as usize);
        let middle = bytes.len() / 2;
        if second { (middle, bytes[middle..].to_vec()) } else { (0, bytes[..middle].to_vec()) }
    }

    /// Takes a body to copy, or writes the first half of one.
    pub(super) fn copy(&mut self, random: &mut Rng) -> Option<Option<Wire>> {
        if let Some(job) = self.endpoint.poll_job() {
            self.copying.push(job);
            return Some(None);
        }
        if self.copying.is_empty() {
            return None;
        }
        let job = self.copying.swap_remove(random.usize(0..self.copying.len()));
        if !self.endpoint.may_write(job.transfer) {
            return Some(None);
        }
        let (offset, bytes) = self.half(&job, false);
        assert!(self.endpoint.handle_staged(job.transfer));
        Some(Some(Wire::Write { address: address(&job), offset, bytes }))
    }

    pub(super) fn queue_piece(&mut self) -> bool {
        let Some(piece) = self.endpoint.poll_piece() else { return false };
        let part = self.bodies[&piece.transfer][piece.offset as usize..][..piece.len as usize].to_vec();
        self.endpoint.push_piece(piece, memory, |to| to.copy_from_slice(&part));
        self.take_events();
        true
    }

    pub(super) fn repost(&mut self, random: &mut Rng) -> bool {
        let (_, receive) = self.endpoint.credits();
        let in_use = receive.in_use().0 - self.held();
        if in_use == 0 {
            return false;
        }
        let count = random.u32(1..=in_use);
        self.posted += count;
        self.endpoint.handle_returned(Credits(count));
        true
    }

    pub(super) fn arrive(&mut self, random: &mut Rng) -> bool {
        let Some(wire) = self.incoming.pop_front() else { return false };
        match wire {
            Wire::Write { address, offset, bytes } => self.write(address, offset, &bytes),
            Wire::WriteImmediate { address, offset, bytes, immediate } => {
                self.write(address, offset, &bytes);
                self.posted = self.posted.checked_sub(1).expect("a receive is posted");
                self.endpoint.handle_write(immediate).expect("an honest peer");
            }
            Wire::Send(message) => {
                self.posted = self.posted.checked_sub(1).expect("a receive is posted");
                self.messages += 1;
                let mut items = self.endpoint.handle_message(&message).expect("an honest peer");
                while let Some(received) = self.endpoint.next_received(&mut items).expect("an honest peer") {
                    match received {
                        Received::Frame { header, head, body } => {
                            let body = match body {
                                ReceivedBody::Here(bytes) => Ok(bytes.to_vec()),
                                ReceivedBody::Later { number, announced } => Err((number, announced)),
                            };
                            let frame = OwnedFrame { header, head: head.to_vec(), body };
                            self.waiting.push_back((self.messages, frame));
                            while self.accept(random) {}
                        }
                        Received::Piece { landing, offset, bytes } => {
                            let address = self.by_landing[&landing];
                            self.write(address, offset as usize, bytes);
                        }
                        Received::Probe(_) => panic!("nobody sent one"),
                    }
                    self.take_events();
                }
            }
        }
        self.endpoint.set_held(Credits(self.held()));
        self.take_events();
        true
    }

    /// Hands over a frame. A server does so only while it has room to answer.
    pub(super) fn accept(&mut self, random: &mut Rng) -> bool {
        if self.role == Role::Server && !self.endpoint.accepts() {
            return false;
        }
        let Some((_, frame)) = self.waiting.pop_front() else { return false };
        let body = match &frame.body {
            Ok(bytes) => ReceivedBody::Here(bytes),
            Err((number, announced)) => ReceivedBody::Later { number: *number, announced: *announced },
        };
        self.arrived(&frame.header, &frame.head, body, random);
        self.endpoint.set_held(Credits(self.held()));
        true
    }

    /// Receives whose frames wait; they stay in use.
    fn held(&self) -> u32 {
        let mut messages: Vec<_> = self.waiting.iter().map(|(message, _)| *message).collect();
        messages.dedup();
        messages.len() as u32
    }

    fn write(&mut self, address: u64, offset: usize, bytes: &[u8]) {
        let memory = self.open.get_mut(&address).expect("a window that is open");
        memory[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// What holds after every step.
    pub(super) fn check(&self, peer: &Self) {
        let ((_, receive), (send, _)) = (self.endpoint.credits(), peer.endpoint.credits());
        let accounted = receive.outstanding().0 + receive.in_use().0 + receive.owed().0;
        assert_eq!(accounted, receive.window().0, "every entry is in one place");
        assert_eq!(self.posted, receive.window().0 - receive.in_use().0);
        let consuming = |wire: &&Wire| !matches!(wire, Wire::Write { .. });
        let under_way = self.incoming.iter().filter(consuming).count() as u32;
        assert!(send.available().0 + under_way <= receive.outstanding().0, "credits are conserved");
        let landings = self.endpoint.under_way().1;
        assert_eq!(
            landings,
            self.open.len(),
            "the peer may write what it has not given back, and nothing else"
        );
        assert_eq!(landings, self.by_landing.len());
        let reserved: usize = self.open.values().chain(self.held.values()).map(Vec::len).sum();
        assert_eq!(reserved as u64, self.budget.reserved(), "every landing is accounted for");
    }

    /// What holds when nothing moves any more; says what is left.
    pub(super) fn is_done(&self) -> Result<(), String> {
        let under_way = self.endpoint.under_way();
        let left = [
            ("calls", self.calls.len()),
            ("messages on the way", self.incoming.len()),
            ("outgoing bodies", self.bodies.len()),
            ("outgoing numbers", under_way.0),
            ("landings", under_way.1),
            ("held bodies", self.held.len()),
            ("announcements", self.pending.len()),
            ("copies", self.copying.len()),
            ("frames held back", self.waiting.len()),
            ("frames", (self.endpoint.position() - self.endpoint.delivered()) as usize),
        ];
        match left.iter().find(|(_, count)| *count > 0) {
            Some((what, count)) => Err(format!("{count} {what} are left at the {:?}", self.role)),
            None => Ok(()),
        }
    }
}

fn address(job: &Job) -> u64 {
    match job.place {
        Place::Slice(slice) => slice.address,
        Place::Pieces => panic!("a body in pieces is not written"),
    }
}
