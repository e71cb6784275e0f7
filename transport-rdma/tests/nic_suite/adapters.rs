//! Several NICs of one adapter: what they share is everybody's, and what happens to one of them harms no other.

use std::collections::BTreeSet;
use std::ops::Range;
use std::thread;

use byway_rdma::nic::{Adapter, Event, Kind, Nic, NicError, Payload};

use super::*;

pub(crate) fn cases<F: Fixture>() -> Vec<Case<F>> {
    vec![
        ("adapters: shared receives feed all NICs, and each reads its own", each_reads_its_own),
        ("adapters: a NIC that overruns fails alone", overrun),
        ("adapters: a queue pair that fails and is destroyed harms no other NIC", failed_alone),
        ("adapters: wake-ups are each NIC's own", wakes),
        ("adapters: any thread registers memory and posts shared receives", other_threads),
        ("adapters: memory of one NIC is memory of the other", common_memory),
        ("adapters: unread shared receives of a dropped NIC go back to the queue", dropped_unread),
        ("adapters: room for shared receives is set aside", set_aside),
        ("adapters: NICs come and go many times", come_and_go),
        ("adapters: NICs and memory outlive the handle that they were made with", outlive),
    ]
}

/// Completions of a NIC with plenty of room, and how many of them are for shared receives.
const ROOM: (u32, u32) = (1024, 256);

/// Two NICs of one adapter, each with a queue pair that is connected to a NIC of another adapter.
/// In both pairs `a` is ours and takes shared receives, and `b` is the peer.
pub(crate) struct Two<F: Fixture> {
    pub(crate) adapter: F::Adapter,
    pub(crate) peers: F::Adapter,
    pub(crate) one: Pair<F::Nic>,
    pub(crate) other: Pair<F::Nic>,
}

impl<F: Fixture> Two<F> {
    pub(crate) fn new(fixture: &F, shared_receives: u32) -> Self {
        Self::with(fixture, shared_receives, ROOM)
    }

    /// The first NIC has the room that is given.
    fn with(fixture: &F, shared_receives: u32, room: (u32, u32)) -> Self {
        let (adapter, peers) = fixture.adapters(shared_receives);
        let one = pair(&adapter, room, &peers);
        let other = pair(&adapter, ROOM, &peers);
        Self { adapter, peers, one, other }
    }
}

fn pair<A: Adapter>(adapter: &A, (completions, shared): (u32, u32), peers: &A) -> Pair<A::Nic> {
    let a = Side::new(adapter.nic(completions, shared).expect("a NIC"), &sharing());
    let b = Side::new(peers.nic(ROOM.0, 0).expect("a NIC"), &spec());
    let mut pair = Pair { a, b };
    pair.connect();
    pair
}

/// A queue pair that takes shared receives.
fn sharing() -> QueuePairSpec {
    QueuePairSpec { send_depth: 8, recv_depth: None, ..spec() }
}

fn receives<A: Adapter>(adapter: &A, works: Range<u64>) -> Vec<Receive> {
    let count = (works.end - works.start) as usize;
    let memory = Memory::allocate(count * SIZE).expect("memory");
    let buffers = adapter.register(memory).expect("a registration").into_buffers(SIZE);
    works.zip(buffers).map(|(work, buffer)| Receive { work: WorkId(work), buffer }).collect()
}

pub(crate) fn post_shared<A: Adapter>(adapter: &A, works: Range<u64>) {
    let mut batch = receives(adapter, works);
    adapter.post_shared(&mut batch).expect("room for the receives");
    assert!(batch.is_empty());
}

/// One message from the peer, and the number of the receive that it used.
pub(crate) fn exchange<F: Fixture>(fixture: &F, pair: &mut Pair<F::Nic>, seed: u64) -> WorkId {
    let bytes = pattern(seed, 50);
    pair.b.send(Payload::Inline(&bytes));
    let received = pair.a.take(fixture, Kind::Receive, 1).remove(0);
    assert_eq!((success(&received).len, received.queue_pair), (50, Some(pair.a.qp)));
    let work = received.work;
    assert_eq!(buffer_of(received).filled(), bytes);
    success(&pair.b.take(fixture, Kind::Send, 1)[0]);
    work
}

pub(crate) fn events<N: Nic>(nic: &mut N) -> Vec<Event> {
    let mut events = Vec::new();
    nic.take_events(&mut events).expect("events");
    events
}

