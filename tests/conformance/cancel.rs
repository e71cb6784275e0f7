//! Cancellation: a caller that goes away takes its handler with it, and nothing else.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use byway::{Code, Request};
use byway_test_support::reference::Event;
use byway_test_support::test::v1::EchoRequest;
use tokio_stream::StreamExt;

use crate::case::{ask, cases, code, next, payload, text, upload};
use crate::path::{Path, Setup};

cases![
    dropping_a_unary_call_drops_its_handler,
    dropping_an_upload_drops_its_handler,
    dropping_a_call_before_its_stream_began_drops_its_handler,
    dropping_a_stream_drops_its_handler,
    dropping_a_chat_drops_its_handler,
    cancel_after_begin,
    cancel_after_first_response,
    dropping_a_stream_that_has_ended_cancels_nothing,
    an_upload_that_was_dropped_is_not_a_complete_one,
    requests_are_dropped_with_the_call,
    requests_are_dropped_when_the_server_answers,
    a_call_that_was_never_polled_is_never_made,
    others_go_on_when_one_is_cancelled,
    cancelled_calls_make_room_for_new_ones,
    the_server_ends_for_good_what_it_was_told_to,
];

fn began(name: &str) -> Event {
    Event::Began(name.to_owned())
}

fn dropped(name: &str) -> Event {
    Event::Dropped(name.to_owned())
}

fn held<T>(message: T) -> Request<T> {
    ask(message, &[("hold-after", "0")])
}

/// Polls `call` until the handler began, then drops it.
async fn drop_once_begun<T>(world: &mut crate::path::World, call: impl Future<Output = T>, name: &str) {
    tokio::select! {
        _ = call => panic!("the call is over"),
        event = world.journal.next() => assert_eq!(event, began(name)),
    }
}

async fn dropping_a_unary_call_drops_its_handler(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    let client = world.client();
    drop_once_begun(&mut world, client.unary(held(text("gone"))), "unary").await;
    assert_eq!(world.journal.next().await, dropped("unary"));
    world.still_works().await;
}

async fn dropping_an_upload_drops_its_handler(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    let (requests, stream) = upload();
    requests.send(text("only one")).expect("the call is not yet open");
    let client = world.client();
    drop_once_begun(&mut world, client.collect(stream), "collect").await;
    assert_eq!(world.journal.next().await, dropped("collect"));
    requests.closed().await;
    world.still_works().await;
}

async fn dropping_a_call_before_its_stream_began_drops_its_handler(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    let client = world.client();
    let request = held(EchoRequest { count: 1, ..text("gone") });
    // Initial metadata may or may not have come by now.
    let mut call = Box::pin(client.expand(request));
    let early = tokio::select! {
        biased;
        event = world.journal.next() => {
            assert_eq!(event, began("expand"));
            None
        }
        response = &mut call => Some(response),
    };
    drop((early, call));
    world.journal.until(dropped("expand")).await;
    world.still_works().await;
}

async fn dropping_a_stream_drops_its_handler(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    let request = ask(EchoRequest { count: 9, ..text("gone") }, &[("hold-after", "2")]);
    let mut replies = world.client().expand(request).await.expect("replies").into_inner();
    assert_eq!(next(&mut replies).await.index, 0);
    assert_eq!(world.journal.next().await, began("expand"));
    drop(replies);
    assert_eq!(world.journal.next().await, dropped("expand"));
    world.still_works().await;
}

async fn dropping_a_chat_drops_its_handler(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    let (requests, stream) = upload();
    let replies = world.client().chat(stream).await.expect("replies");
    assert_eq!(world.journal.next().await, began("chat"));
    drop(replies);
    assert_eq!(world.journal.next().await, dropped("chat"));
    requests.closed().await;
    world.still_works().await;
}

