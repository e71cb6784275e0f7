//! What a session says to a peer that breaks the protocol.
//!
//! Owns the table of hostile sequences of frames, for both roles: what ends the connection and with which error, what
//! ends one call and with which status, and what is ignored. After each, calls that had no part in it are as before.

mod support;

use std::task::Poll;

use bytes::Bytes;
use byway_runtime::session::{CallId, ConnectionError, Failure, Kind, Role};
use byway_runtime::{Encoded, Limits, Part};
use support::{END, HEAD, MESSAGE, NONE, REQUEST, Raw, Victim, call, control, data, open, raw};
use tonic::Code;
use tonic::metadata::MetadataMap;

const LIMITS: Limits =
    Limits { max_message: 1000, max_head: 500, max_calls: 4, window: 300, receive_budget: 1000 };

/// Goes through one exchange with a call that the hostile frames did not concern.
fn serves_as_before(victim: &mut Victim, id: CallId, role: Role) {
    let flags = if role == Role::Server { MESSAGE } else { HEAD.with(MESSAGE) };
    victim.takes(&data(id, flags, &[], 5));
    assert_eq!(victim.reads_message(id), 5);
    let head = MetadataMap::new();
    let head = (role == Role::Server).then_some(&head);
    let message = Encoded(Bytes::from_static(b"fine"));
    let sent = victim.sends(id, Part { head, message: Some(&message), end: None });
    assert_eq!(sent, Poll::Ready(Ok(())));
}

/// A head of `count` entries of metadata.
fn metadata_head(count: u16) -> Vec<u8> {
    let mut head = vec![(count & 0x7f) as u8 | 0x80, (count >> 7) as u8];
    for _ in 0..count {
        head.extend([1, b'k', 0]);
    }
    head
}

#[test]
fn a_server_refuses_what_breaks_the_protocol() {
    use ConnectionError::{BadCallId, MalformedHead, NoSuchCall, OutOfPlace, WindowExceeded, WrongDirection};
    let id = call(1, 1);
    let connection = CallId::CONNECTION;
    let relative = raw(Kind::Open, HEAD, id, &[1, b'a', 0, 0], 0);
    let cut = raw(Kind::Open, HEAD, id, &REQUEST[..4], 0);
    let cases: Vec<(&str, Vec<Raw>, ConnectionError)> = vec![
        ("data for no call", vec![data(id, MESSAGE, &[], 1)], NoSuchCall(id)),
        ("a reset of no call", vec![control(Kind::Reset, id, &[0])], NoSuchCall(id)),
        ("a window of no call", vec![control(Kind::Window, id, &[1, 0, 0, 0])], NoSuchCall(id)),
        ("data for the connection", vec![data(connection, MESSAGE, &[], 1)], NoSuchCall(connection)),
        ("a slot that is taken", vec![open(id, NONE, 0), open(call(1, 2), NONE, 0)], BadCallId(call(1, 2))),
        ("the same call twice", vec![open(id, NONE, 0), open(id, NONE, 0)], BadCallId(id)),
        ("out of turn", vec![open(call(1, 2), NONE, 0)], BadCallId(call(1, 2))),
        ("generation zero", vec![open(call(1, 0), NONE, 0)], BadCallId(call(1, 0))),
        ("beyond the limit", vec![open(call(4, 1), NONE, 0)], BadCallId(call(4, 1))),
        (
            "a future generation",
            vec![open(id, NONE, 0), data(call(1, 2), END, &[], 0)],
            NoSuchCall(call(1, 2)),
        ),
        ("an open without a head", vec![raw(Kind::Open, MESSAGE, id, REQUEST, 1)], OutOfPlace(id)),
        ("an open that only ends", vec![raw(Kind::Open, END, id, REQUEST, 0)], OutOfPlace(id)),
        ("a path without its slash", vec![relative], MalformedHead("the path is not one")),
        ("a head that is cut", vec![cut], MalformedHead("a number that does not end")),
        ("a second head", vec![open(id, NONE, 0), data(id, HEAD, &[], 0)], OutOfPlace(id)),
        ("nothing", vec![open(id, NONE, 0), data(id, NONE, &[], 0)], OutOfPlace(id)),
        ("after the end", vec![open(id, END, 0), data(id, MESSAGE, &[], 1)], OutOfPlace(id)),
        (
            "a second end",
            vec![open(id, NONE, 0), data(id, END, &[], 0), data(id, END, &[], 0)],
            OutOfPlace(id),
        ),
        (
            "a head on data",
            vec![open(id, NONE, 0), data(id, MESSAGE, &[0], 1)],
            MalformedHead("a request goes on without a head"),
        ),
        (
            "beyond the window",
            vec![open(id, MESSAGE, 100), data(id, MESSAGE, &[], 100), data(id, MESSAGE, &[], 1)],
            WindowExceeded(id),
        ),
        (
            "empty messages beyond the window",
            [vec![open(id, MESSAGE, 0)], vec![data(id, MESSAGE, &[], 0); 5]].concat(),
            WindowExceeded(id),
        ),
        (
            "a window that overflows",
            vec![open(id, NONE, 0), control(Kind::Window, id, &[255; 4])],
            MalformedHead("a window of more than 4 GiB"),
        ),
        (
            "a short window",
            vec![open(id, NONE, 0), control(Kind::Window, id, &[1; 3])],
            MalformedHead("a window is four bytes"),
        ),
        (
            "a long reset",
            vec![open(id, NONE, 0), control(Kind::Reset, id, &[0, 0])],
            MalformedHead("a reset is one byte"),
        ),
        (
            "an empty reset",
            vec![open(id, NONE, 0), control(Kind::Reset, id, &[])],
            MalformedHead("a reset is one byte"),
        ),
        (
            "a short ping",
            vec![control(Kind::Ping, connection, &[0; 7])],
            MalformedHead("a ping is eight bytes"),
        ),
        ("a drain", vec![control(Kind::Drain, connection, &[])], WrongDirection("a drain")),
        (
            "too much metadata",
            vec![raw(Kind::Open, HEAD, id, &[&REQUEST[..4], &metadata_head(257)].concat(), 0)],
            MalformedHead("more than 256 entries of metadata"),
        ),
    ];
    for (name, frames, error) in cases {
        let mut victim = Victim::new(Role::Server, LIMITS);
        let witness = victim.dispatches(&open(call(0, 1), NONE, 0)).id;
        let (last, before) = frames.split_last().expect("a case has frames");
        for frame in before {
            assert!(victim.hears(frame).is_ok(), "{name}: its preparation is valid");
        }
        serves_as_before(&mut victim, witness, Role::Server);
        assert_eq!(victim.hears(last).expect_err(name), error, "{name}");
        victim.session.handle_failure(&error.into(), victim.link.pushed);
        assert!(victim.is_over(witness), "{name}: handlers learn of the end");
        assert_eq!((victim.session.held(), victim.session.open_calls()), (0, 0), "{name}");
    }
}

