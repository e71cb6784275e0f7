//! A server that notes on which thread and in which task its handlers run.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use byway::codegen::BoxStream;
use byway::{Channel, Request, Response, Server, Status, Streaming};
use byway_test_support::test::v1::echo_client::EchoClient;
use byway_test_support::test::v1::echo_server::{Echo, EchoServer};
use byway_test_support::test::v1::{EchoReply, EchoRequest};
use tokio::runtime::Runtime;
use tokio::task;

/// Longest that anything here may take. Only a hang takes this long.
const LIMIT: Duration = Duration::from_secs(60);

/// Where a handler ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) thread: ThreadId,
    pub(crate) task: Option<task::Id>,
    /// After it had waited.
    pub(crate) resumed: bool,
}

/// What the handler of `Unary` does.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Workload {
    None,
    /// Waits for another task.
    Wait,
    /// Keeps its thread for this long.
    Spin(Duration),
    /// Computes for so many rounds.
    Work(u64),
    /// Keeps its thread for this long, but no processor.
    Sleep(Duration),
}

/// Computes.
pub(crate) fn work(rounds: u64) {
    let mut value = black_box(1u64);
    for _ in 0..rounds {
        value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1) ^ (value >> 29);
    }
    black_box(value);
}

/// A gate that blocks threads, not tasks.
#[derive(Default)]
struct Gate {
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Gate {
    /// Blocks until the gate is opened.
    fn pass(&self) {
        let mut state = self.state.lock().expect("nobody panics");
        state.0 = true;
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(state, LIMIT, |(_, open)| !*open);
        assert!(!waited.expect("nobody panics").1.timed_out(), "it was never opened");
    }

    fn open(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.changed.notify_all();
    }

    /// Blocks until somebody stands at the gate.
    fn wait_for_visitor(&self) {
        let state = self.state.lock().expect("nobody panics");
        let waited = self.changed.wait_timeout_while(state, LIMIT, |(visited, _)| !*visited);
        assert!(!waited.expect("nobody panics").1.timed_out(), "nobody came");
    }
}

#[derive(Default)]
struct Notes {
    places: Mutex<Vec<Place>>,
    running: AtomicUsize,
    most: AtomicUsize,
    gate: Gate,
}

impl Notes {
    fn note(&self, resumed: bool) {
        let place = Place { thread: std::thread::current().id(), task: task::try_id(), resumed };
        self.places.lock().expect("nobody panics").push(place);
    }
}

struct Noted(Arc<Notes>);

#[byway::async_trait]
impl Echo for Noted {
    async fn unary(&self, request: Request<EchoRequest>) -> Result<Response<EchoReply>, Status> {
        let request = request.into_inner();
        self.0.note(false);
        let running = self.0.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.most.fetch_max(running, Ordering::SeqCst);
        match request.text.as_str() {
            "spin" => {
                let start = Instant::now();
                while start.elapsed() < Duration::from_micros(request.busy_us.into()) {
                    std::hint::spin_loop();
                }
            }
            "work" => work(request.busy_us.into()),
            "sleep" => std::thread::sleep(Duration::from_micros(request.busy_us.into())),
            "block" => self.0.gate.pass(),
            _ => {}
        }
        self.0.running.fetch_sub(1, Ordering::SeqCst);
        if request.text == "wait" {
            task::yield_now().await;
            self.0.note(true);
        }
        Ok(Response::new(EchoReply::default()))
    }

    async fn collect(&self, _: Request<Streaming<EchoRequest>>) -> Result<Response<EchoReply>, Status> {
        Ok(Response::new(EchoReply::default()))
    }

    type ExpandStream = BoxStream<EchoReply>;

    async fn expand(&self, _: Request<EchoRequest>) -> Result<Response<Self::ExpandStream>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    type ChatStream = BoxStream<EchoReply>;

