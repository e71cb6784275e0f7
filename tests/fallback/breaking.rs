//! Connections by RDMA that fail: how calls end, where the next ones go, and how RDMA comes back.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use byway::testing::{Fabric, Fault, NicId, SimNicOptions};
use byway::{
    Channel, Code, Keepalive, Path, Rdma, RdmaOptions, Server, ServerBuilder, Status, Transport, connections,
};
use byway_rdma::nic::QueuePairId;
use byway_rdma::protocol::offer::encode_verdict;
use byway_test_support::test::v1::EchoRequest;
use byway_test_support::test::v1::echo_client::EchoClient;
use tokio::task::JoinHandle;

use crate::causes::{network, options};
use crate::falling::{until_open, why};
use crate::front::{Front, Manner};
use crate::harness::{Running, impatient, served, soon, story, text};
use crate::warnings;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("without_windows_large_messages_still_go_by_rdma", without_windows),
    ("queue_pair_of_the_client_fails", client_fails),
    ("queue_pair_of_the_server_fails", server_fails),
    ("device_of_the_client_dies_in_mid_call", client_dies),
    ("device_of_the_server_falls_silent_in_mid_call", server_is_silent),
    ("retries_are_used_up", retries_used_up),
    ("retries_for_want_of_a_receive_are_used_up", receives_wanting),
    ("what_the_peer_says_over_tcp_counts", words_over_tcp),
    ("calls_that_were_not_sent_move_on", unsent_calls),
    ("rdma_returns_after_a_failed_agreement", returns_after_agreement),
    ("rdma_returns_after_a_failed_queue_pair", returns_after_queue_pair),
    ("the_gauge_counts_no_connection_that_is_over", gauge),
    ("a_channel_that_requires_rdma_never_goes_on_over_tcp", required),
];

/// The first queue pair of a device, which the first connection has.
const FIRST: QueuePairId = QueuePairId(0);

/// A channel by RDMA, and everything below it.
struct Joined {
    fabric: Fabric,
    client_device: NicId,
    server_device: NicId,
    server: Running,
    front: Front,
    channel: Channel,
    client: EchoClient<Channel>,
}

impl Joined {
    async fn new() -> Self {
        Self::with(options(), Server::builder(), Keepalive::default()).await
    }

    async fn with(options: RdmaOptions, server: ServerBuilder, keepalive: Keepalive) -> Self {
        until_open(0, 0).await;
        let fabric = network();
        let [client, serving] = [(); 2].map(|()| fabric.adapter(&SimNicOptions::default()));
        let (client_device, server_device) = (client.id(), serving.id());
        let server = Running::with(server.rdma(Rdma::simulated(serving, options.clone()))).await;
        let front = Front::before(&server, Manner::Carries).await;
        let rdma = Rdma::simulated(client, options);
        let channel = front.channel().rdma(rdma).keepalive(keepalive).connect().await.expect("a connection");
        assert_eq!(channel.path(), Path::Rdma { device: "simulated".into() });
        until_open(2, 0).await;
        let client = EchoClient::new(channel.clone());
        served(&client).await;
        Self { fabric, client_device, server_device, server, front, channel, client }
    }

    /// A call that its handler holds.
    async fn held(&self) -> JoinHandle<Result<(), Status>> {
        let client = self.client.clone();
        let call = tokio::spawn(async move { client.unary(text("hold")).await.map(drop) });
        self.server.probe.entered(1).await;
        call
    }

    /// The next call goes over TCP, and nobody tried RDMA before it.
    async fn goes_on_over_tcp(&self, reason: &str) {
        served(&self.client).await;
        let why = why(&self.channel);
        assert!(why.starts_with("RDMA failed and is given 600s before it is tried again: "), "{why}");
        assert!(why.contains(reason), "{why}");
        assert_eq!(self.front.accepted(), 2);
        until_open(0, 2).await;
        let said = warnings::about(self.front.address());
        assert!(said.len() == 1 && said[0].contains(reason) && said[0].contains("remedy="), "{said:?}");
    }

    async fn end(self) {
        drop((self.channel, self.client));
        until_open(0, 0).await;
        self.server.stop().await;
    }
}

