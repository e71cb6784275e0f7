//! Whether the peer is still there.
//!
//! Owns when to ask and when to give up, without a clock of its own: it is told when its timer fired and whether
//! anything was heard since. Nothing is measured per frame.

use std::time::Duration;

/// When to ask a silent peer for a sign of life, and when to give up on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// How long a peer may be silent before it is asked. Default 20 s.
    pub interval: Duration,
    /// How long it may take to answer. Default 10 s.
    pub timeout: Duration,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self { interval: Duration::from_secs(20), timeout: Duration::from_secs(10) }
    }
}

/// What to do when the timer fired.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Nothing until the timer fires again, this much later.
    Wait(Duration),
    /// Ask the peer, and see after this much whether it answered.
    Ping(Duration),
    /// The peer is gone.
    Dead,
}

#[derive(Debug)]
pub(super) struct Watch {
    keepalive: Keepalive,
    heard: bool,
    asked: bool,
}

impl Watch {
    pub(super) fn new(keepalive: Keepalive) -> Self {
        Self { keepalive, heard: true, asked: false }
    }

    /// Something came from the peer, or this side chose not to listen.
    pub(super) fn note_heard(&mut self) {
        self.heard = true;
    }

    pub(super) fn fired(&mut self) -> Due {
        if std::mem::take(&mut self.heard) {
            self.asked = false;
            return Due::Wait(self.keepalive.interval);
        }
        if self.asked {
            return Due::Dead;
        }
        self.asked = true;
        Due::Ping(self.keepalive.timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_peer_is_asked_once_and_then_given_up() {
        let keepalive = Keepalive::default();
        let mut watch = Watch::new(keepalive);
        assert_eq!(watch.fired(), Due::Wait(keepalive.interval));
        assert_eq!(watch.fired(), Due::Ping(keepalive.timeout));
        assert_eq!(watch.fired(), Due::Dead);
    }

    #[test]
    fn any_sign_of_life_starts_over() {
        let keepalive = Keepalive::default();
        let mut watch = Watch::new(keepalive);
        watch.fired();
        assert_eq!(watch.fired(), Due::Ping(keepalive.timeout));
        watch.note_heard();
        assert_eq!(watch.fired(), Due::Wait(keepalive.interval));
        assert_eq!(watch.fired(), Due::Ping(keepalive.timeout), "and is asked again when silent again");
    }
}
