//! What one endpoint does with what an honest peer says.

use bytes::Bytes;
use byway_runtime::session::{CallId, Flags, Frame, Header, Kind, Role};
use byway_runtime::{Encoded, Limits};

use super::super::credit::{Credits, Total};
use super::super::endpoint::Endpoint;
use super::super::error::ProtocolError;
use super::super::event::{Event, Received, Settings, Transmit};
use super::super::message::Message;
use super::super::offer::Capabilities;
use super::super::outgoing::Ended;
use super::super::wire::{Item, LandingId, Place, Refusal, TransferId, decode, least_receive};
use crate::nic::RemoteSlice;

pub(super) const SLICE: RemoteSlice = RemoteSlice { address: 1 << 12, len: 1000, key: 5 };
pub(super) const CALL: CallId = CallId(1 << 16);

pub(super) fn endpoint(role: Role) -> Endpoint<Vec<u8>> {
    let limits = Limits { max_head: 256, ..Limits::default() };
    let side = Capabilities {
        receive_depth: 64,
        receive_size: least_receive(256) as u32,
        transfers: 4,
        offers: 2,
        windows: true,
    };
    let settings =
        Settings { role, local: side, remote: side, limits, remote_limits: limits, large_from: 100 };
    Endpoint::new(settings).expect("offers that fit")
}

pub(super) fn memory() -> Vec<u8> {
    vec![0; 1024]
}

pub(super) fn message(total: u32, fill: impl FnOnce(&mut Message<'_>)) -> Vec<u8> {
    let mut memory = memory();
    let mut message = Message::new(&mut memory);
    fill(&mut message);
    let len = message.finish(Total(total), false);
    memory.truncate(len);
    memory
}

pub(super) fn data(call: CallId, flags: Flags, body_len: u32) -> Header {
    Header {
        kind: Kind::Data,
        flags: flags.with_if(Flags::MESSAGE, body_len > 0),
        head_len: 0,
        call,
        body_len,
    }
}

pub(super) fn frame(header: Header) -> Frame<'static> {
    Frame { header, head: None, body: None, path: None }
}

/// Hands over one message; the number of things that were for the driver.
pub(super) fn deliver(endpoint: &mut Endpoint<Vec<u8>>, message: &[u8]) -> Result<usize, ProtocolError> {
    let mut items = endpoint.handle_message(message)?;
    endpoint.handle_returned(Credits(1));
    let mut count = 0;
    while endpoint.next_received(&mut items)?.is_some() {
        count += 1;
    }
    Ok(count)
}

pub(super) fn announce(endpoint: &mut Endpoint<Vec<u8>>, transfer: u32) -> Result<usize, ProtocolError> {
    let header = data(CALL, Flags::NONE, 500);
    deliver(endpoint, &message(64, |m| m.put_announced(TransferId(transfer), &frame(header))))
}

pub(super) fn put(endpoint: &mut Endpoint<Vec<u8>>, item: Item<'_>) -> Result<usize, ProtocolError> {
    deliver(endpoint, &message(64, |m| m.put(&item)))
}

pub(super) fn push(
    endpoint: &mut Endpoint<Vec<u8>>,
    kind: Kind,
    flags: Flags,
    len: usize,
    reply: bool,
) -> super::super::event::Pushed {
    let body = Encoded(Bytes::from(vec![1; len]));
    let header = Header { kind, ..data(CALL, flags, len as u32) };
    let frame = Frame { header, head: None, body: (len > 0).then_some(&body as _), path: None };
    endpoint.push(&frame, reply.then_some(SLICE), memory).expect("there is room")
}

pub(super) fn sent(endpoint: &mut Endpoint<Vec<u8>>) -> Vec<u8> {
    match endpoint.poll_transmit(memory) {
        Some(Transmit::Message(outbound)) => outbound.memory[..outbound.len].to_vec(),
        other => panic!("a message, not {other:?}"),
    }
}

pub(super) fn items(message: &[u8]) -> Vec<Item<'_>> {
    let (_, mut items) = decode(message).expect("well-formed");
    std::iter::from_fn(|| items.next(&Limits::default()).expect("well-formed")).collect()
}

