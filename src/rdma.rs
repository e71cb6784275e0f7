//! RDMA for channels and servers: which device a connection uses, and what both sides agree on.
//!
//! Owns [`Rdma`]. Invariant: a device is opened once per process and settings, whatever number of channels and servers use
//! it, so that all of them share its memory; and every connection that does not get one knows why. Never: chooses
//! what to do instead.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use byway_rdma::bootstrap::{self, Agreed, Offering};
use byway_rdma::driver::{Driver, JoinedConnection};
use byway_rdma::nic::Adapter;
use byway_rdma::pool::Pool;
use byway_rdma::protocol::offer::Extension;
use byway_rdma::task::{Broken, Ended, Task};
use byway_rdma::verbs::{PortCounters, PortCounts, VerbsAdapter};
use byway_rdma::{Counted, Host, RdmaLink, Rings};
use byway_runtime::connection::Caller;
use byway_runtime::dispatch::{Drain, Router};
use byway_runtime::session::Role;
use byway_runtime::{ConnectionInfo, Options};
use byway_tcp::native::Greeted;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

pub use byway_rdma::RdmaOptions;

/// What the device of a channel has done so far, for all connections of this process that use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RdmaCounters {
    /// What the connections did.
    pub connections: Counted,
    /// What the device itself counts, for all processes; nothing where it is simulated.
    pub device: PortCounts,
}

/// For how long a device that could not be used is not looked for again: opening devices takes milliseconds.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// The RDMA that channels and servers use. Clones are the same; give one to all that should share a device's memory.
///
/// The default is one for the whole process, with default settings.
#[derive(Clone)]
pub struct Rdma(Arc<Source>);

enum Source {
    Off(String),
    Devices(Arc<Devices>),
    #[cfg(feature = "testing")]
    Simulated(Arc<Host<byway_rdma::sim::SimAdapter>>),
}

struct Devices {
    options: RdmaOptions,
    state: Mutex<Opened>,
}

#[derive(Default)]
struct Opened {
    /// By what tells devices, ports and addresses apart.
    hosts: HashMap<String, Arc<Host<VerbsAdapter>>>,
    /// By the local address of connections.
    chosen: HashMap<Option<IpAddr>, Chosen>,
}

/// A device, or why there is none and until when nobody looks again.
type Chosen = Result<Arc<Host<VerbsAdapter>>, (String, Instant)>;

/// A device of either kind.
pub(crate) enum AnyHost {
    Device(Arc<Host<VerbsAdapter>>),
    #[cfg(feature = "testing")]
    Simulated(Arc<Host<byway_rdma::sim::SimAdapter>>),
}

/// Does the same with either kind of host.
macro_rules! with_host {
    ($host:expr, $name:ident => $use:expr) => {
        match $host {
            AnyHost::Device($name) => $use,
            #[cfg(feature = "testing")]
            AnyHost::Simulated($name) => $use,
        }
    };
}

impl Rdma {
    /// RDMA with these settings, on devices of its own registrations.
    pub fn new(options: RdmaOptions) -> Self {
        Self(Arc::new(Source::Devices(Arc::new(Devices { options, state: Mutex::default() }))))
    }

    /// No RDMA, for this reason, which both sides are told.
    pub fn off(reason: impl Into<String>) -> Self {
        Self(Arc::new(Source::Off(reason.into())))
    }

    /// RDMA by a simulated device.
    #[cfg(feature = "testing")]
    pub fn simulated(adapter: byway_rdma::sim::SimAdapter, options: RdmaOptions) -> Self {
        Self(Arc::new(Source::Simulated(Host::new(adapter, "simulated", options))))
    }

    fn options(&self) -> RdmaOptions {
        match &*self.0 {
            Source::Off(_) => RdmaOptions::default(),
            Source::Devices(devices) => devices.options.clone(),
            #[cfg(feature = "testing")]
            Source::Simulated(host) => host.options().clone(),
        }
    }

    /// How long a connection may take to agree on RDMA.
    pub(crate) fn agreement_timeout(&self) -> Duration {
        self.options().agreement_timeout
    }

    /// For how long it is given up when it failed.
    pub(crate) fn retry_after(&self) -> Duration {
        self.options().retry_after
    }

