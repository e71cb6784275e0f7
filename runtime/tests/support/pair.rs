//! Operations on a pair of sessions, each checked against the oracle as it happens.
//!
//! Owns [`Pair`]: every operation is done to the session and to the model, and what the session answered is compared
//! with what the model says. [`Pair::check`] compares the rest: sums, windows, counts, and that nobody sleeps who has
//! something to do.

use std::collections::{BTreeMap, HashMap};
use std::task::Poll;

use bytes::Bytes;
use byway_runtime::link::{Body, Link};
use byway_runtime::session::{CallId, Event, Kind, OpenError, RequestHead, Role};
use byway_runtime::{Encoded, Limits, NewCall, Part, SendError};
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::Sent;
use super::model::{CallModel, Expected, Seat, Sends, Side, cost, describe, other};

/// What a part consists of.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pieces {
    pub(crate) head: bool,
    /// The length of a message.
    pub(crate) message: Option<usize>,
    /// An end, and whether it is a good one.
    pub(crate) end: Option<bool>,
}

pub(crate) struct Pair {
    pub(crate) client: Side,
    pub(crate) server: Side,
    pub(crate) calls: Vec<CallModel>,
    pub(super) ids: HashMap<CallId, usize>,
    pub(crate) server_drains: bool,
    pub(super) client_drains: bool,
    pub(crate) failed: bool,
    bodies: u64,
    tags: u32,
    /// How often what is worth seeing was seen.
    pub(crate) seen: BTreeMap<&'static str, usize>,
}

const OVER: &str = "status Cancelled the call is over";

impl Pair {
    pub(crate) fn new(client: (Limits, usize), server: (Limits, usize)) -> Self {
        Self {
            client: Side::new(Role::Client, client.0, server.0, client.1),
            server: Side::new(Role::Server, server.0, client.0, server.1),
            calls: Vec::new(),
            ids: HashMap::new(),
            server_drains: false,
            client_drains: false,
            failed: false,
            bodies: 0,
            tags: 0,
            seen: BTreeMap::new(),
        }
    }

    pub(crate) fn side(&mut self, role: Role) -> &mut Side {
        match role {
            Role::Client => &mut self.client,
            Role::Server => &mut self.server,
        }
    }

    fn both(&mut self, role: Role, call: usize) -> (&mut Side, &mut Side, &mut CallModel) {
        let call = &mut self.calls[call];
        match role {
            Role::Client => (&mut self.client, &mut self.server, call),
            Role::Server => (&mut self.server, &mut self.client, call),
        }
    }

    pub(super) fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn tag(&mut self) -> String {
        self.tags += 1;
        self.tags.to_string()
    }

    fn message(&mut self, len: usize) -> Bytes {
        self.tags += 1;
        let tag = self.tags.to_le_bytes();
        (0..len).map(|at| tag[at % 4]).collect::<Vec<u8>>().into()
    }

    /// As the client: opens a call; whether it could.
    pub(crate) fn open(&mut self, message: Option<usize>, end: bool) -> bool {
        let message = message.map(|len| self.message(len));
        let path = format!("/{}", self.calls.len());
        let open = self.calls.iter().filter(|call| call.client.open).count();
        let (limit, has_room) = (usize::from(self.server.limits.max_calls), self.client.link.has_room());
        let head = RequestHead { path: &path, timeout: None, metadata: &MetadataMap::new() };
        let began = self.client.link.position();
        let encoded = message.clone().map(Encoded);
        let encoded = encoded.as_ref().map(|message| message as &dyn byway_runtime::Encode);
        let call = NewCall { message: encoded, end, ..NewCall::new(head) };
        let opened = self.client.session.open(&mut self.client.link, &call);
        let too_large =
            message.as_ref().is_some_and(|message| message.len() > self.server.limits.max_message as usize);
        let id = match opened {
            Err(OpenError::Closed(_)) => {
                assert!(self.failed || self.client_drains, "a connection that takes calls refused one");
                return false;
            }
            Err(OpenError::Busy) => {
                assert!(open >= limit || !has_room, "busy with {open} calls of {limit}, room: {has_room}");
                self.saw(if has_room { "no free call" } else { "no room for a call" });
                return false;
            }
            Err(OpenError::Invalid(error)) => {
                assert!(too_large, "refused: {error:?}");
                return false;
            }
            Ok(id) => id,
        };
        assert!(!self.failed && !self.client_drains && open < limit && has_room && !too_large);
        assert!(self.ids.insert(id, self.calls.len()).is_none(), "an id is used once");
        let mut client = Seat::new(self.server.limits.window);
        client.holds = true;
        client.open = true;
        client.sends = if end { Sends::Nothing } else { Sends::Messages };
        client.window -= message.as_ref().map_or(0, cost) as i64;
        client.sent.extend(message.clone());
        let end = end.then(|| "ok ".to_owned());
        client.on_the_way.push_back(Expected { message, end, ..Expected::default() });
        let server = Seat::new(self.client.limits.window);
        self.calls.push(CallModel { id, began, client, server });
        true
    }

