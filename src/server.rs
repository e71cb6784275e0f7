//! One port: accepts connections, finds out what speaks, and serves it until it is told to stop.
//!
//! Invariants: the accept loop survives whatever accepting a connection may fail with; a peer that says nothing is cut
//! off; connections are bounded; after the drain's time is over nothing of the server is left running.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use byway_rdma::protocol::offer::Extension;
use byway_rdma::task::Ended;
use byway_runtime::adapter::{HttpService, TowerHandler};
use byway_runtime::dispatch::Router;
use byway_runtime::{ConnectionInfo, Direct, Limits};
use byway_tcp::native::{self, Drain, Driver, Heard};
use byway_tcp::{Keepalive, Options};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::body::Body;
use tonic::server::NamedService;
use tower_service::Service;

use crate::address::{Address, AddressError};
use crate::error::ServeError;
use crate::foreign::{self, Protocol};
use crate::listener::{self, Listener, Listening, Stream};
use crate::path::{Counted, TRANSPORT_VARIABLE, Transport};
use crate::rdma::{self, Concluded, EndedFuture, Rdma};

/// How long accepting pauses when the process or the system has no more descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long after the drain's time connections may take to say their last words: twice what a driver takes for its
/// own, and a little. What is left then, such as a peer that never said hello, is dropped.
const FAREWELL: Duration = Duration::from_secs(3);

/// Longest time that a drain is given: one that no server outlives, and no clock overflows at.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Where a server begins: [`Server::builder`].
#[derive(Debug)]
pub struct Server(());

impl Server {
    /// A server with default settings and no services.
    pub fn builder() -> ServerBuilder {
        ServerBuilder {
            router: Router::default(),
            web: None,
            duplicate: None,
            options: Options::default(),
            rdma: None,
            handshake_timeout: Duration::from_secs(5),
            max_connections: 10_000,
            drain_timeout: Duration::from_secs(30),
        }
    }
}

/// What a server serves, and how.
pub struct ServerBuilder {
    router: Router,
    web: Option<Arc<HttpService>>,
    duplicate: Option<&'static str>,
    options: Options,
    rdma: Option<Rdma>,
    handshake_timeout: Duration,
    max_connections: usize,
    drain_timeout: Duration,
}

impl ServerBuilder {
    /// Adds a service that byway's generator made the server of.
    #[must_use]
    pub fn add_service(mut self, service: impl Direct) -> Self {
        let added = self.router.add_direct(service);
        self.note(added);
        self
    }

