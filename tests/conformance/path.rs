//! The paths that the suite runs over: each joins a client to a server of the reference service.
//!
//! To add a path, write what opens it and add one entry to [`PATHS`]. What tonic does at either end is in `stock.rs`.
//! Never: knows a case.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use byway::runtime::adapter::{HttpService, TowerHandler};
use byway::runtime::dispatch::Router;
use byway::runtime::{Call, Invoke, NewCall, ReadyFuture, StartError, loopback};
use byway::testing::{Delays, Fabric, FabricOptions, Progress, SimNicOptions};
use byway::{Channel, Limits, Rdma, RdmaOptions, Server, Transport};
use byway_test_support::reference::{Journal, Reference};
use byway_test_support::test::v1::echo_client::EchoClient;
use byway_test_support::test::v1::echo_server::EchoServer;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::client::Client;
use crate::exclusions::{Exclusions, GRPC, TONIC_CLIENT, TONIC_SERVER};
use crate::stock;
use crate::trailing::{TRAILING, Trailing};

/// What calls are made over, whichever path it is.
pub(crate) type AnyPath = Arc<dyn Invoke>;

/// A way from a client to a server.
pub(crate) struct Path {
    pub(crate) name: &'static str,
    /// What handlers are told that their calls came by.
    pub(crate) link: &'static str,
    /// Cases that make no sense here, and why.
    pub(crate) unsupported: Exclusions,
    open: fn(Setup, Reference) -> Opening,
    /// Why this machine does not have it, if so.
    missing: fn() -> Option<String>,
}

fn is_everywhere() -> Option<String> {
    None
}

type Opening = Pin<Box<dyn Future<Output = Opened> + Send>>;

const ONE_CONNECTION: &str = "it is one connection, which nothing dials again";
const LOOPBACK: Exclusions = &[
    ("new_calls_move_on_to_the_next_server", ONE_CONNECTION),
    ("calls_that_are_open_when_the_server_is_lost_fail_and_later_ones_do_not", ONE_CONNECTION),
];

pub(crate) const PATHS: &[Path] = &[
    Path {
        name: "loopback",
        link: "loopback",
        unsupported: LOOPBACK,
        open: |s, r| open_loopback(s, r, None),
        missing: is_everywhere,
    },
    // Every message but the smallest arrives after the frames behind it, as large ones do over RDMA.
    Path {
        name: "loopback_late",
        link: "loopback",
        unsupported: LOOPBACK,
        open: |s, r| open_loopback(s, r, Some(1)),
        missing: is_everywhere,
    },
    Path { name: "tcp", link: "tcp", unsupported: &[], open: open_tcp, missing: is_everywhere },
    Path { name: "unix", link: "unix", unsupported: &[], open: open_unix, missing: is_everywhere },
    // RDMA by simulated devices, and nothing else.
    Path { name: "rdma_sim", link: "rdma", unsupported: &[], open: open_rdma_sim, missing: is_everywhere },
    // RDMA by whatever device this machine has, and nothing else.
    Path { name: "rdma_device", link: "rdma", unsupported: &[], open: open_rdma_device, missing: no_device },
    // HTTP/2: with byway on both sides, and with tonic on either.
    Path { name: "grpc", link: "grpc", unsupported: GRPC, open: open_grpc, missing: is_everywhere },
    Path {
        name: "tonic_client",
        link: "grpc",
        unsupported: TONIC_CLIENT,
        open: open_tonic_client,
        missing: is_everywhere,
    },
    Path {
        name: "tonic_server",
        link: "",
        unsupported: TONIC_SERVER,
        open: open_tonic_server,
        missing: is_everywhere,
    },
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
    /// Largest request that the service takes.
    pub(crate) max_decoding: Option<usize>,
    /// Largest reply that the service gives.
    pub(crate) max_encoding: Option<usize>,
    /// Devices of both sides; without them they have none.
    pub(crate) rdma: Option<&'static Sides>,
}

/// One device for each side.
pub(crate) struct Sides {
    client: Rdma,
    server: Rdma,
}

fn no_rdma() -> Rdma {
    Rdma::off("this path goes without")
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            client: Limits::default(),
            server: Limits::default(),
            timeout: None,
            max_running: None,
            drain_timeout: Duration::from_secs(30),
            max_decoding: None,
            max_encoding: None,
            rdma: None,
        }
    }
}

