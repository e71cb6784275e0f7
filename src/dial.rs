//! One attempt to reach a server: from an address to what makes calls.
//!
//! Owns the order in which protocols are tried, and the memory of RDMA that failed. Invariants: whoever gets less than the
//! best path is told why; a peer that has spoken byway is not taken for another because it is silent; and one attempt
//! takes no longer than its limit however many protocols it tries.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use byway_rdma::RdmaLink;
use byway_runtime::connection::Caller;
use byway_runtime::stream::Outbox;
use byway_runtime::{Call, ConnectionInfo, Endpoint, Invoke, NewCall, ReadyFuture, StartError, Status};
#[cfg(feature = "grpc")]
use byway_tcp::grpc;
use byway_tcp::native::Greeted;
use byway_tcp::{Options, native};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;

use crate::address::Address;
use crate::error::ConnectError;
use crate::path::{Counted, Path, Transport};
use crate::rdma::{self, AnyHost, AnyOffering, Concluded, Rdma};

/// What one attempt needs to know.
#[derive(Debug)]
pub(crate) struct Dial {
    pub(crate) address: Address,
    pub(crate) transport: Transport,
    pub(crate) options: Options,
    pub(crate) rdma: Rdma,
    /// For the whole attempt: name, connection and hello.
    pub(crate) limit: Duration,
    pub(crate) memory: Arc<Memory>,
}

/// What a channel remembers about its peer.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    rdma: Mutex<Remembered>,
    /// Whether it has said byway's hello.
    greeted: AtomicBool,
}

#[derive(Debug, Default)]
struct Remembered {
    /// Why it failed, and until when it is not tried again.
    failed: Option<(String, Instant)>,
    /// How often in a row.
    failures: u32,
    /// The reason of the last warning: one is enough while it stays the same.
    warned: Option<String>,
}

/// The longest time for which RDMA that failed is not tried again.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);

impl Memory {
    fn lock(&self) -> MutexGuard<'_, Remembered> {
        self.rdma.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(feature = "grpc")]
    fn has_greeted(&self) -> bool {
        self.greeted.load(Ordering::Relaxed)
    }

    /// RDMA to this peer failed.
    fn failed(&self, reason: &str, retry_after: Duration) {
        let mut state = self.lock();
        let wait = retry_after.saturating_mul(1 << state.failures.min(16)).min(RETRY_AFTER_MAX);
        state.failures = state.failures.saturating_add(1);
        state.failed = Some((reason.to_owned(), Instant::now() + wait));
    }

    /// Why RDMA is not tried now, if it failed not long ago.
    fn refusal(&self) -> Option<String> {
        let state = self.lock();
        let (reason, until) = state.failed.as_ref()?;
        let wait = until.checked_duration_since(Instant::now())?;
        Some(format!("RDMA failed and is tried again in {wait:.0?}: {reason}"))
    }

    /// When RDMA that failed is to be tried again.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.lock().failed.as_ref().map(|(_, until)| *until)
    }

    fn works(&self) {
        *self.lock() = Remembered::default();
    }

    /// Whether this reason has not been warned of.
    fn is_news(&self, reason: &str) -> bool {
        let mut state = self.lock();
        let is_news = state.warned.is_none();
        state.warned = Some(reason.to_owned());
        is_news
    }
}

