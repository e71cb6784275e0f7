//! The bodies that this side sends.
//!
//! Owns [`Bodies`]: numbers, states and what is due for each. Invariants: a number is used again only when
//! the peer cannot mean the old body any more; each body ends once, as an [`Ended`]. Bounded by what the peer
//! accepts at once. Never: holds a body's bytes; the driver does, by number.

use std::collections::VecDeque;

use byway_runtime::session::CallId;

use super::error::ProtocolError;
use super::table::Table;
use super::transfer::{Outgoing, OutgoingEffect, OutgoingEvent};
use super::wire::{LandingId, Place, Refusal, TransferId};

/// How a body ended that this side sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Everything was posted.
    Delivered,
    /// The peer did not take it.
    Refused(Refusal),
    /// Its call was over.
    Cancelled,
}

/// A body to be copied to where the peer said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// The body.
    pub transfer: TransferId,
    /// The peer's memory, and the immediate of the last write.
    pub landing: LandingId,
    /// Where the body goes.
    pub place: Place,
    /// Its length in bytes.
    pub len: u32,
}

#[derive(Debug)]
struct Body {
    call: CallId,
    state: Outgoing,
    job: Job,
    /// Of a body that travels in pieces: how much was queued.
    queued: u32,
}

/// What a step asks of the endpoint.
#[derive(Debug, Default)]
pub(super) struct Due {
    pub(super) release: Option<(LandingId, TransferId)>,
    pub(super) ended: Option<(TransferId, Ended)>,
}

/// All bodies that this side sends.
#[derive(Debug)]
pub(super) struct Bodies {
    bodies: Table<Body>,
    /// Bodies whose frames have not left, by the position of the frame.
    placed: VecDeque<(u64, TransferId)>,
    jobs: VecDeque<TransferId>,
    in_pieces: VecDeque<TransferId>,
    finals: VecDeque<TransferId>,
}

