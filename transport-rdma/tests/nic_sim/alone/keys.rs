//! Nothing but what was granted changes.

use byway_rdma::memory::{Buffer, Memory};
use byway_rdma::nic::{
    Kind, NicError, Operation, Payload, RemoteAccess, RemoteSlice, Request, Status, WindowId,
};
use byway_rdma::sim::{Fault, SimNicOptions};

use super::*;
use crate::nic_suite::{SIZE, buffer_of, failure, signaled, success};

pub(super) fn cases() -> Vec<(&'static str, fn())> {
    vec![
        ("keys: a thousand wrong writes change no byte", wrong_writes),
        ("keys: a write in flight when its window is invalidated is refused or whole", racing_invalidation),
        ("keys: a large write whose window ends halfway is refused", window_ends_halfway),
        ("keys: a bind takes effect when it is executed, not when it is posted", bind_is_executed_later),
        ("keys: a grant that is sent behind its bind is in force when it arrives", grant_behind_bind),
        ("keys: a bind of a freed window fails, and what is behind it never leaves", broken_bind),
        ("keys: a window is invalidated through its own queue pair only", foreign_invalidation),
        ("keys: a queue pair with bound windows is not destroyed", destroy_with_windows),
        ("keys: both NICs of a fabric have keys and addresses of their own", separate_keys),
        ("keys: registered memory has a limit and comes back", memory_limit),
        ("keys: a device without windows refuses them", no_windows),
    ]
}

/// What a wrong write is made of: a right one, changed.
fn spoiled(dice: &mut fastrand::Rng, right: RemoteSlice, others: &[RemoteSlice]) -> RemoteSlice {
    let other = others[dice.usize(0..others.len())];
    match dice.u8(0..8) {
        0 => RemoteSlice { key: dice.u32(..), ..right },
        1 => RemoteSlice { key: right.key ^ (1 << dice.u32(0..32)), ..right },
        2 => RemoteSlice { key: other.key, ..right },
        3 => RemoteSlice { address: other.address, ..right },
        4 => RemoteSlice { address: right.address.wrapping_sub(dice.u64(1..SIZE as u64)), ..right },
        5 => RemoteSlice { address: right.address + dice.u64(1..SIZE as u64), ..right },
        6 => RemoteSlice { address: dice.u64(..), ..right },
        _ => RemoteSlice { address: right.address, len: right.len + 1, key: right.key },
    }
}

/// One buffer is granted to this connection; its neighbours in the same registration, another window of the same
/// connection for reading, one of another connection, and a stale one must all stay as they are.
fn wrong_writes() {
    let sim = jittery(1);
    let mut refused = 0;
    let mut dice = fastrand::Rng::with_seed(7);
    for _ in 0..1000 {
        let (mut pair, fabric) = pair(&sim);
        let elsewhere = connect_more(&mut pair).1;
        let mut buffers = pair.b.buffers(6, SIZE);
        for buffer in &mut buffers {
            buffer.fill_from(&[0x55; SIZE]);
        }
        let mut granted: Vec<(WindowId, RemoteSlice)> = Vec::new();
        let own = pair.b.qp;
        for (qp, access) in
            [(own, RemoteAccess::Write), (own, RemoteAccess::Read), (elsewhere, RemoteAccess::Write)]
        {
            pair.b.qp = qp;
            let buffer = buffers.pop().expect("six");
            granted.push(pair.b.grant(&sim, buffer, access));
        }
        pair.b.qp = own;
        let buffer = buffers.pop().expect("six");
        let (stale, stale_slice) = pair.b.grant(&sim, buffer, RemoteAccess::Write);
        let buffer = invalidate(&sim, &mut pair, stale);
        let right = granted[0].1;
        let others = [granted[1].1, granted[2].1, stale_slice];
        let wrong = spoiled(&mut dice, right, &others);
        let payload = pair.a.filled(&vec![0xAA; wrong.len as usize]);
        let to = RemoteSlice { len: u64::from(u32::MAX), ..wrong };
        pair.a.write(payload, to, None);
        assert_eq!(failure(&pair.a.take(&sim, Kind::Write, 1)[0]), Status::RemoteAccess, "{wrong:?}");
        refused += fabric.counters(pair.b.nic.id()).refused;
        let freed = granted.iter().map(|&(window, _)| pair.b.nic.free_window(window));
        let freed: Vec<Buffer> = freed.map(|buffer| buffer.expect("a window").expect("its buffer")).collect();
        for mut buffer in freed.into_iter().chain(buffers).chain([buffer]) {
            buffer.set_filled(SIZE);
            assert!(buffer.filled().iter().all(|&byte| byte == 0x55), "{wrong:?} changed {buffer:?}");
        }
    }
    assert_eq!(refused, 1000);
}

