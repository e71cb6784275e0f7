//! Calls from end to end over the loopback link, where it hurts.
//!
//! Owns what only shows with a driver: handlers that panic before they are polled, empty messages, two sides that both
//! have more to say than the link has room for, and many callers on two threads that wait for few calls and leave early.

mod support;

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use byway_runtime::client::unary;
use byway_runtime::connection::Caller;
use byway_runtime::dispatch::Router;
use byway_runtime::loopback::{Options, connect};
use byway_runtime::stream::Outbox;
use byway_runtime::{
    CallOptions, Direct, Handling, Limits, MethodCall, MethodDescriptor, MethodKind, ServerCall,
};
use support::Random;
use tonic::{Code, Request, Response};

static METHODS: [MethodDescriptor; 3] = [
    MethodDescriptor::new("/test.Odd/Panic", MethodKind::Unary),
    MethodDescriptor::new("/test.Odd/Empty", MethodKind::Unary),
    MethodDescriptor::new("/test.Odd/Echo", MethodKind::Unary),
];

struct Odd;

impl Direct for Odd {
    fn methods(&self) -> &'static [MethodDescriptor] {
        &METHODS
    }

    fn handle(&self, method: usize, call: ServerCall) -> Handling {
        match method {
            0 => panic!("before there is a future"),
            1 => call.unary(|_: Request<()>| async { Ok(Response::new(())) }),
            _ => call.unary(|request: Request<Bytes>| async {
                tokio::task::yield_now().await;
                Ok(Response::new(request.into_inner()))
            }),
        }
    }
}

fn caller(options: Options) -> Caller<Outbox> {
    let mut router = Router::default();
    router.add_direct(Odd).expect("its paths are free");
    connect(Arc::new(router), options)
}

async fn call_empty(caller: &Caller<Outbox>, method: usize) -> Result<Response<()>, tonic::Status> {
    unary(caller, &METHODS[method], CallOptions::default(), Request::new(())).await
}

#[tokio::test]
async fn a_handler_that_panics_before_its_first_poll_ends_its_own_call_only() {
    let caller = caller(Options::default());
    let status = call_empty(&caller, 0).await.expect_err("it panicked");
    assert_eq!(status.code(), Code::Internal);
    call_empty(&caller, 1).await.expect("the connection lives on, and an empty message is one");
}

#[tokio::test]
async fn large_messages_both_ways_do_not_wait_for_each_other() {
    let caller = Arc::new(caller(Options::default()));
    let large = Bytes::from(vec![7; 3 << 20]);
    let calls = (0..8).map(|_| {
        let (caller, large) = (Arc::clone(&caller), large.clone());
        tokio::spawn(async move {
            for _ in 0..3 {
                let request = Request::new(large.clone());
                let reply: Response<Bytes> =
                    unary(&*caller, &METHODS[2], CallOptions::default(), request).await.expect("echoed");
                assert_eq!(reply.into_inner().len(), large.len());
            }
        })
    });
    for call in calls.collect::<Vec<_>>() {
        let ended = tokio::time::timeout(Duration::from_secs(20), call).await;
        ended.expect("both sides wait for each other").expect("no panic");
    }
}

/// Polls `call` a few times and then lets go of it.
async fn give_up_after<F: Future>(polls: usize, call: F) -> Option<F::Output> {
    let mut call = std::pin::pin!(call);
    let mut left = polls;
    poll_fn(|cx| match call.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_impatient_callers_share_few_calls_and_nobody_is_forgotten() {
    let limits = Limits { max_calls: 3, window: 1000, ..Limits::default() };
    let options = Options { client: limits, server: limits, later_from: Some(5000) };
    let caller = Arc::new(caller(options));
    let callers = (0..32).map(|number| {
        let caller = Arc::clone(&caller);
        tokio::spawn(async move {
            let mut random = Random::new(number);
            for _ in 0..100 {
                let message = Bytes::from(vec![7; [0, 10, 3000, 20_000][random.below(4)]]);
                let request = Request::new(message.clone());
                let call = unary::<_, _, Bytes>(&*caller, &METHODS[2], CallOptions::default(), request);
                // The patient ones sleep until they are woken.
                let reply = match random.below(12) {
                    patience @ 0..6 => give_up_after(patience, call).await,
                    _ => Some(call.await),
                };
                if let Some(reply) = reply {
                    assert_eq!(reply.expect("echoed").into_inner(), message);
                }
            }
        })
    });
    for call in callers.collect::<Vec<_>>() {
        let ended = tokio::time::timeout(Duration::from_secs(20), call).await;
        ended.expect("a caller was forgotten").expect("no panic");
    }
}
