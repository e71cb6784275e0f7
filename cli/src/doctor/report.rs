//! What was found, and its two forms.
//!
//! Owns the words and the layout of the report. Invariant: both forms hold the same. `docs/doctor.md` describes the JSON,
//! on which programs rely: fields are added, never renamed.

use std::fmt;

use serde::Serialize;

/// What a check concluded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// RDMA works, but slower or less surely than it could.
    Warn,
    /// RDMA cannot work like this.
    Fail,
    /// It could not be read.
    Unknown,
    /// It does not apply here, or needs something that failed before.
    Skipped,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::Unknown => "unknown",
            Self::Skipped => "skipped",
        })
    }
}

impl Verdict {
    /// The terminal's code of its colour.
    fn color(self) -> &'static str {
        match self {
            Self::Ok => "\x1b[32m",
            Self::Warn => "\x1b[33m",
            Self::Fail => "\x1b[31m",
            Self::Unknown | Self::Skipped => "\x1b[2m",
        }
    }
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at; with a subject where there can be several, as in `port mlx5_0/1`.
    pub check: String,
    /// The conclusion.
    pub verdict: Verdict,
    /// What was read.
    pub evidence: String,
    /// What to type or to do; also where all is well but could be better.
    pub remedy: Option<String>,
}

impl Finding {
    pub(super) fn new(check: impl Into<String>, verdict: Verdict, evidence: impl Into<String>) -> Self {
        Self { check: check.into(), verdict, evidence: evidence.into(), remedy: None }
    }

    pub(super) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}

/// Everything that was found.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The conclusion.
    pub summary: Summary,
    /// The lines, in the order in which they should be read.
    pub checks: Vec<Finding>,
}

/// The conclusion, and how many checks concluded what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Whether RDMA is used here; with a peer, whether between it and here.
    pub usable: bool,
    /// The same as a sentence: the one that a connection gives as its reason.
    pub text: String,
    /// Checks with this verdict.
    pub ok: usize,
    /// Checks with this verdict.
    pub warn: usize,
    /// Checks with this verdict.
    pub fail: usize,
    /// Checks with this verdict.
    pub unknown: usize,
    /// Checks with this verdict.
    pub skipped: usize,
}

impl Report {
    pub(super) fn new(usable: bool, text: String, checks: Vec<Finding>) -> Self {
        let count = |verdict| checks.iter().filter(|finding| finding.verdict == verdict).count();
        let summary = Summary {
            usable,
            text,
            ok: count(Verdict::Ok),
            warn: count(Verdict::Warn),
            fail: count(Verdict::Fail),
            unknown: count(Verdict::Unknown),
            skipped: count(Verdict::Skipped),
        };
        Self { summary, checks }
    }

    /// For programs.
    pub fn json(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        text.expect("strings, numbers and truth values become JSON") + "\n"
    }

    /// For people.
    pub fn text(&self, color: bool) -> String {
        let width = self.checks.iter().map(|finding| finding.check.chars().count()).max().unwrap_or(0);
        let mut text = String::new();
        for Finding { check, verdict, evidence, remedy } in &self.checks {
            let (on, off) = if color { (verdict.color(), "\x1b[0m") } else { ("", "") };
            text += &format!("{on}{verdict:<7}{off}  {check:<width$}  {evidence}\n");
            if let Some(remedy) = remedy {
                text += &format!("{:7}  {:width$}  -> {remedy}\n", "", "");
            }
        }
        text
    }
}
