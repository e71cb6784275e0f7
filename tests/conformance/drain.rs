//! Drain: a server that stops lets open calls finish, takes no new ones, and ends what takes too long.

use std::time::Duration;

use byway::Code;
use byway_test_support::reference::{Event, Journal};
use byway_test_support::test::v1::EchoRequest;

use crate::case::{ask, cases, code, next, text, until_failure, upload};
use crate::path::{Path, Setup, World};

cases![
    open_calls_finish,
    an_idle_connection_is_let_go,
    new_calls_fail_when_there_is_no_other_server,
    the_time_limit_ends_what_remains,
    a_call_that_waits_for_its_turn_is_told,
    new_calls_move_on_to_the_next_server,
    calls_that_are_open_when_the_server_is_lost_fail_and_later_ones_do_not,
];

/// Makes calls until one is refused: the client has heard of the drain.
async fn until_refused(world: &World) -> byway::Status {
    loop {
        match world.client().unary(text("still?")).await {
            Ok(_) => tokio::task::yield_now().await,
            Err(status) => return status,
        }
    }
}

async fn open_calls_finish(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    let request = ask(EchoRequest { count: 3, ..text("a") }, &[("hold-after", "1"), ("call", "stream")]);
    let mut replies = world.client().expand(request).await.expect("replies").into_inner();
    assert_eq!(next(&mut replies).await.index, 0);
    let (requests, stream) = upload();
    let mut chat = world.client().chat(ask(stream, &[("call", "chat")])).await.expect("replies").into_inner();
    world.journal.until(Event::Began("chat".to_owned())).await;
    world.drain();
    assert_eq!(until_refused(&world).await.code(), Code::Unavailable);
    for text_of_it in ["goes", "on"] {
        requests.send(text(text_of_it)).expect("the call is open");
        assert_eq!(next(&mut chat).await.text, text_of_it);
    }
    drop(requests);
    assert_eq!(chat.message().await.expect("no failure"), None);
    world.journal.release(2);
    assert_eq!(next(&mut replies).await.index, 1);
    assert_eq!(next(&mut replies).await.index, 2);
    assert_eq!(replies.message().await.expect("no failure"), None);
    world.stopped().await;
}

async fn an_idle_connection_is_let_go(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    world.still_works().await;
    world.drain();
    world.stopped().await;
    assert_eq!(until_refused(&world).await.code(), Code::Unavailable);
}

async fn new_calls_fail_when_there_is_no_other_server(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    let client = world.client();
    let held = tokio::spawn(async move { client.unary(ask(text("held"), &[("hold-after", "0")])).await });
    assert_eq!(world.journal.next().await, Event::Began("unary".to_owned()));
    world.drain();
    assert_eq!(until_refused(&world).await.code(), Code::Unavailable);
    assert_eq!(code(world.client().unary(text("new")).await), Code::Unavailable);
    assert_eq!(code(world.client().expand(text("new")).await), Code::Unavailable);
    assert_eq!(code(world.client().collect(tokio_stream::empty()).await), Code::Unavailable);
    assert_eq!(code(world.client().chat(tokio_stream::empty()).await), Code::Unavailable);
    world.journal.release(1);
    assert_eq!(held.await.expect("no panic").expect("a reply").get_ref().text, "held");
    world.stopped().await;
}

async fn the_time_limit_ends_what_remains(path: &'static Path) {
    let mut world = path.open(Setup { drain_timeout: Duration::from_millis(20), ..Setup::default() }).await;
    let request = ask(EchoRequest { count: 3, ..text("a") }, &[("hold-after", "1"), ("call", "stream")]);
    let mut replies = world.client().expand(request).await.expect("replies").into_inner();
    assert_eq!(next(&mut replies).await.index, 0);
    let client = world.client();
    let held = tokio::spawn(async move { client.unary(ask(text("held"), &[("hold-after", "0")])).await });
    world.journal.until(Event::Began("unary".to_owned())).await;
    world.drain();
    assert_eq!(code(held.await.expect("no panic")), Code::Unavailable);
    assert_eq!(code(replies.message().await), Code::Unavailable);
    let mut ended = [world.journal.next().await, world.journal.next().await];
    ended.sort_by_key(|event| format!("{event:?}"));
    assert_eq!(ended, ["stream", "unary"].map(|name| Event::Dropped(name.to_owned())));
    world.stopped().await;
}

async fn a_call_that_waits_for_its_turn_is_told(path: &'static Path) {
    let mut setup = Setup::default();
    setup.server.max_calls = 1;
    let mut world = path.open(setup).await;
    let client = world.client();
    let held = tokio::spawn(async move { client.unary(ask(text("held"), &[("hold-after", "0")])).await });
    assert_eq!(world.journal.next().await, Event::Began("unary".to_owned()));
    let client = world.client();
    let waiting = tokio::spawn(async move { client.unary(text("waiting")).await });
    world.drain();
    assert_eq!(code(waiting.await.expect("no panic")), Code::Unavailable);
    world.journal.release(1);
    assert_eq!(held.await.expect("no panic").expect("a reply").get_ref().text, "held");
    world.stopped().await;
}

fn begun(journal: &mut Journal) -> usize {
    journal.unread().iter().filter(|event| matches!(event, Event::Began(_))).count()
}

async fn new_calls_move_on_to_the_next_server(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    let client = world.client();
    let held = tokio::spawn(async move { client.unary(ask(text("held"), &[("hold-after", "0")])).await });
    assert_eq!(world.journal.next().await, Event::Began("unary".to_owned()));
    world.drain();
    let mut successor = world.successor().await;
    // Some of these find the old server, some are refused by it and sent again, some find the new one. None fails and
    // none runs twice.
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let client = world.client();
        calls.spawn(async move { client.unary(text("moves on")).await });
    }
    while let Some(call) = calls.join_next().await {
        assert_eq!(call.expect("no panic").expect("a reply").get_ref().text, "moves on");
    }
    world.journal.release(1);
    assert_eq!(held.await.expect("no panic").expect("a reply").get_ref().text, "held");
    world.stopped().await;
    assert_eq!(begun(&mut world.journal) + begun(&mut successor), 100);
    world.still_works().await;
    assert_eq!(begun(&mut successor), 1);
}

async fn calls_that_are_open_when_the_server_is_lost_fail_and_later_ones_do_not(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    let client = world.client();
    let held = tokio::spawn(async move { client.unary(ask(text("held"), &[("hold-after", "0")])).await });
    assert_eq!(world.journal.next().await, Event::Began("unary".to_owned()));
    let (_requests, stream) = upload();
    let chat = world.client().chat(stream).await.expect("replies");
    world.lose_server().await;
    let mut successor = world.successor().await;
    // It had begun: sending it again might do its work twice.
    assert_eq!(code(held.await.expect("no panic")), Code::Unavailable);
    let (replies, status) = until_failure(chat).await;
    assert_eq!((replies.len(), status.code()), (0, Code::Unavailable));
    world.still_works().await;
    assert_eq!(begun(&mut successor), 1);
}
