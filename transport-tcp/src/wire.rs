//! A stream under hyper.
//!
//! Owns [`Wire`]: a stream of which the first bytes were read already, and for clients [`FrameWatch`], which looks at the
//! frames of HTTP/2 as they pass. hyper tells neither that the peer speaks HTTP/2 at all, nor how many calls it allows,
//! nor that it takes no more: they are in the frames SETTINGS and GOAWAY. Never: changes or holds back a byte.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of a frame's header: length, type, flags and stream.
const HEADER_LEN: usize = 9;

const SETTINGS: u8 = 0x4;
const GOAWAY: u8 = 0x7;
const ACK: u8 = 0x1;
const MAX_CONCURRENT_STREAMS: u16 = 0x3;

/// Payload of one frame that is looked at: all settings there are, or a GOAWAY with a sentence.
const KEEP: usize = 256;

/// What a frame of the peer said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    /// The peer's first frame is none of HTTP/2; these are its first bytes.
    NotHttp2([u8; HEADER_LEN]),
    /// The peer's settings: how many calls it allows at once, where it says so.
    Settings(Option<u32>),
    /// The peer takes no more calls: an error code, and a text that may be empty.
    GoAway(u32, String),
}

/// Looks at the frames that a peer sends.
pub(crate) struct FrameWatch {
    tell: Box<dyn FnMut(Sign) + Send>,
    header: [u8; HEADER_LEN],
    /// Bytes of the header that are there.
    filled: usize,
    /// Bytes of the payload that are still to come.
    left: usize,
    payload: Vec<u8>,
    /// Whether the first frame has been seen.
    begun: bool,
    /// Whether what follows is not understood.
    lost: bool,
}

impl FrameWatch {
    pub(crate) fn new(tell: impl FnMut(Sign) + Send + 'static) -> Self {
        Self {
            tell: Box::new(tell),
            header: [0; HEADER_LEN],
            filled: 0,
            left: 0,
            payload: Vec::new(),
            begun: false,
            lost: false,
        }
    }

    fn see(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.lost {
            if self.filled < HEADER_LEN {
                let count = bytes.len().min(HEADER_LEN - self.filled);
                self.header[self.filled..self.filled + count].copy_from_slice(&bytes[..count]);
                self.filled += count;
                bytes = &bytes[count..];
                if self.filled < HEADER_LEN {
                    return;
                }
                self.begin();
            }
            let count = bytes.len().min(self.left);
            if matches!(self.header[3], SETTINGS | GOAWAY) {
                let kept = count.min(KEEP - self.payload.len());
                self.payload.extend_from_slice(&bytes[..kept]);
            }
            self.left -= count;
            bytes = &bytes[count..];
            if self.left == 0 {
                self.finish();
            }
        }
    }

    /// A header is complete.
    fn begin(&mut self) {
        let [a, b, c, kind, _, stream @ ..] = self.header;
        self.left = u32::from_be_bytes([0, a, b, c]) as usize;
        if !self.begun && (kind != SETTINGS || stream != [0; 4]) {
            self.lost = true;
            (self.tell)(Sign::NotHttp2(self.header));
        }
        self.begun = true;
    }

    /// A frame is complete.
    fn finish(&mut self) {
        self.filled = 0;
        match self.header[3] {
            SETTINGS if self.header[4] & ACK == 0 => {
                let entries = self.payload.chunks_exact(6);
                let value = entries.filter_map(|entry| match entry {
                    [a, b, value @ ..] if u16::from_be_bytes([*a, *b]) == MAX_CONCURRENT_STREAMS => {
                        value.try_into().ok().map(u32::from_be_bytes)
                    }
                    _ => None,
                });
                let value = value.last();
                (self.tell)(Sign::Settings(value));
            }
            GOAWAY => {
                if let Some((fixed, text)) = self.payload.split_first_chunk::<8>() {
                    let [_, _, _, _, code @ ..] = *fixed;
                    let text = String::from_utf8_lossy(text).into_owned();
                    (self.tell)(Sign::GoAway(u32::from_be_bytes(code), text));
                }
            }
            _ => {}
        }
        self.payload.clear();
    }
}

/// A stream, with what was read of it before.
pub(crate) struct Wire<S> {
    io: S,
    first: Bytes,
    watch: Option<FrameWatch>,
}

impl<S> Wire<S> {
    /// A stream of which `first` was read already.
    pub(crate) fn after(first: Bytes, io: S) -> Self {
        Self { io, first, watch: None }
    }

    /// A stream whose frames are looked at.
    pub(crate) fn watched(io: S, watch: FrameWatch) -> Self {
        Self { io, first: Bytes::new(), watch: Some(watch) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Wire<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.first.is_empty() {
            let count = this.first.len().min(buffer.remaining());
            buffer.put_slice(&this.first[..count]);
            this.first.advance(count);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.io).poll_read(cx, buffer);
        if let Some(watch) = &mut this.watch {
            watch.see(&buffer.filled()[before..]);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags, 0, 0, 0, 0]);
        bytes.extend(payload);
        bytes
    }

    fn signs(bytes: &[u8], step: usize) -> Vec<Sign> {
        let (tell, told) = mpsc::channel();
        let mut watch = FrameWatch::new(move |sign| tell.send(sign).expect("the test listens"));
        bytes.chunks(step).for_each(|piece| watch.see(piece));
        drop(watch);
        told.iter().collect()
    }

    #[test]
    fn settings_and_goaway_are_seen_however_they_come() {
        let mut stream = frame(SETTINGS, 0, &[0, 4, 0, 0, 1, 0, 0, 3, 0, 0, 0, 250]);
        stream.extend(frame(SETTINGS, ACK, &[]));
        stream.extend(frame(0, 0, &[7; 5000]));
        stream.extend(frame(SETTINGS, 0, &[]));
        stream.extend(frame(GOAWAY, 0, b"\0\0\0\x01\0\0\0\x0benough"));
        for step in [1, 2, 9, 10, 4096, stream.len()] {
            let expected =
                [Sign::Settings(Some(250)), Sign::Settings(None), Sign::GoAway(11, "enough".to_owned())];
            assert_eq!(signs(&stream, step), expected, "in steps of {step}");
        }
    }

    #[test]
    fn a_peer_that_speaks_something_else_is_noticed_once() {
        let answer = b"HTTP/1.1 400 Bad Request\r\n\r\n";
        assert_eq!(signs(answer, 5), [Sign::NotHttp2(*b"HTTP/1.1 ")]);
    }

    #[test]
    fn frames_of_any_length_are_followed_without_being_kept() {
        let mut watch = FrameWatch::new(|_| {});
        watch.see(&frame(SETTINGS, 0, &[0; 6]));
        watch.see(&frame(GOAWAY, 0, &[b'a'; 10_000])[..9000]);
        assert!(watch.payload.capacity() <= 2 * KEEP, "{}", watch.payload.capacity());
    }
}
