//! A peer that breaks the rules, or knows them and abuses them.

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

const SLICE: RemoteSlice = RemoteSlice { address: 1 << 12, len: 1000, key: 5 };
const CALL: CallId = CallId(1 << 16);

fn endpoint(role: Role) -> Endpoint<Vec<u8>> {
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

fn memory() -> Vec<u8> {
    vec![0; 1024]
}

fn message(total: u32, fill: impl FnOnce(&mut Message<'_>)) -> Vec<u8> {
    let mut memory = memory();
    let mut message = Message::new(&mut memory);
    fill(&mut message);
    let len = message.finish(Total(total), false);
    memory.truncate(len);
    memory
}

fn data(call: CallId, flags: Flags, body_len: u32) -> Header {
    Header {
        kind: Kind::Data,
        flags: flags.with_if(Flags::MESSAGE, body_len > 0),
        head_len: 0,
        call,
        body_len,
    }
}

fn frame(header: Header) -> Frame<'static> {
    Frame { header, head: None, body: None }
}

/// Hands over one message; the number of things that were for the driver.
fn deliver(endpoint: &mut Endpoint<Vec<u8>>, message: &[u8]) -> Result<usize, ProtocolError> {
    let mut items = endpoint.handle_message(message)?;
    endpoint.handle_returned(Credits(1));
    let mut count = 0;
    while endpoint.next_received(&mut items)?.is_some() {
        count += 1;
    }
    Ok(count)
}

fn announce(endpoint: &mut Endpoint<Vec<u8>>, transfer: u32) -> Result<usize, ProtocolError> {
    let header = data(CALL, Flags::NONE, 500);
    deliver(endpoint, &message(64, |m| m.put_announced(TransferId(transfer), &frame(header))))
}

fn put(endpoint: &mut Endpoint<Vec<u8>>, item: Item<'_>) -> Result<usize, ProtocolError> {
    deliver(endpoint, &message(64, |m| m.put(&item)))
}

fn push(
    endpoint: &mut Endpoint<Vec<u8>>,
    kind: Kind,
    flags: Flags,
    len: usize,
    reply: bool,
) -> super::super::event::Pushed {
    let body = Encoded(Bytes::from(vec![1; len]));
    let header = Header { kind, ..data(CALL, flags, len as u32) };
    let frame = Frame { header, head: None, body: (len > 0).then_some(&body as _) };
    endpoint.push(&frame, reply.then_some(SLICE), memory).expect("there is room")
}

fn sent(endpoint: &mut Endpoint<Vec<u8>>) -> Vec<u8> {
    match endpoint.poll_transmit(memory) {
        Some(Transmit::Message(outbound)) => outbound.memory[..outbound.len].to_vec(),
        other => panic!("a message, not {other:?}"),
    }
}

fn items(message: &[u8]) -> Vec<Item<'_>> {
    let (_, mut items) = decode(message).expect("well-formed");
    std::iter::from_fn(|| items.next(&Limits::default()).expect("well-formed")).collect()
}

#[test]
fn numbers_that_name_nothing_or_something_old_end_the_connection() {
    let mut side = endpoint(Role::Client);
    for number in [0, 1, 1 << 16, u32::MAX] {
        assert!(side.handle_write(number).is_err(), "a write");
        assert!(put(&mut side, Item::Release { landing: LandingId(number) }).is_err());
        let grant =
            Item::Grant { transfer: TransferId(number), landing: LandingId(1), place: Place::Slice(SLICE) };
        assert!(put(&mut side, grant).is_err());
        let refused = Item::Refused { transfer: TransferId(number), reason: Refusal::Over };
        assert!(put(&mut side, refused).is_err());
        let header = data(CALL, Flags::NONE, 5);
        let placed = message(64, |m| m.put_placed(LandingId(number), &frame(header)));
        assert!(deliver(&mut side, &placed).is_err());
    }
    // The same slot with the generation before and after.
    announce(&mut side, 1 << 16).expect("the first");
    let landing = side.grant(TransferId(1 << 16), Place::Slice(SLICE)).expect("it waits");
    sent(&mut side);
    assert!(side.handle_write(landing.0 - (1 << 16)).is_err(), "the past");
    assert!(side.handle_write(landing.0 + (1 << 16)).is_err(), "the future");
    assert_eq!(side.handle_write(landing.0), Ok(()));
    assert!(side.handle_write(landing.0).is_err(), "a duplicate");
    assert!(put(&mut side, Item::Release { landing }).is_err(), "written and released");
}

