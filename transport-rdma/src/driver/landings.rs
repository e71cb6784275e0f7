//! Memory for large messages that come in: bound, granted, closed, handed over.
//!
//! ```text
//! announced ──awaited──▶ due ──bound──▶ granted ──written──▶ to be closed ──closed──▶ handed over
//!      │nobody waits       │no memory            └─released──▶ to be closed ──closed──▶ back in the pool
//!      ▼                   ▼
//!   refused             refused, and the call ends
//! ```
//! Owns [`Landings`]. Invariant: memory is read, or used again, only after the peer's access to it was ended and that was
//! confirmed. Binding and closing need the NIC and happen without the connection's lock. Never: waits for memory.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use byway_runtime::connection::Turn;
use byway_runtime::session::CallId;

use super::no_memory;
use crate::link::{RdmaLink, Stocked, Target};
use crate::memory::Buffer;
use crate::nic::{Nic, RemoteSlice, WindowId};
use crate::pool::{Owner, Pool};
use crate::protocol::{Landed, LandingId, Place, Refusal, TransferId};
use crate::wire::{Polled, Wire};

/// A body that waits for memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Announced {
    pub(super) transfer: TransferId,
    pub(super) call: CallId,
    pub(super) number: u64,
    pub(super) len: u32,
}

/// What is said about an announced body.
#[derive(Debug)]
enum Answer {
    Window(WindowId, RemoteSlice),
    Pieces,
    Refused(String),
}

/// Memory for large messages of one connection.
#[derive(Debug)]
pub(super) struct Landings {
    owner: Owner,
    windows: bool,
    due: VecDeque<Announced>,
    /// Whether the first of these waits for a place in the send queue.
    is_blocked: bool,
    answers: Vec<(Announced, Answer)>,
    /// Sizes of memory that is to be bound for replies.
    wanted: Vec<u32>,
    stocked: Vec<Stocked>,
    /// Windows to be closed, each with the message behind it, if anybody wants it.
    to_close: Vec<(WindowId, Option<Landed>)>,
    closing: HashMap<WindowId, Option<Landed>>,
    ready: Vec<(Landed, Bytes)>,
}

impl Landings {
    pub(super) fn new(owner: Owner, windows: bool) -> Self {
        Self {
            owner,
            windows,
            due: VecDeque::new(),
            is_blocked: false,
            answers: Vec::new(),
            wanted: Vec::new(),
            stocked: Vec::new(),
            to_close: Vec::new(),
            closing: HashMap::new(),
            ready: Vec::new(),
        }
    }

    // ---- Under the lock ----

    /// Takes an announcement.
    pub(super) fn announced(&mut self, turn: &mut Turn<'_, RdmaLink>, announced: Announced) {
        if turn.awaits(announced.call, announced.number) {
            self.due.push_back(announced);
        } else {
            turn.link().endpoint.refuse(announced.transfer, Refusal::Over);
        }
    }

    /// Answers the announcements for which memory was bound, or was not there.
    pub(super) fn answer(&mut self, turn: &mut Turn<'_, RdmaLink>) {
        turn.link().stock.append(&mut self.stocked);
        for (announced, answer) in self.answers.drain(..) {
            let Announced { transfer, call, number, len } = announced;
            let wanted = turn.awaits(call, number);
            match answer {
                Answer::Refused(reason) => {
                    turn.link().endpoint.refuse(transfer, Refusal::Budget);
                    turn.finish(call, &no_memory(&reason));
                }
                Answer::Window(window, slice) => {
                    let link = turn.link();
                    let granted =
                        wanted.then(|| link.endpoint.grant(transfer, Place::Slice(slice))).flatten();
                    match granted {
                        Some(landing) => {
                            link.targets.insert(landing, Target::Window(window));
                        }
                        None => {
                            link.endpoint.refuse(transfer, Refusal::Over);
                            self.to_close.push((window, None));
                        }
                    }
                }
                Answer::Pieces => {
                    let link = turn.link();
                    let granted = wanted.then(|| link.endpoint.grant(transfer, Place::Pieces)).flatten();
                    match granted {
                        Some(landing) => {
                            let memory = BytesMut::with_capacity(len as usize);
                            link.targets.insert(landing, Target::Pieces(memory));
                        }
                        None => {
                            link.endpoint.refuse(transfer, Refusal::Over);
                        }
                    }
                }
            }
        }
    }

