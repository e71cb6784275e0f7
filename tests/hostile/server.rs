//! Servers that break the protocol: a channel's calls end with a clear reason, and nothing hangs.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use byway::{Channel, Code};
use byway_test_support::test::v1::echo_client::EchoClient;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::harness::{impatient, soon, story, story_on_one_thread, text};
use crate::raw::*;

/// A listener that does `script` to every connection.
struct Scripted {
    address: String,
    accepted: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Scripted {
    async fn start<F, Fut>(script: F) -> Self
    where
        F: Fn(Raw) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&accepted);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _): (TcpStream, _) = listener.accept().await.expect("a connection");
                count.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(script(Raw(stream)));
            }
        });
        Self { address, accepted, task }
    }

    /// Answers every hello and then the first frame with `bytes`, and reads on until the client closes.
    async fn answering(bytes: Vec<u8>) -> Self {
        let bytes: Arc<[u8]> = bytes.into();
        Self::start(move |mut raw| {
            let bytes = Arc::clone(&bytes);
            async move {
                raw.welcome().await;
                if raw.next_frame().await.is_some() {
                    raw.send(&bytes).await;
                    raw.until_cut().await;
                }
            }
        })
        .await
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Why a channel does not connect to a server that sends `bytes` first, and closes.
async fn reason_after(bytes: Vec<u8>) -> String {
    let bytes: Arc<[u8]> = bytes.into();
    let server = Scripted::start(move |mut raw| {
        let bytes = Arc::clone(&bytes);
        async move {
            let _ = raw.0.write_all(&bytes).await;
        }
    })
    .await;
    soon(Channel::connect(&server.address)).await.expect_err("it is no byway server").to_string()
}

#[test]
fn a_server_that_is_none_is_named_as_what_it_said() {
    story(async {
        let reason = reason_after(b"SSH-2.0-OpenSSH_9.9\r\n".to_vec()).await;
        assert!(reason.contains("does not speak byway's protocol"), "{reason}");
        assert!(reason.contains("SSH-2.0-OpenSSH_9.9"), "{reason}");
        let reason = reason_after(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n".to_vec()).await;
        assert!(reason.contains("HTTP/1.1 400 Bad Request"), "{reason}");
        assert!(reason.contains("nor is it a gRPC server"), "{reason}");
        let reason = reason_after(vec![0; 100_000]).await;
        assert!(reason.len() < 1000, "not the whole of it");
    });
}

#[test]
fn a_hello_that_is_not_whole_valid_or_understood_is_named() {
    story(async {
        for len in [0, 1, 31] {
            let reason = reason_after(good_hello()[..len].to_vec()).await;
            assert!(reason.contains("closed the connection before it said hello"), "{reason}");
        }
        let reason = reason_after(hello(9, 7, 0)).await;
        assert!(reason.contains("versions 7 to 9"), "{reason}");
        let reason = reason_after(hello(1, 1, 1 << 30)).await;
        assert!(reason.contains("extension"), "{reason}");
        let mut refusal = hello(1, 1, 9);
        refusal[28] = 1;
        refusal.extend(b"not today");
        let reason = reason_after(refusal).await;
        assert!(reason.contains("refused the connection: not today"), "{reason}");
    });
}

#[test]
fn a_server_that_never_answers_costs_the_connect_timeout() {
    story(async {
        let server = Scripted::start(|mut raw| async move {
            raw.until_cut().await;
        })
        .await;
        let limit = Duration::from_millis(100);
        let channel = Channel::builder(server.address.as_str()).connect_timeout(limit);
        let error = soon(channel.clone().connect()).await.expect_err("no hello").to_string();
        assert!(error.contains("took longer than 100ms: is a byway server listening there?"), "{error}");
        let client = EchoClient::new(channel.connect_lazy().expect("an address"));
        let status = soon(client.unary(text("x"))).await.expect_err("no hello");
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("took longer than 100ms"), "{status}");
    });
}

#[test]
fn a_server_that_breaks_the_protocol_costs_its_calls_and_is_told() {
    let first = call(0, 1);
    let offences: Vec<(&str, Vec<u8>, &str)> = vec![
        ("a call", frame(OPEN, HEAD | END, first, &path("/a/b"), &[]), "a call came from the wrong side"),
        (
            "a reply for no call",
            frame(DATA, END, call(7, 1), &[], &[]),
            "call 0x10007, which was never opened",
        ),
        ("a reply for a call to come", frame(DATA, END, call(0, 2), &[], &[]), "which was never opened"),
        ("a reset of no call", frame(RESET, 0, call(7, 1), &[0], &[]), "which was never opened"),
        ("a message before its head", frame(DATA, MESSAGE, first, &[], b"x"), "does not allow in its state"),
        (
            "two ends",
            [frame(DATA, HEAD, first, &[], &[]), frame(DATA, HEAD, first, &[], &[])].concat(),
            "does not allow in its state",
        ),
        (
            "an oversize reply",
            header(DATA, HEAD | MESSAGE, first, 0, u32::MAX),
            "a message of 4294967295 bytes",
        ),
        ("an unknown kind", frame(200, 0, 0, &[], &[]), "unknown frame kind 200"),
        ("a malformed head", frame(DATA, HEAD | END, first, &[9, 9], &[]), "a head that cannot be read"),
        ("an absurd window", frame(WINDOW, 0, first, &[0xff; 4], &[]), "a window of more than 4 GiB"),
        ("a farewell", frame(CLOSE, 0, 0, b"closing time", &[]), "the peer closed it: closing time"),
        ("garbage", vec![0xff; 5000], "unknown frame kind 255"),
    ];
    story(async {
        for (name, offence, expected) in offences {
            let server = Scripted::answering(offence).await;
            let client = EchoClient::new(Channel::connect(&server.address).await.expect("a connection"));
            // The second call comes by a new connection, and fares no better.
            for _ in 0..2 {
                let status = soon(client.unary(text("x"))).await.expect_err(name);
                assert_eq!(status.code(), Code::Unavailable, "{name}: {status}");
                assert!(status.message().contains(expected), "{name}: {status}");
            }
            assert_eq!(server.accepted(), 2, "{name}: one connection for each call");
        }
    });
}

#[test]
fn the_offending_server_is_told_what_it_did() {
    story(async {
        let (told, mut hears) = tokio::sync::mpsc::unbounded_channel();
        let server = Scripted::start(move |mut raw| {
            let told = told.clone();
            async move {
                raw.welcome().await;
                raw.next_frame().await.expect("a call");
                raw.send(&frame(DATA, END, call(7, 1), &[], &[])).await;
                let _ = told.send(raw.closing_words().await);
            }
        })
        .await;
        let client = EchoClient::new(Channel::connect(&server.address).await.expect("a connection"));
        soon(client.unary(text("x"))).await.expect_err("the connection is over");
        let words = soon(hears.recv()).await.expect("words");
        assert!(words.contains("a frame for call 0x10007, which was never opened"), "{words}");
    });
}

#[test]
fn a_server_that_goes_in_the_middle_of_a_reply_costs_the_call() {
    let reply = frame(DATA, HEAD | MESSAGE | END, call(0, 1), &[], &[0; 100_000]);
    story(async {
        for len in [0, 5, 12, 50_000] {
            for reset in [false, true] {
                let part: Arc<[u8]> = reply[..len].into();
                let server = Scripted::start(move |mut raw| {
                    let part = Arc::clone(&part);
                    async move {
                        raw.welcome().await;
                        raw.next_frame().await.expect("a call");
                        raw.send(&part).await;
                        if reset {
                            raw.reset();
                        }
                    }
                })
                .await;
                let client = EchoClient::new(Channel::connect(&server.address).await.expect("a connection"));
                let status = soon(client.unary(text("x"))).await.expect_err("half a reply");
                assert_eq!(status.code(), Code::Unavailable, "{len} bytes, reset {reset}: {status}");
            }
        }
    });
}

#[test]
fn a_server_that_falls_silent_in_the_middle_of_a_reply_is_given_up() {
    let reply = frame(DATA, HEAD | MESSAGE | END, call(0, 1), &[], &[0; 100_000]);
    story(async {
        let server = Scripted::answering(reply[..50_000].to_vec()).await;
        let channel = Channel::builder(server.address.as_str()).keepalive(impatient()).connect().await;
        let client = EchoClient::new(channel.expect("a connection"));
        let status = soon(client.unary(text("x"))).await.expect_err("half a reply");
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("silent and does not answer a ping"), "{status}");
    });
}

