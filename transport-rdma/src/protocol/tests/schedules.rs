//! Two endpoints, joined by whatever order of steps a seed gives.

use byway_runtime::session::Role;
use fastrand::Rng;

use super::super::credit::MIN_WINDOW;
use super::super::offer::Capabilities;
use super::super::wire::least_receive;
use super::side::{Counts, Side, Wire};

struct Pair {
    sides: [Side; 2],
    random: Rng,
}

/// How much new work a schedule makes, in percent of its steps.
struct Load {
    windows: [u16; 2],
    steps: usize,
    cancels: bool,
    in_pieces: bool,
    budget: u64,
}

impl Pair {
    fn new(load: &Load, seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let transfers = random.u16(1..6);
        let capabilities = |receive_depth| Capabilities {
            receive_depth,
            receive_size: least_receive(256) as u32 + 100,
            transfers,
            offers: 4,
            windows: !load.in_pieces,
        };
        let [client, server] = load.windows.map(capabilities);
        let large_from = random.u32(61..300);
        let sides = [
            Side::new(Role::Client, client, server, large_from, load.budget),
            Side::new(Role::Server, server, client, large_from, load.budget),
        ];
        Self { sides, random }
    }

    fn post(&mut self, to: usize, wire: Option<Wire>) -> bool {
        let moved = wire.is_some();
        self.sides[to].incoming.extend(wire);
        moved
    }

    /// One step of one side, `kind` of [`STEPS`]; whether anything moved.
    fn step(&mut self, index: usize, kind: usize, all_read: bool) -> bool {
        let (side, random) = (&mut self.sides[index], &mut self.random);
        let moved = match kind {
            0 => side.arrive(random),
            1 => {
                let wire = side.transmit();
                self.post(1 - index, wire)
            }
            2 => match side.copy(random) {
                Some(wire) => {
                    self.post(1 - index, wire);
                    true
                }
                None => false,
            },
            3 => side.decide(random),
            4 => side.repost(random),
            5 => side.queue_piece(),
            6 => side.read_any(random, all_read),
            7 => side.accept(random),
            _ => side.go_on(random),
        };
        let [client, server] = &self.sides;
        client.check(server);
        server.check(client);
        moved
    }

    /// Runs a schedule with new work, then lets everything come to its end; says what does not.
    fn run(&mut self, load: &Load) -> Result<(), String> {
        for _ in 0..load.steps {
            let (index, kind) = (self.random.usize(0..2), self.random.usize(0..STEPS));
            self.step(index, kind, false);
            match self.random.u8(0..24) {
                0 | 1 => drop(self.sides[0].open_call(&mut self.random)),
                2 if load.cancels => drop(self.sides[index].cancel_any(&mut self.random)),
                3 if self.random.u8(0..4) == 0 => {
                    self.sides[index].endpoint.ask_back(super::super::credit::Credits(3));
                }
                _ => {}
            }
        }
        // Nothing new, but every message that has begun; and at last even slow readers read.
        for all_read in [false, true] {
            let (mut idle, mut steps) = (0, 0);
            while idle < 2 * STEPS {
                steps += 1;
                if steps > 100_000 {
                    return Err("it never comes to rest".into());
                }
                let first = self.random.usize(0..2 * STEPS);
                let moved = (0..2 * STEPS).any(|offset| {
                    let choice = (first + offset) % (2 * STEPS);
                    self.step(choice / STEPS, choice % STEPS, all_read)
                });
                idle = if moved { 0 } else { idle + 1 };
            }
        }
        self.sides.iter().try_for_each(Side::is_done)
    }
}

const STEPS: usize = 9;

fn add(into: &mut Counts, counts: &Counts) {
    into.delivered += counts.delivered;
    into.refused += counts.refused;
    into.no_memory += counts.no_memory;
    into.no_reader += counts.no_reader;
    into.cancelled += counts.cancelled;
    into.landed += counts.landed;
    into.freed += counts.freed;
    into.placed += counts.placed;
    into.small += counts.small;
    into.ended += counts.ended;
}

/// Runs many schedules and returns what happened in all of them.
fn run_all(seeds: u64, load: impl Fn(u64) -> Load) -> Counts {
    let mut counts = Counts::default();
    for seed in 0..seeds {
        let load = load(seed);
        let mut pair = Pair::new(&load, seed);
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pair.run(&load)));
        match ran {
            Ok(Ok(())) => pair.sides.iter().for_each(|side| add(&mut counts, &side.counts)),
            Ok(Err(left)) => panic!("seed {seed}, windows {:?}: {left}", load.windows),
            Err(panic) => {
                eprintln!("seed {seed}, windows {:?}", load.windows);
                std::panic::resume_unwind(panic);
            }
        }
    }
    counts
}

/// Windows from three to 32, the same at both sides or not.
fn windows(seed: u64) -> [u16; 2] {
    let least = MIN_WINDOW as u16;
    let window = least + (seed % 30) as u16;
    let other = Rng::with_seed(seed).u16(least..=32);
    [window, if seed.is_multiple_of(2) { window } else { other }]
}

#[test]
fn everything_arrives_in_order_and_nothing_waits_for_ever() {
    let counts = run_all(180, |seed| Load {
        windows: windows(seed),
        steps: 1000,
        cancels: false,
        in_pieces: false,
        budget: 1 << 20,
    });
    assert!(counts.landed > 1000 && counts.small > 1000 && counts.placed > 100);
    // A server may answer before it has read everything: what was still coming ends in one of three ways.
    assert!(counts.landed <= counts.delivered);
}

#[test]
fn calls_cancelled_at_any_moment_leave_nothing_behind() {
    let counts = run_all(240, |seed| Load {
        windows: windows(seed),
        steps: 1000,
        cancels: true,
        in_pieces: false,
        budget: 1 << 20,
    });
    assert!(counts.cancelled > 100 && counts.freed > 100 && counts.no_reader > 10);
}

#[test]
fn without_memory_bodies_are_refused_and_others_go_on() {
    let counts = run_all(180, |seed| Load {
        windows: windows(seed),
        steps: 1000,
        cancels: seed % 3 == 0,
        in_pieces: false,
        budget: 2500,
    });
    assert!(counts.no_memory > 50, "readers that do not read cost their own calls");
    assert!(counts.landed > 100 && counts.small > 1000);
}

#[test]
fn where_windows_cannot_be_bound_bodies_come_in_pieces() {
    let counts = run_all(180, |seed| Load {
        windows: windows(seed),
        steps: 1200,
        cancels: seed % 2 == 0,
        in_pieces: true,
        budget: 20_000,
    });
    assert!(counts.delivered > 1000 && counts.cancelled > 10 && counts.freed > 10);
    assert_eq!(counts.placed, 0, "nothing is offered");
}

/// Both send as much as they can at the smallest windows: each waits for the other again and again.
#[test]
fn both_directions_full_at_the_smallest_windows() {
    for windows in [[3, 3], [3, 4], [4, 3], [4, 4], [3, 5], [3, 32]] {
        let counts =
            run_all(25, |_| Load { windows, steps: 3000, cancels: false, in_pieces: false, budget: 1 << 20 });
        assert!(counts.landed > 100 && counts.landed <= counts.delivered);
    }
}
