//! What comes out of the completion queue, and how to sleep until there is something.
//!
//! Owns what becomes of each completion: its memory goes back, its receive is posted again, and the first failure that is
//! not the consequence of another is the reason. Never: knows what is in a message.

use bytes::Bytes;

use super::{Arrival, Came, POLL, POLLS, Polled, Wire};
use crate::counters::add;
use crate::nic::{
    Completion, Event, Kind, Nic, Payload, Piece, Receive, RecvQueue, Status, WindowId, WorkId,
};

impl<N: Nic> Wire<N> {
    /// Takes what has completed.
    ///
    /// # Errors
    /// Why the queue pair is of no more use, for a person. What came before counts.
    pub(crate) fn poll(&mut self, into: &mut Polled) -> Result<Came, String> {
        let mut came = Came::Nothing;
        let known = into.arrivals.len();
        let mut failure = None;
        for round in 0..POLLS {
            let mut completions = std::mem::take(&mut self.completions);
            let polled = self.nic.poll(&mut completions, POLL);
            for completion in completions.drain(..) {
                came = Came::All;
                if let Err(reason) = self.complete(completion, into)
                    && failure.as_ref().is_none_or(|(_, flushed)| *flushed)
                {
                    failure = Some(reason);
                }
            }
            self.completions = completions;
            match polled {
                Err(error) => return Err(format!("its completions cannot be read: {error}")),
                Ok(count) if count < POLL => break,
                Ok(_) if round + 1 == POLLS => came = Came::More,
                Ok(_) => {}
            }
        }
        add(&self.counters.messages_received, (into.arrivals.len() - known) as u64);
        self.post_receives()?;
        match failure {
            Some((reason, _)) => Err(reason),
            // Without a request that is out, nothing says more.
            None if self.event_failed => Err("the queue pair failed: the device told so".into()),
            None => Ok(came),
        }
    }

    pub(super) fn post_receives(&mut self) -> Result<(), String> {
        if self.returned.is_empty() {
            return Ok(());
        }
        let posted = self.nic.post_recv(RecvQueue::Shared, &mut self.returned);
        posted.map_err(|error| format!("a receive cannot be posted again: {error}"))
    }

    /// Acts on one completion; an error is why the queue pair is of no more use, and whether that is only the
    /// consequence of another.
    pub(super) fn complete(
        &mut self,
        completion: Completion,
        into: &mut Polled,
    ) -> Result<(), (String, bool)> {
        let Completion { kind, outcome, payload, work, .. } = completion;
        match kind {
            Kind::Receive | Kind::ReceiveWrite => {
                let Payload::One(Piece::Owned(mut buffer)) = payload else { return Ok(()) };
                if let Ok(success) = outcome {
                    into.arrivals.extend(match (kind, success.immediate) {
                        (Kind::ReceiveWrite, Some(immediate)) => Some(Arrival::Write(immediate)),
                        (Kind::Receive, None) => {
                            Some(Arrival::Message(Bytes::copy_from_slice(buffer.filled())))
                        }
                        // Neither is part of the protocol: an empty message is found wanting.
                        _ => Some(Arrival::Message(Bytes::new())),
                    });
                }
                buffer.set_filled(0);
                self.returned.push(Receive { work: WorkId(0), buffer });
            }
            Kind::Invalidate => {
                self.outstanding -= 1;
                self.closing -= 1;
                if let (Ok(_), Payload::One(Piece::Owned(buffer))) = (&outcome, payload) {
                    let window = WindowId(work.0 as u32);
                    self.bound.retain(|bound| *bound != window);
                    self.free_windows.push(window);
                    into.closed.push((window, buffer));
                }
            }
            Kind::Bind => self.outstanding -= 1,
            _ => {
                self.outstanding -= 1;
                into.acknowledged += u64::from(outcome.is_ok() && kind == Kind::Send);
                self.give_back(payload);
            }
        }
        // Requests come back in order.
        self.unreported = self.unreported.min(self.outstanding);
        match outcome {
            Ok(_) => Ok(()),
            Err(failure) => {
                add(&self.counters.rnr, u64::from(failure.status == Status::RnrRetryExceeded));
                Err((format!("the queue pair failed: {failure}"), failure.status == Status::Flushed))
            }
        }
    }

    pub(super) fn give_back(&mut self, payload: Payload<'_>) {
        let pieces = match payload {
            Payload::Empty | Payload::Inline(_) => return,
            Payload::One(piece) => vec![piece],
            Payload::Gather(pieces) => pieces,
        };
        for piece in pieces {
            match piece {
                Piece::Owned(buffer) if Some(buffer.address()) == self.own_address => self.own = Some(buffer),
                Piece::Owned(buffer) => {
                    self.staging_out -= 1;
                    self.pool.give_back(buffer);
                }
                Piece::Shared(frozen) => self.pool.view_back(frozen),
            }
        }
    }

    /// Asks for a wake-up: by whatever completes, or only by what the peer sends.
    pub(crate) fn arm(&mut self, all: bool) -> Result<(), String> {
        self.nic.arm(!all).map_err(|error| format!("its completions cannot be waited for: {error}"))
    }

    /// Fails the queue pair, so that it takes no more receives, and takes what has come.
    pub(crate) fn stop(&mut self, into: &mut Polled) {
        let _ = self.nic.fail_queue_pair(self.queue_pair);
        while let Ok(Came::All | Came::More) = self.poll(into) {}
    }

    /// Receives that were used up and that no completion will bring back.
    pub(crate) fn lost_receives(&self) -> u32 {
        u32::from(self.overran)
    }

    /// Takes the wake-ups; without any, what the device tells.
    ///
    /// # Errors
    /// Why the queue pair is of no more use, for a person.
    pub(crate) fn take_wakes(&mut self) -> Result<(), String> {
        let taken = self.nic.take_wakes().map_err(|error| format!("its wake-ups cannot be read: {error}"))?;
        if taken == 0 { self.take_events() } else { Ok(()) }
    }

    /// Takes what the device tells beside completions.
    ///
    /// # Errors
    /// Why the queue pair is of no more use, for a person.
    pub(crate) fn take_events(&mut self) -> Result<(), String> {
        let taken = self.nic.take_events(&mut self.events);
        taken.map_err(|error| format!("the device cannot be asked: {error}"))?;
        let mut failure = None;
        for event in self.events.drain(..) {
            let reason = match event {
                Event::CompletionQueueFailed => {
                    self.overran = true;
                    "its completion queue overran"
                }
                Event::SharedReceiveFailed => "the device's receive queue failed",
                Event::DeviceFailed => "the device failed or was removed",
                Event::QueuePairFailed(failed) if failed == self.queue_pair => {
                    self.event_failed = true;
                    continue;
                }
                // Requests go on.
                _ => continue,
            };
            failure = failure.or(Some(reason));
        }
        failure.map_or(Ok(()), |reason| Err(reason.into()))
    }
}
