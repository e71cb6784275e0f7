//! Mistakes in a server's answer, and what byway's client makes of them.
//!
//! One table: each row is an answer to the first call of a channel; the next call is answered well, and must be served.

use std::time::Duration;

use bytes::Bytes;
use byway::{Channel, Code, Status};
use byway_test_support::test::v1::echo_client::EchoClient;
use byway_test_support::test::v1::{EchoReply, EchoRequest};
use h2::SendStream;

use crate::scripted::{Incoming, Scripted, begin, end, head, reset, say};
use crate::wire::{framed, message, text};

/// Longest that a row may take. Only a hang takes this long.
const ROW_LIMIT: Duration = Duration::from_secs(10);

const GRPC: (&str, &str) = ("content-type", "application/grpc");
const OK: (&str, &str) = ("grpc-status", "0");

/// An answer, and the stream if it stays open.
type Reply = Box<dyn Fn(&mut Incoming) -> Option<SendStream<Bytes>> + Send + Sync>;

pub(crate) struct Row {
    name: String,
    reply: Reply,
    codes: &'static [Code],
    telling: &'static str,
}

/// The call ends with one of these codes, and a message that tells this.
pub(crate) fn row(
    name: impl Into<String>,
    reply: impl Fn(&mut Incoming) -> Option<SendStream<Bytes>> + Send + Sync + 'static,
    codes: &'static [Code],
    telling: &'static str,
) -> Row {
    Row { name: name.into(), reply: Box::new(reply), codes, telling }
}

fn good() -> Bytes {
    message(&EchoReply { text: "good".to_owned(), ..EchoReply::default() })
}

/// Answers with a head alone.
fn only(
    status: u16,
    pairs: &'static [(&'static str, &'static str)],
) -> impl Fn(&mut Incoming) -> Option<SendStream<Bytes>> {
    move |call| {
        head(&mut call.respond, status, pairs, true);
        None
    }
}

/// Answers with a good head, these bytes and these trailers.
fn whole(
    bytes: impl AsRef<[u8]>,
    trailers: &'static [(&'static str, &'static str)],
) -> impl Fn(&mut Incoming) -> Option<SendStream<Bytes>> {
    move |call| {
        let mut stream = begin(&mut call.respond);
        say(&mut stream, bytes.as_ref());
        end(stream, trailers);
        None
    }
}

/// Runs every row, each with a server of its own, by a call of either kind, and fails with all that are wrong.
pub(crate) fn check(rows: impl IntoIterator<Item = Row>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let (mut wrong, mut count) = (String::new(), 0);
        for row in rows {
            let row = std::sync::Arc::new(row);
            for many in [false, true] {
                count += 1;
                let ended = tokio::time::timeout(ROW_LIMIT, run(std::sync::Arc::clone(&row), many)).await;
                if let Err(why) = ended.unwrap_or_else(|_| Err("hangs".to_owned())) {
                    wrong += &format!("\n  {}, {}: {why}", row.name, if many { "many" } else { "one" });
                }
            }
        }
        assert!(wrong.is_empty(), "of {count} rows these are wrong:{wrong}");
    });
}

async fn run(row: std::sync::Arc<Row>, many: bool) -> Result<(), String> {
    let (codes, telling) = (row.codes, row.telling);
    let server = Scripted::start(move |mut call| {
        let row = std::sync::Arc::clone(&row);
        async move {
            call.read().await;
            if call.number > 0 {
                return call.answer_well();
            }
            if let Some(mut open) = (row.reply)(&mut call) {
                reset(&mut open).await;
            }
        }
    })
    .await;
    let channel = server.channel().connect().await.map_err(|error| error.to_string())?;
    let client = EchoClient::new(channel);
    let status = match outcome(&client, many).await {
        Ok(()) => Status::ok(""),
        Err(status) => status,
    };
    if !codes.contains(&status.code()) || !status.message().contains(telling) {
        return Err(status.to_string());
    }
    let next = client.unary(text("next")).await.map_err(|status| format!("then {status}"))?;
    assert_eq!(next.get_ref().text, "well");
    match server.calls() {
        2 => Ok(()),
        calls => Err(format!("{calls} calls reached the server")),
    }
}

/// How a call ends, with all that came before.
async fn outcome(client: &EchoClient<Channel>, many: bool) -> Result<(), Status> {
    if !many {
        return client.unary(text("first")).await.map(drop);
    }
    let request = EchoRequest { count: 1, ..text("first") };
    let mut replies = client.expand(request).await?.into_inner();
    while replies.message().await?.is_some() {}
    Ok(())
}

