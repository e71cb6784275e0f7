//! The session itself: what it is made of, and how calls end.
//!
//! `callers` has what callers and handlers do, `arrivals` what a driver reports; see the module's documentation for the
//! contract. Invariant: every way out of a call goes through one of the endings here.

use std::collections::{HashSet, VecDeque};
use std::task::Waker;

use bytes::Bytes;
use tokio::time::Instant;
use tonic::Status;

use super::error::Failure;
use super::frame::{CallId, Flags, Frame, Kind, Raw};
use super::half::Half;
use super::head::{ReceivedHead, ReplyHead};
use super::slots::{Arrived, Found, Open, Slots};
use crate::codec::Encode;
use crate::deadline::Deadline;
use crate::invoke::{End, SendError};
use crate::limits::Limits;
use crate::link::Link;

/// Which side of the connection a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Opens calls.
    Client,
    /// Answers them.
    Server,
}

/// A call that a client opened.
#[derive(Debug)]
pub struct Incoming {
    /// Its id.
    pub id: CallId,
    /// What the client said.
    pub head: ReceivedHead,
    /// The message that came with it.
    pub message: Option<Bytes>,
    /// Whether that was everything.
    pub ended: bool,
}

/// What a frame asks of the driver.
#[derive(Debug)]
pub enum Event {
    /// Nothing more.
    Handled,
    /// Dispatch this call.
    Call(Incoming),
    /// The peer has closed the connection and said why: report the failure and stop.
    Closed(Failure),
}

/// Why a call could not be opened.
#[derive(Debug)]
pub enum OpenError {
    /// All calls that the peer allows are open, or the link has no room.
    Busy,
    /// The connection takes no new calls: it is being drained, or is over.
    Closed(Status),
    /// The call itself cannot be sent.
    Invalid(SendError),
}

pub(super) enum Phase {
    Open,
    Draining,
    Over(Failure),
}

/// One side of one connection.
pub struct Session {
    pub(super) role: Role,
    pub(super) local: Limits,
    pub(super) remote: Limits,
    pub(super) slots: Slots,
    pub(super) phase: Phase,
    /// Bytes that wait for their readers, over all calls.
    pub(super) held: u64,
    /// Parts that wait for their readers, over all calls.
    pub(super) waiting: usize,
    /// As a server: calls that are over and whose handlers have not left.
    pub(super) leavers: HashSet<CallId>,
    /// A ping that the link had no room to answer: the latest stands for all of them.
    pub(super) owed_pong: Option<Bytes>,
    /// Calls whose writers wait for room in the link.
    pub(super) crowd: VecDeque<CallId>,
    /// No open call's deadline is earlier.
    pub(super) earliest: Option<Deadline>,
    pub(super) woken: Vec<Waker>,
}

impl Session {
    /// A session between a side that accepts `local` and a peer that accepts `remote`.
    pub fn new(role: Role, local: Limits, remote: Limits) -> Self {
        Self {
            role,
            local,
            remote,
            slots: Slots::default(),
            phase: Phase::Open,
            held: 0,
            waiting: 0,
            leavers: HashSet::new(),
            owed_pong: None,
            crowd: VecDeque::new(),
            earliest: None,
            woken: Vec::new(),
        }
    }

    /// What this side accepts.
    pub fn local(&self) -> &Limits {
        &self.local
    }

    /// Calls that are open.
    pub fn open_calls(&self) -> usize {
        self.slots.open()
    }

    /// Handlers that have not finished, including those whose callers have gone.
    #[inline]
    pub fn handlers(&self) -> usize {
        let current = if self.role == Role::Server { self.slots.open() } else { 0 };
        current + self.leavers.len()
    }

    /// Bytes received that wait for their readers.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Whether a server should go on to read frames. It pauses while cancelled calls leave more handlers behind than
    /// it allows calls, so that opening and cancelling in a loop cannot pile them up.
    #[inline]
    pub fn accepts(&self) -> bool {
        self.handlers() < 2 * usize::from(self.local.max_calls).max(1)
    }

