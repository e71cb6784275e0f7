//! A channel: calls to one address, whatever happens to its connections.
//!
//! Owns dialling, reconnecting and the choice of path. Connections are made when a call needs one, one attempt at a time
//! for all callers; after a failure calls fail at once, with the reason, until the wait of the back-off is over.
//! Invariant: a call that was never sent moves to the next connection; one that may have been is never sent again.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use byway_runtime::adapter::{self, ResponseBody};
use byway_runtime::{Call, Invoke, Limits, NewCall, ReadyFuture, StartError};
use byway_tcp::{Keepalive, Options};
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Status;
use tower_service::Service;

use crate::address::{AddressError, Target};
use crate::backoff::Backoff;
use crate::buffer::PayloadBuffer;
use crate::dial::{Connection, Dial};
use crate::error::ConnectError;
use crate::path::{Path, TRANSPORT_VARIABLE, Transport};
use crate::rdma::{Rdma, RdmaCounters};

/// A connection that was lost sooner than this was none: so end those to a server that is being drained, or that breaks
/// the protocol.
const SHORT_LIVED: Duration = Duration::from_secs(1);

/// So many short-lived connections in a row, and the next one waits for its back-off, as if connecting had failed. One
/// more than a call makes when servers refuse it, since a pool that is being restarted may do so several times.
const MAX_SHORT_LIVED: u32 = 5;

/// Makes calls to one address. Cheap to clone; clones share their connection.
///
/// Generated clients take it, and so do stock tonic clients: it is a `tower` service of HTTP requests too.
#[derive(Clone)]
pub struct Channel {
    inner: Arc<Inner>,
}

struct Inner {
    dial: Dial,
    timeout: Option<Duration>,
    state: Mutex<State>,
}

/// Tells how an attempt ended.
type Attempt = watch::Receiver<Option<Result<(), Status>>>;

#[derive(Default)]
struct State {
    connection: Option<Arc<Connection>>,
    /// When it was made.
    since: Option<Instant>,
    /// Connections in a row that were lost as soon as they were made.
    short_lived: u32,
    /// The attempt that is under way; it sends how it ended.
    attempt: Option<Attempt>,
    backoff: Backoff,
    /// Until when calls fail at once.
    hold_until: Option<Instant>,
    /// Why there is no connection, when there was one or an attempt failed.
    reason: Option<String>,
}

/// How a [`Channel`] is to be made.
#[derive(Debug, Clone)]
pub struct ChannelBuilder {
    target: Result<Target, AddressError>,
    transport: Transport,
    options: Options,
    rdma: Rdma,
    connect_timeout: Duration,
    timeout: Option<Duration>,
}

impl ChannelBuilder {
    /// Which transport to use. Default: [`Transport::Auto`], which the environment variable `BYWAY_TRANSPORT` (`auto`,
    /// `rdma`, `tcp` or `grpc`) overrides.
    #[must_use]
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// Which RDMA to use, where both sides have it. Default: one for the whole process, with default settings.
    #[must_use]
    pub fn rdma(mut self, rdma: Rdma) -> Self {
        self.rdma = rdma;
        self
    }

    /// How long connecting may take, name resolution and hello included. Default 5 s.
    #[must_use]
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// How long a call may take whose request has no time-out of its own. Default: no limit.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// What this side accepts.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.options.limits = limits.acceptable();
        self
    }

    /// When to ask a silent server for a sign of life, and when to give up on it.
    #[must_use]
    pub fn keepalive(mut self, keepalive: Keepalive) -> Self {
        self.options.keepalive = keepalive;
        self
    }

    /// Connects now.
    ///
    /// # Errors
    /// Why there is no connection.
    pub async fn connect(self) -> Result<Channel, ConnectError> {
        let channel = self.connect_lazy()?;
        let connection = channel.inner.dial.attempt().await?;
        channel.inner.connected(connection);
        Ok(channel)
    }

    /// Connects when the first call is made.
    ///
    /// # Errors
    /// The target is not an address, or the transport is not there.
    pub fn connect_lazy(self) -> Result<Channel, ConnectError> {
        let Target { address, transport: only } = self.target?;
        let transport = match (only, self.transport) {
            (Transport::Auto, transport) => {
                let variable = std::env::var(TRANSPORT_VARIABLE).ok();
                transport.resolve(variable.as_deref())?
            }
            (only, Transport::Auto) => only.resolve(None)?,
            (only, transport) if only == transport => only.resolve(None)?,
            (only, transport) => {
                let reason = format!("the target names another, \"{only}\": write it as byway://{address}");
                return Err(ConnectError::Unavailable { transport, reason });
            }
        };
        let limits = Limits { max_calls: 0, ..self.options.limits };
        let options = Options { limits, ..self.options };
        let (rdma, limit, remembered) = (self.rdma, self.connect_timeout, Arc::default());
        let dial = Dial { address, transport, options, rdma, limit, remembered };
        let inner = Inner { dial, timeout: self.timeout, state: Mutex::default() };
        Ok(Channel { inner: Arc::new(inner) })
    }
}