fn each_reads_its_own<F: Fixture>(fixture: &F) {
    let mut two = Two::new(fixture, 64);
    post_shared(&two.adapter, 0..40);
    for index in 0..15 {
        for (pair, first) in [(&mut two.one, 0), (&mut two.other, 100)] {
            pair.b.send(Payload::Inline(&pattern(first + index, 20)));
        }
    }
    let mut used = BTreeSet::new();
    for (pair, first) in [(&mut two.one, 0), (&mut two.other, 100)] {
        for (index, received) in pair.a.take(fixture, Kind::Receive, 15).into_iter().enumerate() {
            success(&received);
            assert_eq!(received.queue_pair, Some(pair.a.qp));
            assert!(used.insert(received.work), "a receive is used once");
            assert_eq!(buffer_of(received).filled(), pattern(first + index as u64, 20));
        }
    }
    two.one.a.assert_quiet();
    two.other.a.assert_quiet();
    assert!(used.into_iter().eq((0..30).map(WorkId)), "in the order in which they were posted");
}

fn overrun<F: Fixture>(fixture: &F) {
    // Fewer shared receives are set aside than the peer is going to use up.
    let mut two = Two::with(fixture, 256, (16, 8));
    let capacity = u64::from(two.one.a.nic.limits().completions_max);
    let messages = capacity + 10;
    post_shared(&two.adapter, 0..messages + 8);
    let (mut sent, mut failed) = (0, false);
    let end = Instant::now() + LIMIT;
    while !failed {
        if sent < messages {
            let (qp, work) = (two.one.b.qp, two.one.b.work());
            sent += u64::from(two.one.b.nic.post_send(qp, work, Payload::Empty, None).is_ok());
        }
        failed = two.one.b.drain().iter().any(|completion| completion.outcome.is_err());
        assert!(Instant::now() < end, "nothing failed");
        fixture.pause();
    }
    // The other one asks first, so what concerns only the one must have been put aside for it.
    assert_eq!(events(&mut two.other.a.nic), []);
    assert!(events(&mut two.one.a.nic).contains(&Event::CompletionQueueFailed));
    exchange(fixture, &mut two.other, 1);
    two.one.a.nic.destroy_queue_pair(two.one.a.qp).expect("a queue pair");
    exchange(fixture, &mut two.other, 2);
    drop(two.one);
    for seed in 3..10 {
        exchange(fixture, &mut two.other, seed);
    }
    assert_eq!(events(&mut two.other.a.nic), []);
}

fn failed_alone<F: Fixture>(fixture: &F) {
    let mut two = Two::new(fixture, 64);
    post_shared(&two.adapter, 0..8);
    exchange(fixture, &mut two.one, 1);
    two.one.a.nic.fail_queue_pair(two.one.a.qp).expect("a queue pair");
    exchange(fixture, &mut two.other, 2);
    two.one.a.nic.destroy_queue_pair(two.one.a.qp).expect("a queue pair");
    exchange(fixture, &mut two.other, 3);
    two.one.b.send(Payload::Empty);
    assert_eq!(failure(&two.one.b.take(fixture, Kind::Send, 1)[0]), Status::RetryExceeded);
    // The NIC itself is as good as before.
    two.one = Pair { a: Side::new(two.one.a.nic, &sharing()), b: Side::new(two.one.b.nic, &spec()) };
    two.one.connect();
    exchange(fixture, &mut two.one, 4);
    exchange(fixture, &mut two.other, 5);
}

fn wakes<F: Fixture>(fixture: &F) {
    let mut two = Two::new(fixture, 64);
    post_shared(&two.adapter, 0..8);
    for pair in [&mut two.one, &mut two.other] {
        pair.a.nic.arm(false).expect("armed");
        pair.a.assert_quiet();
    }
    for seed in 0..2 {
        let (awake, asleep) = match seed {
            0 => (&mut two.one, &mut two.other),
            _ => (&mut two.other, &mut two.one),
        };
        awake.b.send(Payload::Empty);
        assert!(fixture.sleep(&mut awake.a.nic, LIMIT), "slept through the message");
        assert_eq!(awake.a.nic.take_wakes().expect("wakes"), 1);
        assert!(!fixture.sleep(&mut asleep.a.nic, Duration::ZERO), "woken for another NIC's message");
        assert_eq!(asleep.a.nic.take_wakes().expect("wakes"), 0);
        success(&awake.a.take(fixture, Kind::Receive, 1)[0]);
        asleep.a.assert_quiet();
    }
}

fn other_threads<F: Fixture>(fixture: &F) {
    let mut two = Two::new(fixture, 64);
    let adapter = &two.adapter;
    thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for round in 0..8 {
                    let work = 8 * thread + round;
                    post_shared(adapter, work..work + 1);
                }
            });
        }
    });
    let mut used = BTreeSet::new();
    for seed in 0..16 {
        used.insert(exchange(fixture, &mut two.one, seed));
        used.insert(exchange(fixture, &mut two.other, seed));
    }
    assert!(used.into_iter().eq((0..32).map(WorkId)), "every receive is used once");
}

