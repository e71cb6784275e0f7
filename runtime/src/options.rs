//! What holds for a connection on this side, whatever carries it.

use crate::keepalive::Keepalive;
use crate::limits::Limits;

/// What holds for a connection on this side.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// What this side accepts.
    pub limits: Limits,
    /// How a dead peer is noticed.
    pub keepalive: Keepalive,
}
