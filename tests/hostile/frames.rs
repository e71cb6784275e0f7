//! What a server makes of frames that break the protocol, and of connections that end in the middle of one.

use std::time::Duration;

use byway::{Limits, Server};
use tokio::io::AsyncWriteExt;

use crate::harness::{Running, impatient, served, served_during, soon, story, text};
use crate::raw::*;

/// What the server says as it closes the connection of a peer that sent `offence`, while another client is served.
async fn closing_words_after(server: &Running, offence: &[u8]) -> String {
    let client = server.client().await;
    let words = served_during(&client, async {
        let mut raw = Raw::greeted(&server.text()).await;
        raw.send(offence).await;
        raw.closing_words().await
    });
    words.await
}

#[test]
fn whoever_breaks_the_protocol_is_told_how_and_cut_off() {
    let unary = path("/test.v1.Echo/Unary");
    let first = call(0, 1);
    let held = request(first, "Unary", b"\x12\x04hold");
    let and = |more: Vec<u8>| [held.clone(), more].concat();
    let offences: Vec<(&str, Vec<u8>, &str)> = vec![
        (
            "an oversize body",
            header(OPEN, HEAD | MESSAGE, first, 0, u32::MAX),
            "a message of 4294967295 bytes",
        ),
        ("an oversize head", header(OPEN, HEAD, first, u16::MAX, 0), "a head of 65535 bytes"),
        ("an unknown kind", frame(99, 0, first, &[], &[]), "unknown frame kind 99"),
        ("kind zero", frame(0, 0, first, &[], &[]), "unknown frame kind 0"),
        ("an unknown flag", frame(OPEN, 0x88, first, &unary, &[]), "unknown frame flags 0x88"),
        (
            "a body that is no message",
            header(OPEN, HEAD, first, 0, 5),
            "a body in a frame that carries no message",
        ),
        ("data for no call", frame(DATA, MESSAGE, first, &[], b"x"), "call 0x10000, which was never opened"),
        ("data for the connection", frame(DATA, END, 0, &[], &[]), "call 0x0, which was never opened"),
        ("a reset of no call", frame(RESET, 0, first, &[0], &[]), "call 0x10000, which was never opened"),
        (
            "a window for no call",
            frame(WINDOW, 0, first, &[0; 4], &[]),
            "call 0x10000, which was never opened",
        ),
        ("a slot beyond the limit", frame(OPEN, HEAD | END, call(1024, 1), &unary, &[]), "over the limit"),
        ("a generation out of turn", frame(OPEN, HEAD | END, call(0, 2), &unary, &[]), "out of turn"),
        ("a call without number", frame(OPEN, HEAD | END, 0, &unary, &[]), "call 0x0 opened"),
        (
            "a slot that is taken",
            and(frame(OPEN, HEAD | END, call(0, 2), &unary, &[])),
            "a slot that is taken",
        ),
        ("a call without head", frame(OPEN, MESSAGE, first, &[], b"x"), "does not allow in its state"),
        ("data after the end", and(frame(DATA, MESSAGE, first, &[], b"x")), "does not allow in its state"),
        ("data without anything", frame(OPEN, 0, first, &unary, &[]), "does not allow in its state"),
        ("a head too short", frame(OPEN, HEAD | END, first, &[200], &[]), "a head that cannot be read"),
        ("no head", frame(OPEN, HEAD | END, first, &[], &[]), "a head that cannot be read"),
        ("a path that is none", frame(OPEN, HEAD | END, first, &path("Echo"), &[]), "the path is not one"),
        ("a drain by a client", frame(DRAIN, 0, 0, &[], &[]), "a drain came from the wrong side"),
        ("a short ping", frame(PING, 0, 0, &[1, 2, 3], &[]), "a ping is eight bytes"),
        ("a long reset", and(frame(RESET, 0, first, &[0, 0], &[])), "a reset is one byte"),
        ("a short window", and(frame(WINDOW, 0, first, &[1], &[])), "a window is four bytes"),
        ("an absurd window", and(frame(WINDOW, 0, first, &[0xff; 4], &[])), "a window of more than 4 GiB"),
    ];
    story(async {
        let server = Running::start().await;
        for (name, offence, expected) in offences {
            let words = closing_words_after(&server, &offence).await;
            assert!(words.starts_with("the peer broke byway's protocol: "), "{name}: {words}");
            assert!(words.contains(expected), "{name}: {words}");
        }
        server.stop().await;
    });
}

#[test]
fn whoever_sends_more_than_the_window_is_told_and_cut_off() {
    story(async {
        let limits = Limits { window: 64, ..Limits::default() };
        let server = Running::with(Server::builder().limits(limits)).await;
        let client = server.client().await;
        let words = served_during(&client, async {
            let mut raw = Raw::greeted(&server.text()).await;
            raw.send(&frame(OPEN, HEAD, call(0, 1), &path("/test.v1.Echo/Collect"), &[])).await;
            server.probe.entered(1).await;
            // Together, so that the handler cannot read one before the next is there.
            raw.send(&frame(DATA, MESSAGE, call(0, 1), &[], b"").repeat(3)).await;
            raw.closing_words().await
        });
        let words = words.await;
        assert!(words.contains("more data for call 0x10000 than its window allows"), "{words}");
        server.probe.gone(1).await;
        server.stop().await;
    });
}