    /// Sends a part; whether it was sent.
    pub(crate) fn send(&mut self, role: Role, call: usize, pieces: Pieces) -> bool {
        let message = pieces.message.map(|len| self.message(len));
        let (head_tag, end_tag) = (self.tag(), self.tag());
        let head = tagged(&head_tag);
        let trailers = (role == Role::Server).then(|| tagged(&end_tag));
        let status = Status::aborted(&*end_tag);
        let good_end = pieces.end.map(|good| good || role == Role::Client);
        let encoded = message.clone().map(Encoded);
        let part = Part {
            head: pieces.head.then_some(&head),
            message: encoded.as_ref().map(|message| message as &dyn byway_runtime::Encode),
            end: good_end.map(|good| if good { Ok(trailers.as_ref()) } else { Err(&status) }),
        };
        let (side, peer, call) = self.both(role, call);
        let has_room = side.link.has_room();
        let (id, seat) = (call.id, call.seat(role));
        let too_large =
            message.as_ref().is_some_and(|message| message.len() > peer.limits.max_message as usize);
        let next =
            seat.sends.after(pieces.head, message.is_some(), pieces.end.is_some()).filter(|_| seat.open);
        let must_wait = message.is_some() && (seat.window <= 0 || !has_room);
        let waker = seat.writer.task.waker();
        let sent = side.session.poll_send(&mut side.link, id, part, &waker);
        seat.writer.leave();
        let Some(next) = next.filter(|_| !too_large) else {
            let refused = match sent {
                Poll::Ready(Err(SendError::TooLarge { .. })) => too_large,
                Poll::Ready(Err(SendError::Over)) => !too_large,
                _ => false,
            };
            assert!(refused, "a part out of place: {sent:?}");
            return false;
        };
        if must_wait {
            assert_eq!(sent, Poll::Pending, "window {}, room {has_room}", seat.window);
            seat.writes = (pieces.head, pieces.end.is_some());
            seat.writer.park();
            self.saw(if has_room { "a closed window" } else { "no room for a message" });
            return false;
        }
        assert_eq!(sent, Poll::Ready(Ok(())), "window {}, room {has_room}", seat.window);
        seat.window -= message.as_ref().map_or(0, cost) as i64;
        seat.sends = next;
        seat.sent.extend(message.clone());
        let end = match (good_end, role) {
            (None, _) => None,
            (Some(_), Role::Client) => Some("ok ".to_owned()),
            (Some(true), Role::Server) => Some(format!("ok {end_tag}")),
            (Some(false), Role::Server) => Some(format!("status Aborted {end_tag}")),
        };
        let head = pieces.head.then_some(head_tag);
        seat.on_the_way.push_back(Expected { head, message, later: None, end });
        if role == Role::Server && next == Sends::Nothing {
            seat.holds = false;
            seat.close();
        }
        true
    }

