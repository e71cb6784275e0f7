//! The 64-bit number that travels with a work request and comes back in its report.
//!
//! ```text
//!  63            32 31             0
//! +----------------+----------------+
//! | queue          | position       |
//! +----------------+----------------+
//! ```
//!
//! Owns the numbering of queues. Invariant: no two queues of this process share a number, so a report that outlives
//! its queue (a completion queue may still hold some) can never be taken for one of another queue.

use std::sync::atomic::{AtomicU32, Ordering};

/// A number for a new queue. After 2^32 queues in one process no more can be made.
pub(super) fn new_queue() -> Option<u32> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| next.checked_add(1)).ok()
}

pub(super) fn join(queue: u32, position: u32) -> u64 {
    u64::from(queue) << 32 | u64::from(position)
}

pub(super) fn queue(id: u64) -> u32 {
    (id >> 32) as u32
}

pub(super) fn position(id: u64) -> u32 {
    id as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_the_journey() {
        for (a, b) in [(0, 0), (1, u32::MAX), (u32::MAX, 1), (0x8000_0000, 0x8000_0000)] {
            let id = join(a, b);
            assert_eq!((queue(id), position(id)), (a, b));
        }
        assert_ne!(new_queue(), new_queue());
    }
}
