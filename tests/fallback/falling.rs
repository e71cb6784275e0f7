//! What holds for every cause.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use byway::{Channel, ChannelBuilder, Connections, Path, Server, Transport, connections};
use byway_test_support::test::v1::echo_client::EchoClient;

use crate::causes::{Cause, options};
use crate::front::{Front, Manner};
use crate::harness::{Running, served, soon, story};
use crate::warnings;

/// A limit that nobody waits for: what bounds an attempt is the agreement's own.
const AN_HOUR: Duration = Duration::from_secs(3600);

/// First calls over plain TCP whose median stands for one.
const PLAIN: usize = 5;

struct Row {
    cause: &'static str,
    connections: usize,
    added: Duration,
    reason: String,
}

static ROWS: Mutex<Vec<Row>> = Mutex::new(Vec::new());

/// A channel whose first call was answered, and how long that took.
pub(crate) async fn first_call(builder: ChannelBuilder) -> (Channel, Duration) {
    let channel = builder.connect_timeout(AN_HOUR).connect_lazy().expect("an address");
    let began = Instant::now();
    served(&EchoClient::new(channel.clone())).await;
    (channel, began.elapsed())
}

/// Waits until this process has exactly these connections open.
pub(crate) async fn until_open(rdma: usize, tcp: usize) {
    let expected = |open: Connections| (open.rdma, open.tcp) == (rdma, tcp);
    let reached = tokio::time::timeout(Duration::from_secs(20), async {
        while !expected(connections()) {
            tokio::task::yield_now().await;
        }
    });
    assert!(reached.await.is_ok(), "{:?} open, not {rdma} and {tcp}", connections());
}

/// Why a channel is on TCP.
pub(crate) fn why(channel: &Channel) -> String {
    match channel.path() {
        Path::Tcp { why_not_better: Some(reason) } => reason,
        other => panic!("not on TCP for a reason: {other}"),
    }
}

pub(crate) fn test(cause: &'static Cause) {
    story(async {
        let place = (cause.place)();
        until_open(0, 0).await;
        // Both ends of the one connection are in this process; a server that is not byway's counts nothing.
        let counted = if matches!(place.manner, Manner::Native) { 1 } else { 2 };
        let server = Running::with(Server::builder().rdma(place.server)).await;
        let front = Front::before(&server, place.manner).await;
        let mut plain = Vec::new();
        for _ in 0..PLAIN {
            let (channel, took) = first_call(front.channel().transport(Transport::Tcp)).await;
            assert_eq!(channel.path(), Path::Tcp { why_not_better: None });
            plain.push(took);
        }
        plain.sort_unstable();
        until_open(0, 0).await;

        let before = front.accepted();
        let (channel, took) = first_call(front.channel().rdma(place.client.clone())).await;
        let client = EchoClient::new(channel.clone());
        for _ in 0..3 {
            served(&client).await;
        }
        let reason = why(&channel);
        assert!(reason.contains(cause.reason), "{reason}");
        assert_eq!(front.accepted() - before, cause.connections, "TCP connections");
        until_open(0, counted).await;
        let said = warnings::about(front.address());
        let [warning] = &said[..] else { panic!("not one warning: {said:?}") };
        assert!(warning.contains(&reason) && warning.contains("remedy=`byway doctor "), "{warning}");

        let required = front.channel().rdma(place.client).transport(Transport::Rdma).connect_timeout(AN_HOUR);
        let error = soon(required.connect()).await.expect_err("there is no RDMA").to_string();
        assert!(error.starts_with("the transport \"rdma\" was asked for, but "), "{error}");
        assert!(error.contains(cause.reason), "{error}");
        assert_eq!(warnings::about(front.address()).len(), 1, "an error says it all");

        let added = took.saturating_sub(plain[PLAIN / 2]);
        let row = Row { cause: cause.name, connections: cause.connections, added, reason };
        ROWS.lock().expect("nobody panics").push(row);
        drop((channel, client));
        until_open(0, 0).await;
        server.stop().await;
    });
}

pub(crate) fn print_table() {
    let rows = ROWS.lock().expect("nobody panics");
    if rows.is_empty() {
        return;
    }
    println!("agreement_timeout is {:?}", options().agreement_timeout);
    println!(
        "first call, beyond what it takes over plain TCP (median of {PLAIN}), and the TCP connections that it took:"
    );
    println!("{:<48} {:>10}  connections  reason", "cause", "added");
    for Row { cause, connections, added, reason } in rows.iter() {
        println!("{cause:<48} {:>7.1} ms  {connections:>11}  {reason}", added.as_secs_f64() * 1e3);
    }
}
