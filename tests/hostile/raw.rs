//! A peer that sends what it likes.
//!
//! Owns the bytes of hellos and frames, written down a second time from docs/wire.md and not taken from the product,
//! and [`Raw`], a socket that sends and reads them.
#![allow(dead_code, reason = "each suite uses a part of it")]

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::soon;

pub(crate) const OPEN: u8 = 1;
pub(crate) const DATA: u8 = 2;
pub(crate) const RESET: u8 = 3;
pub(crate) const WINDOW: u8 = 4;
pub(crate) const PING: u8 = 5;
pub(crate) const PONG: u8 = 6;
pub(crate) const DRAIN: u8 = 7;
pub(crate) const CLOSE: u8 = 8;

pub(crate) const HEAD: u8 = 1;
pub(crate) const MESSAGE: u8 = 2;
pub(crate) const END: u8 = 4;

/// A hello with generous limits, of any version and extension.
pub(crate) fn hello(version: u16, oldest: u16, extension_len: u32) -> Vec<u8> {
    let mut bytes = b"BYWAY\r\n\0".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(oldest.to_le_bytes());
    bytes.extend(extension_len.to_le_bytes());
    bytes.extend((64u32 << 20).to_le_bytes()); // largest message
    bytes.extend(u32::MAX.to_le_bytes()); // window
    bytes.extend(1024u16.to_le_bytes()); // calls
    bytes.extend((16u16 << 10).to_le_bytes()); // largest head
    bytes.extend(0u32.to_le_bytes()); // flags
    bytes
}

/// The hello of a well-behaved peer.
pub(crate) fn good_hello() -> Vec<u8> {
    hello(1, 1, 0)
}

/// A frame.
pub(crate) fn frame(kind: u8, flags: u8, call: u32, head: &[u8], body: &[u8]) -> Vec<u8> {
    let mut bytes = header(kind, flags, call, head.len() as u16, body.len() as u32);
    bytes.extend(head);
    bytes.extend(body);
    bytes
}

/// The first twelve bytes of a frame.
pub(crate) fn header(kind: u8, flags: u8, call: u32, head_len: u16, body_len: u32) -> Vec<u8> {
    let mut bytes = vec![kind, flags];
    bytes.extend(head_len.to_le_bytes());
    bytes.extend(call.to_le_bytes());
    bytes.extend(body_len.to_le_bytes());
    bytes
}

/// The call in this slot, for the time that the slot is used.
pub(crate) fn call(slot: u16, generation: u16) -> u32 {
    u32::from(generation) << 16 | u32::from(slot)
}

/// The head of a request without time-out and metadata.
pub(crate) fn path(path: &str) -> Vec<u8> {
    let mut head = vec![path.len() as u8];
    head.extend(path.as_bytes());
    head.extend([0, 0]);
    head
}

/// A call with one request, whole.
pub(crate) fn request(call: u32, method: &str, message: &[u8]) -> Vec<u8> {
    frame(OPEN, HEAD | MESSAGE | END, call, &path(&format!("/test.v1.Echo/{method}")), message)
}

/// A frame that was read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) call: u32,
    pub(crate) head: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

/// A socket without manners.
pub(crate) struct Raw(pub(crate) TcpStream);

impl Raw {
    /// As a server: exchanges hellos.
    pub(crate) async fn welcome(&mut self) {
        assert_eq!(self.read_hello().await, None);
        self.send(&good_hello()).await;
    }

    pub(crate) async fn connect(address: &str) -> Self {
        Self(soon(TcpStream::connect(address)).await.expect("the server accepts"))
    }

    /// A connection on which hellos were exchanged.
    pub(crate) async fn greeted(address: &str) -> Self {
        let mut raw = Self::connect(address).await;
        raw.send(&good_hello()).await;
        raw.read_hello().await;
        raw
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        soon(self.0.write_all(bytes)).await.expect("the peer still reads");
    }

    /// Reads a hello; the text of a refusal, if it is one.
    pub(crate) async fn read_hello(&mut self) -> Option<String> {
        let mut fixed = [0; 32];
        soon(self.0.read_exact(&mut fixed)).await.expect("a hello");
        assert_eq!(&fixed[..8], b"BYWAY\r\n\0");
        let extension_len = u32::from_le_bytes(fixed[12..16].try_into().expect("four bytes"));
        let mut extension = vec![0; extension_len as usize];
        soon(self.0.read_exact(&mut extension)).await.expect("the hello's extension");
        let refused = fixed[28] == 1;
        refused.then(|| String::from_utf8(extension).expect("text"))
    }

    /// The next frame; `None` once the peer has closed or cut the connection.
    pub(crate) async fn next_frame(&mut self) -> Option<Received> {
        let mut header = [0; 12];
        match soon(self.0.read_exact(&mut header)).await {
            Ok(_) => {}
            Err(error) if is_cut(&error) => return None,
            Err(error) => panic!("reading failed: {error}"),
        }
        let head_len = u16::from_le_bytes([header[2], header[3]]);
        let call = u32::from_le_bytes(header[4..8].try_into().expect("four bytes"));
        let body_len = u32::from_le_bytes(header[8..12].try_into().expect("four bytes"));
        let mut head = vec![0; usize::from(head_len)];
        soon(self.0.read_exact(&mut head)).await.expect("the frame's head");
        let mut body = vec![0; body_len as usize];
        soon(self.0.read_exact(&mut body)).await.expect("the frame's body");
        Some(Received { kind: header[0], flags: header[1], call, head, body })
    }

    /// Reads until the peer says why it closes the connection, and closes it.
    pub(crate) async fn closing_words(&mut self) -> String {
        loop {
            let frame = self.next_frame().await.expect("a frame that says why");
            if frame.kind == CLOSE {
                assert_eq!(self.next_frame().await, None, "nothing follows");
                return String::from_utf8(frame.head).expect("text");
            }
        }
    }

    /// Everything up to the end, whether the peer closed or reset the connection.
    pub(crate) async fn until_cut(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match soon(self.0.read_to_end(&mut bytes)).await {
            Ok(_) => {}
            Err(error) if is_cut(&error) => {}
            Err(error) => panic!("reading failed: {error}"),
        }
        bytes
    }

    /// Closes with a reset instead of an orderly end.
    pub(crate) fn reset(self) {
        self.0.set_zero_linger().expect("a TCP socket");
    }
}

fn is_cut(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}
