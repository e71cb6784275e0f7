//! How calls ended, in figures.
//!
//! Owns [`Tally`]. Its size is bounded whatever happens, since the memory of the process is measured beside it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use byway::{Code, Status};

/// How long each call may take.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// Different texts that are kept.
const TEXTS: usize = 12;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// 64 bytes there and back.
    Small,
    /// 64 KiB there and back.
    Medium,
    /// 1 MiB there and back.
    Large,
    /// Replies of 1 KiB that take their time.
    Stream,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Small, Self::Medium, Self::Large, Self::Stream];
}

/// What was seen since it was last taken.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// How many calls ended so, by kind and code.
    ended: BTreeMap<(Kind, i32), u64>,
    /// The same of those that were in flight when the failure began.
    in_flight: BTreeMap<i32, u64>,
    /// How long after that the last of them failed.
    pub(crate) failed_after: Duration,
    /// Calls that failed although nothing was done to the server.
    pub(crate) unordered: u64,
    /// What failures said, and how often.
    texts: BTreeMap<String, u64>,
    /// The longest that a call took beyond its deadline.
    pub(crate) overdue: Duration,
    /// The longest that a timer of ten milliseconds was late: as much is not the calls' fault.
    pub(crate) timer_late: Duration,
    /// What must not be.
    pub(crate) wrong: Vec<String>,
}

/// When something began that calls notice.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Moment {
    /// When the failure of this round began.
    pub(crate) failure: Option<Instant>,
    /// Since when every call must succeed.
    pub(crate) calm: Option<Instant>,
}

impl Tally {
    /// Notes the end of a call that began then.
    pub(crate) fn note(&mut self, kind: Kind, began: Instant, result: &Result<(), Status>, moment: Moment) {
        let now = Instant::now();
        let code = result.as_ref().err().map_or(Code::Ok, Status::code);
        *self.ended.entry((kind, code as i32)).or_default() += 1;
        self.overdue = self.overdue.max(now.saturating_duration_since(began + DEADLINE));
        if let Some(failure) = moment.failure.filter(|failure| began < *failure) {
            *self.in_flight.entry(code as i32).or_default() += 1;
            if code != Code::Ok {
                self.failed_after = self.failed_after.max(now - failure);
            }
        }
        let Err(status) = result else { return };
        // The time until the next attempt is another each time.
        let message = status.message().split(" (the next attempt").next().unwrap_or_default();
        let text: String = format!("{code:?}: {message}").chars().take(160).collect();
        if !matches!(code, Code::Unavailable | Code::DeadlineExceeded) {
            self.complain(format!("a {kind:?} call ended with {text}"));
        } else if moment.calm.is_some_and(|calm| began >= calm) {
            self.unordered += 1;
        }
        if self.texts.len() < TEXTS || self.texts.contains_key(&text) {
            *self.texts.entry(text).or_default() += 1;
        }
    }

    /// Notes what must not be.
    pub(crate) fn complain(&mut self, text: String) {
        if self.wrong.len() < TEXTS {
            self.wrong.push(text);
        }
    }

    /// How many calls of a kind ended well.
    pub(crate) fn succeeded(&self, kind: Kind) -> u64 {
        self.ended.get(&(kind, Code::Ok as i32)).copied().unwrap_or_default()
    }

    /// How many calls ended, and of those in flight at the failure, how many with a code.
    pub(crate) fn count(&self) -> u64 {
        self.ended.values().sum()
    }

    pub(crate) fn in_flight(&self, code: Code) -> u64 {
        self.in_flight.get(&(code as i32)).copied().unwrap_or_default()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for kind in Kind::ALL {
            let of_kind = self.ended.iter().filter(|((known, _), _)| *known == kind);
            write!(f, "  {:<7}", format!("{kind:?}"))?;
            of_kind
                .clone()
                .try_for_each(|((_, code), count)| write!(f, " {:?} {count}", Code::from(*code)))?;
            writeln!(f)?;
        }
        write!(f, "  in flight at the failure:")?;
        self.in_flight.iter().try_for_each(|(code, count)| write!(f, " {:?} {count}", Code::from(*code)))?;
        write!(
            f,
            "; the last failed after {:.1?}\n  beyond the deadline at most {:.0?}",
            self.failed_after, self.overdue
        )?;
        writeln!(f, "; a timer late by {:.0?} at most", self.timer_late)?;
        if self.unordered > 0 {
            writeln!(f, "  failed without an ordered failure: {}", self.unordered)?;
        }
        self.texts.iter().try_for_each(|(text, count)| writeln!(f, "  {count:>5} x {text}"))
    }
}
