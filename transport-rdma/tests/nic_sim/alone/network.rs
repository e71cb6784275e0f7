//! Time, chance and order.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread;

use byway_rdma::nic::{Endpoint, Event, Kind, NicError, Payload, Receive, RecvQueue, Status, WorkId};
use byway_rdma::sim::{FaultPlan, Progress, SimNicOptions};

use super::*;
use crate::nic_suite::{Fixture, buffer_of, failure, pattern, spec, success};

pub(super) fn cases() -> Vec<(&'static str, fn())> {
    vec![
        ("network: the same seed gives the same run, another seed another", same_seed_same_run),
        ("network: time moves only when told", time_waits),
        ("network: queue pairs overtake each other, messages of one never do", order),
        ("network: an exact answer arrives no earlier than it can", no_instant_answers),
        ("network: meeting no receive is not the same as meeting nobody", two_kinds_of_patience),
        ("network: loss shows as delay alone", loss_is_delay),
        ("network: an executed message whose answer is lost is not executed again", executed_once),
        ("network: packets of another connection are dropped", other_connections),
        ("network: a NIC talks to itself", loopback),
        ("network: a write with immediate uses up a shared receive", shared_write),
        ("network: an address that leads nowhere is refused, and what was posted comes back", no_route),
        ("network: at once, two threads wake each other", two_threads),
        ("network: at once, a message wakes its receiver before the post returns", wakes_at_once),
        ("network: the first message tells a queue pair that does not send yet", established),
    ]
}

/// Messages, windows, faults and failures, all from one seed.
fn eventful_run(seed: u64) -> (u64, u64) {
    let sim = jittery(seed);
    let (mut pair, fabric) = pair(&sim);
    let nics = [pair.a.nic.id(), pair.b.nic.id()];
    let (from, until) = (Duration::ZERO, Duration::from_millis(2));
    fabric.follow(&FaultPlan::random(seed ^ 1, &nics, 4, (from, until), Duration::from_millis(1)));
    let queue = pair.b.own();
    pair.b.post_receives(queue, 20);
    let landing = pair.b.buffer(8192);
    let (_, slice) = pair.b.grant(&sim, landing, byway_rdma::nic::RemoteAccess::Write);
    for index in 0..20 {
        let payload = pair.a.filled(&pattern(index, 1 + 200 * index as usize));
        match index % 4 {
            3 => pair.a.write(payload, slice, Some(1)),
            _ => pair.a.send(payload),
        };
    }
    fabric.advance(Duration::from_millis(500));
    (fabric.trace_hash(), fabric.steps())
}

fn same_seed_same_run() {
    let runs: Vec<_> = (0..20).map(eventful_run).collect();
    assert_eq!(runs, (0..20).map(eventful_run).collect::<Vec<_>>());
    let different: BTreeSet<u64> = runs.iter().map(|run| run.0).collect();
    assert_eq!(different.len(), runs.len());
    assert!(runs.iter().all(|run| run.1 > 60), "{runs:?}");
}

fn time_waits() {
    // Even what takes no time waits for a step.
    let sim = Sim::new(FabricOptions { delays: Delays::NONE, ..FabricOptions::default() });
    let (mut instant, fabric) = pair(&sim);
    let queue = instant.b.own();
    instant.b.post_receives(queue, 1);
    instant.a.send(Payload::Inline(b"in no time"));
    instant.b.assert_quiet();
    fabric.advance(Duration::ZERO);
    assert_eq!((arrived(&mut instant.b), fabric.now()), (1, Duration::ZERO));

    let sim = jittery(1);
    let (mut pair, fabric) = pair(&sim);
    let queue = pair.b.own();
    pair.b.post_receives(queue, 1);
    pair.a.send(Payload::Inline(b"later"));
    for _ in 0..1000 {
        pair.a.assert_quiet();
        pair.b.assert_quiet();
    }
    assert_eq!((fabric.now(), fabric.steps()), (Duration::ZERO, 0));
    let due = fabric.next_at().expect("a message is on its way");
    fabric.advance_to(due - Duration::from_nanos(1));
    pair.b.assert_quiet();
    fabric.advance_to(due);
    assert_eq!((arrived(&mut pair.b), fabric.now()), (1, due));
    fabric.advance_to(Duration::from_secs(7));
    assert_eq!(fabric.now(), Duration::from_secs(7));
    fabric.advance_to(Duration::from_secs(6));
    assert_eq!(fabric.now(), Duration::from_secs(7), "never back");
    assert_eq!(fabric.next_at(), None, "a timer that nobody waits for is nothing to wait for");
}

