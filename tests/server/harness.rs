//! What the suites about servers and channels share.
//!
//! Owns [`Probe`], a service whose calls can be held and counted, [`Running`], a server of it on a free loopback port,
//! and [`story`], which turns a hang into a failure. Never: waits for time to pass; waits are for events.
#![allow(dead_code, reason = "each suite uses a part of it")]

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use byway::codegen::tokio_stream::{Stream, StreamExt};
use byway::{
    Address, Channel, ChannelBuilder, Keepalive, Request, Response, Server, ServerBuilder, Status, Streaming,
};
use byway_test_support::test::v1::echo_client::EchoClient;
use byway_test_support::test::v1::echo_server::{Echo, EchoServer};
use byway_test_support::test::v1::{EchoReply, EchoRequest};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

/// Longest that a story may take. Only a hang takes this long.
const LIMIT: Duration = Duration::from_secs(30);

/// Runs a test on two threads; one that hangs fails.
pub(crate) fn story(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(soon(test));
    runtime.shutdown_timeout(Duration::from_secs(1));
}

/// Runs a test on one thread, where tasks run in the order in which they were woken; one that hangs fails.
pub(crate) fn story_on_one_thread(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(soon(test));
}

/// What `event` resolves to; a failure when it never does.
pub(crate) async fn soon<T>(event: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, event).await.expect("this takes so long that it hangs")
}

/// A keepalive that gives up on a silent peer soon, but not on one that has to wait for a processor.
pub(crate) fn impatient() -> Keepalive {
    Keepalive { interval: Duration::from_millis(100), timeout: Duration::from_secs(1) }
}

/// Echoes, and tells the test what happens to its calls.
///
/// `Unary` with the text `hold` waits for [`release`](Self::release); its other calls are ready at once. `Expand` streams
/// `count` replies of `reply_bytes` bytes, `Collect` counts its requests, `Chat` echoes them.
pub(crate) struct Probe {
    executed: AtomicUsize,
    produced: AtomicUsize,
    entered: Semaphore,
    gate: Semaphore,
    present: Arc<Present>,
}

/// Held calls and streams that are not gone yet.
struct Present {
    now: AtomicUsize,
    most: AtomicUsize,
    gone: Semaphore,
}

impl Default for Probe {
    fn default() -> Self {
        Self {
            executed: AtomicUsize::default(),
            produced: AtomicUsize::default(),
            entered: Semaphore::new(0),
            gate: Semaphore::new(0),
            present: Arc::new(Present {
                now: AtomicUsize::default(),
                most: AtomicUsize::default(),
                gone: Semaphore::new(0),
            }),
        }
    }
}

impl Probe {
    /// Handlers that were ever begun.
    pub(crate) fn executed(&self) -> usize {
        self.executed.load(Ordering::SeqCst)
    }

    /// Replies that streams were ever asked for.
    pub(crate) fn produced(&self) -> usize {
        self.produced.load(Ordering::SeqCst)
    }

    /// Waits until `count` more calls are held or streams have begun.
    pub(crate) async fn entered(&self, count: u32) {
        soon(self.entered.acquire_many(count)).await.expect("it is never closed").forget();
    }

    /// Waits until `count` more held calls or streams are gone, finished or not.
    pub(crate) async fn gone(&self, count: u32) {
        soon(self.present.gone.acquire_many(count)).await.expect("it is never closed").forget();
    }

    /// The most held calls and streams that there ever were at once.
    pub(crate) fn most_present(&self) -> usize {
        self.present.most.load(Ordering::SeqCst)
    }

    /// Lets `count` held calls finish.
    pub(crate) fn release(&self, count: usize) {
        self.gate.add_permits(count);
    }

    fn enter(&self) -> Gone {
        let now = self.present.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.present.most.fetch_max(now, Ordering::SeqCst);
        self.entered.add_permits(1);
        Gone(Arc::clone(&self.present))
    }
}

/// Reports that what owns it is gone.
struct Gone(Arc<Present>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
        self.0.gone.add_permits(1);
    }
}

fn payload(request: &EchoRequest) -> Bytes {
    match request.reply_bytes {
        0 => request.payload.clone(),
        len => vec![7; len as usize].into(),
    }
}

/// A handler's own replies, as long as they are asked for.
struct Replies {
    probe: Arc<Probe>,
    request: EchoRequest,
    index: u32,
    _gone: Gone,
}

impl Stream for Replies {
    type Item = Result<EchoReply, Status>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.index == self.request.count {
            return Poll::Ready(None);
        }
        let (index, payload) = (self.index, payload(&self.request));
        self.index += 1;
        self.probe.produced.fetch_add(1, Ordering::SeqCst);
        Poll::Ready(Some(Ok(EchoReply { payload, text: String::new(), index })))
    }
}

