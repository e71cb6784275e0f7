//! A peer that breaks the rules with a NIC of its own, on one connection of a host that has another.
//!
//! Each strike must cost the peer its own connection or nothing at all, and must not change a byte of what the other
//! connection moves, take its receives, or hold it up.

use std::time::Duration;

use byway_runtime::Limits;
use byway_runtime::session::Failure;
use fastrand::Rng;

use super::super::Driver;
use super::calls::{Script, Way};
use super::schedule::{Schedule, Strike, Trouble};
use super::world::World;
use crate::nic::{Operation, QueuePairSpec, RemoteSlice};
use crate::options::RdmaOptions;
use crate::pool::Owner;
use crate::protocol::Place;
use crate::protocol::wire::least_receive;
use crate::sim::{FabricOptions, SimAdapter, SimNicOptions};

/// The host that is attacked, and the one of the peers.
const HOST: usize = 0;
const PEERS: usize = 1;

pub(super) fn options() -> RdmaOptions {
    RdmaOptions {
        large_from: 1000,
        receive_size: least_receive(256) as u32 + 1100,
        receives_max: 12,
        shared_receives: 64,
        staging: 8 << 20,
        landing: 16 << 20,
        keep: 1 << 20,
        transfers: 4,
        spin: Duration::ZERO,
        ..RdmaOptions::default()
    }
}

pub(super) fn limits() -> [Limits; 2] {
    let limits = Limits { max_head: 256, ..Limits::default() };
    [Limits { max_calls: 0, ..limits }, limits]
}

fn script(link: usize, number: u64) -> Script {
    let mut random = Rng::with_seed(number);
    let lens = |random: &mut Rng| (0..random.usize(1..5)).map(|_| random.u32(0..50_000)).collect();
    Script {
        link,
        at: Duration::from_micros(number * 7),
        method: 0,
        requests: lens(&mut random),
        replies: lens(&mut random),
        joined_end: false,
        both_at_once: true,
        keeps: true,
        leases: false,
        deadline: None,
        garbled: link == 0,
        client: Way::Slow(Duration::from_micros(20)),
        server: Way::Slow(Duration::from_micros(15)),
    }
}

/// Two connections from one host to another, with calls on both; `act` does it, once `when` says so. Returns why the
/// attacked side of the first connection ended, if it did.
fn strike(when: fn(&World) -> bool, act: impl FnOnce(&mut World) + 'static) -> Option<Failure> {
    let mut world = World::new(FabricOptions { seed: 3, ..FabricOptions::default() });
    // So few completions that the peer can overrun their queue.
    let host =
        RdmaOptions { queue_pair: QueuePairSpec { send_depth: 24, ..QueuePairSpec::default() }, ..options() };
    for options in [host, options()] {
        world.add_host(&SimNicOptions::default(), options);
    }
    for _ in 0..2 {
        world.connect([PEERS, HOST], limits()).expect("there are receives");
    }
    let mut schedule = Schedule::with(world, 3, Trouble::Hostile);
    (0..3).for_each(|number| schedule.add(script(0, number)));
    (0..30).for_each(|number| schedule.add(script(1, number)));
    schedule.strike = Some(Strike { when, act: Box::new(act) });
    schedule.run();
    let [attacked, other] = [0, 1].map(|link| schedule.failures[link].clone());
    assert!(other.is_none(), "the other connection failed: {other:?}");
    attacked
}

/// Takes the driver of the hostile side away from its task.
fn capture(world: &mut World) -> &mut Driver<SimAdapter> {
    let mut driver = world.links[0].sides[0].driver.take().expect("it runs");
    driver.end(&Failure::new("it does as it likes"));
    world.captured.push(driver);
    world.captured.last_mut().expect("it was put there")
}

fn send(driver: &mut Driver<SimAdapter>, message: &[u8]) {
    driver.wire.post_raw(Operation::Send { immediate: None }, message);
}

fn write(driver: &mut Driver<SimAdapter>, len: usize, to: RemoteSlice, immediate: Option<u32>) {
    let to = RemoteSlice { len: len as u64, ..to };
    driver.wire.post_raw(Operation::Write { to, immediate }, &vec![0xee; len]);
}

/// A header that gives `total` credits, and nothing else.
fn bare(total: u32) -> [u8; 8] {
    let [a, b, c, d] = total.to_le_bytes();
    [a, b, c, d, 0, 0, 0, 0]
}

/// Memory of the attacked host that a window of connection `link` covers.
fn window(world: &mut World, link: usize) -> (crate::nic::WindowId, RemoteSlice) {
    let driver = world.links[link].sides[1].driver.as_mut().expect("it runs");
    let buffer = world.hosts[HOST].pool.landing(20_000, Owner(77)).expect("there is memory");
    driver.wire.bind(buffer).expect("the send queue has a place")
}

