//! What a server accepts connections from.
//!
//! Owns the listening socket, and the file of a Unix one: a file that nobody listens on any more is replaced, one that
//! somebody does is left alone, and the server's own is removed when it stops.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use byway_runtime::{ConnectionInfo, Endpoint};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::address::Address;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listening(pub(crate) Address);

impl Listening {
    /// The address, with the port that the system chose when zero was asked for. A client on the same machine can
    /// connect to its text.
    pub fn address(&self) -> &Address {
        &self.0
    }
}

impl fmt::Display for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

pub(crate) enum Listener {
    Tcp(TcpListener),
    // The file goes first: while the socket still listens, a successor that binds the path makes a file of its own, which
    // must not be the one that is removed.
    Unix { _file: SocketFile, listener: UnixListener },
}

/// A stream of either kind.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}

pub(crate) enum Accepted {
    Tcp(TcpStream, ConnectionInfo),
    Unix(UnixStream, ConnectionInfo),
}

impl Listener {
    pub(crate) async fn bind(address: &Address) -> io::Result<(Self, Listening)> {
        match address {
            Address::Internet { host, port } => {
                let listener = TcpListener::bind((host.as_str(), *port)).await?;
                let local = listener.local_addr()?;
                Ok((Self::Tcp(listener), Listening(local.into())))
            }
            Address::Unix(path) => {
                remove_stale(path).await?;
                let listener = UnixListener::bind(path)?;
                Ok((Self::Unix { listener, _file: SocketFile(path.clone()) }, Listening(address.clone())))
            }
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // Small frames must not wait for the acknowledgement of earlier ones.
                stream.set_nodelay(true)?;
                Ok(Accepted::Tcp(stream, ConnectionInfo { link: "tcp", peer: Endpoint::Internet(peer) }))
            }
            Self::Unix { listener, .. } => {
                let (stream, peer) = listener.accept().await?;
                let path = peer.as_pathname().map(|path| path.display().to_string());
                let peer = Endpoint::Unix(path.unwrap_or_default());
                Ok(Accepted::Unix(stream, ConnectionInfo { link: "unix", peer }))
            }
        }
    }
}

/// The file of a Unix socket, removed with its server.
pub(crate) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Whoever removed it before us wanted it gone too.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Removes a socket that was left behind by a server that is no more.
async fn remove_stale(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    if !is_socket {
        return Ok(());
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        // Somebody listens: binding will say so.
        _ => Ok(()),
    }
}
