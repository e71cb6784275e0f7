//! What an answer looks like on the wire: which frames, which headers in which of them, in which encoding.

use byway::Code;
use byway::codegen::http::HeaderMap;
use byway_test_support::test::v1::EchoRequest;
use h2::Reason;

use crate::harness::{soon, story};
use crate::served::Served;
use crate::wire::{Answer, Ask, Wire, ask, text};

/// The answer to a call, after which the connection serves another one.
async fn answer(wire: &mut Wire, ask: &Ask) -> Answer {
    let answer = soon(wire.call(ask)).await.answer();
    soon(wire.serves()).await.expect("the connection is fine");
    answer
}

/// Runs a test on one connection to one server.
fn on_a_wire(test: impl AsyncFnOnce(&mut Wire)) {
    story(async {
        let server = Served::start().await;
        let mut wire = server.wire().await;
        test(&mut wire).await;
        drop(wire);
        server.stop().await;
    });
}

fn value<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map_or("absent", |value| value.to_str().expect("ASCII"))
}

fn assert_grpc_head(answer: &Answer) {
    assert_eq!(answer.http, 200);
    let content_type = value(&answer.head, "content-type");
    assert!(["application/grpc", "application/grpc+proto"].contains(&content_type), "{content_type}");
}

#[test]
fn a_good_answer_is_a_head_messages_and_trailers() {
    on_a_wire(async |wire| {
        for method in ["Unary", "Collect", "Expand", "Chat"] {
            let answer = answer(wire, &ask(method)).await;
            assert_grpc_head(&answer);
            assert!(!answer.trailers_only, "{method}: {answer:?}");
            assert!(!answer.head.contains_key("grpc-status"), "{method}: {answer:?}");
            // It is not known yet: trailers follow.
            assert!(!answer.head.contains_key("content-length"), "{method}: {answer:?}");
            assert_eq!(answer.messages().len(), 1, "{method}");
            assert_eq!(value(&answer.trailers, "grpc-status"), "0", "{method}");
            assert!(!answer.trailers.contains_key("content-type"), "{method}: {answer:?}");
            assert!(answer.status_message().is_empty(), "{method}: {answer:?}");
        }
    });
}

#[test]
fn every_answer_has_a_status_even_without_messages() {
    on_a_wire(async |wire| {
        let empty = ask("Expand").message(&EchoRequest::default());
        for ask in [empty, ask("Chat").data([])] {
            let answer = answer(wire, &ask).await;
            assert_grpc_head(&answer);
            assert!(answer.body.is_empty());
            assert_eq!(value(answer.end(), "grpc-status"), "0", "{answer:?}");
        }
    });
}

/// PROTOCOL-HTTP2.md: "Trailers-Only is permitted for calls that produce an immediate error", in a single HEADERS frame.
#[test]
fn an_immediate_error_is_one_frame() {
    on_a_wire(async |wire| {
        let failing = EchoRequest { fail_code: Code::NotFound.into(), ..text("gone") };
        let asks = [
            ("an unknown method", ask("Nothing"), "12"),
            ("no request", ask("Unary").data([]), "12"),
            ("a handler that fails", ask("Unary").message(&failing), "5"),
            ("an upload that fails", ask("Collect").message(&failing), "5"),
        ];
        for (name, ask, status) in asks {
            let answer = answer(wire, &ask).await;
            assert_grpc_head(&answer);
            assert!(answer.trailers_only, "{name}: {answer:?}");
            assert_eq!(value(&answer.head, "grpc-status"), status, "{name}");
        }
    });
}

#[test]
fn an_error_after_messages_is_in_the_trailers() {
    on_a_wire(async |wire| {
        let failing = EchoRequest {
            count: 9,
            fail_after: 2,
            fail_code: Code::Aborted.into(),
            fail_message: "enough".to_owned(),
            ..text("some")
        };
        let answer = answer(wire, &ask("Expand").message(&failing)).await;
        assert_grpc_head(&answer);
        assert_eq!(answer.messages().len(), 2);
        assert!(!answer.head.contains_key("grpc-status"));
        assert_eq!(value(&answer.trailers, "grpc-status"), "10");
        assert_eq!(answer.status_message(), "enough");
    });
}

