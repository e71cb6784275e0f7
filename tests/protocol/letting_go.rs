//! Calls that one side lets go of while the other has more to say, to take or to wait for.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use byway::metadata::MetadataValue;
use byway::{Channel, Code, Request, Transport};
use byway_test_support::test::v1::EchoRequest;
use byway_test_support::test::v1::echo_client::EchoClient;
use h2::Reason;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::mpsc::unbounded_channel;
use tokio_stream::{Stream, StreamExt};

use crate::harness::{Running, soon, story};
use crate::scripted::{Scripted, begin, reset};
use crate::wire::text;

async fn client(server: &Scripted) -> EchoClient<Channel> {
    EchoClient::new(soon(server.channel().connect()).await.expect("a connection"))
}

/// More requests than any window holds, and how many were taken.
fn endless() -> (impl Stream<Item = EchoRequest> + Send + 'static, Arc<AtomicUsize>) {
    let taken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&taken);
    let request = EchoRequest { payload: vec![7; 4000].into(), ..EchoRequest::default() };
    let requests = tokio_stream::iter(0..u32::MAX).map(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        request.clone()
    });
    (requests, taken)
}

/// Waits until no more requests are taken.
async fn stuck(taken: &AtomicUsize) {
    let (mut before, mut same) = (0, 0);
    while same < 6 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let now = taken.load(Ordering::SeqCst);
        same = if now > 0 && now == before { same + 1 } else { 0 };
        before = now;
    }
}

/// Neither side reads: the requests wait for the server's window, the replies for the client's.
#[test]
fn a_chat_that_is_stuck_both_ways_is_reset_when_it_is_dropped() {
    story(async {
        let server = Running::start().await;
        let channel = server.channel().transport(Transport::Grpc).connect();
        let client = EchoClient::new(soon(channel).await.expect("a connection"));
        let (requests, taken) = endless();
        let replies = soon(client.chat(requests)).await.expect("replies");
        server.probe.entered(1).await;
        stuck(&taken).await;
        drop(replies);
        server.probe.gone(1).await;
        drop(client);
        server.stop().await;
    });
}

/// The server has said its head, and reads nothing.
#[test]
fn an_upload_that_is_stuck_is_reset_when_it_is_dropped() {
    story(async {
        let (tell, mut told) = unbounded_channel();
        let server = Scripted::start(move |mut call| {
            let tell = tell.clone();
            async move {
                let mut stream = begin(&mut call.respond);
                let _ = tell.send(reset(&mut stream).await);
            }
        })
        .await;
        let client = client(&server).await;
        let (requests, taken) = endless();
        let call = tokio::spawn(async move { client.collect(requests).await });
        soon(stuck(&taken)).await;
        call.abort();
        assert_eq!(soon(told.recv()).await, Some(Reason::CANCEL));
    });
}

/// A server ought to reset what it does not read to the end, but not all do.
#[test]
fn an_upload_ends_with_the_call() {
    story(async {
        let (tell, mut told) = unbounded_channel();
        let server = Scripted::start(move |mut call| {
            let tell = tell.clone();
            async move {
                call.answer_well();
                let _ = tell.send(loop {
                    match call.body.data().await {
                        Some(Ok(_)) => {}
                        Some(Err(error)) => break error.reason(),
                        None => break None,
                    }
                });
            }
        })
        .await;
        let client = client(&server).await;
        let requests = tokio_stream::once(text("one")).chain(tokio_stream::pending());
        soon(client.collect(requests)).await.expect("a reply");
        assert_eq!(soon(told.recv()).await, Some(Some(Reason::CANCEL)));
    });
}

#[test]
fn a_reply_that_nobody_reads_ends_at_its_deadline() {
    story(async {
        let (tell, mut told) = unbounded_channel();
        let server = Scripted::start(move |mut call| {
            let tell = tell.clone();
            async move {
                let mut stream = begin(&mut call.respond);
                let _ = tell.send(reset(&mut stream).await);
            }
        })
        .await;
        let client = client(&server).await;
        let mut request = Request::new(text("never read"));
        request.set_timeout(Duration::from_secs(1));
        let mut replies = soon(client.expand(request)).await.expect("replies").into_inner();
        assert_eq!(soon(told.recv()).await, Some(Reason::CANCEL));
        let status = soon(replies.message()).await.expect_err("its time is over");
        assert_eq!(status.code(), Code::DeadlineExceeded);
    });
}

/// What came before the deadline is there after it.
#[test]
fn a_whole_reply_outlives_its_deadline() {
    story(async {
        let server = Scripted::start(|mut call| async move {
            call.read().await;
            call.answer_well();
        })
        .await;
        let client = client(&server).await;
        let mut request = Request::new(text("late reader"));
        request.set_timeout(Duration::from_secs(1));
        let mut replies = soon(client.expand(request)).await.expect("replies").into_inner();
        tokio::time::sleep(Duration::from_millis(1200)).await;
        assert_eq!(soon(replies.message()).await.expect("it came in time").expect("a reply").text, "well");
        assert_eq!(soon(replies.message()).await.expect("it ended in time"), None);
    });
}

/// A value that knows whether it is still there.
struct Counted(&'static AtomicUsize);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        b"counted"
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A server that allows two calls and windows of a gigabyte, and then does not even read.
async fn deaf() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let settings = b"\0\0\x0c\x04\0\0\0\0\0\0\x03\0\0\0\x02\0\x04\x3f\xff\xff\xff";
        let window_and_acknowledgement = b"\0\0\x04\x08\0\0\0\0\0\x3f\xff\0\0\0\0\0\x04\x01\0\0\0\0";
        stream.write_all(&[&settings[..], window_and_acknowledgement].concat()).await.expect("it is read");
        std::future::pending::<()>().await;
    });
    address
}

#[test]
fn calls_that_are_given_up_pile_up_nowhere() {
    static THERE: AtomicUsize = AtomicUsize::new(0);
    story(async {
        let channel = Channel::builder(format!("grpc://{}", deaf().await)).connect();
        let client = EchoClient::new(soon(channel).await.expect("a connection"));
        // More than what the sockets hold.
        let large = EchoRequest { payload: vec![7; 64 << 20].into(), ..EchoRequest::default() };
        let uploading = client.clone();
        let large = tokio::spawn(async move { uploading.unary(large).await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        for _ in 0..1000 {
            THERE.fetch_add(1, Ordering::SeqCst);
            let value = Bytes::from_owner(Counted(&THERE));
            let mut request = Request::new(text("given up"));
            request.metadata_mut().insert("counted", MetadataValue::try_from(value).expect("ASCII"));
            let mut call = Box::pin(client.unary(request));
            assert!(poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await.is_pending());
            drop(call);
            tokio::task::yield_now().await;
        }
        let there = THERE.load(Ordering::SeqCst);
        assert!(there < 20, "hyper keeps {there} calls");
        large.abort();
    });
}