impl Channel {
    /// Connects to `target`: `byway://host:port`, `host:port` or `unix:///path`, and `grpc://host:port` for a server that is
    /// to be reached over HTTP/2. The other forms come to that by themselves when the peer speaks nothing else.
    ///
    /// # Errors
    /// Why there is no connection.
    pub async fn connect(target: impl AsRef<str>) -> Result<Self, ConnectError> {
        Self::builder(target.as_ref()).connect().await
    }

    /// A channel to `target` with other settings than the default ones.
    pub fn builder<A>(target: A) -> ChannelBuilder
    where
        A: TryInto<Target>,
        AddressError: From<A::Error>,
    {
        ChannelBuilder {
            target: target.try_into().map_err(AddressError::from),
            transport: Transport::default(),
            options: Options::default(),
            rdma: Rdma::default(),
            connect_timeout: Duration::from_secs(5),
            timeout: None,
        }
    }

    /// Memory for a payload of `len` bytes that is to be sent by this channel. When the channel is on RDMA it is registered
    /// with the device, and a message that holds [frozen](PayloadBuffer::freeze) parts of it is sent without copying
    /// them. Otherwise, or when such memory is used up, it is ordinary memory, and everything works all the same. The
    /// bytes may hold what this process sent or received earlier.
    pub fn buffer(&self, len: usize) -> PayloadBuffer {
        let connection = self.inner.connection();
        let device = connection.as_ref().and_then(|connection| connection.device());
        match device.map(|device| device.pool().lease(len)) {
            Some(Ok(lease)) => PayloadBuffer::registered(lease),
            _ => PayloadBuffer::plain(len),
        }
    }

    /// What the device that calls go by has done so far; `None` when they go by none.
    pub fn rdma_counters(&self) -> Option<RdmaCounters> {
        Some(self.inner.connection()?.device()?.counters())
    }

    /// Which path calls take at this moment, and why not a better one.
    pub fn path(&self) -> Path {
        let state = self.inner.lock();
        match &state.connection {
            Some(connection) => match connection.closed() {
                Some(status) => Path::Disconnected { reason: Some(status.message().to_owned()) },
                None => connection.path().clone(),
            },
            None => Path::Disconnected { reason: state.reason.clone() },
        }
    }
}

impl State {
    fn connected(&mut self, connection: Arc<Connection>) {
        self.connection = Some(connection);
        self.since = Some(Instant::now());
        self.hold_until = None;
        self.reason = None;
    }

    fn lost(&mut self, status: &Status) {
        self.connection = None;
        self.reason = Some(status.message().to_owned());
        if self.since.take().is_some_and(|since| since.elapsed() >= SHORT_LIVED) {
            self.short_lived = 0;
            self.backoff.succeeded();
            return;
        }
        self.short_lived = self.short_lived.saturating_add(1);
        if self.short_lived >= MAX_SHORT_LIVED {
            self.hold();
        }
    }

    /// Lets calls fail for a while; returns how long.
    fn hold(&mut self) -> Duration {
        let wait = self.backoff.failed(fastrand::f64());
        self.hold_until = Some(Instant::now() + wait);
        wait
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on with a new connection. When it is not by RDMA because RDMA failed, that is tried again in due time, while
    /// calls go on here.
    fn connected(self: &Arc<Self>, connection: Connection) {
        let retry_at = match connection.path() {
            Path::Tcp { why_not_better: Some(_) } | Path::Unix { why_not_better: Some(_) } => {
                self.dial.remembered.retry_at()
            }
            _ => None,
        };
        let connection = Arc::new(connection);
        self.lock().connected(Arc::clone(&connection));
        if let Some(at) = retry_at {
            tokio::spawn(Self::improve(Arc::downgrade(self), Arc::downgrade(&connection), at));
        }
    }

    /// Replaces a connection by one over RDMA, as soon as there can be one. Calls that are open stay where they are.
    async fn improve(inner: Weak<Self>, replaced: Weak<Connection>, mut at: Instant) {
        loop {
            tokio::time::sleep_until(at).await;
            let (Some(inner), Some(current)) = (inner.upgrade(), replaced.upgrade()) else { return };
            if let Ok(better) = inner.dial.attempt().await
                && better.device().is_some()
            {
                let mut state = inner.lock();
                if state.connection.as_ref().is_some_and(|known| Arc::ptr_eq(known, &current)) {
                    tracing::info!(target = %inner.dial.address, path = %better.path(), "RDMA works again");
                    state.connected(Arc::new(better));
                }
                return;
            }
            inner.dial.remembered.still_failed(Instant::now());
            match inner.dial.remembered.retry_at() {
                Some(next) => at = next.max(Instant::now() + SHORT_LIVED),
                None => return,
            }
        }
    }

    /// The connection, if it takes calls.
    fn connection(&self) -> Option<Arc<Connection>> {
        self.lock().connection.clone()
    }

    /// Forgets a connection that takes no calls any more.
    fn lost(&self, connection: &Arc<Connection>, status: &Status) {
        let mut state = self.lock();
        if state.connection.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            state.lost(status);
        }
    }

