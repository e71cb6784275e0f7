//! Whole connections under random schedules, on virtual time.
//!
//! `BYWAY_SEED=n` runs that seed alone, `BYWAY_SCHEDULES=n` so many of each kind. The ignored test runs ten thousand, in
//! optimized code in about a minute and a half.

mod calls;
mod checks;
mod hostile;
mod idle;
mod schedule;
mod stuck;
mod world;
mod zero_copy;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use self::schedule::{Counts, Schedule, Trouble};

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

fn run(seed: u64, trouble: Trouble) -> Counts {
    let ran = catch_unwind(AssertUnwindSafe(|| Schedule::new(seed, trouble).run()));
    ran.unwrap_or_else(|panic| {
        eprintln!("it was BYWAY_SEED={seed} with {trouble:?}");
        resume_unwind(panic)
    })
}

fn run_all(trouble: Trouble, count: u64) -> Counts {
    if let Some(seed) = variable("BYWAY_SEED") {
        return run(seed, trouble);
    }
    let count = variable("BYWAY_SCHEDULES").unwrap_or(count);
    let (mut counts, began) = (Counts::default(), Instant::now());
    (0..count).for_each(|seed| counts.add(&run(seed, trouble)));
    let each = began.elapsed() / u32::try_from(count.max(1)).expect("not that many");
    println!("{count} schedules with {trouble:?}, {each:?} each: {counts:?}");
    counts
}

#[test]
fn every_call_ends_as_its_sides_want_it() {
    run_all(Trouble::None, 50);
}

#[test]
fn lost_packets_cost_time_and_nothing_else() {
    run_all(Trouble::Loss, 25);
}

#[test]
fn whatever_fails_every_call_ends_and_nothing_stays_behind() {
    run_all(Trouble::Fault, 60);
}

#[test]
fn a_driver_that_is_dropped_in_the_middle_leaves_nothing_behind() {
    run_all(Trouble::Drop, 40);
}

#[test]
#[ignore = "long: for optimized code"]
fn ten_thousand_schedules() {
    for trouble in [Trouble::None, Trouble::Loss, Trouble::Fault, Trouble::Drop] {
        // Other ones than the short tests have.
        let (began, seeds) = (Instant::now(), 1 << 32..(1 << 32) + 2500);
        let mut counts = Counts::default();
        seeds.for_each(|seed| counts.add(&run(seed, trouble)));
        println!("2500 schedules with {trouble:?}, {:?} each: {counts:?}", began.elapsed() / 2500);
    }
}
