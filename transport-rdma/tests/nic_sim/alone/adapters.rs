//! Several NICs of one simulated device: whose event, whose end, whose time.

use std::collections::BTreeSet;

use byway_rdma::nic::{Event, NicError, Payload, Status, WorkId};
use byway_rdma::sim::Fault;

use super::*;
use crate::nic_suite::adapters::{Two, events, exchange, post_shared};
use crate::nic_suite::{SIZE, failure, pattern};

pub(super) fn cases() -> Vec<(&'static str, fn())> {
    vec![
        ("adapters: a queue pair's events are its NIC's, a device's are everybody's", whose_event),
        ("adapters: each NIC wakes whom it was told to", wakers),
        ("adapters: a NIC does not know another one's queue pairs", foreign_ids),
        ("adapters: dropping a NIC at any moment costs no shared receive", dropped_at_any_moment),
        ("adapters: the last handle ends the device, one of several does not", last_handle),
        ("adapters: the same seed gives the same steps", same_steps),
    ]
}

fn two(sim: &Sim, shared_receives: u32) -> (Two<Sim>, Fabric) {
    let two = Two::new(sim, shared_receives);
    let fabric = sim.fabric.borrow().clone();
    (two, fabric)
}

fn whose_event() {
    let sim = jittery(1);
    let (mut two, fabric) = two(&sim, 4);
    let device = two.adapter.id();
    fabric.inject(Fault::FailQueuePair(device, two.other.a.qp));
    assert_eq!(events(&mut two.one.a.nic), []);
    assert!(!two.one.a.nic.has_news());
    fabric.inject(Fault::LinkDown(device));
    assert!(two.one.a.nic.has_news());
    let failed = Event::QueuePairFailed(two.other.a.qp);
    assert_eq!(events(&mut two.other.a.nic), [failed, Event::PortDown(1)]);
    // Both directions twice, unread: told once each, and the last word last.
    for fault in [Fault::LinkUp(device), Fault::LinkDown(device), Fault::LinkUp(device)] {
        fabric.inject(fault);
    }
    assert_eq!(events(&mut two.one.a.nic), [Event::PortDown(1), Event::PortUp(1)]);
    assert_eq!(events(&mut two.one.b.nic), [], "another device");
}

fn wakers() {
    let sim = jittery(2);
    let (mut two, fabric) = two(&sim, 4);
    post_shared(&two.adapter, 0..4);
    let counts = [&two.one, &two.other].map(|pair| {
        let count = Arc::new(Count::default());
        pair.a.nic.set_waker(Some(Arc::clone(&count).into()));
        count
    });
    let woken = || counts.each_ref().map(|count| count.taken());
    for pair in [&mut two.one, &mut two.other] {
        pair.a.nic.arm(false).expect("armed");
    }
    two.one.b.send(Payload::Empty);
    fabric.advance(PATIENCE);
    assert_eq!(woken(), [1, 0]);
    two.other.b.send(Payload::Empty);
    fabric.advance(PATIENCE);
    assert_eq!(woken(), [0, 1]);
    fabric.inject(Fault::FailDevice(two.adapter.id()));
    assert_eq!(woken(), [1, 1]);
}

fn foreign_ids() {
    let sim = jittery(3);
    let (mut two, _) = two(&sim, 4);
    let (foreign, nic) = (two.other.a.qp, &mut two.one.a.nic);
    assert!(matches!(nic.endpoint(foreign), Err(NicError::UnknownQueuePair(_))));
    assert!(matches!(nic.fail_queue_pair(foreign), Err(NicError::UnknownQueuePair(_))));
    assert!(matches!(nic.destroy_queue_pair(foreign), Err(NicError::UnknownQueuePair(_))));
    let refused = nic.post_send(foreign, WorkId(1), Payload::Empty, None).expect_err("not this NIC's");
    assert!(matches!(refused.error, NicError::UnknownQueuePair(_)));
    post_shared(&two.adapter, 0..1);
    exchange(&sim, &mut two.other, 1);
}

/// Long messages, so that some moments find one half arrived in a shared receive.
fn dropped_at_any_moment() {
    for steps in 0..40 {
        let sim = jittery(steps);
        let (mut two, fabric) = two(&sim, 4);
        post_shared(&two.adapter, 0..4);
        for seed in 0..3 {
            let payload = two.one.b.filled(&pattern(seed, SIZE));
            two.one.b.send(payload);
        }
        for _ in 0..steps {
            fabric.step();
        }
        drop(two.one.a);
        let used: BTreeSet<WorkId> = (0..4).map(|seed| exchange(&sim, &mut two.other, seed)).collect();
        assert!(used.into_iter().eq((0..4).map(WorkId)), "after {steps} steps");
    }
}

fn last_handle() {
    let sim = jittery(4);
    let (mut two, fabric) = two(&sim, 4);
    let device = two.adapter.id();
    post_shared(&two.adapter, 0..4);
    exchange(&sim, &mut two.one, 1);
    drop((two.adapter, two.one.a));
    exchange(&sim, &mut two.other, 2);
    assert_eq!(fabric.counters(device).arrived, 2, "counted for the device");
    assert!(fabric.registered(device) > 0, "two shared receives are left");
    drop(two.other.a);
    assert_eq!(fabric.registered(device), 0);
    for mut widow in [two.one.b, two.other.b] {
        widow.send(Payload::Empty);
        assert_eq!(failure(&widow.take(&sim, Kind::Send, 1)[0]), Status::RetryExceeded);
    }
}

fn same_steps() {
    let run = |seed| {
        let sim = jittery(seed);
        let (mut two, fabric) = two(&sim, 32);
        post_shared(&two.adapter, 0..32);
        for index in 0..10 {
            two.one.b.send(Payload::Inline(&pattern(index, 30)));
            two.other.b.send(Payload::Inline(&pattern(index, 60)));
        }
        let mut used: Vec<WorkId> = Vec::new();
        for pair in [&mut two.one, &mut two.other] {
            used.extend(pair.a.take(&sim, Kind::Receive, 10).iter().map(|received| received.work));
        }
        drop(two);
        (used, fabric.trace_hash())
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7).1, run(8).1);
}
