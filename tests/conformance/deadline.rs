//! Deadlines: both sides know them, both sides keep them.
//!
//! The time-outs are real and short; nothing is said about how long anything took.

use std::time::Duration;

use byway::{Code, Request};
use byway_test_support::reference::Event;
use byway_test_support::test::v1::EchoRequest;
use tokio_stream::StreamExt;

use crate::case::{all, ask, cases, code, next, payload, text, until_failure, upload};
use crate::path::{Path, Setup};

cases![
    deadline_on_both_sides,
    the_server_keeps_the_deadline_by_itself,
    the_handler_sees_the_time_left,
    without_a_deadline_the_handler_sees_none,
    the_handler_of_a_stream_sees_the_time_left,
    a_deadline_that_has_passed_reaches_no_handler,
    a_channel_has_a_default_timeout,
    a_timeout_of_the_call_beats_the_default_one,
    a_deadline_ends_a_stream,
    a_deadline_ends_an_upload,
    a_deadline_ends_a_chat,
    a_deadline_ends_a_wait_for_a_free_call,
    timeout_on_sleeping_server,
    a_deadline_far_away_changes_nothing,
];

const SHORT: Duration = Duration::from_millis(30);
const LONG: Duration = Duration::from_secs(1000);

fn within<T>(timeout: Duration, mut request: Request<T>) -> Request<T> {
    request.set_timeout(timeout);
    request
}

fn endless() -> EchoRequest {
    EchoRequest { delay_ms: u32::MAX, count: 1, ..text("never") }
}

async fn deadline_on_both_sides(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    let call = world.client();
    let status = call.unary(within(SHORT, Request::new(endless()))).await.expect_err("a failure");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    world.journal.until(Event::Dropped("unary".to_owned())).await;
    world.still_works().await;
}

async fn the_server_keeps_the_deadline_by_itself(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    // The client's own clock stands still: it starts the call, and does not look after it.
    let call = crate::policy::start_raw(&world, "/test.v1.Echo/Unary", Some(SHORT), &endless()).await;
    world.journal.until(Event::Dropped("unary".to_owned())).await;
    let status = crate::policy::outcome(call).await.expect_err("a failure");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    world.still_works().await;
}

async fn the_handler_sees_the_time_left(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let request = EchoRequest { report_deadline: true, ..EchoRequest::default() };
    let reply = world.client().unary(within(LONG, Request::new(request))).await.expect("a reply");
    let left: u128 = reply.get_ref().text.parse().expect("milliseconds");
    assert!((1..=LONG.as_millis()).contains(&left), "{left} ms");
    // More than what this test may take has surely not passed.
    assert!(left > LONG.as_millis() - 100_000, "{left} ms");
}

async fn without_a_deadline_the_handler_sees_none(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let request = EchoRequest { report_deadline: true, ..EchoRequest::default() };
    assert_eq!(world.client().unary(request).await.expect("a reply").get_ref().text, "none");
}

async fn the_handler_of_a_stream_sees_the_time_left(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let request = EchoRequest { report_deadline: true, count: 2, ..EchoRequest::default() };
    let chat = within(LONG, Request::new(tokio_stream::once(request.clone())));
    let replies = all(world.client().chat(chat).await.expect("replies")).await;
    assert_ne!(replies[0].text, "none");
    let replies =
        all(world.client().expand(within(LONG, Request::new(request))).await.expect("replies")).await;
    assert_ne!(replies[1].text, "none");
}

async fn a_deadline_that_has_passed_reaches_no_handler(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    for timeout in [Duration::ZERO, Duration::from_nanos(1)] {
        let client = world.client();
        let named = || within(timeout, ask(text("late"), &[("call", "late")]));
        assert_eq!(code(client.unary(named()).await), Code::DeadlineExceeded);
        assert_eq!(code(client.expand(named()).await), Code::DeadlineExceeded);
    }
    world.still_works().await;
    assert_eq!(world.journal.next().await, Event::Began("unary".to_owned()));
}