    /// The device for connections from this local address.
    ///
    /// # Errors
    /// Why there is none, and what to do about it.
    pub(crate) async fn host(&self, local: Option<IpAddr>) -> Result<AnyHost, String> {
        match &*self.0 {
            Source::Off(reason) => Err(reason.clone()),
            #[cfg(feature = "testing")]
            Source::Simulated(host) => Ok(AnyHost::Simulated(Arc::clone(host))),
            Source::Devices(devices) => {
                let devices = Arc::clone(devices);
                // Opening a device reads files and talks to drivers.
                match tokio::task::spawn_blocking(move || devices.host(local)).await {
                    Ok(host) => host.map(AnyHost::Device),
                    Err(error) => Err(format!("looking for a device failed: {error}")),
                }
            }
        }
    }
}

impl Default for Rdma {
    fn default() -> Self {
        static SHARED: OnceLock<Rdma> = OnceLock::new();
        SHARED.get_or_init(|| Self::new(RdmaOptions::default())).clone()
    }
}

impl fmt::Debug for Rdma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Source::Off(reason) => write!(f, "Rdma(off: {reason})"),
            Source::Devices(devices) => write!(f, "Rdma({:?})", devices.options.choice),
            #[cfg(feature = "testing")]
            Source::Simulated(_) => f.write_str("Rdma(simulated)"),
        }
    }
}

impl Devices {
    fn host(&self, local: Option<IpAddr>) -> Result<Arc<Host<VerbsAdapter>>, String> {
        let mut opened = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match opened.chosen.get(&local) {
            Some(Ok(host)) => return Ok(Arc::clone(host)),
            Some(Err((reason, until))) if Instant::now() < *until => return Err(reason.clone()),
            _ => {}
        }
        let host = self.open(&mut opened, local);
        let known = host.clone().map_err(|reason| (reason, Instant::now() + LOOK_AGAIN));
        // Servers of many addresses are few; clients come from few as well.
        if opened.chosen.len() >= 1024 {
            opened.chosen.clear();
        }
        opened.chosen.insert(local, known);
        host
    }

    fn open(&self, opened: &mut Opened, local: Option<IpAddr>) -> Result<Arc<Host<VerbsAdapter>>, String> {
        let mut choice = self.options.choice.clone();
        choice.local = choice.local.or(local);
        // The trial proves what opening does not: that memory can be locked and a queue pair created.
        let located = byway_rdma::verbs::probe(&choice).map_err(|unavailable| unavailable.to_string())?;
        let (name, gid) = (located.context.name().to_owned(), located.gid);
        let key = format!("{name} {} {}", located.port.number, gid.index);
        if let Some(host) = opened.hosts.get(&key) {
            return Ok(Arc::clone(host));
        }
        let adapter = VerbsAdapter::open(&choice, self.options.shared_receives);
        let adapter = adapter.map_err(|unavailable| unavailable.to_string())?;
        let text = format!("{name} port {}", located.port.number);
        let host = Host::new(adapter, text, self.options.clone());
        opened.hosts.insert(key, Arc::clone(&host));
        Ok(host)
    }
}

impl AnyHost {
    /// The device, for people.
    pub(crate) fn name(&self) -> &str {
        with_host!(self, host => host.name())
    }

    /// Registered memory for callers.
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        with_host!(self, host => host.pool())
    }

    pub(crate) fn counters(&self) -> RdmaCounters {
        let connections = with_host!(self, host => host.counters());
        let device = match self {
            Self::Device(host) => PortCounters::of(host.adapter().located()).read(),
            #[cfg(feature = "testing")]
            Self::Simulated(_) => PortCounts::default(),
        };
        RdmaCounters { connections, device }
    }
}

/// What a client says in its hello, and the queue pair behind it.
pub(crate) enum AnyOffering {
    Device(Box<Offering<VerbsAdapter>>),
    #[cfg(feature = "testing")]
    Simulated(Box<Offering<byway_rdma::sim::SimAdapter>>),
}

