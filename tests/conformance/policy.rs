//! A client's policy above the path, shown over it: interceptors, calls that are sent again; and calls made at the
//! seam itself, without any policy.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use byway::runtime::session::{CallId, RequestHead};
use byway::runtime::{
    Call, CallRef, Carrier, End, Inbound, Invoke, NewCall, Part, ReadyFuture, SendError, StartError,
};
use byway::{Code, Request, Status, metadata::MetadataMap};
use byway_test_support::reference::Event;
use byway_test_support::test::v1::EchoRequest;
use byway_test_support::test::v1::echo_client::EchoClient;

use crate::case::{all, ask, cases, code, text};
use crate::path::{AnyPath, Path, Setup, World};

cases![
    an_interceptor_adds_metadata_to_every_kind_of_call,
    an_interceptor_refuses_calls,
    an_interceptor_sees_the_timeout_go_on,
    calls_that_were_never_sent_are_sent_again,
    calls_that_are_never_sent_fail_in_the_end,
    an_upload_that_was_never_sent_is_not_sent_again,
    a_deadline_covers_all_attempts,
];

// ---- At the seam ----

/// Starts a call with one request, and no policy.
pub(crate) async fn start_raw(
    world: &World,
    path: &str,
    timeout: Option<Duration>,
    request: &EchoRequest,
) -> Call {
    let head = RequestHead { path, timeout, metadata: &MetadataMap::new() };
    loop {
        let call = NewCall { message: Some(request), end: true, ..NewCall::new(head) };
        match world.channel.start(&call) {
            Ok(call) => return call,
            Err(StartError::Busy) => world.channel.ready().await.expect("a connection"),
            Err(StartError::Closed(status) | StartError::Failed(status)) => panic!("{status}"),
        }
    }
}

/// How a call ended.
pub(crate) async fn outcome(call: Call) -> Result<(), Status> {
    loop {
        match call.by_ref().receive().await.end {
            Some(End::Outcome(outcome)) => return outcome.map(|_| ()),
            Some(End::NotSent(status)) => panic!("never sent: {status}"),
            None => {}
        }
    }
}

/// Hides from the server that there is a deadline.
struct Timeless(AnyPath);

impl Invoke for Timeless {
    fn start(&self, call: &NewCall<'_>) -> Result<Call, StartError> {
        let head = RequestHead { timeout: None, ..call.head };
        self.0.start(&NewCall { head, ..*call })
    }

    fn ready(&self) -> ReadyFuture<'_> {
        self.0.ready()
    }
}

/// A client whose servers know no deadlines.
pub(crate) fn timeless(world: &World) -> EchoClient<impl Invoke + use<>> {
    EchoClient::new(Timeless(Arc::clone(&world.channel)))
}

// ---- Interceptors ----

async fn an_interceptor_adds_metadata_to_every_kind_of_call(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let client = EchoClient::with_interceptor(Arc::clone(&world.channel), |mut request: Request<()>| {
        request.metadata_mut().insert("echo-added", "here".parse().expect("ASCII"));
        Ok(request)
    });
    let unary = client.unary(text("a")).await.expect("a reply");
    let collect = client.collect(tokio_stream::once(text("a"))).await.expect("a reply");
    let expand = client.expand(EchoRequest { count: 1, ..text("a") }).await.expect("replies");
    let chat = client.chat(tokio_stream::once(text("a"))).await.expect("replies");
    for metadata in [unary.metadata(), collect.metadata(), expand.metadata(), chat.metadata()] {
        assert_eq!(metadata.get("echo-added").expect("it was added"), "here");
    }
    assert_eq!(all(expand).await.len() + all(chat).await.len(), 2);
}

async fn an_interceptor_refuses_calls(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    let client = EchoClient::with_interceptor(Arc::clone(&world.channel), |_: Request<()>| {
        Err(Status::permission_denied("not you"))
    });
    let status = client.unary(ask(text("a"), &[("call", "refused")])).await.expect_err("a failure");
    assert_eq!((status.code(), status.message()), (Code::PermissionDenied, "not you"));
    assert_eq!(code(client.expand(text("a")).await), Code::PermissionDenied);
    world.still_works().await;
    assert_eq!(world.journal.next().await, Event::Began("unary".to_owned()));
}

