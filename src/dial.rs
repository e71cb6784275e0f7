//! One attempt to reach a server: from an address to what makes calls.
//!
//! Owns the order in which protocols are tried. Invariants: whoever gets less than the best path is told why, and one
//! attempt takes no longer than its limit however many protocols it tries; a peer that has spoken byway is not taken for
//! another because it is silent; a stream on which the peer's conclusion about
//! RDMA is not known is closed, and the next one has no word of it.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use byway_rdma::RdmaLink;
use byway_rdma::protocol::offer::Extension;
use byway_runtime::connection::Caller;
use byway_runtime::stream::Outbox;
use byway_runtime::{Call, ConnectionInfo, Endpoint, Invoke, NewCall, ReadyFuture, StartError, Status};
use byway_tcp::Options;
#[cfg(feature = "grpc")]
use byway_tcp::grpc;
use byway_tcp::native::{self, Greeted};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;

use crate::address::Address;
use crate::error::ConnectError;
#[cfg(feature = "grpc")]
use crate::path::CountedStream;
use crate::path::{Counted, Path, Transport};
use crate::rdma::{self, AnyHost, AnyOffering, Concluded, Rdma};
use crate::remembered::Remembered;

/// A stream of which nobody knows what the peer concluded about RDMA.
struct Lost {
    reason: String,
    /// For how long RDMA is not tried again when the peer can be reached without it.
    retry_after: Duration,
}

/// What one attempt needs to know.
#[derive(Debug)]
pub(crate) struct Dial {
    pub(crate) address: Address,
    pub(crate) transport: Transport,
    pub(crate) options: Options,
    pub(crate) rdma: Rdma,
    /// For the whole attempt: name, connection and hello.
    pub(crate) limit: Duration,
    pub(crate) remembered: Arc<Remembered>,
}

/// A connection of either protocol.
pub(crate) struct Connection {
    protocol: Protocol,
    path: Path,
}

enum Protocol {
    Native(Caller<Outbox>),
    Rdma(Caller<RdmaLink>, AnyHost),
    #[cfg(feature = "grpc")]
    Grpc(grpc::Caller),
}

impl Connection {
    /// The path that its calls take.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The device that it goes by, if it does.
    pub(crate) fn device(&self) -> Option<&AnyHost> {
        match &self.protocol {
            Protocol::Rdma(_, host) => Some(host),
            _ => None,
        }
    }

    /// Why the connection takes no new calls, if so.
    pub(crate) fn closed(&self) -> Option<Status> {
        match &self.protocol {
            Protocol::Native(caller) => caller.0.closed(),
            Protocol::Rdma(caller, _) => caller.0.closed(),
            #[cfg(feature = "grpc")]
            Protocol::Grpc(caller) => caller.closed(),
        }
    }
}

impl Invoke for Connection {
    fn start(&self, call: &NewCall<'_>) -> Result<Call, StartError> {
        match &self.protocol {
            Protocol::Native(caller) => caller.start(call),
            Protocol::Rdma(caller, _) => caller.start(call),
            #[cfg(feature = "grpc")]
            Protocol::Grpc(caller) => caller.start(call),
        }
    }

    fn ready(&self) -> ReadyFuture<'_> {
        match &self.protocol {
            Protocol::Native(caller) => caller.ready(),
            Protocol::Rdma(caller, _) => caller.ready(),
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
        let until = Instant::now() + self.limit;
        let attempt = async {
            match self.transport {
                #[cfg(feature = "grpc")]
                Transport::Grpc => self.grpc(None).await,
                #[cfg(feature = "grpc")]
                Transport::Auto => self.either(until).await,
                Transport::Tcp => self.tcp(None, until).await,
                _ => self.native(until).await,
            }
        };
        let timed_out = |_| ConnectError::TimedOut { address: self.address.clone(), limit: self.limit };
        tokio::time::timeout(self.limit, attempt).await.map_err(timed_out)?
    }

    /// byway's own framing, or gRPC when the peer speaks nothing else.
    #[cfg(feature = "grpc")]
    async fn either(&self, until: Instant) -> Result<Connection, ConnectError> {
        let reason = match self.native(until).await {
            // One that has spoken byway stands still or is being replaced: calls that went on over gRPC would stay there.
            Err(error) if self.remembered.has_greeted() && !denies_byway(&error) => return Err(error),
            Err(ConnectError::TimedOut { limit, .. }) => {
                format!("{} did not answer byway's hello within {limit:.1?}", self.address)
            }
            Err(error) if speaks_no_byway(&error) => error.to_string(),
            result => return result,
        };
        self.remembered.note_greeting(false);
        let connection = self.grpc(Some(reason.clone())).await?;
        tracing::warn!(target = %self.address, %reason, "on gRPC over HTTP/2 instead of byway's own framing");
        Ok(connection)
    }