    /// Joins the attempt that is under way, or begins one; `None` when somebody else's has ended with a connection
    /// meanwhile.
    fn attempt(self: &Arc<Self>) -> Result<Option<Attempt>, Status> {
        let mut state = self.lock();
        if let Some(attempt) = &state.attempt {
            return Ok(Some(attempt.clone()));
        }
        if state.connection.is_some() {
            return Ok(None);
        }
        let now = Instant::now();
        if let Some(wait) = state.hold_until.and_then(|until| until.checked_duration_since(now)) {
            let reason = state.reason.as_deref().unwrap_or("the last attempt to connect failed");
            return Err(Status::unavailable(format!("{reason} (the next attempt is due in {wait:.1?})")));
        }
        let (sender, receiver) = watch::channel(None);
        state.attempt = Some(receiver.clone());
        drop(state);
        // A task of its own, since the caller who began it may go while others wait for it.
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            let result = inner.dial.attempt().await;
            let ended = inner.attempt_ended(result);
            sender.send_replace(Some(ended));
        });
        Ok(Some(receiver))
    }

    fn attempt_ended(self: &Arc<Self>, result: Result<Connection, ConnectError>) -> Result<(), Status> {
        let mut state = self.lock();
        state.attempt = None;
        match result {
            Ok(connection) => {
                drop(state);
                self.connected(connection);
                Ok(())
            }
            Err(error) => {
                let wait = state.hold();
                let text = error.to_string();
                tracing::warn!(target = %self.dial.address, error = %text, ?wait, "no connection");
                state.reason = Some(text.clone());
                Err(Status::unavailable(text))
            }
        }
    }

    async fn until_ready(self: &Arc<Self>) -> Result<(), Status> {
        loop {
            if let Some(connection) = self.connection() {
                match connection.ready().await {
                    Ok(()) => return Ok(()),
                    Err(status) => self.lost(&connection, &status),
                }
            }
            let Some(mut attempt) = self.attempt()? else { continue };
            let ended = attempt.wait_for(Option::is_some).await;
            return match ended.as_deref() {
                Ok(Some(result)) => result.clone(),
                Ok(None) | Err(_) => Err(Status::unavailable("the runtime that was connecting has stopped")),
            };
        }
    }
}

impl Invoke for Channel {
    fn start(&self, call: &NewCall<'_>) -> Result<Call, StartError> {
        let Some(connection) = self.inner.connection() else { return Err(StartError::Busy) };
        match connection.start(call) {
            Err(StartError::Closed(status)) => {
                self.inner.lost(&connection, &status);
                Err(StartError::Busy)
            }
            started => started,
        }
    }

    fn ready(&self) -> ReadyFuture<'_> {
        Box::pin(self.inner.until_ready())
    }

    fn default_timeout(&self) -> Option<Duration> {
        self.inner.timeout
    }
}

impl Service<http::Request<tonic::body::Body>> for Channel {
    type Response = http::Response<ResponseBody>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        // Whether a call must wait is known only when it starts.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        Box::pin(adapter::call(self.clone(), request))
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Channel");
        debug.field("address", &self.inner.dial.address).field("path", &self.path()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Server;

    /// A caller that saw the old connection end, and looks only when another caller has made the new one.
    #[tokio::test]
    async fn a_caller_that_comes_late_takes_the_connection_that_there_is() {
        let server = Server::builder().rdma(Rdma::off("it is not asked")).bind("127.0.0.1:0").await;
        let server = server.expect("a free port");
        let address = server.listening().to_string();
        let serving = tokio::spawn(server.serve());
        let channel = Channel::builder(address.as_str()).connect_lazy().expect("an address");
        assert!(channel.inner.attempt().expect("no back-off").is_some(), "the first one dials");
        channel.inner.until_ready().await.expect("it is served");
        assert!(channel.inner.attempt().expect("no back-off").is_none(), "the second one need not");
        channel.inner.until_ready().await.expect("it is served");
        serving.abort();
    }
}
