//! One attempt to reach a server: from an address to what makes calls.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use byway_runtime::connection::Caller;
use byway_runtime::stream::Outbox;
use byway_runtime::{ConnectionInfo, Endpoint};
use byway_tcp::native;
use tokio::net::{TcpStream, UnixStream};

use crate::address::Address;
use crate::error::ConnectError;

/// What one attempt needs to know.
#[derive(Debug, Clone)]
pub(crate) struct Dial {
    pub(crate) address: Address,
    pub(crate) options: native::Options,
    /// For the whole attempt: name, connection and hello.
    pub(crate) limit: Duration,
}

impl Dial {
    pub(crate) async fn attempt(&self) -> Result<Caller<Outbox>, ConnectError> {
        let attempt = async {
            match &self.address {
                Address::Internet { host, port } => self.internet(host, *port).await,
                Address::Unix(path) => {
                    let stream =
                        UnixStream::connect(path).await.map_err(|source| self.unreachable(source))?;
                    let peer = Endpoint::Unix(path.display().to_string());
                    self.greet(stream, ConnectionInfo { link: "unix", peer }).await
                }
            }
        };
        let timed_out = |_| ConnectError::TimedOut { address: self.address.clone(), limit: self.limit };
        tokio::time::timeout(self.limit, attempt).await.map_err(timed_out)?
    }

    async fn internet(&self, host: &str, port: u16) -> Result<Caller<Outbox>, ConnectError> {
        let stream = TcpStream::connect((host, port)).await.map_err(|source| self.unreachable(source))?;
        // Small frames must not wait for the acknowledgement of earlier ones.
        stream.set_nodelay(true).map_err(|source| self.unreachable(source))?;
        let peer = stream.peer_addr().map_err(|source| self.unreachable(source))?;
        self.greet(stream, ConnectionInfo { link: "tcp", peer: Endpoint::Internet(peer) }).await
    }

    async fn greet<S>(&self, stream: S, info: ConnectionInfo) -> Result<Caller<Outbox>, ConnectError>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let handshake = |source| ConnectError::Handshake { address: self.address.clone(), source };
        native::connect(stream, Arc::new(info), self.options).await.map_err(handshake)
    }

    fn unreachable(&self, source: io::Error) -> ConnectError {
        ConnectError::Unreachable { address: self.address.clone(), source }
    }
}
