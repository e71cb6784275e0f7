//! Closed loops: each makes its next call when the last one was answered.
//!
//! Owns how calls are counted and timed. One reading of the clock per call: a call begins when the one before it ended.
//! Never: adds up latencies while calls run; that would be part of them.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use crate::Failure;
use crate::workload::Budget;

/// The latencies of one run, in nanoseconds, and how long it took.
pub(crate) struct Samples {
    pub(crate) latencies: Histogram<u64>,
    pub(crate) elapsed: Duration,
}

impl Samples {
    pub(crate) fn new(
        elapsed: Duration,
        latencies: impl IntoIterator<Item = Duration>,
    ) -> Result<Self, Failure> {
        let mut histogram = Histogram::new(3)?;
        for latency in latencies {
            histogram.record(u64::try_from(latency.as_nanos())?)?;
        }
        if histogram.is_empty() {
            return Err("no call was finished in time".into());
        }
        Ok(Self { latencies: histogram, elapsed })
    }
}

/// What makes one call and checks its reply.
pub(crate) trait Caller: Clone + Send + 'static {
    fn call(&self) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// Runs `in_flight` loops until the budget is spent.
pub(crate) async fn run<C: Caller>(caller: &C, in_flight: usize, budget: Budget) -> Result<Samples, Failure> {
    let left = Arc::new(AtomicUsize::new(budget.calls));
    let began = Instant::now();
    let until = began + budget.time;
    let mut loops = JoinSet::new();
    for _ in 0..in_flight {
        let (caller, left) = (caller.clone(), Arc::clone(&left));
        // Room for an even share, so that most loops never grow their list while they are timed.
        let mut latencies = Vec::with_capacity(budget.calls.div_ceil(in_flight) * 5 / 4);
        loops.spawn(async move {
            let mut last = Instant::now();
            while last < until && take_one(&left) {
                caller.call().await?;
                let now = Instant::now();
                latencies.push(now - last);
                last = now;
            }
            Ok::<_, Failure>(latencies)
        });
    }
    let mut all = Vec::with_capacity(in_flight);
    while let Some(latencies) = loops.join_next().await {
        all.push(latencies??);
    }
    Samples::new(began.elapsed(), all.into_iter().flatten())
}

fn take_one(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}
