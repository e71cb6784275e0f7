//! The completion queue never overruns, and nobody sleeps through a completion.

use byway_rdma::nic::{Kind, Nic, NicError, Operation, Payload, Request};

use super::*;

pub(crate) fn cases<F: Fixture>() -> Vec<Case<F>> {
    vec![
        ("completions: the queue's capacity bounds what can be created", capacity_bounds),
        ("completions: a queue filled to the brim loses none", filled_to_the_brim),
        ("completions: a full send queue refuses and keeps the request", full_send_queue),
        ("completions: a poll takes as many as asked, the rest stays", small_polls),
        ("completions: unread ones of a destroyed queue pair hide no others", unread_before_others),
        ("completions: arming before the message wakes", arm_then_send),
        ("completions: a message before arming is found by the next poll", send_then_arm),
        ("completions: no wake-up is lost in any order of sending, arming and polling", no_lost_wake),
        ("completions: without arming there is no wake-up", no_arm_no_wake),
        ("completions: an unsolicited message does not wake a solicited-only sleeper", solicited_only),
        ("completions: an idle NIC has no events", no_events),
    ]
}

fn capacity_bounds<F: Fixture>(fixture: &F) {
    let sizes = Sizes { completions: 300, shared_receives: 0 };
    let mut pair = Pair::unconnected(fixture, sizes, &spec());
    let capacity = pair.a.nic.limits().completions_max;
    let mut created = vec![pair.a.qp];
    let error = loop {
        match pair.a.nic.create_queue_pair(&spec()) {
            Ok(qp) => created.push(qp),
            Err(error) => break error,
        }
    };
    let NicError::CompletionsExhausted { needed, free } = error else { panic!("{error}") };
    assert_eq!(created.len() as u32 * needed + free, capacity);
    assert!(free < needed);
    pair.a.nic.destroy_queue_pair(created[0]).expect("a queue pair");
    let early = pair.a.nic.create_queue_pair(&spec());
    assert!(matches!(early, Err(NicError::CompletionsExhausted { .. })), "its completions may be unread");
    pair.a.drain();
    pair.a.nic.create_queue_pair(&spec()).expect("room again once the old completions are read");
}

fn filled_to_the_brim<F: Fixture>(fixture: &F) {
    let sizes = Sizes { completions: 127, shared_receives: 0 };
    let mut pair =
        Pair::unconnected(fixture, sizes, &QueuePairSpec { send_depth: 1, recv_depth: Some(1), ..spec() });
    // All that the queue holds, less what the first queue pair needs.
    let capacity = pair.b.nic.limits().completions_max;
    let receives = capacity - 2 - 1;
    let wide = QueuePairSpec { send_depth: 1, recv_depth: Some(receives), ..spec() };
    let sender = QueuePairSpec { send_depth: receives.min(100), recv_depth: Some(1), ..spec() };
    pair.b.qp = pair.b.nic.create_queue_pair(&wide).expect("exactly fits");
    pair.a.qp = pair.a.nic.create_queue_pair(&sender).expect("fits");
    pair.connect();
    let queue = pair.b.own();
    let works = pair.b.post_receives(queue, receives as usize);
    let mut sent = 0;
    while sent < receives {
        let (work, bytes) = (pair.a.work(), sent.to_le_bytes());
        let mut batch = vec![signaled(work, Payload::Inline(&bytes))];
        sent += u32::from(pair.a.nic.post(pair.a.qp, &mut batch).is_ok());
        for completion in pair.a.drain() {
            success(&completion);
        }
        fixture.pause();
    }
    // Nobody has polled b so far: every receive is in the queue once a's last send is acknowledged.
    let arrived = pair.b.take(fixture, Kind::Receive, receives as usize);
    for (index, completion) in arrived.into_iter().enumerate() {
        assert_eq!(completion.work, works[index]);
        success(&completion);
        assert_eq!(buffer_of(completion).filled(), (index as u32).to_le_bytes());
    }
    pair.b.assert_quiet();
}

fn full_send_queue<F: Fixture>(fixture: &F) {
    let spec = QueuePairSpec { send_depth: 8, rnr_retry: 7, ..spec() };
    let mut pair = Pair::with(fixture, Sizes::default(), &spec);
    let mut batch = Vec::new();
    for index in 0..10 {
        let (work, payload) = (pair.a.work(), pair.a.filled(&[index; 300]));
        batch.push(unsignaled(work, payload));
    }
    // No receives yet, so nothing can complete.
    assert!(matches!(pair.a.nic.post(pair.a.qp, &mut batch), Err(NicError::Full)));
    assert_eq!(batch.len(), 2, "eight fit");
    assert!(matches!(pair.a.nic.post(pair.a.qp, &mut batch), Err(NicError::Full)));
    let queue = pair.b.own();
    pair.b.post_receives(queue, 10);
    // Though none asked for a signal, the full queue empties.
    let end = Instant::now() + LIMIT;
    while !batch.is_empty() {
        pair.a.poll();
        // Until half of the queue is done this is refused.
        let _ = pair.a.nic.post(pair.a.qp, &mut batch);
        assert!(Instant::now() < end, "the queue never emptied");
        fixture.pause();
    }
    for (index, completion) in pair.b.take(fixture, Kind::Receive, 10).into_iter().enumerate() {
        assert_eq!(buffer_of(completion).filled(), [index as u8; 300]);
    }
}