impl AnyOffering {
    pub(crate) fn new(host: Result<&AnyHost, String>, options: &Options) -> Self {
        match host {
            Err(reason) => Self::Device(Box::new(bootstrap::offer(Err(reason), &options.limits))),
            Ok(AnyHost::Device(host)) => Self::Device(Box::new(bootstrap::offer(Ok(host), &options.limits))),
            #[cfg(feature = "testing")]
            Ok(AnyHost::Simulated(host)) => {
                Self::Simulated(Box::new(bootstrap::offer(Ok(host), &options.limits)))
            }
        }
    }

    /// Gives the agreement this much time.
    pub(crate) fn within(mut self, limit: Duration) -> Self {
        match &mut self {
            Self::Device(offering) => offering.limit = Some(limit),
            #[cfg(feature = "testing")]
            Self::Simulated(offering) => offering.limit = Some(limit),
        }
        self
    }

    pub(crate) fn extension(&self) -> &Extension {
        match self {
            Self::Device(offering) => &offering.extension,
            #[cfg(feature = "testing")]
            Self::Simulated(offering) => &offering.extension,
        }
    }
}

/// What became of a connection whose sides have said hello.
pub(crate) enum Concluded<R, S> {
    /// It goes by RDMA.
    Rdma(R),
    /// It goes on over TCP, for this reason.
    Tcp(Greeted<S>, String),
    /// It is of no use, for this reason.
    Broken(String),
}

impl<R, S> Concluded<R, S> {
    /// Goes on where it goes by RDMA; an error is why its task cannot sleep on the device.
    fn and_watched<T>(self, go_on: impl FnOnce(R) -> io::Result<T>) -> Concluded<T, S> {
        match self {
            Self::Rdma(connection) => match go_on(connection) {
                Ok(watched) => Concluded::Rdma(watched),
                Err(error) => Concluded::Broken(format!("the device cannot be watched: {error}")),
            },
            Self::Tcp(greeted, reason) => Concluded::Tcp(greeted, reason),
            Self::Broken(reason) => Concluded::Broken(reason),
        }
    }
}

/// A client's connection by RDMA. The future is its task.
pub(crate) struct ClientConnection {
    pub(crate) caller: Caller<RdmaLink>,
    pub(crate) task: EndedFuture,
}

/// Drops the task of a connection that has ended. Not where other tasks wait for the thread: destroying a queue pair takes
/// seconds on devices that wait for packets which the network does not take.
pub(crate) async fn let_go(task: EndedFuture) {
    // It fails only together with its runtime.
    let _ = tokio::task::spawn_blocking(move || drop(task)).await;
}

pub(crate) type EndedFuture = std::pin::Pin<Box<dyn Future<Output = Ended> + Send>>;

/// As a client, after both hellos. `broken` is told when the queue pair has failed, before the calls are.
pub(crate) async fn client<S>(
    offering: AnyOffering,
    mut greeted: Greeted<S>,
    info: &ConnectionInfo,
    options: Options,
    broken: Broken,
) -> Concluded<ClientConnection, S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    match offering {
        AnyOffering::Device(offering) => {
            let agreed = agree_client(*offering, &mut greeted, &options).await;
            client_concluded(agreed, greeted, info, options, broken)
        }
        #[cfg(feature = "testing")]
        AnyOffering::Simulated(offering) => {
            let agreed = agree_client(*offering, &mut greeted, &options).await;
            client_concluded(agreed, greeted, info, options, broken)
        }
    }
}

async fn agree_client<A, S>(offering: Offering<A>, greeted: &mut Greeted<S>, options: &Options) -> Agreed<A>
where
    A: Adapter,
    A::Nic: Rings,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Greeted { io, buffer, theirs } = greeted;
    bootstrap::client(offering, io, buffer, &options.limits, theirs).await
}

fn client_concluded<A, S>(
    agreed: Agreed<A>,
    greeted: Greeted<S>,
    info: &ConnectionInfo,
    options: Options,
    broken: Broken,
) -> Concluded<ClientConnection, S>
where
    A: Adapter,
    A::Nic: Rings,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    joined(agreed, greeted, Role::Client, info, options).and_watched(|(driver, io, read)| {
        let caller = Caller(Arc::clone(driver.connection()));
        let task = Task::client(driver, io, options.keepalive)?;
        Ok(ClientConnection { caller, task: Box::pin(task.having_read(read).when_broken(broken)) })
    })
}

