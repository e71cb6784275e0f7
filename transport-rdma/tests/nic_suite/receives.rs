//! What consumes a receive, what does not, and what happens when there is none.

use byway_rdma::nic::{Kind, Nic, NicError, Payload};

use super::*;

pub(crate) fn cases<F: Fixture>() -> Vec<Case<F>> {
    vec![
        ("receives: a write with immediate consumes one and leaves its buffer alone", write_with_immediate),
        ("receives: a write without immediate consumes none", plain_write),
        ("receives: those posted before connecting are used", posted_before_connecting),
        ("receives: a shared queue feeds two queue pairs", shared_queue),
        ("receives: one that is too small fails both sides", too_small),
        ("receives: none at all ends in the receiver-not-ready failure", none_at_all),
        ("receives: one that comes late is still found", late),
        ("receives: a full queue refuses and keeps the buffer", full_queue),
        ("receives: memory of another NIC is refused", foreign_memory),
    ]
}

fn write_with_immediate<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let queue = pair.b.own();
    let receives = pair.b.post_receives(queue, 2);
    let landing = pair.b.buffer(SIZE);
    let (window, slice) = pair.b.grant(fixture, landing, RemoteAccess::Write);
    let bytes = pattern(3, 100);
    let payload = pair.a.filled(&bytes);
    pair.a.write(payload, slice, Some(42));
    pair.a.send(Payload::Inline(b"next"));
    let told = pair.b.take(fixture, Kind::ReceiveWrite, 1).remove(0);
    assert_eq!((told.work, success(&told).immediate), (receives[0], Some(42)));
    assert_eq!(success(&told).len, 100);
    assert!(buffer_of(told).filled().is_empty());
    let next = pair.b.take(fixture, Kind::Receive, 1).remove(0);
    assert_eq!(next.work, receives[1]);
    assert_eq!(buffer_of(next).filled(), b"next");
    let mut landed = pair.b.nic.free_window(window).expect("a window").expect("its buffer");
    landed.set_filled(100);
    assert_eq!(landed.filled(), bytes);
}

fn plain_write<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let queue = pair.b.own();
    let receives = pair.b.post_receives(queue, 1);
    let landing = pair.b.buffer(SIZE);
    let (_window, slice) = pair.b.grant(fixture, landing, RemoteAccess::Write);
    for _ in 0..10 {
        pair.a.write(Payload::Inline(&[9; 16]), slice, None);
    }
    pair.a
        .take(fixture, Kind::Write, 10)
        .iter()
        .for_each(|completion| assert_eq!(success(completion).immediate, None));
    pair.b.assert_quiet();
    pair.a.send(Payload::Empty);
    assert_eq!(pair.b.take(fixture, Kind::Receive, 1)[0].work, receives[0]);
}

fn posted_before_connecting<F: Fixture>(fixture: &F) {
    let mut pair = Pair::unconnected(fixture, Sizes::default(), &spec());
    let queue = pair.b.own();
    let receives = pair.b.post_receives(queue, 3);
    pair.connect();
    for _ in 0..3 {
        pair.a.send(Payload::Empty);
    }
    let arrived = pair.b.take(fixture, Kind::Receive, 3);
    assert_eq!(arrived.iter().map(|completion| completion.work).collect::<Vec<_>>(), receives);
}

fn shared_queue<F: Fixture>(fixture: &F) {
    let spec = QueuePairSpec { recv_depth: None, ..spec() };
    let mut pair = Pair::with(fixture, Sizes::default(), &spec);
    let second_a = pair.a.nic.create_queue_pair(&spec).expect("a queue pair");
    let second_b = pair.b.nic.create_queue_pair(&spec).expect("a queue pair");
    connect(&mut pair.a.nic, second_a, &mut pair.b.nic, second_b);
    pair.b.post_receives(RecvQueue::Shared, 64);
    let Pair { a, b } = &mut pair;
    for index in 0..20u64 {
        for (qp, first) in [(a.qp, 0), (second_a, 100)] {
            let work = a.work();
            a.nic.post_send(qp, work, Payload::Inline(&pattern(first + index, 20)), None).expect("room");
        }
    }
    let mut next = [0u64, 100];
    for completion in b.take(fixture, Kind::Receive, 40) {
        success(&completion);
        let which = usize::from(completion.queue_pair == Some(second_b));
        assert_eq!(completion.queue_pair, Some([b.qp, second_b][which]));
        assert_eq!(buffer_of(completion).filled(), pattern(next[which], 20), "in order per queue pair");
        next[which] += 1;
    }
    assert_eq!(next, [20, 120]);
    let mut batch = vec![Receive { work: WorkId(0), buffer: b.buffer(SIZE) }];
    let error = b.nic.post_recv(RecvQueue::Own(second_b), &mut batch);
    assert!(matches!(error, Err(NicError::State(_))), "it has no receives of its own");
}