fn is_warm(world: &World) -> bool {
    world.fabric.now() > Duration::from_micros(60)
}

/// The attacked side has granted memory that is not written yet.
fn has_landing(world: &World) -> bool {
    let server = &world.links[0].sides[1].connection;
    let job = world.links[0].sides[0].driver.as_ref().is_some_and(|driver| !driver.bodies.jobs().is_empty());
    job && server.turn(&mut Vec::new(), |turn| turn.link().endpoint.under_way().1 > 0)
}

#[test]
fn the_key_of_another_connection() {
    let ended = strike(is_warm, |world| {
        let (_, slice) = window(world, 1);
        // In force by then.
        world.fabric.advance(Duration::from_micros(20));
        write(capture(world), 100, slice, None);
    });
    assert!(ended.is_some(), "its own queue pair fails");
}

#[test]
fn a_key_whose_window_was_closed() {
    let ended = strike(is_warm, |world| {
        let (window, slice) = window(world, 0);
        let driver = world.links[0].sides[1].driver.as_mut().expect("it runs");
        assert_eq!(driver.wire.close(window), Ok(true));
        world.fabric.advance(Duration::from_micros(20));
        write(capture(world), 100, slice, None);
    });
    assert!(ended.is_some());
}

#[test]
fn a_write_beyond_its_window() {
    let ended = strike(is_warm, |world| {
        let (_, slice) = window(world, 0);
        world.fabric.advance(Duration::from_micros(20));
        let len = slice.len as usize;
        let driver = capture(world);
        write(driver, len, slice, None);
        write(driver, len, RemoteSlice { address: slice.address + 1, ..slice }, None);
    });
    assert!(ended.is_some());
}

#[test]
fn a_write_beyond_its_length_inside_its_buffer_reaches_nobody() {
    let ended = strike(has_landing, |world| {
        let driver = capture(world);
        let job = driver.bodies.jobs()[0];
        let Place::Slice(slice) = job.place else { panic!("windows are used") };
        // Its own memory is whole pages; the message has only the length that was announced.
        let rest = slice.len.next_multiple_of(4096) - slice.len;
        let beyond = RemoteSlice { address: slice.address + slice.len, ..slice };
        write(driver, rest as usize, beyond, Some(job.landing.0));
    });
    // Nothing of it is wrong for the device or the protocol: whoever writes less or other bytes than announced sends
    // just that.
    assert!(ended.is_none(), "{ended:?}");
}

#[test]
fn messages_without_credits() {
    for count in [20, 60, 120] {
        let ended = strike(is_warm, move |world| {
            let driver = capture(world);
            (0..count).for_each(|_| send(driver, &bare(3)));
            world.fabric.advance(Duration::from_millis(1));
        });
        assert!(ended.is_some(), "{count}");
    }
}

#[test]
fn garbage() {
    for seed in 0..16 {
        let ended = strike(is_warm, move |world| {
            let mut random = Rng::with_seed(seed);
            let mut bytes = vec![0; random.usize(0..1000)];
            random.fill(&mut bytes);
            if seed % 2 == 0 && bytes.len() >= 8 {
                // With a header that is right.
                bytes[..4].copy_from_slice(&3u32.to_le_bytes());
                let len = (bytes.len() - 8) as u32;
                bytes[4..8].copy_from_slice(&len.to_le_bytes());
            }
            send(capture(world), &bytes);
        });
        assert!(ended.is_some() || seed % 2 == 0, "seed {seed}");
    }
}

#[test]
fn a_message_longer_than_a_receive() {
    let ended = strike(is_warm, |world| {
        let len = options().receive_size as usize + 1;
        send(capture(world), &vec![0; len]);
    });
    assert!(ended.is_some());
}

#[test]
fn an_immediate_for_nothing() {
    let ended = strike(is_warm, |world| {
        let (_, slice) = window(world, 0);
        world.fabric.advance(Duration::from_micros(20));
        write(capture(world), 1, slice, Some(0x00ff_0001));
    });
    assert!(ended.is_some());
}

#[test]
fn an_immediate_of_another_generation() {
    for difference in [1u32 << 16, 0xffff << 16] {
        let ended = strike(has_landing, move |world| {
            let driver = capture(world);
            let job = driver.bodies.jobs()[0];
            let Place::Slice(slice) = job.place else { panic!("windows are used") };
            write(driver, 1, slice, Some(job.landing.0.wrapping_add(difference)));
        });
        assert!(ended.is_some(), "the number of a former tenant, or of a later one");
    }
}