    /// Why the connection takes no new calls, if so.
    #[inline]
    pub fn closed(&self) -> Option<Status> {
        match &self.phase {
            Phase::Open => None,
            Phase::Draining => Some(Status::unavailable("the connection is being drained")),
            Phase::Over(failure) => Some(failure.status()),
        }
    }

    /// Whether the connection takes no new calls.
    #[inline]
    pub fn is_closing(&self) -> bool {
        !matches!(self.phase, Phase::Open)
    }

    /// Whether the connection takes no new calls and the last one has finished.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.is_closing() && self.is_idle()
    }

    /// Whether every call and handler has finished.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.slots.open() == 0 && self.leavers.is_empty()
    }

    /// Whether there are tasks to wake.
    #[inline]
    pub fn has_woken(&self) -> bool {
        !self.woken.is_empty()
    }

    /// Moves the tasks to wake to the end of `woken`.
    pub fn take_woken(&mut self, woken: &mut Vec<Waker>) {
        woken.append(&mut self.woken);
    }

    /// As a server: lets open calls go on and takes no new ones.
    pub fn drain<L: Link>(&mut self, link: &mut L) {
        if matches!(self.phase, Phase::Open) {
            self.phase = Phase::Draining;
            push_control(link, Kind::Drain, CallId::CONNECTION, &[]);
        }
    }

    /// As a client: opens no further calls.
    pub fn retire(&mut self) {
        if matches!(self.phase, Phase::Open) {
            self.phase = Phase::Draining;
        }
    }

    /// As a server: ends every open call with `status`.
    pub fn end_calls<L: Link>(&mut self, link: &mut L, status: &Status) {
        for id in self.slots.ids() {
            self.finish(link, id, status);
        }
    }

    #[inline]
    pub(super) fn note_deadline(&mut self, deadline: Option<Deadline>) {
        if let Some(deadline) = deadline {
            self.earliest = Some(self.earliest.map_or(deadline, |earliest| earliest.min(deadline)));
        }
    }

    /// When the driver should call [`handle_deadlines`](Self::handle_deadlines): when the next open call reaches its
    /// deadline, or earlier, since calls that end before theirs are not looked for.
    #[inline]
    pub fn next_deadline(&self) -> Option<Deadline> {
        self.earliest
    }

    /// As a client: ends the calls whose deadlines have passed at `now`. Looks at every open call, but a connection's
    /// calls are looked at only once for all that came and went since.
    pub fn handle_deadlines<L: Link>(&mut self, link: &mut L, now: Instant) {
        self.earliest = None;
        for id in self.slots.ids() {
            let Found::Open(open, _) = self.slots.find(id) else { continue };
            match open.deadline {
                Some(deadline) if deadline.at() <= now => self.finish(link, id, &Deadline::status()),
                deadline => self.note_deadline(deadline),
            }
        }
    }

    /// Asks the peer for a sign of life.
    pub fn ping<L: Link>(&mut self, link: &mut L) {
        push_control(link, Kind::Ping, CallId::CONNECTION, &[0; 8]);
    }

    /// Tells the peer why this side is about to close the connection.
    pub fn say_goodbye<L: Link>(&mut self, link: &mut L, failure: &Failure) {
        let reason = failure.reason().as_bytes();
        let len = reason.len().min(usize::from(self.remote.max_head));
        push_control(link, Kind::Close, CallId::CONNECTION, &reason[..len]);
    }

    /// Ends every call: the link is over, and delivered what was pushed before position `delivered`.
    pub fn handle_failure(&mut self, failure: &Failure, delivered: u64) {
        if matches!(self.phase, Phase::Over(_)) {
            return;
        }
        self.phase = Phase::Over(failure.clone());
        for id in self.slots.ids() {
            match self.role {
                Role::Server => self.close_early(id),
                Role::Client => self.fail_call(id, failure, delivered),
            }
        }
    }

    pub(super) fn fail_call(&mut self, id: CallId, failure: &Failure, delivered: u64) {
        self.drop_unlanded(id);
        let Found::Open(open, inbox) = self.slots.find(id) else { return };
        if inbox.back().is_none_or(|last| last.end.is_none()) {
            let status = failure.status();
            let never_sent = open.began >= delivered;
            let end = if never_sent { End::NotSent(status) } else { End::Outcome(Err(status)) };
            inbox.push_back(Arrived::end(end));
            self.waiting += 1;
        }
        open.receive = Half::Ended;
        open.send = Half::Ended;
        wake_all(open, &mut self.woken);
    }

    // ---- Endings ----

    /// Drops what arrived from the first body on that has not landed: what has not landed never will, and what comes after
    /// it has lost its order.
    fn drop_unlanded(&mut self, id: CallId) {
        let Found::Open(_, inbox) = self.slots.find(id) else { return };
        let whole = inbox.iter().take_while(|arrived| !arrived.is_unlanded()).count();
        for lost in inbox.drain(whole..) {
            self.held -= lost.cost;
            self.waiting -= 1;
        }
    }

    /// As a client: ends a call without a word from the server, or without waiting for the bodies of what it said; its
    /// reader finds `end` after what is there.
    pub(super) fn end_locally(&mut self, id: CallId, end: End) {
        self.drop_unlanded(id);
        let Found::Open(open, inbox) = self.slots.find(id) else { return };
        if inbox.back().is_some_and(|last| last.end.is_some()) {
            return;
        }
        open.receive = Half::Ended;
        open.send = Half::Ended;
        open.deaf = true;
        inbox.push_back(Arrived::end(end));
        self.waiting += 1;
        wake_all(open, &mut self.woken);
    }

    /// As a server: ends a call whose handler has not answered it, and has yet to leave.
    pub(super) fn close_early(&mut self, id: CallId) {
        if let Found::Open(..) = self.slots.find(id) {
            self.leavers.insert(id);
            self.close(id);
        }
    }

    /// Forgets a call and wakes whoever waits for it. Nothing happens when it is over already.
    #[inline]
    pub(super) fn close(&mut self, id: CallId) {
        let reuse = self.role == Role::Client;
        let (held, waiting, woken) = (&mut self.held, &mut self.waiting, &mut self.woken);
        self.slots.remove(id, reuse, |open, inbox| {
            *held -= open.held;
            for unread in inbox.iter() {
                *held -= unread.cost;
                *waiting -= 1;
            }
            wake_all(open, woken);
        });
    }

    pub(super) fn push_status<L: Link>(&self, link: &mut L, id: CallId, status: &Status) {
        let short;
        let mut head = ReplyHead { initial: None, end: Some(Err(status)) };
        let len = match head.check().and_then(|()| self.check_head(&head)) {
            Ok(len) => len,
            Err(error) => {
                short = error.status();
                head.end = Some(Err(&short));
                head.encoded_len() as u16
            }
        };
        link.push(&Frame::new(Kind::Data, Flags::END, id, Some((&head, len)), None));
    }

    #[inline]
    pub(super) fn check_head(&self, head: &dyn Encode) -> Result<u16, SendError> {
        let (len, limit) = (head.encoded_len(), usize::from(self.remote.max_head));
        if len > limit { Err(SendError::HeadTooLarge { len, limit }) } else { Ok(len as u16) }
    }

    #[inline]
    pub(super) fn check_message<'a>(
        &self,
        message: &'a dyn Encode,
    ) -> Result<(&'a dyn Encode, u32), SendError> {
        let (len, limit) = (message.encoded_len(), self.remote.max_message as usize);
        if len > limit { Err(SendError::TooLarge { len, limit }) } else { Ok((message, len as u32)) }
    }
}

pub(super) fn push_control<L: Link>(link: &mut L, kind: Kind, id: CallId, head: &[u8]) {
    let raw = Raw(head);
    let head = (!head.is_empty()).then_some((&raw as &dyn Encode, head.len() as u16));
    link.push(&Frame::new(kind, Flags::NONE, id, head, None));
}

#[inline]
pub(super) fn wake(waiting: &mut Option<Waker>, woken: &mut Vec<Waker>) {
    if let Some(waker) = waiting.take() {
        woken.push(waker);
    }
}

#[inline]
pub(super) fn wake_all(open: &mut Open, woken: &mut Vec<Waker>) {
    wake(&mut open.reader, woken);
    wake(&mut open.writer, woken);
    wake(&mut open.observer, woken);
}
