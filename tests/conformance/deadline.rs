//! Deadlines: both sides know them, both sides keep them.
//!
//! The time-outs are real and short; nothing is said about how long anything took.

use std::time::Duration;

use byway::{Code, Request, Response, Status, Streaming};
use byway_test_support::reference::Event;
use byway_test_support::test::v1::{EchoReply, EchoRequest};
use tokio_stream::StreamExt;

use crate::case::{all, ask, cases, code, payload, text, until_failure, upload};
use crate::path::{Path, Setup, World};

cases![
    deadline_on_both_sides,
    the_server_keeps_the_deadline_by_itself,
    the_client_keeps_the_deadline_by_itself,
    the_handler_sees_the_time_left,
    without_a_deadline_the_handler_sees_none,
    the_handler_of_a_stream_sees_the_time_left,
    a_deadline_that_has_passed_reaches_no_handler,
    a_channel_has_a_default_timeout,
    a_timeout_of_the_call_beats_the_default_one,
    a_deadline_ends_a_stream,
    a_deadline_ends_a_stream_that_never_pauses,
    a_deadline_ends_an_upload,
    a_deadline_ends_a_chat,
    a_deadline_ends_a_wait_for_a_free_call,
    timeout_on_sleeping_server,
    a_deadline_far_away_changes_nothing,
];

const SHORT: Duration = Duration::from_millis(30);
const LONG: Duration = Duration::from_secs(1000);

/// Tells a story in which something must happen before the deadline, with later and later ones until it does.
async fn with_growing_timeouts(story: impl AsyncFn(Duration) -> bool) {
    for timeout in [SHORT, SHORT * 10, SHORT * 100] {
        if story(timeout).await {
            return;
        }
    }
    panic!("nothing happened before the deadline, however late it was");
}

/// Shows that a call ends at its deadline, and its handler with it. A slow machine may need a later one for the handler
/// to begin at all.
async fn ends_on_both_sides(path: &'static Path, name: &str, call: impl AsyncFn(&World, Duration)) {
    for timeout in [SHORT, SHORT * 10, SHORT * 100] {
        let mut world = path.open(Setup { timeout: Some(timeout), ..Setup::default() }).await;
        call(&world, timeout).await;
        let client = world.client();
        client.unary(within(LONG, Request::new(text("still here")))).await.expect("a reply");
        if world.gone_if_begun(name).await {
            return;
        }
    }
    panic!("the handler did not begin before the deadline, however late it was");
}

/// The replies to a call before its deadline.
async fn until_deadline(call: Result<Response<Streaming<EchoReply>>, Status>) -> usize {
    let (replies, status) = match call {
        Ok(response) => until_failure(response).await,
        Err(status) => (Vec::new(), status),
    };
    assert_eq!(status.code(), Code::DeadlineExceeded);
    replies.len()
}

fn within<T>(timeout: Duration, mut request: Request<T>) -> Request<T> {
    request.set_timeout(timeout);
    request
}

fn endless() -> EchoRequest {
    EchoRequest { delay_ms: u32::MAX, count: 1, ..text("never") }
}

async fn deadline_on_both_sides(path: &'static Path) {
    ends_on_both_sides(path, "unary", async |world, timeout| {
        let call = world.client();
        let status = call.unary(within(timeout, Request::new(endless()))).await.expect_err("a failure");
        assert_eq!(status.code(), Code::DeadlineExceeded);
    })
    .await;
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

async fn the_client_keeps_the_deadline_by_itself(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let reported = Request::new(EchoRequest { report_deadline: true, ..EchoRequest::default() });
    let reply = crate::policy::timeless(&world).unary(within(LONG, reported)).await.expect("a reply");
    assert_eq!(reply.get_ref().text, "none", "the server does not know");

    ends_on_both_sides(path, "unary", async |world, timeout| {
        let client = crate::policy::timeless(world);
        assert_eq!(
            code(client.unary(within(timeout, Request::new(endless()))).await),
            Code::DeadlineExceeded
        );
    })
    .await;
    ends_on_both_sides(path, "expand", async |world, timeout| {
        let client = crate::policy::timeless(world);
        let replies = client.expand(within(timeout, Request::new(endless()))).await;
        assert_eq!(until_deadline(replies).await, 0);
    })
    .await;
    ends_on_both_sides(path, "collect", async |world, timeout| {
        let client = crate::policy::timeless(world);
        let requests = Request::new(tokio_stream::pending());
        assert_eq!(code(client.collect(within(timeout, requests)).await), Code::DeadlineExceeded);
    })
    .await;
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
    ends_on_both_sides(path, "unary", async |world, _| {
        assert_eq!(code(world.client().unary(endless()).await), Code::DeadlineExceeded);
    })
    .await;
    ends_on_both_sides(path, "expand", async |world, _| {
        assert_eq!(until_deadline(world.client().expand(endless()).await).await, 0);
    })
    .await;
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
    let client = world.client();
    with_growing_timeouts(async |timeout| {
        let request = ask(EchoRequest { count: 9, ..text("some") }, &[("hold-after", "2")]);
        until_deadline(client.expand(within(timeout, request)).await).await == 2
    })
    .await;
    world.journal.until(Event::Dropped("expand".to_owned())).await;
    world.still_works().await;
}

async fn a_deadline_ends_a_stream_that_never_pauses(path: &'static Path) {
    ends_on_both_sides(path, "expand", async |world, timeout| {
        let request = EchoRequest { count: u32::MAX, ..payload(100) };
        until_deadline(world.client().expand(within(timeout, Request::new(request))).await).await;
    })
    .await;
    ends_on_both_sides(path, "chat", async |world, timeout| {
        let requests = Request::new(tokio_stream::iter(std::iter::repeat_with(|| payload(100))));
        until_deadline(world.client().chat(within(timeout, requests)).await).await;
    })
    .await;
}

async fn a_deadline_ends_an_upload(path: &'static Path) {
    ends_on_both_sides(path, "collect", async |world, timeout| {
        let (requests, stream) = upload();
        requests.send(text("only one")).expect("the call is not yet open");
        let failed = world.client().collect(within(timeout, Request::new(stream))).await;
        assert_eq!(code(failed), Code::DeadlineExceeded);
        requests.closed().await;
    })
    .await;
}

async fn a_deadline_ends_a_chat(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    let client = world.client();
    with_growing_timeouts(async |timeout| {
        let (requests, stream) = upload();
        requests.send(text("in time")).expect("the call is not yet open");
        let replies = until_deadline(client.chat(within(timeout, Request::new(stream))).await).await;
        requests.closed().await;
        replies == 1
    })
    .await;
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