fn order() {
    let mut overtakings = 0;
    for seed in 0..20 {
        let sim = jittery(seed);
        let (mut pair, fabric) = pair(&sim);
        let mut connections = vec![(pair.a.qp, pair.b.qp)];
        connections.extend((0..3).map(|_| connect_more(&mut pair)));
        for &(_, b) in &connections {
            pair.b.post_receives(RecvQueue::Own(b), 16);
        }
        for index in 0..16u64 {
            for (which, &(a, _)) in connections.iter().enumerate() {
                let bytes = pattern(index * 4 + which as u64, 1000 * which);
                let payload = pair.a.filled(&bytes);
                pair.a.nic.post_send(a, WorkId(index), payload, Some(index as u32)).expect("room");
            }
        }
        assert!(fabric.settle(Duration::from_secs(1)));
        let mut next = [0u64; 4];
        let mut last = 0;
        for completion in pair.b.drain() {
            let which = connections.iter().position(|&(_, b)| completion.queue_pair == Some(b));
            let which = which.expect("one of these");
            assert_eq!(success(&completion).immediate, Some(next[which] as u32), "in order on one");
            let bytes = pattern(next[which] * 4 + which as u64, 1000 * which);
            assert_eq!(buffer_of(completion).filled(), bytes);
            let sent = next[which] * 4 + which as u64;
            overtakings += usize::from(sent < last);
            last = sent;
            next[which] += 1;
        }
        assert_eq!(next, [16; 4]);
    }
    assert!(overtakings > 100, "only {overtakings} messages were overtaken");
}

fn no_instant_answers() {
    let delays = Delays { least: Duration::from_micros(10), ..Delays::NONE };
    let sim = Sim::new(FabricOptions { delays, ..FabricOptions::default() });
    let (mut pair, fabric) = pair(&sim);
    let queue = pair.b.own();
    pair.b.post_receives(queue, 1);
    pair.a.send(Payload::Empty);
    fabric.advance_to(Duration::from_nanos(9_999));
    pair.b.assert_quiet();
    fabric.advance_to(Duration::from_micros(10));
    assert_eq!(arrived(&mut pair.b), 1);
    fabric.advance_to(Duration::from_nanos(19_999));
    pair.a.assert_quiet();
    fabric.advance_to(Duration::from_micros(20));
    success(&pair.a.take(&sim, Kind::Send, 1)[0]);
}

fn two_kinds_of_patience() {
    let sim = jittery(3);
    let rnr = byway_rdma::nic::QueuePairSpec { rnr_retry: 5, ..spec() };
    let (mut no_receive, fabric) = pair_with(&sim, &rnr);
    no_receive.a.send(Payload::Inline(b"x"));
    let failed = no_receive.a.take(&sim, Kind::Send, 1).remove(0);
    assert_eq!(failure(&failed), Status::RnrRetryExceeded);
    let took = fabric.now();
    assert!((RNR_DELAY * 5..RNR_DELAY * 6).contains(&took), "five repeats took {took:?}");
    assert_eq!(fabric.counters(no_receive.a.nic.id()).not_ready, 6);

    let (mut nobody, fabric) = pair(&sim);
    let (a, b) = (nobody.a.nic.id(), nobody.b.nic.id());
    fabric.inject(byway_rdma::sim::Fault::Partition(a, b));
    nobody.a.send(Payload::Inline(b"x"));
    let failed = nobody.a.take(&sim, Kind::Send, 1).remove(0);
    assert_eq!(failure(&failed), Status::RetryExceeded);
    let took = fabric.now();
    assert!((PATIENCE * 4..PATIENCE * 5).contains(&took), "four waits took {took:?}");
    assert_eq!(fabric.counters(a).not_ready, 0);
}

fn loss_is_delay() {
    let lossless = Sim::new(FabricOptions { seed: 5, ..FabricOptions::default() });
    let lossy = Sim::new(FabricOptions { loss_ppm: 100_000, ..lossless.options });
    let [quick, slow] = [&lossless, &lossy].map(|sim| {
        let (mut pair, fabric) = pair(sim);
        let queue = pair.b.own();
        let works = pair.b.post_receives(queue, 64);
        for index in 0..64u64 {
            let payload = pair.a.filled(&pattern(index, 900));
            pair.a.send(payload);
        }
        assert_eq!(pair.a.take(sim, Kind::Send, 64).iter().map(success).count(), 64);
        for (index, completion) in pair.b.take(sim, Kind::Receive, 64).into_iter().enumerate() {
            assert_eq!(completion.work, works[index]);
            assert_eq!(buffer_of(completion).filled(), pattern(index as u64, 900));
        }
        pair.b.assert_quiet();
        assert_eq!(fabric.counters(pair.b.nic.id()).arrived, 64);
        (fabric.now(), fabric.counters(pair.a.nic.id()).repeats)
    });
    assert_eq!(quick.1, 0);
    assert!(slow.1 > 3 && slow.0 > quick.0 * 2, "{quick:?} and {slow:?}");
}

