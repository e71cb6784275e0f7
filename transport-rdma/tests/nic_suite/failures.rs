//! Whatever goes wrong, every posted request comes back exactly once.

use std::collections::BTreeSet;

use byway_rdma::nic::{Endpoint, Kind, Nic, NicError, Operation, Payload};

use super::*;

pub(crate) fn cases<F: Fixture>() -> Vec<Case<F>> {
    vec![
        ("failures: a failed queue pair flushes sends and receives", flush_all),
        (
            "failures: unsignalled requests before the failing one succeed, those after it are flushed",
            flush_unsignalled,
        ),
        ("failures: destroying returns what was posted", destroy_returns),
        ("failures: destroying with unread completions loses none", destroy_unread),
        ("failures: a vanished peer ends in the no-answer failure", vanished_peer),
        ("failures: a failed queue pair still returns what is posted to it", post_after_failure),
        ("failures: a window outlives the failure of its queue pair", window_after_failure),
        ("failures: states are enforced", states),
        ("failures: a peer that cannot be reached costs no receive", unreachable_peer),
        ("failures: one queue pair's failure leaves another alone", bystander),
    ]
}

/// Takes completions until each of `works` has come back; asserts that none comes twice.
fn collect<F: Fixture>(fixture: &F, side: &mut Side<F::Nic>, works: &[WorkId]) -> Vec<Completion> {
    let mut missing: BTreeSet<WorkId> = works.iter().copied().collect();
    assert_eq!(missing.len(), works.len());
    let end = Instant::now() + LIMIT;
    let mut all = Vec::new();
    while !missing.is_empty() {
        for completion in side.drain() {
            assert!(missing.remove(&completion.work), "{:?} came unasked or twice", completion.work);
            all.push(completion);
        }
        assert!(Instant::now() < end, "{missing:?} never came back");
        fixture.pause();
    }
    side.assert_quiet();
    all
}

fn flush_all<F: Fixture>(fixture: &F) {
    let spec = QueuePairSpec { rnr_retry: 7, ..spec() };
    let mut pair = Pair::with(fixture, Sizes::default(), &spec);
    let queue = pair.a.own();
    let mut works = pair.a.post_receives(queue, 10);
    // The peer has no receives, so these stay outstanding.
    for _ in 0..10 {
        let payload = pair.a.filled(&[1; 64]);
        works.push(pair.a.send(payload));
    }
    pair.a.nic.fail_queue_pair(pair.a.qp).expect("a queue pair");
    let all = collect(fixture, &mut pair.a, &works);
    assert!(all.iter().all(|completion| failure(completion) == Status::Flushed));
    assert!(all.into_iter().all(|completion| completion.payload.into_buffers().len() == 1));
}

fn flush_unsignalled<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let queue = pair.b.own();
    pair.b.post_receives(queue, 16);
    let (_window, slice) = {
        let buffer = pair.b.buffer(SIZE);
        pair.b.grant(fixture, buffer, RemoteAccess::Write)
    };
    let nowhere = RemoteSlice { key: slice.key ^ 0x5500, ..slice };
    let mut works = Vec::new();
    let mut batch = Vec::new();
    for index in 0..12 {
        let (work, payload) = (pair.a.work(), pair.a.filled(&[index; 8]));
        let operation = match index {
            5 => Operation::Write { to: nowhere, immediate: None },
            _ => Operation::Send { immediate: None },
        };
        works.push(work);
        batch.push(Request::unsignaled(work, operation, payload));
    }
    pair.a.nic.post(pair.a.qp, &mut batch).expect("room");
    let all = collect(fixture, &mut pair.a, &works);
    let order: Vec<WorkId> = all.iter().map(|completion| completion.work).collect();
    assert_eq!(order, works, "requests complete in order, also failed ones");
    for (index, completion) in all.iter().enumerate() {
        match index {
            0..5 => assert_eq!(success(completion).len, 0),
            5 => assert_eq!(failure(completion), Status::RemoteAccess),
            _ => assert_eq!(failure(completion), Status::Flushed),
        }
    }
    let arrived = pair.b.drain();
    assert_eq!(arrived.iter().filter(|completion| completion.outcome.is_ok()).count(), 5);
}

fn destroy_returns<F: Fixture>(fixture: &F) {
    let spec = QueuePairSpec { rnr_retry: 7, ..spec() };
    let mut pair = Pair::with(fixture, Sizes::default(), &spec);
    let queue = pair.a.own();
    let mut works = pair.a.post_receives(queue, 10);
    let mut batch = Vec::new();
    for _ in 0..10 {
        let (work, payload) = (pair.a.work(), pair.a.filled(&[1; 64]));
        works.push(work);
        batch.push(unsignaled(work, payload));
    }
    pair.a.nic.post(pair.a.qp, &mut batch).expect("room");
    pair.a.nic.destroy_queue_pair(pair.a.qp).expect("a queue pair");
    let all = collect(fixture, &mut pair.a, &works);
    assert!(all.iter().all(|completion| completion.outcome.is_err()));
    assert!(all.into_iter().all(|completion| completion.payload.into_buffers().len() == 1));
    assert!(matches!(pair.a.nic.endpoint(pair.a.qp), Err(NicError::UnknownQueuePair(_))));
}