#[test]
fn nothing_is_given_back_before_it_was_granted() {
    let mut side = endpoint(Role::Server);
    announce(&mut side, 1 << 16).expect("the first");
    let landing = side.grant(TransferId(1 << 16), Place::Slice(SLICE)).expect("it waits");
    assert!(side.handle_write(landing.0).is_err(), "it guessed");
    assert!(put(&mut side, Item::Release { landing }).is_err());
    assert_eq!(side.under_way().1, 1, "the memory is not free");
}

#[test]
fn an_offer_takes_one_body_of_its_call_that_fits_after_its_frame() {
    let mut side = endpoint(Role::Client);
    let landing = push(&mut side, Kind::Open, Flags::HEAD, 10, true).offered.expect("there is room");
    sent(&mut side);
    assert!(side.handle_write(landing.0).is_err(), "no frame yet");
    let mut placed = |call, len| {
        let header = data(CallId(call), Flags::NONE, len);
        deliver(&mut side, &message(64, |m| m.put_placed(landing, &frame(header))))
    };
    assert!(placed(CALL.0 + 1, 10).is_err(), "another call's");
    assert!(placed(CALL.0, 1001).is_err(), "too long");
    assert_eq!(placed(CALL.0, 1000), Ok(1));
    assert!(placed(CALL.0, 10).is_err(), "a second body");
    assert_eq!(side.handle_write(landing.0), Ok(()));
    assert!(matches!(side.poll_event(), Some(Event::Landed(landed)) if landed.len == 1000));
}

#[test]
fn more_than_was_agreed_is_refused_and_memory_stays_bounded() {
    let mut side = endpoint(Role::Server);
    for slot in 0..4 {
        announce(&mut side, 1 << 16 | slot).expect("four are accepted");
    }
    assert!(announce(&mut side, 1 << 16 | 4).is_err(), "a fifth");
    assert!(announce(&mut side, 2 << 16).is_err(), "a slot that is taken");
    // Refused, but the refusal cannot leave: the place stays taken, so that refusals do not pile up.
    assert!(side.refuse(TransferId(1 << 16), Refusal::Budget));
    assert!(!side.refuse(TransferId(1 << 16), Refusal::Budget), "answered once");
    assert!(announce(&mut side, 2 << 16).is_err());
    assert_eq!(items(&sent(&mut side)).len(), 1);
    assert_eq!(announce(&mut side, 2 << 16), Ok(1), "now it is free");
    let offer = |call| Item::Offer { call: CallId(call), landing: LandingId(call), slice: SLICE };
    assert_eq!(put(&mut side, offer(1)), Ok(0));
    assert!(put(&mut side, offer(1)).is_err(), "a second one for the same call");
    assert_eq!(put(&mut side, offer(2)), Ok(0));
    assert!(put(&mut side, offer(3)).is_err(), "a third");
    assert!(put(&mut endpoint(Role::Client), offer(1)).is_err(), "a client makes offers");
    assert_eq!(put(&mut side, Item::Ask(Credits(1))), Ok(0));
    assert!(put(&mut side, Item::Ask(Credits(1))).is_err(), "before the first was answered");
    assert!(put(&mut side, Item::GivenBack(Credits(0))).is_err(), "nobody asked");
    // Offers that are cancelled at once, to a side that cannot send.
    let mut side = endpoint(Role::Server);
    let reset = |call| Header { kind: Kind::Reset, ..data(CallId(call), Flags::NONE, 0) };
    let cancelled = (1..100).take_while(|call| {
        let both = message(64, |m| {
            m.put(&offer(*call));
            m.put_frame(&frame(reset(*call)));
        });
        deliver(&mut side, &both).is_ok()
    });
    assert_eq!(cancelled.count(), 6, "two offers and four bodies could honestly be released");
}

