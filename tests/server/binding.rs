//! Where a server listens, and why it does not.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use byway::{Address, Server};
use byway_test_support::test::v1::echo_server::EchoServer;
use tokio::net::UnixListener;

use crate::harness::{Probe, Probed, Running, served, story};

fn service() -> EchoServer<Probed> {
    EchoServer::new(Probed(Arc::new(Probe::default())))
}

/// A path for a socket that no other test has.
fn socket_path(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("byway-{name}-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

#[test]
fn port_zero_becomes_a_free_port_that_clients_reach() {
    story(async {
        let first = Running::start().await;
        let second = Running::with(Server::builder()).await;
        let (Address::Internet { port, .. }, Address::Internet { port: other, .. }) =
            (first.address().clone(), second.address().clone())
        else {
            panic!("not internet addresses")
        };
        assert!(port != 0 && other != 0 && port != other);
        served(&first.client().await).await;
        served(&second.client().await).await;
        first.stop().await;
        second.stop().await;
    });
}

#[test]
fn every_form_of_an_address_can_be_served() {
    story(async {
        let v6: SocketAddr = "[::1]:0".parse().expect("an address");
        for bound in [
            Server::builder().add_service(service()).bind("localhost:0").await,
            Server::builder().add_service(service()).bind("byway://127.0.0.1:0".to_owned()).await,
            Server::builder().add_service(service()).bind(v6).await,
        ] {
            let bound = bound.expect("a free port");
            let text = bound.listening().to_string();
            let task = tokio::spawn(bound.serve());
            let channel = byway::Channel::connect(&text).await.expect(&text);
            served(&byway_test_support::test::v1::echo_client::EchoClient::new(channel)).await;
            task.abort();
        }
    });
}

#[test]
fn a_port_that_is_taken_is_named() {
    story(async {
        let running = Running::start().await;
        let taken = running.text();
        let error = Server::builder().add_service(service()).bind(taken.as_str()).await;
        let error = error.err().expect("it is taken").to_string();
        assert!(error.contains(&taken) && error.contains("in use"), "{error}");
        served(&running.client().await).await;
        running.stop().await;
    });
}

#[test]
fn an_address_that_is_none_or_not_ours_is_named() {
    story(async {
        for (address, expected) in [
            ("127.0.0.1", "the port is missing"),
            ("http://127.0.0.1:0", "a server listens for every protocol at once"),
            ("192.0.2.1:0", "192.0.2.1:0 cannot be listened on"),
            ("unix:/nowhere/at/all.sock", "unix:/nowhere/at/all.sock cannot be listened on"),
        ] {
            let error = Server::builder().add_service(service()).serve(address).await;
            let error = error.expect_err(address).to_string();
            assert!(error.contains(expected), "{address}: {error}");
        }
    });
}

#[test]
fn a_service_that_is_there_twice_is_named() {
    story(async {
        let builder = || Server::builder().add_service(service());
        let error = builder().add_service(service()).serve("127.0.0.1:0").await;
        let error = error.expect_err("twice").to_string();
        assert!(error.contains("/test.v1.Echo/Unary") && error.contains("once"), "{error}");
        let twice = builder().add_tower_service(service()).serve("127.0.0.1:0");
        let error = twice.await.expect_err("twice, of different kinds").to_string();
        assert!(error.contains("test.v1.Echo"), "{error}");
        let twice = Server::builder().add_tower_service(service()).add_tower_service(service());
        let error = twice.serve("127.0.0.1:0").await.expect_err("twice").to_string();
        assert!(error.contains("test.v1.Echo"), "{error}");
    });
}

#[test]
fn a_socket_file_that_nobody_listens_on_is_replaced_and_removed_at_the_end() {
    story(async {
        let path = socket_path("stale");
        // A listener that is dropped leaves its file behind, as a server that crashed does.
        drop(UnixListener::bind(&path).expect("a free path"));
        assert!(path.exists());
        let running = Running::at(Address::Unix(path.clone()), Server::builder()).await;
        served(&running.client().await).await;
        running.stop().await;
        assert!(!path.exists(), "the server's own file is removed");
        let running = Running::at(Address::Unix(path.clone()), Server::builder()).await;
        served(&running.client().await).await;
        running.kill().await;
        assert!(!path.exists(), "also when the server is dropped");
    });
}

#[test]
fn a_socket_that_somebody_listens_on_is_left_alone() {
    story(async {
        let path = socket_path("live");
        let running = Running::at(Address::Unix(path.clone()), Server::builder()).await;
        let error = Server::builder().add_service(service()).bind(Address::Unix(path.clone())).await;
        let error = error.err().expect("it is taken").to_string();
        assert!(error.contains("in use"), "{error}");
        served(&running.client().await).await;
        running.stop().await;
    });
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    story(async {
        let path = socket_path("precious");
        std::fs::write(&path, "precious").expect("a writable directory");
        let error = Server::builder().add_service(service()).bind(Address::Unix(path.clone())).await;
        error.err().expect("it is taken");
        assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "precious");
        std::fs::remove_file(&path).expect("it is ours");
    });
}
