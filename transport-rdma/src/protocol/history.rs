//! How large the reply to a request will be.
//!
//! Owns [`History`], which remembers for each method about the largest reply of late. A new size above what
//! is remembered replaces it at once, since an offer that is too small costs a round trip; a smaller one
//! pulls it down by an eighth of the difference, so that one large reply is forgotten after some twenty small
//! ones. An offer is an eighth larger than that, for replies that grow slowly. Invariant: a fixed number of
//! entries; a method that shares an entry with another one gets worse predictions and nothing else. Never:
//! offers for methods whose replies fit a message.

/// Methods that are remembered; a service has fewer that are called often.
const ENTRIES: usize = 256;

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    method: u64,
    expected: u32,
}

/// Sizes of replies, by method.
#[derive(Debug)]
pub struct History {
    entries: Vec<Entry>,
    from: u32,
    up_to: u32,
}

impl History {
    /// Offers are made for replies that are expected to have at least `from` bytes, and never of more than
    /// `up_to`.
    pub fn new(from: u32, up_to: u32) -> Self {
        Self { entries: vec![Entry::default(); ENTRIES], from, up_to }
    }

    /// The number that stands for a method here.
    pub fn method(path: &[u8]) -> u64 {
        // FNV-1a: paths are short, few, and the caller's own.
        path.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }

    /// How many bytes to offer for the reply to a call of `method`, if any.
    pub fn predict(&self, method: u64) -> Option<u32> {
        let entry = self.entries[Self::index(method)];
        if entry.method != method || entry.expected < self.from {
            return None;
        }
        // What is larger than any offer is announced; an offer would come back unused.
        (entry.expected <= self.up_to)
            .then(|| entry.expected.saturating_add(entry.expected / 8).min(self.up_to))
    }

    /// Notes the size of a message that answered a call of `method`.
    pub fn note(&mut self, method: u64, len: u32) {
        let entry = &mut self.entries[Self::index(method)];
        if entry.method != method {
            *entry = Entry { method, expected: len };
        } else if len >= entry.expected {
            entry.expected = len;
        } else {
            entry.expected -= (entry.expected - len).div_ceil(8);
        }
    }

    fn index(method: u64) -> usize {
        (method >> 32) as usize % ENTRIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_large_reply_is_expected_again() {
        let mut history = History::new(16 << 10, 4 << 20);
        let embed = History::method(b"/tei.v1.Embed/Embed");
        assert_eq!(history.predict(embed), None, "nothing is known");
        history.note(embed, 64_000);
        assert_eq!(history.predict(embed), Some(72_000), "an eighth more");
        history.note(embed, 100_000);
        assert_eq!(history.predict(embed), Some(112_500));
    }

    #[test]
    fn one_large_reply_among_small_ones_is_forgotten() {
        let mut history = History::new(16 << 10, 4 << 20);
        history.note(1, 1 << 20);
        let offers = (0..100).take_while(|_| {
            history.note(1, 100);
            history.predict(1).is_some()
        });
        assert!((20..40).contains(&offers.count()));
        (0..200).for_each(|_| history.note(1, 100));
        assert_eq!(history.entries[0].expected, 100, "it gets there");
    }

    #[test]
    fn offers_have_bounds() {
        let mut history = History::new(16 << 10, 1 << 20);
        history.note(1, (16 << 10) - 1);
        assert_eq!(history.predict(1), None, "it fits a message");
        history.note(1, 1 << 20);
        assert_eq!(history.predict(1), Some(1 << 20));
        history.note(1, (1 << 20) + 1);
        assert_eq!(history.predict(1), None, "it would not fit the offer");
        history.note(1, u32::MAX);
        assert_eq!(history.predict(1), None);
    }

    #[test]
    fn methods_that_share_an_entry_are_told_apart() {
        let mut history = History::new(1, 1 << 20);
        history.note(1, 100);
        assert_eq!(history.predict(2), None, "another method of the same entry");
        history.note(2, 200);
        assert_eq!(history.predict(1), None);
        for method in 0..100_000u64 {
            history.note(method << 32, 10);
        }
        assert_eq!(history.entries.len(), ENTRIES);
    }
}
