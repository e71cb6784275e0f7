//! How a server's connection ends once its server was told to stop.
//!
//! ```text
//! Serving ──told──▶ Draining ──time over──▶ Ended ──last words said──▶ (over)
//! ```
//! Owns the three phases and their timers, for whatever link. Never: sends anything; its driver does, step by step.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;
use tonic::Status;

use crate::connection::Turn;
use crate::dispatch::Drain;
use crate::link::Link;
use crate::session::Failure;

/// How long a connection that is over may take to deliver its last words.
pub const LAST_WORDS: Duration = Duration::from_secs(1);

/// The way of a server's connection to its end.
pub struct Farewell(Phase);

enum Phase {
    Serving(Drain),
    /// No new calls; when the timer fires the open ones end.
    Draining(Pin<Box<Sleep>>),
    /// Every call has ended; the client has until the timer fires to notice and close.
    Ended(Pin<Box<Sleep>>),
}

/// What is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// To take no new calls.
    Drain,
    /// To end the open calls.
    EndCalls,
    /// To close.
    Close,
}

impl Farewell {
    /// Begins when `drain` resolves.
    pub fn new(drain: Drain) -> Self {
        Self(Phase::Serving(drain))
    }

    /// The next step, when it is due; otherwise the task is woken when it is. Asked again after each step.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        let (next, step) = match &mut self.0 {
            Phase::Serving(drain) => {
                let Poll::Ready(until) = drain.as_mut().poll(cx) else { return Poll::Pending };
                (Phase::Draining(Box::pin(tokio::time::sleep_until(until))), Step::Drain)
            }
            Phase::Draining(timer) => {
                let Poll::Ready(()) = timer.as_mut().poll(cx) else { return Poll::Pending };
                (Phase::Ended(Box::pin(tokio::time::sleep(LAST_WORDS))), Step::EndCalls)
            }
            Phase::Ended(timer) => return timer.as_mut().poll(cx).map(|()| Step::Close),
        };
        self.0 = next;
        Poll::Ready(step)
    }
}

impl Step {
    /// Does it, as far as the connection's lock is needed for it.
    ///
    /// # Errors
    /// Why the connection is over, with the last step.
    pub fn take<L: Link>(self, turn: &mut Turn<'_, L>) -> Result<(), Failure> {
        match self {
            Self::Drain => turn.drain(),
            Self::EndCalls => {
                turn.end_calls(&Status::unavailable("the server shut down before the call was finished"));
            }
            Self::Close => return Err(Failure::told("the server is shutting down")),
        }
        Ok(())
    }
}
