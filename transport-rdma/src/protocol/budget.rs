//! How much memory landings may take.
//!
//! Owns [`Budget`]. What is reserved counts from the grant until the memory is back, that is, while the peer
//! may write it, while its message waits for its reader, and while the reader keeps the message. Invariant:
//! whoever does not get its memory is refused, never made to wait: waiting would make one reader that does
//! not read hold up all other calls. Never: owns memory.

/// Bytes that landings may take: of one connection, or of a process.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    limit: u64,
    reserved: u64,
}

impl Budget {
    /// Nothing is reserved yet.
    pub fn new(limit: u64) -> Self {
        Self { limit, reserved: 0 }
    }

    /// Bytes that are reserved.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Reserves memory for a landing, as much as its buffer takes; `false` when it is not there.
    #[must_use]
    pub fn reserve(&mut self, bytes: u64) -> bool {
        match self.reserved.checked_add(bytes) {
            Some(sum) if sum <= self.limit => {
                self.reserved = sum;
                true
            }
            _ => false,
        }
    }

    /// The same, if half of the limit is left afterwards.
    #[must_use]
    pub fn reserve_of_half(&mut self, bytes: u64) -> bool {
        let fits = self.reserved.checked_add(bytes).is_some_and(|sum| sum <= self.limit / 2);
        fits && self.reserve(bytes)
    }

    /// Gives back what was reserved.
    ///
    /// # Panics
    /// When that is more than is reserved: a buffer came back twice.
    pub fn release(&mut self, bytes: u64) {
        self.reserved = self.reserved.checked_sub(bytes).expect("a landing's memory comes back once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        let mut budget = Budget::new(100);
        assert!(budget.reserve(60));
        assert!(!budget.reserve(41));
        assert!(!budget.reserve(u64::MAX));
        assert!(budget.reserve(40));
        assert!(!budget.reserve_of_half(0), "more than half is gone");
        budget.release(60);
        assert!(budget.reserve_of_half(10) && !budget.reserve_of_half(1));
        budget.release(10);
        assert_eq!(budget.reserved(), 40);
        assert!(budget.reserve(60));
    }

    #[test]
    #[should_panic(expected = "comes back once")]
    fn memory_comes_back_once() {
        let mut budget = Budget::new(100);
        assert!(budget.reserve(60));
        budget.release(60);
        budget.release(60);
    }
}
