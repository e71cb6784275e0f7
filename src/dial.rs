//! One attempt to reach a server: from an address to what makes calls.
//!
//! Owns the order in which protocols are tried. Invariant: whoever gets less than the best path is told why, and one
//! attempt takes no longer than its limit however many protocols it tries.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use byway_runtime::connection::Caller;
use byway_runtime::stream::Outbox;
use byway_runtime::{Call, ConnectionInfo, Endpoint, Invoke, NewCall, ReadyFuture, StartError, Status};
#[cfg(feature = "grpc")]
use byway_tcp::grpc;
use byway_tcp::{Options, native};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::address::Address;
use crate::error::ConnectError;
use crate::path::{Path, Transport};

/// What one attempt needs to know.
#[derive(Debug, Clone)]
pub(crate) struct Dial {
    pub(crate) address: Address,
    pub(crate) transport: Transport,
    pub(crate) options: Options,
    /// For the whole attempt: name, connection and hello.
    pub(crate) limit: Duration,
}

/// A connection of either protocol.
pub(crate) struct Connection {
    protocol: Protocol,
    path: Path,
}

enum Protocol {
    Native(Caller<Outbox>),
    #[cfg(feature = "grpc")]
    Grpc(grpc::Caller),
}

impl Connection {
    /// The path that its calls take.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Why the connection takes no new calls, if so.
    pub(crate) fn closed(&self) -> Option<Status> {
        match &self.protocol {
            Protocol::Native(caller) => caller.0.closed(),
            #[cfg(feature = "grpc")]
            Protocol::Grpc(caller) => caller.closed(),
        }
    }
}

impl Invoke for Connection {
    fn start(&self, call: &NewCall<'_>) -> Result<Call, StartError> {
        match &self.protocol {
            Protocol::Native(caller) => caller.start(call),
            #[cfg(feature = "grpc")]
            Protocol::Grpc(caller) => caller.start(call),
        }
    }

    fn ready(&self) -> ReadyFuture<'_> {
        match &self.protocol {
            Protocol::Native(caller) => caller.ready(),
            #[cfg(feature = "grpc")]
            Protocol::Grpc(caller) => caller.ready(),
        }
    }
}

impl Dial {
    /// Connects by the best protocol that the transport allows and the peer speaks.
    ///
    /// # Errors
    /// Why there is no connection.
    pub(crate) async fn attempt(&self) -> Result<Connection, ConnectError> {
        let attempt = async {
            match self.transport {
                #[cfg(feature = "grpc")]
                Transport::Grpc => self.grpc(None).await,
                #[cfg(feature = "grpc")]
                Transport::Auto => self.either().await,
                _ => self.native().await,
            }
        };
        let timed_out = |_| ConnectError::TimedOut { address: self.address.clone(), limit: self.limit };
        tokio::time::timeout(self.limit, attempt).await.map_err(timed_out)?
    }

    /// byway's own framing, or gRPC when the peer speaks nothing else.
    #[cfg(feature = "grpc")]
    async fn either(&self) -> Result<Connection, ConnectError> {
        // Some servers say nothing to what they do not understand. The other half of the time is for gRPC.
        let patience = self.limit / 2;
        let reason = match tokio::time::timeout(patience, self.native()).await {
            Err(_) => format!("{} did not answer byway's hello within {patience:?}", self.address),
            Ok(Err(error)) if speaks_no_byway(&error) => error.to_string(),
            Ok(result) => return result,
        };
        let connection = self.grpc(Some(reason.clone())).await?;
        tracing::warn!(target = %self.address, %reason, "on gRPC over HTTP/2 instead of byway's own framing");
        Ok(connection)
    }

    async fn native(&self) -> Result<Connection, ConnectError> {
        let (stream, info) = self.stream().await?;
        let path = match self.address {
            Address::Internet { .. } => Path::Tcp { why_not_better: self.transport.why_not_better() },
            Address::Unix(_) => Path::Unix,
        };
        let handshake = |source| ConnectError::Handshake { address: self.address.clone(), source };
        let caller = native::connect(stream, Arc::new(info), self.options).await.map_err(handshake)?;
        Ok(Connection { protocol: Protocol::Native(caller), path })
    }

    /// gRPC over HTTP/2; `given_up` says why not byway's own framing, unless it was not asked for.
    #[cfg(feature = "grpc")]
    async fn grpc(&self, given_up: Option<String>) -> Result<Connection, ConnectError> {
        let (stream, info) = self.stream().await?;
        let authority = match &self.address {
            Address::Internet { .. } => self.address.to_string(),
            // HTTP wants a name, and a file has none.
            Address::Unix(_) => "localhost".to_owned(),
        };
        let info = ConnectionInfo { link: "grpc", ..info };
        let connected = grpc::connect(stream, &authority, Arc::new(info), self.options).await;
        match connected {
            Ok(caller) => Ok(Connection {
                protocol: Protocol::Grpc(caller),
                path: Path::Grpc { why_not_better: given_up },
            }),
            Err(source) => Err(ConnectError::Grpc { address: self.address.clone(), source, given_up }),
        }
    }

    async fn stream(&self) -> Result<(Box<dyn Stream>, ConnectionInfo), ConnectError> {
        let unreachable =
            |source: io::Error| ConnectError::Unreachable { address: self.address.clone(), source };
        match &self.address {
            Address::Internet { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(unreachable)?;
                // Small frames must not wait for the acknowledgement of earlier ones.
                stream.set_nodelay(true).map_err(unreachable)?;
                let peer = stream.peer_addr().map_err(unreachable)?;
                Ok((Box::new(stream), ConnectionInfo { link: "tcp", peer: Endpoint::Internet(peer) }))
            }
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(unreachable)?;
                let peer = Endpoint::Unix(path.display().to_string());
                Ok((Box::new(stream), ConnectionInfo { link: "unix", peer }))
            }
        }
    }
}

/// Whether a peer that was reached may still speak gRPC.
#[cfg(feature = "grpc")]
fn speaks_no_byway(error: &ConnectError) -> bool {
    use byway_runtime::session::HelloError;
    let ConnectError::Handshake { source, .. } = error else { return false };
    match source {
        native::ConnectError::Closed => true,
        native::ConnectError::Hello(error) => {
            matches!(error, HelloError::NotByway(_) | HelloError::Version { .. })
        }
        _ => false,
    }
}

/// A stream of either kind.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}