/// A call that ended because its connection did, for this reason.
async fn unavailable(call: JoinHandle<Result<(), Status>>, reason: &str) {
    let status = soon(call).await.expect("no panic").expect_err("its connection is over");
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().starts_with("the connection is over: "), "{status}");
    assert!(status.message().contains(reason), "{status}");
}

/// Lets time pass in a network until `event` has come.
async fn while_time_passes<T>(fabric: &Fabric, event: impl Future<Output = T>) -> T {
    tokio::select! {
        result = soon(event) => result,
        () = async {
            loop {
                fabric.step();
                tokio::task::yield_now().await;
            }
        } => unreachable!("time never ends"),
    }
}

/// Waits until calls go by RDMA.
async fn until_rdma(channel: &Channel) {
    let reached = async {
        while !matches!(channel.path(), Path::Rdma { .. }) {
            tokio::task::yield_now().await;
        }
    };
    soon(reached).await;
}

fn without_windows() {
    story(async {
        let options = RdmaOptions { windows: false, ..options() };
        let joined = Joined::with(options, Server::builder(), Keepalive::default()).await;
        let request = EchoRequest { payload: vec![3; 1 << 20].into(), ..EchoRequest::default() };
        let reply = soon(joined.client.unary(request)).await.expect("it is served").into_inner();
        assert_eq!(reply.payload.len(), 1 << 20);
        assert!(matches!(joined.channel.path(), Path::Rdma { .. }));
        assert_eq!(warnings::about(joined.front.address()), [""; 0]);
        joined.end().await;
    });
}

fn client_fails() {
    story(async {
        let joined = Joined::with(options(), Server::builder(), impatient()).await;
        let call = joined.held().await;
        joined.fabric.inject(Fault::FailQueuePair(joined.client_device, FIRST));
        unavailable(call, "the queue pair failed").await;
        joined.goes_on_over_tcp("the queue pair failed").await;
        joined.server.probe.gone(1).await;
        assert_eq!(joined.server.probe.executed(), 3, "the call that failed was not sent again");
        joined.end().await;
    });
}

/// The client hears of it over TCP, which still works, with the reason.
fn server_fails() {
    story(async {
        let joined = Joined::new().await;
        let call = joined.held().await;
        joined.fabric.inject(Fault::FailQueuePair(joined.server_device, FIRST));
        joined.server.probe.release(1);
        unavailable(call, "RDMA failed at the peer: the queue pair failed: ").await;
        joined.goes_on_over_tcp("RDMA failed at the peer: the queue pair failed: ").await;
        joined.end().await;
    });
}

fn client_dies() {
    story(async {
        let joined = Joined::with(options(), Server::builder(), impatient()).await;
        let call = joined.held().await;
        joined.fabric.inject(Fault::FailDevice(joined.client_device));
        // Whether it is asked or used first.
        unavailable(call, "device").await;
        joined.goes_on_over_tcp("device").await;
        joined.end().await;
    });
}

fn server_is_silent() {
    story(async {
        let joined = Joined::with(options(), Server::builder(), impatient()).await;
        let call = joined.held().await;
        joined.fabric.inject(Fault::Freeze(joined.server_device));
        unavailable(call, "the peer is silent").await;
        joined.goes_on_over_tcp("the peer is silent").await;
        joined.end().await;
    });
}

/// The text of RETRY_EXC.
fn retries_used_up() {
    story(async {
        let joined = Joined::new().await;
        let held = joined.held().await;
        joined.fabric.inject(Fault::Partition(joined.client_device, joined.server_device));
        let client = joined.client.clone();
        let sent = tokio::spawn(async move { client.unary(text("x")).await.map(drop) });
        const REASON: &str = "the peer did not answer: it is gone, or the network loses packets";
        while_time_passes(&joined.fabric, unavailable(sent, REASON)).await;
        unavailable(held, REASON).await;
        joined.goes_on_over_tcp(REASON).await;
        joined.end().await;
    });
}

