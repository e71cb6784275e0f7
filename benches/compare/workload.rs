//! What is asked of every path, and for how long.
//!
//! Owns the workloads and how much of each makes a measurement: so many calls that quantiles are steady, or so much time,
//! whichever is over first, so that slow paths do not take minutes.

use std::fmt;
use std::time::Duration;

/// Unary calls that send back what they get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Workload {
    /// Payload of the request, and of the reply.
    pub(crate) bytes: usize,
    /// Closed loops, all on one connection.
    pub(crate) in_flight: usize,
    /// Calls of a full measurement.
    calls: usize,
}

pub(crate) fn all() -> &'static [Workload] {
    &[
        Workload { bytes: 64, in_flight: 1, calls: 60_000 },
        Workload { bytes: 64, in_flight: 64, calls: 1_000_000 },
        Workload { bytes: 64 << 10, in_flight: 1, calls: 16_000 },
        Workload { bytes: 1 << 20, in_flight: 1, calls: 3_000 },
    ]
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes {
            bytes if bytes >= 1 << 20 => write!(f, "{} MiB", bytes >> 20)?,
            bytes if bytes >= 1 << 10 => write!(f, "{} KiB", bytes >> 10)?,
            bytes => write!(f, "{bytes} B")?,
        }
        write!(f, ", {} in flight", self.in_flight)
    }
}

/// Where one run of a workload ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    pub(crate) calls: usize,
    pub(crate) time: Duration,
}

impl Budget {
    /// For the warm-up.
    pub(crate) fn tenth(self) -> Self {
        Self { calls: self.calls.div_ceil(10), time: self.time / 10 }
    }
}

/// How much of each workload to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    Full,
    Quick,
    /// Enough to see that everything works.
    Smoke,
}

impl Effort {
    /// Odd, so that each median is a round that happened.
    pub(crate) fn rounds(self) -> usize {
        match self {
            Self::Full => 7,
            Self::Quick => 3,
            Self::Smoke => 1,
        }
    }

    pub(crate) fn budget(self, workload: &Workload) -> Budget {
        match self {
            Self::Full => Budget { calls: workload.calls, time: Duration::from_millis(1500) },
            Self::Quick => Budget { calls: workload.calls, time: Duration::from_millis(350) },
            Self::Smoke => Budget { calls: 2 * workload.in_flight, time: Duration::from_millis(350) },
        }
    }
}