async fn an_interceptor_sees_the_timeout_go_on(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let client = EchoClient::with_interceptor(Arc::clone(&world.channel), Ok::<Request<()>, Status>);
    let mut request = Request::new(EchoRequest { report_deadline: true, ..EchoRequest::default() });
    request.set_timeout(Duration::from_secs(1000));
    assert_ne!(client.unary(request).await.expect("a reply").get_ref().text, "none");
}

// ---- Calls that are sent again ----

/// Has the first `refusals` calls come back unsent, as a server that drains does.
struct Refusing {
    inner: AnyPath,
    refusals: AtomicUsize,
}

impl Invoke for Refusing {
    fn start(&self, call: &NewCall<'_>) -> Result<Call, StartError> {
        let left = self.refusals.load(Ordering::SeqCst);
        if left == 0 {
            return self.inner.start(call);
        }
        self.refusals.store(left - 1, Ordering::SeqCst);
        Ok(Call::new(CallRef::new(Arc::new(Unsent), CallId::CONNECTION)))
    }

    fn ready(&self) -> ReadyFuture<'_> {
        self.inner.ready()
    }
}

/// A call that was never sent.
struct Unsent;

impl Carrier for Unsent {
    fn poll_receive(&self, _: CallId, _: &mut Context<'_>) -> Poll<Inbound> {
        let end = End::NotSent(Status::unavailable("refused"));
        Poll::Ready(Inbound { end: Some(end), ..Inbound::default() })
    }

    fn poll_send(&self, _: CallId, _: &mut Context<'_>, _: Part<'_>) -> Poll<Result<(), SendError>> {
        Poll::Ready(Err(SendError::Over))
    }

    fn poll_over(&self, _: CallId, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    fn finish(&self, _: CallId, _: &Status) {}

    fn abandon(&self, _: CallId, _: &Status) {}
}

fn refusing(world: &World, refusals: usize) -> EchoClient<Refusing> {
    EchoClient::new(Refusing { inner: Arc::clone(&world.channel), refusals: AtomicUsize::new(refusals) })
}

async fn calls_that_were_never_sent_are_sent_again(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    assert_eq!(refusing(&world, 2).unary(text("again")).await.expect("a reply").get_ref().text, "again");
    let request = EchoRequest { count: 3, ..text("again") };
    assert_eq!(all(refusing(&world, 2).expand(request).await.expect("replies")).await.len(), 3);
    let began = |event: &Event| matches!(event, Event::Began(_));
    assert_eq!(world.journal.unread().into_iter().filter(began).count(), 2, "each ran once");
}

async fn calls_that_are_never_sent_fail_in_the_end(path: &'static Path) {
    let mut world = path.open(Setup::default()).await;
    let status = refusing(&world, 1000).unary(text("never")).await.expect_err("a failure");
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "refused"));
    assert_eq!(code(refusing(&world, 1000).expand(text("never")).await), Code::Unavailable);
    assert_eq!(world.journal.unread(), []);
}

async fn an_upload_that_was_never_sent_is_not_sent_again(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    // Its requests may have been taken from their stream already.
    let refused = refusing(&world, 1).collect(tokio_stream::once(text("a"))).await;
    assert_eq!(code(refused), Code::Unavailable);
    let refused = refusing(&world, 1).chat(tokio_stream::once(text("a"))).await;
    assert_eq!(code(refused), Code::Unavailable);
    world.still_works().await;
}

async fn a_deadline_covers_all_attempts(path: &'static Path) {
    let world = path.open(Setup::default()).await;
    let mut request = Request::new(EchoRequest { delay_ms: u32::MAX, ..text("never") });
    request.set_timeout(Duration::from_millis(30));
    assert_eq!(code(refusing(&world, 2).unary(request).await), Code::DeadlineExceeded);
}
