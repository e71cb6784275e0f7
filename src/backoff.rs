//! How long to wait before connecting again: arithmetic only.

use std::time::Duration;

/// First wait: a server that restarts is back within about this time.
const FIRST: Duration = Duration::from_millis(100);

/// Longest wait. gRPC's is two minutes; behind an RDMA switch nobody wants to wait that long for a server that is back.
const LONGEST: Duration = Duration::from_secs(10);

/// Doubles from [`FIRST`] to [`LONGEST`], each wait shortened or lengthened by up to a fifth, so that the clients of a
/// server that failed do not come back together.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The wait after one more failure. `jitter` is between 0 and 1.
    pub(crate) fn failed(&mut self, jitter: f64) -> Duration {
        let doubled = FIRST.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        doubled.min(LONGEST).mul_f64(0.8 + 0.4 * jitter.clamp(0.0, 1.0))
    }

    /// A connection was made and lasted.
    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_limit_and_start_over_after_success() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..9).map(|_| backoff.failed(0.5).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        for _ in 0..100 {
            backoff.failed(0.0);
        }
        assert_eq!(backoff.failed(0.0), LONGEST.mul_f64(0.8));
        assert_eq!(backoff.failed(1.0), LONGEST.mul_f64(1.2));
        backoff.succeeded();
        assert_eq!(backoff.failed(0.5), FIRST);
    }
}
