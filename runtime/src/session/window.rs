//! How much of one call may be under way: arithmetic only.
//!
//! Owns [`SendWindow`] (what we may still send) and [`ReceiveWindow`] (what the peer may still send, and what has been
//! read since we last told it). A message may be sent whenever the window is above zero, whatever its size, and is
//! then charged in full; so a message is never split, and one call never holds more than its window and one message.
//! Every message costs [`MESSAGE_COST`] bytes beside its own, so that empty ones are bounded too.

/// What a message costs beside its bytes: about what this implementation keeps for a queued one.
pub(crate) const MESSAGE_COST: u64 = 64;

/// What one message of `len` bytes is charged.
#[inline]
pub(crate) fn cost(len: u32) -> u64 {
    u64::from(len) + MESSAGE_COST
}

/// What we may still send for one call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SendWindow(i64);

impl SendWindow {
    #[inline]
    pub(crate) fn new(initial: u32) -> Self {
        Self(i64::from(initial))
    }

    #[inline]
    pub(crate) fn is_open(self) -> bool {
        self.0 > 0
    }

    #[inline]
    pub(crate) fn charge(&mut self, cost: u64) {
        self.0 = self.0.saturating_sub_unsigned(cost);
    }

    /// Adds a grant; `false` when the sum is more than any honest peer grants.
    #[must_use]
    pub(crate) fn grant(&mut self, bytes: u32) -> bool {
        self.0 += i64::from(bytes);
        self.0 <= i64::from(u32::MAX)
    }
}

/// What the peer may still send for one call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReceiveWindow {
    left: i64,
    unreturned: u64,
    initial: u32,
}

impl ReceiveWindow {
    pub(crate) fn new(initial: u32) -> Self {
        Self { left: i64::from(initial), unreturned: 0, initial }
    }

    /// Charges a message that arrived; `false` when the window was closed, which is the peer's fault.
    #[must_use]
    pub(crate) fn charge(&mut self, cost: u64) -> bool {
        let was_open = self.left > 0;
        self.left = self.left.saturating_sub_unsigned(cost);
        was_open
    }

    /// Notes that the reader took a message; returns what to grant now, if it is worth a frame.
    ///
    /// Half a window is the threshold: the sender never stalls while the reader keeps up, and a frame is sent at most
    /// twice per window.
    #[inline]
    pub(crate) fn consume(&mut self, cost: u64) -> Option<u32> {
        self.unreturned += cost;
        if self.unreturned < u64::from(self.initial / 2) {
            return None;
        }
        let grant = u32::try_from(self.unreturned).unwrap_or(u32::MAX);
        self.unreturned -= u64::from(grant);
        self.left += i64::from(grant);
        Some(grant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_any_size_fits_an_open_window_once() {
        let mut window = SendWindow::new(100);
        assert!(window.is_open());
        window.charge(cost(1_000_000));
        assert!(!window.is_open());
        assert!(window.grant(1_000_000));
        assert!(window.is_open(), "64 bytes of cost against 100 of window");
    }

    #[test]
    fn both_ends_agree_whatever_is_sent() {
        let initial = 1000;
        let (mut send, mut receive) = (SendWindow::new(initial), ReceiveWindow::new(initial));
        let mut queued = std::collections::VecDeque::new();
        let mut random = 12345u32;
        for _ in 0..10_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let len = random >> 22;
            if random & 1 == 0 && send.is_open() {
                send.charge(cost(len));
                assert!(receive.charge(cost(len)), "the receiver accepts what the sender may send");
                queued.push_back(cost(len));
            } else if let Some(cost) = queued.pop_front()
                && let Some(grant) = receive.consume(cost)
            {
                assert!(send.grant(grant));
            }
            let under_way: u64 = queued.iter().sum();
            assert!(under_way <= u64::from(initial) + cost(1 << 10), "bounded by the window and one message");
            assert!(send.is_open() || !queued.is_empty(), "an emptied queue reopens the window");
        }
    }

    #[test]
    fn a_closed_window_and_an_absurd_grant_are_noticed() {
        let mut receive = ReceiveWindow::new(64);
        assert!(receive.charge(cost(0)));
        assert!(!receive.charge(cost(0)));
        let mut send = SendWindow::new(u32::MAX);
        assert!(!send.grant(1));
    }
}
