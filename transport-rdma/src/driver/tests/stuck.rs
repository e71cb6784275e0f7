//! Readers that do not read.

use std::time::Duration;

use super::calls::{Script, Way};
use super::hostile::{limits, options};
use super::schedule::{Schedule, Trouble};
use super::world::World;
use crate::options::RdmaOptions;
use crate::sim::{FabricOptions, SimNicOptions};

/// Calls that send both ways as much as their windows let them, while nobody reads for long: with the fewest receives and
/// little memory nothing is lost, and when the readers read at last everything arrives.
#[test]
fn full_windows_both_ways_go_on_once_somebody_reads() {
    for windows in [true, false] {
        let mut world = World::new(FabricOptions { seed: 9, ..FabricOptions::default() });
        world.strict = true;
        let options =
            RdmaOptions { receives_max: 3, shared_receives: 32, windows, staging: 64 << 10, ..options() };
        for _ in 0..2 {
            world.add_host(&SimNicOptions::default(), options.clone());
        }
        world.connect([0, 1], limits()).expect("there are receives");
        // And back, so that each host is both.
        world.connect([1, 0], limits()).expect("there are receives");
        let mut schedule = Schedule::with(world, 9, Trouble::None);
        let late = Way::Slow(Duration::from_millis(20));
        for number in 0..12 {
            schedule.add(Script {
                link: number % 2,
                at: Duration::ZERO,
                method: 0,
                requests: vec![60_000, 0, 999, 60_000, 100_000, 1000, 1, 60_000, 120_000, 60_000],
                replies: vec![100_000, 50_000, 3, 1000, 150_000, 60_000, 60_000, 0, 70_000],
                joined_end: number % 3 == 0,
                both_at_once: true,
                keeps: false,
                leases: false,
                deadline: None,
                garbled: false,
                client: late,
                server: late,
            });
        }
        let counts = schedule.run();
        assert_eq!(counts.completed, 12);
    }
}
