//! What `Channel::path` says in every state, and transports that are not there.

use std::process::Command;

use byway::{Address, Channel, Path, Rdma, Server, Transport};
use byway_test_support::test::v1::echo_client::EchoClient;

use crate::harness::{Running, served, soon, story, text};
use crate::proxy::{Gate, Proxy};

fn reason(path: &Path) -> &str {
    match path {
        Path::Disconnected { reason: Some(reason) } => reason,
        other => panic!("not disconnected for a reason: {other}"),
    }
}

/// The same on machines with a device and without.
fn off() -> Rdma {
    Rdma::off("it is switched off for this test")
}

#[test]
fn the_path_is_known_in_every_state() {
    story(async {
        let server = Running::start().await;
        let proxy = Proxy::to(&server, Gate::Shut).await;
        let channel = Channel::builder(proxy.address()).connect_lazy().expect("an address");
        let client = EchoClient::new(channel.clone());
        assert_eq!(channel.path(), Path::Disconnected { reason: None }, "before the first call");
        let call = tokio::spawn({
            let client = client.clone();
            async move { client.unary(text("x")).await }
        });
        proxy.accepted(1).await;
        assert_eq!(channel.path(), Path::Disconnected { reason: None }, "while connecting");
        proxy.open();
        soon(call).await.expect("no panic").expect("it is served");
        let Path::Tcp { why_not_better: Some(why) } = channel.path() else {
            panic!("not on TCP: {}", channel.path())
        };
        assert!(why.contains("RDMA"), "{why}");
        assert_eq!(channel.path().to_string(), format!("tcp ({why})"));
        proxy.cut();
        // The next call may still be sent, and fails; then it is known.
        let lost = soon(async {
            while !matches!(channel.path(), Path::Disconnected { .. }) {
                tokio::task::yield_now().await;
            }
            channel.path()
        });
        let lost = lost.await;
        assert!(reason(&lost).starts_with("the connection is over: "), "{lost}");
        assert!(lost.to_string().starts_with("not connected: the connection is over: "), "{lost}");
        server.kill().await;
        proxy.heal();
        soon(client.unary(text("x"))).await.expect_err("nobody serves it");
        assert!(reason(&channel.path()).contains("before it said hello"), "{}", channel.path());
    });
}

#[test]
fn there_is_no_better_path_than_the_one_that_was_asked_for() {
    story(async {
        let server = Running::start().await;
        let channel = server.channel().transport(Transport::Tcp).connect().await.expect("a connection");
        assert_eq!(channel.path(), Path::Tcp { why_not_better: None });
        server.stop().await;
    });
}

#[test]
fn a_unix_socket_is_a_path_of_its_own() {
    story(async {
        let path = std::env::temp_dir().join(format!("byway-path-{}.sock", std::process::id()));
        let server = Running::at(Address::Unix(path), Server::builder()).await;
        let client = server.channel().rdma(off()).connect().await.expect("a connection");
        let Path::Unix { why_not_better: Some(_) } = client.path() else { panic!("{}", client.path()) };
        assert!(format!("{client:?}").contains("Unix"), "{client:?}");
        served(&EchoClient::new(client)).await;
        server.stop().await;
    });
}

#[test]
fn a_transport_that_is_not_there_is_an_error_that_says_so() {
    story(async {
        let server = Running::start().await;
        let builder = server.channel().transport(Transport::Rdma).rdma(off());
        let error = builder.connect().await.expect_err("there is none").to_string();
        assert!(error.contains("\"rdma\" was asked for") && error.contains("switched off"), "{error}");
        server.stop().await;
    });
}

#[test]
fn a_target_and_a_transport_that_contradict_each_other_are_an_error() {
    story(async {
        let builder = Channel::builder("grpc://127.0.0.1:1").transport(Transport::Tcp);
        let error = builder.connect_lazy().expect_err("a contradiction").to_string();
        assert!(error.contains("\"tcp\" was asked for") && error.contains("byway://127.0.0.1:1"), "{error}");
    });
}

/// The variable is that of a process, so each value needs one.
#[test]
fn the_environment_chooses_the_transport() {
    for (value, expected) in [
        (
            "rdma",
            "error: the transport \"rdma\" was asked for, but this side does not use RDMA: it is switched off",
        ),
        ("grpc", "path: grpc\n"),
        ("Pigeon", "error: BYWAY_TRANSPORT is \"Pigeon\", which is none of auto, rdma, tcp and grpc"),
        ("tcp", "path: tcp\n"),
        ("auto", "path: tcp ("),
        ("", "path: tcp ("),
    ] {
        let output = Command::new(std::env::current_exe().expect("a test has a binary"))
            .args(["--exact", "paths::says_its_path", "--ignored", "--nocapture"])
            .env("BYWAY_TRANSPORT", value)
            .output()
            .expect("it can be run");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains(expected), "{value}: {text}");
    }
}

#[test]
#[ignore = "needs a process with a variable; the test above runs it"]
fn says_its_path() {
    story(async {
        let server = Running::start().await;
        match server.channel().rdma(off()).connect().await {
            Ok(channel) => println!("path: {}", channel.path()),
            Err(error) => println!("error: {error}"),
        }
        let asked = server.channel().transport(Transport::Tcp).connect().await.expect("the program decides");
        assert_eq!(asked.path(), Path::Tcp { why_not_better: None });
        drop(asked);
        server.stop().await;
    });
}
