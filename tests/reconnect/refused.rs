//! Calls that a server refuses without having looked at them: sent again, a few times.

use byway::{Channel, Code};
use byway_test_support::test::v1::EchoRequest;
use byway_test_support::test::v1::echo_client::EchoClient;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::harness::{soon, story, text};
use crate::raw::{DATA, DRAIN, END, HEAD, MESSAGE, OPEN, RESET, Raw, frame, good_hello};

/// A server that refuses the first `refusals` calls and answers the others, each on a connection of its own if it
/// `drains`. Resolves to the calls and connections that it has seen once a call was answered.
async fn refusing(refusals: usize, drains: bool) -> (EchoClient<Channel>, JoinHandle<(usize, usize)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let server = tokio::spawn(async move {
        let (mut calls, mut connections) = (0, 0);
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            let mut raw = Raw(stream);
            connections += 1;
            assert_eq!(raw.read_hello().await, None);
            raw.send(&good_hello()).await;
            while let Some(open) = raw.next_frame().await {
                if open.kind != OPEN {
                    continue;
                }
                calls += 1;
                if calls > refusals {
                    raw.send(&frame(DATA, HEAD | MESSAGE | END, open.call, &[], b"\x12\x02ok")).await;
                    return (calls, connections);
                }
                if drains {
                    raw.send(&frame(DRAIN, 0, 0, &[], &[])).await;
                }
                raw.send(&frame(RESET, 0, open.call, &[1], &[])).await;
            }
        }
    });
    (EchoClient::new(Channel::builder(address).connect_lazy().expect("an address")), server)
}

#[test]
fn a_call_that_is_refused_four_times_is_sent_a_fifth() {
    story(async {
        for (drains, connections) in [(false, 1), (true, 5)] {
            let (client, server) = refusing(4, drains).await;
            let reply = soon(client.unary(text("x"))).await.expect("the fifth is answered").into_inner();
            assert_eq!(reply.text, "ok");
            assert_eq!(soon(server).await.expect("no panic"), (5, connections));
        }
    });
}

#[test]
fn a_call_with_many_replies_is_sent_again_too() {
    story(async {
        let (client, server) = refusing(1, true).await;
        let request = EchoRequest { count: 1, ..EchoRequest::default() };
        let mut replies = soon(client.expand(request)).await.expect("the second is answered").into_inner();
        assert_eq!(soon(replies.message()).await.expect("no failure").expect("a reply").text, "ok");
        assert_eq!(soon(replies.message()).await.expect("no failure"), None);
        assert_eq!(soon(server).await.expect("no panic"), (2, 2));
    });
}

#[test]
fn a_call_that_is_always_refused_ends() {
    story(async {
        for drains in [false, true] {
            let (client, server) = refusing(usize::MAX, drains).await;
            let status = soon(client.unary(text("x"))).await.expect_err("it is never taken");
            assert_eq!(status.code(), Code::Unavailable);
            server.abort();
        }
    });
}

#[test]
fn requests_that_stream_are_refused_once_and_not_sent_again() {
    story(async {
        let (client, server) = refusing(1, true).await;
        let requests = byway::codegen::tokio_stream::iter([text("a"), text("b")]);
        let status = soon(client.collect(requests)).await.expect_err("the requests cannot be had again");
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("takes no new calls"), "{status}");
        server.abort();
    });
}