    /// A body is in its memory.
    pub(super) fn landed(&mut self, turn: &mut Turn<'_, RdmaLink>, landed: Landed) {
        match turn.link().targets.remove(&landed.landing) {
            Some(Target::Window(window)) => self.to_close.push((window, Some(landed))),
            Some(Target::Pieces(memory)) => turn.landed(landed.call, landed.number, memory.freeze()),
            None => {}
        }
    }

    /// The peer is done with memory that nobody wants.
    pub(super) fn freed(&mut self, turn: &mut Turn<'_, RdmaLink>, landing: LandingId) {
        if let Some(Target::Window(window)) = turn.link().targets.remove(&landing) {
            self.to_close.push((window, None));
        }
    }

    /// Hands over the messages whose memory is this side's again.
    pub(super) fn hand_over(&mut self, turn: &mut Turn<'_, RdmaLink>) {
        for (landed, message) in self.ready.drain(..) {
            turn.landed(landed.call, landed.number, message);
        }
    }

    pub(super) fn note_wanted(&mut self, mut sizes: Vec<u32>) {
        self.wanted.append(&mut sizes);
    }

    /// Gives up memory that is bound for replies.
    pub(super) fn give_up(&mut self, stock: Vec<Stocked>) {
        self.to_close.extend(stock.into_iter().map(|stocked| (stocked.window, None)));
    }

    // ---- Without it ----

    /// Whether there is something to bind or to answer now.
    pub(super) fn is_due(&self) -> bool {
        let bound = !self.answers.is_empty() || !self.stocked.is_empty() || !self.ready.is_empty();
        bound || (!self.due.is_empty() && !self.is_blocked) || !self.wanted.is_empty()
    }

    /// Binds memory for what was announced, and for replies.
    pub(super) fn bind<N: Nic>(&mut self, wire: &mut Wire<N>, pool: &Arc<Pool>) {
        self.is_blocked = false;
        while let Some(announced) = self.due.pop_front() {
            if !self.windows {
                self.answers.push((announced, Answer::Pieces));
                continue;
            }
            let answer = match pool.landing(announced.len as usize, self.owner) {
                Err(reason) => Answer::Refused(reason),
                Ok(buffer) => match self.bind_one(wire, pool, buffer) {
                    Ok(Some(stocked)) => Answer::Window(stocked.window, stocked.slice),
                    Ok(None) => {
                        // The send queue is full: when something of it completes, of which the driver is woken.
                        self.due.push_front(announced);
                        self.is_blocked = true;
                        break;
                    }
                    Err(reason) => Answer::Refused(reason),
                },
            };
            self.answers.push((announced, answer));
        }
        for len in std::mem::take(&mut self.wanted) {
            // Without memory for a reply in advance, it is announced when it comes.
            if self.windows
                && let Some(buffer) = pool.landing_in_advance(len as usize, self.owner)
                && let Ok(Some(stocked)) = self.bind_one(wire, pool, buffer)
            {
                self.stocked.push(stocked);
            }
        }
    }

    fn bind_one<N: Nic>(
        &self,
        wire: &mut Wire<N>,
        pool: &Pool,
        buffer: Buffer,
    ) -> Result<Option<Stocked>, String> {
        match wire.bind(buffer) {
            Ok((window, slice)) => Ok(Some(Stocked { window, slice })),
            Err((reason, buffer)) => {
                pool.landing_back(buffer, self.owner);
                reason.map_or(Ok(None), Err)
            }
        }
    }

    /// Ends the peer's access where it is done.
    pub(super) fn close<N: Nic>(&mut self, wire: &mut Wire<N>) -> Result<(), String> {
        while let Some((window, landed)) = self.to_close.pop() {
            if !wire.close(window)? {
                self.to_close.push((window, landed));
                break;
            }
            self.closing.insert(window, landed);
        }
        Ok(())
    }

    /// Takes the memory of windows that are closed.
    pub(super) fn take_closed(&mut self, polled: &mut Polled, pool: &Arc<Pool>) {
        for (window, buffer) in polled.closed.drain(..) {
            match self.closing.remove(&window).flatten() {
                Some(landed) => {
                    let message = pool.landed(buffer, landed.len as usize, self.owner);
                    self.ready.push((landed, message));
                }
                None => pool.landing_back(buffer, self.owner),
            }
        }
    }
}
