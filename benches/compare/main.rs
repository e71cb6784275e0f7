//! Compares byway with what else carries a call: `cargo bench --bench compare -- [--quick] [--only PATH] [--json FILE]`.
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

use closed_loop::Samples;
use options::{Options, Request};
use paths::Path;
use peer::Peer;
use report::{Measurement, Report};
use workload::{Budget, Workload};

/// What a measurement may take beyond its own time before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(20);

/// Why there is nothing to report. Whoever reads it is a person at a terminal.
type Failure = Box<dyn Error + Send + Sync>;

fn main() -> ExitCode {
    let result = match options::parse(std::env::args().skip(1)) {
        Ok(Request::Serve(path)) => peer::serve(path),
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
    let mut report = Report::default();
    for round in 0..options.effort.rounds() {
        for workload in workload::all() {
            for path in options.paths() {
                let measured = measure(path, workload, options.effort.budget(workload))
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

/// One workload over one path, with a server of its own.
fn measure(path: Path, workload: &Workload, budget: Budget) -> Result<Measurement, Failure> {
    let peer = Peer::spawn(path)?;
    let runtime = current_thread()?;
    let limit = budget.time + PATIENCE;
    let measured = runtime.block_on(async {
        let work = async {
            let mut client = path.connect(peer.address(), workload).await?;
            client.run(budget.tenth()).await?;
            let before = [cpu::of_this_process()?, peer.cpu()?];
            let samples = client.run(budget).await?;
            let after = [cpu::of_this_process()?, peer.cpu()?];
            Ok(summary(&samples, after[0] + after[1] - before[0] - before[1]))
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
    }
}

fn current_thread() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