fn too_small<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let queue = pair.b.own();
    pair.b.post_receives(queue, 1);
    let payload = pair.a.filled(&pattern(4, SIZE + 1));
    pair.a.send(payload);
    let (at_sender, at_receiver) = if fixture.deviates(Deviation::TooLongIsFailedOperation) {
        (Status::RemoteOperation, Status::LocalOperation)
    } else {
        (Status::RemoteInvalidRequest, Status::LocalLength)
    };
    assert_eq!(failure(&pair.a.take(fixture, Kind::Send, 1)[0]), at_sender);
    let received = pair.b.take(fixture, Kind::Receive, 1).remove(0);
    assert_eq!(failure(&received), at_receiver);
    assert!(buffer_of(received).filled().is_empty());
}

fn none_at_all<F: Fixture>(fixture: &F) {
    let spec = QueuePairSpec { rnr_retry: 1, ..spec() };
    let mut pair = Pair::with(fixture, Sizes::default(), &spec);
    let payload = pair.a.filled(b"nobody listens");
    let work = pair.a.send(payload);
    let failed = pair.a.take(fixture, Kind::Send, 1).remove(0);
    assert_eq!(failed.work, work);
    assert_eq!(failure(&failed), Status::RnrRetryExceeded);
    assert_eq!(buffer_of(failed).filled(), b"nobody listens");
    pair.b.assert_quiet();
}

fn late<F: Fixture>(fixture: &F) {
    // For ever: the case shows the waiting, not its end.
    let spec = QueuePairSpec { rnr_retry: 7, ..spec() };
    let mut pair = Pair::with(fixture, Sizes::default(), &spec);
    pair.a.send(Payload::Inline(b"patience"));
    for _ in 0..100 {
        pair.a.assert_quiet();
        fixture.pause();
    }
    let queue = pair.b.own();
    pair.b.post_receives(queue, 1);
    let received = pair.b.take(fixture, Kind::Receive, 1).remove(0);
    assert_eq!(buffer_of(received).filled(), b"patience");
    success(&pair.a.take(fixture, Kind::Send, 1)[0]);
}

fn full_queue<F: Fixture>(fixture: &F) {
    let spec = QueuePairSpec { recv_depth: Some(4), ..spec() };
    let mut pair = Pair::with(fixture, Sizes::default(), &spec);
    let queue = pair.b.own();
    let buffers = pair.b.buffers(6, SIZE);
    let number = |(index, buffer)| Receive { work: WorkId(index as u64), buffer };
    let mut batch: Vec<Receive> = buffers.into_iter().enumerate().map(number).collect();
    assert!(matches!(pair.b.nic.post_recv(queue, &mut batch), Err(NicError::Full)));
    let left: Vec<u64> = batch.iter().map(|receive| receive.work.0).collect();
    assert_eq!(left, [4, 5], "those that did not fit come back");
    pair.a.send(Payload::Empty);
    pair.a.take(fixture, Kind::Send, 1);
    let used = pair.b.nic.post_recv(queue, &mut batch);
    assert!(matches!(used, Err(NicError::Full)), "a receive takes its slot until it is polled");
    pair.b.take(fixture, Kind::Receive, 1);
    batch.truncate(1);
    pair.b.nic.post_recv(queue, &mut batch).expect("a slot is free again");
}

fn foreign_memory<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let queue = pair.b.own();
    let buffer = pair.a.buffer(SIZE);
    let mut batch = vec![Receive { work: WorkId(1), buffer }];
    assert!(matches!(pair.b.nic.post_recv(queue, &mut batch), Err(NicError::ForeignMemory)));
    assert_eq!(batch.len(), 1, "the buffer comes back");
    let payload = pair.a.filled(b"not yours");
    let (qp, work) = (pair.b.qp, pair.b.work());
    let refused = pair.b.nic.post_send(qp, work, payload, None).expect_err("foreign memory");
    assert!(matches!(refused.error, NicError::ForeignMemory));
    assert_eq!(refused.returned.into_buffers()[0].filled(), b"not yours");
}
