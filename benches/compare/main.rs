//! Compares byway with what else carries a call: `cargo bench --bench compare`; `-- --help` lists options.
//!
//! Owns the order of measurements: round by round, in each every workload, in each every path, so that paths that are
//! compared ran within seconds of each other. Client and server are two processes with one current-thread runtime each;
//! each measurement has a fresh server. Invariant: no server outlives the bench.

mod closed_loop;
mod cpu;
mod options;
mod pages;
mod paths;
mod peer;
mod report;
mod workload;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use byway_rdma::verbs;
use byway_rdma::verbs::{PortCounters, PortCounts};
use closed_loop::Samples;
use options::{Options, Request};
use paths::Path;
use peer::{Peer, Service};
use report::{Measurement, Report};
use workload::Workload;

/// What a measurement may take beyond its own time before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(20);

/// Why there is nothing to report. Whoever reads it is a person at a terminal.
type Failure = Box<dyn Error + Send + Sync>;

fn main() -> ExitCode {
    let result = match options::parse(std::env::args().skip(1)) {
        Ok(Request::Serve(service, address)) => peer::serve(service, address),
        Ok(Request::Measure(options)) => measure_all(&options),
        Ok(Request::List) => Ok(()),
        Ok(Request::Help) => {
            println!("{}", options::USAGE);
            Ok(())
        }
        Err(error) => {
            eprintln!("compare: {error}\n\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("compare: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure_all(options: &Options) -> Result<(), Failure> {
    let began = Instant::now();
    let (paths, counters) = usable_paths(options)?;
    if options.pin {
        cpu::pin_this_process()?;
    }
    let mut report = Report::default();
    for round in 0..options.rounds() {
        for workload in options.family.workloads() {
            for &path in &paths {
                let counters = counters.as_ref().filter(|_| path.needs_device());
                let measured = measure(path, workload, options, counters)
                    .map_err(|error| format!("{path}, {workload}, round {}: {error}", round + 1))?;
                report.add(round, workload, path, measured);
            }
        }
    }
    report.print(began.elapsed());
    match &options.json {
        Some(file) => report.write_json(file),
        None => Ok(()),
    }
}

/// What can be measured here, and the device that some of it needs. What cannot be is said, and is an error if it was
/// asked for by name.
fn usable_paths(options: &Options) -> Result<(Vec<Path>, Option<PortCounters>), Failure> {
    let (on_device, others): (Vec<Path>, Vec<Path>) = options.paths().partition(|path| path.needs_device());
    if on_device.is_empty() {
        return Ok((others, None));
    }
    match verbs::probe(&verbs::DeviceChoice::default()) {
        Ok(device) => Ok((options.paths().collect(), Some(PortCounters::of(&device)))),
        Err(reason) if options.paths_are_named() => Err(reason.into()),
        Err(reason) => {
            let names: Vec<String> = on_device.iter().map(Path::to_string).collect();
            println!("left out: {}; {reason}\n", names.join(", "));
            Ok((others, None))
        }
    }
}

/// One workload over one path, with a server of its own.
fn measure(
    path: Path,
    workload: &Workload,
    options: &Options,
    counters: Option<&PortCounters>,
) -> Result<Measurement, Failure> {
    let budget = options.effort.budget(workload);
    let count = || counters.map(PortCounters::read);
    let start = count();
    let peer = Peer::spawn(&Service::of(path, workload), options)?;
    let runtime = current_thread()?;
    let limit = budget.time + PATIENCE;
    let measured = runtime.block_on(async {
        let work = async {
            let mut client = path.connect(peer.address(), workload).await?;
            client.run(budget.tenth()).await?;
            let counted = count();
            let before = [cpu::of_this_process()?, peer.cpu()?];
            let samples = client.run(budget).await?;
            let after = [cpu::of_this_process()?, peer.cpu()?];
            let measured = summary(&samples, after[0] + after[1] - before[0] - before[1]);
            Ok(match (start, counted, count()) {
                (Some(start), Some(before), Some(after)) => {
                    with_counts(measured, &samples, start, before, after)
                }
                _ => measured,
            })
        };
        match tokio::time::timeout(limit, work).await {
            Ok(measured) => measured,
            Err(_) => Err(Failure::from(format!("hung: not finished after {limit:?}"))),
        }
    });
    // Not waited for: what hung would hang again.
    runtime.shutdown_background();
    measured
}

fn summary(samples: &Samples, cpu: Duration) -> Measurement {
    let calls = samples.latencies.len() as f64;
    let quantile = |quantile| samples.latencies.value_at_quantile(quantile) as f64 / 1e3;
    Measurement {
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        p999_us: quantile(0.999),
        per_s: calls / samples.elapsed.as_secs_f64(),
        cpu_us_per_call: cpu.as_secs_f64() * 1e6 / calls,
        packets_per_call: None,
        rnr: None,
        retransmits: None,
    }
}

/// Packets are those of the calls that were timed; what should not happen is counted from before the connection was made.
fn with_counts(
    measured: Measurement,
    samples: &Samples,
    start: PortCounts,
    before: PortCounts,
    after: PortCounts,
) -> Measurement {
    let calls = samples.latencies.len() as f64;
    let all = after.since(start);
    Measurement {
        packets_per_call: after.since(before).packets.map(|packets| packets as f64 / calls),
        rnr: all.rnr(),
        retransmits: all.retransmits,
        ..measured
    }
}

fn current_thread() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
