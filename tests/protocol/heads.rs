//! Mistakes in the head of a request: content types, HTTP methods, paths, time-outs, metadata.

use byway::Code;
use byway::codegen::http::Method;
use byway_test_support::test::v1::EchoRequest;

use crate::harness::{soon, story};
use crate::served::Served;
use crate::table::{check, http, malformed, replies, row, status};
use crate::wire::{ask, text};

/// PROTOCOL-HTTP2.md: HTTP status 415, since an answer of status 200 would look like success to whoever does not speak
/// gRPC. What begins with `application/grpc` is gRPC when `+` or `;` follows, as in grpc-go.
#[test]
fn content_types() {
    check(
        [
            ("application/json", http(&[415])),
            ("text/plain", http(&[415])),
            ("application/octet-stream", http(&[415])),
            ("application/x-protobuf", http(&[415])),
            ("", http(&[415])),
            ("application/grp", http(&[415])),
            ("application/grpc-web", http(&[415])),
            ("application/grpc-web+proto", http(&[415])),
            ("application/grpc-web-text", http(&[415])),
            ("application/grpc", replies(1)),
            ("application/grpc+proto", replies(1)),
            ("application/grpc;charset=utf-8", replies(1)),
            ("application/grpc; charset=utf-8", replies(1)),
            ("application/grpc+proto; charset=utf-8", replies(1)),
            // Another codec than protobuf, which no service here has.
            (
                "application/grpc+json",
                status(&[Code::Internal, Code::Unimplemented], "").or_http(&[200, 415]),
            ),
        ]
        .map(|(value, expect)| row(format!("\"{value}\""), ask("Unary").with("content-type", value), expect)),
    );
    check([
        row("none", ask("Unary").without("content-type"), http(&[415])),
        row("none, of a method that is none", ask("None").without("content-type"), http(&[415, 404])),
    ]);
}

/// PROTOCOL-HTTP2.md has POST only; grpc-go answers HTTP status 405. RFC 9110, 15.5.6: such an answer has `allow`.
#[test]
fn http_methods() {
    let methods = [Method::GET, Method::PUT, Method::DELETE, Method::PATCH, Method::OPTIONS];
    check(methods.into_iter().map(|method| {
        let expect = http(&[405])
            .also("naming POST", |answer| answer.head.get("allow").is_some_and(|allowed| allowed == "POST"));
        row(method.to_string(), ask("Unary").method(method), expect)
    }));
    check([
        row("GET without a body", ask("Unary").method(Method::GET).data([]), http(&[405])),
        row("GET of a browser", ask("").to("/").without("content-type").method(Method::GET).data([]), {
            http(&[404, 405, 415])
        }),
    ]);
}

/// statuscodes.md: "Method not found at server" is UNIMPLEMENTED.
#[test]
fn paths() {
    let paths = [
        "/test.v1.Echo/Nothing",
        "/test.v1.Echo/unary",
        "/test.v1.Echo/Unary/",
        "/test.v1.Echo//Unary",
        "/test.v1.Echo/",
        "/test.v1.Echo",
        "/test.v1.Nobody/Unary",
        "/Echo/Unary",
        "/Unary",
        "//",
        "/",
        "*",
    ];
    check(paths.into_iter().flat_map(|path| {
        let expect = status(&[Code::Unimplemented], path);
        [
            row(path, ask("").to(path), expect),
            row(format!("{path} without messages"), ask("").to(path).data([]), expect),
            row(format!("{path} without an end"), ask("").to(path).open(), expect),
        ]
    }));
}

/// PROTOCOL-HTTP2.md: at most eight digits and a unit. grpc-go answers anything else with INTERNAL.
#[test]
fn timeouts() {
    let internal = malformed(&[Code::Internal], "grpc-timeout");
    let wrong = [
        "",
        "S",
        "1",
        "8",
        "1s",
        "1x",
        "1h",
        "-1S",
        "+1S",
        "1.5S",
        "1e3S",
        "0x1S",
        "1 S",
        "1SS",
        "123456789S",
        "000000001S",
        "99999999999999999999S",
        "1\u{b5}",
        "\u{661}S",
        "infinity",
    ];
    check(wrong.into_iter().flat_map(|value| {
        let unary = ask("Unary").with("grpc-timeout", value);
        let open = ask("Chat").with("grpc-timeout", value).open();
        [row(format!("\"{value}\""), unary, internal), row(format!("\"{value}\", open"), open, internal)]
    }));
    let endless = || EchoRequest { delay_ms: u32::MAX, count: 1, ..text("never") };
    let exceeded = status(&[Code::DeadlineExceeded], "deadline");
    check(["0S", "0n", "00000000H", "1n", "1u", "20m", "20000u"].into_iter().flat_map(|value| {
        ["Unary", "Collect", "Expand", "Chat"].map(|method| {
            let ask = ask(method).with("grpc-timeout", value).message(&endless());
            row(format!("{method}, {value}"), ask, exceeded)
        })
    }));
    check(["0S", "0m"].map(|value| row(value, ask("Unary").with("grpc-timeout", value), exceeded)));
    let far = ["99999999H", "99999999M", "99999999S", "99999999m", "1H", "00000060M"];
    check(far.map(|value| row(value, ask("Unary").with("grpc-timeout", value), replies(1))));
}

