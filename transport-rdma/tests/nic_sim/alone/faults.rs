//! What goes wrong goes wrong as it would on a device, and nothing is lost by it.

use std::collections::BTreeSet;

use byway_rdma::nic::{
    Event, Kind, NicError, Payload, QueuePairSpec, Receive, RecvQueue, RemoteAccess, Status, WorkId,
};
use byway_rdma::sim::{Fault, SimNic, SimNicOptions};

use super::*;
use crate::nic_suite::{SIZE, buffer_of, failure, pattern, spec, success};

pub(super) fn cases() -> Vec<(&'static str, fn())> {
    vec![
        ("faults: a short freeze is a delay, a long one a dead peer", freeze),
        ("faults: a frozen device takes requests and looks at them later", frozen_sender),
        ("faults: a sender that was frozen while it waited for a receive tries again", frozen_while_waiting),
        ("faults: a partition that heals in time is a delay", partition),
        ("faults: a link that goes down tells, and what was on it is repeated", link),
        ("faults: a killed sender has sent the first of its messages, in order", killed_sender),
        ("faults: a killed sender leaves a write half done", half_a_write),
        ("faults: a failed device gives back by destroying alone", failed_device),
        ("faults: a completion queue that overruns fails everything and loses nothing", overrun),
        ("faults: flushes that are withheld come when released, or by destroying", withheld_flushes),
        ("faults: a queue pair that the device fails tells and flushes", failed_queue_pair),
        ("faults: refused access fails both ends, and only them", both_ends_fail),
        ("faults: a shared receive that a dying queue pair had begun comes back", begun_shared_receive),
        ("faults: events of the shared queue and of the last receive", shared_events),
        ("faults: a NIC that is dropped is a peer that is gone", dropped),
        ("faults: a failed send may not wake who sleeps for solicited completions only", unsolicited_failure),
    ]
}

fn events(nic: &mut SimNic) -> Vec<Event> {
    let mut events = Vec::new();
    nic.take_events(&mut events).expect("events");
    events
}

fn freeze() {
    let sim = jittery(1);
    for (length, dies) in [(PATIENCE * 2, false), (PATIENCE * 5, true)] {
        let (mut pair, fabric) = pair(&sim);
        let b = pair.b.nic.id();
        let queue = pair.b.own();
        pair.b.post_receives(queue, 4);
        fabric.inject(Fault::Freeze(b));
        fabric.schedule(length, Fault::Thaw(b));
        for index in 0..3u64 {
            pair.a.send(Payload::Inline(&pattern(index, 16)));
        }
        fabric.advance(PATIENCE);
        pair.a.assert_quiet();
        pair.b.assert_quiet();
        fabric.advance(PATIENCE * 10);
        let ends = pair.a.drain();
        assert_eq!(ends.len(), 3);
        if dies {
            assert_eq!(failure(&ends[0]), Status::RetryExceeded);
            assert_eq!(arrived(&mut pair.b), 0);
        } else {
            assert!(ends.iter().all(|end| end.outcome.is_ok()));
            assert_eq!(arrived(&mut pair.b), 3);
        }
    }
}

fn frozen_sender() {
    let sim = jittery(2);
    let (mut pair, fabric) = pair(&sim);
    let a = pair.a.nic.id();
    let queue = pair.b.own();
    pair.b.post_receives(queue, 4);
    pair.a.send(Payload::Inline(b"before"));
    fabric.inject(Fault::Freeze(a));
    pair.a.send(Payload::Inline(b"meanwhile"));
    fabric.advance(PATIENCE * 20);
    pair.a.assert_quiet();
    assert_eq!(arrived(&mut pair.b), 1, "what was on its way");
    // Its own patience does not run out while it is stopped, however often that happens.
    for _ in 0..6 {
        fabric.inject(Fault::Thaw(a));
        fabric.inject(Fault::Freeze(a));
        fabric.advance(PATIENCE * 2);
    }
    fabric.inject(Fault::Thaw(a));
    assert!(pair.a.take(&sim, Kind::Send, 2).iter().all(|end| end.outcome.is_ok()));
    assert_eq!(arrived(&mut pair.b), 1, "the other one, and none twice");
}

