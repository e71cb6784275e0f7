//! A handler that panics ends its own call with INTERNAL, and no other.

use byway::Code;
use byway_test_support::reference::Event;
use byway_test_support::test::v1::EchoRequest;

use crate::case::{ask, cases, code, next, text, until_failure, upload};
use crate::path::{Path, Setup, World};

cases![
    a_panic_before_the_first_await,
    a_panic_after_an_await,
    a_panic_in_an_upload,
    a_panic_in_a_stream,
    a_panic_in_a_chat,
    many_panics_at_once,
];

fn panicking() -> EchoRequest {
    EchoRequest { panic: true, ..text("not to be seen") }
}

/// Shows that a call that is open while others panic is answered in the end.
async fn unharmed(path: &'static Path, panic: impl AsyncFnOnce(&mut World)) {
    let mut world = path.open(Setup::default()).await;
    let client = world.client();
    let held = ask(EchoRequest { count: 2, ..text("unharmed") }, &[("call", "held"), ("hold-after", "1")]);
    let mut replies = client.expand(held).await.expect("replies").into_inner();
    assert_eq!(next(&mut replies).await.index, 0);
    panic(&mut world).await;
    world.journal.release(1);
    assert_eq!(next(&mut replies).await.index, 1);
    assert_eq!(replies.message().await.expect("no failure"), None);
    world.journal.until(Event::Finished("held".to_owned())).await;
    world.still_works().await;
}

async fn a_panic_before_the_first_await(path: &'static Path) {
    unharmed(path, async |world| {
        assert_eq!(code(world.client().unary(panicking()).await), Code::Internal);
        world.journal.until(Event::Dropped("unary".to_owned())).await;
    })
    .await;
}

async fn a_panic_after_an_await(path: &'static Path) {
    unharmed(path, async |world| {
        let request = EchoRequest { delay_ms: 1, ..panicking() };
        assert_eq!(code(world.client().unary(request).await), Code::Internal);
        world.journal.until(Event::Dropped("unary".to_owned())).await;
    })
    .await;
}

async fn a_panic_in_an_upload(path: &'static Path) {
    unharmed(path, async |world| {
        let (requests, stream) = upload();
        requests.send(text("fine")).expect("the call is not yet open");
        requests.send(panicking()).expect("the call is not yet open");
        assert_eq!(code(world.client().collect(stream).await), Code::Internal);
        requests.closed().await;
    })
    .await;
}

async fn a_panic_in_a_stream(path: &'static Path) {
    unharmed(path, async |world| {
        let request = EchoRequest { fail_after: 3, count: 9, ..panicking() };
        let (replies, status) = until_failure(world.client().expand(request).await.expect("replies")).await;
        assert_eq!((replies.len(), status.code()), (3, Code::Internal));
    })
    .await;
}

async fn a_panic_in_a_chat(path: &'static Path) {
    unharmed(path, async |world| {
        let (requests, stream) = upload();
        let mut replies = world.client().chat(stream).await.expect("replies").into_inner();
        requests.send(text("fine")).expect("the call is open");
        assert_eq!(next(&mut replies).await.text, "fine");
        requests.send(panicking()).expect("the call is open");
        assert_eq!(code(replies.message().await), Code::Internal);
        requests.closed().await;
    })
    .await;
}

async fn many_panics_at_once(path: &'static Path) {
    unharmed(path, async |world| {
        let mut calls = tokio::task::JoinSet::new();
        for index in 0..60 {
            let client = world.client();
            calls.spawn(async move {
                if index % 2 == 0 {
                    assert_eq!(code(client.unary(panicking()).await), Code::Internal);
                } else {
                    assert_eq!(client.unary(text("fine")).await.expect("a reply").get_ref().text, "fine");
                }
            });
        }
        while let Some(call) = calls.join_next().await {
            call.expect("as expected");
        }
    })
    .await;
}