/// Metadata that no server may fail at, and such as it must.
#[test]
fn metadata() {
    // grpc-go: INTERNAL, "malformed binary metadata".
    let refused = malformed(&[Code::Internal, Code::InvalidArgument], "x-broken-bin");
    check(
        ["%", "not base64", "A", "AP8=A", "AP8===", "_-_-"]
            .map(|value| row(format!("\"{value}\""), ask("Unary").with("x-broken-bin", value), refused)),
    );
    // PROTOCOL-HTTP2.md: padded, un-padded, and split on ",".
    check(
        ["", "AP8", "AP8=", "AP8,AQI", "AP8=,AQI="]
            .map(|value| row(format!("\"{value}\""), ask("Unary").with("x-fine-bin", value), replies(1))),
    );
    // PROTOCOL-HTTP2.md: an invalid ASCII-Value that is a valid field-value in HTTP is no error, nor is its echo.
    check([
        row("beyond ASCII", ask("Unary").with("x-odd", b"caf\xc3\xa9"), replies(1)),
        row("beyond ASCII, back", ask("Unary").with("echo-odd", b"caf\xe9"), replies(1)),
        row("a tab", ask("Unary").with("x-odd", b"a\tb"), replies(1)),
        row("nothing", ask("Unary").with("x-odd", b""), replies(1)),
        row("reserved for later", ask("Unary").with("grpc-later", b"1"), replies(1)),
        row("a message type", ask("Unary").with("grpc-message-type", b"test.v1.EchoRequest"), replies(1)),
        row("attempts before", ask("Unary").with("grpc-previous-rpc-attempts", b"2"), replies(1)),
        row("without te", ask("Unary").without("te"), replies(1)),
    ]);
}

/// PROTOCOL-HTTP2.md: "Servers may limit the size of Request-Headers". HTTP has status 431 for it, and HTTP/2 a reset.
#[test]
fn heads_over_the_limit() {
    let refused = status(&[Code::ResourceExhausted], "").or_http(&[200, 431]).or_reset();
    let large = "x".repeat(40 << 10);
    check([
        row("40 KiB in one header", ask("Unary").with("x-large", &large), refused),
        row("40 KiB, without an end", ask("Chat").with("x-large", &large).open(), refused),
        row("4 KiB are fine", ask("Unary").with("x-large", "x".repeat(4 << 10)), replies(1)),
    ]);
}

/// Settings hold until others replace them: those that come later say nothing of the size of headers.
#[test]
fn a_limit_for_headers_outlives_other_settings() {
    story(async {
        let server = Served::start().await;
        let stream =
            soon(tokio::net::TcpStream::connect(server.address())).await.expect("the server accepts");
        let mut settings = h2::client::Builder::new();
        settings.max_header_list_size(500);
        let (mut send, mut connection) =
            soon(settings.handshake::<_, bytes::Bytes>(stream)).await.expect("a preface is sent");
        soon(std::future::poll_fn(|cx| send.poll_ready(cx))).await.expect("it is open");
        // Refused until the first settings have been acknowledged.
        while connection.set_initial_window_size(100_000).is_err() {
            tokio::select! {
                _ = &mut connection => panic!("the connection is over"),
                () = tokio::time::sleep(std::time::Duration::from_millis(5)) => {}
            }
        }
        let connection = tokio::spawn(connection);
        let mut wire = crate::wire::Wire { send, connection };
        let path = format!("/test.v1.Echo/{}", "x".repeat(450));
        for _ in 0..2 {
            let answer = soon(wire.call(&ask("").to(&path).data([]))).await.answer();
            assert_eq!(answer.code(), Some(Code::ResourceExhausted), "{}", answer.status_message());
        }
        drop(wire);
        server.stop().await;
    });
}
