//! Limits: what is too large or too much is refused with RESOURCE_EXHAUSTED or waits, and harms no other call.

use std::future::Future;
use std::task::Poll;

use byway::codegen::tonic::metadata::{Ascii, MetadataKey};
use byway::{Code, Request, Status};
use byway_test_support::reference::Event;
use byway_test_support::test::v1::EchoRequest;
use tokio_stream::StreamExt;

use crate::case::{all, ask, cases, code, next, payload, text, until_failure, upload};
use crate::path::{Path, Setup, World};

cases![
    a_request_over_the_services_limit,
    a_request_of_the_services_limit_passes,
    requests_over_the_default_limit,
    a_streamed_request_over_the_services_limit,
    a_reply_over_the_clients_limit,
    replies_over_the_default_limit,
    a_streamed_reply_over_the_clients_limit,
    a_request_over_the_clients_own_encoding_limit,
    a_reply_over_the_services_own_encoding_limit,
    a_message_over_what_the_server_takes_at_all,
    a_message_over_what_the_client_takes_at_all,
    metadata_over_what_the_server_takes,
    metadata_over_what_the_client_takes,
    a_status_over_what_the_client_takes,
    metadata_of_very_many_entries,
    the_call_after_the_last_free_one_waits,
    a_waiting_call_can_be_dropped,
    calls_over_the_servers_limit_are_refused,
];

fn exhausted(status: &Status) {
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
}

/// A setup whose service takes and gives no more than this.
fn small_service() -> Setup {
    Setup { max_decoding: Some(1000), ..Setup::default() }
}

async fn a_request_over_the_services_limit(path: &'static Path) {
    let mut world = path.open(small_service()).await;
    exhausted(&world.client().unary(payload(1000)).await.expect_err("a failure"));
    exhausted(&world.client().expand(payload(2_000_000)).await.expect_err("a failure"));
    assert_eq!(world.journal.unread(), [], "no handler saw it");
    world.still_works().await;
}

async fn a_request_of_the_services_limit_passes(path: &'static Path) {
    let world = path.open(small_service()).await;
    // Tag and length take three bytes.
    let reply = world.client().unary(payload(997)).await.expect("a reply");
    assert_eq!(reply.get_ref().payload.len(), 997);
    exhausted(&world.client().unary(payload(998)).await.expect_err("a failure"));
}

async fn requests_over_the_default_limit(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    exhausted(&world.client().unary(payload(4 << 20)).await.expect_err("a failure"));
    world.still_works().await;
}

async fn a_streamed_request_over_the_services_limit(path: &'static Path) {
    let world = path.open(small_service()).await;
    let requests = tokio_stream::iter([payload(10), payload(1000)]).chain(tokio_stream::pending());
    exhausted(&world.client().collect(requests).await.expect_err("a failure"));
    let requests = tokio_stream::iter([payload(10), payload(1000)]).chain(tokio_stream::pending());
    let (replies, status) = until_failure(world.client().chat(requests).await.expect("replies")).await;
    assert_eq!(replies.len(), 1);
    exhausted(&status);
    world.still_works().await;
}

async fn a_reply_over_the_clients_limit(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let client = world.client().max_decoding_message_size(1000);
    let request = |reply_bytes| EchoRequest { reply_bytes, ..EchoRequest::default() };
    exhausted(&client.unary(request(1000)).await.expect_err("a failure"));
    exhausted(&client.unary(request(3_000_000)).await.expect_err("a failure"));
    assert_eq!(client.unary(request(997)).await.expect("a reply").get_ref().payload.len(), 997);
}

async fn replies_over_the_default_limit(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let request = EchoRequest { reply_bytes: 4 << 20, ..EchoRequest::default() };
    exhausted(&world.client().unary(request.clone()).await.expect_err("a failure"));
    let client = world.client().max_decoding_message_size(5 << 20);
    assert_eq!(client.unary(request).await.expect("a reply").get_ref().payload.len(), 4 << 20);
}

async fn a_streamed_reply_over_the_clients_limit(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    let client = world.client().max_decoding_message_size(1000);
    let request = ask(EchoRequest { count: 9, ..EchoRequest::default() }, &[("sizes", "10,20,2000,10")]);
    let (replies, status) = until_failure(client.expand(request).await.expect("replies")).await;
    assert_eq!(replies.len(), 2);
    exhausted(&status);
    world.still_works().await;
    // The handler does not go on for a client that has given up.
    let seen = world.journal.unread();
    if !seen
        .iter()
        .any(|event| matches!(event, Event::Finished(name) | Event::Dropped(name) if name == "expand"))
    {
        world.journal.next().await;
    }
}