/// http-grpc-status-mapping.md, for answers without grpc-status.
#[test]
fn http_statuses_without_a_grpc_status() {
    let mapped: [(u16, &'static [Code]); 15] = [
        (400, &[Code::Internal]),
        (401, &[Code::Unauthenticated]),
        (403, &[Code::PermissionDenied]),
        (404, &[Code::Unimplemented]),
        (429, &[Code::Unavailable]),
        (431, &[Code::Internal]),
        (502, &[Code::Unavailable]),
        (503, &[Code::Unavailable]),
        (504, &[Code::Unavailable]),
        // "All other codes".
        (204, &[Code::Unknown]),
        (302, &[Code::Unknown]),
        (405, &[Code::Unknown]),
        (415, &[Code::Unknown]),
        (418, &[Code::Unknown]),
        (500, &[Code::Unknown]),
    ];
    check(mapped.into_iter().flat_map(|(http, codes)| {
        let telling: &'static str = http.to_string().leak();
        let page = move |call: &mut Incoming| {
            let mut stream = head(&mut call.respond, http, &[("content-type", "text/html")], false);
            stream.send_data(Bytes::from_static(b"<p>no</p>"), true).expect("the call is open");
            None
        };
        let claims_grpc = move |call: &mut Incoming| {
            head(&mut call.respond, http, &[GRPC], true);
            None
        };
        [
            row(format!("{http} alone"), only(http, &[]), codes, telling),
            row(format!("{http} with a page"), page, codes, telling),
            row(format!("{http} as gRPC"), claims_grpc, codes, telling),
        ]
    }));
    // "If grpc-status was provided, it must be used."
    check([row(
        "404 with a grpc-status",
        only(404, &[GRPC, ("grpc-status", "9"), ("grpc-message", "said")]),
        &[Code::FailedPrecondition],
        "said",
    )]);
}

/// http-grpc-status-mapping.md: "200 is UNKNOWN because there should be a grpc-status in case of truly OK response".
/// statuscodes.md: "Error parsing returned status" is UNKNOWN.
#[test]
fn statuses_that_are_none() {
    const NO_STATUS: &[Code] = &[Code::Unknown, Code::Internal];
    let ends_with_data = |call: &mut Incoming| {
        begin(&mut call.respond).send_data(good(), true).expect("the call is open");
        None
    };
    check([
        row("a head alone", only(200, &[GRPC]), NO_STATUS, "grpc-status"),
        row("trailers without it", whole(good(), &[("other", "1")]), NO_STATUS, "grpc-status"),
        row("no trailers", ends_with_data, NO_STATUS, "grpc-status"),
        row(
            "a page of HTTP status 200",
            only(200, &[("content-type", "text/html")]),
            &[Code::Unknown],
            "text/html",
        ),
        row("no content type", only(200, &[]), &[Code::Unknown], ""),
    ]);
    check(["", "abc", "-1", "17", "99", "4294967296", "1.0", "0x1"].into_iter().flat_map(|value| {
        let pairs: &'static [_] = vec![GRPC, ("grpc-status", value), ("grpc-message", "said")].leak();
        [
            row(format!("\"{value}\" at once"), only(200, pairs), &[Code::Unknown], ""),
            row(format!("\"{value}\" in the end"), whole(good(), &pairs[1..]), &[Code::Unknown], ""),
        ]
    }));
}

/// PROTOCOL-HTTP2.md: "When decoding invalid values, implementations MUST NOT error or throw away the message."
#[test]
fn status_messages_and_details() {
    const NOT_FOUND: &[Code] = &[Code::NotFound];
    let rows = [
        ("50%25 %E2%98%BA%0A%09.", "50% ☺\n\t."),
        ("%e2%98%ba", "☺"),
        ("100% sure", "100% sure"),
        ("%", "%"),
        ("%4", "%4"),
        ("%zz stays", "%zz stays"),
        ("%ff is no text", "is no text"),
        ("caf\u{e9}", "caf"),
    ];
    check(rows.into_iter().flat_map(|(sent, told)| {
        let pairs: &'static [_] = vec![GRPC, ("grpc-status", "5"), ("grpc-message", sent)].leak();
        [
            row(format!("\"{sent}\" at once"), only(200, pairs), NOT_FOUND, told),
            row(format!("\"{sent}\" in the end"), whole(good(), &pairs[1..]), NOT_FOUND, told),
        ]
    }));
    check(["%", "not base64", "A", "AP8=A"].map(|details| {
        let pairs: &'static [_] =
            vec![GRPC, ("grpc-status", "5"), ("grpc-message", "kept"), ("grpc-status-details-bin", details)]
                .leak();
        row(format!("details \"{details}\""), only(200, pairs), NOT_FOUND, "kept")
    }));
    check([
        row("no message", only(200, &[GRPC, ("grpc-status", "5")]), NOT_FOUND, ""),
        row(
            "metadata that is no base64",
            only(200, &[GRPC, ("grpc-status", "5"), ("own-bin", "%"), ("grpc-message", "kept")]),
            NOT_FOUND,
            "kept",
        ),
    ]);
}

/// Broken framing is INTERNAL; too large is RESOURCE_EXHAUSTED, told by the first five bytes; compression.md: what the
/// client cannot decompress is INTERNAL.
#[test]
fn messages_that_are_broken() {
    const INTERNAL: &[Code] = &[Code::Internal];
    let announced = |len: u32| {
        move |call: &mut Incoming| {
            let mut stream = begin(&mut call.respond);
            say(&mut stream, &framed(0, len, b"x"));
            Some(stream)
        }
    };
    let compressed = |call: &mut Incoming| {
        let mut stream = head(&mut call.respond, 200, &[GRPC, ("grpc-encoding", "gzip")], false);
        say(&mut stream, &framed(1, 4, b"\x1f\x8b\x08\x00"));
        end(stream, &[OK]);
        None
    };
    check([
        row("half a prefix", whole([0, 0, 0], &[OK]), INTERNAL, ""),
        row("a prefix alone", whole(framed(0, 9, b""), &[OK]), INTERNAL, ""),
        row("half a message", whole(framed(0, 9, b"\x12\x07as"), &[OK]), INTERNAL, ""),
        row("half a prefix after a message", whole([&good()[..], &[0]].concat(), &[OK]), INTERNAL, ""),
        row("no message of protobuf", whole(framed(0, 2, b"\x12\x63"), &[OK]), INTERNAL, "decode"),
        row("compressed without encoding", whole(framed(1, 1, b"x"), &[OK]), INTERNAL, "ompress"),
        row("compressed", compressed, INTERNAL, "ompress"),
        row("flag 2", whole(framed(2, 0, b""), &[OK]), INTERNAL, ""),
        row("just too large", announced((4 << 20) + 1), &[Code::ResourceExhausted], "4194305"),
        row("100 MiB", announced(100 << 20), &[Code::ResourceExhausted], "104857600"),
        row("almost 4 GiB", announced(u32::MAX), &[Code::ResourceExhausted], "4294967295"),
    ]);
}

/// What looks like a mistake and is none.
#[test]
fn answers_that_are_fine() {
    let with_head = |pairs: &'static [(&'static str, &'static str)]| {
        move |call: &mut Incoming| {
            let mut stream = head(&mut call.respond, 200, pairs, false);
            say(&mut stream, &good());
            end(stream, &[OK, ("trailing", "yes")]);
            None
        }
    };
    let in_pieces = |call: &mut Incoming| {
        let mut stream = begin(&mut call.respond);
        for byte in good() {
            say(&mut stream, &[]);
            say(&mut stream, &[byte]);
        }
        end(stream, &[OK]);
        None
    };
    let informed = |call: &mut Incoming| {
        let mut hint = byway::codegen::http::Response::new(());
        *hint.status_mut() = 103u16.try_into().expect("a status");
        call.respond.send_informational(hint).expect("the call is open");
        call.answer_well();
        None
    };
    const FINE: &[Code] = &[Code::Ok];
    check([
        row("a sub-type", with_head(&[("content-type", "application/grpc+proto")]), FINE, ""),
        row("a parameter", with_head(&[("content-type", "application/grpc;charset=utf-8")]), FINE, ""),
        row("an encoding that is not used", with_head(&[GRPC, ("grpc-encoding", "gzip")]), FINE, ""),
        row("what the server accepts", with_head(&[GRPC, ("grpc-accept-encoding", "gzip,zstd")]), FINE, ""),
        row(
            "metadata that is no base64",
            with_head(&[GRPC, ("own-bin", "%")]),
            &[Code::Ok, Code::Internal],
            "",
        ),
        row("byte by byte", in_pieces, FINE, ""),
        row("after an informational head", informed, FINE, ""),
    ]);
}
