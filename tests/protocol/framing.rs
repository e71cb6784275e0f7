//! Mistakes in the body of a request: messages too few, too many, cut off, compressed, too large, or none at all.

use bytes::Bytes;
use byway::Code;
use byway_test_support::test::v1::EchoRequest;

use crate::table::{Expect, Row, check, replies, row, status};
use crate::wire::{Ask, ask, framed, message, text};

const METHODS: [&str; 4] = ["Unary", "Collect", "Expand", "Chat"];
/// Those that take one request.
const ONE: [&str; 2] = ["Unary", "Expand"];
/// Those that take many.
const MANY: [&str; 2] = ["Collect", "Chat"];
/// What a service takes unless told otherwise.
const LIMIT: u32 = 4 << 20;

fn each(methods: &[&'static str], what: &str, make: impl Fn(Ask) -> Ask, expect: Expect) -> Vec<Row> {
    methods.iter().map(|method| row(format!("{method}, {what}"), make(ask(method)), expect)).collect()
}

fn good() -> Bytes {
    message(&EchoRequest { count: 1, ..text("good") })
}

/// statuscodes.md: "Request cardinality violation" is UNIMPLEMENTED.
#[test]
fn methods_that_take_one_request_take_no_other_number() {
    let (none, several) = ("no request", "several requests");
    check(
        [
            each(&ONE, "none", |ask| ask.data([]), status(&[Code::Unimplemented], none)),
            each(&ONE, "none but DATA", |ask| ask.data([Bytes::new()]), status(&[Code::Unimplemented], none)),
            each(&ONE, "two", |ask| ask.data([good(), good()]), status(&[Code::Unimplemented], several)),
            each(
                &ONE,
                "two in one frame",
                |ask| ask.data([[good(), good()].concat().into()]),
                status(&[Code::Unimplemented], several),
            ),
            each(&["Collect"], "none", |ask| ask.data([]), replies(1)),
            each(&["Chat"], "none", |ask| ask.data([]), replies(0)),
            each(&["Collect"], "two", |ask| ask.data([good(), good()]), replies(1)),
            each(&["Chat"], "two", |ask| ask.data([good(), good()]), replies(2)),
        ]
        .into_iter()
        .flatten(),
    );
}

/// compression.md: UNIMPLEMENTED with `grpc-accept-encoding` for what is not known, INTERNAL for a flag without encoding;
/// both say what is the matter.
#[test]
fn compressed_messages_are_refused() {
    let squeezed = || [framed(1, 4, b"\x1f\x8b\x08\x00")];
    let unknown = |name| {
        status(&[Code::Unimplemented], name).also("naming what is accepted", |answer| {
            let headers = [&answer.head, &answer.trailers];
            let mut accepted = headers.iter().filter_map(|headers| headers.get("grpc-accept-encoding"));
            accepted.next().is_some_and(|value| value == "identity")
        })
    };
    let flagged = status(&[Code::Internal], "ompress");
    check(
        [
            each(&METHODS, "gzip", |ask| ask.with("grpc-encoding", "gzip").data(squeezed()), unknown("gzip")),
            each(&METHODS, "own", |ask| ask.with("grpc-encoding", "own").data(squeezed()), unknown("own")),
            each(
                &METHODS,
                "an encoding that no message uses",
                |ask| ask.with("grpc-encoding", "gzip"),
                unknown("gzip"),
            ),
            each(&METHODS, "flag without encoding", |ask| ask.data(squeezed()), flagged),
            each(
                &METHODS,
                "flag with identity",
                |ask| ask.with("grpc-encoding", "identity").data(squeezed()),
                flagged,
            ),
            each(
                &["Chat"],
                "flag after a message",
                |ask| ask.data([good()].into_iter().chain(squeezed())),
                flagged.after(1),
            ),
            each(&METHODS, "identity", |ask| ask.with("grpc-encoding", "identity"), replies(1)),
            each(&METHODS, "answers may be", |ask| ask.with("grpc-accept-encoding", "gzip,zstd"), replies(1)),
        ]
        .into_iter()
        .flatten(),
    );
}

/// PROTOCOL-HTTP2.md has flags 0 and 1 only. What else the framing can break is INTERNAL, as in grpc-go.
#[test]
fn broken_framing_is_refused() {
    let internal = status(&[Code::Internal], "");
    check(
        [
            each(&METHODS, "flag 2", |ask| ask.data([framed(2, 0, b"")]), internal),
            each(&METHODS, "flag 255", |ask| ask.data([framed(255, 3, b"abc")]), internal),
            each(&METHODS, "one byte of a prefix", |ask| ask.data([Bytes::from_static(&[0])]), internal),
            each(&METHODS, "four bytes of a prefix", |ask| ask.data([Bytes::from_static(&[0; 4])]), internal),
            each(&METHODS, "a prefix alone", |ask| ask.data([framed(0, 9, b"")]), internal),
            each(&METHODS, "half a message", |ask| ask.data([framed(0, 9, b"\x12\x07as")]), internal),
            each(
                &METHODS,
                "the end in a frame of its own",
                |ask| ask.data([framed(0, 9, b"\x12"), Bytes::new()]),
                internal,
            ),
            each(
                &["Unary", "Collect", "Expand"],
                "half a prefix after a message",
                |ask| ask.data([good(), Bytes::from_static(&[0, 0])]),
                internal,
            ),
            each(
                &["Chat"],
                "half a prefix after a message",
                |ask| ask.data([good(), Bytes::from_static(&[0, 0])]),
                internal.after(1),
            ),
        ]
        .into_iter()
        .flatten(),
    );
}

/// statuscodes.md: "Error parsing request proto" is INTERNAL.
#[test]
fn messages_that_are_none_are_refused() {
    let internal = status(&[Code::Internal], "decode");
    check(
        [
            each(&METHODS, "a field that ends early", |ask| ask.data([framed(0, 2, b"\x12\x63")]), internal),
            each(&METHODS, "a text that is none", |ask| ask.data([framed(0, 3, b"\x12\x01\xff")]), internal),
            each(&METHODS, "an endless varint", |ask| ask.data([framed(0, 11, &[0x18; 11])]), {
                status(&[Code::Internal], "")
            }),
            each(
                &["Unary", "Collect", "Chat"],
                "a field that nobody knows",
                |ask| ask.data([framed(0, 3, b"\xf8\x3f\x01")]),
                replies(1),
            ),
        ]
        .into_iter()
        .flatten(),
    );
}

/// statuscodes.md: "Sent or received message was larger than configured limit" is RESOURCE_EXHAUSTED. Its first five
/// bytes tell, so that nobody waits for the rest.
#[test]
fn messages_over_the_limit_are_refused_at_once() {
    let said = |len: u32| move |ask: Ask| ask.data([framed(0, len, &[0x0a; 100])]).open();
    let refused = |telling| status(&[Code::ResourceExhausted], telling);
    let whole = |ask: Ask| ask.data([framed(0, LIMIT + 1, &vec![0; LIMIT as usize + 1])]);
    check(
        [
            each(&METHODS, "announced, just over", said(LIMIT + 1), refused("4194305")),
            each(&METHODS, "announced, 100 MiB", said(100 << 20), refused("104857600")),
            each(&METHODS, "announced, almost 4 GiB", said(u32::MAX), refused("4294967295")),
            each(&METHODS, "whole", whole, refused("4194305")),
            each(
                &["Chat"],
                "announced after a message",
                |ask| ask.data([good(), framed(0, LIMIT + 1, b"")]).open(),
                refused("4194305").after(1),
            ),
            each(
                &["Collect"],
                "announced after a message",
                |ask| ask.data([good(), framed(0, LIMIT + 1, b"")]).open(),
                refused("4194305"),
            ),
        ]
        .into_iter()
        .flatten(),
    );
}

/// PROTOCOL-HTTP2.md: "DATA frame boundaries have no relation to Length-Prefixed-Message boundaries".
#[test]
fn messages_survive_any_cutting_into_frames() {
    let three = [good(), message(&EchoRequest::default()), good()].concat();
    let cut = |size: usize| -> Vec<Bytes> { three.chunks(size).map(Bytes::copy_from_slice).collect() };
    check([1, 2, 3, 5, 7, 100].into_iter().flat_map(|size| {
        let spaced = cut(size).into_iter().flat_map(|piece| [Bytes::new(), piece]);
        [
            row(format!("Chat, in pieces of {size}"), ask("Chat").data(cut(size)), replies(3)),
            row(format!("Collect, in pieces of {size}"), ask("Collect").data(cut(size)), replies(1)),
            row(format!("Chat, in pieces of {size} and of nothing"), ask("Chat").data(spaced), replies(3)),
        ]
    }));
    let whole = message(&EchoRequest { payload: vec![7; 100_000].into(), ..text("long") });
    check(MANY.into_iter().chain(["Unary"]).map(|method| {
        let data = whole.chunks(1000).map(Bytes::copy_from_slice);
        row(format!("{method}, 100 kB in pieces"), ask(method).data(data), replies(1))
    }));
}
