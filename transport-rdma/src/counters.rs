//! What the connections of one device have done so far.
//!
//! Owns [`Counters`], which every connection adds to, a batch at a time. Never: decides anything.

use std::sync::atomic::{AtomicU64, Ordering};

/// Declares the counters, and the reading of them.
macro_rules! counters {
    ($($(#[doc = $text:literal])* $name:ident)*) => {
        /// Counters that connections add to.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64,)* }

        /// What the connections of one device have done since it was opened.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct Counted { $($(#[doc = $text])* pub $name: u64,)* }

        impl Counters {
            pub(crate) fn read(&self) -> Counted {
                Counted { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl Counted {
            /// Each counter with its name.
            pub fn by_name(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Messages sent into receives, of frames and of whatever the link says for itself.
    messages_sent
    /// Messages received.
    messages_received
    /// Parts of large bodies written without an immediate.
    writes
    /// Writes that complete a large body.
    writes_with_imm
    /// Bytes of large bodies that were copied to registered memory first.
    bytes_copied
    /// Bytes of large bodies that were sent from where a caller had put them.
    bytes_by_reference
    /// Queue pairs that failed because a receiver was not ready, which flow control should never let happen.
    rnr
}

/// Adds to one counter.
pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    if amount > 0 {
        counter.fetch_add(amount, Ordering::Relaxed);
    }
}
