//! How a task sleeps until its NIC has something to say.
//!
//! Owns [`Rings`], which the two kinds of NIC implement each in its way: by a descriptor that the runtime watches, or by
//! a waker. Invariant: after [`Nic::arm`] and another look, a completion wakes the task that last polled the bell. Never:
//! takes the wake-ups; that is [`Nic::take_wakes`].

use std::io;
use std::task::{Context, Poll};

use crate::nic::Nic;

/// A NIC on which a task can sleep.
pub trait Rings: Nic + Unpin {
    /// What the task sleeps on.
    type Bell: Send + Unpin;

    /// A bell for the task that drives this NIC.
    ///
    /// # Errors
    /// The runtime cannot watch it.
    fn bell(&self) -> io::Result<Self::Bell>;

    /// Ready when a wake-up may wait; otherwise the task is woken when one comes.
    ///
    /// # Errors
    /// The runtime stopped watching.
    fn poll_rang(&self, bell: &mut Self::Bell, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

#[cfg(feature = "sim")]
impl Rings for crate::sim::SimNic {
    type Bell = ();

    fn bell(&self) -> io::Result<()> {
        Ok(())
    }

    fn poll_rang(&self, (): &mut (), cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.set_waker(Some(cx.waker().clone()));
        // Not by events, which nobody takes here: a bell that they ring would never be still again.
        if self.has_wakes() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}
