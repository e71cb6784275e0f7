//! Rounds of random calls.

use std::collections::{HashMap, HashSet};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use byway::metadata::MetadataMap;
use byway::{Channel, Code, Limits, Request, Server, Status};
use byway_test_support::reference::{Event, Reference};
use byway_test_support::test::v1::EchoRequest;
use byway_test_support::test::v1::echo_client::EchoClient;
use byway_test_support::test::v1::echo_server::EchoServer;
use fastrand::Rng;
use tokio::sync::oneshot;

use crate::harness::{soon, story};
use crate::tamper::Tamper;

const CALLERS: usize = 60;
const CALLS: usize = 5;

fn request(rng: &mut Rng) -> EchoRequest {
    let sizes = [0, 1, 100, 4000, 5000, 70_000, 300_000];
    let len = sizes[rng.usize(0..sizes.len())];
    EchoRequest { payload: vec![rng.u8(..); len].into(), ..EchoRequest::default() }
}

fn requests(rng: &mut Rng) -> Vec<EchoRequest> {
    (0..rng.u32(0..10)).map(|_| request(rng)).collect()
}

/// A call of any kind, which must get what it asked for if it gets to its end.
async fn call(client: &EchoClient<Channel>, metadata: MetadataMap, rng: &mut Rng) -> Result<(), Status> {
    match rng.u32(0..4) {
        0 => {
            let request = request(rng);
            let reply = client.unary(with(metadata, request.clone())).await?;
            assert_eq!(reply.get_ref().payload, request.payload);
        }
        1 => {
            let requests = requests(rng);
            let len: usize = requests.iter().map(|request| request.payload.len()).sum();
            let reply = client.collect(with(metadata, tokio_stream::iter(requests))).await?;
            assert_eq!(reply.get_ref().payload.len(), len);
        }
        2 => {
            let request = EchoRequest { count: rng.u32(0..10), ..request(rng) };
            let mut replies = client.expand(with(metadata, request.clone())).await?.into_inner();
            for index in 0..rng.u32(0..20) {
                let Some(reply) = replies.message().await? else {
                    assert_eq!(index, request.count);
                    break;
                };
                assert_eq!((reply.index, reply.payload), (index, request.payload.clone()));
            }
        }
        _ => {
            let requests = requests(rng);
            let stream = tokio_stream::iter(requests.clone());
            let mut replies = client.chat(with(metadata, stream)).await?.into_inner();
            for request in requests {
                let reply = replies.message().await?.expect("a reply for each request");
                assert_eq!(reply.payload, request.payload);
            }
            assert_eq!(replies.message().await?, None);
        }
    }
    Ok(())
}

fn with<T>(metadata: MetadataMap, message: T) -> Request<T> {
    let mut request = Request::new(message);
    *request.metadata_mut() = metadata;
    request
}

/// One caller's next call: in time or not, and given up after so many polls or not.
async fn attempt(client: &EchoClient<Channel>, name: String, mut rng: Rng) -> Option<Result<(), Status>> {
    let mut timed = Request::new(());
    timed.metadata_mut().insert("call", name.parse().expect("ASCII"));
    match rng.u32(0..6) {
        0 => timed.set_timeout(Duration::from_micros(rng.u64(1..3000))),
        1 => timed.set_timeout(Duration::from_millis(rng.u64(1..50))),
        _ => {}
    }
    let metadata = timed.metadata().clone();
    let mut polls = if rng.u32(0..4) == 0 { Some(rng.u32(0..200)) } else { None };
    let mut call = pin!(call(client, metadata, &mut rng));
    poll_fn(|cx| {
        if let Some(polls) = &mut polls {
            let Some(left) = polls.checked_sub(1) else { return Poll::Ready(None) };
            *polls = left;
            cx.waker().wake_by_ref();
        }
        call.as_mut().poll(cx).map(Some)
    })
    .await
}

/// Many callers on one channel, and then a drain. `rarity` is that of what the server is made to say.
async fn round(seed: u64, max_calls: u16, rarity: Option<u32>) {
    let mut rng = Rng::with_seed(seed);
    let (reference, mut journal) = Reference::new();
    let window = [20_000, 65_536, 262_144][rng.usize(0..3)];
    let limits = Limits { max_calls, window, ..Limits::default() };
    let server = Server::builder().limits(limits).add_service(EchoServer::new(reference));
    let bound = server.bind("127.0.0.1:0").await.expect("a free port");
    let mut address = bound.listening().to_string();
    let (stop, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(bound.serve_with_shutdown(async { drop(stopped.await) }));
    let tamper = match rarity {
        Some(rarity) => Some(Tamper::start(address.clone(), seed, rarity).await),
        None => None,
    };
    if let Some(tamper) = &tamper {
        address.clone_from(&tamper.address);
    }
    let channel = Channel::builder(format!("grpc://{address}")).connect_lazy().expect("an address");
    let client = EchoClient::new(channel);
    let callers = (0..CALLERS).map(|caller| {
        let (client, mut rng) = (client.clone(), rng.fork());
        tokio::spawn(async move {
            for call in 0..CALLS {
                match soon(attempt(&client, format!("{caller}-{call}"), rng.fork())).await {
                    None | Some(Ok(())) => {}
                    Some(Err(status)) if status.code() == Code::DeadlineExceeded => {}
                    // The connection was lost, and the next one may be due only a moment later.
                    Some(Err(status)) if status.code() == Code::Unavailable => {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    Some(Err(status)) => panic!("seed {seed}, call {caller}-{call}: {status}"),
                }
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        assert!(caller.await.is_ok(), "seed {seed}: a caller failed");
    }
    drop(client);
    let drained = Instant::now();
    stop.send(()).expect("the server is there");
    soon(server).await.expect("the server does not panic");
    assert!(drained.elapsed() < Duration::from_secs(20), "seed {seed}: something was still open");
    check(seed, journal.unread());
}

/// No handler was begun twice or is left.
fn check(seed: u64, events: Vec<Event>) {
    let mut begun = HashSet::new();
    let mut open: HashMap<String, i32> = HashMap::new();
    for event in events {
        match event {
            Event::Began(name) => {
                assert!(begun.insert(name.clone()), "seed {seed}: {name} was executed twice");
                *open.entry(name).or_default() += 1;
            }
            Event::Finished(name) | Event::Dropped(name) => *open.entry(name).or_default() -= 1,
        }
    }
    open.retain(|_, count| *count != 0);
    assert!(open.is_empty(), "seed {seed}: handlers were left: {open:?}");
}

fn seed() -> u64 {
    let set = std::env::var("BYWAY_SEED").ok();
    set.map_or_else(|| fastrand::u64(..), |set| set.parse().expect("BYWAY_SEED is a number"))
}

#[test]
fn callers_that_give_up_leave_nothing_behind() {
    story(async {
        for max_calls in [1, 3, 1024] {
            round(seed(), max_calls, None).await;
        }
    });
}

#[test]
fn a_server_that_changes_its_mind_costs_only_what_it_says() {
    story(async {
        for (max_calls, rarity) in [(2, 10), (100, 10), (100, 3)] {
            round(seed(), max_calls, Some(rarity)).await;
        }
    });
}