fn invalidate(sim: &Sim, pair: &mut Pair, window: WindowId) -> Buffer {
    let (qp, work) = (pair.b.qp, pair.b.work());
    pair.b.nic.invalidate(qp, window, work).expect("room");
    let ended = pair.b.take(sim, Kind::Invalidate, 1).remove(0);
    success(&ended);
    buffer_of(ended)
}

fn racing_invalidation() {
    let mut outcomes = [0; 2];
    for seed in 0..60 {
        let sim = jittery(seed);
        let (mut pair, fabric) = pair(&sim);
        let landing = pair.b.buffer(SIZE);
        let (window, slice) = pair.b.grant(&sim, landing, RemoteAccess::Write);
        let payload = pair.a.filled(&[0xAA; 100]);
        pair.a.write(payload, slice, None);
        fabric.advance(Duration::from_micros(seed % 50));
        let mut landed = invalidate(&sim, &mut pair, window);
        landed.set_filled(100);
        let now = landed.filled().to_vec();
        let written = pair.a.take(&sim, Kind::Write, 1).remove(0).outcome.is_ok();
        assert_eq!(now, [if written { 0xAA } else { 0 }; 100], "whole or not at all");
        assert_eq!(landed.filled(), now, "and no more once it is ours");
        outcomes[usize::from(written)] += 1;
    }
    assert!(outcomes.iter().all(|&count| count > 5), "{outcomes:?}");
}

fn window_ends_halfway() {
    let mut torn = 0;
    for seed in 0..60 {
        let sim = jittery(seed);
        let (mut pair, fabric) = pair(&sim);
        let len = 1 << 16;
        let landing = pair.b.buffer(len);
        let (window, slice) = pair.b.grant(&sim, landing, RemoteAccess::Write);
        let payload = pair.a.filled(&vec![0xAA; len]);
        pair.a.write(payload, slice, None);
        fabric.advance(Duration::from_micros(seed));
        let mut landed = pair.b.nic.free_window(window).expect("a window").expect("its buffer");
        landed.set_filled(len);
        let written = landed.filled().iter().filter(|&&byte| byte == 0xAA).count();
        fabric.advance(Duration::from_secs(1));
        assert_eq!(landed.filled().iter().filter(|&&byte| byte == 0xAA).count(), written);
        let outcome = pair.a.take(&sim, Kind::Write, 1).remove(0).outcome;
        assert_eq!(outcome.is_ok(), written == len);
        torn += usize::from((1..len).contains(&written));
    }
    assert!(torn > 5, "only {torn} writes were caught halfway");
}

fn bind_is_executed_later() {
    let mut outcomes = [0; 2];
    for seed in 0..100 {
        let delays = Delays { device: Duration::from_micros(50), ..Delays::default() };
        let sim = Sim::new(FabricOptions { seed, delays, ..FabricOptions::default() });
        let (mut pair, _) = pair(&sim);
        let buffer = pair.b.buffer(SIZE);
        let window = pair.b.nic.allocate_window().expect("a window");
        let (qp, work) = (pair.b.qp, pair.b.work());
        pair.b.write(Payload::Empty, nowhere(), None);
        let slice = pair.b.nic.bind(qp, window, work, buffer, RemoteAccess::Write).expect("room");
        let certain = seed % 2 == 0;
        if certain {
            success(&pair.b.take(&sim, Kind::Bind, 1)[0]);
        }
        // Otherwise told by another way than behind the bind: nobody can say which is first.
        let payload = pair.a.filled(&[1; 8]);
        pair.a.write(payload, slice, None);
        let outcome = pair.a.take(&sim, Kind::Write, 1).remove(0).outcome;
        let mut landed = pair.b.nic.free_window(window).expect("a window").expect("its buffer");
        landed.set_filled(8);
        assert_eq!(landed.filled(), [u8::from(outcome.is_ok()); 8]);
        assert!(outcome.is_ok() || !certain, "a bind that was reported is in force");
        outcomes[usize::from(outcome.is_ok())] += 1;
    }
    assert!(outcomes.iter().all(|&count| count > 10), "{outcomes:?}");
}

/// Also when the device stops between the two.
fn grant_behind_bind() {
    for seed in 0..200 {
        let delays = Delays { device: Duration::from_micros(50), ..Delays::default() };
        let sim = Sim::new(FabricOptions { seed, delays, ..FabricOptions::default() });
        let (mut pair, fabric) = pair(&sim);
        let b = pair.b.nic.id();
        let queue = pair.a.own();
        pair.a.post_receives(queue, 1);
        let buffer = pair.b.buffer(SIZE);
        let window = pair.b.nic.allocate_window().expect("a window");
        let (qp, work) = (pair.b.qp, pair.b.work());
        let slice = pair.b.nic.bind(qp, window, work, buffer, RemoteAccess::Write).expect("room");
        pair.b.send(Payload::Inline(b"granted"));
        let stops = Duration::from_micros(seed % 50);
        fabric.schedule(stops, Fault::Freeze(b));
        fabric.schedule(stops + Duration::from_micros(seed), Fault::Thaw(b));
        success(&pair.a.take(&sim, Kind::Receive, 1)[0]);
        let payload = pair.a.filled(&[1; 8]);
        pair.a.write(payload, slice, None);
        success(&pair.a.take(&sim, Kind::Write, 1)[0]);
        success(&pair.b.take(&sim, Kind::Bind, 1)[0]);
    }
}

