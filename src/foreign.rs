//! Peers that do not speak byway's own framing: which protocol it is, and who answers.
//!
//! gRPC over HTTP/2 goes to the services, other HTTP to the user's HTTP service if there is one; everybody else is told, in
//! their own protocol where that is possible, what this port speaks. Never: reads more than it needs to know.

use std::io;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::listener::Stream;

/// What every client of HTTP/2 sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What a peer speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Its whole preface was read.
    Http2,
    /// Its first bytes may be those of an HTTP/1 request.
    Http1,
    /// It wants TLS.
    Tls,
    /// None that is known here, or it has gone.
    Unknown,
}

/// Finds out what a peer speaks whose `first` bytes, at least one, were read. Its caller limits the time.
///
/// # Errors
/// The stream failed.
pub(crate) async fn recognise<S: Stream>(stream: &mut S, first: &mut BytesMut) -> io::Result<Protocol> {
    loop {
        let seen = first.len().min(PREFACE.len());
        if first[..seen] != PREFACE[..seen] {
            return Ok(match first.first() {
                // A record of the handshake.
                Some(0x16) => Protocol::Tls,
                Some(byte) if byte.is_ascii_uppercase() => Protocol::Http1,
                _ => Protocol::Unknown,
            });
        }
        if seen == PREFACE.len() {
            return Ok(Protocol::Http2);
        }
        if stream.read_buf(first).await? == 0 {
            return Ok(Protocol::Unknown);
        }
    }
}

/// Tells a peer that nobody here speaks its protocol, and closes. Its caller limits the time.
///
/// # Errors
/// The stream failed.
pub(crate) async fn turn_away<S: Stream>(mut stream: S, protocol: Protocol) -> io::Result<()> {
    let answer: &[u8] = match protocol {
        Protocol::Http2 => NO_HTTP2,
        Protocol::Http1 => NO_HTTP1,
        Protocol::Tls | Protocol::Unknown => b"",
    };
    stream.write_all(answer).await?;
    stream.shutdown().await
}

/// An empty SETTINGS frame, then GOAWAY with last stream 0, code HTTP_1_1_REQUIRED (13) and a text of 58 bytes.
const NO_HTTP2: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\x42\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0d\
    this port speaks byway's own framing, not gRPC over HTTP/2";

#[cfg(feature = "grpc")]
const NO_HTTP1: &[u8] = b"HTTP/1.1 426 Upgrade Required\r\ncontent-type: text/plain\r\nupgrade: h2c\r\n\
    connection: upgrade, close\r\ncontent-length: 68\r\n\r\n\
    this port speaks gRPC over HTTP/2 and byway's own framing, not HTTP\n";
#[cfg(not(feature = "grpc"))]
const NO_HTTP1: &[u8] = b"HTTP/1.1 501 Not Implemented\r\ncontent-type: text/plain\r\n\
    content-length: 47\r\nconnection: close\r\n\r\nthis port speaks byway's own framing, not HTTP\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn protocols_are_told_apart_however_their_first_bytes_come() {
        let cases: [(&[u8], Protocol); 7] = [
            (PREFACE, Protocol::Http2),
            (b"GET / HTTP/1.1\r\n", Protocol::Http1),
            (b"PROPFIND / HTTP/1.1\r\n", Protocol::Http1),
            (b"PRI * HTTP/1.1\r\n", Protocol::Http1),
            (b"PRI * HTTP", Protocol::Unknown),
            (b"\x16\x03\x01\x02\x00", Protocol::Tls),
            (b"\0\0\0\0", Protocol::Unknown),
        ];
        for (bytes, protocol) in cases {
            for cut in 1..bytes.len() {
                let (mut near, mut far) = tokio::io::duplex(1024);
                far.write_all(&bytes[cut..]).await.expect("there is room");
                drop(far);
                let mut first = BytesMut::from(&bytes[..cut]);
                let found = recognise(&mut near, &mut first).await.expect("no failure");
                assert_eq!(found, protocol, "{} cut at {cut}", bytes.escape_ascii());
            }
        }
    }

    #[tokio::test]
    async fn peers_that_speak_http_are_told_in_their_own_protocol() {
        let http2 = answer(Protocol::Http2).await;
        let (settings, goaway) = http2.split_at(9);
        assert_eq!(settings, [0, 0, 0, 4, 0, 0, 0, 0, 0]);
        let length = usize::from(goaway[0]) << 16 | usize::from(goaway[1]) << 8 | usize::from(goaway[2]);
        assert_eq!(goaway.len(), 9 + length, "the frame has the length that it announces");
        let http1 = answer(Protocol::Http1).await;
        let text = String::from_utf8(http1).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{head} {}", body.len());
        assert!(answer(Protocol::Tls).await.is_empty());
    }

    async fn answer(protocol: Protocol) -> Vec<u8> {
        let (near, mut far) = tokio::io::duplex(1024);
        turn_away(near, protocol).await.expect("the other end reads");
        let mut answer = Vec::new();
        far.read_to_end(&mut answer).await.expect("it was closed");
        answer
    }
}
