//! A large `bytes` field is never copied, shown by the addresses of its memory.
//!
//! Owns the proof, over a TCP socket, that what a caller sends leaves from the caller's own memory and that what a reader
//! gets is the memory that the socket filled; and that nothing large is allocated beside it. `budget` has what a small
//! call may allocate. Every allocation of this binary is counted, by thread.

mod budget;
mod counting;
mod spy;

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use byway::runtime::connection::Caller;
use byway::runtime::dispatch::Router;
use byway::runtime::stream::Outbox;
use byway::{ConnectionInfo, Endpoint, Request, Response, Status, Streaming};
use byway_tcp::Options;
use byway_tcp::native::{self, Heard};
use byway_test_support::test::v1::echo_client::EchoClient;
use byway_test_support::test::v1::echo_server::{Echo, EchoServer};
use byway_test_support::test::v1::{EchoReply, EchoRequest};
use counting::Allocations;
use spy::{Log, Spy, overlap};
use tokio::net::{TcpListener, TcpStream};

const PAYLOAD: usize = 1 << 20;

/// What comes with the header of a large message in the same read, and is the only part of it that is moved.
const FIRST_READ: usize = 64 << 10;

fn range(bytes: &[u8]) -> Range<usize> {
    let range = bytes.as_ptr_range();
    range.start as usize..range.end as usize
}

/// A payload of which every byte tells its place.
fn payload() -> Bytes {
    (0..PAYLOAD).map(|n| (n % 251) as u8).collect::<Vec<_>>().into()
}

/// Sends the payload back, or `count` of its own bytes, and notes where the payload was.
#[derive(Default)]
struct Mirror {
    own: Bytes,
    received: Mutex<Vec<Range<usize>>>,
    large: Mutex<Allocations>,
}

#[byway::async_trait]
impl Echo for Mirror {
    async fn unary(&self, request: Request<EchoRequest>) -> Result<Response<EchoReply>, Status> {
        let request = request.into_inner();
        self.received.lock().expect("nobody panics").push(range(&request.payload));
        *self.large.lock().expect("nobody panics") = Allocations::of_this_thread();
        let payload = match request.text.as_str() {
            "echo" => request.payload,
            "own" => self.own.clone(),
            _ => Bytes::new(),
        };
        Ok(Response::new(EchoReply { payload, ..EchoReply::default() }))
    }

    async fn collect(&self, _: Request<Streaming<EchoRequest>>) -> Result<Response<EchoReply>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    type ExpandStream = byway::codegen::BoxStream<EchoReply>;

    async fn expand(&self, _: Request<EchoRequest>) -> Result<Response<Self::ExpandStream>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    type ChatStream = byway::codegen::BoxStream<EchoReply>;

    async fn chat(&self, _: Request<Streaming<EchoRequest>>) -> Result<Response<Self::ChatStream>, Status> {
        Err(Status::unimplemented("not needed"))
    }
}

fn info() -> Arc<ConnectionInfo> {
    Arc::new(ConnectionInfo { link: "tcp", peer: Endpoint::Local })
}

fn on_a_thread<F: Future>(work: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(30), work).await.expect("this takes so long that it hangs")
    })
}

/// Serves one connection, on a thread of its own, until its client closes it.
fn serve(service: Arc<impl Echo>, log: Arc<Log>) -> (String, std::thread::JoinHandle<()>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    listener.set_nonblocking(true).expect("a socket");
    let thread = std::thread::spawn(move || {
        on_a_thread(async move {
            let (stream, _) =
                TcpListener::from_std(listener).expect("a socket").accept().await.expect("a client");
            let mut router = Router::default();
            router.add_direct(EchoServer::from_arc(service)).expect("the only service");
            let drain = Box::pin(std::future::pending());
            let options = Options::default();
            let heard = native::hear(Spy::new(stream, log), &options.limits).await.expect("a hello");
            let Heard::Native(mut greeted) = heard else { panic!("the client is byway's") };
            let answered = native::answer(&mut greeted.io, &options.limits, Bytes::new());
            answered.await.expect("a stream");
            native::server(greeted, info(), options, Arc::new(router), drain).await;
        });
    });
    (address, thread)
}

