//! From what arrived to the session.
//!
//! Owns [`Arrivals`]: frames that a server holds back. Invariant: what the link exchanges for itself is read at once,
//! whatever is held, since that is what makes room; a receive counts as used until the last frame of its message was
//! taken. A client holds nothing back. Bounded by the receives that the peer may use. Never: runs a handler.

use std::collections::VecDeque;

use bytes::Bytes;
use byway_runtime::connection::Turn;
use byway_runtime::link::Body;
use byway_runtime::session::{Event, Failure, Header, Incoming, Role};

use super::landings::{Announced, Landings};
use crate::link::{RdmaLink, Target};
use crate::protocol::credit::Credits;
use crate::protocol::{Received, ReceivedBody, TransferId};
use crate::wire::Arrival;

/// A frame that waits, and the message that it came in.
#[derive(Debug)]
struct Held {
    message: u64,
    header: Header,
    head: Bytes,
    body: Later,
}

#[derive(Debug)]
enum Later {
    Here(Bytes),
    Number(u64, Option<TransferId>),
}

/// Frames that wait until there is room for what they may cause.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    held: VecDeque<Held>,
    messages: u64,
}

impl Arrivals {
    /// Takes everything that arrived. `events` is called after each thing that may have caused some.
    ///
    /// # Errors
    /// The peer broke the protocol, or said goodbye.
    pub(super) fn handle(
        &mut self,
        turn: &mut Turn<'_, RdmaLink>,
        role: Role,
        arrivals: &mut VecDeque<Arrival>,
        landings: &mut Landings,
        calls: &mut Vec<Incoming>,
        events: &mut dyn FnMut(&mut Turn<'_, RdmaLink>, &mut Landings),
    ) -> Result<(), Failure> {
        self.take_held(turn, landings, calls)?;
        while let Some(arrival) = arrivals.pop_front() {
            match arrival {
                Arrival::Write(immediate) => {
                    turn.link().endpoint.handle_write(immediate)?;
                    turn.link().endpoint.handle_returned(Credits(1));
                }
                Arrival::Message(message) => self.message(turn, role, &message, landings, calls, events)?,
            }
            events(turn, landings);
        }
        let held = Credits(self.receives_held());
        turn.link().endpoint.set_held(held);
        Ok(())
    }

    fn message(
        &mut self,
        turn: &mut Turn<'_, RdmaLink>,
        role: Role,
        message: &Bytes,
        landings: &mut Landings,
        calls: &mut Vec<Incoming>,
        events: &mut dyn FnMut(&mut Turn<'_, RdmaLink>, &mut Landings),
    ) -> Result<(), Failure> {
        self.messages += 1;
        let mut items = turn.link().endpoint.handle_message(message)?;
        while let Some(received) = turn.link().endpoint.next_received(&mut items)? {
            match received {
                Received::Frame { header, head, body } => {
                    let body = match body {
                        ReceivedBody::Here(bytes) => Later::Here(shared(message, bytes)),
                        ReceivedBody::Later { number, announced } => Later::Number(number, announced),
                    };
                    if role == Role::Client {
                        turn.link().note_reply(&header);
                    }
                    let head = shared(message, head);
                    let frame = Held { message: self.messages, header, head, body };
                    if role == Role::Server && (!self.held.is_empty() || !accepts(turn)) {
                        self.held.push_back(frame);
                    } else {
                        hand_over(turn, frame, landings, calls)?;
                    }
                }
                Received::Piece { landing, offset, bytes } => {
                    if let Some(Target::Pieces(memory)) = turn.link().targets.get_mut(&landing) {
                        debug_assert_eq!(memory.len(), offset as usize, "pieces come in order");
                        memory.extend_from_slice(bytes);
                    }
                }
                // A second one proves nothing more.
                Received::Probe(_) => {}
            }
            events(turn, landings);
        }
        if self.held.back().is_none_or(|held| held.message != self.messages) {
            turn.link().endpoint.handle_returned(Credits(1));
        }
        Ok(())
    }

    /// Hands over what was held back, as far as there is room now.
    fn take_held(
        &mut self,
        turn: &mut Turn<'_, RdmaLink>,
        landings: &mut Landings,
        calls: &mut Vec<Incoming>,
    ) -> Result<(), Failure> {
        while !self.held.is_empty() && accepts(turn) {
            let Some(frame) = self.held.pop_front() else { break };
            let message = frame.message;
            hand_over(turn, frame, landings, calls)?;
            if self.held.front().is_none_or(|next| next.message != message) {
                turn.link().endpoint.handle_returned(Credits(1));
            }
        }
        Ok(())
    }

    fn receives_held(&self) -> u32 {
        let (mut count, mut last) = (0, 0);
        for held in &self.held {
            count += u32::from(held.message != last);
            last = held.message;
        }
        count
    }
}

/// Whether a server takes frames: credits for its answers are there, and not too many handlers are left behind.
fn accepts(turn: &mut Turn<'_, RdmaLink>) -> bool {
    turn.link().endpoint.accepts() && !turn.has_many_handlers()
}

fn hand_over(
    turn: &mut Turn<'_, RdmaLink>,
    frame: Held,
    landings: &mut Landings,
    calls: &mut Vec<Incoming>,
) -> Result<(), Failure> {
    let Held { header, head, body, .. } = frame;
    let (body, announced) = match body {
        Later::Here(bytes) if bytes.is_empty() => (Body::None, None),
        Later::Here(bytes) => (Body::Here(bytes), None),
        Later::Number(number, announced) => {
            let announced = announced.map(|transfer| Announced {
                transfer,
                call: header.call,
                number,
                len: header.body_len,
            });
            (Body::Later(number), announced)
        }
    };
    match turn.frame(&header, head, body)? {
        Event::Handled => {}
        Event::Call(incoming) => calls.push(incoming),
        Event::Closed(failure) => return Err(failure),
    }
    if let Some(announced) = announced {
        landings.announced(turn, announced);
    }
    Ok(())
}

/// A part of a message, by reference.
fn shared(message: &Bytes, part: &[u8]) -> Bytes {
    if part.is_empty() { Bytes::new() } else { message.slice_ref(part) }
}
