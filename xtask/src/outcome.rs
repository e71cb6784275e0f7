//! How checks end that a developer's machine may be unable to run.
//!
//! Owns the decision that a check which did not run is an error. Invariant: under `CI=true` it always is. Never lets a
//! skipped check look like a passed one: what was left out is said last.

use std::env;
use std::fmt::Display;
use std::process::ExitCode;

/// How one check ended.
pub(crate) enum Outcome {
    Passed,
    /// With the status that this program is to end with.
    Failed(u8),
    /// It could not run here, for the reason in the sentence.
    Skipped(String),
}

impl Outcome {
    /// Of a check that ran, and ended with a status.
    pub(crate) fn of(status: u8) -> Self {
        if status == 0 { Self::Passed } else { Self::Failed(status) }
    }

    /// Of a check that did not run. It is excusable if a developer's machine may be in the state that `error` tells of.
    pub(crate) fn did_not_run(what: &str, error: &impl Display, excusable: bool) -> Self {
        let text = format!("*** The {what} did NOT run: {error}.");
        if excusable && !env::var("CI").is_ok_and(|value| value == "true") {
            return Self::Skipped(text);
        }
        eprintln!("{text}");
        Self::Failed(1)
    }
}

/// Runs checks until one fails, and says which were left out.
pub(crate) fn run_all<const N: usize>(checks: [fn() -> Outcome; N]) -> ExitCode {
    end(checks.into_iter().map(|check| check()))
}

/// How this program ends after what happened, which is asked for until something has failed.
pub(crate) fn end(outcomes: impl IntoIterator<Item = Outcome>) -> ExitCode {
    let mut skipped = Vec::new();
    for outcome in outcomes {
        match outcome {
            Outcome::Passed => {}
            Outcome::Failed(status) => return ExitCode::from(status),
            Outcome::Skipped(text) => skipped.push(text),
        }
    }
    if !skipped.is_empty() {
        skipped.iter().for_each(|text| eprintln!("{text}"));
        eprintln!("*** Everything else passed. With CI=true this is a failure.");
    }
    ExitCode::SUCCESS
}