#[test]
fn grants_leave_however_many_frames_come() {
    let mut side = endpoint(Role::Server);
    announce(&mut side, 1 << 16).expect("the first");
    // Heads of the longest kind: every message is full.
    let head = Encoded(Bytes::from(vec![0; 256]));
    let header = Header { head_len: 256, ..data(CALL, Flags::NONE, 20) };
    let body = Encoded(Bytes::from(vec![1; 20]));
    let full = Frame { header, head: Some(&head), body: Some(&body), path: None };
    for _ in 0..8 {
        side.push(&full, None, memory).expect("there is room");
    }
    assert!(!side.has_room());
    side.grant(TransferId(1 << 16), Place::Slice(SLICE)).expect("it waits");
    let message = sent(&mut side);
    assert!(
        matches!(items(&message)[..], [Item::Frame { .. }, Item::Grant { .. }]),
        "with the first message"
    );
    assert_eq!(side.delivered(), 1);
    assert!(side.has_room(), "the driver tells the session");
}

#[test]
fn a_release_stays_behind_the_frame_that_names_its_landing() {
    let mut side = endpoint(Role::Server);
    put(&mut side, Item::Offer { call: CALL, landing: LandingId(9), slice: SLICE }).expect("accepted");
    for _ in 0..20 {
        push(&mut side, Kind::Data, Flags::NONE, 90, false);
    }
    let transfer = push(&mut side, Kind::Data, Flags::NONE, 500, false).transfer.expect("large");
    assert_eq!(side.poll_job(), None, "its frame has not left");
    let reset = Header { kind: Kind::Reset, ..data(CALL, Flags::NONE, 0) };
    deliver(&mut side, &message(64, |m| m.put_frame(&frame(reset)))).expect("allowed");
    assert_eq!(side.poll_event(), Some(Event::Ended(transfer, Ended::Cancelled)));
    let mut seen = Vec::new();
    while let Some(Transmit::Message(outbound)) = side.poll_transmit(memory) {
        for item in items(&outbound.memory[..outbound.len]) {
            match item {
                Item::Placed { .. } => seen.push("placed"),
                Item::Release { landing } => {
                    assert_eq!(landing, LandingId(9));
                    seen.push("release");
                }
                _ => {}
            }
        }
    }
    assert_eq!(seen, ["placed", "release"]);
    assert_eq!(side.under_way().0, 0);
}

#[test]
fn what_nobody_waits_for_any_more_is_refused_before_it_is_granted() {
    let reset = Header { kind: Kind::Reset, ..data(CALL, Flags::NONE, 0) };
    let mut side = endpoint(Role::Server);
    announce(&mut side, 1 << 16).expect("accepted");
    deliver(&mut side, &message(64, |m| m.put_frame(&frame(reset)))).expect("allowed");
    assert_eq!(side.grant(TransferId(1 << 16), Place::Slice(SLICE)), None, "the memory stays the driver's");
    assert!(!side.refuse(TransferId(1 << 16), Refusal::Budget));
    let over = Item::Refused { transfer: TransferId(1 << 16), reason: Refusal::Over };
    assert_eq!(items(&sent(&mut side)), [over]);
    // So does the server's own end, and a client's reset.
    for (role, kind, flags) in [
        (Role::Server, Kind::Data, Flags::END),
        (Role::Server, Kind::Reset, Flags::NONE),
        (Role::Client, Kind::Reset, Flags::NONE),
    ] {
        let mut side = endpoint(role);
        announce(&mut side, 1 << 16).expect("accepted");
        push(&mut side, kind, flags, 0, false);
        assert_eq!(items(&sent(&mut side)).last(), Some(&over));
    }
}

#[test]
fn what_the_peer_does_not_want_any_more_is_dropped_at_once() {
    let end = message(64, |m| m.put_frame(&frame(data(CALL, Flags::HEAD.with(Flags::END), 0))));
    let mut side = endpoint(Role::Client);
    let transfer = push(&mut side, Kind::Open, Flags::HEAD, 500, false).transfer.expect("large");
    deliver(&mut side, &end).expect("allowed");
    assert_eq!(side.poll_event(), Some(Event::Ended(transfer, Ended::Cancelled)));
    assert_eq!(side.under_way().0, 1, "its number is taken until the server has answered");
    put(&mut side, Item::Refused { transfer, reason: Refusal::Over }).expect("allowed");
    assert_eq!((side.under_way().0, side.poll_event()), (0, None));
    // A server's end is not the end of what it sent before.
    let mut side = endpoint(Role::Server);
    push(&mut side, Kind::Data, Flags::HEAD.with(Flags::END), 500, false).transfer.expect("large");
    assert_eq!((side.under_way().0, side.poll_event()), (1, None));
}