/// As a server, after the client's hello, which this answers. The future serves the connection.
pub(crate) async fn server<S>(
    host: Result<AnyHost, String>,
    mut greeted: Greeted<S>,
    info: &ConnectionInfo,
    options: Options,
    router: Arc<Router>,
    drain: Drain,
) -> Concluded<EndedFuture, S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    match host {
        #[cfg(feature = "testing")]
        Ok(AnyHost::Simulated(host)) => {
            let agreed = agree_server(Ok(&host), &mut greeted, &options).await;
            server_concluded(agreed, greeted, info, options, router, drain)
        }
        host => {
            let host = match host {
                Ok(AnyHost::Device(host)) => Ok(host),
                #[cfg(feature = "testing")]
                Ok(AnyHost::Simulated(_)) => Err("this server has no device".into()),
                Err(reason) => Err(reason),
            };
            let agreed = agree_server(host.as_ref().map_err(Clone::clone), &mut greeted, &options).await;
            server_concluded(agreed, greeted, info, options, router, drain)
        }
    }
}

async fn agree_server<A, S>(
    host: Result<&Arc<Host<A>>, String>,
    greeted: &mut Greeted<S>,
    options: &Options,
) -> Agreed<A>
where
    A: Adapter,
    A::Nic: Rings,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Greeted { io, buffer, theirs } = greeted;
    bootstrap::server(host, io, buffer, &options.limits, theirs).await
}

fn server_concluded<A, S>(
    agreed: Agreed<A>,
    greeted: Greeted<S>,
    info: &ConnectionInfo,
    options: Options,
    router: Arc<Router>,
    drain: Drain,
) -> Concluded<EndedFuture, S>
where
    A: Adapter,
    A::Nic: Rings,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    joined(agreed, greeted, Role::Server, info, options).and_watched(|(driver, io, read)| {
        let task = Task::server(driver, io, options.keepalive, router, drain)?;
        Ok(Box::pin(task.having_read(read)) as EndedFuture)
    })
}

fn joined<A: Adapter, S>(
    agreed: Agreed<A>,
    greeted: Greeted<S>,
    role: Role,
    info: &ConnectionInfo,
    options: Options,
) -> Concluded<(Driver<A>, S, BytesMut), S> {
    match agreed {
        Agreed::Rdma(joined) => {
            let info = Arc::new(ConnectionInfo { link: "rdma", ..info.clone() });
            let connection: JoinedConnection<A> =
                joined.connection(role, options.limits, greeted.theirs.limits, info);
            Concluded::Rdma((Driver::new(connection), greeted.io, greeted.buffer))
        }
        Agreed::Tcp(reason) => Concluded::Tcp(greeted, reason),
        Agreed::Broken(reason) => Concluded::Broken(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::Path;
    use crate::{Channel, Server};

    /// As long as opening takes, the first calls go over TCP.
    #[tokio::test]
    async fn a_device_that_takes_long_to_open_holds_up_no_call() {
        let options = RdmaOptions { agreement_timeout: Duration::from_millis(50), ..RdmaOptions::default() };
        let rdma = Rdma::new(options);
        let (opened, opens) = std::sync::mpsc::channel::<()>();
        let slow = rdma.clone();
        let (begun, begins) = tokio::sync::oneshot::channel();
        let opening = std::thread::spawn(move || {
            let Source::Devices(devices) = &*slow.0 else { panic!("it has devices") };
            let _state = devices.state.lock();
            begun.send(()).expect("the test waits");
            opens.recv().expect("the test goes on");
        });
        begins.await.expect("it is being opened");
        let server = Server::builder().rdma(Rdma::off("it is not asked")).bind("127.0.0.1:0").await;
        let server = server.expect("a free port");
        let address = server.listening().to_string();
        let serving = tokio::spawn(server.serve());
        let builder =
            Channel::builder(address.as_str()).rdma(rdma).connect_timeout(Duration::from_secs(3600));
        let channel = builder.connect().await.expect("a connection");
        let Path::Tcp { why_not_better: Some(why) } = channel.path() else { panic!("{}", channel.path()) };
        assert_eq!(why, "this side does not use RDMA: opening its device takes longer than 50.0ms");
        opened.send(()).expect("it waits");
        opening.join().expect("no panic");
        serving.abort();
    }
}