fn frozen_while_waiting() {
    let sim = jittery(2);
    let (mut pair, fabric) = pair(&sim);
    let a = pair.a.nic.id();
    pair.a.send(Payload::Inline(b"patience"));
    while fabric.counters(a).not_ready == 0 {
        assert!(fabric.step());
    }
    fabric.inject(Fault::Freeze(a));
    fabric.advance(RNR_DELAY * 2);
    let queue = pair.b.own();
    pair.b.post_receives(queue, 1);
    fabric.inject(Fault::Thaw(a));
    success(&pair.a.take(&sim, Kind::Send, 1)[0]);
    assert_eq!(arrived(&mut pair.b), 1);
}

fn partition() {
    let sim = jittery(3);
    let (mut pair, fabric) = pair(&sim);
    let (a, b) = (pair.a.nic.id(), pair.b.nic.id());
    let queue = pair.b.own();
    pair.b.post_receives(queue, 10);
    for index in 0..10u64 {
        pair.a.send(Payload::Inline(&pattern(index, 8)));
        fabric.advance(Duration::from_micros(20));
        if index == 4 {
            fabric.inject(Fault::Partition(a, b));
        }
    }
    fabric.advance(PATIENCE * 2 + PATIENCE / 2);
    fabric.inject(Fault::Heal(a, b));
    for (index, completion) in pair.b.take(&sim, Kind::Receive, 10).into_iter().enumerate() {
        success(&completion);
        assert_eq!(buffer_of(completion).filled(), pattern(index as u64, 8));
    }
    assert_eq!(fabric.counters(a).repeats, 3, "two in vain");
    success(&pair.a.take(&sim, Kind::Send, 10)[9]);
}

fn link() {
    let sim = jittery(4);
    let (mut pair, fabric) = pair(&sim);
    let a = pair.a.nic.id();
    let queue = pair.b.own();
    pair.b.post_receives(queue, 1);
    pair.a.send(Payload::Inline(b"over a bad cable"));
    for fault in [Fault::LinkDown(a), Fault::LinkDown(a)] {
        fabric.inject(fault);
    }
    assert_eq!(events(&mut pair.a.nic), [Event::PortDown(1)]);
    fabric.advance(PATIENCE / 2);
    pair.b.assert_quiet();
    fabric.inject(Fault::LinkUp(a));
    fabric.inject(Fault::ChangeAddresses(a));
    assert_eq!(events(&mut pair.a.nic), [Event::PortUp(1), Event::AddressesChanged(1)]);
    assert_eq!(events(&mut pair.b.nic), []);
    success(&pair.a.take(&sim, Kind::Send, 1)[0]);
}

fn killed_sender() {
    let mut counts = BTreeSet::new();
    for seed in 0..40 {
        let sim = jittery(seed);
        let (mut pair, fabric) = pair(&sim);
        let a = pair.a.nic.id();
        let queue = pair.b.own();
        pair.b.post_receives(queue, 10);
        for index in 0..10u64 {
            let payload = pair.a.filled(&pattern(index, 600));
            pair.a.send(payload);
        }
        fabric.inject(Fault::Kill(a));
        // All that it had is gone, and its memory with it.
        drop(pair.a);
        fabric.advance(Duration::from_secs(1));
        let arrivals = pair.b.drain();
        for (index, completion) in arrivals.iter().enumerate() {
            success(completion);
            assert_eq!(completion.kind, Kind::Receive);
            let Payload::One(byway_rdma::nic::Piece::Owned(buffer)) = &completion.payload else {
                panic!("a buffer comes back")
            };
            assert_eq!(buffer.filled(), pattern(index as u64, 600));
        }
        counts.insert(arrivals.len());
        pair.b.send(Payload::Inline(b"hello?"));
        assert_eq!(failure(&pair.b.take(&sim, Kind::Send, 1)[0]), Status::RetryExceeded);
    }
    assert!(counts.len() > 5 && counts.contains(&0), "{counts:?}");
}