#[test]
fn last_writes_and_messages_take_turns() {
    let mut side = endpoint(Role::Client);
    let transfer = push(&mut side, Kind::Open, Flags::HEAD, 500, false).transfer.expect("large");
    sent(&mut side);
    let slice = RemoteSlice { len: 500, ..SLICE };
    put(&mut side, Item::Grant { transfer, landing: LandingId(9), place: Place::Slice(slice) })
        .expect("allowed");
    assert_eq!(side.poll_job().map(|job| job.transfer), Some(transfer));
    assert!(side.handle_staged(transfer));
    for _ in 0..6 {
        push(&mut side, Kind::Data, Flags::NONE, 90, false);
    }
    let order: Vec<_> = std::iter::from_fn(|| side.poll_transmit(memory))
        .map(|transmit| matches!(transmit, Transmit::LastWrite(job) if job.landing == LandingId(9)))
        .collect();
    assert!(order.len() > 2 && order[..2].contains(&true), "neither waits for all of the other: {order:?}");
}

#[test]
fn an_offer_that_is_too_small_or_not_needed_is_released() {
    for (len, announced) in [(2000, true), (10, false)] {
        let mut side = endpoint(Role::Server);
        put(&mut side, Item::Offer { call: CALL, landing: LandingId(9), slice: SLICE }).expect("accepted");
        push(&mut side, Kind::Data, Flags::HEAD.with(Flags::END), len, false);
        let message = sent(&mut side);
        let first = items(&message)[0];
        assert_eq!(matches!(first, Item::Announced { .. }), announced);
        assert_eq!(items(&message)[1], Item::Release { landing: LandingId(9) });
    }
}

#[test]
fn an_offer_whose_frame_could_not_be_encoded_was_never_made() {
    struct Bad;
    impl byway_runtime::Encode for Bad {
        fn encoded_len(&self) -> usize {
            1
        }
        fn encode(&self, _: &mut byway_runtime::output::Output<'_>) {
            panic!("a caller's message")
        }
    }
    let mut side = endpoint(Role::Client);
    let header = Header { kind: Kind::Open, ..data(CALL, Flags::HEAD, 1) };
    let bad = Frame { header, head: None, body: Some(&Bad), path: None };
    let caught =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| side.push(&bad, Some(SLICE), memory)));
    assert!(caught.is_err());
    assert_eq!((side.under_way(), side.position()), ((0, 0), 0));
    assert!(push(&mut side, Kind::Open, Flags::HEAD, 10, true).offered.is_some());
    assert_eq!(items(&sent(&mut side)).len(), 2, "the offer and its frame, and nothing of the other");
}

#[test]
fn the_probe_is_an_ordinary_first_message() {
    let (mut a, mut b) = (endpoint(Role::Client), endpoint(Role::Server));
    a.push_probe(77);
    let message = sent(&mut a);
    let mut items = b.handle_message(&message).expect("a credit");
    assert_eq!(b.next_received(&mut items), Ok(Some(Received::Probe(77))));
    assert_eq!(a.credits().0.available(), Credits(63));
}

#[test]
fn who_waits_for_credits_says_so_and_is_lent_some() {
    let mut side = endpoint(Role::Client);
    let mut bytes = message(64, |m| m.put(&Item::Probe(1)));
    bytes[7] = 1;
    deliver(&mut side, &bytes).expect("allowed");
    assert_eq!(side.poll_event(), Some(Event::CreditsWanted));
    assert_eq!(side.grow(Credits(5)), Credits(5));
    let bare = sent(&mut side);
    let (header, _) = decode(&bare).expect("well-formed");
    assert_eq!((header.total, header.len), (Total(64 + 5 + 1), 0), "at once, although little is owed");
    assert!(side.ask_back(Credits(5)));
    assert!(!side.ask_back(Credits(5)), "one question at a time");
    assert_eq!(put(&mut side, Item::GivenBack(Credits(5))), Ok(0));
    assert_eq!(side.poll_event(), Some(Event::CreditsGivenBack(Credits(5))));
}