async fn a_request_over_the_clients_own_encoding_limit(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    let client = world.client().max_encoding_message_size(1000);
    exhausted(&client.unary(payload(1000)).await.expect_err("a failure"));
    assert_eq!(world.journal.unread(), [], "it was not sent");
    let requests = tokio_stream::iter([payload(10), payload(1000)]).chain(tokio_stream::pending());
    exhausted(&client.collect(requests).await.expect_err("a failure"));
    world.still_works().await;
}

async fn a_reply_over_the_services_own_encoding_limit(path: &'static Path) {
    let setup = Setup { max_encoding: Some(1000), ..Setup::default() };
    let world = path.open(setup).await;
    exhausted(&world.client().unary(payload(1000)).await.expect_err("a failure"));
    let request = ask(EchoRequest { count: 9, ..EchoRequest::default() }, &[("sizes", "10,20,2000,10")]);
    let (replies, status) = until_failure(world.client().expand(request).await.expect("replies")).await;
    assert_eq!(replies.len(), 2);
    exhausted(&status);
    world.still_works().await;
}

async fn a_message_over_what_the_server_takes_at_all(path: &'static Path) {
    let mut setup = Setup::default();
    setup.server.max_message = 50_000;
    let mut world = path.open(setup).await;
    exhausted(&world.client().unary(payload(50_000)).await.expect_err("a failure"));
    assert_eq!(world.journal.unread(), [], "it was not sent");
    let requests = tokio_stream::iter([payload(10), payload(60_000)]).chain(tokio_stream::pending());
    exhausted(&world.client().collect(requests).await.expect_err("a failure"));
    assert_eq!(world.client().unary(payload(49_000)).await.expect("a reply").get_ref().payload.len(), 49_000);
}

async fn a_message_over_what_the_client_takes_at_all(path: &'static Path) {
    let mut setup = Setup::default();
    setup.client.max_message = 50_000;
    let world = path.open(setup).await;
    let request = EchoRequest { reply_bytes: 50_000, ..EchoRequest::default() };
    exhausted(&world.client().unary(request).await.expect_err("a failure"));
    let request = ask(EchoRequest { count: 9, ..EchoRequest::default() }, &[("sizes", "10,20,60000,10")]);
    let (replies, status) = until_failure(world.client().expand(request).await.expect("replies")).await;
    assert_eq!(replies.len(), 2);
    exhausted(&status);
    world.still_works().await;
}

async fn metadata_over_what_the_server_takes(path: &'static Path) {
    let mut setup = Setup::default();
    setup.server.max_head = 500;
    let mut world = path.open(setup).await;
    let long = "x".repeat(600);
    exhausted(&world.client().unary(ask(text("a"), &[("long", &long)])).await.expect_err("a failure"));
    exhausted(&world.client().expand(ask(text("a"), &[("long", &long)])).await.expect_err("a failure"));
    let (_requests, stream) = upload();
    exhausted(&world.client().chat(ask(stream, &[("long", &long)])).await.expect_err("a failure"));
    assert_eq!(world.journal.unread(), [], "none was sent");
    world.still_works().await;
}

async fn metadata_over_what_the_client_takes(path: &'static Path) {
    let mut setup = Setup::default();
    setup.client.max_head = 500;
    let world = path.open(setup).await;
    let long = "x".repeat(600);
    exhausted(&world.client().unary(ask(text("a"), &[("echo-it", &long)])).await.expect_err("a failure"));
    let request = ask(EchoRequest { count: 2, ..text("a") }, &[("echo-it", &long)]);
    exhausted(&world.client().expand(request).await.expect_err("a failure"));
    world.still_works().await;
}

async fn a_status_over_what_the_client_takes(path: &'static Path) {
    let mut setup = Setup::default();
    setup.client.max_head = 500;
    let world = path.open(setup).await;
    let failing =
        EchoRequest { fail_code: Code::Aborted.into(), fail_details: vec![7; 600].into(), ..text("a") };
    exhausted(&world.client().unary(failing.clone()).await.expect_err("a failure"));
    let failing = EchoRequest { count: 3, fail_after: 1, ..failing };
    let (replies, status) = until_failure(world.client().expand(failing).await.expect("replies")).await;
    assert_eq!(replies.len(), 1);
    exhausted(&status);
    world.still_works().await;
}

