//! Arbitrary operations on two sessions, against an oracle.
//!
//! Owns the choice of operations and the story of a run: a seed picks limits and then a few hundred operations, from
//! opening calls to the loss of the link; after each the oracle compares everything that can be seen. A failure prints
//! its seed and its last operations. `BYWAY_MODEL_SEEDS` asks for more runs, `BYWAY_MODEL_FIRST` for others.

mod support;

use std::collections::BTreeMap;

use byway_runtime::Limits;
use byway_runtime::session::Role;
use support::Random;
use support::model::Sends;
use support::pair::{Pair, Pieces};

const SEEDS: u64 = 1500;
const STEPS: usize = 250;

#[derive(Debug, Clone, Copy)]
enum Operation {
    Open { message: Option<usize>, end: bool },
    Send(Role, usize, Pieces),
    Read(Role, usize),
    ReadAll(Role, usize),
    Finish(Role, usize),
    Abandon(Role, usize),
    Watch(Role, usize),
    Deliver(Role, usize, bool),
    Land(Role, usize),
    Ping(Role),
    EndCalls,
    Drain,
    Fail(usize),
}

/// One run. When a check fails, says how to see it again.
struct Run {
    seed: u64,
    random: Random,
    pair: Pair,
    done: Vec<Operation>,
    /// Whether calls were let go of or ended early, as opposed to every one going well.
    is_gentle: bool,
}