/// A client and a server that are joined.
pub(crate) struct World {
    /// For calls at byway's own seam, which a stock client does not have.
    pub(crate) channel: AnyPath,
    pub(crate) journal: Journal,
    opened: Opened,
}

/// What a path gives.
struct Opened {
    channel: AnyPath,
    client: Client,
    /// Tells the server to drain.
    drain: Option<oneshot::Sender<()>>,
    /// The server's task, where it is one.
    server: Option<JoinHandle<()>>,
    /// Where the server listens, and what starts another one there.
    place: Option<(String, Serve, Setup)>,
    _directory: Option<tempfile::TempDir>,
}

/// Starts a server; `None` while somebody else listens there.
type Serve = fn(Setup, Reference, String) -> Serving;
pub(crate) type Serving = Pin<Box<dyn Future<Output = Option<Served>> + Send>>;

/// A server that runs.
pub(crate) struct Served {
    pub(crate) address: String,
    pub(crate) drain: oneshot::Sender<()>,
    pub(crate) task: JoinHandle<()>,
}

impl Path {
    pub(crate) fn missing(&self) -> Option<String> {
        (self.missing)()
    }

    pub(crate) async fn open(&self, setup: Setup) -> World {
        let (reference, journal) = Reference::new();
        let opened = (self.open)(setup, reference).await;
        World { channel: Arc::clone(&opened.channel), journal, opened }
    }
}

impl World {
    pub(crate) fn client(&self) -> Client {
        self.opened.client.clone()
    }

    /// Drops the world's own hold on the channel.
    pub(crate) fn let_go_of_channel(&mut self) {
        self.channel = Arc::new(Nothing);
        self.opened.channel = Arc::new(Nothing);
        self.opened.client = Client::Byway(EchoClient::new(Arc::new(Nothing)));
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
        let (address, serve, setup) = self.opened.place.clone().expect("a path with addresses");
        let (reference, journal) = Reference::new();
        let served = loop {
            match serve(setup, reference.clone(), address.clone()).await {
                Some(served) => break served,
                None => tokio::task::yield_now().await,
            }
        };
        self.opened.drain = Some(served.drain);
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
        router.add_direct(service(&setup, reference)).expect("a new path");
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
        let channel: AnyPath = Arc::new(Timed { inner: caller, timeout: setup.timeout });
        let client = Client::Byway(EchoClient::new(Arc::clone(&channel)));
        Opened { channel, client, drain: Some(drain), server: None, place: None, _directory: None }
    })
}

fn open_tcp(setup: Setup, reference: Reference) -> Opening {
    Box::pin(join(setup, reference, ANY_PORT.to_owned(), serve_byway, Transport::Auto))
}

fn no_device() -> Option<String> {
    byway_rdma::verbs::probe(&byway_rdma::verbs::DeviceChoice::default()).err().map(|why| why.to_string())
}

fn open_rdma_device(setup: Setup, reference: Reference) -> Opening {
    static SIDES: OnceLock<Sides> = OnceLock::new();
    let sides = || Sides { client: Rdma::default(), server: Rdma::default() };
    let longest = setup.client.max_head.max(setup.server.max_head);
    let sides = if longest <= Limits::default().max_head {
        SIDES.get_or_init(sides)
    } else {
        let receive_size = u32::from(longest) + 1024;
        let rdma = Rdma::new(RdmaOptions { receive_size, ..RdmaOptions::default() });
        Box::leak(Box::new(Sides { client: rdma.clone(), server: rdma }))
    };
    let setup = Setup { rdma: Some(sides), ..setup };
    Box::pin(join(setup, reference, ANY_PORT.to_owned(), serve_byway, Transport::Rdma))
}