#[test]
fn a_client_refuses_what_breaks_the_protocol() {
    use ConnectionError::{MalformedHead, NoSuchCall, OutOfPlace, WindowExceeded, WrongDirection};
    let (witness, id, never) = (call(0, 1), call(1, 1), call(1, 2));
    let begun = || data(id, HEAD, &[], 0);
    let cases: Vec<(&str, Vec<Raw>, ConnectionError)> = vec![
        ("a call", vec![open(call(2, 1), NONE, 0)], WrongDirection("a call")),
        ("data for no call", vec![data(never, HEAD, &[], 0)], NoSuchCall(never)),
        ("a reset of no call", vec![control(Kind::Reset, never, &[0])], NoSuchCall(never)),
        ("a window of no call", vec![control(Kind::Window, never, &[1, 0, 0, 0])], NoSuchCall(never)),
        ("a message before the head", vec![data(id, MESSAGE, &[], 1)], OutOfPlace(id)),
        ("a message and an end without a head", vec![data(id, MESSAGE.with(END), &[], 1)], OutOfPlace(id)),
        ("a second head", vec![begun(), begun()], OutOfPlace(id)),
        ("after the end", vec![begun(), data(id, END, &[], 0), data(id, MESSAGE, &[], 1)], OutOfPlace(id)),
        ("a second end", vec![data(id, END, &[], 0), data(id, END, &[], 0)], OutOfPlace(id)),
        (
            "a head nobody announced",
            vec![begun(), data(id, MESSAGE, &[0], 1)],
            MalformedHead("bytes after its end"),
        ),
        ("a status that is cut", vec![data(id, END, &[5, 9], 0)], MalformedHead("a length past its end")),
        (
            "a name that is none",
            vec![data(id, HEAD, &[1, 1, b' ', 0], 0)],
            MalformedHead("a metadata name that HTTP does not allow"),
        ),
        (
            "a value that is none",
            vec![data(id, HEAD, &[1, 1, b'k', 1, b'\n'], 0)],
            MalformedHead("a metadata value that HTTP does not allow"),
        ),
        (
            "too much metadata",
            vec![data(id, HEAD, &metadata_head(300), 0)],
            MalformedHead("more than 256 entries of metadata"),
        ),
        (
            "beyond the window",
            vec![data(id, HEAD.with(MESSAGE), &[], 300), data(id, MESSAGE, &[], 0)],
            WindowExceeded(id),
        ),
        (
            "a window that overflows",
            vec![control(Kind::Window, id, &[255; 4])],
            MalformedHead("a window of more than 4 GiB"),
        ),
        ("a long reset", vec![control(Kind::Reset, id, &[0; 5])], MalformedHead("a reset is one byte")),
        (
            "a long ping",
            vec![control(Kind::Ping, CallId::CONNECTION, &[0; 9])],
            MalformedHead("a ping is eight bytes"),
        ),
    ];
    for (name, frames, error) in cases {
        let mut victim = Victim::new(Role::Client, LIMITS);
        assert_eq!((victim.opens(), victim.opens()), (witness, id));
        let (last, before) = frames.split_last().expect("a case has frames");
        for frame in before {
            assert!(victim.hears(frame).is_ok(), "{name}: its preparation is valid");
        }
        serves_as_before(&mut victim, witness, Role::Client);
        assert_eq!(victim.hears(last).expect_err(name), error, "{name}");
        let failure = Failure::from(error);
        victim.session.handle_failure(&failure, victim.link.pushed);
        let (sent, code, text) = victim.ends(witness);
        assert_eq!((sent, code), ("status", Code::Unavailable), "{name}");
        assert!(text.contains(failure.reason()), "{name}: {text}");
    }
}
