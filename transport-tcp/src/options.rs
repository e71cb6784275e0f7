//! What holds for a connection on this side, whatever it speaks.

use std::time::Duration;

use byway_runtime::Limits;

/// What holds for a connection on this side.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// What this side accepts.
    pub limits: Limits,
    /// How a dead peer is noticed.
    pub keepalive: Keepalive,
}

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