async fn connect(address: &str, log: &Arc<Log>) -> EchoClient<Caller<Outbox>> {
    let stream = TcpStream::connect(address).await.expect("it listens");
    let caller = native::connect(Spy::new(stream, Arc::clone(log)), info(), Options::default());
    EchoClient::new(caller.await.expect("a hello"))
}

#[test]
fn a_large_field_leaves_from_where_it_is_and_is_read_where_it_landed() {
    let (at_client, at_server) = (Arc::new(Log::default()), Arc::new(Log::default()));
    let mirror = Arc::new(Mirror::default());
    let (address, server) = serve(Arc::clone(&mirror), Arc::clone(&at_server));
    let sent = payload();
    let reply = on_a_thread(async {
        let client = connect(&address, &at_client).await;
        let request = EchoRequest { payload: sent.clone(), text: "echo".into(), ..EchoRequest::default() };
        client.unary(request).await.expect("a reply").into_inner()
    });
    // What it has noted is complete once it has ended.
    server.join().expect("the server does not fail");
    assert_eq!(reply.payload, sent);
    let landed = mirror.received.lock().expect("nobody panics")[0].clone();
    let received = range(&reply.payload);

    // The request leaves the caller's memory, every byte of it, and nothing of it from elsewhere.
    let written = at_client.written();
    assert_eq!(overlap(&written, &range(&sent)), PAYLOAD);
    let beside: usize = written.iter().map(|range| range.len()).sum::<usize>() - PAYLOAD;
    assert!(beside < 200, "{beside} bytes of hello, headers and the rest of the request");
    // The handler's field is the memory that the socket's reads filled.
    let read = overlap(&at_server.read(), &landed);
    assert!(read >= PAYLOAD - FIRST_READ, "only {read} bytes were read into place");
    // So it is the other way round, where the handler sends what it received.
    assert_eq!(overlap(&at_server.written(), &landed), PAYLOAD);
    let read = overlap(&at_client.read(), &received);
    assert!(read >= PAYLOAD - FIRST_READ, "only {read} bytes were read into place");
    println!("{read} of {PAYLOAD} bytes of the reply were read into place, all were written from theirs");
}

#[test]
fn nothing_large_is_allocated_but_the_memory_of_the_received_field() {
    const CALLS: usize = 20;
    let log = Arc::new(Log::default());
    let mirror = Arc::new(Mirror { own: payload(), ..Mirror::default() });
    let (address, server) = serve(Arc::clone(&mirror), Arc::clone(&log));
    on_a_thread(async {
        let client = connect(&address, &log).await;
        let empty = Bytes::new();
        let large = payload();
        let mut counts = Vec::new();
        // The first round finds buffers to be made; the others do not.
        for _ in 0..2 {
            counts.clear();
            for (payload, text) in [(&large, "none"), (&empty, "own"), (&large, "echo")] {
                let request =
                    EchoRequest { payload: payload.clone(), text: text.into(), ..EchoRequest::default() };
                // The server counts as its handler begins, which is after it has received this request.
                client.unary(EchoRequest::default()).await.expect("a reply");
                let before = (Allocations::of_this_thread(), *mirror.large.lock().expect("nobody panics"));
                for _ in 0..CALLS {
                    client.unary(request.clone()).await.expect("a reply");
                }
                client.unary(EchoRequest::default()).await.expect("a reply");
                let after = (Allocations::of_this_thread(), *mirror.large.lock().expect("nobody panics"));
                counts.push((text, after.0.since(before.0), after.1.since(before.1)));
            }
        }
        println!(
            "large allocations in {CALLS} calls (what comes back, at the client, at the server): {counts:?}"
        );
        let larger = counts.iter().map(|(text, client, server)| (*text, client.larger, server.larger));
        let larger: Vec<_> = larger.collect();
        assert_eq!(
            larger,
            [("none", 0, CALLS), ("own", CALLS, 0), ("echo", CALLS, CALLS)],
            "one per received field"
        );
        for (text, client, server) in counts {
            assert!(client.buffers <= 1 && server.buffers <= 1, "{text}: a read buffer serves many calls");
        }
    });
    server.join().expect("the server does not fail");
}