    async fn chat(&self, _: Request<Streaming<EchoRequest>>) -> Result<Response<Self::ChatStream>, Status> {
        Err(Status::unimplemented("not needed"))
    }
}

/// A server on workers of its own, and one connection to it from this thread.
pub(crate) struct Served {
    notes: Arc<Notes>,
    client: EchoClient<Channel>,
    here: Runtime,
    server: Option<Runtime>,
}

impl Served {
    pub(crate) fn with_workers(workers: usize) -> Self {
        let notes = Arc::new(Notes::default());
        let server = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build();
        let server = server.expect("a runtime");
        let service = EchoServer::new(Noted(Arc::clone(&notes)));
        let bound = server.block_on(Server::builder().add_service(service).bind("127.0.0.1:0"));
        let bound = bound.expect("a free port");
        let address = bound.listening().to_string();
        server.spawn(bound.serve());
        let here = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let client = EchoClient::new(here.block_on(Channel::connect(&address)).expect("a connection"));
        Self { notes, client, here, server: Some(server) }
    }

    /// Makes `count` calls of `Unary`, `in_flight` at a time.
    pub(crate) fn calls(&self, in_flight: usize, count: usize, workload: Workload) {
        let request = request(workload);
        let left = AtomicUsize::new(count);
        let caller = || async {
            while left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
                self.client.unary(request.clone()).await.expect("a reply");
            }
        };
        self.limited(async {
            let mut callers: Vec<_> = (0..in_flight).map(|_| Box::pin(caller())).collect();
            std::future::poll_fn(|cx| {
                callers.retain_mut(|caller| caller.as_mut().poll(cx).is_pending());
                if callers.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            })
            .await;
        });
    }

    /// Runs `work` while a call of `Unary` blocks the thread that it is on.
    pub(crate) fn during_a_blocked_call(&self, work: impl FnOnce(OtherCalls<'_>)) {
        let blocked = EchoRequest { text: "block".into(), ..EchoRequest::default() };
        let client = self.client.clone();
        let call = self.here.spawn(async move { client.unary(blocked).await });
        self.limited(async {
            // So that the call leaves; what follows needs this thread.
            let notes = Arc::clone(&self.notes);
            task::spawn_blocking(move || notes.gate.wait_for_visitor()).await.expect("it was called");
        });
        work(OtherCalls(self));
        assert!(!call.is_finished());
        self.notes.gate.open();
        self.limited(async { call.await.expect("no panic").expect("a reply") });
    }

    fn limited<T>(&self, work: impl Future<Output = T>) -> T {
        self.here.block_on(async {
            tokio::time::timeout(LIMIT, work).await.expect("this takes so long that it hangs")
        })
    }

    /// Where the handlers of `Unary` ran.
    pub(crate) fn places(&self) -> Vec<Place> {
        self.notes.places.lock().expect("nobody panics").clone()
    }

    pub(crate) fn forget(&self) {
        self.notes.places.lock().expect("nobody panics").clear();
    }

    /// The most handlers that ran at one instant.
    pub(crate) fn most_at_once(&self) -> usize {
        self.notes.most.load(Ordering::SeqCst)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.notes.gate.open();
        if let Some(server) = self.server.take() {
            server.shutdown_timeout(Duration::from_secs(1));
        }
    }
}

/// Calls of another method over the same connection.
pub(crate) struct OtherCalls<'a>(&'a Served);

impl OtherCalls<'_> {
    pub(crate) fn make(&self, count: usize) {
        self.0.limited(async {
            for _ in 0..count {
                let requests = byway::codegen::tokio_stream::iter([EchoRequest::default()]);
                self.0.client.collect(requests).await.expect("a reply");
            }
        });
    }
}

fn request(workload: Workload) -> EchoRequest {
    let (text, busy_us) = match workload {
        Workload::None => ("", 0),
        Workload::Wait => ("wait", 0),
        Workload::Spin(duration) => ("spin", duration.as_micros() as u32),
        Workload::Work(rounds) => ("work", rounds as u32),
        Workload::Sleep(duration) => ("sleep", duration.as_micros() as u32),
    };
    EchoRequest { text: text.into(), busy_us, ..EchoRequest::default() }
}
