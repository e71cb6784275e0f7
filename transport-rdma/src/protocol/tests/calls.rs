//! A session in miniature: calls, their parts, and readers of which some are slow.
//!
//! Each frame's head is its number in its direction of its call, and each body is made of that number, so
//! that whatever arrives is known to be the right thing in the right place.

use std::collections::VecDeque;

use bytes::Bytes;
use byway_runtime::Encoded;
use byway_runtime::session::{CallId, Flags, Frame, Header, Kind, Role};
use fastrand::Rng;

use super::super::event::ReceivedBody;
use super::side::{Side, memory};
use crate::nic::RemoteSlice;

/// A message that has arrived or will.
pub(super) enum Part {
    Later(u64),
    Here(Option<u64>),
    End,
}

#[derive(Default)]
pub(super) struct Call {
    to_send: u32,
    next_out: u32,
    next_in: u32,
    pub(super) inbox: VecDeque<Part>,
    slow: bool,
}

fn body(call: CallId, seq: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| (call.0 * 31 + seq * 7 + at as u32) as u8).collect()
}

impl Side {
    fn push(
        &mut self,
        kind: Kind,
        flags: Flags,
        call: CallId,
        len: Option<usize>,
        reply: Option<RemoteSlice>,
    ) {
        let seq = self.calls.get_mut(&call).map_or(0, |call| {
            call.next_out += 1;
            call.next_out - 1
        });
        let (head, bytes) =
            (Encoded(Bytes::copy_from_slice(&seq.to_le_bytes())), body(call, seq, len.unwrap_or(0)));
        let encoded = Encoded(Bytes::from(bytes.clone()));
        let header = Header {
            kind,
            flags: flags.with_if(Flags::MESSAGE, len.is_some()),
            head_len: 4,
            call,
            body_len: bytes.len() as u32,
        };
        let frame = Frame { header, head: Some(&head), body: len.map(|_| &encoded as _), path: None };
        let pushed = self.endpoint.push(&frame, reply, memory).expect("there is room");
        match pushed.transfer {
            Some(transfer) => assert!(self.bodies.insert(transfer, bytes).is_none(), "a number of its own"),
            None => self.counts.small += usize::from(len.is_some()),
        }
        if let Some(slice) = reply {
            match pushed.offered {
                Some(landing) => assert!(self.by_landing.insert(landing, slice.address).is_none()),
                None => self.close(slice.address),
            }
        }
    }

    pub(super) fn open_call(&mut self, random: &mut Rng) -> bool {
        if !self.endpoint.has_room() || self.calls.len() > 12 {
            return false;
        }
        let call = CallId(self.next_call);
        self.next_call += 1;
        let to_send = if random.bool() { 0 } else { random.u32(0..6) };
        self.calls.insert(call, Call { to_send, slow: random.u8(0..4) == 0, ..Call::default() });
        let reply = (random.bool() && self.windows).then(|| self.allocate(random.u32(100..1500))).flatten();
        let flags = Flags::HEAD.with_if(Flags::END, to_send == 0);
        self.push(Kind::Open, flags, call, Some(size(random)), reply);
        true
    }

    /// Goes on with a call: a message, or the end.
    pub(super) fn go_on(&mut self, random: &mut Rng) -> bool {
        let able: Vec<_> =
            self.calls.iter().filter(|(_, call)| call.to_send > 0).map(|(id, _)| *id).collect();
        let mut able = able;
        able.sort_by_key(|id| id.0);
        let Some(&id) = random.choice(&able) else { return false };
        if !self.endpoint.has_room() {
            return false;
        }
        let call = self.calls.get_mut(&id).expect("listed");
        call.to_send -= 1;
        let (last, first) = (call.to_send == 0, call.next_out == 0);
        let flags = Flags::NONE.with_if(Flags::HEAD, first).with_if(Flags::END, last);
        self.push(Kind::Data, flags, id, Some(size(random)), None);
        if last && self.role == Role::Server {
            self.end(id);
        }
        true
    }

    /// Ends a call early, as both sides may at any time.
    pub(super) fn cancel_any(&mut self, random: &mut Rng) -> bool {
        let mut ids: Vec<_> = self.calls.keys().copied().collect();
        ids.sort_by_key(|id| id.0);
        let Some(&id) = random.choice(&ids) else { return false };
        self.cancel(id);
        true
    }

    pub(super) fn cancel(&mut self, id: CallId) {
        if self.calls.contains_key(&id) {
            match self.role {
                Role::Client => self.push(Kind::Reset, Flags::NONE, id, None, None),
                Role::Server => self.push(Kind::Data, Flags::END, id, None, None),
            }
            self.end(id);
        }
    }

    fn end(&mut self, id: CallId) {
        for part in self.calls.remove(&id).into_iter().flat_map(|call| call.inbox) {
            if let Part::Here(Some(address)) = part {
                self.read(address);
            }
        }
        self.counts.ended += 1;
    }

    /// A reader takes one part. Slow ones do so only when `all` must.
    pub(super) fn read_any(&mut self, random: &mut Rng, all: bool) -> bool {
        let ready = |call: &Call| {
            (all || !call.slow) && matches!(call.inbox.front(), Some(Part::Here(_) | Part::End))
        };
        let mut ids: Vec<_> = self.calls.iter().filter(|(_, call)| ready(call)).map(|(id, _)| *id).collect();
        ids.sort_by_key(|id| id.0);
        let Some(&id) = random.choice(&ids) else { return false };
        match self.calls.get_mut(&id).and_then(|call| call.inbox.pop_front()) {
            Some(Part::Here(Some(address))) => self.read(address),
            Some(Part::End) if self.role == Role::Client => self.end(id),
            _ => {}
        }
        true
    }

    pub(super) fn arrived(
        &mut self,
        header: &Header,
        head: &[u8],
        received: ReceivedBody<'_>,
        random: &mut Rng,
    ) {
        let seq = u32::from_le_bytes(head.try_into().expect("four bytes"));
        let id = header.call;
        if header.kind == Kind::Open {
            let to_send = random.u32(1..6);
            self.calls.insert(id, Call { to_send, slow: random.u8(0..4) == 0, ..Call::default() });
        }
        if let ReceivedBody::Later { number, announced: Some(transfer) } = received {
            self.pending.push((transfer, id, number, header.body_len));
        }
        if let ReceivedBody::Later { announced: None, .. } = received {
            self.counts.placed += 1;
        }
        let Some(call) = self.calls.get_mut(&id) else { return };
        assert_eq!(seq, call.next_in, "parts of {id:?} come in their order");
        call.next_in += 1;
        if header.kind == Kind::Reset {
            return self.end(id);
        }
        match received {
            ReceivedBody::Here(bytes) => {
                assert_eq!(bytes, body(id, seq, bytes.len()), "the message is the one that was sent");
                call.inbox.push_back(Part::Here(None));
            }
            ReceivedBody::Later { number, .. } => call.inbox.push_back(Part::Later(number)),
        }
        if header.flags.contains(Flags::END) {
            call.inbox.push_back(Part::End);
            if self.role == Role::Client {
                call.to_send = 0;
            }
        }
    }
}

fn size(random: &mut Rng) -> usize {
    match random.u8(0..10) {
        0..=5 => random.usize(0..60),
        6..=8 => random.usize(200..1200),
        _ => random.usize(1000..4000),
    }
}