/// Where an empty write may go.
fn nowhere() -> RemoteSlice {
    RemoteSlice { address: 0, len: 0, key: 0 }
}

fn broken_bind() {
    let sim = jittery(3);
    let (mut pair, fabric) = pair(&sim);
    let queue = pair.a.own();
    pair.a.post_receives(queue, 4);
    let buffer = pair.b.buffer(SIZE);
    let window = pair.b.nic.allocate_window().expect("a window");
    let before = pair.b.send(Payload::Inline(b"before"));
    let (qp, work) = (pair.b.qp, pair.b.work());
    pair.b.nic.bind(qp, window, work, buffer, RemoteAccess::Write).expect("room");
    let behind = pair.b.send(Payload::Inline(b"behind"));
    assert!(pair.b.nic.free_window(window).expect("a window").is_some());
    assert!(fabric.settle(Duration::from_secs(1)));
    let ends: Vec<_> = pair.b.drain().into_iter().map(|end| (end.work, end.outcome.err())).collect();
    let status = |status| Some(byway_rdma::nic::Failure { status, vendor: 0 });
    assert_eq!(ends, [(before, None), (work, status(Status::WindowBind)), (behind, status(Status::Flushed))]);
    assert_eq!(arrived(&mut pair.a), 1, "only what was before the bind");
}

fn foreign_invalidation() {
    let sim = jittery(4);
    let (mut pair, _) = pair(&sim);
    let (_, other) = connect_more(&mut pair);
    let buffer = pair.b.buffer(SIZE);
    let (window, slice) = pair.b.grant(&sim, buffer, RemoteAccess::Write);
    let work = pair.b.work();
    pair.b.nic.invalidate(other, window, work).expect("room");
    let ended = pair.b.take(&sim, Kind::Invalidate, 1).remove(0);
    assert_eq!((ended.queue_pair, failure(&ended)), (Some(other), Status::WindowBind));
    let payload = pair.a.filled(&[1; 8]);
    pair.a.write(payload, slice, None);
    success(&pair.a.take(&sim, Kind::Write, 1)[0]);
}

fn destroy_with_windows() {
    let sim = jittery(5);
    let (mut pair, _) = pair(&sim);
    let buffer = pair.b.buffer(SIZE);
    let (window, _) = pair.b.grant(&sim, buffer, RemoteAccess::Write);
    let refused = pair.b.nic.destroy_queue_pair(pair.b.qp);
    assert!(matches!(refused, Err(NicError::State(_))), "{refused:?}");
    pair.b.nic.free_window(window).expect("a window");
    pair.b.nic.destroy_queue_pair(pair.b.qp).expect("free of windows");
}

fn separate_keys() {
    let sim = jittery(6);
    let (mut pair, _) = pair(&sim);
    let [(_, at_a), (_, at_b)] = [&mut pair.a, &mut pair.b].map(|side| {
        let buffer = side.buffer(SIZE);
        side.grant(&sim, buffer, RemoteAccess::Write)
    });
    assert_ne!(at_a.key, at_b.key);
    assert_ne!(at_a.address, at_b.address);
    let operation = Operation::Write { to: at_a, immediate: None };
    let request = Request { operation, ..signaled(pair.a.work(), Payload::Inline(b"mine?")) };
    pair.a.nic.post(pair.a.qp, &mut vec![request]).expect("room");
    assert_eq!(failure(&pair.a.take(&sim, Kind::Write, 1)[0]), Status::RemoteAccess);
}

fn memory_limit() {
    let fabric = Fabric::new(FabricOptions::default());
    let options = SimNicOptions { memory_max: 8192, ..SimNicOptions::default() };
    let mut nic = fabric.nic(&options);
    let slab = nic.register(Memory::allocate(8192).expect("memory")).expect("within the limit");
    let refused = nic.register(Memory::allocate(1).expect("memory")).expect_err("beyond it");
    assert_eq!(refused.returned.len(), 4096, "the memory comes back");
    assert_eq!(fabric.registered(nic.id()), 8192);
    drop(slab);
    assert_eq!(fabric.registered(nic.id()), 0);
    nic.register(refused.returned).expect("room again");
}

fn no_windows() {
    let fabric = Fabric::new(FabricOptions::default());
    let mut nic = fabric.nic(&SimNicOptions { windows: false, ..SimNicOptions::default() });
    assert!(!nic.limits().windows);
    assert!(matches!(nic.allocate_window(), Err(NicError::Device(_))));
}
