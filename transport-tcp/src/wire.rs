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
const MAX_HEADER_LIST_SIZE: u16 = 0x6;

/// Payload of one frame that is looked at: all settings there are, or a GOAWAY with a sentence.
const KEEP: usize = 256;

/// What a frame of the peer said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    /// The peer's first frame is none of HTTP/2; these are its first bytes.
    NotHttp2([u8; HEADER_LEN]),
    /// The peer's settings.
    Settings(Settings),
    /// The peer takes no more calls: an error code, and a text that may be empty.
    GoAway(u32, String),
}

/// What the peer's settings say; `None` where they say nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    /// How many calls it allows at once.
    pub(crate) calls: Option<u32>,
    /// How large the headers of one message may be, in bytes, with 32 for each.
    pub(crate) headers: Option<u32>,
}

impl Settings {
    fn read(payload: &[u8]) -> Self {
        let mut settings = Self::default();
        for entry in payload.chunks_exact(6) {
            let [a, b, value @ ..] = entry else { continue };
            let value = value.try_into().ok().map(u32::from_be_bytes);
            match u16::from_be_bytes([*a, *b]) {
                MAX_CONCURRENT_STREAMS => settings.calls = value,
                MAX_HEADER_LIST_SIZE => settings.headers = value,
                _ => {}
            }
        }
        settings
    }
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

    /// For a server, to which the preface comes before any frame.
    pub(crate) fn after_preface(tell: impl FnMut(Sign) + Send + 'static) -> Self {
        const PREFACE_LEN: usize = 24;
        // As if it were the payload of a frame that says nothing.
        Self { filled: HEADER_LEN, left: PREFACE_LEN, ..Self::new(tell) }
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
                (self.tell)(Sign::Settings(Settings::read(&self.payload)));
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
    /// A stream of which `first` was read already. All of it passes `watch`.
    pub(crate) fn new(first: Bytes, io: S, watch: Option<FrameWatch>) -> Self {
        Self { io, first, watch }
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
            if let Some(watch) = &mut this.watch {
                watch.see(&this.first[..count]);
            }
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
        stream.extend(frame(SETTINGS, 0, &[0, 6, 0, 0, 0, 77]));
        stream.extend(frame(GOAWAY, 0, b"\0\0\0\x01\0\0\0\x0benough"));
        for step in [1, 2, 9, 10, 4096, stream.len()] {
            let settings = Settings { calls: Some(250), headers: None };
            let expected = [
                Sign::Settings(settings),
                Sign::Settings(Settings { headers: Some(77), ..Settings::default() }),
                Sign::GoAway(11, "enough".to_owned()),
            ];
            assert_eq!(signs(&stream, step), expected, "in steps of {step}");
        }
    }

    #[test]
    fn a_peer_that_speaks_something_else_is_noticed_once() {
        let answer = b"HTTP/1.1 400 Bad Request\r\n\r\n";
        assert_eq!(signs(answer, 5), [Sign::NotHttp2(*b"HTTP/1.1 ")]);
    }

    #[test]
    fn a_server_looks_behind_the_preface() {
        let (tell, told) = mpsc::channel();
        let mut watch = FrameWatch::after_preface(move |sign| tell.send(sign).expect("the test listens"));
        watch.see(b"PRI * HTTP/2.0\r\n\r\nSM");
        watch.see(b"\r\n\r\n");
        watch.see(&frame(SETTINGS, 0, &[0, 6, 0, 0, 1, 0]));
        drop(watch);
        let settings = Settings { headers: Some(256), ..Settings::default() };
        assert_eq!(told.iter().collect::<Vec<_>>(), [Sign::Settings(settings)]);
    }

    #[test]
    fn frames_of_any_length_are_followed_without_being_kept() {
        let mut watch = FrameWatch::new(|_| {});
        watch.see(&frame(SETTINGS, 0, &[0; 6]));
        watch.see(&frame(GOAWAY, 0, &[b'a'; 10_000])[..9000]);
        assert!(watch.payload.capacity() <= 2 * KEEP, "{}", watch.payload.capacity());
    }
}
