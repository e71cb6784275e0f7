//! Metadata in both directions, in every place that a call has for it.

use byway::codegen::tonic::metadata::{Ascii, MetadataKey, MetadataMap, MetadataValue};
use byway::runtime::{CallOptions, MethodDescriptor, MethodKind, client};
use byway::{Code, Request};
use byway_test_support::test::v1::{EchoReply, EchoRequest};

use crate::case::{all, ask, cases, text, upload};
use crate::path::{Path, Setup};

cases![
    metadata_comes_back_with_every_kind_of_call,
    binary_metadata_is_bytes,
    repeated_names_keep_their_order,
    empty_values_stay_empty,
    long_values_fit,
    a_status_carries_metadata,
    a_status_of_a_stream_carries_metadata,
    trailers_follow_a_unary_reply,
    trailers_follow_a_stream,
    names_that_the_transport_owns_are_not_sent,
    names_that_the_transport_owns_do_not_come_back,
    initial_metadata_of_a_stream_is_not_its_trailers,
];

fn ascii(metadata: &MetadataMap, name: &'static str) -> Vec<String> {
    let values = metadata.get_all(name).iter();
    values.map(|value: &MetadataValue<Ascii>| value.to_str().expect("ASCII").to_owned()).collect()
}

fn binary(metadata: &MetadataMap, name: &'static str) -> Vec<Vec<u8>> {
    metadata.get_all_bin(name).iter().map(|value| value.to_bytes().expect("base64").to_vec()).collect()
}

async fn metadata_comes_back_with_every_kind_of_call(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let client = world.client();
    let echo = &[("echo-it", "here"), ("other", "not")];
    let unary = client.unary(ask(text("a"), echo)).await.expect("a reply");
    let expand = client.expand(ask(EchoRequest { count: 1, ..text("a") }, echo)).await.expect("replies");
    let collect = client.collect(ask(tokio_stream::once(text("a")), echo)).await.expect("a reply");
    let chat = client.chat(ask(tokio_stream::once(text("a")), echo)).await.expect("replies");
    for metadata in [unary.metadata(), expand.metadata(), collect.metadata(), chat.metadata()] {
        assert_eq!(ascii(metadata, "echo-it"), ["here"]);
        assert!(!metadata.contains_key("other"));
    }
    assert_eq!(all(expand).await.len(), 1);
    assert_eq!(all(chat).await.len(), 1);
}

async fn binary_metadata_is_bytes(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let every_byte: Vec<u8> = (0..=255).collect();
    for value in [&every_byte[..], b"", b"\0", b"12", b"\xff\xfe\xfd"] {
        let mut request = ask(text("a"), &[]);
        request.metadata_mut().insert_bin("echo-bytes-bin", MetadataValue::from_bytes(value));
        let reply = world.client().unary(request).await.expect("a reply");
        assert_eq!(binary(reply.metadata(), "echo-bytes-bin"), [value]);
    }
}

async fn repeated_names_keep_their_order(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let mut request = ask(text("a"), &[("echo-a", "3"), ("echo-b", "x"), ("echo-a", "1"), ("echo-a", "2")]);
    for value in [&b"second"[..], b"first"] {
        request.metadata_mut().append_bin("echo-c-bin", MetadataValue::from_bytes(value));
    }
    let reply = world.client().unary(request).await.expect("a reply");
    assert_eq!(ascii(reply.metadata(), "echo-a"), ["3", "1", "2"]);
    assert_eq!(ascii(reply.metadata(), "echo-b"), ["x"]);
    assert_eq!(binary(reply.metadata(), "echo-c-bin"), [&b"second"[..], b"first"]);
}

async fn empty_values_stay_empty(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let reply =
        world.client().unary(ask(text("a"), &[("echo-a", ""), ("echo-a", "b")])).await.expect("a reply");
    assert_eq!(ascii(reply.metadata(), "echo-a"), ["", "b"]);
}

async fn long_values_fit(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let long = "x".repeat(7000);
    let reply = world.client().unary(ask(text("a"), &[("echo-a", &long)])).await.expect("a reply");
    assert_eq!(ascii(reply.metadata(), "echo-a"), [long]);
    let mut request = ask(text("a"), &[]);
    for index in 0..100 {
        let name: MetadataKey<Ascii> = format!("echo-{index}").parse().expect("a name");
        request.metadata_mut().insert(name, index.into());
    }
    let reply = world.client().unary(request).await.expect("a reply");
    assert_eq!(ascii(reply.metadata(), "echo-0"), ["0"]);
    assert_eq!(ascii(reply.metadata(), "echo-99"), ["99"]);
}

fn failing() -> EchoRequest {
    EchoRequest { fail_code: Code::NotFound.into(), fail_message: "gone".to_owned(), ..text("a") }
}

