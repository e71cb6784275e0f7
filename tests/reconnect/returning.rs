//! Servers that are not there yet, that come back, and how often a channel asks.

use std::time::Duration;

use byway::{Channel, Code, Path, Request, Server};
use byway_test_support::test::v1::echo_client::EchoClient;
use tokio::net::TcpListener;

use crate::harness::{Running, served, soon, story, text};
use crate::proxy::{Gate, Proxy};

/// An address on which nobody listens, and which a server can have later.
async fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    listener.local_addr().expect("it is bound").to_string()
}

fn lazy(address: &str) -> EchoClient<Channel> {
    EchoClient::new(Channel::builder(address).connect_lazy().expect("an address"))
}

/// Calls until one succeeds; every other fails with `UNAVAILABLE`.
async fn until_served(client: &EchoClient<Channel>) {
    loop {
        match soon(client.unary(text("again"))).await {
            Ok(_) => return,
            Err(status) => assert_eq!(status.code(), Code::Unavailable, "{status}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Calls until one fails: a connection that is being served at the moment in which its server is dropped still is.
async fn until_down(client: &EchoClient<Channel>) {
    loop {
        if let Err(status) = soon(client.unary(text("still"))).await {
            return assert_eq!(status.code(), Code::Unavailable, "{status}");
        }
    }
}

#[test]
fn a_lazy_channel_connects_with_its_first_call() {
    story(async {
        let address = free_address().await;
        let client = lazy(&address);
        let server = Running::at(address.parse().expect("an address"), Server::builder()).await;
        served(&client).await;
        server.stop().await;
    });
}

#[test]
fn a_server_that_is_down_is_an_error_at_once_that_says_why_and_when_next() {
    story(async {
        let address = free_address().await;
        let error = Channel::connect(&address).await.expect_err("nobody listens").to_string();
        assert!(error.contains(&address) && error.contains("refused"), "{error}");
        let client = lazy(&address);
        let status = soon(client.unary(text("x"))).await.expect_err("nobody listens");
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains(&address) && status.message().contains("refused"), "{status}");
        // The wait after the first failure is 80 ms at least, so most of these find it not over. None tries to connect
        // more often than the back-off allows, whatever the machine is busy with.
        let mut held = 0;
        for _ in 0..100 {
            let status = soon(client.unary(text("x"))).await.expect_err("nobody listens");
            assert_eq!(status.code(), Code::Unavailable);
            assert!(status.message().contains("refused"), "{status}");
            held += usize::from(status.message().contains("(the next attempt is due in "));
        }
        assert!(held > 50, "only {held} of 100 calls were told to wait");
    });
}

#[test]
fn a_server_that_comes_back_is_found_again() {
    story(async {
        let mut server = Running::start().await;
        let client = server.client().await;
        for crash in [true, false, true] {
            until_served(&client).await;
            let address = server.address().clone();
            if crash {
                server.kill().await
            } else {
                server.stop().await
            }
            until_down(&client).await;
            server = Running::at(address, Server::builder()).await;
        }
        until_served(&client).await;
        server.stop().await;
    });
}

#[test]
fn a_server_that_is_replaced_at_once_costs_no_call() {
    story(async {
        let old = Running::start().await;
        let client = old.client().await;
        served(&client).await;
        let address = old.address().clone();
        old.stop().await;
        let new = Running::at(address, Server::builder()).await;
        served(&client).await;
        new.stop().await;
    });
}

#[test]
fn many_callers_share_one_attempt() {
    const CALLERS: usize = 50;
    story(async {
        let server = Running::start().await;
        let proxy = Proxy::to(&server, Gate::Shut).await;
        let client = lazy(proxy.address());
        let calls: Vec<_> = (0..CALLERS)
            .map(|_| {
                let client = client.clone();
                tokio::spawn(async move { client.unary(text("x")).await })
            })
            .collect();
        proxy.accepted(1).await;
        proxy.open();
        for call in calls {
            soon(call).await.expect("no panic").expect("it is served");
        }
        assert_eq!(proxy.connections(), 1);
        assert_eq!(server.probe.executed(), CALLERS);
        drop(client);
        server.stop().await;
    });
}

#[test]
fn a_caller_that_goes_leaves_the_attempt_to_others() {
    story(async {
        let server = Running::start().await;
        let proxy = Proxy::to(&server, Gate::Shut).await;
        let client = lazy(proxy.address());
        let call = || {
            let client = client.clone();
            tokio::spawn(async move { client.unary(text("x")).await })
        };
        let first = call();
        proxy.accepted(1).await;
        let second = call();
        first.abort();
        assert!(first.await.expect_err("it was stopped").is_cancelled());
        proxy.open();
        soon(second).await.expect("no panic").expect("it is served");
        assert_eq!(proxy.connections(), 1);
        assert_eq!(server.probe.executed(), 1, "nothing of the caller that has gone");
        drop(client);
        server.stop().await;
    });
}

#[test]
fn a_call_may_reach_its_deadline_while_connecting() {
    story(async {
        let server = Running::start().await;
        let proxy = Proxy::to(&server, Gate::Shut).await;
        let client = lazy(proxy.address());
        let mut request = Request::new(text("x"));
        request.set_timeout(Duration::from_millis(50));
        let status = soon(client.unary(request)).await.expect_err("its time is over");
        assert_eq!(status.code(), Code::DeadlineExceeded);
        proxy.open();
        served(&client).await;
        assert_eq!(proxy.connections(), 1, "the attempt went on");
        assert_eq!(server.probe.executed(), 1);
        drop(client);
        server.stop().await;
    });
}

/// Connecting takes longer than the half of its time after which a server of unknown kind is asked for gRPC.
#[test]
fn a_server_that_stood_still_is_not_taken_for_one_that_speaks_grpc_alone() {
    story(async {
        let server = Running::start().await;
        let proxy = Proxy::to(&server, Gate::Open).await;
        let limit = Duration::from_secs(2);
        let channel = Channel::builder(proxy.address()).connect_timeout(limit).connect().await;
        let channel = channel.expect("a connection");
        let client = EchoClient::new(channel.clone());
        served(&client).await;
        proxy.shut();
        proxy.cut();
        while !matches!(channel.path(), Path::Disconnected { .. }) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        proxy.heal();
        let call = tokio::spawn(async move { client.unary(text("again")).await });
        soon(proxy.accepted(2)).await;
        tokio::time::sleep(limit * 3 / 4).await;
        proxy.open();
        soon(call).await.expect("no panic").expect("the server is back");
        assert!(matches!(channel.path(), Path::Tcp { .. } | Path::Rdma { .. }), "{}", channel.path());
        drop(channel);
        server.stop().await;
    });
}