fn small_polls<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let queue = pair.b.own();
    let works = pair.b.post_receives(queue, 10);
    for _ in 0..10 {
        pair.a.send(Payload::Empty);
    }
    pair.a.take(fixture, Kind::Send, 10);
    let mut seen = Vec::new();
    let end = Instant::now() + LIMIT;
    while seen.len() < 10 {
        let mut some = Vec::new();
        let count = pair.b.nic.poll(&mut some, 3).expect("a poll");
        assert_eq!(count, some.len());
        assert!(count <= 3);
        seen.extend(some.into_iter().map(|completion| completion.work));
        assert!(Instant::now() < end, "only {} came", seen.len());
    }
    assert_eq!(seen, works);
}

fn unread_before_others<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let second_a = pair.a.nic.create_queue_pair(&spec()).expect("a queue pair");
    let second_b = pair.b.nic.create_queue_pair(&spec()).expect("a queue pair");
    connect(&mut pair.a.nic, second_a, &mut pair.b.nic, second_b);
    let works = pair.b.post_receives(RecvQueue::Own(pair.b.qp), 10);
    let other = pair.b.post_receives(RecvQueue::Own(second_b), 1);
    for _ in 0..10 {
        pair.a.send(Payload::Empty);
    }
    pair.a.take(fixture, Kind::Send, 10);
    pair.a.qp = second_a;
    pair.a.send(Payload::Empty);
    pair.a.take(fixture, Kind::Send, 1);
    pair.b.nic.destroy_queue_pair(pair.b.qp).expect("a queue pair");
    let mut seen = Vec::new();
    while pair.b.nic.poll(&mut seen, 1).expect("a poll") > 0 {}
    let mut seen: Vec<WorkId> = seen.into_iter().map(|completion| completion.work).collect();
    seen.sort();
    assert_eq!(seen, [works, other].concat(), "zero means that there are no more");
}

fn arm_then_send<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let queue = pair.b.own();
    pair.b.post_receives(queue, 1);
    pair.b.nic.arm(false).expect("armed");
    pair.b.assert_quiet();
    pair.a.send(Payload::Empty);
    assert!(fixture.sleep(&mut pair.b.nic, LIMIT), "slept through the message");
    assert_eq!(pair.b.nic.take_wakes().expect("wakes"), 1);
    success(&pair.b.take(fixture, Kind::Receive, 1)[0]);
    assert_eq!(pair.b.nic.take_wakes().expect("wakes"), 0, "one arming, one wake-up");
}

fn send_then_arm<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let queue = pair.b.own();
    pair.b.post_receives(queue, 1);
    pair.a.send(Payload::Empty);
    pair.a.take(fixture, Kind::Send, 1);
    // The completion is there before the arming, which may or may not tell of it: the poll after it must.
    pair.b.nic.arm(false).expect("armed");
    assert_eq!(pair.b.poll(), 1);
    success(&pair.b.take(fixture, Kind::Receive, 1)[0]);
}

/// The sleeper's loop against a sender that comes at every point of it, 300 times, in a fixed random order.
fn no_lost_wake<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let queue = pair.b.own();
    pair.b.post_receives(queue, 64);
    let (mut sent, mut received, mut slept) = (0u64, 0u64, 0);
    for moment in pattern(0xB1A5, 300).into_iter().map(|byte| byte % 4) {
        let mut send_at = |this: u8, a: &mut Side<F::Nic>| {
            if moment == this {
                a.send(Payload::Inline(&sent.to_le_bytes()));
                sent += 1;
                a.drain();
            }
        };
        send_at(0, &mut pair.a);
        pair.b.nic.arm(false).expect("armed");
        send_at(1, &mut pair.a);
        let mut fresh = pair.b.drain();
        send_at(2, &mut pair.a);
        send_at(3, &mut pair.a);
        if fresh.is_empty() {
            // Armed, polled in vain, and a message has been sent: sleeping is safe.
            assert!(fixture.sleep(&mut pair.b.nic, LIMIT), "slept through message {received}");
            pair.b.nic.take_wakes().expect("wakes");
            slept += 1;
            fresh = pair.b.drain();
        }
        while received + (fresh.len() as u64) < sent {
            fresh.extend(pair.b.drain());
            fixture.pause();
        }
        for completion in fresh {
            let work = completion.work;
            let buffer = buffer_of(completion);
            assert_eq!(buffer.filled(), received.to_le_bytes());
            received += 1;
            pair.b.nic.post_recv(queue, &mut vec![Receive { work, buffer }]).expect("a free slot");
        }
    }
    assert_eq!((sent, received), (300, 300));
    assert!(slept > 50, "the case slept only {slept} times, so it showed little");
}

fn no_arm_no_wake<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let queue = pair.b.own();
    pair.b.post_receives(queue, 1);
    pair.a.send(Payload::Empty);
    pair.b.take(fixture, Kind::Receive, 1);
    assert_eq!(pair.b.nic.take_wakes().expect("wakes"), 0);
    assert!(!fixture.sleep(&mut pair.b.nic, Duration::ZERO));
}

fn solicited_only<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let queue = pair.b.own();
    pair.b.post_receives(queue, 2);
    pair.b.nic.arm(true).expect("armed");
    let quiet = Request {
        solicited: false,
        ..Request::signaled(pair.a.work(), Operation::Send { immediate: None }, Payload::Empty)
    };
    pair.a.nic.post(pair.a.qp, &mut vec![quiet]).expect("room");
    pair.b.take(fixture, Kind::Receive, 1);
    assert!(!fixture.sleep(&mut pair.b.nic, Duration::ZERO), "nobody asked to be woken for this");
    pair.a.send(Payload::Empty);
    assert!(fixture.sleep(&mut pair.b.nic, LIMIT), "slept through the solicited message");
    pair.b.take(fixture, Kind::Receive, 1);
}

fn no_events<F: Fixture>(fixture: &F) {
    let mut pair = Pair::new(fixture);
    let mut events = Vec::new();
    pair.a.nic.take_events(&mut events).expect("events");
    assert_eq!(events, []);
}