async fn metadata_of_very_many_entries(path: &'static Path) {
    let mut setup = Setup::default();
    setup.client.max_head = u16::MAX;
    setup.server.max_head = u16::MAX;
    let world = path.open(setup).await;
    let request = ask(EchoRequest { count: 2, ..text("held") }, &[("hold-after", "1")]);
    let mut other = world.client().expand(request).await.expect("replies").into_inner();
    assert_eq!(next(&mut other).await.index, 0);
    for prefix in ["only", "echo"] {
        let mut request = Request::new(text("many"));
        for index in 0..1000 {
            let name: MetadataKey<Ascii> = format!("{prefix}-{index}").parse().expect("a name");
            request.metadata_mut().insert(name, index.into());
        }
        // Either side may refuse so many, but as a matter of this call.
        match world.client().unary(request).await {
            Ok(reply) => assert_eq!(reply.get_ref().text, "many"),
            Err(status) => exhausted(&status),
        }
    }
    world.journal.release(1);
    assert_eq!(next(&mut other).await.index, 1);
    assert_eq!(other.message().await.expect("no failure"), None);
}

/// Starts calls that hold, each in a task, and waits until their handlers have begun.
async fn hold(world: &mut World, count: usize) -> tokio::task::JoinSet<Result<(), Status>> {
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..count {
        let client = world.client();
        calls.spawn(async move {
            client.unary(ask(text("held"), &[("hold-after", "0"), ("call", "held")])).await.map(drop)
        });
        assert_eq!(world.journal.next().await, Event::Began("held".to_owned()));
    }
    calls
}

async fn all_answered(mut calls: tokio::task::JoinSet<Result<(), Status>>) {
    while let Some(call) = calls.join_next().await {
        call.expect("no panic").expect("a reply");
    }
}

async fn the_call_after_the_last_free_one_waits(path: &'static Path) {
    let mut setup = Setup::default();
    setup.server.max_calls = 3;
    let mut world = path.open(setup).await;
    let held = hold(&mut world, 3).await;
    let client = world.client();
    let mut waiting = Box::pin(client.unary(ask(text("waited"), &[("call", "waiting")])));
    let poll = std::future::poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx))).await;
    assert!(poll.is_pending());
    let more: Vec<_> = (0..20)
        .map(|_| {
            let client = world.client();
            tokio::spawn(async move { client.unary(ask(text("more"), &[("call", "more")])).await })
        })
        .collect();
    world.journal.release(1);
    assert_eq!(waiting.await.expect("a reply").get_ref().text, "waited");
    for call in more {
        assert_eq!(call.await.expect("no panic").expect("a reply").get_ref().text, "more");
    }
    world.journal.release(2);
    all_answered(held).await;
    // None of those that waited began before one of the first three had finished.
    let events = world.journal.unread();
    assert_eq!(events[0], Event::Finished("held".to_owned()), "{events:?}");
}

async fn a_waiting_call_can_be_dropped(path: &'static Path) {
    let mut setup = Setup::default();
    setup.server.max_calls = 1;
    let mut world = path.open(setup).await;
    let held = hold(&mut world, 1).await;
    let client = world.client();
    let mut dropped = Box::pin(client.unary(text("dropped")));
    let mut kept = Box::pin(client.unary(text("kept")));
    let both = std::future::poll_fn(|cx| {
        Poll::Ready(dropped.as_mut().poll(cx).is_pending() && kept.as_mut().poll(cx).is_pending())
    });
    assert!(both.await);
    world.journal.release(1);
    all_answered(held).await;
    // It may be the one that was told of the free call; that must not be lost with it.
    drop(dropped);
    assert_eq!(kept.await.expect("a reply").get_ref().text, "kept");
}

async fn calls_over_the_servers_limit_are_refused(path: &'static Path) {
    let mut world = path.open(Setup { max_running: Some(2), ..Setup::default() }).await;
    let held = hold(&mut world, 2).await;
    assert_eq!(code(world.client().unary(text("one too many")).await), Code::ResourceExhausted);
    assert_eq!(code(world.client().expand(text("one too many")).await), Code::ResourceExhausted);
    assert_eq!(code(world.client().collect(tokio_stream::pending()).await), Code::ResourceExhausted);
    world.journal.release(2);
    all_answered(held).await;
    assert_eq!(world.journal.unread(), vec![Event::Finished("held".to_owned()); 2], "no other began");
    // A handler's place is free a moment after its reply arrived.
    while let Err(status) = world.client().unary(text("room again")).await {
        exhausted(&status);
        tokio::task::yield_now().await;
    }
    let replies = world.client().expand(EchoRequest { count: 2, ..text("room again") }).await;
    assert_eq!(all(replies.expect("replies")).await.len(), 2);
}