    /// Reads a part; whether there was one.
    pub(crate) fn read(&mut self, role: Role, call: usize) -> bool {
        let (side, _, call) = self.both(role, call);
        let (id, began) = (call.id, side.link.frames.len());
        let mut ended = None;
        let seat = call.seat(role);
        let waker = seat.reader.task.waker();
        let found = side.session.poll_receive(&mut side.link, id, &waker);
        seat.reader.leave();
        let expected = if seat.has_unread() { seat.inbox.pop_front() } else { None };
        let taken = std::mem::take(&mut seat.handed) + expected.as_ref().map_or(0, Expected::cost);
        let granted = seat.take(taken, side.limits.window).filter(|_| seat.open);
        let said: Vec<_> = side.link.frames.range(began..).map(grant).collect();
        assert_eq!(
            said,
            Vec::from_iter(granted.map(|granted| (id, granted))),
            "what is read is granted in time"
        );
        let found = match found {
            Poll::Pending => {
                assert!(expected.is_none() && seat.open, "{expected:?} was not found");
                seat.reader.park();
                return false;
            }
            Poll::Ready(found) => Expected {
                head: found
                    .head
                    .map(|head| head.as_map().and_then(|map| map.get("tag")).map_or(String::new(), text)),
                message: found.message,
                later: None,
                end: found.end.as_ref().map(describe),
            },
        };
        let expected = expected.or_else(|| (!seat.open).then(|| Expected::end(OVER.into())));
        assert_eq!(Some(&found), expected.as_ref(), "parts arrive in the order in which they were sent");
        seat.read.extend(found.message);
        if let Some(end) = found.end.filter(|_| seat.open) {
            seat.ends_seen += 1;
            if role == Role::Client {
                seat.holds = false;
                seat.close();
                if end.starts_with("ok") {
                    assert_eq!(
                        call.client.read, call.server.sent,
                        "nothing is lost on a call that went well"
                    );
                }
                ended = end.split(' ').next().map(str::to_owned);
            }
        }
        assert!(call.seat(role).ends_seen <= 1, "a call ends once");
        match ended.as_deref() {
            Some("ok") => self.saw("a good end"),
            Some("status") => self.saw("a status"),
            Some("not") => self.saw("not sent"),
            _ => {}
        }
        true
    }

    /// Ends a call whose owner holds on to it.
    pub(crate) fn finish(&mut self, role: Role, call: usize) {
        let tag = self.tag();
        let (side, _, call) = self.both(role, call);
        side.session.finish(&mut side.link, call.id, &Status::unknown(&*tag));
        finished(call.seat(role), role, format!("status Unknown {tag}"));
    }

    /// Ends every call of the server.
    pub(crate) fn end_calls(&mut self) {
        let tag = self.tag();
        self.server.session.end_calls(&mut self.server.link, &Status::unknown(&*tag));
        for call in &mut self.calls {
            finished(&mut call.server, Role::Server, format!("status Unknown {tag}"));
        }
    }

    /// Lets go of a call.
    pub(crate) fn abandon(&mut self, role: Role, call: usize) {
        let tag = self.tag();
        let (side, _, call) = self.both(role, call);
        let began = side.link.frames.len();
        side.session.abandon(&mut side.link, call.id, &Status::internal(&*tag));
        let seat = call.seat(role);
        let tells = seat.open && (role == Role::Server || !seat.heard_end);
        assert_eq!(
            side.link.frames.len() - began,
            usize::from(tells),
            "the peer is told what it does not know"
        );
        if role == Role::Server && seat.open {
            seat.on_the_way.push_back(Expected::end(format!("status Internal {tag}")));
        }
        seat.holds = false;
        seat.close();
    }

    /// Waits for the end of a call without reading.
    pub(crate) fn watch(&mut self, role: Role, call: usize) {
        let (side, _, call) = self.both(role, call);
        let id = call.id;
        let seat = call.seat(role);
        let over = side.session.poll_over(id, &seat.watcher.task.waker());
        assert_eq!(over.is_ready(), !seat.open);
        if over.is_pending() { seat.watcher.park() } else { seat.watcher.leave() }
    }