async fn cancel_after_begin(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    let (_requests, stream) = upload();
    let client = world.client();
    {
        let call = pin!(client.collect(ask(stream, &[("call", "begun")])));
        assert!(call.poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    world.still_works().await;
    // If the server heard of it at all, it heard of its end too, and did not take it for the end of the requests.
    world.gone_if_begun("begun").await;
}

async fn cancel_after_first_response(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    let (requests, stream) = upload();
    let chat = world.client().chat(ask(stream, &[("sizes", "31415")])).await.expect("replies");
    let mut replies = chat.into_inner();
    requests.send(payload(27182)).expect("the call is open");
    assert_eq!(next(&mut replies).await.payload.len(), 31415);
    drop(replies);
    world.journal.until(dropped("chat")).await;
    requests.closed().await;
    world.still_works().await;
}

async fn dropping_a_stream_that_has_ended_cancels_nothing(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    let request = EchoRequest { count: 2, ..text("whole") };
    let mut replies = world.client().expand(request).await.expect("replies").into_inner();
    while replies.message().await.expect("no failure").is_some() {}
    drop(replies);
    assert_eq!(world.journal.next().await, began("expand"));
    assert_eq!(world.journal.next().await, Event::Finished("expand".to_owned()));
}

async fn an_upload_that_was_dropped_is_not_a_complete_one(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    // If the handler took the end of the call for the end of the requests, it would finish.
    let (requests, stream) = upload();
    requests.send(text("half of it")).expect("the call is not yet open");
    let client = world.client();
    drop_once_begun(&mut world, client.collect(stream), "collect").await;
    assert_eq!(world.journal.next().await, dropped("collect"));
}

async fn requests_are_dropped_with_the_call(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let (requests, stream) = upload();
    let chat = world.client().chat(stream).await.expect("replies");
    assert!(!requests.is_closed());
    drop(chat);
    requests.closed().await;
}

async fn requests_are_dropped_when_the_server_answers(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let (requests, stream) = upload();
    let failing = EchoRequest { fail_code: Code::Aborted.into(), ..text("fail") };
    requests.send(failing).expect("the call is not yet open");
    assert_eq!(code(world.client().collect(stream).await), Code::Aborted);
    requests.closed().await;
}

async fn a_call_that_was_never_polled_is_never_made(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    let client = world.client();
    drop(client.unary(ask(text("never"), &[("call", "never")])));
    world.still_works().await;
    assert_eq!(world.journal.next().await, began("unary"));
}

async fn others_go_on_when_one_is_cancelled(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    let request = |name| ask(EchoRequest { count: 3, ..text("a") }, &[("hold-after", "1"), ("call", name)]);
    let mut staying = world.client().expand(request("staying")).await.expect("replies").into_inner();
    let leaving = world.client().expand(request("leaving")).await.expect("replies");
    assert_eq!(next(&mut staying).await.index, 0);
    drop(leaving);
    world.journal.until(dropped("leaving")).await;
    world.journal.release(2);
    assert_eq!(next(&mut staying).await.index, 1);
    assert_eq!(next(&mut staying).await.index, 2);
    assert_eq!(staying.message().await.expect("no failure"), None);
    world.journal.until(Event::Finished("staying".to_owned())).await;
}

async fn cancelled_calls_make_room_for_new_ones(path: &'static Path) {
    let mut setup = Setup::default();
    setup.server.max_calls = 4;
    let mut world = path.open(setup).await;
    let client = world.client();
    for _ in 0..300 {
        let mut call = pin!(client.unary(held(text("gone"))));
        // Whether it waits for room, is sent or is being answered when it is dropped differs from round to round.
        let poll = std::future::poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
        assert!(poll.is_pending());
    }
    world.still_works().await;
    let seen = world.journal.unread();
    let begun = seen.iter().filter(|event| matches!(event, Event::Began(_))).count();
    let ended = seen.len() - begun;
    // Handlers of calls that were cancelled a moment ago may not have been dropped yet.
    for _ in ended..begun {
        assert!(matches!(world.journal.next().await, Event::Dropped(_) | Event::Finished(_)));
    }
}

async fn the_server_ends_for_good_what_it_was_told_to(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    let request = EchoRequest { count: u32::MAX, ..payload(100) };
    let mut replies = world.client().expand(request).await.expect("replies").into_inner();
    for index in 0..500 {
        assert_eq!(next(&mut replies).await.index, index);
    }
    drop(replies);
    world.journal.until(dropped("expand")).await;
    let taken = *world.journal.replies().borrow();
    world.still_works().await;
    assert_eq!(*world.journal.replies().borrow(), taken);
    let rest = world.client().expand(EchoRequest { count: 3, ..text("new") }).await.expect("replies");
    assert_eq!(rest.into_inner().map(|reply| reply.expect("no failure")).collect::<Vec<_>>().await.len(), 3);
}