/// Whether the device still tells of finished requests after the destruction is its own matter; they come back anyway.
fn destroy_unread<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let queue = pair.b.own();
    let works = pair.b.post_receives(queue, 20);
    for _ in 0..10 {
        pair.a.send(Payload::Inline(b"x"));
    }
    // When the sender's requests are done, the receiver's completions are in its queue.
    pair.a.take(fixture, Kind::Send, 10);
    pair.b.nic.destroy_queue_pair(pair.b.qp).expect("a queue pair");
    collect(fixture, &mut pair.b, &works);
}

fn vanished_peer<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    pair.b.nic.destroy_queue_pair(pair.b.qp).expect("a queue pair");
    let works: Vec<WorkId> = (0..4).map(|_| pair.a.send(Payload::Inline(b"anybody?"))).collect();
    let all = collect(fixture, &mut pair.a, &works);
    assert_eq!(failure(&all[0]), Status::RetryExceeded);
    assert!(all[1..].iter().all(|completion| failure(completion) == Status::Flushed));
}

fn post_after_failure<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    pair.a.nic.fail_queue_pair(pair.a.qp).expect("a queue pair");
    let payload = pair.a.filled(b"too late");
    let (qp, work) = (pair.a.qp, pair.a.work());
    // A device may take the request and flush it, or refuse it at once.
    let buffers = match pair.a.nic.post_send(qp, work, payload, None) {
        Ok(()) => {
            let flushed = collect(fixture, &mut pair.a, &[work]).remove(0);
            assert_eq!(failure(&flushed), Status::Flushed);
            flushed.payload.into_buffers()
        }
        Err(refused) => refused.returned.into_buffers(),
    };
    assert_eq!(buffers[0].filled(), b"too late");
}

fn window_after_failure<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let buffer = pair.b.buffer(SIZE);
    let (window, _) = pair.b.grant(fixture, buffer, RemoteAccess::Write);
    pair.b.nic.fail_queue_pair(pair.b.qp).expect("a queue pair");
    let (qp, work) = (pair.b.qp, pair.b.work());
    if pair.b.nic.invalidate(qp, window, work).is_ok() {
        let ended = pair.b.take(fixture, Kind::Invalidate, 1).remove(0);
        assert_eq!(failure(&ended), Status::Flushed);
        assert!(ended.payload.into_buffers().is_empty(), "the peer may still have access");
    }
    let freed = pair.b.nic.free_window(window).expect("a window");
    assert_eq!(freed.expect("the buffer").capacity(), SIZE);
    pair.b.nic.destroy_queue_pair(qp).expect("a queue pair");
}

fn states<F: Fixture>(fixture: &F) {
    let mut pair = Pair::unconnected(fixture, Sizes::default(), &spec());
    let (qp, work) = (pair.a.qp, pair.a.work());
    let refused = pair.a.nic.post_send(qp, work, Payload::Inline(b"early"), None);
    assert!(matches!(refused.expect_err("not connected").error, NicError::State(_)));
    assert!(matches!(pair.a.nic.activate(qp), Err(NicError::State(_))));
    pair.connect();
    let peer = pair.b.nic.endpoint(pair.b.qp).expect("an endpoint");
    assert!(matches!(pair.a.nic.accept(qp, &peer), Err(NicError::State(_))));
    assert!(matches!(pair.a.nic.activate(qp), Err(NicError::State(_))));
    let queue = pair.b.own();
    pair.b.post_receives(queue, 1);
    pair.a.send(Payload::Inline(b"still works"));
    let received = pair.b.take(fixture, Kind::Receive, 1).remove(0);
    assert_eq!(buffer_of(received).filled(), b"still works");
}

fn unreachable_peer<F: Fixture>(fixture: &F) {
    let mut pair = Pair::unconnected(fixture, Sizes::default(), &spec());
    let queue = pair.a.own();
    let works = pair.a.post_receives(queue, 5);
    let peer = pair.b.nic.endpoint(pair.b.qp).expect("an endpoint");
    // Of the other address family, so no device has a way there; both are set aside for examples.
    let gid = match peer.gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..] => {
            [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
        }
        _ => [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 203, 0, 113, 1],
    };
    let refused = pair.a.nic.accept(pair.a.qp, &Endpoint { gid, ..peer });
    assert!(matches!(refused, Err(NicError::Device(_))), "{refused:?}");
    let all = collect(fixture, &mut pair.a, &works);
    assert!(all.iter().all(|completion| failure(completion) == Status::Flushed));
    assert!(all.into_iter().all(|completion| completion.payload.into_buffers().len() == 1));
    pair.a.nic.destroy_queue_pair(pair.a.qp).expect("a queue pair");
    pair.a.assert_quiet();
}

fn bystander<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let second_a = pair.a.nic.create_queue_pair(&spec()).expect("a queue pair");
    let second_b = pair.b.nic.create_queue_pair(&spec()).expect("a queue pair");
    connect(&mut pair.a.nic, second_a, &mut pair.b.nic, second_b);
    pair.a.nic.fail_queue_pair(second_a).expect("a queue pair");
    pair.b.nic.fail_queue_pair(second_b).expect("a queue pair");
    let queue = pair.b.own();
    pair.b.post_receives(queue, 1);
    pair.a.send(Payload::Inline(b"fine"));
    success(&pair.b.take(fixture, Kind::Receive, 1)[0]);
    success(&pair.a.take(fixture, Kind::Send, 1)[0]);
}
