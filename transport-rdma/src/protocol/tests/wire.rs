//! The layout to the byte, and what hostile bytes do to the decoder.

use bytes::Bytes;
use byway_runtime::session::{CallId, Flags, Frame, Header, Kind};
use byway_runtime::{Encoded, Limits};

use super::super::credit::{Credits, Total};
use super::super::error::ProtocolError;
use super::super::message::Message;
use super::super::wire::{
    CONTROL_ROOM, HEADER_LEN, Item, Items, LandingId, MessageHeader, Place, Refusal, TransferId, decode,
    least_receive,
};
use crate::nic::RemoteSlice;

const SLICE: RemoteSlice = RemoteSlice { address: 0x0102_0304_0506_0708, len: 0x0a0b, key: 0x1112_1314 };
const TRANSFER: TransferId = TransferId(0x0001_0002);
const LANDING: LandingId = LandingId(0x0003_0004);

fn header(head_len: u16, body_len: u32) -> Header {
    let flags = Flags::HEAD.with(Flags::MESSAGE);
    Header { kind: Kind::Data, flags, head_len, call: CallId(0x0005_0006), body_len }
}

fn written(fill: impl FnOnce(&mut Message<'_>)) -> Vec<u8> {
    let mut memory = vec![0xee; 4096];
    let mut message = Message::new(&mut memory);
    fill(&mut message);
    let len = message.finish(Total(7), true);
    memory.truncate(len);
    memory
}

fn items(message: &[u8]) -> Result<Vec<Item<'_>>, ProtocolError> {
    let (_, mut items) = decode(message)?;
    let mut all = Vec::new();
    while let Some(item) = items.next(&Limits::default())? {
        all.push(item);
    }
    Ok(all)
}

fn control() -> Vec<Item<'static>> {
    vec![
        Item::Grant { transfer: TRANSFER, landing: LANDING, place: Place::Slice(SLICE) },
        Item::Grant { transfer: TRANSFER, landing: LANDING, place: Place::Pieces },
        Item::Refused { transfer: TRANSFER, reason: Refusal::Limit },
        Item::Refused { transfer: TRANSFER, reason: Refusal::Budget },
        Item::Refused { transfer: TRANSFER, reason: Refusal::Over },
        Item::Refused { transfer: TRANSFER, reason: Refusal::Unknown(9) },
        Item::Release { landing: LANDING },
        Item::Offer { call: CallId(0x0005_0006), landing: LANDING, slice: SLICE },
        Item::Probe(0x2122_2324_2526_2728),
        Item::Ask(Credits(0x3132)),
        Item::GivenBack(Credits(0)),
    ]
}

#[test]
fn everything_survives_the_wire_in_one_message() {
    let message = written(|message| {
        let (head, body) = (Encoded(Bytes::from_static(b"head")), Encoded(Bytes::from_static(b"body!")));
        let frame = Frame { header: header(4, 5), head: Some(&head), body: Some(&body), path: None };
        message.put_frame(&frame);
        message.put_announced(TRANSFER, &frame);
        message.put_placed(LANDING, &frame);
        control().iter().for_each(|item| message.put(item));
        message.put_piece(LANDING, 3, |piece| piece.copy_from_slice(b"abc"));
    });
    let (read, _) = decode(&message).expect("well-formed");
    let len = (message.len() - HEADER_LEN) as u32;
    assert_eq!(read, MessageHeader { total: Total(7), wants_credits: true, len });
    let mut expected = vec![
        Item::Frame { header: header(4, 5), head: b"head", body: b"body!" },
        Item::Announced { transfer: TRANSFER, header: header(4, 5), head: b"head" },
        Item::Placed { landing: LANDING, header: header(4, 5), head: b"head" },
    ];
    expected.extend(control());
    expected.push(Item::Piece { landing: LANDING, bytes: b"abc" });
    assert_eq!(items(&message), Ok(expected));
}

