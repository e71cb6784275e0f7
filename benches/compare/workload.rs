//! What is asked of every path, and for how long.
//!
//! Owns the workloads and how much of each makes a measurement: so many calls that quantiles are steady, or so much time,
//! whichever is over first, so that slow paths do not take minutes.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use embedding_service::model::EMBEDDED_MODEL_ID;

/// Texts in an [`Ask::EmbedBatch`].
pub(crate) const TEXTS: usize = 32;

/// Workloads that belong together. A run has one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// Bytes back and forth.
    Unary,
    /// Vectors of texts, made up by a model that costs next to nothing.
    Embed,
    /// Vectors of texts, made by the model that is part of the embedding service.
    EmbedMiniLm,
}

impl Family {
    const ALL: [Self; 3] = [Self::Unary, Self::Embed, Self::EmbedMiniLm];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Unary => "unary",
            Self::Embed => "embed",
            Self::EmbedMiniLm => "embed-minilm",
        }
    }

    pub(crate) const fn workloads(self) -> &'static [Workload] {
        use Ask::{Echo, Embed, EmbedBatch};
        match self {
            Self::Unary => &[
                Workload { ask: Echo, bytes: 64, in_flight: 1, calls: 60_000 },
                Workload { ask: Echo, bytes: 64, in_flight: 64, calls: 1_000_000 },
                Workload { ask: Echo, bytes: 64 << 10, in_flight: 1, calls: 16_000 },
                Workload { ask: Echo, bytes: 1 << 20, in_flight: 1, calls: 3_000 },
            ],
            Self::Embed => &[
                Workload { ask: Embed("null:384"), bytes: 384 * 4, in_flight: 1, calls: 60_000 },
                Workload { ask: Embed("null:384"), bytes: 384 * 4, in_flight: 64, calls: 1_000_000 },
                Workload {
                    ask: EmbedBatch("null:8192"),
                    bytes: TEXTS * 8192 * 4,
                    in_flight: 1,
                    calls: 3_000,
                },
            ],
            Self::EmbedMiniLm => &[
                Workload { ask: Embed(EMBEDDED_MODEL_ID), bytes: 384 * 4, in_flight: 1, calls: 3_000 },
                Workload {
                    ask: EmbedBatch(EMBEDDED_MODEL_ID),
                    bytes: TEXTS * 384 * 4,
                    in_flight: 1,
                    calls: 100,
                },
            ],
        }
    }
}

impl FromStr for Family {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|family| family.name() == name);
        found.ok_or_else(|| format!("there is no workload \"{name}\""))
    }
}

/// What a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// The server sends back what it got.
    Echo,
    /// A short text to its vector, by the model of that name.
    Embed(&'static str),
    /// [`TEXTS`] texts to a matrix, by the model of that name.
    EmbedBatch(&'static str),
}

/// Unary calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Workload {
    pub(crate) ask: Ask,
    /// Payload of the reply, and of an echo's request.
    pub(crate) bytes: usize,
    /// Closed loops, all on one connection.
    pub(crate) in_flight: usize,
    /// Calls of a full measurement.
    calls: usize,
}

impl Workload {
    /// What programs know it by, together with its size and its calls in flight.
    pub(crate) fn kind(&self) -> &'static str {
        match self.ask {
            Ask::Echo => "unary",
            Ask::Embed(EMBEDDED_MODEL_ID) => "embed-minilm",
            Ask::Embed(_) => "embed",
            Ask::EmbedBatch(EMBEDDED_MODEL_ID) => "embed-batch-minilm",
            Ask::EmbedBatch(_) => "embed-batch",
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ask {
            Ask::Echo => {}
            Ask::Embed(_) => f.write_str("embed ")?,
            Ask::EmbedBatch(_) => f.write_str("batch ")?,
        }
        match self.bytes {
            bytes if bytes >= 1 << 20 => write!(f, "{} MiB", bytes >> 20)?,
            bytes if bytes >= 1 << 13 => write!(f, "{} KiB", bytes >> 10)?,
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