fn half_a_write() {
    let mut halves = 0;
    for seed in 0..40 {
        let sim = jittery(seed);
        let (mut pair, fabric) = pair(&sim);
        let queue = pair.b.own();
        pair.b.post_receives(queue, 1);
        let len = 64 * 1024;
        let landing = pair.b.buffer(len);
        let (window, slice) = pair.b.grant(&sim, landing, RemoteAccess::Write);
        let payload = pair.a.filled(&vec![0xAA; len]);
        pair.a.write(payload, slice, Some(9));
        let (a, b) = (pair.a.nic.id(), pair.b.nic.id());
        fabric.advance(Duration::from_micros(seed));
        fabric.inject(Fault::Partition(a, b));
        fabric.advance(Duration::from_secs(1));
        let told = pair.b.drain().len();
        let mut landed = pair.b.nic.free_window(window).expect("a window").expect("its buffer");
        landed.set_filled(len);
        let written = landed.filled().iter().take_while(|&&byte| byte == 0xAA).count();
        assert!(landed.filled()[written..].iter().all(|&byte| byte == 0));
        assert_eq!(told == 1, written == len, "told if and only if it is whole");
        halves += usize::from(written > 0 && written < len);
    }
    assert!(halves > 3, "only {halves} writes ended halfway");
}

fn failed_device() {
    let sim = jittery(5);
    let (mut pair, fabric) = pair(&sim);
    let queue = pair.a.own();
    let mut works: BTreeSet<WorkId> = pair.a.post_receives(queue, 5).into_iter().collect();
    let payload = pair.a.filled(b"unanswered");
    works.insert(pair.a.send(payload));
    fabric.inject(Fault::FailDevice(pair.a.nic.id()));
    assert_eq!(events(&mut pair.a.nic), [Event::DeviceFailed]);
    fabric.advance(Duration::from_secs(1));
    pair.a.assert_quiet();
    let (qp, work) = (pair.a.qp, pair.a.work());
    let refused = pair.a.nic.post_send(qp, work, Payload::Empty, None).expect_err("it is gone");
    assert!(matches!(refused.error, NicError::Device(_)));
    pair.a.nic.destroy_queue_pair(qp).expect("a queue pair");
    let back = pair.a.drain();
    assert!(back.iter().all(|end| failure(end) == Status::Flushed));
    assert_eq!(back.into_iter().map(|end| end.work).collect::<BTreeSet<_>>(), works);
}

fn overrun() {
    let sim = jittery(6);
    let (mut pair, fabric) = pair(&sim);
    let (_, other) = connect_more(&mut pair);
    let queue = pair.b.own();
    let works = pair.b.post_receives(queue, 10);
    fabric.inject(Fault::ShrinkCompletions(pair.b.nic.id(), 4));
    for _ in 0..10 {
        pair.a.send(Payload::Inline(b"too many"));
    }
    fabric.advance(Duration::from_secs(1));
    let qp = pair.b.qp;
    let told = events(&mut pair.b.nic);
    let expected = [Event::CompletionQueueFailed, Event::QueuePairFailed(qp), Event::QueuePairFailed(other)];
    assert_eq!(told, expected);
    let mut back: Vec<WorkId> = pair.b.drain().into_iter().map(|end| end.work).collect();
    assert_eq!(back, works[..4], "what fitted");
    pair.b.nic.destroy_queue_pair(qp).expect("a queue pair");
    back.extend(pair.b.drain().into_iter().map(|end| end.work));
    assert_eq!(back, works, "the rest");
    let ends = pair.a.take(&sim, Kind::Send, 10);
    assert_eq!(failure(&ends[4]), Status::RetryExceeded);
}