impl Drop for Run {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let from = self.done.len().saturating_sub(25);
            eprintln!("seed {}, step {}; the last operations:", self.seed, self.done.len());
            self.done[from..].iter().for_each(|operation| eprintln!("    {operation:?}"));
            eprintln!("again: BYWAY_MODEL_FIRST={} BYWAY_MODEL_SEEDS=1", self.seed);
        }
    }
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut side = || {
            let limits = Limits {
                max_message: 400,
                max_head: 200,
                max_calls: 1 + random.below(5) as u16,
                window: [1, 64, 150, 400, 1000][random.below(5)],
                receive_budget: [700, 1500, 1 << 20][random.below(3)],
            };
            (limits, [1, 3, 10, usize::MAX][random.below(4)])
        };
        let pair = Pair::new(side(), side());
        let is_gentle = random.once_in(3);
        Self { seed, random, pair, done: Vec::new(), is_gentle }
    }

    fn role(&mut self) -> Role {
        if self.random.once_in(2) { Role::Client } else { Role::Server }
    }

    fn message(&mut self) -> Option<usize> {
        match self.random.below(8) {
            0..4 => None,
            4 => Some(0),
            5 => Some(self.random.below(20)),
            6 => Some(self.random.below(200)),
            _ => Some(300 + self.random.below(110)),
        }
    }

    /// A call that `role` holds, most often a recent one.
    fn held(&mut self, role: Role) -> Option<usize> {
        let held = |(at, call): (usize, &mut support::model::CallModel)| call.seat(role).holds.then_some(at);
        let held: Vec<usize> = self.pair.calls.iter_mut().enumerate().filter_map(held).collect();
        (!held.is_empty()).then(|| held[self.random.below(held.len())])
    }

    fn pick(&mut self) -> Operation {
        let role = self.role();
        let held = self.held(role);
        match (self.random.below(40), held) {
            (0..5, _) => Operation::Open { message: self.message(), end: self.random.once_in(2) },
            (5..14, Some(call)) => Operation::Send(role, call, self.pieces(role, call)),
            (14..20, Some(call)) => Operation::Read(role, call),
            (20..22, Some(call)) => Operation::ReadAll(role, call),
            (22, Some(call)) if !self.is_gentle => Operation::Finish(role, call),
            (23, Some(call)) if !self.is_gentle => Operation::Abandon(role, call),
            (24, Some(call)) => Operation::Watch(role, call),
            (25..36, _) => {
                let frames = if self.random.once_in(4) { 10 } else { 1 };
                Operation::Deliver(role, frames, self.random.once_in(3))
            }
            (36..39, _) => Operation::Land(role, self.random.below(1000)),
            _ if self.is_gentle || !self.random.once_in(8) => Operation::Ping(role),
            _ => match self.random.below(6) {
                0 => Operation::Drain,
                1 => Operation::Fail(self.random.below(1000)),
                _ => Operation::EndCalls,
            },
        }
    }

    /// A part that is mostly, but not always, in place.
    fn pieces(&mut self, role: Role, call: usize) -> Pieces {
        let sends = self.pair.calls[call].seat(role).sends;
        let is_odd = self.random.once_in(20);
        let end = self.random.once_in(6).then(|| self.random.once_in(2));
        let head = role == Role::Server && (sends == Sends::Head) != is_odd;
        let message = self.message();
        let message = if head || end.is_some() { message } else { message.or(Some(30)) };
        Pieces { head, message, end }
    }

    fn apply(&mut self, operation: Operation) {
        let pair = &mut self.pair;
        match operation {
            Operation::Open { message, end } => _ = pair.open(message, end),
            Operation::Send(role, call, pieces) => _ = pair.send(role, call, pieces),
            Operation::Read(role, call) => _ = pair.read(role, call),
            Operation::ReadAll(role, call) => {
                while pair.calls[call].seat(role).open && pair.read(role, call) {}
            }
            Operation::Finish(role, call) => pair.finish(role, call),
            Operation::Abandon(role, call) => pair.abandon(role, call),
            Operation::Watch(role, call) => pair.watch(role, call),
            Operation::Deliver(role, frames, later) => {
                for _ in 0..frames {
                    pair.deliver(role, later);
                }
            }
            Operation::Land(role, pick) => _ = pair.land(role, pick),
            Operation::Ping(role) if !pair.failed => pair.ping(role),
            Operation::EndCalls if !pair.failed => pair.end_calls(),
            Operation::Drain if !pair.failed => pair.drain(),
            Operation::Fail(pick) if !pair.failed => {
                // Anything up to the frame that arrives next has been delivered; beyond it nobody knows how much.
                let pushed = pair.client.link.pushed;
                let mut positions: Vec<u64> =
                    pair.client.link.frames.iter().map(|sent| sent.position).collect();
                positions.push(pushed);
                let delivered = positions[pick % positions.len()];
                let within = (pick / 100) as u64 % 2;
                pair.fail(pushed.min(delivered + within));
            }
            Operation::Ping(_) | Operation::EndCalls | Operation::Drain | Operation::Fail(_) => {}
        }
    }

    fn step(&mut self, operation: Operation) {
        self.done.push(operation);
        self.apply(operation);
        self.pair.check();
    }

    /// Everything that is under way arrives, and everything that has arrived is read.
    fn settle(&mut self) {
        loop {
            let mut moved = false;
            for role in [Role::Client, Role::Server] {
                while self.pair.deliver(role, false) || self.pair.land(role, 0) {
                    moved = true;
                }
            }
            self.pair.check();
            for role in [Role::Client, Role::Server] {
                for call in 0..self.pair.calls.len() {
                    while self.pair.calls[call].seat(role).open && self.pair.read(role, call) {
                        moved = true;
                    }
                }
            }
            self.pair.check();
            if !moved {
                return;
            }
        }
    }

    /// Every handler answers, every caller reads, and nothing is left.
    fn end(mut self) -> BTreeMap<&'static str, usize> {
        self.settle();
        for call in 0..self.pair.calls.len() {
            self.answers_while_it_can(call);
        }
        self.settle();
        for call in 0..self.pair.calls.len() {
            let seat = self.pair.calls[call].seat(Role::Client);
            assert!(!seat.open, "call {call} has not ended for its caller: {seat:?}");
            for role in [Role::Client, Role::Server] {
                if self.pair.calls[call].seat(role).holds {
                    self.pair.abandon(role, call);
                }
            }
        }
        self.pair.check();
        for side in [&self.pair.client, &self.pair.server] {
            assert!(side.session.is_idle() && side.session.held() == 0);
        }
        std::mem::take(&mut self.pair.seen)
    }

    /// A handler whose caller reads can always send another message, and its end.
    fn answers_while_it_can(&mut self, call: usize) {
        self.settle();
        let seat = self.pair.calls[call].seat(Role::Server);
        if !(seat.holds && seat.open) {
            return;
        }
        let head = seat.sends == Sends::Head;
        let message = (!self.pair.calls[call].seat(Role::Client).deaf).then_some(5);
        assert!(
            self.pair.send(Role::Server, call, Pieces { head, message, end: None }),
            "call {call} is stuck"
        );
        self.settle();
        if self.pair.calls[call].seat(Role::Server).open {
            assert!(self.pair.send(
                Role::Server,
                call,
                Pieces { head: false, message: None, end: Some(true) }
            ));
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn arbitrary_operations_do_what_the_oracle_says() {
    let first = number("BYWAY_MODEL_FIRST", 1);
    let seeds = number("BYWAY_MODEL_SEEDS", SEEDS);
    let mut seen = BTreeMap::new();
    for seed in first..first + seeds {
        let mut run = Run::new(seed);
        for _ in 0..STEPS {
            let operation = run.pick();
            run.step(operation);
        }
        if run.random.once_in(3) {
            let pick = run.random.below(1000);
            run.step(Operation::Fail(pick));
        }
        for (what, times) in run.end() {
            *seen.entry(what).or_insert(0) += times;
        }
    }
    println!("{seen:?}");
    if seeds >= SEEDS {
        // A choice of operations that no longer leads anywhere interesting is a broken test.
        assert!(seen.len() == 11 && seen.values().all(|times| *times > 20), "{seen:?}");
    }
}