/// The service that shares a [`Probe`] with the test.
pub(crate) struct Probed(pub(crate) Arc<Probe>);

#[byway::async_trait]
impl Echo for Probed {
    async fn unary(&self, request: Request<EchoRequest>) -> Result<Response<EchoReply>, Status> {
        self.0.executed.fetch_add(1, Ordering::SeqCst);
        let request = request.into_inner();
        if request.text == "hold" {
            let _gone = self.0.enter();
            self.0.gate.acquire().await.expect("it is never closed").forget();
        }
        Ok(Response::new(EchoReply { payload: payload(&request), text: request.text, index: 0 }))
    }

    async fn collect(&self, request: Request<Streaming<EchoRequest>>) -> Result<Response<EchoReply>, Status> {
        self.0.executed.fetch_add(1, Ordering::SeqCst);
        let _gone = self.0.enter();
        let mut requests = request.into_inner();
        let mut index = 0;
        while requests.message().await?.is_some() {
            index += 1;
        }
        Ok(Response::new(EchoReply { index, ..EchoReply::default() }))
    }

    type ExpandStream = Pin<Box<dyn Stream<Item = Result<EchoReply, Status>> + Send>>;

    async fn expand(&self, request: Request<EchoRequest>) -> Result<Response<Self::ExpandStream>, Status> {
        self.0.executed.fetch_add(1, Ordering::SeqCst);
        let (probe, _gone) = (Arc::clone(&self.0), self.0.enter());
        Ok(Response::new(Box::pin(Replies { probe, request: request.into_inner(), index: 0, _gone })))
    }

    type ChatStream = Pin<Box<dyn Stream<Item = Result<EchoReply, Status>> + Send>>;

    async fn chat(
        &self,
        request: Request<Streaming<EchoRequest>>,
    ) -> Result<Response<Self::ChatStream>, Status> {
        self.0.executed.fetch_add(1, Ordering::SeqCst);
        let gone = self.0.enter();
        Ok(Response::new(Box::pin(request.into_inner().map(move |request| {
            let _held = &gone;
            let request = request?;
            Ok(EchoReply { payload: request.payload, text: request.text, index: 0 })
        }))))
    }
}

/// A server of a [`Probe`] that runs until it is stopped.
pub(crate) struct Running {
    pub(crate) probe: Arc<Probe>,
    address: Address,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Running {
    /// On a free port, with default settings.
    pub(crate) async fn start() -> Self {
        Self::with(Server::builder()).await
    }

    /// On a free port.
    pub(crate) async fn with(builder: ServerBuilder) -> Self {
        Self::at("127.0.0.1:0".parse().expect("an address"), builder).await
    }

    /// On `address`.
    pub(crate) async fn at(address: Address, builder: ServerBuilder) -> Self {
        let probe = Arc::new(Probe::default());
        let builder = builder.add_service(EchoServer::new(Probed(Arc::clone(&probe))));
        let server = builder.bind(address).await.expect("a free address");
        let address = server.listening().address().clone();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(server.serve_with_shutdown(async {
            let _ = stopped.await;
        }));
        Self { probe, address, stop: Some(stop), task }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// `host:port`.
    pub(crate) fn text(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn channel(&self) -> ChannelBuilder {
        Channel::builder(self.address.clone())
    }

    /// A client with a connection of its own.
    pub(crate) async fn client(&self) -> EchoClient<Channel> {
        EchoClient::new(self.channel().connect().await.expect("a connection"))
    }

    /// Tells it to take no more calls; see [`ended`](Self::ended).
    pub(crate) fn drain(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(&mut self) {
        soon(&mut self.task).await.expect("the server does not panic");
    }

    /// Drains it and waits.
    pub(crate) async fn stop(mut self) {
        self.drain();
        self.ended().await;
    }

    /// Ends it at once, as a crash would.
    pub(crate) async fn kill(self) {
        self.task.abort();
        let _ = soon(self.task).await;
    }
}

/// A request with this text.
pub(crate) fn text(text: &str) -> EchoRequest {
    EchoRequest { text: text.to_owned(), ..EchoRequest::default() }
}

/// One call that must succeed.
pub(crate) async fn served(client: &EchoClient<Channel>) {
    let reply = soon(client.unary(text("well-behaved"))).await.expect("a well-behaved client is served");
    assert_eq!(reply.into_inner().text, "well-behaved");
}

/// Runs `offence` while a well-behaved client makes call after call, all of which must succeed, and once more after it.
pub(crate) async fn served_during<T>(client: &EchoClient<Channel>, offence: impl Future<Output = T>) -> T {
    served(client).await;
    let mut offence = pin!(offence);
    let result = loop {
        tokio::select! {
            biased;
            result = &mut offence => break result,
            () = served(client) => {}
        }
    };
    served(client).await;
    result
}