/// The text of RNR_RETRY_EXC.
fn receives_wanting() {
    const REASON: &str = "the peer posted no receive in time: flow control failed";
    story(async {
        until_open(0, 0).await;
        let fabric = network();
        let server = Running::with(Server::builder().rdma(Rdma::off("it is not asked"))).await;
        let front = Front::before(&server, Manner::Stingy(fabric.clone(), Bytes::new())).await;
        let rdma = Rdma::simulated(fabric.adapter(&SimNicOptions::default()), options());
        let channel = front.channel().rdma(rdma).connect().await.expect("a connection");
        assert!(matches!(channel.path(), Path::Rdma { .. }), "{}", channel.path());
        let client = EchoClient::new(channel.clone());
        let call = tokio::spawn({
            let client = client.clone();
            async move { client.unary(text("x")).await.map(drop) }
        });
        while_time_passes(&fabric, unavailable(call, REASON)).await;
        served(&client).await;
        assert!(why(&channel).ends_with(&format!("{REASON} (vendor code 0x0)")), "{}", channel.path());
        assert_eq!(front.accepted(), 2);
        drop((channel, client));
        server.stop().await;
    });
}

/// The peer's own words about its queue pair, and words that are none of the protocol's, as soon as both have agreed.
fn words_over_tcp() {
    let no = encode_verdict(&Err("its cable was pulled".into()));
    let table = [
        (
            no,
            "RDMA failed and is given 600s before it is tried again: RDMA failed at the peer: its cable was pulled",
        ),
        (
            Bytes::from_static(b"hello?"),
            "the connection is over: bytes on a TCP connection whose frames go by RDMA",
        ),
    ];
    for (bytes, expected) in table {
        story(async {
            until_open(0, 0).await;
            let fabric = network();
            let server = Running::with(Server::builder().rdma(Rdma::off("it is not asked"))).await;
            let front = Front::before(&server, Manner::Stingy(fabric.clone(), bytes)).await;
            let rdma = Rdma::simulated(fabric.adapter(&SimNicOptions::default()), options());
            let channel = front.channel().rdma(rdma).connect().await.expect("a connection");
            let over = async {
                while !matches!(channel.path(), Path::Disconnected { .. }) {
                    tokio::task::yield_now().await;
                }
            };
            soon(over).await;
            if expected.starts_with("RDMA failed") {
                served(&EchoClient::new(channel.clone())).await;
                assert_eq!(why(&channel), expected);
            } else {
                assert_eq!(channel.path().to_string(), format!("not connected: {expected}"));
            }
            drop(channel);
            server.stop().await;
        });
    }
}

fn unsent_calls() {
    const WAITING: usize = 10;
    story(async {
        let limits = byway::Limits { max_calls: 1, ..byway::Limits::default() };
        let server = Server::builder().limits(limits);
        let joined = Joined::with(options(), server, impatient()).await;
        let held = joined.held().await;
        let waiting: Vec<_> = (0..WAITING)
            .map(|_| {
                let client = joined.client.clone();
                tokio::spawn(async move { client.unary(text("x")).await.map(drop) })
            })
            .collect();
        joined.fabric.inject(Fault::FailQueuePair(joined.client_device, FIRST));
        unavailable(held, "the queue pair failed").await;
        for call in waiting {
            soon(call).await.expect("no panic").expect("it was never sent, so it moves on");
        }
        joined.goes_on_over_tcp("the queue pair failed").await;
        joined.end().await;
    });
}

/// Times that pass while a test waits for what follows them.
fn soon_again() -> RdmaOptions {
    let agreement_timeout = Duration::from_millis(200);
    RdmaOptions { agreement_timeout, retry_after: Duration::from_millis(20), ..options() }
}

