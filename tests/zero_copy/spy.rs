//! A stream that remembers which memory was written from and read to.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Addresses, in the order in which the socket used them.
#[derive(Default)]
pub(crate) struct Log {
    written: Mutex<Vec<Range<usize>>>,
    read: Mutex<Vec<Range<usize>>>,
}

impl Log {
    /// Memory that the socket took bytes from.
    pub(crate) fn written(&self) -> Vec<Range<usize>> {
        self.written.lock().expect("nobody panics").clone()
    }

    /// Memory that the socket put bytes into.
    pub(crate) fn read(&self) -> Vec<Range<usize>> {
        self.read.lock().expect("nobody panics").clone()
    }
}

/// How many bytes of `ranges` are in `memory`.
pub(crate) fn overlap(ranges: &[Range<usize>], memory: &Range<usize>) -> usize {
    let common =
        |range: &Range<usize>| range.end.min(memory.end).saturating_sub(range.start.max(memory.start));
    ranges.iter().map(common).sum()
}

pub(crate) struct Spy {
    stream: TcpStream,
    log: Arc<Log>,
}

impl Spy {
    pub(crate) fn new(stream: TcpStream, log: Arc<Log>) -> Self {
        stream.set_nodelay(true).expect("a TCP socket");
        Self { stream, log }
    }

    fn note_written(&self, slices: &[IoSlice<'_>], result: &Poll<io::Result<usize>>) {
        let &Poll::Ready(Ok(mut left)) = result else { return };
        let mut written = self.log.written.lock().expect("nobody panics");
        for slice in slices {
            let start = slice.as_ptr() as usize;
            let taken = left.min(slice.len());
            written.push(start..start + taken);
            left -= taken;
        }
    }
}

impl AsyncRead for Spy {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let filled = buffer.filled()[before..].as_ptr_range();
        self.log.read.lock().expect("nobody panics").push(filled.start as usize..filled.end as usize);
        result
    }
}

impl AsyncWrite for Spy {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note_written(&[IoSlice::new(bytes)], &result);
        result
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.note_written(slices, &result);
        result
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
