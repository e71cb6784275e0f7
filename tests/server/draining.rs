//! How a server ends: what open calls, new calls, idle and silent peers see of it, and that nothing stays behind.

use std::time::Duration;

use byway::{Code, Server};
use byway_test_support::test::v1::EchoRequest;
use tokio::net::TcpStream;

use crate::harness::{Running, soon, story, text};

#[test]
fn a_drain_may_have_no_time_limit() {
    story(async {
        let mut server = Running::with(Server::builder().drain_timeout(Duration::MAX)).await;
        let client = server.client().await;
        let call = tokio::spawn(async move { client.unary(text("hold")).await });
        server.probe.entered(1).await;
        server.drain();
        server.probe.release(1);
        soon(call).await.expect("no panic").expect("it was open before");
        server.ended().await;
    });
}

#[test]
fn open_calls_finish_before_the_server_ends() {
    story(async {
        let mut server = Running::start().await;
        let client = server.client().await;
        let other = client.clone();
        let call = tokio::spawn(async move { other.unary(text("hold")).await });
        server.probe.entered(1).await;
        server.drain();
        // New calls are refused while the old one goes on, also by new connections.
        loop {
            let status = soon(client.unary(text("new"))).await;
            if let Err(status) = status {
                assert_eq!(status.code(), Code::Unavailable);
                break;
            }
        }
        assert!(!call.is_finished());
        server.probe.release(1);
        let reply = soon(call).await.expect("no panic").expect("it was open before");
        assert_eq!(reply.into_inner().text, "hold");
        server.ended().await;
        assert!(TcpStream::connect(server.text()).await.is_err(), "nobody listens any more");
    });
}

#[test]
fn streams_that_are_open_go_on_until_they_end() {
    story(async {
        let mut server = Running::start().await;
        let client = server.client().await;
        let request = EchoRequest { count: 100, reply_bytes: 64 << 10, ..EchoRequest::default() };
        let mut replies = client.expand(request).await.expect("a stream").into_inner();
        assert!(soon(replies.message()).await.expect("no failure").is_some());
        server.drain();
        let mut count = 1;
        while soon(replies.message()).await.expect("no failure").is_some() {
            count += 1;
        }
        assert_eq!(count, 100);
        server.ended().await;
    });
}

#[test]
fn calls_that_outlast_the_drain_end_unavailable_and_their_handlers_are_dropped() {
    story(async {
        let builder = Server::builder().drain_timeout(Duration::from_millis(50));
        let mut server = Running::with(builder).await;
        let client = server.client().await;
        let other = client.clone();
        let call = tokio::spawn(async move { other.unary(text("hold")).await });
        server.probe.entered(1).await;
        server.drain();
        let status = soon(call).await.expect("no panic").expect_err("its time is over");
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("shut down before the call was finished"), "{status}");
        server.probe.gone(1).await;
        server.ended().await;
        assert_eq!(server.probe.executed(), 1, "not sent again");
    });
}

#[test]
fn idle_clients_do_not_hold_up_the_end() {
    story(async {
        let server = Running::start().await;
        let clients = [server.client().await, server.client().await];
        server.stop().await;
        let status = soon(clients[0].unary(text("x"))).await.expect_err("nobody serves it");
        assert_eq!(status.code(), Code::Unavailable);
    });
}

#[test]
fn peers_that_have_not_said_hello_do_not_hold_up_the_end() {
    story(async {
        let builder = Server::builder()
            .handshake_timeout(Duration::from_secs(3600))
            .drain_timeout(Duration::from_millis(50));
        let server = Running::with(builder).await;
        let silent = TcpStream::connect(server.text()).await.expect("it listens");
        // Served only after the silent one was accepted, since connections are accepted in their order.
        let client = server.client().await;
        soon(client.unary(text("x"))).await.expect("it is served");
        server.stop().await;
        drop(silent);
    });
}

#[test]
fn a_server_that_is_dropped_ends_everything() {
    story(async {
        let server = Running::start().await;
        let probe = server.probe.clone();
        let address = server.text();
        let client = server.client().await;
        let other = client.clone();
        let call = tokio::spawn(async move { other.unary(text("hold")).await });
        let request = EchoRequest { count: u32::MAX, reply_bytes: 64 << 10, ..EchoRequest::default() };
        let mut replies = client.expand(request).await.expect("a stream").into_inner();
        probe.entered(2).await;
        server.kill().await;
        probe.gone(2).await;
        let status = soon(call).await.expect("no panic").expect_err("it is gone");
        assert_eq!(status.code(), Code::Unavailable);
        let status = loop {
            match soon(replies.message()).await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream did not end well"),
                Err(status) => break status,
            }
        };
        assert_eq!(status.code(), Code::Unavailable);
        assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
    });
}

#[test]
fn a_runtime_that_ends_takes_its_server_with_it() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let server = runtime.block_on(Running::start());
    let (probe, channel) = (server.probe.clone(), server.channel());
    let (held, holds) = tokio::sync::oneshot::channel::<()>();
    let client = std::thread::spawn(move || {
        story(async move {
            let client = byway_test_support::test::v1::echo_client::EchoClient::new(
                channel.connect().await.expect("a connection"),
            );
            drop(held);
            let status = soon(client.unary(text("hold"))).await.expect_err("the server is gone");
            assert_eq!(status.code(), Code::Unavailable);
        });
    });
    runtime.block_on(async {
        let _ = soon(holds).await;
        probe.entered(1).await;
    });
    drop(runtime);
    client.join().expect("the client does not fail");
    drop(server);
}
