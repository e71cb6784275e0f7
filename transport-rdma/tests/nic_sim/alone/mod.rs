//! What only a simulator can show: chance from a seed, time that waits, faults at will.

mod adapters;
mod chaos;
mod faults;
mod keys;
mod network;
mod speed;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;
use std::time::Duration;

use byway_rdma::nic::{Kind, Nic, QueuePairId, QueuePairSpec};
use byway_rdma::sim::{Delays, Fabric, FabricOptions};

use crate::Sim;
use crate::nic_suite::{self, Side, Sizes};

type Pair = nic_suite::Pair<byway_rdma::sim::SimNic>;

/// The simulator-only cases whose name contains `filter`.
pub(crate) fn cases(filter: &str) -> Vec<(&'static str, fn())> {
    let all =
        [network::cases(), keys::cases(), faults::cases(), adapters::cases(), chaos::cases(), speed::cases()];
    all.into_iter().flatten().filter(|(name, _)| name.contains(filter)).collect()
}

/// A fabric with enough jitter that messages of different queue pairs overtake each other.
fn jittery(seed: u64) -> Sim {
    let delays = Delays { jitter: Duration::from_micros(50), ..Delays::default() };
    Sim::new(FabricOptions { seed, delays, ..FabricOptions::default() })
}

/// What the suite's queue pairs wait for an answer, once: 4.096 µs × 2^12.
const PATIENCE: Duration = Duration::from_micros(16_777);

/// What a sender waits after it met no receive.
const RNR_DELAY: Duration = Duration::from_micros(640);

/// A connected pair, and the fabric that it is in.
fn pair(sim: &Sim) -> (Pair, Fabric) {
    pair_with(sim, &nic_suite::spec())
}

fn pair_with(sim: &Sim, spec: &QueuePairSpec) -> (Pair, Fabric) {
    let pair = Pair::with(sim, Sizes::default(), spec);
    let fabric = sim.fabric.borrow().clone();
    (pair, fabric)
}

/// One more connected pair of queue pairs.
fn connect_more(pair: &mut Pair) -> (QueuePairId, QueuePairId) {
    let [a, b] = [&mut pair.a, &mut pair.b]
        .map(|side| side.nic.create_queue_pair(&nic_suite::spec()).expect("a queue pair"));
    nic_suite::connect(&mut pair.a.nic, a, &mut pair.b.nic, b);
    (a, b)
}

/// A waker that counts how often it was called.
#[derive(Default)]
struct Count(AtomicUsize);

impl Count {
    fn taken(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// How many receives of a side have been used by messages.
fn arrived(side: &mut Side<byway_rdma::sim::SimNic>) -> usize {
    let all = side.drain();
    all.iter().filter(|completion| completion.kind == Kind::Receive && completion.outcome.is_ok()).count()
}