fn withheld_flushes() {
    let sim = jittery(7);
    for released in [true, false] {
        let (mut pair, fabric) = pair(&sim);
        let a = pair.a.nic.id();
        let queue = pair.a.own();
        let receives = pair.a.post_receives(queue, 3);
        fabric.inject(Fault::WithholdFlushes(a));
        let mut works: Vec<WorkId> = (0..3).map(|_| pair.a.send(Payload::Inline(b"x"))).collect();
        pair.a.nic.fail_queue_pair(pair.a.qp).expect("a queue pair");
        fabric.advance(Duration::from_secs(1));
        pair.a.assert_quiet();
        if released {
            fabric.inject(Fault::ReleaseFlushes(a));
            fabric.advance(Duration::from_millis(1));
        } else {
            pair.a.nic.destroy_queue_pair(pair.a.qp).expect("a queue pair");
        }
        works.extend(receives);
        let back: Vec<WorkId> = pair.a.drain().into_iter().map(|end| end.work).collect();
        assert_eq!(back, works, "all, in order");
    }
}

fn failed_queue_pair() {
    let sim = jittery(8);
    let (mut pair, fabric) = pair(&sim);
    let queue = pair.a.own();
    let works = pair.a.post_receives(queue, 3);
    let qp = pair.a.qp;
    fabric.inject(Fault::FailQueuePair(pair.a.nic.id(), qp));
    fabric.inject(Fault::FailQueuePair(pair.a.nic.id(), qp));
    assert_eq!(events(&mut pair.a.nic), [Event::QueuePairFailed(qp)]);
    fabric.advance(Duration::from_millis(1));
    let back = pair.a.drain();
    assert!(back.iter().all(|end| failure(end) == Status::Flushed));
    assert_eq!(back.iter().map(|end| end.work).collect::<Vec<_>>(), works);
    let later = pair.a.post_receives(queue, 2);
    let back: Vec<WorkId> = pair.a.take(&sim, Kind::Receive, 2).into_iter().map(|end| end.work).collect();
    assert_eq!(back, later, "what is posted afterwards comes back too");
}

fn both_ends_fail() {
    let sim = jittery(9);
    let (mut pair, fabric) = pair(&sim);
    let (other_a, other_b) = connect_more(&mut pair);
    let queue = pair.b.own();
    let works = pair.b.post_receives(queue, 2);
    pair.b.post_receives(RecvQueue::Own(other_b), 1);
    let nowhere = byway_rdma::nic::RemoteSlice { address: 0, len: 8, key: 0 };
    pair.a.write(Payload::Inline(b"denied"), nowhere, None);
    assert_eq!(failure(&pair.a.take(&sim, Kind::Write, 1)[0]), Status::RemoteAccess);
    fabric.advance(Duration::from_millis(1));
    assert_eq!(events(&mut pair.b.nic), [Event::QueuePairFailed(pair.b.qp)]);
    assert_eq!(events(&mut pair.a.nic), [], "the requester has its completion");
    let flushed: Vec<WorkId> = pair.b.drain().into_iter().map(|end| end.work).collect();
    assert_eq!(flushed, works);
    let work = pair.a.work();
    pair.a.nic.post_send(other_a, work, Payload::Empty, None).expect("room");
    success(&pair.b.take(&sim, Kind::Receive, 1)[0]);
}

