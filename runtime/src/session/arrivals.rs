//! What a driver reports: frames, bodies that landed, room.
//!
//! O(1) for each frame, beside a scan of one call's inbox for a body that lands later.

use bytes::Bytes;
use tonic::Status;

use super::error::{ConnectionError, Failure, Reset};
use super::frame::{CallId, Flags, Header, Kind};
use super::half::Half;
use super::head::{Metadata, ReceivedHead, decode_reply};
use super::slots::{Arrived, Found, Open, landed};
use super::state::{Event, Incoming, Phase, Role, Session, push_control, wake};
use super::window::{ReceiveWindow, SendWindow, cost};
use crate::invoke::End;
use crate::limits::Limits;
use crate::link::{Body, Link};
use crate::stream::OWN_MEMORY_MIN;

/// Parts that may wait in the buffers that they were read into. Each may keep a whole buffer of 64 KiB alive whatever
/// its own size, so beyond this number small messages are copied; readers that keep up never get there.
const SHARED_PARTS: usize = 1024;

impl Session {
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
        let body = if has_message && matches!(body, Body::None) { Body::Here(Bytes::new()) } else { body };
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
            wake(&mut open.reader, &mut self.woken);
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
                wake(&mut open.writer, &mut self.woken);
            }
        }
    }

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
        let charge = if matches!(body, Body::None) { 0 } else { cost(header.body_len) };
        if self.held + charge > self.local.receive_budget {
            self.push_status(link, id, &budget_status(&self.local));
            return Ok(Event::Handled);
        }
        if charge > 0 && !receive_window.charge(charge) {
            return Err(ConnectionError::WindowExceeded(id));
        }
        self.held += charge;
        let ended = receive == Half::Ended;
        let send_window = SendWindow::new(self.remote.window);
        let mut open = Open::new(Half::AwaitHead, receive, send_window, receive_window);
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
            Role::Client => decode_reply(&head, begins, ends)?,
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
        wake(&mut open.reader, &mut self.woken);
        if self.role == Role::Client && ends {
            // Whatever is still being sent for this call is of no use to anybody.
            open.send = Half::Ended;
            wake(&mut open.writer, &mut self.woken);
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
                self.end_unlanded(id, End::NotSent(Status::unavailable("the server takes no new calls")));
            }
            (Role::Client, reset) => {
                let status = Status::unavailable(format!("the server reset the call ({reset:?})"));
                self.end_unlanded(id, End::Outcome(Err(status)));
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
                wake(&mut open.writer, &mut self.woken);
                Ok(())
            }
            Found::Over => Ok(()),
            Found::Never => Err(ConnectionError::NoSuchCall(id)),
        }
    }
}

/// The same message in memory of its own, when it is one that a link may have cut out of a shared buffer.
fn unshared(body: Body) -> Body {
    match body {
        Body::Here(message) if message.len() < OWN_MEMORY_MIN => Body::Here(Bytes::copy_from_slice(&message)),
        body => body,
    }
}

fn budget_status(limits: &Limits) -> Status {
    Status::resource_exhausted(format!(
        "the connection holds {} bytes of messages that nobody has read yet, its limit",
        limits.receive_budget
    ))
}
