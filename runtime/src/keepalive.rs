//! Whether the peer is still there.
//!
//! Owns when to ask and when to give up, without a clock of its own: it is told when its timer fired, whether anything was
//! heard since, and how far writing has come. A peer that is busy reading what comes before the question has not been
//! asked yet. Nothing is measured per frame.

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
pub enum Due {
    /// Nothing until the timer fires again, this much later.
    Wait(Duration),
    /// Ask the peer, and see after this much whether it answered.
    Ping(Duration),
    /// The peer is gone.
    Dead,
}

/// What a driver knows about its peer's silence.
#[derive(Debug)]
pub struct Watch {
    keepalive: Keepalive,
    heard: bool,
    asked: Option<Asked>,
}

/// A question that was pushed.
#[derive(Debug)]
struct Asked {
    /// The link's position after it.
    question: u64,
    /// How far writing had come at the last look.
    delivered: u64,
}

impl Watch {
    /// Nothing was asked yet.
    pub fn new(keepalive: Keepalive) -> Self {
        Self { keepalive, heard: true, asked: None }
    }

    /// Something came from the peer, or this side chose not to listen.
    pub fn note_heard(&mut self) {
        self.heard = true;
    }

    /// The timer fired, and writing has come as far as `delivered`.
    pub fn fired(&mut self, delivered: u64) -> Due {
        if std::mem::take(&mut self.heard) {
            self.asked = None;
            return Due::Wait(self.keepalive.interval);
        }
        match &mut self.asked {
            None => Due::Ping(self.keepalive.timeout),
            Some(asked) if asked.delivered < asked.question && asked.delivered < delivered => {
                asked.delivered = delivered;
                Due::Wait(self.keepalive.timeout)
            }
            Some(_) => Due::Dead,
        }
    }

    /// The question was pushed up to position `question`, and writing has come as far as `delivered`.
    pub fn note_asked(&mut self, question: u64, delivered: u64) {
        self.asked = Some(Asked { question, delivered });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch() -> (Watch, Due, Due) {
        let keepalive = Keepalive::default();
        let mut watch = Watch::new(keepalive);
        assert_eq!(watch.fired(0), Due::Wait(keepalive.interval));
        (watch, Due::Ping(keepalive.timeout), Due::Wait(keepalive.timeout))
    }

    #[test]
    fn a_silent_peer_is_asked_once_and_then_given_up() {
        let (mut watch, ping, _) = watch();
        assert_eq!(watch.fired(0), ping);
        watch.note_asked(20, 20);
        assert_eq!(watch.fired(500), Due::Dead, "whatever was written after the question");
    }

    #[test]
    fn any_sign_of_life_starts_over() {
        let (mut watch, ping, _) = watch();
        assert_eq!(watch.fired(0), ping);
        watch.note_asked(20, 20);
        watch.note_heard();
        assert_eq!(watch.fired(20), Due::Wait(Keepalive::default().interval));
        assert_eq!(watch.fired(20), ping, "and is asked again when silent again");
    }

    #[test]
    fn a_peer_that_still_reads_what_comes_before_the_question_has_time() {
        let (mut watch, ping, wait) = watch();
        assert_eq!(watch.fired(0), ping);
        watch.note_asked(1000, 100);
        assert_eq!(watch.fired(500), wait);
        assert_eq!(watch.fired(1000), wait, "the question has just left");
        assert_eq!(watch.fired(2000), Due::Dead);
    }

    #[test]
    fn a_peer_that_stops_reading_before_the_question_is_given_up() {
        let (mut watch, ping, wait) = watch();
        assert_eq!(watch.fired(0), ping);
        watch.note_asked(1000, 100);
        assert_eq!(watch.fired(500), wait);
        assert_eq!(watch.fired(500), Due::Dead);
    }
}
