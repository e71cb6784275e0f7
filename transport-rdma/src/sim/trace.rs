//! What a fabric did, as one number and, if asked for, as lines of text.
//!
//! Invariant: the number depends on every step and every report, on their order and their times, and on nothing
//! outside the fabric (no address, no key of this process). Never influences what happens.

use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use rustc_hash::FxHasher;

#[derive(Default)]
pub(super) struct Trace {
    hasher: FxHasher,
    lines: Option<Vec<String>>,
    pub(super) steps: u64,
}

impl Trace {
    /// Notes that `what` happened.
    pub(super) fn note(&mut self, now: u64, what: &(impl Debug + Hash)) {
        self.hasher.write_u64(now);
        what.hash(&mut self.hasher);
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:?} {what:?}", Duration::from_nanos(now)));
        }
    }

    pub(super) fn hash(&self) -> u64 {
        self.hasher.finish()
    }

    pub(super) fn keep_lines(&mut self) {
        self.lines.get_or_insert_default();
    }

    pub(super) fn take_lines(&mut self) -> Vec<String> {
        self.lines.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