#[test]
fn frames_that_come_late_for_a_call_that_is_over_harm_nobody() {
    story(async {
        let server = Running::start().await;
        let mut raw = Raw::greeted(&server.text()).await;
        raw.send(&request(call(0, 1), "Unary", b"")).await;
        let reply = raw.next_frame().await.expect("a reply");
        assert_eq!((reply.kind, reply.flags, reply.call), (DATA, HEAD | MESSAGE | END, call(0, 1)));
        for late in [
            frame(DATA, MESSAGE, call(0, 1), &[], b"late"),
            frame(RESET, 0, call(0, 1), &[0], &[]),
            frame(WINDOW, 0, call(0, 1), &[0xff; 4], &[]),
        ] {
            raw.send(&late).await;
        }
        raw.send(&request(call(0, 2), "Unary", b"")).await;
        let reply = raw.next_frame().await.expect("a reply");
        assert_eq!((reply.kind, reply.call), (DATA, call(0, 2)));
        drop(raw);
        server.stop().await;
    });
}

#[test]
fn half_a_frame_and_silence_is_cut_off_by_keepalive() {
    story(async {
        let server = Running::with(Server::builder().keepalive(impatient())).await;
        let client = server.client().await;
        served_during(&client, async {
            let mut raw = Raw::greeted(&server.text()).await;
            raw.send(&[OPEN, HEAD, 40]).await;
            let question = raw.next_frame().await.expect("a question first");
            assert_eq!((question.kind, question.head.len()), (PING, 8));
            assert_eq!(raw.next_frame().await, None, "then the end");
        })
        .await;
        server.stop().await;
    });
}

#[test]
fn a_connection_that_ends_in_the_middle_of_a_frame_takes_its_calls_with_it() {
    let whole = frame(DATA, MESSAGE, call(0, 1), &[], &[7; 1 << 20]);
    story(async {
        let server = Running::start().await;
        let client = server.client().await;
        for len in [1, 11, 12, 13, 70_000, whole.len() - 1] {
            for reset in [false, true] {
                served_during(&client, async {
                    let mut raw = Raw::greeted(&server.text()).await;
                    raw.send(&frame(OPEN, HEAD, call(0, 1), &path("/test.v1.Echo/Collect"), &[])).await;
                    server.probe.entered(1).await;
                    raw.send(&whole[..len]).await;
                    if reset {
                        raw.reset()
                    } else {
                        drop(raw)
                    }
                    server.probe.gone(1).await;
                })
                .await;
            }
        }
        server.stop().await;
    });
}

#[test]
fn a_client_that_only_stops_writing_takes_its_calls_with_it_too() {
    story(async {
        let server = Running::start().await;
        let mut raw = Raw::greeted(&server.text()).await;
        raw.send(&request(call(0, 1), "Unary", b"\x12\x04hold")).await;
        server.probe.entered(1).await;
        soon(raw.0.shutdown()).await.expect("an open socket");
        server.probe.gone(1).await;
        raw.until_cut().await;
        server.stop().await;
    });
}

#[test]
fn a_client_that_says_goodbye_takes_its_calls_with_it() {
    story(async {
        let server = Running::start().await;
        let mut raw = Raw::greeted(&server.text()).await;
        raw.send(&request(call(0, 1), "Unary", b"\x12\x04hold")).await;
        server.probe.entered(1).await;
        raw.send(&frame(CLOSE, 0, 0, b"\xff\xfe not UTF-8", &[])).await;
        server.probe.gone(1).await;
        raw.until_cut().await;
        served(&server.client().await).await;
        server.stop().await;
    });
}

#[test]
fn a_client_that_ignores_the_drain_is_told_and_cut_off_when_its_time_is_over() {
    story(async {
        let mut server = Running::with(Server::builder().drain_timeout(Duration::from_millis(500))).await;
        let mut raw = Raw::greeted(&server.text()).await;
        raw.send(&request(call(0, 1), "Unary", b"\x12\x04hold")).await;
        server.probe.entered(1).await;
        server.drain();
        assert_eq!(raw.next_frame().await.expect("it is told").kind, DRAIN);
        raw.send(&request(call(1, 1), "Unary", b"")).await;
        let refused = raw.next_frame().await.expect("an answer");
        assert_eq!((refused.kind, refused.call, &refused.head[..]), (RESET, call(1, 1), &[1][..]));
        let ended = raw.next_frame().await.expect("its time is over");
        assert_eq!((ended.kind, ended.flags, ended.call), (DATA, END, call(0, 1)));
        assert_eq!(ended.head[0], byway::Code::Unavailable as u8);
        server.probe.gone(1).await;
        assert_eq!(raw.closing_words().await, "the server is shutting down");
        server.ended().await;
        assert_eq!(server.probe.executed(), 1);
    });
}

#[test]
fn a_message_that_is_no_protobuf_fails_its_call_only() {
    story(async {
        let server = Running::start().await;
        let mut raw = Raw::greeted(&server.text()).await;
        raw.send(&request(call(0, 1), "Unary", &[0xff; 40])).await;
        raw.send(&request(call(1, 1), "Unary", b"")).await;
        let failed = raw.next_frame().await.expect("a reply");
        assert_eq!((failed.kind, failed.flags, failed.call), (DATA, END, call(0, 1)));
        assert_eq!(failed.head[0], byway::Code::Internal as u8);
        let answered = raw.next_frame().await.expect("a reply");
        assert_eq!((answered.flags, answered.call), (HEAD | MESSAGE | END, call(1, 1)));
        let client = server.client().await;
        let status = soon(client.unary(text("x"))).await;
        assert!(status.is_ok());
        drop(raw);
        server.stop().await;
    });
}
