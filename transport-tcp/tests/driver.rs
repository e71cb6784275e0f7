//! A connection's driver against a peer that is written by hand, over a stream in memory.
//!
//! Owns the promises that need a stream of a known size or a clock that the test sets: what is still written when a
//! connection ends, what a peer that does not read can make it hold, and when keepalive gives a peer up. Time is
//! virtual, so nothing waits.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use byway_runtime::connection::Caller;
use byway_runtime::session::RequestHead;
use byway_runtime::stream::Outbox;
use byway_runtime::{Call, ConnectionInfo, Encoded, End, Endpoint, Invoke, NewCall, StartError};
use byway_tcp::Options;
use byway_tcp::native::connect;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

const OPEN: u8 = 1;
const DATA: u8 = 2;
const PING: u8 = 5;
const PONG: u8 = 6;
const CLOSE: u8 = 8;

/// A client's connection over a stream that holds `size` bytes, and the peer's end of it after the hellos.
async fn connected(size: usize) -> (Caller<Outbox>, Peer) {
    let (near, far) = duplex(size);
    let mut peer = Peer(far);
    let info = Arc::new(ConnectionInfo { link: "tcp", peer: Endpoint::Local });
    let (caller, ()) = tokio::join!(connect(near, info, Options::default()), async {
        let mut hello = [0; 32];
        peer.0.read_exact(&mut hello).await.expect("a hello");
        let mut hello = b"BYWAY\r\n\0\x01\0\x01\0\0\0\0\0".to_vec();
        hello.extend((64u32 << 20).to_le_bytes()); // largest message
        hello.extend((1u32 << 30).to_le_bytes()); // window
        hello.extend(1024u16.to_le_bytes()); // calls
        hello.extend((16u16 << 10).to_le_bytes()); // largest head
        hello.extend(0u32.to_le_bytes()); // flags
        peer.0.write_all(&hello).await.expect("it reads");
    });
    (caller.expect("a hello"), peer)
}

struct Peer(DuplexStream);

struct Received {
    kind: u8,
    call: u32,
    head: Vec<u8>,
    /// Whether the stream ended before the frame did.
    cut: bool,
}

impl Peer {
    async fn send(&mut self, kind: u8, flags: u8, call: u32, head: &[u8], body: &[u8]) {
        self.0.write_all(&frame(kind, flags, call, head, body)).await.expect("the peer reads");
    }

    /// The next frame; `None` at the end.
    async fn next_frame(&mut self) -> Option<Received> {
        let mut header = [0; 12];
        self.0.read_exact(&mut header).await.ok()?;
        let mut head = vec![0; usize::from(u16::from_le_bytes([header[2], header[3]]))];
        let mut body = vec![0; u32::from_le_bytes(header[8..12].try_into().expect("four bytes")) as usize];
        let cut = self.0.read_exact(&mut head).await.is_err() || self.0.read_exact(&mut body).await.is_err();
        let call = u32::from_le_bytes(header[4..8].try_into().expect("four bytes"));
        Some(Received { kind: header[0], call, head, cut })
    }
}

fn frame(kind: u8, flags: u8, call: u32, head: &[u8], body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, flags];
    bytes.extend((head.len() as u16).to_le_bytes());
    bytes.extend(call.to_le_bytes());
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(head);
    bytes.extend(body);
    bytes
}

fn start(caller: &Caller<Outbox>, message: &Bytes) -> Result<Call, StartError> {
    let head = RequestHead { path: "/a/b", timeout: None, metadata: &Default::default() };
    let message = Encoded(message.clone());
    caller.start(&NewCall { message: Some(&message), end: true, ..NewCall::new(head) })
}

/// Calls of about a kilobyte each, of which the peer has read none.
fn calls(caller: &Caller<Outbox>, count: usize) -> Vec<Call> {
    let message = Bytes::from(vec![7; 1000]);
    (0..count).map(|_| start(caller, &message).expect("there is room")).collect()
}

/// How many of the calls ended as never sent. All of them have to end.
async fn never_sent(calls: Vec<Call>) -> usize {
    let mut count = 0;
    for mut call in calls {
        match poll_fn(|cx| call.poll_reply(cx)).await.end {
            Some(End::NotSent(_)) => count += 1,
            Some(End::Outcome(Err(status))) => assert!(status.message().contains("the connection is over")),
            other => panic!("the call has not failed: {other:?}"),
        }
    }
    count
}

/// Reads to the end: how many calls arrived whole, and how the peer said goodbye.
async fn arrived(mut peer: Peer) -> (usize, Option<String>) {
    let (mut whole, mut words) = (0, None);
    while let Some(frame) = peer.next_frame().await {
        match frame.kind {
            OPEN if !frame.cut => whole += 1,
            CLOSE => words = Some(String::from_utf8(frame.head).expect("text")),
            _ => {}
        }
    }
    (whole, words)
}

