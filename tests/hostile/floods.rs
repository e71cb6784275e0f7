//! Peers that ask for more than they take: a server's memory and work stay bounded, and others are served.

use byway::{Limits, Server};

use crate::harness::{Running, impatient, served_during, soon, story};
use crate::raw::*;
use tokio::io::AsyncWriteExt;

/// A generous bound of what two sockets of the loopback device hold.
const SOCKETS: usize = 16 << 20;

/// An endless stream of replies of 64 KiB.
const ENDLESS: &[u8] = b"\x18\xff\xff\xff\xff\x0f\x50\x80\x80\x04";

#[test]
fn a_peer_that_never_reads_holds_back_its_calls_and_is_cut_off() {
    const CALLS: u16 = 20;
    story(async {
        let server = Running::with(Server::builder().keepalive(impatient())).await;
        let client = server.client().await;
        served_during(&client, async {
            let mut raw = Raw::greeted(&server.text()).await;
            // Together, since the server stops reading as soon as its replies are not read.
            let calls: Vec<u8> =
                (0..CALLS).flat_map(|slot| request(call(slot, 1), "Expand", ENDLESS)).collect();
            raw.send(&calls).await;
            server.probe.entered(CALLS.into()).await;
            // Cut off, and nothing of its calls is left.
            server.probe.gone(CALLS.into()).await;
        })
        .await;
        let produced = server.probe.produced() * (64 << 10);
        let bound = SOCKETS + (1 << 20) + usize::from(CALLS) * (64 << 10);
        assert!(produced <= bound, "{produced} bytes were produced for a peer that takes none");
        server.stop().await;
    });
}

#[test]
fn pings_in_a_flood_are_answered_as_far_as_the_answers_are_read() {
    const PINGS: usize = 20_000;
    let ping = frame(PING, 0, 0, b"12345678", &[]);
    story(async {
        let server = Running::start().await;
        let client = server.client().await;
        served_during(&client, async {
            let mut raw = Raw::greeted(&server.text()).await;
            let flood = ping.repeat(100);
            for _ in 0..PINGS / 100 {
                raw.send(&flood).await;
                for _ in 0..100 {
                    let pong = raw.next_frame().await.expect("an answer");
                    assert_eq!((pong.kind, &pong.head[..]), (PONG, &b"12345678"[..]));
                }
            }
        })
        .await;
        server.stop().await;
    });
}

#[test]
fn pings_in_a_flood_without_end_are_not_read_while_their_answers_are_not() {
    let flood = frame(PING, 0, 0, b"12345678", &[]).repeat(3000);
    story(async {
        let server = Running::with(Server::builder().keepalive(impatient())).await;
        let client = server.client().await;
        let sent = served_during(&client, async {
            let mut raw = Raw::greeted(&server.text()).await;
            let mut sent = 0;
            // Ends when the server, which has stopped reading, gives up on the peer that does not read.
            while soon(raw.0.write_all(&flood)).await.is_ok() {
                sent += flood.len();
            }
            sent
        });
        let sent = sent.await;
        assert!(
            sent <= 2 * SOCKETS + (2 << 20),
            "{sent} bytes of pings were taken from a peer that reads nothing"
        );
        server.stop().await;
    });
}

#[test]
fn calls_opened_and_reset_in_a_loop_do_not_pile_up() {
    const ROUNDS: u16 = 5000;
    story(async {
        let limits = Limits { max_calls: 8, ..Limits::default() };
        let server = Running::with(Server::builder().limits(limits)).await;
        let client = server.client().await;
        served_during(&client, async {
            let mut raw = Raw::greeted(&server.text()).await;
            for generation in 1..=ROUNDS {
                let mut round = Vec::new();
                for slot in 0..8 {
                    round.extend(request(call(slot, generation), "Unary", b"\x12\x04hold"));
                    round.extend(frame(RESET, 0, call(slot, generation), &[0], &[]));
                }
                raw.send(&round).await;
            }
            // It was honest otherwise, so it is still served.
            raw.send(&request(call(0, ROUNDS + 1), "Unary", b"\x12\x04last")).await;
            let last = raw.next_frame().await.expect("a reply");
            assert_eq!((last.kind, last.call), (DATA, call(0, ROUNDS + 1)));
        })
        .await;
        // Twice its calls, and what one read of 64 KiB brought at once.
        let (most, bound) = (server.probe.most_present(), 16 + (64 << 10) / 52);
        assert!(most <= bound, "{most} handlers at once, of a peer that may have 8 calls");
        server.stop().await;
    });
}

#[test]
fn requests_that_nobody_reads_are_refused_beyond_the_budget() {
    story(async {
        let limits = Limits { receive_budget: 1 << 20, window: 1 << 20, ..Limits::default() };
        let server = Running::with(Server::builder().limits(limits)).await;
        let client = server.client().await;
        served_during(&client, async {
            let mut raw = Raw::greeted(&server.text()).await;
            // Text "hold", then 300 KiB of payload: the handlers wait and keep what came with their calls.
            let mut message = b"\x12\x04hold\x0a\x80\xe0\x12".to_vec();
            message.extend(vec![0; 300 << 10]);
            for slot in 0..3 {
                raw.send(&request(call(slot, 1), "Unary", &message)).await;
            }
            server.probe.entered(3).await;
            raw.send(&request(call(3, 1), "Unary", &message)).await;
            let refused = raw.next_frame().await.expect("a refusal");
            assert_eq!((refused.kind, refused.flags, refused.call), (DATA, END, call(3, 1)));
            assert_eq!(refused.head[0], byway::Code::ResourceExhausted as u8);
            server.probe.release(3);
            for _ in 0..3 {
                assert_eq!(raw.next_frame().await.expect("a reply").flags, HEAD | MESSAGE | END);
            }
        })
        .await;
        assert_eq!(server.probe.most_present(), 3);
        server.stop().await;
    });
}
