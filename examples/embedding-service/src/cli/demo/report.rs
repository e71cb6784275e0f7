//! What the demo found, as JSON and as tables.
//!
//! Owns the shape of both. Invariant: numbers that were not measured are absent, never zero.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use byway::{RdmaCounters, Transport};
use serde::Serialize;

use crate::cli::demo::measure::{IN_FLIGHT, LARGE, Small, Times};

/// All of it.
#[derive(Serialize)]
pub(super) struct Report {
    /// The model whose vectors are compared.
    pub(super) model_id: String,
    pub(super) dimensions: usize,
    pub(super) texts: Vec<String>,
    /// Cosine of each pair of texts.
    pub(super) similarity: Vec<Vec<f64>>,
    /// What small calls were timed with.
    pub(super) small_model_id: String,
    /// What large replies were timed with.
    pub(super) large_model_id: String,
    pub(super) paths: Vec<PathReport>,
}

/// One path.
#[derive(Serialize)]
pub(super) struct PathReport {
    path: String,
    available: bool,
    /// Why it is not there.
    reason: Option<String>,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    per_s: Option<f64>,
    large_p50_us: Option<f64>,
    large_mb_per_s: Option<f64>,
    /// What the transport counted meanwhile; empty for transports that count nothing.
    counters: BTreeMap<String, u64>,
}

impl PathReport {
    pub(super) fn measured(
        transport: Transport,
        small: &Small,
        large: &Times,
        counters: BTreeMap<String, u64>,
    ) -> Self {
        let us = |duration: Duration| Some(duration.as_nanos() as f64 / 1e3);
        Self {
            path: transport.to_string(),
            available: true,
            reason: None,
            p50_us: us(small.times.quantile(0.5)),
            p99_us: us(small.times.quantile(0.99)),
            per_s: Some(small.per_s),
            large_p50_us: us(large.quantile(0.5)),
            large_mb_per_s: Some(large.per_s() * LARGE as f64 / 1e6),
            counters,
        }
    }

    pub(super) fn unavailable(transport: Transport, error: &dyn Error) -> Self {
        Self {
            path: transport.to_string(),
            available: false,
            reason: Some(error.to_string()),
            p50_us: None,
            p99_us: None,
            per_s: None,
            large_p50_us: None,
            large_mb_per_s: None,
            counters: BTreeMap::new(),
        }
    }
}

/// What was counted between two readings; nothing where a transport counts nothing.
pub(super) fn counters(before: Option<RdmaCounters>, after: Option<RdmaCounters>) -> BTreeMap<String, u64> {
    let (Some(before), Some(after)) = (before, after) else { return BTreeMap::new() };
    let known = before.connections.by_name();
    let mut counted: BTreeMap<_, _> = after
        .connections
        .by_name()
        .zip(known)
        .map(|((name, after), (_, before))| (name.to_owned(), after - before))
        .collect();
    let device = after.device.since(before.device);
    let refusals = device.rnr().unwrap_or(0);
    counted.entry("rnr".to_owned()).and_modify(|rnr| *rnr += refusals);
    counted.extend(device.packets.map(|packets| ("device_packets".to_owned(), packets)));
    counted.extend(device.retransmits.map(|retransmits| ("device_retransmits".to_owned(), retransmits)));
    counted
}

/// How alike two vectors are, from -1 to 1; whatever their lengths.
pub(super) fn cosine(left: &[f32], right: &[f32]) -> f64 {
    let dot = |left: &[f32], right: &[f32]| -> f64 {
        left.iter().zip(right).map(|(left, right)| f64::from(*left) * f64::from(*right)).sum()
    };
    dot(left, right) / (dot(left, left) * dot(right, right)).sqrt()
}

/// The cosine of each pair.
pub(super) fn similarity(vectors: &[Vec<f32>]) -> Vec<Vec<f64>> {
    vectors.iter().map(|left| vectors.iter().map(|right| cosine(left, right)).collect()).collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model_id, dimensions, small_model_id, large_model_id, .. } = self;
        writeln!(f, "How alike texts are: cosine of their vectors ({model_id}, {dimensions} dimensions)\n")?;
        for (index, (text, row)) in self.texts.iter().zip(&self.similarity).enumerate() {
            write!(f, "{:>3} ", index + 1)?;
            for cosine in row {
                write!(f, " {cosine:>6.3}")?;
            }
            writeln!(f, "   {text}")?;
        }
        writeln!(f, "\nWhat each path costs, client and server in this process")?;
        writeln!(
            f,
            "(small: Embed by {small_model_id}; large: 1 MiB of vectors, EmbedBatch by {large_model_id} of 32 texts; no model \
             runs,\n one call at a time but for calls/s, which has {IN_FLIGHT} under way)\n"
        )?;
        let heads = ("path", "small p50", "p99", "calls/s", "large p50", "MB/s");
        writeln!(
            f,
            "{:<6} {:>12} {:>12} {:>10} {:>12} {:>8}",
            heads.0, heads.1, heads.2, heads.3, heads.4, heads.5
        )?;
        self.paths.iter().try_for_each(|path| path.write_row(f))
    }
}

impl PathReport {
    fn write_row(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(reason) = &self.reason {
            return writeln!(f, "{:<6} not available: {reason}", self.path);
        }
        let us = |number: Option<f64>| number.map_or_else(|| "-".to_owned(), |us| format!("{us:.0} µs"));
        let plain =
            |number: Option<f64>| number.map_or_else(|| "-".to_owned(), |number| format!("{number:.0}"));
        writeln!(
            f,
            "{:<6} {:>12} {:>12} {:>10} {:>12} {:>8}",
            self.path,
            us(self.p50_us),
            us(self.p99_us),
            plain(self.per_s),
            us(self.large_p50_us),
            plain(self.large_mb_per_s)
        )?;
        let counters: Vec<_> = self.counters.iter().map(|(name, count)| format!("{name} {count}")).collect();
        if counters.is_empty() { Ok(()) } else { writeln!(f, "       counted: {}", counters.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cosines_are_those_of_the_angle() {
        assert_eq!(cosine(&[2.0, 0.0], &[3.0, 0.0]), 1.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 5.0]), 0.0);
        assert_eq!(cosine(&[1.0, 1.0], &[-1.0, -1.0]), -1.0);
        let all = similarity(&[vec![1.0, 0.0], vec![1.0, 1.0]]);
        assert_eq!(all[0][1], all[1][0]);
        assert!((all[0][1] - 0.5f64.sqrt()).abs() < 1e-9, "{all:?}");
    }
}