#[tokio::test(start_paused = true)]
async fn a_call_that_ended_as_never_sent_never_arrives_when_the_peer_stopped_writing() {
    const CALLS: usize = 100;
    let (caller, mut peer) = connected(4096).await;
    let calls = calls(&caller, CALLS);
    // It has closed its half, and still reads and executes what comes.
    peer.0.shutdown().await.expect("an open stream");
    let (never_sent, (whole, _)) = tokio::join!(never_sent(calls), arrived(peer));
    assert!(never_sent > CALLS / 2, "the stream holds few of them");
    assert!(whole + never_sent <= CALLS, "{whole} arrived and {never_sent} may be sent again, of {CALLS}");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_ended_as_never_sent_never_arrives_when_the_peer_was_given_up() {
    const CALLS: usize = 100;
    let (caller, peer) = connected(4096).await;
    // The peer is stopped until it was given up, and then goes on.
    let never_sent = never_sent(calls(&caller, CALLS)).await;
    let (whole, _) = arrived(peer).await;
    assert!(never_sent > CALLS / 2, "the stream holds few of them");
    assert!(whole + never_sent <= CALLS, "{whole} arrived and {never_sent} may be sent again, of {CALLS}");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_ended_as_never_sent_never_arrives_when_the_peer_is_told_what_it_did() {
    const CALLS: usize = 100;
    let (caller, mut peer) = connected(4096).await;
    let calls = calls(&caller, CALLS);
    peer.send(99, 0, 0, &[], &[]).await;
    let (never_sent, (whole, words)) = tokio::join!(never_sent(calls), arrived(peer));
    assert!(whole + never_sent <= CALLS, "{whole} arrived and {never_sent} may be sent again, of {CALLS}");
    let words = words.expect("it is told");
    assert!(words.contains("unknown frame kind 99"), "{words}");
}

#[tokio::test(start_paused = true)]
async fn pings_of_a_peer_that_reads_no_answers_are_not_hoarded() {
    const PINGS: usize = 200_000;
    let (caller, mut peer) = connected(64 << 10).await;
    let flood = frame(PING, 0, 0, b"87654321", &[]).repeat(100);
    for _ in 0..PINGS / 100 {
        peer.0.write_all(&flood).await.expect("a client reads");
    }
    // What was kept comes before the answer to one more ping, which waits for what was kept to be read.
    let mut kept = 0;
    peer.send(PING, 0, 0, b"the last", &[]).await;
    loop {
        let frame = peer.next_frame().await.expect("the connection is open");
        assert_eq!(frame.kind, PONG);
        if frame.head == b"the last" {
            break;
        }
        kept += 1;
    }
    let bytes = kept * 20;
    assert!(
        bytes <= (1 << 20) + (128 << 10),
        "{bytes} bytes of answers were kept for a peer that reads none"
    );
    drop(caller);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_reads_slowly_is_not_silent() {
    let (caller, mut peer) = connected(64 << 10).await;
    // 8 MiB at 64 KiB a second take four times as long as a silent peer is given.
    let message = Bytes::from(vec![7; 8 << 20]);
    let mut call = start(&caller, &message).expect("there is room");
    let reader = async {
        let mut left = message.len();
        let mut piece = vec![0; 64 << 10];
        while left > 0 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let count = peer.0.read(&mut piece).await.expect("the connection is open");
            assert!(count > 0, "the connection was closed with {left} bytes to go");
            left = left.saturating_sub(count);
        }
        // Now it finds the question, and answers.
        peer.send(PONG, 0, 0, &[0; 8], &[]).await;
        peer.send(DATA, 1 | 2 | 4, 1 << 16, &[], &[]).await;
        peer
    };
    let (part, _peer) = tokio::join!(poll_fn(|cx| call.poll_reply(cx)), reader);
    assert!(matches!(part.end, Some(End::Outcome(Ok(_)))), "{:?}", part.end);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_stops_reading_in_the_middle_is_silent() {
    let (caller, mut peer) = connected(64 << 10).await;
    let mut call = start(&caller, &Bytes::from(vec![7; 8 << 20])).expect("there is room");
    let started = tokio::time::Instant::now();
    let reader = async {
        // A piece now and then for a while, then nothing.
        let mut piece = vec![0; 64 << 10];
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_secs(5)).await;
            peer.0.read_exact(&mut piece).await.expect("the connection is open");
        }
    };
    let (part, ()) = tokio::join!(poll_fn(|cx| call.poll_reply(cx)), reader);
    let Some(End::Outcome(Err(status))) = part.end else { panic!("{:?}", part.end) };
    assert!(status.message().contains("silent"), "{status}");
    let lasted = started.elapsed();
    assert!((100..=130).contains(&lasted.as_secs()), "given up after {lasted:?}");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_answers_no_question_is_given_up_in_the_time_that_was_set() {
    let (caller, mut peer) = connected(64 << 10).await;
    let mut call = start(&caller, &Bytes::from_static(b"x")).expect("there is room");
    let started = tokio::time::Instant::now();
    let (part, call_id) = tokio::join!(poll_fn(|cx| call.poll_reply(cx)), async {
        let open = peer.next_frame().await.expect("the call");
        // It reads the question, which is no answer, and calls that others make meanwhile are none either.
        assert_eq!(peer.next_frame().await.expect("the question").kind, PING);
        drop(start(&caller, &Bytes::from_static(b"y")).expect("there is room"));
        open.call
    });
    assert_eq!(call_id, 1 << 16);
    let Some(End::Outcome(Err(status))) = part.end else { panic!("{:?}", part.end) };
    assert!(status.message().contains("silent"), "{status}");
    let given = Options::default().keepalive;
    // The hello was heard in the first interval.
    assert_eq!(started.elapsed().as_secs(), (2 * given.interval + given.timeout).as_secs());
}