async fn a_channel_has_a_default_timeout(path: &'static Path) {
    let mut world = path.open(Setup { timeout: Some(SHORT), ..Setup::default() }).await;
    assert_eq!(code(world.client().unary(endless()).await), Code::DeadlineExceeded);
    world.journal.until(Event::Dropped("unary".to_owned())).await;
    let replies = world.client().expand(endless()).await;
    let code = match replies {
        Err(status) => status.code(),
        Ok(response) => until_failure(response).await.1.code(),
    };
    assert_eq!(code, Code::DeadlineExceeded);
    world.journal.until(Event::Dropped("expand".to_owned())).await;
}

async fn a_timeout_of_the_call_beats_the_default_one(path: &'static Path) {
    let world = path.open(Setup { timeout: Some(LONG), ..Setup::default() }).await;
    let request = within(SHORT, Request::new(endless()));
    assert_eq!(code(world.client().unary(request).await), Code::DeadlineExceeded);

    let world = path.open(Setup { timeout: Some(Duration::ZERO), ..Setup::default() }).await;
    let reply = world.client().unary(within(LONG, Request::new(text("in time")))).await.expect("a reply");
    assert_eq!(reply.get_ref().text, "in time");
}

async fn a_deadline_ends_a_stream(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    let request = ask(EchoRequest { count: 9, ..text("some") }, &[("hold-after", "2")]);
    let replies = world.client().expand(within(SHORT, request)).await.expect("replies");
    let (replies, status) = until_failure(replies).await;
    assert_eq!((replies.len(), status.code()), (2, Code::DeadlineExceeded));
    world.journal.until(Event::Dropped("expand".to_owned())).await;
    world.still_works().await;
}

async fn a_deadline_ends_an_upload(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    let (requests, stream) = upload();
    requests.send(text("only one")).expect("the call is not yet open");
    let failed = world.client().collect(within(SHORT, Request::new(stream))).await;
    assert_eq!(code(failed), Code::DeadlineExceeded);
    requests.closed().await;
    world.journal.until(Event::Dropped("collect".to_owned())).await;
    world.still_works().await;
}

async fn a_deadline_ends_a_chat(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    let (requests, stream) = upload();
    let replies = world.client().chat(within(SHORT, Request::new(stream))).await.expect("replies");
    let mut replies = replies.into_inner();
    requests.send(text("in time")).expect("the call is open");
    assert_eq!(next(&mut replies).await.text, "in time");
    assert_eq!(code(replies.message().await), Code::DeadlineExceeded);
    requests.closed().await;
    world.journal.until(Event::Dropped("chat".to_owned())).await;
    world.still_works().await;
}

async fn a_deadline_ends_a_wait_for_a_free_call(path: &'static Path) {
    let mut setup = Setup::default();
    setup.server.max_calls = 1;
    let mut world = path.open(setup).await;
    let client = world.client();
    let held = tokio::spawn(async move { client.unary(ask(text("held"), &[("hold-after", "0")])).await });
    assert_eq!(world.journal.next().await, Event::Began("unary".to_owned()));
    let waiting = within(SHORT, ask(text("waiting"), &[("call", "waiting")]));
    assert_eq!(code(world.client().unary(waiting).await), Code::DeadlineExceeded);
    world.journal.release(1);
    held.await.expect("no panic").expect("a reply");
    world.still_works().await;
    let seen = world.journal.unread();
    assert!(!seen.contains(&Event::Began("waiting".to_owned())), "{seen:?}");
}

async fn timeout_on_sleeping_server(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    let request = EchoRequest { delay_ms: u32::MAX, ..payload(27182) };
    let requests = tokio_stream::once(request).chain(tokio_stream::pending());
    let failed = match world.client().chat(within(Duration::from_millis(1), Request::new(requests))).await {
        Err(status) => status,
        Ok(response) => until_failure(response).await.1,
    };
    assert_eq!(failed.code(), Code::DeadlineExceeded);
    world.still_works().await;
    world.gone_if_begun("chat").await;
}

async fn a_deadline_far_away_changes_nothing(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    for timeout in [LONG, Duration::from_secs(99_999_999), Duration::from_secs(99_999_999 * 3600)] {
        let mut request = Request::new(text("far"));
        request.set_timeout(timeout);
        assert_eq!(world.client().unary(request).await.expect("a reply").get_ref().text, "far");
    }
}