    /// byway's own framing: by RDMA if both sides have it, else over TCP unless RDMA was asked for.
    async fn native(&self, until: Instant) -> Result<Connection, ConnectError> {
        if self.transport == Transport::Rdma {
            return self.rdma(until).await?.map_err(|lost| self.unavailable(lost.reason));
        }
        let (reason, retry_after) = match self.remembered.refusal(Instant::now()) {
            Some(reason) => (reason, None),
            None => match self.rdma(until).await? {
                Ok(connection) => return Ok(connection),
                Err(Lost { reason, retry_after }) => (reason, Some(retry_after)),
            },
        };
        let connection = self.tcp(Some(reason.clone()), until).await?;
        if let Some(retry_after) = retry_after {
            // Only now: a peer that TCP does not reach either says nothing about RDMA.
            self.remembered.failed(&reason, retry_after, Instant::now());
        }
        self.warn(&reason);
        Ok(connection)
    }

    /// Tries RDMA. `Ok(Err)` is why the stream is of no use and must be dialled again without it.
    async fn rdma(&self, limit: Instant) -> Result<Result<Connection, Lost>, ConnectError> {
        let (stream, info, local) = self.stream().await?;
        let host = self.host(local).await;
        let offering = AnyOffering::new(host.as_ref().map_err(Clone::clone), &self.options);
        let offered = offering.extension().offers();
        let retry_after = self.rdma.retry_after();
        let lost = |reason| Ok(Err(Lost { reason, retry_after }));
        let until = Instant::now() + self.patience();
        let extension = offering.extension().encode();
        let greeted = if offered {
            let greeting = native::greet(stream, &self.options.limits, extension);
            match tokio::time::timeout_at(until, greeting).await {
                Ok(Ok(greeted)) => greeted,
                // It may be the offer that it does not like.
                Ok(Err(source @ (native::ConnectError::Closed | native::ConnectError::Io(_)))) => {
                    return lost(format!("RDMA was offered, and {source}"));
                }
                Ok(Err(source)) => return Err(self.handshake(source)),
                Err(_) => {
                    return lost(format!(
                        "RDMA was offered, and no hello came within {:.1?}",
                        self.patience()
                    ));
                }
            }
        } else {
            self.greet(stream, extension, limit).await?
        };
        self.remembered.note_greeting(true);
        let peer_offers = Extension::decode(&greeted.theirs.extension).offers();
        let offering = offering.within(until.saturating_duration_since(Instant::now()));
        let remembered = Arc::clone(&self.remembered);
        let broken = move |reason: &str| remembered.failed(reason, retry_after, Instant::now());
        match rdma::client(offering, greeted, &info, self.options, Box::new(broken)).await {
            Concluded::Rdma(connected) => {
                let host = host.map_err(|reason| self.unavailable(reason))?;
                self.remembered.joined(Instant::now());
                let counted = Counted::new(Counted::RDMA);
                tokio::spawn(async move {
                    let _counted = counted;
                    connected.task.await
                });
                let path = Path::Rdma { device: host.name().to_owned() };
                let protocol = Protocol::Rdma(connected.caller, host);
                Ok(Ok(Connection { protocol, path }))
            }
            Concluded::Tcp(greeted, reason) => {
                if offered && peer_offers {
                    // Both have it, and it does not work between them.
                    self.remembered.failed(&reason, retry_after, Instant::now());
                }
                if self.transport == Transport::Rdma {
                    return Err(self.unavailable(reason));
                }
                self.warn(&reason);
                Ok(Ok(self.over_stream(greeted, info, Some(reason))))
            }
            Concluded::Broken(reason) => lost(reason),
        }
    }

    /// The device for connections from this address. Unless RDMA was asked for, one that takes long to open is not waited
    /// for: it is there for the next attempt.
    async fn host(&self, local: Option<IpAddr>) -> Result<AnyHost, String> {
        let patience = if self.transport == Transport::Rdma { self.limit } else { self.patience() };
        match tokio::time::timeout(patience, self.rdma.host(local)).await {
            Ok(host) => host,
            Err(_) => {
                let reason = format!("opening its device takes longer than {patience:.1?}");
                self.remembered.failed(&reason, self.rdma.retry_after(), Instant::now());
                Err(reason)
            }
        }
    }

    /// How long opening a device may take, and then how long agreeing on RDMA may, the hello included. What is left of the
    /// limit is for doing without.
    fn patience(&self) -> Duration {
        let most = if self.transport == Transport::Rdma { self.limit } else { self.limit / 4 };
        self.rdma.agreement_timeout().min(most)
    }

    /// byway's own framing over a stream; `reason` says why not by RDMA, unless it was not asked for.
    async fn tcp(&self, reason: Option<String>, until: Instant) -> Result<Connection, ConnectError> {
        let (stream, info, _) = self.stream().await?;
        let greeted = self.greet(stream, Bytes::new(), until).await?;
        Ok(self.over_stream(greeted, info, reason))
    }

