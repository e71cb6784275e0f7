//! The paths that the suite runs over: each joins a client to a server of the reference service.
//!
//! To add a path, write what opens it and add one entry to [`PATHS`]. Never: knows a case.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use byway::runtime::adapter::{HttpService, TowerHandler};
use byway::runtime::dispatch::Router;
use byway::runtime::{Call, Invoke, NewCall, ReadyFuture, StartError, loopback};
use byway::{Channel, Limits, Server, Transport};
use byway_test_support::reference::{Journal, Reference};
use byway_test_support::test::v1::echo_client::EchoClient;
use byway_test_support::test::v1::echo_server::EchoServer;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::trailing::{TRAILING, Trailing};

/// What calls are made over, whichever path it is.
pub(crate) type AnyPath = Arc<dyn Invoke>;

/// A way from a client to a server.
pub(crate) struct Path {
    pub(crate) name: &'static str,
    /// What handlers are told that their calls came by.
    pub(crate) link: &'static str,
    /// Cases that make no sense here, and why.
    pub(crate) unsupported: &'static [(&'static str, &'static str)],
    open: fn(Setup, Reference) -> Opening,
}

type Opening = Pin<Box<dyn Future<Output = Opened> + Send>>;

const ONE_CONNECTION: &str = "it is one connection, which nothing dials again";
const LOOPBACK: &[(&str, &str)] = &[
    ("new_calls_move_on_to_the_next_server", ONE_CONNECTION),
    ("calls_that_are_open_when_the_server_is_lost_fail_and_later_ones_do_not", ONE_CONNECTION),
];

const GRPC: &[(&str, &str)] = &[(
    "a_budget_bounds_what_waits_over_all_calls",
    "the window that HTTP/2 has for all calls makes senders wait, where byway's framing ends calls",
)];

pub(crate) const PATHS: &[Path] = &[
    Path {
        name: "loopback",
        link: "loopback",
        unsupported: LOOPBACK,
        open: |s, r| open_loopback(s, r, None),
    },
    // Every message but the smallest arrives after the frames behind it, as large ones do over RDMA.
    Path {
        name: "loopback_late",
        link: "loopback",
        unsupported: LOOPBACK,
        open: |s, r| open_loopback(s, r, Some(1)),
    },
    Path { name: "tcp", link: "tcp", unsupported: &[], open: open_tcp },
    Path { name: "unix", link: "unix", unsupported: &[], open: open_unix },
    Path { name: "grpc", link: "grpc", unsupported: GRPC, open: open_grpc },
];

/// What a case asks of both sides.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) client: Limits,
    pub(crate) server: Limits,
    /// The channel's default time-out.
    pub(crate) timeout: Option<Duration>,
    pub(crate) max_running: Option<usize>,
    pub(crate) drain_timeout: Duration,
    pub(crate) service: fn(EchoServer<Reference>) -> EchoServer<Reference>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            client: Limits::default(),
            server: Limits::default(),
            timeout: None,
            max_running: None,
            drain_timeout: Duration::from_secs(30),
            service: |service| service,
        }
    }
}

/// A client and a server that are joined.
pub(crate) struct World {
    pub(crate) channel: AnyPath,
    pub(crate) journal: Journal,
    opened: Opened,
    setup: Setup,
}

/// What a path gives.
struct Opened {
    channel: AnyPath,
    /// Tells the server to drain.
    drain: Option<oneshot::Sender<()>>,
    /// The server's task, where it is one.
    server: Option<JoinHandle<()>>,
    address: Option<String>,
    _directory: Option<tempfile::TempDir>,
}

impl Path {
    pub(crate) async fn open(&self, setup: Setup) -> World {
        let (reference, journal) = Reference::new();
        let opened = (self.open)(setup, reference).await;
        World { channel: Arc::clone(&opened.channel), journal, opened, setup }
    }
}

impl World {
    pub(crate) fn client(&self) -> EchoClient<AnyPath> {
        EchoClient::new(Arc::clone(&self.channel))
    }

    /// Drops the world's own hold on the channel.
    pub(crate) fn let_go_of_channel(&mut self) {
        self.channel = Arc::new(Nothing);
        self.opened.channel = Arc::new(Nothing);
    }

    /// Tells the server to take no new calls.
    pub(crate) fn drain(&mut self) {
        let drain = self.opened.drain.take().expect("a server drains once");
        drain.send(()).expect("the server is there");
    }

    /// Waits until a server that drains has stopped.
    pub(crate) async fn stopped(&mut self) {
        if let Some(server) = self.opened.server.take() {
            server.await.expect("the server did not panic");
        }
    }

