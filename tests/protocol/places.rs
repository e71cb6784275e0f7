//! Calls that wait until the server allows one more.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use byway::{Code, Limits, Request, Server, Transport};
use byway_test_support::test::v1::echo_client::EchoClient;

use crate::harness::{Running, soon, story, story_on_one_thread};
use crate::wire::text;

async fn poll_once<F: Future>(call: &mut Pin<Box<F>>) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await
}

fn one_at_a_time() -> byway::ServerBuilder {
    Server::builder().limits(Limits { max_calls: 1, ..Limits::default() })
}

/// Who is told of a place as its time is over does not take it.
#[test]
fn a_place_that_is_not_taken_goes_to_the_next_who_waits() {
    story_on_one_thread(async {
        for transport in [Transport::Tcp, Transport::Grpc] {
            let server = Running::with(one_at_a_time()).await;
            let channel = server.channel().transport(transport).connect().await.expect("a connection");
            let client = EchoClient::new(channel);
            let mut first = Box::pin(client.unary(text("hold")));
            assert!(poll_once(&mut first).await.is_pending());
            server.probe.entered(1).await;
            let mut hasty = Request::new(text("hasty"));
            hasty.set_timeout(Duration::from_millis(50));
            let mut hasty = Box::pin(client.unary(hasty));
            let mut patient = Box::pin(client.unary(text("patient")));
            assert!(poll_once(&mut hasty).await.is_pending());
            assert!(poll_once(&mut patient).await.is_pending());
            server.probe.release(1);
            soon(first).await.expect("a reply");
            // Nothing else runs on this thread meanwhile.
            std::thread::sleep(Duration::from_millis(60));
            let status = soon(hasty).await.expect_err("its time is over");
            assert_eq!(status.code(), Code::DeadlineExceeded, "{transport:?}");
            soon(patient).await.expect("the place is free");
            server.stop().await;
        }
    });
}

/// As many as may be open may also be given up at once.
#[test]
fn calls_that_are_given_up_together_cost_no_other() {
    story(async {
        let server = Running::start().await;
        let channel = server.channel().transport(Transport::Grpc).connect();
        let client = EchoClient::new(soon(channel).await.expect("a connection"));
        let holder = client.clone();
        let held = tokio::spawn(async move { holder.unary(text("hold")).await });
        server.probe.entered(1).await;
        for pause in 0..50 {
            let mut calls: Vec<_> = (0..200).map(|_| Box::pin(client.unary(text("hold")))).collect();
            for call in &mut calls {
                assert!(poll_once(call).await.is_pending());
            }
            // Whether they are on their way when they are dropped differs from round to round.
            for _ in 0..pause {
                tokio::task::yield_now().await;
            }
        }
        server.probe.release(1 << 20);
        soon(held).await.expect("no panic").expect("a reply");
        drop(client);
        server.stop().await;
    });
}