    pub(crate) fn ping(&mut self, role: Role) {
        let side = self.side(role);
        side.session.ping(&mut side.link);
    }

    pub(crate) fn drain(&mut self) {
        self.server.session.drain(&mut self.server.link);
        self.server_drains = true;
    }

    /// A body that was late is there; whether there was one. `pick` chooses it.
    pub(crate) fn land(&mut self, role: Role, pick: usize) -> bool {
        let side = self.side(role);
        if side.landing.is_empty() {
            return false;
        }
        let (id, number, body) = side.landing.swap_remove(pick % side.landing.len());
        let awaited = side.session.awaits(id, number);
        side.session.handle_landed(id, number, body);
        let call = self.ids[&id];
        let waits = self.calls[call].seat(role).inbox.iter_mut().find(|part| part.later == Some(number));
        assert_eq!(awaited, waits.is_some(), "a body is awaited while its part is");
        if let Some(part) = waits {
            part.later = None;
        }
        true
    }

    /// The next frame arrives at `role`, its body perhaps later; whether there was one.
    pub(crate) fn deliver(&mut self, role: Role, later: bool) -> bool {
        let from = self.side(other(role));
        let had_room = from.link.has_room();
        let Some(sent) = from.link.frames.pop_front() else { return false };
        if !had_room && from.link.has_room() {
            from.session.handle_room(&mut from.link);
        }
        let number = (later && !sent.body.is_empty()).then(|| {
            self.bodies += 1;
            self.bodies
        });
        let body = match number {
            Some(number) => Body::Later(number),
            None if sent.body.is_empty() => Body::None,
            None => Body::Here(sent.body.clone()),
        };
        let side = self.side(role);
        if let Some(number) = number {
            side.landing.push((sent.header.call, number, sent.body.clone()));
        }
        let event = side.session.handle_frame(&mut side.link, &sent.header, sent.head.clone(), body);
        let event = event.unwrap_or_else(|error| panic!("{role:?} blamed an honest peer: {error}"));
        let dispatched = matches!(event, Event::Call(_));
        let incoming = if let Event::Call(incoming) = event { Some(incoming) } else { None };
        let expects_call = self.heard(role, &sent, number);
        assert_eq!(dispatched, expects_call, "{:?}", sent.header);
        if let Some(incoming) = incoming {
            let call = self.ids[&incoming.id];
            assert_eq!(incoming.head.path.to_string(), format!("/{call}"));
            let seat = &mut self.calls[call].server;
            if number.is_none() {
                assert_eq!(incoming.message, seat.inbox[0].message);
                assert_eq!(incoming.ended, seat.inbox[0].end.is_some());
                let part = seat.inbox.pop_front().expect("it was looked at");
                seat.handed = part.cost();
                seat.read.extend(part.message);
            } else {
                assert!(incoming.message.is_none() && !incoming.ended);
            }
        }
        true
    }
}

fn tagged(tag: &str) -> MetadataMap {
    let mut metadata = MetadataMap::new();
    metadata.insert("tag", tag.parse().expect("a number"));
    metadata
}

fn text(value: &tonic::metadata::MetadataValue<tonic::metadata::Ascii>) -> String {
    value.to_str().expect("a number").to_owned()
}

/// The call and the bytes of a Window frame.
fn grant(sent: &Sent) -> (CallId, u64) {
    assert_eq!(sent.header.kind, Kind::Window);
    let bytes = sent.head[..].try_into().expect("four bytes");
    (sent.header.call, u64::from(u32::from_le_bytes(bytes)))
}

fn finished(seat: &mut Seat, role: Role, end: String) {
    match role {
        _ if !seat.open => {}
        Role::Server => {
            seat.on_the_way.push_back(Expected::end(end));
            seat.close();
        }
        Role::Client if seat.heard_end && seat.inbox.iter().all(|part| part.later.is_none()) => {}
        Role::Client => seat.end_alone(end),
    }
}