fn common_memory<F: Fixture>(fixture: &F) {
    let mut two = Two::new(fixture, 64);
    let queue = two.other.b.own();
    two.other.b.post_receives(queue, 1);
    let bytes = pattern(1, 3000);
    let payload = two.one.a.filled(&bytes);
    two.other.a.send(payload);
    let received = two.other.b.take(fixture, Kind::Receive, 1).remove(0);
    assert_eq!(buffer_of(received).filled(), bytes);
    // And so is what the adapter itself registered, also for a peer's writes.
    let memory = Memory::allocate(SIZE).expect("memory");
    let buffer = two.adapter.register(memory).expect("a registration").into_buffer();
    let (window, slice) = two.one.a.grant(fixture, buffer, RemoteAccess::Write);
    two.one.b.write(Payload::Inline(b"from afar"), slice, None);
    success(&two.one.b.take(fixture, Kind::Write, 1)[0]);
    assert!(matches!(two.other.a.nic.free_window(window), Err(NicError::UnknownWindow(_))));
    let mut landed = two.one.a.nic.free_window(window).expect("a window").expect("its buffer");
    landed.set_filled(9);
    assert_eq!(landed.filled(), b"from afar");
    let mut batch = receives(&two.peers, 1..2);
    assert!(matches!(two.adapter.post_shared(&mut batch), Err(NicError::ForeignMemory)));
    assert_eq!(batch.len(), 1, "the buffer comes back");
}

fn dropped_unread<F: Fixture>(fixture: &F) {
    let mut two = Two::new(fixture, 8);
    post_shared(&two.adapter, 0..8);
    for index in 0..5 {
        two.one.b.send(Payload::Inline(&[index; 20]));
    }
    two.one.b.take(fixture, Kind::Send, 5);
    let Pair { a, b: mut widow } = two.one;
    drop(a);
    // The receives that nobody used come first.
    let used: Vec<WorkId> = (0..8).map(|seed| exchange(fixture, &mut two.other, seed)).collect();
    assert_eq!(used, [5, 6, 7, 0, 1, 2, 3, 4].map(WorkId));
    widow.send(Payload::Empty);
    assert_eq!(failure(&widow.take(fixture, Kind::Send, 1)[0]), Status::RetryExceeded);
    let mut batch = receives(&two.adapter, 0..9);
    assert!(matches!(two.adapter.post_shared(&mut batch), Err(NicError::Full)));
    assert_eq!(batch.len(), 1, "all eight places are free again");
    exchange(fixture, &mut two.other, 9);
}

fn set_aside<F: Fixture>(fixture: &F) {
    let (adapter, _peers) = fixture.adapters(64);
    let mut nic = adapter.nic(100, 60).expect("a NIC");
    let capacity = nic.limits().completions_max;
    let left = capacity - 60;
    let sharing = |send_depth| QueuePairSpec { send_depth, ..sharing() };
    let refused = nic.create_queue_pair(&sharing(left + 1)).expect_err("more than what is left");
    let NicError::CompletionsExhausted { needed, free } = refused else { panic!("{refused}") };
    assert_eq!((needed, free), (left + 1, left));
    nic.create_queue_pair(&sharing(left)).expect("exactly what is left");
    let refused = adapter.nic(16, 10_000).err().expect("nothing would be left");
    assert!(matches!(refused, NicError::CompletionsExhausted { needed: 10_000, .. }), "{refused}");
    let limits = adapter.limits();
    assert_eq!((limits.shared_receives_max, nic.limits().shared_receives_max), (64, 64));
    assert!(limits.completions_max >= capacity);
}

fn come_and_go<F: Fixture>(fixture: &F) {
    let (adapter, peers) = fixture.adapters(8);
    post_shared(&adapter, 0..8);
    let mut stays = pair(&adapter, ROOM, &peers);
    for round in 0..40 {
        let mut goes = pair(&adapter, (64, 8), &peers);
        let work = exchange(fixture, &mut goes, round).0;
        post_shared(&adapter, work..work + 1);
        if round % 2 == 0 {
            goes.a.nic.destroy_queue_pair(goes.a.qp).expect("a queue pair");
        }
        drop(goes);
        let work = exchange(fixture, &mut stays, round).0;
        post_shared(&adapter, work..work + 1);
    }
    stays.a.assert_quiet();
}

fn outlive<F: Fixture>(fixture: &F) {
    let mut two = Two::new(fixture, 8);
    post_shared(&two.adapter, 0..8);
    let memory = Memory::allocate(SIZE).expect("memory");
    let mut buffer = two.adapter.register(memory).expect("a registration").into_buffer();
    drop((two.adapter, two.peers));
    exchange(fixture, &mut two.one, 1);
    drop(two.one);
    exchange(fixture, &mut two.other, 2);
    drop(two.other);
    buffer.fill_from(b"still here");
    assert_eq!(buffer.filled(), b"still here");
}