fn begun_shared_receive() {
    let mut begun = 0;
    for seed in 0..40 {
        let sim = jittery(seed);
        let spec = QueuePairSpec { recv_depth: None, ..spec() };
        let (mut pair, fabric) = pair_with(&sim, &spec);
        let shared = pair.b.post_receives(RecvQueue::Shared, 2);
        let payload = pair.a.filled(&[7; SIZE]);
        pair.a.send(payload);
        fabric.advance(Duration::from_micros(seed));
        pair.b.nic.fail_queue_pair(pair.b.qp).expect("a queue pair");
        if seed % 2 == 0 {
            fabric.advance(Duration::from_millis(1));
        }
        pair.b.nic.destroy_queue_pair(pair.b.qp).expect("a queue pair");
        let back = pair.b.drain();
        for end in &back {
            assert_eq!(end.work, shared[0]);
            begun += usize::from(end.outcome.is_err());
        }
        // What did not come back is still there for others.
        let (a, b) = (pair.a.nic.create_queue_pair(&spec), pair.b.nic.create_queue_pair(&spec));
        let (a, b) = (a.expect("a queue pair"), b.expect("a queue pair"));
        nic_suite::connect(&mut pair.a.nic, a, &mut pair.b.nic, b);
        pair.a.nic.post_send(a, WorkId(99), Payload::Empty, None).expect("room");
        assert_eq!(pair.b.take(&sim, Kind::Receive, 1)[0].work, shared[back.len()]);
    }
    assert!(begun > 2, "only {begun} receives had been begun");
}

fn shared_events() {
    let fabric = Fabric::new(FabricOptions::default());
    let options = SimNicOptions { last_receive_event: true, ..SimNicOptions::default() };
    let [mut a, mut b] = [(); 2].map(|()| fabric.nic(&options));
    let [at_a, at_b] =
        [&mut a, &mut b].map(|nic| nic.create_queue_pair(&QueuePairSpec::default()).expect("a queue pair"));
    nic_suite::connect(&mut a, at_a, &mut b, at_b);
    let memory = byway_rdma::memory::Memory::allocate(4096).expect("memory");
    let buffers = b.register(memory).expect("a registration").into_buffers(512);
    let mut batch = buffers.into_iter().map(|buffer| Receive { work: WorkId(0), buffer }).collect();
    b.post_recv(RecvQueue::Shared, &mut batch).expect("room");
    b.set_shared_low_mark(7).expect("a shared queue");
    for expected in [vec![], vec![Event::SharedReceiveLow], vec![]] {
        a.post_send(at_a, WorkId(1), Payload::Empty, None).expect("room");
        fabric.advance(Duration::from_millis(1));
        assert_eq!(events(&mut b), expected);
    }
    b.fail_queue_pair(at_b).expect("a queue pair");
    fabric.advance(Duration::from_millis(1));
    assert_eq!(events(&mut b), [Event::LastReceiveConsumed(at_b)]);
}

fn unsolicited_failure() {
    for wakes in [false, true] {
        let fabric = Fabric::new(FabricOptions::default());
        let options = SimNicOptions { failed_sends_wake: wakes, ..SimNicOptions::default() };
        let [mut a, mut b] = [(); 2].map(|()| fabric.nic(&options));
        let [at_a, at_b] = [&mut a, &mut b].map(|nic| nic.create_queue_pair(&spec()).expect("a queue pair"));
        nic_suite::connect(&mut a, at_a, &mut b, at_b);
        a.arm(true).expect("armed");
        a.post_send(at_a, WorkId(1), Payload::Empty, None).expect("room");
        a.fail_queue_pair(at_a).expect("a queue pair");
        fabric.advance(Duration::from_millis(1));
        assert_eq!(a.take_wakes().expect("wakes"), usize::from(wakes));
        assert_eq!(a.poll(&mut Vec::new(), 8).expect("a poll"), 1);
    }
}

fn dropped() {
    let sim = jittery(10);
    let (mut pair, fabric) = pair(&sim);
    let b = pair.b.nic.id();
    let queue = pair.b.own();
    pair.b.post_receives(queue, 5);
    let buffer = pair.b.buffer(SIZE);
    pair.b.grant(&sim, buffer, RemoteAccess::Write);
    assert!(fabric.registered(b) > 0);
    drop(pair.b);
    assert_eq!(fabric.registered(b), 0, "a process that ends unpins its memory");
    pair.a.send(Payload::Inline(b"anybody?"));
    assert_eq!(failure(&pair.a.take(&sim, Kind::Send, 1)[0]), Status::RetryExceeded);
}