fn returns_after_agreement() {
    story(async {
        until_open(0, 0).await;
        let fabric = network();
        let [client, serving] = [(); 2].map(|()| fabric.adapter(&SimNicOptions::default()));
        fabric.inject(Fault::Lose(1_000_000));
        let server = Running::with(Server::builder().rdma(Rdma::simulated(serving, soon_again()))).await;
        let front = Front::before(&server, Manner::Carries).await;
        let rdma = Rdma::simulated(client, soon_again());
        let channel = front.channel().rdma(rdma).connect().await.expect("a connection");
        assert!(matches!(channel.path(), Path::Tcp { why_not_better: Some(_) }), "{}", channel.path());
        let client = EchoClient::new(channel.clone());
        let held = tokio::spawn({
            let client = client.clone();
            async move { client.unary(text("hold")).await }
        });
        server.probe.entered(1).await;
        // It is tried again while calls go on, and fails again.
        let tried = front.accepted();
        let again = async {
            while front.accepted() < tried + 2 {
                served(&client).await;
            }
        };
        soon(again).await;
        assert_eq!(warnings::about(front.address()).len(), 1);
        fabric.inject(Fault::Lose(0));
        until_rdma(&channel).await;
        served(&client).await;
        server.probe.release(1);
        soon(held).await.expect("no panic").expect("an open call stays where it is");
        until_open(2, 0).await;
        drop((channel, client));
        server.stop().await;
    });
}

fn returns_after_queue_pair() {
    story(async {
        let options = RdmaOptions { agreement_timeout: Duration::from_secs(2), ..soon_again() };
        let joined = Joined::with(options, Server::builder(), impatient()).await;
        for round in 0..3 {
            let call = joined.held().await;
            joined.fabric.inject(Fault::FailQueuePair(joined.client_device, QueuePairId(round)));
            unavailable(call, "the queue pair failed").await;
            served(&joined.client).await;
            until_rdma(&joined.channel).await;
            until_open(2, 0).await;
        }
        joined.end().await;
    });
}

fn required() {
    story(async {
        let fabric = network();
        let [client, serving] = [(); 2].map(|()| fabric.adapter(&SimNicOptions::default()));
        let (client_device, server_device) = (client.id(), serving.id());
        let short = RdmaOptions { agreement_timeout: Duration::from_millis(200), ..options() };
        let server = Running::with(Server::builder().rdma(Rdma::simulated(serving, short.clone()))).await;
        let builder = server.channel().rdma(Rdma::simulated(client, short)).keepalive(impatient());
        let channel = builder.transport(Transport::Rdma).connect().await.expect("RDMA");
        let client = EchoClient::new(channel.clone());
        served(&client).await;
        fabric.inject(Fault::Partition(client_device, server_device));
        fabric.inject(Fault::FailQueuePair(client_device, FIRST));
        let mut last = String::new();
        while !last.contains("the transport \"rdma\" was asked for, but ") {
            let status = soon(client.unary(text("x"))).await.expect_err("there is no RDMA");
            assert_eq!(status.code(), Code::Unavailable);
            last = status.message().to_owned();
        }
        assert!(matches!(channel.path(), Path::Disconnected { .. }), "{}", channel.path());
        fabric.inject(Fault::Heal(client_device, server_device));
        while soon(client.unary(text("x"))).await.is_err() {
            tokio::task::yield_now().await;
        }
        assert!(matches!(channel.path(), Path::Rdma { .. }));
        drop((channel, client));
        server.stop().await;
    });
}

/// Whatever the channel that had it does meanwhile.
fn gauge() {
    story(async {
        let joined = Joined::new().await;
        joined.server.kill().await;
        until_open(0, 0).await;
        assert!(matches!(joined.channel.path(), Path::Disconnected { .. }), "{}", joined.channel.path());
        for transport in [Transport::Tcp, Transport::Grpc] {
            let server = Running::start().await;
            let channel = server.channel().transport(transport).connect().await.expect("a connection");
            let of_each = || (connections().tcp, connections().grpc);
            let open = if transport == Transport::Tcp { (2, 0) } else { (0, 2) };
            let became = async |expected| {
                while of_each() != expected {
                    tokio::task::yield_now().await;
                }
            };
            soon(became(open)).await;
            server.kill().await;
            soon(became((0, 0))).await;
            // Over HTTP/2 whoever counts hears of the end before whoever calls.
            soon(async {
                while !matches!(channel.path(), Path::Disconnected { .. }) {
                    tokio::task::yield_now().await;
                }
            })
            .await;
        }
    });
}
