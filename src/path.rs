//! Which transport a channel is on, and why not a better one.

use std::fmt;
#[cfg(feature = "grpc")]
use std::io;
#[cfg(feature = "grpc")]
use std::pin::Pin;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
#[cfg(feature = "grpc")]
use std::task::{Context, Poll};

#[cfg(feature = "grpc")]
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::error::ConnectError;

/// What a channel may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// The best that both sides have.
    #[default]
    Auto,
    /// RDMA, or an error that says why not.
    Rdma,
    /// byway's own framing over TCP or a Unix socket.
    Tcp,
    /// gRPC over HTTP/2.
    Grpc,
}

/// The environment variable that overrides [`Transport::Auto`].
pub(crate) const TRANSPORT_VARIABLE: &str = "BYWAY_TRANSPORT";

#[cfg(not(feature = "grpc"))]
const NO_GRPC: &str = "byway was built without its feature \"grpc\"";

impl Transport {
    /// What to use when the user asked for `self`.
    ///
    /// # Errors
    /// The environment variable holds no transport, or the transport is not there.
    pub(crate) fn resolve(self, variable: Option<&str>) -> Result<Self, ConnectError> {
        let transport = match (self, variable) {
            (Self::Auto, Some(text)) if !text.is_empty() => {
                text.parse().map_err(|()| ConnectError::Variable(text.to_owned()))?
            }
            (transport, _) => transport,
        };
        match transport {
            #[cfg(not(feature = "grpc"))]
            Self::Grpc => Err(ConnectError::Unavailable { transport, reason: NO_GRPC.into() }),
            _ => Ok(transport),
        }
    }
}

impl FromStr for Transport {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.to_ascii_lowercase().as_str() {
            "auto" => Ok(Self::Auto),
            "rdma" => Ok(Self::Rdma),
            "tcp" => Ok(Self::Tcp),
            "grpc" => Ok(Self::Grpc),
            _ => Err(()),
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Rdma => "rdma",
            Self::Tcp => "tcp",
            Self::Grpc => "grpc",
        })
    }
}

/// The path that a channel's calls take.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Path {
    /// No connection yet, or none any more; with the reason when the last attempt failed or the connection was lost.
    Disconnected {
        /// What happened last.
        reason: Option<String>,
    },
    /// byway's own framing over RDMA.
    Rdma {
        /// The device.
        device: String,
    },
    /// byway's own framing over TCP.
    Tcp {
        /// Why it is not RDMA, unless TCP was asked for.
        why_not_better: Option<String>,
    },
    /// byway's own framing over a Unix socket.
    Unix {
        /// Why it is not RDMA, unless TCP was asked for.
        why_not_better: Option<String>,
    },
    /// gRPC over HTTP/2.
    Grpc {
        /// Why it is not byway's own framing, unless gRPC was asked for.
        why_not_better: Option<String>,
    },
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disconnected { reason: None } => f.write_str("not connected"),
            Self::Disconnected { reason: Some(reason) } => write!(f, "not connected: {reason}"),
            Self::Rdma { device } => write!(f, "rdma ({device})"),
            Self::Tcp { why_not_better: None } => f.write_str("tcp"),
            Self::Tcp { why_not_better: Some(reason) } => write!(f, "tcp ({reason})"),
            Self::Unix { why_not_better: None } => f.write_str("unix"),
            Self::Unix { why_not_better: Some(reason) } => write!(f, "unix ({reason})"),
            Self::Grpc { why_not_better: None } => f.write_str("grpc"),
            Self::Grpc { why_not_better: Some(reason) } => write!(f, "grpc ({reason})"),
        }
    }
}

/// Connections that this process has open, as a client and as a server, by path: a gauge to watch, since a transport that
/// quietly runs on TCP costs days.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Connections {
    /// byway's own framing over RDMA.
    pub rdma: usize,
    /// byway's own framing over TCP and Unix sockets.
    pub tcp: usize,
    /// HTTP/2.
    pub grpc: usize,
}

static OPEN: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

/// How many connections this process has open by each path.
pub fn connections() -> Connections {
    let [rdma, tcp, grpc] = [0, 1, 2].map(|index| OPEN[index].load(Ordering::Relaxed));
    Connections { rdma, tcp, grpc }
}

/// Counts one connection while it lives.
#[derive(Debug)]
pub(crate) struct Counted(usize);

impl Counted {
    pub(crate) const RDMA: usize = 0;
    pub(crate) const TCP: usize = 1;
    #[cfg(feature = "grpc")]
    pub(crate) const GRPC: usize = 2;

    pub(crate) fn new(path: usize) -> Self {
        OPEN[path].fetch_add(1, Ordering::Relaxed);
        Self(path)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        OPEN[self.0].fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream that is counted while it is open.
#[cfg(feature = "grpc")]
pub(crate) struct CountedStream<S> {
    io: S,
    _counted: Counted,
}

#[cfg(feature = "grpc")]
impl<S> CountedStream<S> {
    pub(crate) fn new(io: S, path: usize) -> Self {
        Self { io, _counted: Counted::new(path) }
    }
}

#[cfg(feature = "grpc")]
impl<S: AsyncRead + Unpin> AsyncRead for CountedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, into)
    }
}

#[cfg(feature = "grpc")]
impl<S: AsyncWrite + Unpin> AsyncWrite for CountedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
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

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_decides_only_what_the_program_left_open() {
        assert_eq!(Transport::Auto.resolve(None).ok(), Some(Transport::Auto));
        assert_eq!(Transport::Auto.resolve(Some("TCP")).ok(), Some(Transport::Tcp));
        assert_eq!(Transport::Auto.resolve(Some("")).ok(), Some(Transport::Auto));
        assert_eq!(Transport::Tcp.resolve(Some("rdma")).ok(), Some(Transport::Tcp));
    }

    #[test]
    fn what_is_no_transport_is_refused_with_its_reason() {
        let error = Transport::Auto.resolve(Some("carrier-pigeon")).expect_err("unknown").to_string();
        assert!(error.contains("BYWAY_TRANSPORT") && error.contains("carrier-pigeon"), "{error}");
    }
}
