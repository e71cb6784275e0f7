//! What was measured: a table for people, JSON for programs.
//!
//! Owns the statistics. Every figure is the median over rounds; a ratio is the median of the ratios within each round,
//! since a machine is faster in some rounds than in others.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::time::Duration;

use serde::Serialize;

use crate::Failure;
use crate::paths::Path;
use crate::workload::Workload;

/// One workload over one path in one round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measurement {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) per_s: f64,
    /// Of both processes.
    pub(crate) cpu_us_per_call: f64,
    /// What the RDMA device sent, data and acknowledgements, for both ends. This and what follows only of paths that use the
    /// device, and only if it counts such things.
    pub(crate) packets_per_call: Option<f64>,
    /// How often a message found no receive.
    pub(crate) rnr: Option<u64>,
    /// How often packets had to be sent again.
    pub(crate) retransmits: Option<u64>,
}

/// All rounds.
#[derive(Default)]
pub(crate) struct Report {
    entries: Vec<Entry>,
}

struct Entry {
    round: usize,
    workload: &'static Workload,
    path: Path,
    measured: Measurement,
}

/// One line of the JSON.
#[derive(Serialize)]
struct Row {
    workload: &'static str,
    bytes: usize,
    in_flight: usize,
    connections: usize,
    path: String,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    per_s: f64,
    cpu_us_per_call: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    packets_per_call: Option<f64>,
    /// Of all rounds together, as are retransmits: a median would hide one.
    #[serde(skip_serializing_if = "Option::is_none")]
    rnr: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retransmits: Option<u64>,
}

impl Report {
    pub(crate) fn add(
        &mut self,
        round: usize,
        workload: &'static Workload,
        path: Path,
        measured: Measurement,
    ) {
        self.entries.push(Entry { round, workload, path, measured });
    }

    pub(crate) fn print(&self, took: Duration) {
        let is_counted = self.entries.iter().any(|entry| entry.measured.packets_per_call.is_some());
        println!(
            "{:<26} {:<13} {:>10} {:>10} {:>10} {:>10} {:>9} {:>9} {:>14}{}",
            "unary",
            "path",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "calls/s",
            "CPU us",
            "p50/raw",
            "calls/s/tuned",
            if is_counted { "   packets   RNR retrans" } else { "" }
        );
        let mut last = None;
        for (workload, path) in self.series() {
            if last.is_some_and(|last| last != workload) {
                println!();
            }
            last = Some(workload);
            let row = self.row(workload, path);
            let latency = self.ratio(workload, path, Path::RawTcp, |measured| measured.p50_us);
            let rate = self.ratio(workload, path, Path::TonicTuned, |measured| measured.per_s);
            println!(
                "{:<26} {:<13} {:>10.1} {:>10.1} {:>10.1} {:>10.0} {:>9.2} {:>9} {:>14}{}",
                workload.to_string(),
                row.path,
                row.p50_us,
                row.p99_us,
                row.p999_us,
                row.per_s,
                row.cpu_us_per_call,
                times(latency),
                times(rate),
                row.counts()
            );
        }
        let rounds = self.entries.iter().map(|entry| entry.round + 1).max().unwrap_or(0);
        println!(
            "\nmedians of {rounds} rounds, ratios within a round; one connection; CPU of both processes per call; \
             {:.0} s",
            took.as_secs_f64()
        );
    }

    pub(crate) fn write_json(&self, file: &std::path::Path) -> Result<(), Failure> {
        let rows: Vec<Row> =
            self.series().into_iter().map(|(workload, path)| self.row(workload, path)).collect();
        let create = File::create(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let mut output = BufWriter::new(create);
        serde_json::to_writer_pretty(&mut output, &rows)?;
        writeln!(output)?;
        output.flush()?;
        Ok(())
    }

    /// What was measured, in the order of the first round.
    fn series(&self) -> Vec<(&'static Workload, Path)> {
        let first = self.entries.iter().filter(|entry| entry.round == 0);
        first.map(|entry| (entry.workload, entry.path)).collect()
    }

    fn row(&self, workload: &Workload, path: Path) -> Row {
        let rounds: Vec<_> = self.rounds(workload, path).map(|entry| entry.measured).collect();
        let over = |figure: fn(&Measurement) -> f64| median(rounds.iter().map(figure).collect());
        Row {
            workload: workload.kind(),
            bytes: workload.bytes,
            in_flight: workload.in_flight,
            connections: 1,
            path: path.to_string(),
            p50_us: over(|measured| measured.p50_us),
            p99_us: over(|measured| measured.p99_us),
            p999_us: over(|measured| measured.p999_us),
            per_s: over(|measured| measured.per_s),
            cpu_us_per_call: over(|measured| measured.cpu_us_per_call),
            packets_per_call: median_if_any(rounds.iter().filter_map(|measured| measured.packets_per_call)),
            rnr: sum_if_any(rounds.iter().filter_map(|measured| measured.rnr)),
            retransmits: sum_if_any(rounds.iter().filter_map(|measured| measured.retransmits)),
        }
    }

    /// How `path` compares to `base` in the same round; `None` when `base` was not measured.
    fn ratio(
        &self,
        workload: &Workload,
        path: Path,
        base: Path,
        figure: fn(&Measurement) -> f64,
    ) -> Option<f64> {
        let ratios = self.rounds(workload, path).filter_map(|entry| {
            let base = self.rounds(workload, base).find(|base| base.round == entry.round)?;
            Some(figure(&entry.measured) / figure(&base.measured))
        });
        median_if_any(ratios)
    }

    fn rounds(&self, workload: &Workload, path: Path) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| entry.workload == workload && entry.path == path)
    }
}

impl Row {
    /// The last columns of the table; nothing for a path that uses no device.
    fn counts(&self) -> String {
        let Some(packets) = self.packets_per_call else { return String::new() };
        let number = |count: Option<u64>| count.map_or_else(|| "-".to_owned(), |count| count.to_string());
        format!(" {packets:>9.2} {:>5} {:>7}", number(self.rnr), number(self.retransmits))
    }
}

fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"))
}

/// The middle one, or of an even number the upper of the two. There is at least one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn median_if_any(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| median(values))
}

fn sum_if_any(counts: impl Iterator<Item = u64>) -> Option<u64> {
    counts.reduce(|sum, count| sum + count)
}
