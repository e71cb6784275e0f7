//! The session: composes heads, windows, halves and slots.
//!
//! See the module's documentation for the contract. Everything here is O(1) per frame except
//! [`Session::handle_failure`], which ends every call.

use std::collections::{HashSet, VecDeque};
use std::task::{Poll, Waker};

use bytes::Bytes;
use tonic::Status;

use super::error::{ConnectionError, Failure, Reset};
use super::frame::{CallId, Flags, Frame, Header, Kind, Raw};
use super::half::Half;
use super::head::{Metadata, ReceivedHead, ReplyHead, RequestHead, decode_reply};
use super::slots::{Arrived, Found, Open, Slots, landed};
use super::window::{ReceiveWindow, SendWindow, cost};
use crate::codec::Encode;
use crate::invoke::{End, Inbound, Part, SendError};
use crate::limits::Limits;
use crate::link::{Body, Link};
use crate::stream::OWN_MEMORY_MIN;

/// Parts that may wait in the buffers that they were read into. Each may keep a whole buffer of 64 KiB alive whatever
/// its own size, so beyond this number small messages are copied; readers that keep up never get there.
const SHARED_PARTS: usize = 1024;

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

enum Phase {
    Open,
    Draining,
    Over(Failure),
}

/// One side of one connection.
pub struct Session {
    role: Role,
    local: Limits,
    remote: Limits,
    slots: Slots,
    phase: Phase,
    /// Bytes that wait for their readers, over all calls.
    held: u64,
    /// Parts that wait for their readers, over all calls.
    waiting: usize,
    /// As a server: calls that are over and whose handlers have not left.
    leavers: HashSet<CallId>,
    /// A ping that the link had no room to answer: the latest stands for all of them.
    owed_pong: Option<Bytes>,
    /// Calls whose writers wait for room in the link.
    crowd: VecDeque<CallId>,
    woken: Vec<Waker>,
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
    pub fn accepts(&self) -> bool {
        self.handlers() < 2 * usize::from(self.local.max_calls).max(1)
    }

    /// Why the connection takes no new calls, if so.
    pub fn closed(&self) -> Option<Status> {
        match &self.phase {
            Phase::Open => None,
            Phase::Draining => Some(Status::unavailable("the connection is being drained")),
            Phase::Over(failure) => Some(failure.status()),
        }
    }

    /// Whether the connection takes no new calls.
    pub fn is_closing(&self) -> bool {
        !matches!(self.phase, Phase::Open)
    }

    /// Whether the connection takes no new calls and the last one has finished.
    pub fn is_done(&self) -> bool {
        self.is_closing() && self.is_idle()
    }

    /// Whether every call and handler has finished.
    pub fn is_idle(&self) -> bool {
        self.slots.open() == 0 && self.leavers.is_empty()
    }

    /// Moves the tasks to wake to the end of `woken`.
    pub fn take_woken(&mut self, woken: &mut Vec<Waker>) {
        woken.append(&mut self.woken);
    }

    // ---- What callers and handlers do ----

    /// As a client: opens a call.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing was sent.
    pub fn open<L: Link>(
        &mut self,
        link: &mut L,
        head: &RequestHead<'_>,
        message: Option<&dyn Encode>,
        end: bool,
    ) -> Result<CallId, OpenError> {
        if let Some(status) = self.closed() {
            return Err(OpenError::Closed(status));
        }
        if !self.may_open(link) {
            return Err(OpenError::Busy);
        }
        let head_len = head.check().and_then(|()| self.check_head(head)).map_err(OpenError::Invalid)?;
        let message =
            message.map(|message| self.check_message(message)).transpose().map_err(OpenError::Invalid)?;
        let id = self.slots.reserve(self.remote.max_calls).ok_or(OpenError::Busy)?;
        let flags = flags(true, message.is_some(), end);
        let mut send_window = SendWindow::new(self.remote.window);
        if let Some((_, len)) = message {
            send_window.charge(cost(len));
        }
        let began = link.position();
        // Before anything is noted of the call: encoding runs the caller's code, which may panic.
        link.push(&Frame::new(Kind::Open, flags, id, Some((head, head_len)), message));
        self.slots.insert(
            id,
            Open {
                send: Half::AwaitHead.after(flags).unwrap_or(Half::Ended),
                receive: Half::AwaitHead,
                send_window,
                receive_window: ReceiveWindow::new(self.local.window),
                began,
                held: 0,
                deaf: false,
                in_crowd: false,
                reader: None,
                writer: None,
                observer: None,
            },
        );
        Ok(id)
    }