#[test]
fn unknown_codes_are_no_reason_to_fail_more_than_the_call() {
    story(async {
        let server = Scripted::answering(frame(RESET, 0, call(0, 1), &[77], &[])).await;
        let client = EchoClient::new(Channel::connect(&server.address).await.expect("a connection"));
        let status = soon(client.unary(text("x"))).await.expect_err("a reset");
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("77"), "{status}");
        let server = Scripted::answering(frame(DATA, END, call(0, 1), &[99, 0, 0, 0], &[])).await;
        let client = EchoClient::new(Channel::connect(&server.address).await.expect("a connection"));
        let status = soon(client.unary(text("x"))).await.expect_err("a status");
        assert_eq!(status.code(), Code::Unknown);
    });
}

#[test]
fn a_server_that_drains_every_connection_at_once_does_not_keep_a_call_forever() {
    story_on_one_thread(async {
        let server = Scripted::start(|mut raw| async move {
            assert_eq!(raw.read_hello().await, None);
            raw.send(&[good_hello(), frame(DRAIN, 0, 0, &[], &[])].concat()).await;
            while let Some(frame) = raw.next_frame().await {
                if frame.kind == OPEN {
                    let refused = crate::raw::frame(RESET, 0, frame.call, &[1], &[]);
                    raw.send(&refused).await;
                }
            }
        })
        .await;
        for _ in 0..100 {
            let before = server.accepted();
            let channel = Channel::builder(server.address.as_str()).connect_lazy().expect("an address");
            let status =
                soon(EchoClient::new(channel).unary(text("x"))).await.expect_err("it is never taken");
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            let connections = server.accepted() - before;
            assert!(connections <= 10, "{connections} connections for one call");
        }
    });
}