async fn a_status_carries_metadata(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let mut request = ask(failing(), &[("fail-why", "one"), ("fail-why", "two")]);
    request.metadata_mut().insert_bin("fail-why-bin", MetadataValue::from_bytes(b"\0\xff"));
    let status = world.client().unary(request).await.expect_err("a failure");
    assert_eq!((status.code(), status.message()), (Code::NotFound, "gone"));
    assert_eq!(ascii(status.metadata(), "fail-why"), ["one", "two"]);
    assert_eq!(binary(status.metadata(), "fail-why-bin"), [b"\0\xff"]);
}

async fn a_status_of_a_stream_carries_metadata(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    for fail_after in [0, 2] {
        let request = EchoRequest { fail_after, count: 5, ..failing() };
        let request = ask(request, &[("fail-why", "because"), ("echo-it", "initial")]);
        let response = world.client().expand(request).await;
        let status = match response {
            // Without a message before it a status may come as the call's.
            Err(status) => status,
            Ok(response) => {
                assert_eq!(ascii(response.metadata(), "echo-it"), ["initial"]);
                crate::case::until_failure(response).await.1
            }
        };
        assert_eq!(status.code(), Code::NotFound);
        assert_eq!(ascii(status.metadata(), "fail-why"), ["because"]);
    }
}

static TRAILING_UNARY: MethodDescriptor = MethodDescriptor::new("/test.v1.Trailing/One", MethodKind::Unary);
static TRAILING_STREAM: MethodDescriptor =
    MethodDescriptor::new("/test.v1.Trailing/Many", MethodKind::ServerStreaming);

async fn trailers_follow_a_unary_reply(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let options = CallOptions::default();
    let reply = client::unary::<_, _, EchoReply>(
        &world.channel,
        &TRAILING_UNARY,
        options,
        Request::new(EchoRequest::default()),
    );
    let reply = reply.await.expect("a reply");
    assert_eq!(reply.get_ref().text, "the only one");
    assert_eq!(ascii(reply.metadata(), "lead"), ["zero"]);
    assert_eq!(ascii(reply.metadata(), "trail"), ["one", "two"]);
    assert_eq!(binary(reply.metadata(), "trail-bin"), [b"\0\xff"]);
}

async fn trailers_follow_a_stream(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let options = CallOptions::default();
    let replies = client::server_streaming::<_, _, EchoReply>(
        &world.channel,
        &TRAILING_STREAM,
        options,
        Request::new(EchoRequest::default()),
    );
    let response = replies.await.expect("replies");
    assert_eq!(ascii(response.metadata(), "lead"), ["zero"]);
    assert!(!response.metadata().contains_key("trail"));
    let mut replies = response.into_inner();
    assert_eq!(crate::case::next(&mut replies).await.text, "the only one");
    let trailers = replies.trailers().await.expect("no failure").expect("trailers");
    assert_eq!(ascii(&trailers, "trail"), ["one", "two"]);
    assert_eq!(binary(&trailers, "trail-bin"), [b"\0\xff"]);
}

const OWNED: [&str; 6] =
    ["te", "content-type", "grpc-status", "grpc-message", "grpc-status-details-bin", "grpc-message-type"];

async fn names_that_the_transport_owns_are_not_sent(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let mut request = ask(EchoRequest::default(), &[("report", "names"), ("mine", "1")]);
    for name in OWNED.iter().filter(|name| !name.ends_with("-bin")) {
        request.metadata_mut().insert(*name, MetadataValue::from_static("1"));
    }
    let reply = world.client().unary(request).await.expect("a reply").into_inner();
    let names: Vec<_> = reply.text.split(',').collect();
    assert!(names.contains(&"mine"), "{names:?}");
    // HTTP/2 itself puts two of them there, with its own values.
    let seen: Vec<_> = names.iter().filter(|name| OWNED[2..].contains(name)).collect();
    assert!(seen.is_empty(), "{seen:?}");
}

async fn names_that_the_transport_owns_do_not_come_back(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let request = ask(text("fine"), &[("reserved", "yes"), ("echo-it", "here")]);
    let reply = world.client().unary(request).await.expect("no status but the real one");
    assert_eq!(reply.get_ref().text, "fine");
    assert_eq!(ascii(reply.metadata(), "echo-it"), ["here"]);
    assert!(!reply.metadata().contains_key("grpc-message") && !reply.metadata().contains_key("grpc-timeout"));
    let request = ask(EchoRequest { count: 2, ..text("fine") }, &[("reserved", "yes")]);
    assert_eq!(all(world.client().expand(request).await.expect("replies")).await.len(), 2);
}

async fn initial_metadata_of_a_stream_is_not_its_trailers(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let (requests, stream) = upload();
    let response = world.client().chat(ask(stream, &[("echo-it", "early")])).await.expect("replies");
    assert_eq!(ascii(response.metadata(), "echo-it"), ["early"]);
    drop(requests);
    let mut replies = response.into_inner();
    let trailers = replies.trailers().await.expect("no failure").unwrap_or_default();
    assert!(!trailers.contains_key("echo-it"));
}