    /// Adds a service that is a `tower` service of HTTP requests: made by tonic's own generator, such as health and
    /// reflection, or wrapped in layers or interceptors.
    #[must_use]
    pub fn add_tower_service<S, B>(mut self, service: S) -> Self
    where
        S: Service<http::Request<Body>, Response = http::Response<B>> + NamedService,
        S: Clone + Send + Sync + 'static,
        S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        S::Future: Send,
        B: tonic::codegen::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let added = self.router.add_tower(S::NAME, TowerHandler::new(HttpService::new(service)));
        self.note(added);
        self
    }

    /// Hands HTTP that is not gRPC, over HTTP/1 and HTTP/2, to a service such as an `axum::Router`. Without one, such
    /// requests are told that nobody here answers them.
    #[cfg(feature = "grpc")]
    #[must_use]
    pub fn http<S, B>(mut self, service: S) -> Self
    where
        S: Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + Sync + 'static,
        S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        S::Future: Send,
        B: tonic::codegen::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.web = Some(Arc::new(HttpService::new(service)));
        self
    }

    fn note(&mut self, added: Result<(), &'static str>) {
        self.duplicate = self.duplicate.or(added.err());
    }

    /// What each connection accepts.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.options.limits = limits.acceptable();
        self
    }

    /// When to ask a silent client for a sign of life, and when to give up on it.
    #[must_use]
    pub fn keepalive(mut self, keepalive: Keepalive) -> Self {
        self.options.keepalive = keepalive;
        self
    }

    /// Which RDMA to offer to clients that have it. Default: one for the whole process, with default settings, unless the
    /// environment variable `BYWAY_TRANSPORT` names another transport.
    #[must_use]
    pub fn rdma(mut self, rdma: Rdma) -> Self {
        self.rdma = Some(rdma);
        self
    }

    /// How many calls may run at once, over all connections, before further ones are refused with
    /// `RESOURCE_EXHAUSTED`. Default: no limit beside that of each connection.
    #[must_use]
    pub fn max_concurrent_calls(mut self, max: usize) -> Self {
        self.router.limit_running(max);
        self
    }

    /// How many connections may be open at once; further ones are told so and closed. Default 10,000.
    #[must_use]
    pub fn max_connections(mut self, max: usize) -> Self {
        self.max_connections = max;
        self
    }

    /// How long a new connection may take to say hello. Default 5 s.
    #[must_use]
    pub fn handshake_timeout(mut self, limit: Duration) -> Self {
        self.handshake_timeout = limit;
        self
    }

    /// How long open calls may take to finish after the server was told to stop. Default 30 s.
    #[must_use]
    pub fn drain_timeout(mut self, limit: Duration) -> Self {
        self.drain_timeout = limit;
        self
    }

    /// Listens on `address` (`host:port`, `unix:///path` or a `SocketAddr`) without accepting yet.
    ///
    /// # Errors
    /// The address cannot be listened on, or two services answer the same path.
    pub async fn bind<A>(self, address: A) -> Result<BoundServer, ServeError>
    where
        A: TryInto<Address>,
        AddressError: From<A::Error>,
    {
        if let Some(path) = self.duplicate {
            return Err(ServeError::Duplicate(path));
        }
        let address = address.try_into().map_err(AddressError::from)?;
        match Listener::bind(&address).await {
            Ok((listener, listening)) => Ok(BoundServer { settings: self, listener, listening }),
            Err(source) => Err(ServeError::Listen { address, source }),
        }
    }

    /// Serves `address` for as long as the future is polled.
    ///
    /// # Errors
    /// The address cannot be listened on, or two services answer the same path.
    pub async fn serve<A>(self, address: A) -> Result<(), ServeError>
    where
        A: TryInto<Address>,
        AddressError: From<A::Error>,
    {
        self.serve_with_shutdown(address, std::future::pending()).await
    }

    /// Serves `address` until `signal` resolves, and then until open calls have finished or their time is over.
    ///
    /// # Errors
    /// The address cannot be listened on, or two services answer the same path.
    pub async fn serve_with_shutdown<A>(
        self,
        address: A,
        signal: impl Future<Output = ()>,
    ) -> Result<(), ServeError>
    where
        A: TryInto<Address>,
        AddressError: From<A::Error>,
    {
        self.bind(address).await?.serve_with_shutdown(signal).await;
        Ok(())
    }
}

/// A server that listens.
pub struct BoundServer {
    settings: ServerBuilder,
    listener: Listener,
    listening: Listening,
}

impl BoundServer {
    /// Where it listens.
    pub fn listening(&self) -> &Listening {
        &self.listening
    }

    /// Serves for as long as the future is polled.
    pub async fn serve(self) {
        self.serve_with_shutdown(std::future::pending()).await;
    }

    /// Serves until `signal` resolves, and then until open calls have finished or their time is over.
    pub async fn serve_with_shutdown(self, signal: impl Future<Output = ()>) {
        let Self { settings, listener, listening } = self;
        let (drain, draining) = watch::channel(None);
        let shared = Arc::new(Shared {
            router: Arc::new(settings.router),
            web: settings.web,
            options: settings.options,
            rdma: settings.rdma.unwrap_or_else(by_environment),
            handshake_timeout: settings.handshake_timeout,
            connections: Arc::new(Semaphore::new(settings.max_connections.min(Semaphore::MAX_PERMITS))),
            draining,
        });
        let mut tasks = JoinSet::new();
        shared.open_device(listening.address());
        let mut signal = std::pin::pin!(signal);
        tracing::info!(address = %listening, "serving");
        loop {
            tokio::select! {
                biased;
                () = &mut signal => break,
                Some(_) = tasks.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok(accepted) => {
                        tasks.spawn(Arc::clone(&shared).serve(accepted));
                    }
                    Err(error) => shared.pause(&error).await,
                },
            }
        }
        drop(listener);
        tracing::info!(address = %listening, connections = tasks.len(), "draining");
        let until = Instant::now() + settings.drain_timeout.min(FOREVER);
        drain.send_replace(Some(until));
        while let Ok(Some(_)) = tokio::time::timeout_at(until + FAREWELL, tasks.join_next()).await {}
    }
}

