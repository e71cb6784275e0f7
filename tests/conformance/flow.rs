//! Flow control: a reader that is slow holds back its own sender, and nobody else.
//!
//! What a sender may have sent is bounded at every moment, so the bounds hold however threads interleave.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use byway_test_support::reference::Event;
use byway_test_support::test::v1::EchoRequest;
use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt};

use crate::case::{all, ask, cases, next, pattern, payload, text};
use crate::path::{Path, Setup, World};

cases![
    a_slow_reader_holds_back_its_own_sender,
    a_slow_handler_holds_back_its_own_client,
    neither_side_of_an_unread_chat_runs_ahead,
    many_slow_readers_hold_nobody_else_up,
    a_message_larger_than_the_window_still_passes,
    empty_messages_are_bounded_too,
    a_budget_bounds_what_waits_over_all_calls,
];

const WINDOW: u32 = 64 << 10;
const SIZE: usize = 4000;
/// Messages that fit a window, and one that may overshoot it.
const FIT: usize = WINDOW as usize / SIZE + 1;
/// Messages beyond: one in the sender's hand, and what the reader has taken.
const SPARE: usize = 3;

fn small_windows() -> Setup {
    let mut setup = Setup::default();
    setup.client.window = WINDOW;
    setup.server.window = WINDOW;
    setup
}

/// Requests that count how many were taken.
struct Counted {
    left: usize,
    taken: Arc<watch::Sender<usize>>,
    request: EchoRequest,
}

impl Counted {
    fn new(count: usize, request: EchoRequest) -> (Self, watch::Receiver<usize>) {
        let (taken, seen) = watch::channel(0);
        (Self { left: count, taken: Arc::new(taken), request }, seen)
    }
}

impl Stream for Counted {
    type Item = EchoRequest;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<EchoRequest>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        self.taken.send_modify(|taken| *taken += 1);
        Poll::Ready(Some(self.request.clone()))
    }
}

/// Other calls over the same connection, which move more than any window.
async fn traffic(world: &World) {
    for size in [0, 1000, 300_000] {
        let reply = world.client().unary(payload(size)).await.expect("a reply").into_inner();
        assert_eq!(reply.payload, pattern(size));
    }
    let replies = world.client().chat(tokio_stream::iter((0..40).map(|_| payload(10_000)))).await;
    assert_eq!(all(replies.expect("replies")).await.len(), 40);
}

async fn a_slow_reader_holds_back_its_own_sender(path: &'static Path) {
    let mut world = path.open(small_windows()).await;
    let count = 400;
    let request = EchoRequest { count, ..payload(SIZE) };
    let mut replies = world.client().expand(request).await.expect("replies").into_inner();
    assert_eq!(next(&mut replies).await.index, 0);
    // The sender fills the window,
    let mut taken = world.journal.replies();
    taken.wait_for(|taken| *taken >= FIT - 1).await.expect("the service is there");
    // stops there while others go on,
    for _ in 0..3 {
        let before = *taken.borrow();
        assert!(before <= FIT + SPARE, "{before} messages were taken, {FIT} fit the window");
        let reply = world.client().unary(payload(300_000)).await.expect("a reply").into_inner();
        assert_eq!(reply.payload.len(), 300_000);
    }
    let requests = tokio_stream::iter((0..40).map(|_| payload(10_000)));
    let collected = world.client().collect(requests).await.expect("a reply").into_inner();
    assert_eq!(collected.payload.len(), 400_000);
    assert!(*taken.borrow() <= FIT + SPARE);
    // and resumes when the reader does.
    for index in 1..count {
        let reply = next(&mut replies).await;
        assert_eq!((reply.index, reply.payload.len()), (index, SIZE));
    }
    assert_eq!(replies.message().await.expect("no failure"), None);
    world.journal.until(Event::Finished("expand".to_owned())).await;
}

async fn a_slow_handler_holds_back_its_own_client(path: &'static Path) {
    let world = path.open(small_windows()).await;
    let count = 400;
    let (requests, mut taken) = Counted::new(count, payload(SIZE));
    let client = world.client();
    let call = tokio::spawn(async move { client.collect(ask(requests, &[("hold-after", "0")])).await });
    taken.wait_for(|taken| *taken >= FIT - 1).await.expect("the call is open");
    traffic(&world).await;
    let before = *taken.borrow();
    assert!(before <= FIT + SPARE, "{before} messages were taken, {FIT} fit the window");
    world.journal.release(count + 1);
    let reply = call.await.expect("no panic").expect("a reply").into_inner();
    assert_eq!((reply.index as usize, reply.payload.len()), (count, count * SIZE));
}