/// A connection of either protocol.
pub(crate) struct Connection {
    protocol: Protocol,
    path: Path,
    _counted: Counted,
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
        let attempt = async {
            match self.transport {
                #[cfg(feature = "grpc")]
                Transport::Grpc => self.grpc(None).await,
                #[cfg(feature = "grpc")]
                Transport::Auto => self.either().await,
                Transport::Tcp => self.tcp(None).await,
                _ => self.native().await,
            }
        };
        let timed_out = |_| ConnectError::TimedOut { address: self.address.clone(), limit: self.limit };
        tokio::time::timeout(self.limit, attempt).await.map_err(timed_out)?
    }

    /// byway's own framing, or gRPC when the peer speaks nothing else.
    #[cfg(feature = "grpc")]
    async fn either(&self) -> Result<Connection, ConnectError> {
        if self.memory.has_greeted() {
            // One that stands still or is being replaced: calls that went on over gRPC would stay there.
            match self.native().await {
                Err(error) if denies_byway(&error) => self.memory.greeted.store(false, Ordering::Relaxed),
                result => return result,
            }
        }
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

    /// byway's own framing: by RDMA if both sides have it, else over TCP unless RDMA was asked for.
    async fn native(&self) -> Result<Connection, ConnectError> {
        let is_required = self.transport == Transport::Rdma;
        let reason = match self.memory.refusal().filter(|_| !is_required) {
            Some(reason) => reason,
            None => match self.rdma().await? {
                Ok(connection) => return Ok(connection),
                Err(reason) => reason,
            },
        };
        // What both sides concluded is not known, or RDMA was not tried.
        let connection = self.tcp(Some(reason.clone())).await?;
        self.warn(&reason);
        Ok(connection)
    }

    /// Tries RDMA. `Ok(Err)` is why the stream is of no use and must be dialled again without it.
    async fn rdma(&self) -> Result<Result<Connection, String>, ConnectError> {
        let (stream, info, local) = self.stream().await?;
        let host = self.rdma.host(local).await;
        let offering = AnyOffering::new(host.as_ref().map_err(Clone::clone), &self.options);
        let extension = offering.extension().encode();
        let greeted = native::greet(stream, &self.options.limits, extension).await;
        let greeted = self.noted(greeted)?;
        let offered = offering.extension().offers();
        let peer_offers = byway_rdma::protocol::offer::Extension::decode(&greeted.theirs.extension).offers();
        match rdma::client(offering, greeted, &info, self.options).await {
            Concluded::Rdma(connected) => {
                let host = host.map_err(|reason| self.unavailable(reason))?;
                self.memory.works();
                let (memory, retry_after) = (Arc::clone(&self.memory), host.retry_after());
                tokio::spawn(async move {
                    let mut task = connected.task;
                    let ended = (&mut task).await;
                    if ended.broken {
                        memory.failed(ended.failure.reason(), retry_after);
                    }
                    rdma::let_go(task).await;
                });
                let path = Path::Rdma { device: host.name().to_owned() };
                let protocol = Protocol::Rdma(connected.caller, host);
                Ok(Ok(Connection { protocol, path, _counted: Counted::new(Counted::RDMA) }))
            }
            Concluded::Tcp(greeted, reason) => {
                if offered && peer_offers {
                    // Both have it, and it does not work between them.
                    let retry_after = host.as_ref().map_or(RETRY_AFTER_MAX, AnyHost::retry_after);
                    self.memory.failed(&reason, retry_after);
                }
                if self.transport == Transport::Rdma {
                    return Err(self.unavailable(reason));
                }
                self.warn(&reason);
                let caller = native::client(greeted, Arc::new(info), self.options);
                Ok(Ok(self.over_stream(caller, Some(reason))))
            }
            Concluded::Broken(reason) => {
                let retry_after = host.as_ref().map_or(RETRY_AFTER_MAX, AnyHost::retry_after);
                self.memory.failed(&reason, retry_after);
                match self.transport {
                    Transport::Rdma => Err(self.unavailable(reason)),
                    _ => Ok(Err(reason)),
                }
            }
        }
    }

    /// byway's own framing over a stream; `reason` says why not by RDMA, unless it was not asked for.
    async fn tcp(&self, reason: Option<String>) -> Result<Connection, ConnectError> {
        let (stream, info, _) = self.stream().await?;
        let greeted = native::greet(stream, &self.options.limits, Bytes::new()).await;
        let greeted = self.noted(greeted)?;
        let caller = native::client(greeted, Arc::new(info), self.options);
        Ok(self.over_stream(caller, reason))
    }

    fn over_stream(&self, caller: Caller<Outbox>, why_not_better: Option<String>) -> Connection {
        let path = match self.address {
            Address::Internet { .. } => Path::Tcp { why_not_better },
            Address::Unix(_) => Path::Unix { why_not_better },
        };
        Connection { protocol: Protocol::Native(caller), path, _counted: Counted::new(Counted::TCP) }
    }

    /// Remembers a hello.
    fn noted<S>(
        &self,
        greeted: Result<Greeted<S>, native::ConnectError>,
    ) -> Result<Greeted<S>, ConnectError> {
        self.memory.greeted.fetch_or(greeted.is_ok(), Ordering::Relaxed);
        greeted.map_err(|source| ConnectError::Handshake { address: self.address.clone(), source })
    }

    fn unavailable(&self, reason: String) -> ConnectError {
        ConnectError::Unavailable { transport: Transport::Rdma, reason }
    }

    /// Says once that calls do not go by RDMA, and why.
    fn warn(&self, reason: &str) {
        if self.memory.is_news(reason) {
            tracing::warn!(target = %self.address, %reason, "on TCP instead of RDMA");
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
        let connected = grpc::connect(stream, &authority, Arc::new(info), self.options).await;
        match connected {
            Ok(caller) => Ok(Connection {
                protocol: Protocol::Grpc(caller),
                path: Path::Grpc { why_not_better: given_up },
                _counted: Counted::new(Counted::GRPC),
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