impl Bodies {
    pub(super) fn new(capacity: u16) -> Self {
        Self {
            bodies: Table::new(capacity),
            placed: VecDeque::new(),
            jobs: VecDeque::new(),
            in_pieces: VecDeque::new(),
            finals: VecDeque::new(),
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.bodies.has_room()
    }

    pub(super) fn len(&self) -> usize {
        self.bodies.len()
    }

    pub(super) fn announce(&mut self, call: CallId, len: u32) -> Option<TransferId> {
        self.insert(call, Outgoing::Announced, len, LandingId(0), Place::Pieces)
    }

    /// A body for an offer, whose frame is at `position` of all frames.
    pub(super) fn place(
        &mut self,
        call: CallId,
        len: u32,
        (landing, place): (LandingId, Place),
        position: u64,
    ) -> Option<TransferId> {
        let transfer = self.insert(call, Outgoing::Queued, len, landing, place)?;
        self.placed.push_back((position, transfer));
        Some(transfer)
    }

    fn insert(
        &mut self,
        call: CallId,
        state: Outgoing,
        len: u32,
        landing: LandingId,
        place: Place,
    ) -> Option<TransferId> {
        let job = Job { transfer: TransferId(0), landing, place, len };
        let transfer = TransferId(self.bodies.insert(Body { call, state, job, queued: 0 })?);
        if let Some(body) = self.bodies.find(transfer.0) {
            body.job.transfer = transfer;
        }
        Some(transfer)
    }

    /// # Errors
    /// When there is nothing to be granted, or the memory has another length.
    pub(super) fn handle_grant(
        &mut self,
        transfer: TransferId,
        landing: LandingId,
        place: Place,
    ) -> Result<Due, ProtocolError> {
        let Some(body) = self.bodies.find(transfer.0) else {
            return Err(ProtocolError::Transfer(transfer, "a grant for nothing"));
        };
        if let Place::Slice(slice) = place
            && slice.len != u64::from(body.job.len)
        {
            return Err(ProtocolError::Transfer(transfer, "a grant of another length than announced"));
        }
        (body.job.landing, body.job.place) = (landing, place);
        self.apply(transfer, OutgoingEvent::Grant, None)
            .ok_or(ProtocolError::Transfer(transfer, "a grant out of place"))
    }

    /// # Errors
    /// When there is nothing to be refused.
    pub(super) fn handle_refusal(
        &mut self,
        transfer: TransferId,
        reason: Refusal,
    ) -> Result<Due, ProtocolError> {
        self.apply(transfer, OutgoingEvent::Refusal, Some(reason))
            .ok_or(ProtocolError::Transfer(transfer, "a refusal of nothing"))
    }

    /// Frames before `position` have left.
    pub(super) fn handle_frames_sent(&mut self, position: u64) {
        while let Some(&(_, transfer)) = self.placed.front().filter(|(frame, _)| *frame < position) {
            self.placed.pop_front();
            self.apply(transfer, OutgoingEvent::FrameSent, None);
        }
    }

    pub(super) fn poll_job(&mut self) -> Option<Job> {
        let transfer = self.jobs.pop_front()?;
        self.apply(transfer, OutgoingEvent::Taken, None);
        self.bodies.find(transfer.0).map(|body| body.job)
    }

    /// Whether the driver may write this body now.
    pub(super) fn may_write(&mut self, transfer: TransferId) -> bool {
        self.bodies.find(transfer.0).is_some_and(|body| body.state == Outgoing::Copying)
    }

    /// All but the last write were posted; `false` when the call was over before.
    pub(super) fn handle_staged(&mut self, transfer: TransferId) -> bool {
        self.apply(transfer, OutgoingEvent::Staged, None).is_some()
    }

    pub(super) fn finals(&self) -> usize {
        self.finals.len()
    }

    /// The next last write, which is posted now.
    pub(super) fn poll_final(&mut self) -> Option<(Job, Due)> {
        let transfer = self.finals.pop_front()?;
        let job = self.bodies.find(transfer.0)?.job;
        let due = self.apply(transfer, OutgoingEvent::Sent, None)?;
        Some((job, due))
    }

    /// The next body that travels in pieces and how much of it was queued: in turn.
    pub(super) fn next_in_pieces(&mut self) -> Option<(Job, u32)> {
        let transfer = *self.in_pieces.front()?;
        self.bodies.find(transfer.0).map(|body| (body.job, body.queued))
    }

    /// The next piece of a body was queued behind all frames so far.
    pub(super) fn handle_piece_queued(&mut self, len: u32) -> Due {
        let Some(transfer) = self.in_pieces.pop_front() else { return Due::default() };
        let Some(body) = self.bodies.find(transfer.0) else { return Due::default() };
        body.queued += len;
        if body.queued < body.job.len {
            self.in_pieces.push_back(transfer);
            return Due::default();
        }
        // What is queued leaves in order and needs nothing more of the body.
        self.apply(transfer, OutgoingEvent::Taken, None);
        self.apply(transfer, OutgoingEvent::Staged, None);
        self.finals.pop_back();
        self.apply(transfer, OutgoingEvent::Sent, None).unwrap_or_default()
    }

    /// The call is over: what of its bodies has not been posted will not be.
    pub(super) fn cancel(&mut self, call: CallId) -> Vec<Due> {
        if self.bodies.len() == 0 {
            return Vec::new();
        }
        let of_call = self.bodies.iter().filter(|(_, body)| body.call == call);
        let transfers: Vec<_> = of_call.map(|(number, _)| TransferId(number)).collect();
        let steps = transfers.into_iter().map(|transfer| self.apply(transfer, OutgoingEvent::Cancel, None));
        steps.flatten().collect()
    }

    /// The release of this body's landing is posted: its number is free.
    pub(super) fn handle_release_sent(&mut self, transfer: TransferId) {
        self.apply(transfer, OutgoingEvent::ReleaseSent, None);
    }

    fn apply(&mut self, transfer: TransferId, event: OutgoingEvent, reason: Option<Refusal>) -> Option<Due> {
        let body = self.bodies.find(transfer.0)?;
        let (next, effect) = body.state.after(event)?;
        let job = body.job;
        if let Some(state) = next {
            body.state = state;
        } else {
            self.bodies.remove(transfer.0);
        }
        if matches!(next, None | Some(Outgoing::Releasing)) {
            self.placed.retain(|(_, other)| *other != transfer);
            for queue in [&mut self.jobs, &mut self.in_pieces, &mut self.finals] {
                queue.retain(|other| *other != transfer);
            }
        }
        let mut due = Due::default();
        match effect {
            OutgoingEffect::Nothing => {}
            OutgoingEffect::Job if job.place == Place::Pieces => self.in_pieces.push_back(transfer),
            OutgoingEffect::Job => self.jobs.push_back(transfer),
            OutgoingEffect::Final => self.finals.push_back(transfer),
            OutgoingEffect::Delivered => due.ended = Some((transfer, Ended::Delivered)),
            OutgoingEffect::Refused => {
                due.ended = Some((transfer, Ended::Refused(reason.unwrap_or(Refusal::Over))));
            }
            OutgoingEffect::Drop => due.ended = Some((transfer, Ended::Cancelled)),
            OutgoingEffect::Release => due.release = Some((job.landing, transfer)),
            OutgoingEffect::DropAndRelease => {
                due =
                    Due { release: Some((job.landing, transfer)), ended: Some((transfer, Ended::Cancelled)) };
            }
        }
        Some(due)
    }
}
