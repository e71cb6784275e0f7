//! What a channel remembers about its peer.
//!
//! Owns [`Remembered`]: whether it has spoken byway, why RDMA failed, until when it is not tried again, and whether the channel
//! has said so. Invariant: each
//! failure in a row is given twice the time of the one before, and only a connection that outlasted that time ends the
//! row. Never: dials, or has a clock.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The longest time for which RDMA that failed is not tried again.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);

/// What a channel remembers about RDMA to its peer.
#[derive(Debug, Default)]
pub(crate) struct Remembered(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    failed: Option<Failed>,
    /// The time that the last failure was given; zero when none counts any more.
    wait: Duration,
    /// When the last connection by RDMA was made.
    joined: Option<Instant>,
    warned: bool,
    /// Whether the peer has said byway's hello.
    greeted: bool,
}

#[derive(Debug)]
struct Failed {
    reason: String,
    until: Instant,
}

impl State {
    /// Until when RDMA is not tried after one more failure.
    fn put_off(&mut self, retry_after: Duration, now: Instant) -> Instant {
        self.wait = retry_after.max(self.wait.saturating_mul(2)).min(RETRY_AFTER_MAX);
        now + self.wait
    }
}

impl Remembered {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// RDMA to this peer failed. After the first failure it is not tried for `retry_after`.
    pub(crate) fn failed(&self, reason: &str, retry_after: Duration, now: Instant) {
        let mut state = self.lock();
        if state.joined.take().is_some_and(|joined| now.saturating_duration_since(joined) > state.wait) {
            state.wait = Duration::ZERO;
        }
        let until = state.put_off(retry_after, now);
        state.failed = Some(Failed { reason: reason.to_owned(), until });
    }

    /// RDMA was due to be tried again, and there was none to try.
    pub(crate) fn still_failed(&self, now: Instant) {
        let mut state = self.lock();
        if state.failed.as_ref().is_some_and(|failed| failed.until <= now) {
            let until = state.put_off(Duration::ZERO, now);
            state.failed.iter_mut().for_each(|failed| failed.until = until);
        }
    }

    /// A connection by RDMA was made.
    pub(crate) fn joined(&self, now: Instant) {
        let mut state = self.lock();
        (state.failed, state.joined, state.warned) = (None, Some(now), false);
    }

    /// Why RDMA is not tried now, if it failed not long ago.
    pub(crate) fn refusal(&self, now: Instant) -> Option<String> {
        let state = self.lock();
        let failed = state.failed.as_ref().filter(|failed| now < failed.until)?;
        Some(format!("RDMA failed and is given {:?} before it is tried again: {}", state.wait, failed.reason))
    }

    /// Whether the peer has said byway's hello, and nothing else since.
    pub(crate) fn has_greeted(&self) -> bool {
        self.lock().greeted
    }

    /// The peer said byway's hello, or something else.
    pub(crate) fn note_greeting(&self, greeted: bool) {
        self.lock().greeted = greeted;
    }

    /// When RDMA that failed is to be tried again.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.lock().failed.as_ref().map(|failed| failed.until)
    }

    /// Whether nobody was warned since RDMA worked last: one warning is enough until then.
    pub(crate) fn is_news(&self) -> bool {
        !std::mem::replace(&mut self.lock().warned, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// How long RDMA is not tried from `now` on.
    fn wait(remembered: &Remembered, now: Instant) -> u64 {
        remembered.retry_at().expect("it failed").saturating_duration_since(now).as_secs()
    }

    #[test]
    fn a_failed_peer_is_tried_again_after_its_time_and_not_before() {
        let (remembered, now) = (Remembered::default(), Instant::now());
        assert_eq!((remembered.refusal(now), remembered.retry_at()), (None, None));
        remembered.failed("no probe came", 30 * SECOND, now);
        let refusal = remembered.refusal(now + 29 * SECOND).expect("too early");
        assert_eq!(refusal, "RDMA failed and is given 30s before it is tried again: no probe came");
        assert_eq!(remembered.refusal(now + 30 * SECOND), None);
        assert_eq!(remembered.retry_at(), Some(now + 30 * SECOND));
    }

    #[test]
    fn failures_in_a_row_are_given_ever_more_time_up_to_a_limit() {
        let (remembered, mut now) = (Remembered::default(), Instant::now());
        let waits: Vec<_> = (0..7)
            .map(|_| {
                remembered.failed("x", 30 * SECOND, now);
                now = remembered.retry_at().expect("it failed");
                remembered.lock().wait.as_secs()
            })
            .collect();
        assert_eq!(waits, [30, 60, 120, 240, 480, 600, 600]);
    }

    #[test]
    fn a_connection_that_did_not_outlast_the_wait_does_not_end_the_row() {
        let (remembered, mut now) = (Remembered::default(), Instant::now());
        for expected in [10, 20, 40] {
            remembered.failed("it broke", 10 * SECOND, now);
            assert_eq!(wait(&remembered, now), expected);
            now += expected as u32 * SECOND;
            remembered.joined(now);
            assert_eq!((remembered.refusal(now), remembered.retry_at()), (None, None));
            now += SECOND;
        }
        remembered.joined(now);
        now += 41 * SECOND;
        remembered.failed("it broke", 10 * SECOND, now);
        assert_eq!(wait(&remembered, now), 10, "that one lasted");
    }

    #[test]
    fn a_peer_without_rdma_is_asked_ever_less_often() {
        let (remembered, mut now) = (Remembered::default(), Instant::now());
        remembered.still_failed(now);
        assert_eq!(remembered.retry_at(), None, "nothing failed");
        remembered.failed("x", 10 * SECOND, now);
        remembered.still_failed(now + SECOND);
        assert_eq!(wait(&remembered, now), 10, "it was not due");
        for expected in [20, 40] {
            now = remembered.retry_at().expect("it failed");
            remembered.still_failed(now);
            assert_eq!(wait(&remembered, now), expected);
        }
    }

    #[test]
    fn one_warning_is_enough_until_rdma_worked_again() {
        let (remembered, now) = (Remembered::default(), Instant::now());
        assert_eq!([remembered.is_news(), remembered.is_news()], [true, false]);
        remembered.failed("x", SECOND, now);
        assert!(!remembered.is_news());
        remembered.joined(now);
        assert!(remembered.is_news());
    }
}