#[test]
fn the_layout_is_the_documented_one() {
    let bare = written(|_| {});
    assert_eq!(bare, [7, 0, 0, 0, 0, 0, 0, 1]);
    let slice = [0x0b, 0x0a, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 0x14, 0x13, 0x12, 0x11];
    let (transfer, landing, call) = ([2, 0, 1, 0], [4, 0, 3, 0], [6, 0, 5, 0]);
    let expected: [Vec<u8>; 11] = [
        [&[4][..], &transfer, &landing, &slice].concat(),
        [&[5][..], &transfer, &landing].concat(),
        [&[6][..], &transfer, &[1]].concat(),
        [&[6][..], &transfer, &[2]].concat(),
        [&[6][..], &transfer, &[3]].concat(),
        [&[6][..], &transfer, &[9]].concat(),
        [&[7][..], &landing].concat(),
        [&[8][..], &call, &landing, &slice].concat(),
        vec![10, 0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21],
        vec![11, 0x32, 0x31],
        vec![12, 0, 0],
    ];
    for (item, expected) in control().iter().zip(expected) {
        assert_eq!(written(|message| message.put(item))[HEADER_LEN..], expected, "{item:?}");
    }
    let piece = written(|message| message.put_piece(LANDING, 2, |piece| piece.copy_from_slice(b"ab")));
    assert_eq!(piece[HEADER_LEN..], [9, 4, 0, 3, 0, 2, 0, 0, 0, b'a', b'b']);
    let head = Encoded(Bytes::from_static(b"h"));
    let body = Encoded(Bytes::from_static(b"b"));
    let frame = Frame { header: header(1, 1), head: Some(&head), body: Some(&body), path: None };
    let encoded = [2, 3, 1, 0, 6, 0, 5, 0, 1, 0, 0, 0, b'h', b'b'];
    let whole = written(|message| message.put_frame(&frame));
    assert_eq!(whole[HEADER_LEN..], [&[1][..], &encoded].concat());
    let announced = written(|message| message.put_announced(TRANSFER, &frame));
    assert_eq!(announced[HEADER_LEN..], [&[2][..], &transfer, &encoded[..13]].concat());
    let placed = written(|message| message.put_placed(LANDING, &frame));
    assert_eq!(placed[HEADER_LEN..], [&[3][..], &landing, &encoded[..13]].concat());
}

#[test]
fn the_least_receive_holds_the_longest_head_with_all_that_rides_on_it() {
    for max_head in [256, 16 << 10, u16::MAX] {
        let mut memory = vec![0; least_receive(max_head)];
        let mut message = Message::new(&mut memory);
        message.put(&Item::Offer { call: CallId(1), landing: LANDING, slice: SLICE });
        let head = Encoded(Bytes::from(vec![0; usize::from(max_head)]));
        message.put_announced(
            TRANSFER,
            &Frame { header: header(max_head, 1 << 20), head: Some(&head), body: None, path: None },
        );
        assert_eq!(message.room(), CONTROL_ROOM);
    }
}

#[test]
fn a_frame_that_panics_leaves_the_message_as_it_was() {
    struct Bad;
    impl byway_runtime::Encode for Bad {
        fn encoded_len(&self) -> usize {
            1
        }
        fn encode(&self, _: &mut byway_runtime::output::Output<'_>) {
            panic!("a caller's message")
        }
    }
    let mut memory = [0; 128];
    let mut message = Message::new(&mut memory);
    message.put(&Item::Probe(1));
    let before = message.filled();
    let frame = Frame { header: header(0, 1), head: None, body: Some(&Bad), path: None };
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| message.put_frame(&frame)));
    assert!(caught.is_err());
    assert_eq!(message.filled(), before);
}

