//! Calls that are under way when something fails: each ends once, and none is executed twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use byway::{Channel, Code, Server};
use byway_test_support::test::v1::EchoRequest;
use byway_test_support::test::v1::echo_client::EchoClient;

use crate::harness::{Running, impatient, served, soon, story, text};
use crate::proxy::{Gate, Proxy};

const CALLS: u32 = 20;

async fn through(proxy: &Proxy) -> EchoClient<Channel> {
    let channel = Channel::builder(proxy.address()).keepalive(impatient()).connect().await;
    EchoClient::new(channel.expect("a connection"))
}

/// Calls that their handlers hold.
async fn held(
    server: &Running,
    client: &EchoClient<Channel>,
) -> Vec<tokio::task::JoinHandle<Result<(), byway::Status>>> {
    let call = |client: EchoClient<Channel>| async move { client.unary(text("hold")).await.map(|_| ()) };
    let calls = (0..CALLS).map(|_| tokio::spawn(call(client.clone()))).collect();
    server.probe.entered(CALLS).await;
    calls
}

/// All of them fail, for one of these reasons.
async fn all_unavailable(calls: Vec<tokio::task::JoinHandle<Result<(), byway::Status>>>, reasons: &[&str]) {
    for call in calls {
        let status = soon(call).await.expect("no panic").expect_err("the connection is over");
        assert_eq!(status.code(), Code::Unavailable);
        assert!(reasons.iter().any(|reason| status.message().contains(reason)), "{status}");
    }
}

#[test]
fn calls_in_flight_when_the_server_dies_end_once_and_are_never_sent_again() {
    story(async {
        let old = Running::start().await;
        let client = old.client().await;
        let calls = held(&old, &client).await;
        let (address, probe) = (old.address().clone(), Arc::clone(&old.probe));
        old.kill().await;
        let new = Running::at(address, Server::builder()).await;
        // A connection that is being served at the moment in which its server is dropped still says so.
        all_unavailable(calls, &["the connection is over", "the server shut down"]).await;
        assert_eq!(probe.executed(), CALLS as usize);
        probe.gone(CALLS).await;
        served(&client).await;
        assert_eq!(new.probe.executed(), 1, "only what was called afterwards");
        new.stop().await;
    });
}

#[test]
fn calls_in_flight_when_the_network_is_cut_end_once_and_are_never_sent_again() {
    story(async {
        let server = Running::start().await;
        let proxy = Proxy::to(&server, Gate::Open).await;
        let client = through(&proxy).await;
        let calls = held(&server, &client).await;
        proxy.cut();
        all_unavailable(calls, &["the connection is over"]).await;
        server.probe.gone(CALLS).await;
        proxy.heal();
        served(&client).await;
        assert_eq!(server.probe.executed(), CALLS as usize + 1);
        drop(client);
        server.stop().await;
    });
}

#[test]
fn a_peer_that_stops_answering_is_given_up_by_both_sides() {
    story(async {
        let server = Running::with(Server::builder().keepalive(impatient())).await;
        let proxy = Proxy::to(&server, Gate::Open).await;
        let client = through(&proxy).await;
        let calls = held(&server, &client).await;
        let request = EchoRequest { count: u32::MAX, reply_bytes: 1 << 16, ..EchoRequest::default() };
        let mut stream = client.expand(request).await.expect("a stream").into_inner();
        server.probe.entered(1).await;
        proxy.freeze();
        all_unavailable(calls, &["the peer is silent"]).await;
        let status = loop {
            match soon(stream.message()).await {
                Ok(message) => assert!(message.is_some(), "it has no end"),
                Err(status) => break status,
            }
        };
        assert_eq!(status.code(), Code::Unavailable);
        server.probe.gone(CALLS + 1).await;
        proxy.heal();
        served(&client).await;
        drop(client);
        server.stop().await;
    });
}

#[test]
fn a_quiet_connection_is_kept_as_long_as_its_peer_answers() {
    story(async {
        let server = Running::with(Server::builder().keepalive(impatient())).await;
        let proxy = Proxy::to(&server, Gate::Open).await;
        let client = through(&proxy).await;
        let call = tokio::spawn({
            let client = client.clone();
            async move { client.unary(text("hold")).await }
        });
        server.probe.entered(1).await;
        // Longer than the interval and the time-out of both sides together.
        tokio::time::sleep(2 * (impatient().interval + impatient().timeout)).await;
        server.probe.release(1);
        soon(call).await.expect("no panic").expect("the connection was kept");
        assert_eq!(proxy.connections(), 1);
        drop(client);
        server.stop().await;
    });
}

#[test]
fn a_rolling_restart_costs_no_call_and_repeats_none() {
    story(async {
        let old = Running::start().await;
        let new = Running::start().await;
        let proxy = Proxy::to(&old, Gate::Open).await;
        let client = through(&proxy).await;
        let (done, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let callers: Vec<_> = (0..16)
            .map(|_| {
                let (client, done, over) = (client.clone(), Arc::clone(&done), Arc::clone(&over));
                tokio::spawn(async move {
                    while !over.load(Ordering::SeqCst) {
                        client.unary(text("x")).await.expect("no call is lost");
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        while old.probe.executed() < 1000 {
            tokio::task::yield_now().await;
        }
        proxy.point_to(&new);
        let old_probe = Arc::clone(&old.probe);
        old.stop().await;
        while new.probe.executed() < 1000 {
            tokio::task::yield_now().await;
        }
        over.store(true, Ordering::SeqCst);
        for caller in callers {
            soon(caller).await.expect("no call failed");
        }
        assert_eq!(old_probe.executed() + new.probe.executed(), done.load(Ordering::SeqCst));
        assert_eq!(proxy.connections(), 2);
        drop(client);
        new.stop().await;
    });
}