/// The RDMA of a server that was given none.
fn by_environment() -> Rdma {
    let variable = std::env::var(TRANSPORT_VARIABLE).ok();
    match variable.and_then(|text| text.parse().ok()) {
        Some(transport @ (Transport::Tcp | Transport::Grpc)) => {
            Rdma::off(format!("the server's environment has {TRANSPORT_VARIABLE}={transport}"))
        }
        _ => Rdma::default(),
    }
}

/// What every connection of a server needs.
struct Shared {
    router: Arc<Router>,
    #[cfg_attr(not(feature = "grpc"), expect(dead_code, reason = "nobody speaks HTTP"))]
    web: Option<Arc<HttpService>>,
    options: Options,
    rdma: Rdma,
    handshake_timeout: Duration,
    connections: Arc<Semaphore>,
    draining: watch::Receiver<Option<Instant>>,
}

impl Shared {
    /// After an error of one connection that failed before it was accepted: nothing. When descriptors or memory ran
    /// out, waits a moment: trying again at once would only burn the processor until a connection closes.
    async fn pause(&self, error: &io::Error) {
        if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
            return;
        }
        tracing::error!(%error, "a connection could not be accepted; trying again in {ACCEPT_PAUSE:?}");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }

    /// Opens the device that connections will use, so that the first of them does not wait for it.
    fn open_device(&self, address: &Address) {
        let local = match address {
            Address::Internet { host, .. } => {
                host.parse().ok().filter(|address: &IpAddr| !address.is_unspecified())
            }
            Address::Unix(_) => None,
        };
        let rdma = self.rdma.clone();
        tokio::spawn(async move {
            if let Err(reason) = rdma.host(local).await {
                tracing::info!(%reason, "clients will not reach this server by RDMA");
            }
        });
    }

    async fn serve(self: Arc<Self>, accepted: listener::Accepted) {
        match accepted {
            listener::Accepted::Tcp(stream, info) => {
                let local = stream.local_addr().ok().map(|address| address.ip());
                self.serve_stream(stream, local, info).await;
            }
            listener::Accepted::Unix(stream, info) => self.serve_stream(stream, None, info).await,
        }
    }

    async fn serve_stream<S: Stream>(
        self: Arc<Self>,
        mut stream: S,
        local: Option<IpAddr>,
        info: ConnectionInfo,
    ) {
        let Ok(_permit) = Arc::clone(&self.connections).try_acquire_owned() else {
            let refused =
                native::refuse(&mut stream, &self.options.limits, "it has as many connections as it allows");
            let _ = tokio::time::timeout(self.handshake_timeout, refused).await;
            tracing::warn!(peer = %info.peer, "refused a connection: there are as many as allowed");
            return;
        };
        self.serve_permitted(stream, local, info, _permit).await;
    }

    async fn serve_permitted<S: Stream>(
        &self,
        stream: S,
        local: Option<IpAddr>,
        info: ConnectionInfo,
        _permit: OwnedSemaphorePermit,
    ) {
        let info = Arc::new(info);
        let peer = &info.peer;
        let begun = tokio::time::timeout(self.handshake_timeout, self.begin(stream, local, &info)).await;
        let (protocol, stream, first) = match begun {
            Err(_) => {
                return tracing::warn!(%peer, "cut off: it said no hello in {:?}", self.handshake_timeout);
            }
            // A probe of the port, or a client that thought better of it.
            Ok(Err(native::ConnectError::Closed)) => {
                return tracing::debug!(%peer, "it closed the connection before it had said what it speaks");
            }
            Ok(Err(error)) => return tracing::warn!(%peer, %error, "no connection"),
            Ok(Ok(Begun::Native(driver))) => {
                let _counted = Counted::new(Counted::TCP);
                let failure = driver.await;
                return tracing::debug!(%peer, reason = %failure, "the connection is over");
            }
            Ok(Ok(Begun::Rdma(task))) => {
                let _counted = Counted::new(Counted::RDMA);
                let Ended { failure, broken } = task.await;
                if broken {
                    return tracing::warn!(%peer, reason = %failure, "an RDMA connection failed");
                }
                return tracing::debug!(%peer, reason = %failure, "the connection is over");
            }
            Ok(Ok(Begun::Broken(reason))) => {
                return tracing::warn!(%peer, %reason, "no connection");
            }
            Ok(Ok(Begun::Other(protocol, stream, first))) => (protocol, stream, first),
        };
        #[cfg(feature = "grpc")]
        let (stream, first) = match self.serve_http(protocol, stream, first, &info) {
            Ok(served) => {
                let _counted = (protocol == Protocol::Http2).then(|| Counted::new(Counted::GRPC));
                let reason = served.await.err();
                return tracing::debug!(%peer, ?protocol, reason, "the connection is over");
            }
            Err(unserved) => unserved,
        };
        let why = if protocol == Protocol::Tls {
            "TLS is not part of this version"
        } else {
            "nobody here speaks that"
        };
        tracing::warn!(%peer, first = %first.escape_ascii(), ?protocol, "cut off: {why}");
        let told = foreign::turn_away(stream, protocol);
        let _ = tokio::time::timeout(self.handshake_timeout, told).await;
    }

    /// Serves a peer that speaks HTTP; gives the connection back when nobody here answers it.
    #[cfg(feature = "grpc")]
    fn serve_http<S: Stream>(
        &self,
        protocol: Protocol,
        stream: S,
        first: Bytes,
        info: &ConnectionInfo,
    ) -> Result<byway_tcp::grpc::Served, (S, Bytes)> {
        match (protocol, &self.web) {
            (Protocol::Http2, web) => {
                let host = byway_tcp::grpc::Host {
                    router: Arc::clone(&self.router),
                    web: web.clone(),
                    info: Arc::new(ConnectionInfo { link: "grpc", ..info.clone() }),
                    options: self.options,
                    settings_timeout: self.handshake_timeout,
                };
                Ok(byway_tcp::grpc::serve(stream, first, host, self.drain()))
            }
            (Protocol::Http1, Some(web)) => {
                let (web, limit) = (Arc::clone(web), self.handshake_timeout);
                Ok(byway_tcp::web::serve(stream, first, web, limit, self.drain()))
            }
            _ => Err((stream, first)),
        }
    }

    /// Waits until a connection is one, of whatever protocol.
    async fn begin<S: Stream>(
        &self,
        stream: S,
        local: Option<IpAddr>,
        info: &Arc<ConnectionInfo>,
    ) -> Result<Begun<S>, native::ConnectError> {
        let limits = &self.options.limits;
        let (mut greeted, reason) = match native::hear(stream, limits).await? {
            Heard::Native(greeted) if Extension::decode(&greeted.theirs.extension).offers() => {
                let host = self.rdma.host(local).await;
                let router = Arc::clone(&self.router);
                match rdma::server(host, greeted, info, self.options, router, self.drain()).await {
                    Concluded::Rdma(task) => return Ok(Begun::Rdma(task)),
                    Concluded::Broken(reason) => return Ok(Begun::Broken(reason)),
                    Concluded::Tcp(greeted, reason) => (greeted, Some(reason)),
                }
            }
            Heard::Native(greeted) => (greeted, None),
            Heard::Other(mut stream, mut first) => {
                let protocol = foreign::recognise(&mut stream, &mut first).await?;
                return Ok(Begun::Other(protocol, stream, first.freeze()));
            }
        };
        match reason {
            // The hello was part of the agreement.
            Some(reason) => tracing::info!(peer = %info.peer, %reason, "a client that has RDMA is on TCP"),
            None => native::answer(&mut greeted.io, limits, Bytes::new()).await?,
        }
        let (info, router) = (Arc::clone(info), Arc::clone(&self.router));
        let driver = native::server(greeted, info, self.options, router, self.drain());
        Ok(Begun::Native(Box::new(driver)))
    }

    fn drain(&self) -> Drain {
        let mut draining = self.draining.clone();
        Box::pin(async move {
            match draining.wait_for(Option::is_some).await.map(|until| *until) {
                Ok(Some(until)) => until,
                // The server's future was dropped: its connections end now.
                Ok(None) | Err(_) => Instant::now(),
            }
        })
    }
}

/// What a new connection turned out to be.
enum Begun<S> {
    Native(Box<Driver<S>>),
    Rdma(EndedFuture),
    /// Nobody knows what its peer concluded about RDMA.
    Broken(String),
    /// These bytes were read of it.
    Other(Protocol, S, Bytes),
}