#[test]
fn what_is_cut_off_too_long_or_contradictory_is_refused() {
    let whole = written(|message| control().iter().for_each(|item| message.put(item)));
    for len in 0..whole.len() {
        assert!(decode(&whole[..len]).is_err(), "a message of {len} bytes says it has more");
    }
    let mut longer = whole.clone();
    longer.push(0);
    assert!(matches!(decode(&longer), Err(ProtocolError::Length { .. })));
    let with = |items: &[u8]| {
        let mut message = written(|_| {});
        message.extend_from_slice(items);
        message[4] = items.len() as u8;
        message
    };
    for item in control() {
        let bytes = written(|message| message.put(&item));
        for len in 1..bytes.len() - HEADER_LEN {
            let cut = with(&bytes[HEADER_LEN..HEADER_LEN + len]);
            assert_eq!(items(&cut), Err(ProtocolError::Truncated("an item")), "{item:?} of {len} bytes");
        }
    }
    assert_eq!(items(&with(&[0])), Err(ProtocolError::UnknownItem(0)));
    assert_eq!(items(&with(&[13])), Err(ProtocolError::UnknownItem(13)));
    let no_memory = [&[4][..], &[1; 8], &[0; 16]].concat();
    assert!(matches!(items(&with(&no_memory)), Err(ProtocolError::Inconsistent(_))));
    let beyond = [&[4][..], &[1; 8], &[1, 0, 0, 0], &[0xff; 8], &[0; 4]].concat();
    assert!(matches!(items(&with(&beyond)), Err(ProtocolError::Inconsistent(_))));
    let nothing_later = [&[2][..], &[1; 4], &[2, 2, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]].concat();
    assert!(matches!(items(&with(&nothing_later)), Err(ProtocolError::Inconsistent(_))));
    assert!(matches!(items(&with(&[9, 1, 1, 1, 1, 0, 0, 0, 0])), Err(ProtocolError::Inconsistent(_))));
    assert!(matches!(
        items(&with(&[9, 1, 1, 1, 1, 0xff, 0xff, 0xff, 0xff])),
        Err(ProtocolError::Truncated(_))
    ));
    let mut flags = written(|_| {});
    flags[7] = 2;
    assert_eq!(decode(&flags).err(), Some(ProtocolError::UnknownFlags(2)));
}

/// Reads to the first error or the end, and checks that every item lies inside the message.
fn survey(message: &[u8], mut rest: Items<'_>) -> usize {
    let range = message.as_ptr_range();
    let inside = |part: &[u8]| part.is_empty() || range.contains(&part.as_ptr());
    let mut count = 0;
    while let Ok(Some(item)) = rest.next(&Limits::default()) {
        count += 1;
        match item {
            Item::Frame { head, body, .. } => assert!(inside(head) && inside(body)),
            Item::Announced { head, .. } | Item::Placed { head, .. } => assert!(inside(head)),
            Item::Piece { bytes, .. } => assert!(inside(bytes)),
            _ => {}
        }
        assert!(count <= message.len(), "every item takes at least a byte");
    }
    count
}

#[test]
fn arbitrary_bytes_neither_panic_nor_leave_the_message() {
    let valid = written(|message| {
        let body = Encoded(Bytes::from_static(b"some body"));
        message.put_frame(&Frame { header: header(0, 9), head: None, body: Some(&body), path: None });
        control().iter().for_each(|item| message.put(item));
        message.put_piece(LANDING, 3, |piece| piece.fill(1));
    });
    let mut seen = 0;
    for seed in 0..30_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        // Half of them random, half of them valid but for a few bytes.
        let mut message = if seed % 2 == 0 {
            (0..random.usize(0..200)).map(|_| random.u8(..)).collect()
        } else {
            valid.clone()
        };
        for _ in 0..random.usize(0..4) {
            if let Some(byte) = random.choice(&mut message[..]) {
                *byte = random.u8(..14);
            }
        }
        if message.len() >= HEADER_LEN && random.bool() {
            let len = (message.len() - HEADER_LEN) as u32;
            message[4..7].copy_from_slice(&len.to_le_bytes()[..3]);
            message[7] &= 1;
        }
        if let Ok((_, rest)) = decode(&message) {
            seen += survey(&message, rest);
        }
    }
    assert!(seen > 10_000, "most mutations are looked into: {seen} items");
}