    /// Whether [`open`](Self::open) would find a free call and room in the link.
    pub fn may_open<L: Link>(&self, link: &L) -> bool {
        self.slots.has_free(self.remote.max_calls) && link.has_room()
    }

    /// Sends a part of a call, or registers `waker` until the call's window and the link have room for its message.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn poll_send<L: Link>(
        &mut self,
        link: &mut L,
        id: CallId,
        part: Part<'_>,
        waker: &Waker,
    ) -> Poll<Result<(), SendError>> {
        let head = ReplyHead { initial: part.head, end: part.end.filter(|_| self.role == Role::Server) };
        let head_len = match head.check().and_then(|()| self.check_head(&head)) {
            Ok(len) => len,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let message = match part.message.map(|message| self.check_message(message)).transpose() {
            Ok(message) => message,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let flags = flags(part.head.is_some(), message.is_some(), part.end.is_some());
        let Found::Open(open, _) = self.slots.find(id) else { return Poll::Ready(Err(SendError::Over)) };
        let Some(after) = open.send.after(flags) else { return Poll::Ready(Err(SendError::Over)) };
        if let Some((_, len)) = message {
            let has_room = link.has_room();
            if !open.send_window.is_open() || !has_room {
                register(&mut open.writer, waker);
                if !has_room && !open.in_crowd {
                    open.in_crowd = true;
                    self.crowd.push_back(id);
                }
                return Poll::Pending;
            }
            open.send_window.charge(cost(len));
        }
        open.send = after;
        let head = (head_len > 0).then_some((&head as &dyn Encode, head_len));
        link.push(&Frame::new(Kind::Data, flags, id, head, message));
        if self.role == Role::Server && after == Half::Ended {
            self.close(id);
        }
        Poll::Ready(Ok(()))
    }

    /// Takes the next part that arrived, or registers `waker` until there is one.
    pub fn poll_receive<L: Link>(&mut self, link: &mut L, id: CallId, waker: &Waker) -> Poll<Inbound> {
        let Found::Open(open, inbox) = self.slots.find(id) else {
            let over = End::Outcome(Err(Status::cancelled("the call is over")));
            return Poll::Ready(Inbound { end: Some(over), ..Inbound::default() });
        };
        let is_there = inbox.front().is_some_and(|arrived| !matches!(arrived.body, Body::Later(_)));
        let arrived = if is_there { inbox.pop_front() } else { None };
        self.waiting -= usize::from(arrived.is_some());
        // Who asks for the next part is done with the message that came with the call.
        let taken = std::mem::take(&mut open.held) + arrived.as_ref().map_or(0, |arrived| arrived.cost);
        if taken > 0 {
            self.held -= taken;
            let grant = open.receive_window.consume(taken);
            if let Some(grant) = grant.filter(|_| open.receive != Half::Ended) {
                push_control(link, Kind::Window, id, &grant.to_le_bytes());
            }
        }
        let Some(arrived) = arrived else {
            register(&mut open.reader, waker);
            return Poll::Pending;
        };
        if arrived.end.is_some() && self.role == Role::Client {
            self.close(id);
        }
        Poll::Ready(Inbound { head: arrived.head, message: landed(arrived.body), end: arrived.end })
    }

    /// Ready once the call is over; until then registers `waker`.
    pub fn poll_over(&mut self, id: CallId, waker: &Waker) -> Poll<()> {
        let Found::Open(open, _) = self.slots.find(id) else { return Poll::Ready(()) };
        register(&mut open.observer, waker);
        Poll::Pending
    }

    /// Ends a call whose owner has no further use for it: a client's is cancelled, a server's gets `status`.
    pub fn abandon<L: Link>(&mut self, link: &mut L, id: CallId, status: &Status) {
        let over = matches!(self.phase, Phase::Over(_));
        match self.role {
            Role::Client => {
                if let Found::Open(open, _) = self.slots.find(id)
                    && open.receive != Half::Ended
                    && !over
                {
                    push_control(link, Kind::Reset, id, &[Reset::Cancelled.encode()]);
                }
            }
            Role::Server if self.leavers.remove(&id) => return,
            Role::Server => {
                if let Found::Open(..) = self.slots.find(id) {
                    self.push_status(link, id, status);
                }
            }
        }
        self.close(id);
    }

    /// Ends a call with `status` while its owner still holds it, and abandons it later. A server's handler is told by
    /// [`poll_over`](Self::poll_over), a client's reader finds `status` after what arrived before.
    pub fn finish<L: Link>(&mut self, link: &mut L, id: CallId, status: &Status) {
        let Found::Open(open, _) = self.slots.find(id) else { return };
        match self.role {
            Role::Server => {
                self.push_status(link, id, status);
                self.close_early(id);
            }
            Role::Client if open.receive != Half::Ended => {
                push_control(link, Kind::Reset, id, &[Reset::Cancelled.encode()]);
                self.end_locally(id, End::Outcome(Err(status.clone())));
            }
            Role::Client => {}
        }
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

    // ---- What the driver reports ----

    /// Takes a frame that arrived.
    ///
    /// # Errors
    /// The peer broke the protocol: the driver says goodbye, closes the link and reports the failure.
    pub fn handle_frame<L: Link>(
        &mut self,
        link: &mut L,
        header: &Header,
        head: Bytes,
        body: Body,
    ) -> Result<Event, ConnectionError> {
        let has_message = header.flags.contains(Flags::MESSAGE);
        let body = if has_message && body == Body::None { Body::Here(Bytes::new()) } else { body };
        match header.kind {
            Kind::Open => return self.handle_open(link, header, head, body),
            Kind::Data => self.handle_data(link, header, head, body)?,
            Kind::Reset => self.handle_reset(header.call, &head)?,
            Kind::Window => self.handle_window(header.call, &head)?,
            Kind::Ping => match head.len() {
                8 if link.has_room() => push_control(link, Kind::Pong, CallId::CONNECTION, &head),
                8 => self.owed_pong = Some(head),
                _ => return Err(ConnectionError::MalformedHead("a ping is eight bytes")),
            },
            Kind::Pong => {}
            Kind::Drain if self.role == Role::Client => {
                if matches!(self.phase, Phase::Open) {
                    self.phase = Phase::Draining;
                }
            }
            Kind::Drain => return Err(ConnectionError::WrongDirection("a drain")),
            Kind::Close => {
                let reason = String::from_utf8_lossy(&head);
                return Ok(Event::Closed(Failure::new(format!("the peer closed it: {reason}"))));
            }
        }
        Ok(Event::Handled)
    }

    /// Takes a body that was reported as [`Body::Later`].
    pub fn handle_landed(&mut self, id: CallId, number: u64, message: Bytes) {
        let Found::Open(open, inbox) = self.slots.find(id) else { return };
        if let Some(arrived) = inbox.iter_mut().find(|arrived| arrived.body == Body::Later(number)) {
            arrived.body = Body::Here(message);
            self.woken.extend(open.reader.take());
        }
    }

    /// Whether a body that was reported as [`Body::Later`] still has a reader.
    pub fn awaits(&mut self, id: CallId, number: u64) -> bool {
        let Found::Open(_, inbox) = self.slots.find(id) else { return false };
        inbox.iter().any(|arrived| arrived.body == Body::Later(number))
    }

    /// Wakes the senders that waited for room in the link, and answers a ping that did.
    pub fn handle_room<L: Link>(&mut self, link: &mut L) {
        if let Some(head) = self.owed_pong.take() {
            push_control(link, Kind::Pong, CallId::CONNECTION, &head);
        }
        while let Some(id) = self.crowd.pop_front() {
            if let Found::Open(open, _) = self.slots.find(id) {
                open.in_crowd = false;
                self.woken.extend(open.writer.take());
            }
        }
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

    fn fail_call(&mut self, id: CallId, failure: &Failure, delivered: u64) {
        let Found::Open(open, inbox) = self.slots.find(id) else { return };
        // What has not landed never will, and what comes after it has lost its order.
        let whole = inbox.iter().take_while(|arrived| !matches!(arrived.body, Body::Later(_))).count();
        for lost in inbox.drain(whole..) {
            self.held -= lost.cost;
            self.waiting -= 1;
        }
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

    // ---- Frames ----

    fn handle_open<L: Link>(
        &mut self,
        link: &mut L,
        header: &Header,
        head: Bytes,
        body: Body,
    ) -> Result<Event, ConnectionError> {
        let id = header.call;
        if self.role == Role::Client {
            return Err(ConnectionError::WrongDirection("a call"));
        }
        if !self.slots.advance(id, self.local.max_calls) {
            return Err(ConnectionError::BadCallId(id));
        }
        let receive = match Half::AwaitHead.after(header.flags) {
            Some(receive) if header.flags.contains(Flags::HEAD) => receive,
            _ => return Err(ConnectionError::OutOfPlace(id)),
        };
        let head = ReceivedHead::decode(head)?;
        // A slot's generations come round again. While a handler holds a call of the same id, it would answer this one.
        let is_taken = !self.leavers.is_empty() && self.leavers.contains(&id);
        if is_taken || !matches!(self.phase, Phase::Open) {
            push_control(link, Kind::Reset, id, &[Reset::Refused.encode()]);
            return Ok(Event::Handled);
        }
        let mut receive_window = ReceiveWindow::new(self.local.window);
        let charge = if body == Body::None { 0 } else { cost(header.body_len) };
        if self.held + charge > self.local.receive_budget {
            self.push_status(link, id, &budget_status(&self.local));
            return Ok(Event::Handled);
        }
        if charge > 0 && !receive_window.charge(charge) {
            return Err(ConnectionError::WindowExceeded(id));
        }
        self.held += charge;
        let ended = receive == Half::Ended;
        let mut open = Open {
            send: Half::AwaitHead,
            receive,
            send_window: SendWindow::new(self.remote.window),
            receive_window,
            began: 0,
            held: 0,
            deaf: false,
            in_crowd: false,
            reader: None,
            writer: None,
            observer: None,
        };
        if let Body::Later(_) = body {
            self.slots.insert(id, open);
            let end = ended.then(|| End::Outcome(Ok(Metadata::default())));
            if let Found::Open(_, inbox) = self.slots.find(id) {
                inbox.push_back(Arrived { head: None, body, end, cost: charge });
                self.waiting += 1;
            }
            return Ok(Event::Call(Incoming { id, head, message: None, ended: false }));
        }
        open.held = charge;
        self.slots.insert(id, open);
        Ok(Event::Call(Incoming { id, head, message: landed(body), ended }))
    }

    fn handle_data<L: Link>(
        &mut self,
        link: &mut L,
        header: &Header,
        head: Bytes,
        body: Body,
    ) -> Result<(), ConnectionError> {
        let id = header.call;
        let (open, inbox) = match self.slots.find(id) {
            Found::Open(open, _) if open.deaf => return Ok(()),
            Found::Open(open, inbox) => (open, inbox),
            Found::Over => return Ok(()),
            Found::Never => return Err(ConnectionError::NoSuchCall(id)),
        };
        let ends = header.flags.contains(Flags::END);
        let begins = header.flags.contains(Flags::HEAD);
        open.receive = open.receive.after(header.flags).ok_or(ConnectionError::OutOfPlace(id))?;
        let (head, end) = match self.role {
            Role::Client => decode_reply(head, begins, ends)?,
            Role::Server if head.is_empty() => (None, ends.then(|| Ok(Metadata::default()))),
            Role::Server => return Err(ConnectionError::MalformedHead("a request goes on without a head")),
        };
        let mut charge = 0;
        if header.flags.contains(Flags::MESSAGE) {
            charge = cost(header.body_len);
            if !open.receive_window.charge(charge) {
                return Err(ConnectionError::WindowExceeded(id));
            }
        }
        if self.held + charge > self.local.receive_budget {
            // That call ends, the others go on.
            let status = budget_status(&self.local);
            match self.role {
                // Nothing is left to cancel: the server has ended it.
                Role::Client if ends => self.end_locally(id, End::Outcome(Err(status))),
                _ => self.finish(link, id, &status),
            }
            return Ok(());
        }
        self.held += charge;
        let body = if self.waiting < SHARED_PARTS { body } else { unshared(body) };
        inbox.push_back(Arrived { head, body, end: end.map(End::Outcome), cost: charge });
        self.waiting += 1;
        self.woken.extend(open.reader.take());
        if self.role == Role::Client && ends {
            // Whatever is still being sent for this call is of no use to anybody.
            open.send = Half::Ended;
            self.woken.extend(open.writer.take());
        }
        Ok(())
    }

    fn handle_reset(&mut self, id: CallId, head: &[u8]) -> Result<(), ConnectionError> {
        let &[code] = head else { return Err(ConnectionError::MalformedHead("a reset is one byte")) };
        if let Found::Never = self.slots.find(id) {
            return Err(ConnectionError::NoSuchCall(id));
        }
        match (self.role, Reset::decode(code)) {
            (Role::Server, _) => self.close_early(id),
            (Role::Client, Reset::Refused) => {
                self.end_locally(id, End::NotSent(Status::unavailable("the server takes no new calls")));
            }
            (Role::Client, reset) => {
                let status = Status::unavailable(format!("the server reset the call ({reset:?})"));
                self.end_locally(id, End::Outcome(Err(status)));
            }
        }
        Ok(())
    }

    fn handle_window(&mut self, id: CallId, head: &[u8]) -> Result<(), ConnectionError> {
        let Ok(grant) = <[u8; 4]>::try_from(head) else {
            return Err(ConnectionError::MalformedHead("a window is four bytes"));
        };
        match self.slots.find(id) {
            Found::Open(open, _) => {
                if !open.send_window.grant(u32::from_le_bytes(grant)) {
                    return Err(ConnectionError::MalformedHead("a window of more than 4 GiB"));
                }
                self.woken.extend(open.writer.take());
                Ok(())
            }
            Found::Over => Ok(()),
            Found::Never => Err(ConnectionError::NoSuchCall(id)),
        }
    }

    // ---- Endings ----

    /// As a client: ends a call without a word from the server; its reader finds `end` after what came before.
    fn end_locally(&mut self, id: CallId, end: End) {
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
    fn close_early(&mut self, id: CallId) {
        if let Found::Open(..) = self.slots.find(id) {
            self.leavers.insert(id);
            self.close(id);
        }
    }

    /// Forgets a call and wakes whoever waits for it. Nothing happens when it is over already.
    fn close(&mut self, id: CallId) {
        let reuse = self.role == Role::Client;
        let Some((mut open, unread)) = self.slots.remove(id, reuse) else { return };
        self.held -= open.held;
        for unread in unread {
            self.held -= unread.cost;
            self.waiting -= 1;
        }
        self.slots.trim(id);
        wake_all(&mut open, &mut self.woken);
    }

    fn push_status<L: Link>(&self, link: &mut L, id: CallId, status: &Status) {
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

    fn check_head(&self, head: &dyn Encode) -> Result<u16, SendError> {
        let (len, limit) = (head.encoded_len(), usize::from(self.remote.max_head));
        if len > limit { Err(SendError::HeadTooLarge { len, limit }) } else { Ok(len as u16) }
    }

    fn check_message<'a>(&self, message: &'a dyn Encode) -> Result<(&'a dyn Encode, u32), SendError> {
        let (len, limit) = (message.encoded_len(), self.remote.max_message as usize);
        if len > limit { Err(SendError::TooLarge { len, limit }) } else { Ok((message, len as u32)) }
    }
}

/// The same message in memory of its own, when it is one that a link may have cut out of a shared buffer.
fn unshared(body: Body) -> Body {
    match body {
        Body::Here(message) if message.len() < OWN_MEMORY_MIN => Body::Here(Bytes::copy_from_slice(&message)),
        body => body,
    }
}

fn flags(head: bool, message: bool, end: bool) -> Flags {
    Flags::NONE.with_if(Flags::HEAD, head).with_if(Flags::MESSAGE, message).with_if(Flags::END, end)
}

fn push_control<L: Link>(link: &mut L, kind: Kind, id: CallId, head: &[u8]) {
    let raw = Raw(head);
    let head = (!head.is_empty()).then_some((&raw as &dyn Encode, head.len() as u16));
    link.push(&Frame::new(kind, Flags::NONE, id, head, None));
}

fn budget_status(limits: &Limits) -> Status {
    Status::resource_exhausted(format!(
        "the connection holds {} bytes of messages that nobody has read yet, its limit",
        limits.receive_budget
    ))
}

fn register(place: &mut Option<Waker>, waker: &Waker) {
    match place {
        Some(known) if known.will_wake(waker) => {}
        _ => *place = Some(waker.clone()),
    }
}

fn wake_all(open: &mut Open, woken: &mut Vec<Waker>) {
    woken.extend(open.reader.take());
    woken.extend(open.writer.take());
    woken.extend(open.observer.take());
}