async fn neither_side_of_an_unread_chat_runs_ahead(path: &'static Path) {
    let world = path.open(small_windows()).await;
    let count = 400;
    let (requests, mut taken) = Counted::new(count, payload(SIZE));
    let replies = world.client().chat(requests).await.expect("replies");
    // The replies fill their window, then the requests fill theirs.
    taken.wait_for(|taken| *taken >= 2 * (FIT - 1)).await.expect("the call is open");
    for _ in 0..5 {
        world.client().unary(payload(200_000)).await.expect("a reply");
        let before = *taken.borrow();
        assert!(before <= 2 * (FIT + SPARE), "{before} messages were taken");
    }
    let replies = all(replies).await;
    assert_eq!(replies.len(), count);
    assert!(replies.iter().zip(0..).all(|(reply, index)| reply.index == index));
}

async fn many_slow_readers_hold_nobody_else_up(path: &'static Path) {
    let world = path.open(small_windows()).await;
    let request = EchoRequest { count: 100, ..payload(SIZE) };
    let mut slow = Vec::new();
    for _ in 0..40 {
        slow.push(world.client().expand(request.clone()).await.expect("replies"));
    }
    let mut taken = world.journal.replies();
    taken.wait_for(|taken| *taken >= 40 * (FIT - 1)).await.expect("the service is there");
    traffic(&world).await;
    for replies in slow {
        assert_eq!(all(replies).await.len(), 100);
    }
}

async fn a_message_larger_than_the_window_still_passes(path: &'static Path) {
    let mut setup = Setup::default();
    setup.client.window = 1000;
    setup.server.window = 1000;
    let world = path.open(setup).await;
    let requests = tokio_stream::iter((0..5).map(|index| payload(100_000 * (index % 2))));
    let replies = all(world.client().chat(requests).await.expect("replies")).await;
    let sizes: Vec<_> = replies.iter().map(|reply| reply.payload.len()).collect();
    assert_eq!(sizes, [0, 100_000, 0, 100_000, 0]);
}

async fn empty_messages_are_bounded_too(path: &'static Path) {
    let world = path.open(small_windows()).await;
    let (requests, mut taken) = Counted::new(20_000, EchoRequest::default());
    let client = world.client();
    let call = tokio::spawn(async move { client.collect(ask(requests, &[("hold-after", "0")])).await });
    // Whatever one costs, a handful fits; far fewer than all do.
    taken.wait_for(|taken| *taken >= 100).await.expect("the call is open");
    traffic(&world).await;
    let before = *taken.borrow();
    assert!(before < 20_000, "all were taken and nobody reads them");
    world.journal.release(20_001);
    assert_eq!(call.await.expect("no panic").expect("a reply").get_ref().index, 20_000);
}

async fn a_budget_bounds_what_waits_over_all_calls(path: &'static Path) {
    let mut setup = small_windows();
    setup.client.receive_budget = 3 * u64::from(WINDOW);
    let mut world = path.open(setup).await;
    let request = EchoRequest { count: 60, ..payload(SIZE) };
    let mut unread = Vec::new();
    for _ in 0..12 {
        // Some may find the budget spent before they begin.
        unread.push(world.client().expand(request.clone()).await);
    }
    world.journal.until(Event::Dropped("expand".to_owned())).await;
    let (whole, cut) = (AtomicUsize::new(0), AtomicUsize::new(0));
    for replies in unread {
        let status = match replies {
            Err(status) => Some(status),
            Ok(replies) => {
                let ends: Vec<_> = replies.into_inner().collect().await;
                ends.into_iter().find_map(Result::err)
            }
        };
        match status {
            None => whole.fetch_add(1, Ordering::Relaxed),
            Some(status) => {
                assert_eq!(status.code(), byway::Code::ResourceExhausted, "{status}");
                cut.fetch_add(1, Ordering::Relaxed)
            }
        };
    }
    let (whole, cut) = (whole.into_inner(), cut.into_inner());
    assert!(cut > 0 && whole > 0, "{whole} whole, {cut} cut off");
    let reply = world.client().unary(text("free again")).await.expect("a reply");
    assert_eq!(reply.get_ref().text, "free again");
}