fn executed_once() {
    let sim = jittery(4);
    let (mut pair, fabric) = pair(&sim);
    let (a, b) = (pair.a.nic.id(), pair.b.nic.id());
    let queue = pair.b.own();
    pair.b.post_receives(queue, 8);
    fabric.inject(byway_rdma::sim::Fault::Block(b, a));
    pair.a.send(Payload::Inline(b"once"));
    fabric.advance(PATIENCE * 2 + PATIENCE / 2);
    assert_eq!(fabric.counters(a).repeats, 2);
    assert_eq!(arrived(&mut pair.b), 1);
    pair.a.assert_quiet();
    fabric.inject(byway_rdma::sim::Fault::Heal(a, b));
    success(&pair.a.take(&sim, Kind::Send, 1)[0]);
    assert_eq!(arrived(&mut pair.b), 0);
}

fn other_connections() {
    let sim = jittery(5);
    for changed in 0..3 {
        let mut pair = Pair::unconnected(&sim, Sizes::default(), &spec());
        let (a, b) = (pair.a.qp, pair.b.qp);
        let at_a = pair.a.nic.endpoint(a).expect("an endpoint");
        let at_b = pair.b.nic.endpoint(b).expect("an endpoint");
        let other = [
            Endpoint { first_psn: at_a.first_psn ^ 1, ..at_a },
            Endpoint { number: at_a.number + 1, ..at_a },
            Endpoint { gid: at_b.gid, ..at_a },
        ][changed];
        let queue = pair.b.own();
        pair.b.post_receives(queue, 1);
        pair.b.nic.connect(b, &other).expect("b connects");
        pair.a.nic.connect(a, &at_b).expect("a connects");
        pair.a.send(Payload::Inline(b"who are you?"));
        assert_eq!(failure(&pair.a.take(&sim, Kind::Send, 1)[0]), Status::RetryExceeded);
        pair.b.assert_quiet();
    }
}

fn loopback() {
    let sim = jittery(6);
    let fabric = Fabric::new(sim.options);
    let mut nic = fabric.nic(&SimNicOptions::default());
    sim.fabric.replace(fabric);
    let spec = byway_rdma::nic::QueuePairSpec { recv_depth: None, ..spec() };
    let [one, other] = [(); 2].map(|()| nic.create_queue_pair(&spec).expect("a queue pair"));
    nic.connect(one, &nic.endpoint(other).expect("an endpoint")).expect("one connects");
    nic.connect(other, &nic.endpoint(one).expect("an endpoint")).expect("other connects");
    let memory = byway_rdma::memory::Memory::allocate(4096).expect("memory");
    let buffer = nic.register(memory).expect("a registration").into_buffer();
    let receive = byway_rdma::nic::Receive { work: WorkId(1), buffer };
    nic.post_recv(RecvQueue::Shared, &mut vec![receive]).expect("room");
    nic.post_send(one, WorkId(2), Payload::Inline(b"to myself"), None).expect("room");
    let mut done = Vec::new();
    while done.len() < 2 {
        sim.pause();
        nic.poll(&mut done, 8).expect("a poll");
    }
    let received = done.remove(0);
    assert_eq!((received.queue_pair, received.work), (Some(other), WorkId(1)));
    assert_eq!(buffer_of(received).filled(), b"to myself");
    assert_eq!((done[0].queue_pair, done[0].work), (Some(one), WorkId(2)));
}

fn shared_write() {
    let sim = jittery(8);
    let shares = byway_rdma::nic::QueuePairSpec { recv_depth: None, ..spec() };
    let (mut pair, _) = pair_with(&sim, &shares);
    let works = pair.b.post_receives(RecvQueue::Shared, 2);
    let landing = pair.b.buffer(4096);
    let (_, slice) = pair.b.grant(&sim, landing, byway_rdma::nic::RemoteAccess::Write);
    let payload = pair.a.filled(&[1; 1000]);
    pair.a.write(payload, slice, Some(3));
    pair.a.send(Payload::Inline(b"next"));
    let told = pair.b.take(&sim, Kind::ReceiveWrite, 1).remove(0);
    assert_eq!((told.work, told.queue_pair, success(&told).len), (works[0], Some(pair.b.qp), 1000));
    assert!(buffer_of(told).filled().is_empty());
    assert_eq!(pair.b.take(&sim, Kind::Receive, 1)[0].work, works[1]);
}

