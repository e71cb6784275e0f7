//! What callers and handlers do with their calls.
//!
//! Everything here goes straight into the link, or registers the task that must wait. O(1) each.

use std::task::{Poll, Waker};

use tonic::Status;

use super::error::Reset;
use super::frame::{CallId, Flags, Frame, Kind};
use super::half::Half;
use super::head::ReplyHead;
use super::slots::{Arrived, Found, Open, landed};
use super::state::{OpenError, Phase, Role, Session, push_control};
use super::window::{ReceiveWindow, SendWindow, cost};
use crate::codec::Encode;
use crate::invoke::{End, Inbound, NewCall, Part, SendError, register};
use crate::link::{Body, Link};

impl Session {
    /// As a client: opens a call.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing was sent.
    pub fn open<L: Link>(&mut self, link: &mut L, call: &NewCall<'_>) -> Result<CallId, OpenError> {
        let NewCall { head, deadline, message, end, waker, .. } = call;
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
        let flags = flags(true, message.is_some(), *end);
        let mut send_window = SendWindow::new(self.remote.window);
        if let Some((_, len)) = message {
            send_window.charge(cost(len));
        }
        let began = link.position();
        // Before anything is noted of the call: encoding runs the caller's code, which may panic.
        let frame = Frame::new(Kind::Open, flags, id, Some((head, head_len)), message);
        link.push(&Frame { path: Some(head.path), ..frame });
        let send = Half::AwaitHead.after(flags).unwrap_or(Half::Ended);
        let receive_window = ReceiveWindow::new(self.local.window);
        let open = Open::new(send, Half::AwaitHead, send_window, receive_window);
        self.slots.insert(id, Open { deadline: *deadline, began, reader: waker.cloned(), ..open });
        self.note_deadline(*deadline);
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
        let head_len = match head.is_empty() {
            true => 0,
            false => match head.check().and_then(|()| self.check_head(&head)) {
                Ok(len) => len,
                Err(error) => return Poll::Ready(Err(error)),
            },
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
        let Found::Open(open, inbox) = self.slots.find(id) else { return };
        match self.role {
            Role::Server => {
                self.push_status(link, id, status);
                self.close_early(id);
            }
            // A server that has ended the call may still owe the body of its last message.
            Role::Client if open.receive != Half::Ended || inbox.iter().any(Arrived::is_unlanded) => {
                push_control(link, Kind::Reset, id, &[Reset::Cancelled.encode()]);
                self.end_locally(id, End::Outcome(Err(status.clone())));
            }
            Role::Client => {}
        }
    }
}

#[inline]
fn flags(head: bool, message: bool, end: bool) -> Flags {
    Flags::NONE.with_if(Flags::HEAD, head).with_if(Flags::MESSAGE, message).with_if(Flags::END, end)
}