    /// Takes the server away without a word.
    pub(crate) async fn lose_server(&mut self) {
        let server = self.opened.server.take().expect("a server that is a task");
        server.abort();
        assert!(server.await.expect_err("it was aborted").is_cancelled());
    }

    /// Starts another server where the first one listens, as soon as that one has stopped to.
    pub(crate) async fn successor(&mut self) -> Journal {
        let address = self.opened.address.clone().expect("a path with addresses");
        let (reference, journal) = Reference::new();
        let bound = loop {
            let server = server(&self.setup, &reference);
            match server.bind(address.as_str()).await {
                Ok(bound) => break bound,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let (drain, draining) = oneshot::channel();
        self.opened.drain = Some(drain);
        tokio::spawn(bound.serve_with_shutdown(signal(draining)));
        journal
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(server) = &self.opened.server {
            server.abort();
        }
    }
}

// ---- The paths ----

fn open_loopback(setup: Setup, reference: Reference, later_from: Option<usize>) -> Opening {
    Box::pin(async move {
        let mut router = Router::default();
        router.add_direct((setup.service)(EchoServer::new(reference))).expect("a new path");
        router.add_tower(TRAILING, TowerHandler::new(HttpService::new(Trailing))).expect("a new name");
        if let Some(max) = setup.max_running {
            router.limit_running(max);
        }
        let (drain, draining) = oneshot::channel();
        let drained = Box::pin(async move {
            signal(draining).await;
            Instant::now() + setup.drain_timeout
        });
        let client = Limits { max_calls: 0, ..setup.client };
        let options = loopback::Options { client, server: setup.server, later_from };
        let caller = loopback::connect_until(Arc::new(router), options, drained);
        let channel = Arc::new(Timed { inner: caller, timeout: setup.timeout });
        Opened { channel, drain: Some(drain), server: None, address: None, _directory: None }
    })
}

fn open_tcp(setup: Setup, reference: Reference) -> Opening {
    Box::pin(serve(setup, reference, "127.0.0.1:0".to_owned(), None, Transport::Tcp))
}

fn open_grpc(setup: Setup, reference: Reference) -> Opening {
    Box::pin(serve(setup, reference, "127.0.0.1:0".to_owned(), None, Transport::Grpc))
}

fn open_unix(setup: Setup, reference: Reference) -> Opening {
    static SOCKETS: AtomicUsize = AtomicUsize::new(0);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let name = format!("{}.sock", SOCKETS.fetch_add(1, Ordering::Relaxed));
    let socket: PathBuf = directory.path().join(name);
    Box::pin(serve(setup, reference, format!("unix:{}", socket.display()), Some(directory), Transport::Tcp))
}

async fn serve(
    setup: Setup,
    reference: Reference,
    address: String,
    directory: Option<tempfile::TempDir>,
    transport: Transport,
) -> Opened {
    let bound = server(&setup, &reference).bind(address).await.expect("a free address");
    let address = bound.listening().to_string();
    let (drain, draining) = oneshot::channel();
    let server = tokio::spawn(bound.serve_with_shutdown(signal(draining)));
    let mut builder = Channel::builder(&address).transport(transport).limits(setup.client);
    if let Some(timeout) = setup.timeout {
        builder = builder.timeout(timeout);
    }
    let channel = Arc::new(builder.connect().await.expect("a connection"));
    Opened {
        channel,
        drain: Some(drain),
        server: Some(server),
        address: Some(address),
        _directory: directory,
    }
}

fn server(setup: &Setup, reference: &Reference) -> byway::ServerBuilder {
    let builder = Server::builder()
        .add_service((setup.service)(EchoServer::new(reference.clone())))
        .add_tower_service(Trailing)
        .limits(setup.server)
        .drain_timeout(setup.drain_timeout);
    match setup.max_running {
        Some(max) => builder.max_concurrent_calls(max),
        None => builder,
    }
}

/// Resolves when the sender sends, and not when it is dropped.
async fn signal(draining: oneshot::Receiver<()>) {
    if draining.await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// A connection with a default time-out, which a channel has by itself.
struct Timed<I> {
    inner: I,
    timeout: Option<Duration>,
}

impl<I: Invoke> Invoke for Timed<I> {
    fn start(&self, call: &NewCall<'_>) -> Result<Call, StartError> {
        self.inner.start(call)
    }

    fn ready(&self) -> ReadyFuture<'_> {
        self.inner.ready()
    }

    fn default_timeout(&self) -> Option<Duration> {
        self.timeout
    }
}

/// What is left of a channel that was let go of.
struct Nothing;

impl Invoke for Nothing {
    fn start(&self, _: &NewCall<'_>) -> Result<Call, StartError> {
        unreachable!("the channel was let go of")
    }

    fn ready(&self) -> ReadyFuture<'_> {
        unreachable!("the channel was let go of")
    }
}