/// Messages arrive at once, as soon as they are posted.
fn open_rdma_sim(setup: Setup, reference: Reference) -> Opening {
    let options =
        FabricOptions { delays: Delays::NONE, progress: Progress::AtOnce, ..FabricOptions::default() };
    let fabric = Fabric::new(options);
    // A device's receives hold the longest heads that its connections accept.
    let longest = setup.client.max_head.max(setup.server.max_head);
    let receive_size = RdmaOptions::default().receive_size.max(u32::from(longest) + 1024);
    let options = RdmaOptions { receive_size, ..RdmaOptions::default() };
    let [client, server] =
        [(); 2].map(|()| Rdma::simulated(fabric.adapter(&SimNicOptions::default()), options.clone()));
    // One for each case, until the suite ends.
    let rdma = Some(&*Box::leak(Box::new(Sides { client, server })));
    let setup = Setup { rdma, ..setup };
    Box::pin(join(setup, reference, ANY_PORT.to_owned(), serve_byway, Transport::Rdma))
}

fn open_unix(setup: Setup, reference: Reference) -> Opening {
    static SOCKETS: AtomicUsize = AtomicUsize::new(0);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let name = format!("{}.sock", SOCKETS.fetch_add(1, Ordering::Relaxed));
    let socket: PathBuf = directory.path().join(name);
    Box::pin(async move {
        let at = format!("unix:{}", socket.display());
        let opened = join(setup, reference, at, serve_byway, Transport::Auto).await;
        Opened { _directory: Some(directory), ..opened }
    })
}

fn open_grpc(setup: Setup, reference: Reference) -> Opening {
    Box::pin(join(setup, reference, ANY_PORT.to_owned(), serve_byway, Transport::Grpc))
}

fn open_tonic_server(setup: Setup, reference: Reference) -> Opening {
    Box::pin(join(setup, reference, ANY_PORT.to_owned(), stock::serve, Transport::Grpc))
}

fn open_tonic_client(setup: Setup, reference: Reference) -> Opening {
    Box::pin(async move {
        let served = serve_byway(setup, reference, ANY_PORT.to_owned()).await.expect("a free port");
        let client = Client::Stock(stock::connect(&setup, &served.address).await);
        opened(client, Arc::new(Nothing), served, serve_byway, setup)
    })
}

const ANY_PORT: &str = "127.0.0.1:0";

/// A server that `serve` starts and a channel of byway's to it.
async fn join(setup: Setup, reference: Reference, at: String, serve: Serve, transport: Transport) -> Opened {
    let served = serve(setup, reference, at).await.expect("a free address");
    let rdma = setup.rdma.map_or_else(no_rdma, |sides| sides.client.clone());
    let mut builder = Channel::builder(&served.address).limits(setup.client).transport(transport).rdma(rdma);
    if let Some(timeout) = setup.timeout {
        builder = builder.timeout(timeout);
    }
    let channel: AnyPath = Arc::new(builder.connect().await.expect("a connection"));
    let client = Client::Byway(EchoClient::new(Arc::clone(&channel)));
    opened(client, channel, served, serve, setup)
}

fn opened(client: Client, channel: AnyPath, served: Served, serve: Serve, setup: Setup) -> Opened {
    let Served { address, drain, task } = served;
    Opened {
        channel,
        client,
        drain: Some(drain),
        server: Some(task),
        place: Some((address, serve, setup)),
        _directory: None,
    }
}

fn serve_byway(setup: Setup, reference: Reference, at: String) -> Serving {
    Box::pin(async move {
        let mut builder = Server::builder()
            .add_service(service(&setup, reference))
            .add_tower_service(Trailing)
            .limits(setup.server)
            .rdma(setup.rdma.map_or_else(no_rdma, |sides| sides.server.clone()))
            .drain_timeout(setup.drain_timeout);
        if let Some(max) = setup.max_running {
            builder = builder.max_concurrent_calls(max);
        }
        let bound = builder.bind(at).await.ok()?;
        let address = bound.listening().to_string();
        let (drain, draining) = oneshot::channel();
        let task = tokio::spawn(bound.serve_with_shutdown(signal(draining)));
        Some(Served { address, drain, task })
    })
}

fn service(setup: &Setup, reference: Reference) -> EchoServer<Reference> {
    let mut service = EchoServer::new(reference);
    if let Some(limit) = setup.max_decoding {
        service = service.max_decoding_message_size(limit);
    }
    if let Some(limit) = setup.max_encoding {
        service = service.max_encoding_message_size(limit);
    }
    service
}

/// Resolves when the sender sends, and not when it is dropped.
pub(crate) async fn signal(draining: oneshot::Receiver<()>) {
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
