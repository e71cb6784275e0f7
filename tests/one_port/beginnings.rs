//! How a connection begins, on a server without a service for HTTP/1.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use byway::{Server, ServerBuilder};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

use crate::harness::{Running, served, served_during, soon, story};
use crate::raw::Raw;
use crate::wire::Wire;

/// What begins every connection of HTTP/2, and the empty SETTINGS frame that completes it.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

/// A server that gives nobody time to think.
pub(crate) fn hasty() -> ServerBuilder {
    Server::builder().handshake_timeout(Duration::from_millis(100))
}

/// Sends `bytes` one by one, more slowly than a hasty server has patience for all of them, and says what came back when
/// it had none any more.
pub(crate) async fn trickled(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut raw = Raw::connect(address).await;
    raw.0.set_nodelay(true).expect("a TCP socket");
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    for byte in bytes {
        pace.tick().await;
        // The server may have seen enough before the end.
        if raw.0.write_all(&[*byte]).await.is_err() {
            break;
        }
    }
    raw.until_cut().await
}

/// Sends `bytes` and nothing more, and says what came back until the server had no patience any more.
pub(crate) async fn then_silent(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut raw = Raw::connect(address).await;
    raw.send(bytes).await;
    raw.until_cut().await
}

/// Whether an answer is that of a server to a request which it has not read.
pub(crate) fn assert_refused_or_nothing(answer: &[u8]) {
    let text = String::from_utf8_lossy(answer);
    assert!(answer.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
}

/// Every kind of client is served by one port, at once.
#[test]
fn byway_and_grpc_share_a_port() {
    story(async {
        let server = Running::start().await;
        let client = server.client().await;
        let mut wire = Wire::connect(&server.text()).await;
        let grpc = byway::Channel::builder(format!("grpc://{}", server.text())).connect();
        let grpc = soon(grpc).await.expect("a connection");
        let stock = tonic::transport::Endpoint::from_shared(format!("http://{}", server.text()));
        let stock = soon(stock.expect("a URI").connect()).await.expect("a connection");
        for _ in 0..3 {
            served(&client).await;
            soon(wire.serves()).await.expect("a good call");
            served(&byway_test_support::test::v1::echo_client::EchoClient::new(grpc.clone())).await;
            let mut stock = byway_test_support::shared::test::v1::echo_client::EchoClient::new(stock.clone());
            let reply = soon(stock.unary(crate::harness::text("stock"))).await.expect("a reply");
            assert_eq!(reply.get_ref().text, "stock");
        }
        assert!(grpc.path().to_string().starts_with("grpc"), "{}", grpc.path());
        drop((wire, grpc, stock));
        server.stop().await;
    });
}

/// A channel that was told nothing speaks byway's framing to a byway server, whatever else its port speaks.
#[test]
fn a_channel_of_its_own_choice_takes_byways_framing() {
    story(async {
        let server = Running::start().await;
        let channel = soon(server.channel().connect()).await.expect("a connection");
        assert!(channel.path().to_string().starts_with("tcp"), "{}", channel.path());
        drop(channel);
        server.stop().await;
    });
}

#[test]
fn an_http_1_client_is_told_what_the_port_speaks() {
    let requests = [
        "GET /info HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "HEAD / HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "POST /test.v1.Echo/Unary HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/grpc\r\n\
            content-length: 5\r\n\r\n\0\0\0\0\0",
    ];
    story(async {
        let server = Running::start().await;
        let client = server.client().await;
        for request in requests {
            let answer = served_during(&client, then_silent(&server.text(), request.as_bytes())).await;
            let answer = String::from_utf8(answer).expect("text");
            assert!(answer.starts_with("HTTP/1.1 4") || answer.starts_with("HTTP/1.0 4"), "{answer}");
            if !request.starts_with("HEAD") {
                let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
                assert!(body.contains("gRPC") && body.contains("byway"), "{answer}");
            }
        }
        server.stop().await;
    });
}

/// The prefix of a preface is that of no other protocol, and may come in any pieces.
#[test]
fn an_http_2_client_may_send_byte_by_byte() {
    story(async {
        let server = Running::start().await;
        let stream = soon(TcpStream::connect(server.text())).await.expect("the server accepts");
        stream.set_nodelay(true).expect("a TCP socket");
        let mut wire = Wire::over(Drops(stream)).await;
        soon(wire.serves()).await.expect("a good call");
        drop(wire);
        server.stop().await;
    });
}

#[test]
fn a_preface_that_trickles_is_cut_off_although_it_is_never_silent() {
    story(async {
        let server = Running::with(hasty()).await;
        let client = server.client().await;
        served_during(&client, trickled(&server.text(), &[PREFACE, SETTINGS].concat())).await;
        server.stop().await;
    });
}

#[test]
fn a_preface_that_is_not_completed_is_cut_off() {
    story(async {
        let server = Running::with(hasty()).await;
        let client = server.client().await;
        // Its end is missing; or, in the last one, the SETTINGS that belong to it.
        for part in [1, 3, 4, 14, PREFACE.len() - 1, PREFACE.len()] {
            served_during(&client, then_silent(&server.text(), &PREFACE[..part])).await;
        }
        let half = [PREFACE, &SETTINGS[..5]].concat();
        served_during(&client, then_silent(&server.text(), &half)).await;
        server.stop().await;
    });
}

#[test]
fn a_preface_that_turns_into_something_else_is_cut_off() {
    story(async {
        let server = Running::start().await;
        let client = server.client().await;
        for first in
            ["PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", "PRIVATE / HTTP/1.1\r\n\r\n", "PRI * HTTP/3.0\r\n\r\n"]
        {
            let answer = served_during(&client, then_silent(&server.text(), first.as_bytes())).await;
            // As HTTP/1 it has no method that anybody knows; as HTTP/2 it may be told so by GOAWAY.
            let text = String::from_utf8_lossy(&answer);
            assert!(!text.starts_with("HTTP/1.1 2"), "{text}");
        }
        server.stop().await;
    });
}

#[test]
fn an_http_1_request_that_trickles_or_stops_is_cut_off() {
    let request = b"GET /info HTTP/1.1\r\nhost: localhost\r\n\r\n";
    story(async {
        let server = Running::with(hasty()).await;
        let client = server.client().await;
        let answer = served_during(&client, trickled(&server.text(), request)).await;
        assert_refused_or_nothing(&answer);
        for part in [1, 3, 10, request.len() - 1] {
            let answer = served_during(&client, then_silent(&server.text(), &request[..part])).await;
            assert_refused_or_nothing(&answer);
        }
        server.stop().await;
    });
}

/// A stream that takes one byte at a time.
struct Drops(TcpStream);

impl AsyncRead for Drops {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Drops {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let few = bytes.len().min(1);
        Pin::new(&mut self.0).poll_write(cx, &bytes[..few])
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
