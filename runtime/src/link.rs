//! The seam between a session and what moves its frames.
//!
//! Owns [`Link`], the sending half of a link as the session sees it. The receiving half is a driver: it owns the
//! socket or queue pair, and hands what arrives to [`Connection::turn`](crate::connection::Connection::turn).
//! Invariant: frames leave in the order in which they were pushed, or arrive as if they had
//! ([`Body::Later`]). Never: blocks or waits; a link without room says so by [`Link::has_room`] beforehand.

use bytes::Bytes;

use crate::session::Frame;

/// The sending half of a link. It lives under the connection's lock, so every method is short.
pub trait Link: Send + 'static {
    /// Takes one frame: encodes it now, once, into memory that the link chooses.
    ///
    /// Always succeeds. The session asks [`has_room`](Self::has_room) before it pushes messages that can wait;
    /// control frames and the few frames that end calls are pushed regardless.
    fn push(&mut self, frame: &Frame<'_>);

    /// Whether another message is welcome. `false` is backpressure: senders wait until the driver has made room and
    /// reports it by [`Turn::made_room`](crate::connection::Turn::made_room).
    fn has_room(&self) -> bool;

    /// A position that grows with every frame pushed. When the link fails, its driver reports how far it delivered in
    /// the same measure, and calls that began at or after that were never sent.
    fn position(&self) -> u64;
}

/// The message of a frame that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// The frame carries none.
    None,
    /// The message, in the memory where it landed.
    Here(Bytes),
    /// The message is still on its way (by RDMA Write, say) and will be reported under this number, which is unique
    /// among the connection's bodies on their way. It keeps the place that its frame has in the order of the call.
    Later(u64),
}
