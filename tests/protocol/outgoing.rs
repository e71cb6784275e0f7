//! What byway's client puts on the wire, as a server of HTTP/2 sees it.

use std::time::Duration;

use byway::codegen::http::request::Parts;
use byway::metadata::MetadataValue;
use byway::{Channel, Code, Request};
use byway_test_support::test::v1::EchoRequest;
use byway_test_support::test::v1::echo_client::EchoClient;
use h2::Reason;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_stream::StreamExt;

use crate::harness::{soon, story};
use crate::scripted::{Scripted, begin, reset};
use crate::wire::{message, text};

/// What a server got.
type Got = (Parts, Vec<u8>);

/// A server that answers well and tells what it got, and a client of it.
async fn telling() -> (Scripted, UnboundedReceiver<Got>, EchoClient<Channel>) {
    let (tell, told) = unbounded_channel();
    let server = Scripted::start(move |mut call| {
        let tell = tell.clone();
        async move {
            let body = call.read().await;
            call.answer_well();
            let _ = tell.send((call.head, body));
        }
    })
    .await;
    let channel = soon(server.channel().connect()).await.expect("a connection");
    (server, told, EchoClient::new(channel))
}

fn value<'a>(head: &'a Parts, name: &str) -> &'a str {
    head.headers.get(name).map_or("absent", |value| value.to_str().expect("ASCII"))
}

/// PROTOCOL-HTTP2.md, "Requests".
#[test]
fn a_request_is_as_the_specification_has_it() {
    story(async {
        let (_server, mut told, client) = telling().await;
        soon(client.unary(text("one"))).await.expect("a reply");
        let (head, body) = soon(told.recv()).await.expect("a call");
        assert_eq!((head.method.as_str(), head.uri.path()), ("POST", "/test.v1.Echo/Unary"));
        assert_eq!(head.uri.scheme_str(), Some("http"));
        assert!(head.uri.authority().is_some_and(|authority| authority.as_str().starts_with("127.0.0.1:")));
        assert_eq!(value(&head, "te"), "trailers");
        assert!(["application/grpc", "application/grpc+proto"].contains(&value(&head, "content-type")));
        assert!(["absent", "identity"].contains(&value(&head, "grpc-encoding")));
        assert!(["absent", "identity"].contains(&value(&head, "grpc-accept-encoding")));
        assert_eq!(value(&head, "grpc-timeout"), "absent");
        assert!(value(&head, "user-agent").contains("byway"), "{}", value(&head, "user-agent"));
        assert_eq!(body, message(&text("one")));

        let requests = tokio_stream::iter([text("a"), EchoRequest::default(), text("c")]);
        soon(client.collect(requests)).await.expect("a reply");
        let (head, body) = soon(told.recv()).await.expect("a call");
        assert_eq!(head.uri.path(), "/test.v1.Echo/Collect");
        assert_eq!(
            body,
            [message(&text("a")), message(&EchoRequest::default()), message(&text("c"))].concat()
        );
    });
}

#[test]
fn metadata_goes_as_headers() {
    story(async {
        let (_server, mut told, client) = telling().await;
        let mut request = Request::new(text("one"));
        request.metadata_mut().append("own", "1".parse().expect("ASCII"));
        request.metadata_mut().append("own", "2".parse().expect("ASCII"));
        request.metadata_mut().insert_bin("own-bin", MetadataValue::from_bytes(&[0, 255]));
        for owned in ["te", "content-type", "grpc-encoding", "grpc-status"] {
            request.metadata_mut().insert(owned, "mine".parse().expect("ASCII"));
        }
        soon(client.unary(request)).await.expect("a reply");
        let (head, _) = soon(told.recv()).await.expect("a call");
        assert_eq!(head.headers.get_all("own").iter().collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(value(&head, "own-bin"), "AP8", "un-padded");
        for owned in ["te", "content-type", "grpc-encoding", "grpc-status"] {
            assert!(head.headers.get_all(owned).iter().all(|value| value != "mine"), "{owned}");
        }
    });
}

/// PROTOCOL-HTTP2.md: at most eight digits and a unit; and never more time than there is.
#[test]
fn time_left_goes_as_grpc_timeout() {
    story(async {
        let (_server, mut told, client) = telling().await;
        let day = Duration::from_secs(24 * 3600);
        for timeout in [Duration::from_secs(100), day, 365 * day, 100_000 * day] {
            let mut request = Request::new(text("one"));
            request.set_timeout(timeout);
            soon(client.unary(request)).await.expect("a reply");
            let (head, _) = soon(told.recv()).await.expect("a call");
            let sent = value(&head, "grpc-timeout");
            let (digits, unit) = sent.split_at(sent.len() - 1);
            assert!(
                (1..=8).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit()),
                "{sent}"
            );
            let nanos: u128 = match unit {
                "H" => 3_600_000_000_000,
                "M" => 60_000_000_000,
                "S" => 1_000_000_000,
                "m" => 1_000_000,
                "u" => 1000,
                "n" => 1,
                other => panic!("no unit: {other}"),
            };
            let sent = digits.parse::<u128>().expect("digits") * nanos;
            // Rounding up may add less than one unit.
            assert!(sent > 0 && sent < timeout.as_nanos() + nanos, "{timeout:?}");
        }
    });
}

/// Calls that a server holds, and how the client ended each.
async fn holding() -> (Scripted, UnboundedReceiver<Option<Reason>>, EchoClient<Channel>) {
    let (tell, told) = unbounded_channel();
    let server = Scripted::start(move |mut call| {
        let tell = tell.clone();
        async move {
            let mut stream = begin(&mut call.respond);
            let _ = tell.send(None);
            let _ = tell.send(Some(reset(&mut stream).await));
        }
    })
    .await;
    let channel = soon(server.channel().connect()).await.expect("a connection");
    (server, told, EchoClient::new(channel))
}

/// PROTOCOL-HTTP2.md, "Client Cancellation": RST_STREAM with CANCEL.
#[test]
fn a_call_that_is_dropped_is_reset() {
    story(async {
        let (_server, mut told, client) = holding().await;
        tokio::select! {
            _ = client.unary(text("held")) => panic!("it is over"),
            began = told.recv() => assert_eq!(began, Some(None)),
        }
        assert_eq!(soon(told.recv()).await, Some(Some(Reason::CANCEL)));
        let replies = soon(client.expand(text("held"))).await.expect("replies");
        assert_eq!(soon(told.recv()).await, Some(None));
        drop(replies);
        assert_eq!(soon(told.recv()).await, Some(Some(Reason::CANCEL)));
        let requests = tokio_stream::once(text("open")).chain(tokio_stream::pending());
        let replies = soon(client.chat(requests)).await.expect("replies");
        assert_eq!(soon(told.recv()).await, Some(None));
        drop(replies);
        assert_eq!(soon(told.recv()).await, Some(Some(Reason::CANCEL)));
    });
}

#[test]
fn a_call_whose_time_is_over_is_reset() {
    story(async {
        let (_server, mut told, client) = holding().await;
        // A slow machine may need a later deadline for the call to be sent at all.
        for millis in [30, 300, 3000] {
            let mut request = Request::new(text("held"));
            request.set_timeout(Duration::from_millis(millis));
            let status = soon(client.unary(request)).await.expect_err("nobody answers");
            assert_eq!(status.code(), Code::DeadlineExceeded);
            if told.try_recv().is_ok() {
                assert_eq!(soon(told.recv()).await, Some(Some(Reason::CANCEL)));
                return;
            }
        }
        panic!("the call was not sent before its deadline, however late that was");
    });
}