/// PROTOCOL-HTTP2.md: all but space to `~`, and `%` itself, is percent-encoded UTF-8.
#[test]
fn status_messages_are_percent_encoded() {
    on_a_wire(async |wire| {
        let messages = [
            "plain text, even \"quoted\" & <marked>",
            "50% of it",
            "%41 stays %41",
            "\t\r\n\u{0}\u{7f}",
            "grüße",
            "☺ 😈",
            " both ends ",
        ];
        for message in messages {
            for fail_after in [0, 1] {
                let failing = EchoRequest {
                    count: 2,
                    fail_after,
                    fail_code: Code::DataLoss.into(),
                    fail_message: message.to_owned(),
                    ..text("fails")
                };
                let answer = answer(wire, &ask("Expand").message(&failing)).await;
                // Space at either end may be lost.
                assert_eq!(answer.status_message().trim_matches(' '), message.trim_matches(' '));
            }
        }
    });
}

/// PROTOCOL-HTTP2.md: base64 with the alphabet of RFC 4648, section 4, un-padded.
#[test]
fn binary_values_are_base64_without_padding() {
    on_a_wire(async |wire| {
        for (bytes, on_the_wire) in [(&[0, 255][..], "AP8"), (&[0xfb, 0xff, 0xbf], "+/+/"), (&[7], "Bw")] {
            let failing =
                EchoRequest { fail_code: 3, fail_details: bytes.to_vec().into(), ..text("details") };
            let ask = ask("Unary").with("fail-own-bin", on_the_wire).message(&failing);
            let answer = answer(wire, &ask).await;
            assert_eq!(value(answer.end(), "grpc-status"), "3");
            assert_eq!(value(answer.end(), "grpc-status-details-bin"), on_the_wire);
            assert_eq!(value(answer.end(), "fail-own-bin"), on_the_wire);
        }
        for (sent, back) in [("AP8", "AP8"), ("AP8=", "AP8"), ("", "")] {
            let answer = answer(wire, &ask("Unary").with("echo-it-bin", sent)).await;
            let echo = value(&answer.head, "echo-it-bin");
            // Un-padded is what implementations should emit.
            assert_eq!(echo.trim_end_matches('='), back, "{sent}");
        }
    });
}

#[test]
fn metadata_is_where_its_kind_belongs() {
    on_a_wire(async |wire| {
        let good = answer(wire, &ask("Unary").with("echo-it", "here").with("fail-it", "not here")).await;
        assert_eq!(value(&good.head, "echo-it"), "here");
        assert!(!good.trailers.contains_key("echo-it") && !good.trailers.contains_key("fail-it"));

        let failing = EchoRequest { count: 2, fail_after: 1, fail_code: 3, ..text("fails") };
        let ask = ask("Expand").with("echo-it", "early").with("fail-it", "late").message(&failing);
        let failed = answer(wire, &ask).await;
        assert_eq!((value(&failed.head, "echo-it"), value(&failed.trailers, "fail-it")), ("early", "late"));
        assert!(!failed.head.contains_key("fail-it") && !failed.trailers.contains_key("echo-it"));
    });
}

/// The head of a stream does not wait for its first message.
#[test]
fn a_stream_begins_before_its_first_message() {
    story(async {
        let server = Served::start().await;
        let mut wire = server.wire().await;
        let held = ask("Expand").with("hold-after", "0").with("echo-it", "now");
        let exchange = soon(wire.begin(&held)).await.expect("it is sent");
        let (_requests, answer, body) = soon(exchange.head()).await.expect("a head");
        assert_eq!(value(&answer.head, "echo-it"), "now");
        server.journal.release(1);
        let answer = soon(crate::wire::rest(answer, body)).await.answer();
        assert_eq!(answer.messages().len(), 1);
        drop(wire);
        server.stop().await;
    });
}

/// PROTOCOL-HTTP2.md, "Early Server Closure": trailers before the client's end are followed by RST_STREAM(NO_ERROR).
#[test]
fn an_early_answer_lets_the_client_stop_sending() {
    on_a_wire(async |wire| {
        let failing = EchoRequest { fail_code: Code::Aborted.into(), ..text("early") };
        let asks = [
            ("an unknown method", ask("Nothing").open()),
            ("an upload that fails", ask("Collect").message(&failing).open()),
            ("a deaf handler", ask("Collect").with("deaf", "yes").open()),
        ];
        for (name, ask) in asks {
            let exchange = soon(wire.begin(&ask)).await.expect("it is sent");
            let (requests, ended) = soon(exchange.end()).await;
            assert!(ended.answer().code().is_some(), "{name}");
            let mut requests = requests.expect("it was answered");
            let reset = soon(std::future::poll_fn(|cx| requests.poll_reset(cx))).await;
            assert_eq!(reset.expect("the connection is fine"), Reason::NO_ERROR, "{name}");
            soon(wire.serves()).await.expect("the connection is fine");
        }
    });
}