    /// Exchanges hellos without an offer of RDMA.
    async fn greet(
        &self,
        stream: Box<dyn Stream>,
        extension: Bytes,
        until: Instant,
    ) -> Result<Greeted<Box<dyn Stream>>, ConnectError> {
        let left = until.saturating_duration_since(Instant::now());
        // Some servers say nothing to what they do not understand. The other half of the time is for gRPC.
        let may_be_another = self.transport == Transport::Auto && !self.remembered.has_greeted();
        let limit = if may_be_another { left / 2 } else { left };
        let greeting = native::greet(stream, &self.options.limits, extension);
        match tokio::time::timeout(limit, greeting).await {
            Ok(greeted) => greeted
                .inspect(|_| self.remembered.note_greeting(true))
                .map_err(|source| self.handshake(source)),
            Err(_) => Err(ConnectError::TimedOut { address: self.address.clone(), limit }),
        }
    }

    fn over_stream(
        &self,
        greeted: Greeted<Box<dyn Stream>>,
        info: ConnectionInfo,
        why_not_better: Option<String>,
    ) -> Connection {
        let (caller, driver) = native::client(greeted, Arc::new(info), self.options);
        let counted = Counted::new(Counted::TCP);
        tokio::spawn(async move {
            let _counted = counted;
            driver.await
        });
        let path = match self.address {
            Address::Internet { .. } => Path::Tcp { why_not_better },
            Address::Unix(_) => Path::Unix { why_not_better },
        };
        Connection { protocol: Protocol::Native(caller), path }
    }

    fn handshake(&self, source: native::ConnectError) -> ConnectError {
        ConnectError::Handshake { address: self.address.clone(), source }
    }

    fn unavailable(&self, reason: String) -> ConnectError {
        ConnectError::Unavailable { transport: Transport::Rdma, reason }
    }

    /// Says once that calls do not go by RDMA, why, and what to do.
    fn warn(&self, reason: &str) {
        if self.remembered.is_news() {
            let remedy = format!(
                "`byway doctor {}` says what can be mended; whoever wants no RDMA asks for the transport \"tcp\"",
                self.address
            );
            tracing::warn!(target = %self.address, %reason, %remedy, "on TCP instead of RDMA");
        }
    }

    /// gRPC over HTTP/2; `given_up` says why not byway's own framing, unless it was not asked for.
    #[cfg(feature = "grpc")]
    async fn grpc(&self, given_up: Option<String>) -> Result<Connection, ConnectError> {
        let (stream, info, _) = self.stream().await?;
        let authority = match &self.address {
            Address::Internet { .. } => self.address.to_string(),
            // HTTP wants a name, and a file has none.
            Address::Unix(_) => "localhost".to_owned(),
        };
        let info = ConnectionInfo { link: "grpc", ..info };
        let stream = CountedStream::new(stream, Counted::GRPC);
        let connected = grpc::connect(stream, &authority, Arc::new(info), self.options).await;
        match connected {
            Ok(caller) => Ok(Connection {
                protocol: Protocol::Grpc(caller),
                path: Path::Grpc { why_not_better: given_up },
            }),
            Err(source) => Err(ConnectError::Grpc { address: self.address.clone(), source, given_up }),
        }
    }

    /// A stream to the address, and the address that it comes from.
    async fn stream(&self) -> Result<(Box<dyn Stream>, ConnectionInfo, Option<IpAddr>), ConnectError> {
        let unreachable =
            |source: io::Error| ConnectError::Unreachable { address: self.address.clone(), source };
        match &self.address {
            Address::Internet { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(unreachable)?;
                // Small frames must not wait for the acknowledgement of earlier ones.
                stream.set_nodelay(true).map_err(unreachable)?;
                let peer = stream.peer_addr().map_err(unreachable)?;
                let local = stream.local_addr().ok().map(|address| address.ip());
                Ok((Box::new(stream), ConnectionInfo { link: "tcp", peer: Endpoint::Internet(peer) }, local))
            }
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(unreachable)?;
                let peer = Endpoint::Unix(path.display().to_string());
                Ok((Box::new(stream), ConnectionInfo { link: "unix", peer }, None))
            }
        }
    }
}

/// Whether a peer that was reached may still speak gRPC.
#[cfg(feature = "grpc")]
fn speaks_no_byway(error: &ConnectError) -> bool {
    let is_closed = matches!(error, ConnectError::Handshake { source: native::ConnectError::Closed, .. });
    is_closed || denies_byway(error)
}

/// Whether a peer has said something else than byway's hello.
#[cfg(feature = "grpc")]
fn denies_byway(error: &ConnectError) -> bool {
    use byway_runtime::session::HelloError;
    let ConnectError::Handshake { source: native::ConnectError::Hello(error), .. } = error else {
        return false;
    };
    matches!(error, HelloError::NotByway(_) | HelloError::Version { .. })
}

/// A stream of either kind.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}