fn no_route() {
    let sim = jittery(9);
    let mut pair = Pair::unconnected(&sim, Sizes::default(), &spec());
    let (qp, queue) = (pair.a.qp, pair.a.own());
    let works = pair.a.post_receives(queue, 2);
    let nowhere = Endpoint { gid: [7; 16], ..pair.b.nic.endpoint(pair.b.qp).expect("an endpoint") };
    assert!(matches!(pair.a.nic.connect(qp, &nowhere), Err(NicError::Device(_))));
    let back: Vec<WorkId> = pair.a.take(&sim, Kind::Receive, 2).iter().map(|end| end.work).collect();
    assert_eq!(back, works);
    assert!(matches!(pair.a.nic.connect(qp, &nowhere), Err(NicError::State(_))), "it failed");
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Answers `rounds` messages, asleep whenever there is none.
fn answer(mut side: Side<byway_rdma::sim::SimNic>, rounds: u64) {
    side.nic.set_waker(Some(Waker::from(Arc::new(Unpark(thread::current())))));
    let (qp, mut answered, mut completions) = (side.qp, 0, Vec::new());
    while answered < rounds {
        side.nic.arm(false).expect("armed");
        if side.nic.poll(&mut completions, 8).expect("a poll") == 0 {
            thread::park();
            side.nic.take_wakes().expect("wakes");
        }
        for completion in completions.drain(..).filter(|completion| completion.kind == Kind::Receive) {
            success(&completion);
            let receive = Receive { work: completion.work, buffer: buffer_of(completion) };
            side.nic.post_recv(RecvQueue::Own(qp), &mut vec![receive]).expect("room");
            side.nic.post_send(qp, WorkId(0), Payload::Inline(b"and back"), None).expect("room");
            answered += 1;
        }
    }
}

/// The loop of a driver's task, on threads: a lost wake-up would stop it for ever.
fn two_threads() {
    let options =
        FabricOptions { delays: Delays::NONE, progress: Progress::AtOnce, ..FabricOptions::default() };
    let sim = Sim::new(options);
    let (mut pair, _) = pair(&sim);
    for side in [&mut pair.a, &mut pair.b] {
        let queue = side.own();
        side.post_receives(queue, 4);
    }
    pair.a.send(Payload::Inline(b"there"));
    let Pair { a, b } = pair;
    thread::scope(|scope| {
        scope.spawn(|| answer(a, 2000));
        scope.spawn(|| answer(b, 2000));
    });
}

fn wakes_at_once() {
    let options =
        FabricOptions { delays: Delays::NONE, progress: Progress::AtOnce, ..FabricOptions::default() };
    let sim = Sim::new(options);
    let (mut pair, fabric) = pair(&sim);
    let count = Arc::new(Count::default());
    pair.b.nic.set_waker(Some(Waker::from(Arc::clone(&count))));
    let queue = pair.b.own();
    pair.b.post_receives(queue, 3);
    for (armed, woken) in [(false, 0), (true, 1), (false, 0)] {
        if armed {
            pair.b.nic.arm(false).expect("armed");
        }
        pair.a.send(Payload::Empty);
        assert_eq!(count.taken(), woken);
        assert_eq!(arrived(&mut pair.b), 1);
    }
    fabric.inject(byway_rdma::sim::Fault::LinkDown(pair.b.nic.id()));
    assert_eq!(count.taken(), 1, "an event wakes, armed or not");
    assert_eq!(fabric.now(), Duration::ZERO);
}

fn established() {
    let sim = jittery(7);
    let mut pair = Pair::unconnected(&sim, Sizes::default(), &spec());
    let (a, b) = (pair.a.qp, pair.b.qp);
    let at_a = pair.a.nic.endpoint(a).expect("an endpoint");
    let at_b = pair.b.nic.endpoint(b).expect("an endpoint");
    let queue = pair.b.own();
    pair.b.post_receives(queue, 2);
    pair.b.nic.accept(b, &at_a).expect("b accepts");
    pair.a.nic.connect(a, &at_b).expect("a connects");
    pair.a.send(Payload::Empty);
    pair.a.send(Payload::Empty);
    pair.b.take(&sim, Kind::Receive, 2);
    let mut events = Vec::new();
    pair.b.nic.take_events(&mut events).expect("events");
    assert_eq!(events, [Event::Established(b)]);
}
