//! RDMA that an operator switched off by the environment, which is that of a process: each case has one of its own.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitCode, Stdio};

use byway::{Path, Rdma, Server, Transport};
use byway_test_support::test::v1::echo_client::EchoClient;
use tokio::sync::oneshot;

use crate::causes::{network, options};
use crate::falling::{first_call, why};
use crate::harness::{Running, served, soon, story};
use crate::warnings;
use byway::testing::{Fabric, SimNicOptions};

/// What makes this program a child of its own, and what it is to do: to serve, or to call this address.
const ROLE: &str = "BYWAY_FALLBACK_TEST";

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("environment_of_the_server_switches_it_off", server_by_environment),
    ("environment_of_the_client_switches_it_off", client_by_environment),
    ("environment_of_the_client_asks_for_rdma", client_requires_by_environment),
];

fn simulated(fabric: &Fabric) -> Rdma {
    Rdma::simulated(fabric.adapter(&SimNicOptions::default()), options())
}

/// As a child: does what it is to do.
pub(crate) fn child() -> Option<ExitCode> {
    let role = std::env::var(ROLE).ok()?;
    story(async {
        match &role[..] {
            "serve" => {
                let server = Running::start().await;
                println!("{}", server.text());
                let (ended, end) = oneshot::channel();
                std::thread::spawn(move || {
                    let _ = std::io::stdin().read(&mut [0]);
                    let _ = ended.send(());
                });
                let _ = end.await;
                server.stop().await;
            }
            address => match byway::Channel::builder(address).rdma(simulated(&network())).connect().await {
                Ok(channel) => {
                    served(&EchoClient::new(channel.clone())).await;
                    println!("path: {}", channel.path());
                }
                Err(error) => println!("error: {error}"),
            },
        }
    });
    Some(ExitCode::SUCCESS)
}

/// This program as a child, and the first line that it prints.
fn run(role: &str, transport: &str) -> (Child, String) {
    let mut child = Command::new(std::env::current_exe().expect("a test has a binary"))
        .env(ROLE, role)
        .env("BYWAY_TRANSPORT", transport)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it can be run");
    let mut line = String::new();
    let output = child.stdout.take().expect("it is piped");
    BufReader::new(output).read_line(&mut line).expect("text");
    (child, line.trim().to_owned())
}

fn server_by_environment() {
    for transport in ["tcp", "grpc"] {
        let (mut server, address) = run("serve", transport);
        story(async {
            let rdma = simulated(&network());
            let (channel, _) = first_call(byway::Channel::builder(&address).rdma(rdma.clone())).await;
            let expected = format!(
                "the server does not use RDMA: the server's environment has BYWAY_TRANSPORT={transport}"
            );
            assert_eq!(why(&channel), expected);
            assert_eq!(warnings::about(&address).len(), 1);
            let required = byway::Channel::builder(&address).rdma(rdma).transport(Transport::Rdma);
            let error = soon(required.connect()).await.expect_err("it has none").to_string();
            assert!(error.ends_with(&expected), "{error}");
        });
        drop(server.stdin.take());
        assert!(server.wait().expect("it ends").success());
    }
}

/// What a client with this variable prints.
fn client(transport: &str, rdma: Rdma) -> String {
    let mut printed = String::new();
    story(async {
        let server = Running::with(Server::builder().rdma(rdma)).await;
        let (role, transport) = (server.text(), transport.to_owned());
        let run = tokio::task::spawn_blocking(move || run(&role, &transport));
        let (mut child, line) = soon(run).await.expect("no panic");
        assert!(child.wait().expect("it ends").success());
        printed = line;
        server.stop().await;
    });
    printed
}

/// Whoever asks for TCP knows why.
fn client_by_environment() {
    assert_eq!(client("tcp", simulated(&network())), format!("path: {}", Path::Tcp { why_not_better: None }));
}

fn client_requires_by_environment() {
    let expected = "error: the transport \"rdma\" was asked for, but the server does not use RDMA: the operator wants none";
    assert_eq!(client("rdma", Rdma::off("the operator wants none")), expected);
}
