//! A timer for a driver, which is polled far more often than it fires.

use std::future::Future;
use std::pin::Pin;
use std::task::Context;

use tokio::time::{Instant, Sleep};

/// A timer that can be set again, and costs next to nothing to ask while it has not fired.
///
/// It must always be polled by the same task, as the driver of a connection does.
#[derive(Debug)]
pub struct Alarm {
    timer: Pin<Box<Sleep>>,
    at: Option<Instant>,
    registered: bool,
}

impl Alarm {
    /// An alarm that is not set.
    ///
    /// # Panics
    /// Outside of a tokio runtime with timers.
    pub fn new() -> Self {
        Self { timer: Box::pin(tokio::time::sleep_until(Instant::now())), at: None, registered: false }
    }

    /// Sets it to `at`, or off.
    pub fn set(&mut self, at: Option<Instant>) {
        if self.at == at {
            return;
        }
        self.at = at;
        self.registered = false;
        if let Some(at) = at {
            self.timer.as_mut().reset(at);
        }
    }

    /// Whether it has fired, which turns it off; otherwise the task is woken when it does.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        if self.at.is_none() || self.registered && !self.timer.is_elapsed() {
            return false;
        }
        self.registered = true;
        let fired = self.timer.as_mut().poll(cx).is_ready();
        if fired {
            self.at = None;
        }
        fired
    }
}

impl Default for Alarm {
    fn default() -> Self {
        Self::new()
    }
}
