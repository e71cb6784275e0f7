//! A peer that breaks the rules, or knows them and abuses them.

use bytes::Bytes;
use byway_runtime::Encoded;
use byway_runtime::session::{CallId, Flags, Frame, Header, Kind, Role};

use super::super::credit::Credits;
use super::super::event::Event;
use super::super::wire::{Item, LandingId, Place, Refusal, TransferId};
use super::endpoint::{
    CALL, SLICE, announce, data, deliver, endpoint, frame, items, memory, message, push, put, sent,
};

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

/// Items at random, with numbers that often mean something: no panic, and no more is kept than was agreed;
/// also when the driver did not stop at the first error.
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
