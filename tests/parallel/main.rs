//! Where handlers run: on the thread that read their calls while they are quick, on every thread once they are not.
//!
//! Owns the promise that handlers that compute use all processors although their calls came by one connection. What is
//! asserted are threads and tasks, never times; `measures_the_gain_of_a_second_worker` prints the gain, when asked:
//! `cargo test --release --test parallel -- --ignored --nocapture`.

mod place;

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use place::{Place, Served, Workload};

/// A handler that computes this long is slow.
const SLOW: Duration = Duration::from_millis(1);

fn threads(places: &[Place]) -> usize {
    places.iter().map(|place| place.thread).collect::<HashSet<_>>().len()
}

fn tasks(places: &[Place]) -> usize {
    places.iter().map(|place| place.task).collect::<HashSet<_>>().len()
}

#[test]
fn two_workers_run_two_handlers_of_one_connection_at_once_and_one_worker_one() {
    for workers in [1, 2] {
        let server = Served::with_workers(workers);
        server.calls(64, 512, Workload::Spin(SLOW));
        assert_eq!(server.most_at_once(), workers, "handlers at one instant");
        assert_eq!(threads(&server.places()), workers, "threads that handlers ran on");
    }
}

/// How many of the handlers ran in the task that most of them ran in. Tasks of their own have one each. A handler that
/// loses its processor for some milliseconds looks slow, and so do the next few, so that the rest counts.
fn most_in_one_task(places: &[Place]) -> usize {
    let mut counts = HashMap::new();
    for place in places {
        *counts.entry(place.task).or_insert(0) += 1;
    }
    counts.into_values().max().unwrap_or(0)
}

#[test]
fn quick_handlers_run_in_the_task_of_their_connection() {
    let server = Served::with_workers(2);
    server.calls(1, 1000, Workload::None);
    let places = server.places();
    assert_eq!(places.len(), 1000);
    let (most, tasks) = (most_in_one_task(&places), tasks(&places));
    assert_eq!(most + tasks, 1001, "one task has many, each other one");
    assert!(most > 200, "only {most} of 1000 ran in the task of their connection");
}

#[test]
fn a_handler_that_waits_begins_in_the_task_of_its_connection_and_goes_on_in_its_own() {
    let server = Served::with_workers(2);
    server.calls(1, 200, Workload::Wait);
    let (begun, resumed): (Vec<_>, Vec<_>) = server.places().into_iter().partition(|place| !place.resumed);
    assert_eq!((begun.len(), resumed.len()), (200, 200));
    let most = most_in_one_task(&begun);
    assert!(most > 40, "only {most} of 200 began in the task of their connection");
    assert_eq!(tasks(&resumed), 200, "one for each");
}

#[test]
fn slow_handlers_get_tasks_of_their_own_from_the_start() {
    let server = Served::with_workers(2);
    server.calls(1, 1, Workload::Spin(SLOW));
    server.forget();
    server.calls(1, 50, Workload::Spin(SLOW));
    assert_eq!(tasks(&server.places()), 50, "one for each");
}

#[test]
fn handlers_that_became_quick_come_back_to_the_task_of_their_connection() {
    let server = Served::with_workers(2);
    server.calls(1, 3, Workload::Spin(SLOW));
    server.forget();
    server.calls(1, 1000, Workload::None);
    let most = most_in_one_task(&server.places());
    assert!(most > 200, "only {most} of 1000 came back");
}

#[test]
fn handlers_that_are_not_quite_slow_are_spread_once_a_turn_has_lasted_long_enough() {
    let server = Served::with_workers(2);
    server.calls(1, 1, Workload::None);
    let connection = server.places()[0].task;
    server.forget();
    // They leave in one write and arrive in one turn, or in two.
    server.calls(64, 64, Workload::Spin(Duration::from_micros(40)));
    let places = server.places();
    let inline = places.iter().filter(|place| place.task == connection).count();
    assert_eq!(places.len(), 64);
    assert!(inline <= 12, "{inline} of 64 handlers of 40 µs ran in a turn that may take 200 µs");
}

#[test]
fn a_handler_that_blocks_its_thread_holds_up_no_other_call_of_its_connection() {
    let server = Served::with_workers(2);
    // Its method is known to be slow, but those of another are not.
    server.calls(1, 3, Workload::Spin(SLOW));
    server.during_a_blocked_call(|other_calls| other_calls.make(200));
}

/// How many rounds of work a free processor does in that time.
fn rounds_in(duration: Duration) -> u64 {
    let rounds = || {
        let (start, mut rounds) = (Instant::now(), 0);
        while start.elapsed() < duration {
            place::work(100);
            rounds += 100;
        }
        rounds
    };
    // The fastest of many is the one that was not interrupted.
    (0..50).map(|_| rounds()).max().expect("fifty")
}

/// The median gain of a second worker, over rounds that take turns.
fn gain(workload: Workload) -> f64 {
    const CALLS: usize = 1000;
    let servers = [Served::with_workers(1), Served::with_workers(2)];
    let per_s = |server: &Served| {
        server.calls(64, 100, workload);
        let start = Instant::now();
        server.calls(64, CALLS, workload);
        CALLS as f64 / start.elapsed().as_secs_f64()
    };
    let mut gains: Vec<_> = (0..5)
        .map(|_| {
            let (one, two) = (per_s(&servers[0]), per_s(&servers[1]));
            println!("  one worker {one:.0} calls/s, two {two:.0} calls/s, gain {:.2}", two / one);
            two / one
        })
        .collect();
    gains.sort_by(f64::total_cmp);
    gains[gains.len() / 2]
}

#[test]
#[ignore = "a measurement, for a machine with two free processors and a release build"]
fn measures_the_gain_of_a_second_worker() {
    println!("handlers that compute for 1 ms, one connection, 64 in flight:");
    println!("median gain {:.2}", gain(Workload::Work(rounds_in(SLOW))));
    println!("handlers that keep their thread for 1 ms without a processor, whatever else the machine does:");
    println!("median gain {:.2}", gain(Workload::Sleep(SLOW)));
}
