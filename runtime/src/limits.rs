//! What one side of a connection accepts.
//!
//! Owns [`Limits`]. Each side states its own in its hello, and the other keeps to them; exceeding them is a
//! protocol violation. Invariant: every value has an upper bound, so memory per connection has one.

/// What one side of a connection is willing to take from the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest message, in bytes. Default 64 MiB. A service's own limit (4 MiB as in tonic, unless set) is
    /// checked on top of it.
    pub max_message: u32,
    /// Largest head of a frame (path and metadata), in bytes. Default 16 KiB, at least 256, at most 65,535. Over HTTP/2 it
    /// is the largest list of headers, and a peer that sends more than four times as much loses its connection.
    pub max_head: u16,
    /// Calls that the peer may have open at once. Default 1,024, at most 65,535. A client's is zero: nobody calls it.
    pub max_calls: u16,
    /// Bytes that the peer may send for one call before the reader has taken any. Default 256 KiB. One message may
    /// overshoot it, so that a message is never split.
    pub window: u32,
    /// Bytes received on one connection and not yet taken by their reader, over all calls. Default 256 MiB. Beyond it
    /// calls end with `RESOURCE_EXHAUSTED`. Not sent to the peer.
    pub receive_budget: u64,
}

/// Least limit for heads, in bytes: room for every control frame and for a short status.
pub(crate) const MIN_HEAD: u16 = 256;

impl Limits {
    /// The same limits with values that no peer would accept raised to the least that one does.
    #[must_use]
    pub fn acceptable(self) -> Self {
        Self {
            max_message: self.max_message.max(1),
            max_head: self.max_head.max(MIN_HEAD),
            window: self.window.max(1),
            ..self
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_message: 64 << 20,
            max_head: 16 << 10,
            max_calls: 1024,
            window: 256 << 10,
            receive_budget: 256 << 20,
        }
    }
}

/// Largest message that a generated client or server decodes unless told otherwise, in bytes: tonic's default.
pub const DEFAULT_MAX_DECODING: usize = 4 << 20;
