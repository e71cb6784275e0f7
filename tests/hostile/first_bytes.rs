//! What a server makes of a peer that begins with anything but a good hello. HTTP is for the suite of one port.

use std::time::Duration;

use byway::{Channel, Server};
use byway_test_support::test::v1::echo_client::EchoClient;
use tokio::io::AsyncWriteExt;

use crate::harness::{Running, served, served_during, story};
use crate::raw::{Raw, good_hello, hello};

/// What the server answers to a peer that begins with `first`, while another client is served.
async fn answer_to(first: &[u8]) -> Vec<u8> {
    let server = Running::start().await;
    let client = server.client().await;
    let answer = served_during(&client, async {
        let mut raw = Raw::connect(&server.text()).await;
        raw.send(first).await;
        raw.until_cut().await
    });
    let answer = answer.await;
    server.stop().await;
    answer
}

/// What the server says to a client whose hello it refuses, while another client is served.
async fn refusal_of(hello: &[u8]) -> String {
    let server = Running::start().await;
    let client = server.client().await;
    let refusal = served_during(&client, async {
        let mut raw = Raw::connect(&server.text()).await;
        raw.send(hello).await;
        let refusal = raw.read_hello().await.expect("a refusal");
        assert!(raw.until_cut().await.is_empty(), "nothing follows");
        refusal
    });
    let refusal = refusal.await;
    server.stop().await;
    refusal
}

#[test]
fn garbage_is_cut_off() {
    story(async {
        let garbage: Vec<u8> = (0..2000u32).map(|n| ((n * 7919) >> 3) as u8).collect();
        assert!(answer_to(&garbage).await.is_empty());
    });
}

#[test]
fn a_tls_client_is_cut_off() {
    story(async {
        let mut client_hello = vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
        client_hello.extend([0x5a; 506]);
        assert!(answer_to(&client_hello).await.is_empty());
    });
}

#[test]
fn a_silent_socket_is_cut_off_after_the_handshake_timeout() {
    story(async {
        let server = Running::with(Server::builder().handshake_timeout(Duration::from_millis(100))).await;
        let client = server.client().await;
        let said = served_during(&client, async { Raw::connect(&server.text()).await.until_cut().await });
        assert!(said.await.is_empty());
        server.stop().await;
    });
}

#[test]
fn a_hello_byte_by_byte_is_a_hello() {
    story(async {
        let server = Running::start().await;
        let client = server.client().await;
        let answer = served_during(&client, async {
            let mut raw = Raw::connect(&server.text()).await;
            raw.0.set_nodelay(true).expect("a TCP socket");
            for byte in good_hello() {
                raw.send(&[byte]).await;
                tokio::task::yield_now().await;
            }
            raw.read_hello().await
        });
        assert_eq!(answer.await, None, "not refused");
        server.stop().await;
    });
}

#[test]
fn a_hello_that_trickles_is_cut_off_although_it_is_never_silent() {
    story(async {
        let server = Running::with(Server::builder().handshake_timeout(Duration::from_millis(100))).await;
        let client = server.client().await;
        let said = served_during(&client, async {
            let mut raw = Raw::connect(&server.text()).await;
            let mut pace = tokio::time::interval(Duration::from_millis(20));
            for byte in good_hello() {
                pace.tick().await;
                if raw.0.write_all(&[byte]).await.is_err() {
                    break;
                }
            }
            raw.until_cut().await
        });
        assert!(said.await.is_empty(), "whoever needs 600 ms for a hello gets no answer");
        server.stop().await;
    });
}

#[test]
fn a_version_that_nobody_speaks_is_refused_with_both_versions() {
    story(async {
        let refusal = refusal_of(&hello(9, 7, 0)).await;
        assert!(refusal.contains("versions 7 to 9") && refusal.contains("version 1"), "{refusal}");
    });
}

#[test]
fn a_hello_with_an_absurd_extension_is_refused_before_it_is_read() {
    story(async {
        let refusal = refusal_of(&hello(1, 1, u32::MAX)).await;
        assert!(refusal.contains("extension of more than 4,096 bytes"), "{refusal}");
        let mut long = hello(1, 1, 1 << 20);
        long.extend(vec![0; 1 << 20]);
        let server = Running::start().await;
        let mut raw = Raw::connect(&server.text()).await;
        // The server may stop reading in the middle.
        let _ = raw.0.write_all(&long).await;
        raw.until_cut().await;
        served(&server.client().await).await;
        server.stop().await;
    });
}

#[test]
fn a_hello_that_accepts_nothing_is_refused() {
    story(async {
        let mut nothing = good_hello();
        nothing[16..20].fill(0); // largest message
        let refusal = refusal_of(&nothing).await;
        assert!(refusal.contains("a limit of zero"), "{refusal}");
    });
}

#[test]
fn a_connection_too_many_is_refused_with_the_reason() {
    story(async {
        let server = Running::with(Server::builder().max_connections(2)).await;
        let client = server.client().await;
        let second = server.client().await;
        served_during(&client, async {
            let mut raw = Raw::connect(&server.text()).await;
            let refusal = raw.read_hello().await.expect("a refusal");
            assert_eq!(refusal, "it has as many connections as it allows");
            for _ in 0..50 {
                let error = server.channel().connect().await.expect_err("there is no room").to_string();
                assert!(error.contains("as many connections as it allows"), "{error}");
            }
        })
        .await;
        drop(second);
        // A place is free as soon as the server has noticed.
        let third = loop {
            if let Ok(channel) = server.channel().connect().await {
                break EchoClient::new(channel);
            }
        };
        served(&third).await;
        server.stop().await;
    });
}

#[test]
fn a_connection_too_many_is_refused_with_the_reason_over_a_unix_socket_too() {
    story(async {
        let path = std::env::temp_dir().join(format!("byway-refused-{}.sock", std::process::id()));
        let address = byway::Address::Unix(path);
        let server = Running::at(address.clone(), Server::builder().max_connections(1)).await;
        let client = server.client().await;
        for _ in 0..50 {
            let error = Channel::builder(address.clone()).connect().await.expect_err("no room").to_string();
            assert!(error.contains("as many connections as it allows"), "{error}");
        }
        served(&client).await;
        server.stop().await;
    });
}