#[test]
fn a_message_without_a_credit_is_noticed() {
    let mut side = endpoint(Role::Client);
    for _ in 0..64 {
        side.handle_message(&message(64, |_| {})).expect("a credit");
    }
    assert!(side.handle_message(&message(64, |_| {})).is_err());
    assert!(side.handle_write(0).is_err());
    let mut side = endpoint(Role::Client);
    assert!(deliver(&mut side, &message(1 << 17, |_| {})).is_err(), "a total of no queue");
}

#[test]
fn grants_leave_however_many_frames_come() {
    let mut side = endpoint(Role::Server);
    announce(&mut side, 1 << 16).expect("the first");
    // Heads of the longest kind: every message is full.
    let head = Encoded(Bytes::from(vec![0; 256]));
    let header = Header { head_len: 256, ..data(CALL, Flags::NONE, 20) };
    let body = Encoded(Bytes::from(vec![1; 20]));
    let full = Frame { header, head: Some(&head), body: Some(&body) };
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
    let bad = Frame { header, head: None, body: Some(&Bad) };
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

/// Items at random, with numbers that often mean something: no panic, and no more is kept than was agreed; also when
/// the driver did not stop at the first error.
#[test]
fn arbitrary_items_neither_panic_nor_make_memory_grow() {
    let mut accepted = 0;
    for seed in 0..3000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let role = if random.bool() { Role::Client } else { Role::Server };
        let mut side = endpoint(role);
        for _ in 0..60 {
            let mut number = || u32::from(random.u16(0..3)) << 16 | random.u32(0..3);
            let (transfer, landing, call) = (TransferId(number()), LandingId(number()), CallId(number()));
            let header =
                data(call, Flags::NONE.with_if(Flags::END, number() & 1 == 1), 1 + 100 * (number() & 7));
            let place = if number() & 1 == 0 { Place::Slice(SLICE) } else { Place::Pieces };
            let body = Encoded(Bytes::from(vec![1; header.body_len.min(30) as usize]));
            let kind = random.u8(0..14);
            let bytes = message(64, |m| match kind {
                0 => m.put_announced(transfer, &frame(header)),
                1 => m.put_placed(landing, &frame(header)),
                2 => m.put(&Item::Grant { transfer, landing, place }),
                3 => m.put(&Item::Refused { transfer, reason: Refusal::Unknown(7) }),
                4 => m.put(&Item::Release { landing }),
                5 => m.put(&Item::Offer { call, landing, slice: SLICE }),
                6 => m.put_piece(landing, 20, |piece| piece.fill(1)),
                7 => m.put(&Item::Ask(Credits(3))),
                8 => m.put(&Item::GivenBack(Credits(1))),
                9 => m.put_frame(&Frame {
                    body: Some(&body),
                    ..frame(Header { body_len: body.0.len() as u32, ..header })
                }),
                10 => m.put_frame(&frame(Header { kind: Kind::Reset, ..data(call, Flags::NONE, 0) })),
                _ => {}
            });
            let outcome = match kind {
                11 => side.handle_write(landing.0).map(|()| side.handle_returned(Credits(1))).map(|()| 0),
                12 => {
                    let _ = side.grant(transfer, place);
                    Ok(0)
                }
                13 => {
                    let len = 200 * usize::from(side.has_room());
                    push(&mut side, Kind::Data, Flags::NONE, len, false);
                    Ok(0)
                }
                _ => deliver(&mut side, &bytes),
            };
            accepted += usize::from(outcome.is_ok());
            if random.u8(0..4) == 0 {
                side.poll_transmit(memory);
                side.poll_job();
            }
            while side.poll_event().is_some() {}
            let (bodies, landings) = side.under_way();
            assert!(bodies <= 4 && landings <= 6, "seed {seed}");
        }
    }
    assert!(accepted > 5000, "the rules let {accepted} of them pass");
}
