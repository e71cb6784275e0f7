//! The records of an extension and the verdict, to the byte and hostile.

use bytes::BytesMut;

use super::super::offer::{Extension, encode_verdict, take_verdict};
use super::super::wire::least_receive;
use super::handshake::offer;
use crate::nic::Mtu;

#[test]
fn an_offer_is_laid_out_as_documented_and_survives() {
    let bytes = Extension::Offer(offer(0x0102_0304_0506_0708)).encode();
    let expected = [
        &[1, 0, 30, 0][..],
        &[7; 16],
        &[0, 0, 17, 0, 0, 0, 0xef, 0xcd, 0xab, 0, 0, 4, 0, 0],
        &[2, 0, 11, 0, 32, 0, 0, 0x80, 0, 0, 16, 0, 8, 0, 1],
        &[3, 0, 8, 0, 8, 7, 6, 5, 4, 3, 2, 1],
    ];
    assert_eq!(bytes, expected.concat());
    assert_eq!(Extension::decode(&bytes), Extension::Offer(offer(0x0102_0304_0506_0708)));
    let why = Extension::Unavailable("no device".into());
    assert_eq!(why.encode(), [&[4, 0, 9, 0][..], b"no device"].concat());
    assert_eq!(Extension::decode(&why.encode()), why);
}

#[test]
fn what_later_versions_add_is_skipped() {
    let bytes = Extension::Offer(offer(1)).encode();
    let mut later = vec![0xff, 0xff, 3, 0, 1, 2, 3];
    // A longer capabilities record, between others that nobody knows.
    later.extend_from_slice(&bytes[..34]);
    later.extend_from_slice(&[9, 0, 0, 0, 2, 0, 13, 0]);
    later.extend_from_slice(&bytes[38..49]);
    later.extend_from_slice(&[0xaa, 0xbb]);
    later.extend_from_slice(&bytes[49..]);
    assert_eq!(Extension::decode(&later), Extension::Offer(offer(1)));
}

#[test]
fn whether_verdicts_follow_depends_on_the_endpoint_record_alone() {
    let whole = Extension::Offer(offer(1)).encode();
    for len in 0..whole.len() {
        let cut = Extension::decode(&whole[..len]);
        assert_eq!(cut.offers(), len >= 4, "{len} bytes: {cut:?}");
        assert!(!matches!(cut, Extension::Offer(_)), "{len} bytes");
    }
    for (at, value) in [(22, 0), (25, 1), (33, 0), (29, 1), (31, 0)] {
        let mut bad = whole.to_vec();
        bad[at] = value;
        let read = Extension::decode(&bad);
        assert!(read.offers(), "{read:?}");
    }
}

#[test]
fn capabilities_that_cannot_work_say_why() {
    let good = offer(1).capabilities;
    assert_eq!(good.check(16 << 10), Ok(()));
    let with = |change: &dyn Fn(&mut super::super::offer::Capabilities)| {
        let mut changed = good;
        change(&mut changed);
        changed.check(16 << 10).expect_err("it cannot work")
    };
    assert!(with(&|c| c.receive_depth = 2).contains("at least 3"));
    assert!(with(&|c| c.receive_size = least_receive(16 << 10) as u32 - 1).contains("receives of"));
    assert!(with(&|c| c.receive_size = 1 << 24).contains("receives of"));
    assert!(with(&|c| c.transfers = 0).contains("large message"));
}

#[test]
fn arbitrary_extensions_have_an_answer() {
    let valid = Extension::Offer(offer(1)).encode();
    let mut offers = 0;
    for seed in 0..20_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bytes = if seed % 2 == 0 {
            valid.to_vec()
        } else {
            (0..random.usize(0..300)).map(|_| random.u8(..8)).collect()
        };
        for _ in 0..random.usize(0..5) {
            if let Some(byte) = random.choice(&mut bytes[..]) {
                *byte = random.u8(..);
            }
        }
        match Extension::decode(&bytes) {
            Extension::Offer(offer) => {
                offers += 1;
                assert!(offer.endpoint.number < 1 << 24 && offer.endpoint.mtu >= Mtu::B256);
            }
            Extension::Unusable(reason) | Extension::Unavailable(reason) => {
                assert!(reason.len() <= 3 * 512 && !reason.contains(char::is_control));
            }
        }
    }
    assert!(offers > 1000);
}

#[test]
fn a_verdict_survives_in_any_pieces_and_nothing_else_passes_for_one() {
    for verdict in [Ok(()), Err("no route".to_owned()), Err(String::new())] {
        let bytes = encode_verdict(&verdict);
        for len in 0..bytes.len() {
            assert_eq!(take_verdict(&mut BytesMut::from(&bytes[..len])), Ok(None), "{len} bytes");
        }
        let mut buffer = BytesMut::from(&bytes[..]);
        buffer.extend_from_slice(b"frames");
        assert_eq!(take_verdict(&mut buffer), Ok(Some(verdict)));
        assert_eq!(&buffer[..], b"frames");
    }
    assert_eq!(encode_verdict(&Err("ab".into()))[..], *b"RDMA\0\0\x02\0ab");
    assert_eq!(encode_verdict(&Ok(()))[..], *b"RDMA\x01\0\0\0");
    assert!(take_verdict(&mut BytesMut::from(&[1, 7, 0, 0][..])).is_err(), "a frame");
    assert!(take_verdict(&mut BytesMut::from(&b"RDMA\x02\0\0\0"[..])).is_err());
    assert!(take_verdict(&mut BytesMut::from(&b"RDMA\0\0\xff\xff"[..])).is_err());
    let long = "ä".repeat(1000);
    let mut buffer = BytesMut::from(&encode_verdict(&Err(long))[..]);
    assert_eq!(take_verdict(&mut buffer), Ok(Some(Err("ä".repeat(256)))), "cut between letters");
}
