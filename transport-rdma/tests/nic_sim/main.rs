//! The NIC suite on the simulator, in three kinds of weather, and what only a simulator can show.

mod alone;
#[path = "../nic_suite/mod.rs"]
mod nic_suite;
#[path = "../runner/mod.rs"]
mod runner;

use std::cell::RefCell;
use std::process::ExitCode;
use std::time::Duration;

use byway_rdma::nic::Mtu;
use byway_rdma::sim::{Delays, Fabric, FabricOptions, Progress, SimAdapter, SimNic, SimNicOptions};
use nic_suite::{Deviation, Fixture, Sizes};

/// The simulator with the options of one fabric; each case has a fabric of its own.
struct Sim {
    options: FabricOptions,
    fabric: RefCell<Fabric>,
}

impl Sim {
    fn new(options: FabricOptions) -> Self {
        Self { options, fabric: RefCell::new(Fabric::new(options)) }
    }
}

impl Fixture for Sim {
    type Nic = SimNic;
    type Adapter = SimAdapter;

    fn pair(&self, sizes: Sizes) -> (SimNic, SimNic) {
        let fabric = Fabric::new(self.options);
        let options = SimNicOptions {
            completions: sizes.completions,
            shared_receives: sizes.shared_receives,
            // Small, so that most messages take several packets.
            mtu: Mtu::B256,
            ..SimNicOptions::default()
        };
        let pair = (fabric.nic(&options), fabric.nic(&options));
        self.fabric.replace(fabric);
        pair
    }

    fn adapters(&self, shared_receives: u32) -> (SimAdapter, SimAdapter) {
        let fabric = Fabric::new(self.options);
        let options = SimNicOptions { shared_receives, mtu: Mtu::B256, ..SimNicOptions::default() };
        let adapters = (fabric.adapter(&options), fabric.adapter(&options));
        self.fabric.replace(fabric);
        adapters
    }

    fn sleep(&self, nic: &mut SimNic, limit: Duration) -> bool {
        let fabric = self.fabric.borrow();
        let end = fabric.now() + limit;
        while !nic.has_news() && fabric.next_at().is_some_and(|at| at <= end) {
            fabric.step();
        }
        nic.has_news()
    }

    fn pause(&self) {
        self.fabric.borrow().step();
    }

    fn deviations(&self) -> &'static [Deviation] {
        &[]
    }
}

fn main() -> ExitCode {
    let filter = runner::filter();
    let calm = FabricOptions { seed: 1, ..FabricOptions::default() };
    let rough = FabricOptions {
        seed: 2,
        delays: Delays { jitter: Duration::from_micros(200), ..Delays::default() },
        loss_ppm: 20_000,
        ..calm
    };
    let instant = FabricOptions { delays: Delays::NONE, progress: Progress::AtOnce, ..calm };
    let weathers = [("sim", calm), ("sim, rough", rough), ("sim, at once", instant)];
    let suite = weathers.map(|(name, options)| {
        let sim = Sim::new(options);
        run(name, &nic_suite::cases(&sim, &filter))
    });
    let alone = run("sim, alone", &alone::cases(&filter));
    let ran: Vec<bool> = suite.into_iter().chain([alone]).flatten().collect();
    if !ran.is_empty() && !ran.contains(&false) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether all passed; `None` when the filter leaves no case.
fn run(name: &str, cases: &[(&str, impl Fn())]) -> Option<bool> {
    (!cases.is_empty()).then(|| runner::run(name, cases))
}
