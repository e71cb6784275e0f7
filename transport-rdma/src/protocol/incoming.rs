//! The bodies that this side receives, and the memory they land in.
//!
//! Owns [`Landings`]: what the peer announced, and what this side granted and offered. Invariants: an
//! announcement is answered once; a landing is handed over or freed once, and only when the peer has given it
//! back. Bounded by what this side said it accepts: beyond that the peer is at fault. Never: holds memory;
//! the driver does, by number.

use byway_runtime::session::CallId;

use super::error::ProtocolError;
use super::table::Table;
use super::transfer::{Landing, LandingEffect, LandingEvent};
use super::wire::{LandingId, Place, TransferId};

/// A body that is in its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Landed {
    /// The memory.
    pub landing: LandingId,
    /// The call.
    pub call: CallId,
    /// What the session knows the body by.
    pub number: u64,
    /// Its length in bytes.
    pub len: u32,
}

/// What becomes of a landing that the peer gave back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Back {
    Landed(Landed),
    Free(LandingId),
}

/// A body that the peer announced.
#[derive(Debug, Clone, Copy)]
struct Announced {
    transfer: TransferId,
    call: CallId,
    len: u32,
    answer: Answer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Pending,
    /// Granted; the peer cannot know before `told`.
    Granted {
        told: bool,
    },
    /// The refusal waits to be sent. Until then the number is taken, so that refusals cannot pile up.
    Refused,
}

#[derive(Debug)]
struct Memory {
    state: Landing,
    body: Landed,
    transfer: Option<TransferId>,
    /// Of a body that comes in pieces: how much is there.
    filled: Option<u32>,
}

/// All bodies that this side receives.
#[derive(Debug)]
pub(super) struct Landings {
    announced: Vec<Option<Announced>>,
    announced_max: u16,
    /// Announcements without an answer, so that the end of a call costs nothing when there are none.
    pending: usize,
    landings: Table<Memory>,
    /// Landings that were offered and not given back.
    offered: u16,
    offered_max: u16,
}

impl Landings {
    /// For a side that accepts `announced_max` bodies at once, and a peer that accepts `offered_max` offers.
    pub(super) fn new(announced_max: u16, offered_max: u16) -> Self {
        Self {
            announced: Vec::new(),
            announced_max,
            pending: 0,
            landings: Table::new(announced_max.saturating_add(offered_max)),
            offered: 0,
            offered_max,
        }
    }

    /// Landings that the peer has not given back.
    pub(super) fn len(&self) -> usize {
        self.landings.len()
    }

    /// Takes an announcement; returns what the session knows the body by.
    ///
    /// # Errors
    /// When the number is taken, or not one of those that this side accepts.
    pub(super) fn handle_announced(
        &mut self,
        transfer: TransferId,
        call: CallId,
        len: u32,
    ) -> Result<u64, ProtocolError> {
        let slot = transfer.0 as u16;
        if slot >= self.announced_max {
            return Err(ProtocolError::TooMany("bodies on their way"));
        }
        let index = usize::from(slot);
        if index >= self.announced.len() {
            self.announced.resize(index + 1, None);
        }
        if self.announced[index].is_some() {
            return Err(ProtocolError::Transfer(transfer, "a body announced under a number that is taken"));
        }
        self.announced[index] = Some(Announced { transfer, call, len, answer: Answer::Pending });
        self.pending += 1;
        Ok(transfer.0.into())
    }

    fn find(&mut self, transfer: TransferId) -> Option<&mut Announced> {
        let announced = self.announced.get_mut(usize::from(transfer.0 as u16))?.as_mut()?;
        (announced.transfer == transfer).then_some(announced)
    }

    /// Notes that memory is granted; `None` when nobody waits for it any more.
    pub(super) fn grant(&mut self, transfer: TransferId, place: Place) -> Option<(LandingId, u32)> {
        let announced = self.find(transfer).filter(|announced| announced.answer == Answer::Pending)?;
        announced.answer = Answer::Granted { told: false };
        let body = Landed {
            landing: LandingId(0),
            call: announced.call,
            number: transfer.0.into(),
            len: announced.len,
        };
        let filled = (place == Place::Pieces).then_some(0);
        self.pending -= 1;
        let memory = Memory { state: Landing::Expected, body, transfer: Some(transfer), filled };
        Some((self.insert(memory)?, body.len))
    }

    /// Notes a refusal; `false` when nobody waits for an answer.
    pub(super) fn refuse(&mut self, transfer: TransferId) -> bool {
        match self.find(transfer) {
            Some(announced) if announced.answer == Answer::Pending => {
                announced.answer = Answer::Refused;
                self.pending -= 1;
                true
            }
            _ => false,
        }
    }

    /// The answer to an announcement is posted.
    pub(super) fn handle_answer_sent(&mut self, transfer: TransferId) {
        match self.find(transfer) {
            Some(announced) if announced.answer == Answer::Refused => self.forget(transfer),
            Some(announced) => announced.answer = Answer::Granted { told: true },
            None => {}
        }
    }

    pub(super) fn may_offer(&self) -> bool {
        self.offered < self.offered_max && self.landings.has_room()
    }

    pub(super) fn offer(&mut self, call: CallId, len: u32) -> Option<LandingId> {
        if !self.may_offer() {
            return None;
        }
        let body = Landed { landing: LandingId(0), call, number: 0, len };
        let landing = self.insert(Memory { state: Landing::Offered, body, transfer: None, filled: None })?;
        self.offered += 1;
        Some(landing)
    }

    /// Takes an offer back that was never told.
    pub(super) fn withdraw(&mut self, landing: LandingId) {
        self.offered -= u16::from(self.landings.remove(landing.0).is_some());
    }

    fn insert(&mut self, memory: Memory) -> Option<LandingId> {
        let landing = LandingId(self.landings.insert(memory)?);
        if let Some(memory) = self.landings.find(landing.0) {
            memory.body.landing = landing;
        }
        Some(landing)
    }

    /// A frame says that its body comes into an offer; returns what the session knows the body by.
    ///
    /// # Errors
    /// When there is no such offer, or it is another call's or too small.
    pub(super) fn handle_placed(
        &mut self,
        landing: LandingId,
        call: CallId,
        len: u32,
    ) -> Result<u64, ProtocolError> {
        let Some(memory) = self.landings.find(landing.0) else {
            return Err(ProtocolError::Landing(landing, "a body for memory that is not offered"));
        };
        if memory.body.call != call || memory.body.len < len {
            return Err(ProtocolError::Landing(landing, "a body that the memory was not offered for"));
        }
        let Some((Some(state), _)) = memory.state.after(LandingEvent::Placed) else {
            return Err(ProtocolError::Landing(landing, "a second body for the same memory"));
        };
        // Above all numbers of announced bodies.
        memory.body.number = 1 << 32 | u64::from(landing.0);
        (memory.state, memory.body.len) = (state, len);
        Ok(memory.body.number)
    }

    /// # Errors
    /// When nothing is expected there.
    pub(super) fn handle_written(&mut self, landing: LandingId) -> Result<Back, ProtocolError> {
        match self.landings.find(landing.0) {
            Some(memory) if memory.filled.is_none() => self.give_back(landing, LandingEvent::Written),
            _ => Err(ProtocolError::Landing(landing, "a write for memory that is not granted")),
        }
    }

    /// # Errors
    /// When the peer does not have it.
    pub(super) fn handle_release(&mut self, landing: LandingId) -> Result<Back, ProtocolError> {
        self.give_back(landing, LandingEvent::Release)
    }

    /// Takes a piece: where its bytes go, if anybody wants them, and what becomes of the landing with the
    /// last one.
    ///
    /// # Errors
    /// When no piece is expected, or a shorter one.
    pub(super) fn handle_piece(
        &mut self,
        landing: LandingId,
        len: usize,
    ) -> Result<(Option<u32>, Option<Back>), ProtocolError> {
        let Some(Memory { filled: Some(filled), body, state, .. }) = self.landings.find(landing.0) else {
            return Err(ProtocolError::Landing(landing, "a piece that was not granted"));
        };
        let offset = *filled;
        if len > (body.len - offset) as usize {
            return Err(ProtocolError::Landing(landing, "pieces of more bytes than announced"));
        }
        *filled += len as u32;
        let (wanted, complete) = (*state == Landing::Expected, *filled == body.len);
        let back = complete.then(|| self.give_back(landing, LandingEvent::Written)).transpose()?;
        Ok((wanted.then_some(offset), back))
    }

    fn give_back(&mut self, landing: LandingId, event: LandingEvent) -> Result<Back, ProtocolError> {
        let Some(memory) = self.landings.find(landing.0) else {
            return Err(ProtocolError::Landing(landing, "memory given back that the peer does not have"));
        };
        let Some((None, effect)) = memory.state.after(event) else {
            return Err(ProtocolError::Landing(landing, "an offer written before its frame came"));
        };
        let (body, transfer) = (memory.body, memory.transfer);
        match transfer {
            Some(transfer) => {
                let answer = self.find(transfer).map(|announced| announced.answer);
                if answer != Some(Answer::Granted { told: true }) {
                    return Err(ProtocolError::Landing(landing, "memory given back before it was granted"));
                }
                self.forget(transfer);
            }
            None => self.offered -= 1,
        }
        self.landings.remove(landing.0);
        Ok(match effect {
            LandingEffect::Land => Back::Landed(body),
            LandingEffect::Free | LandingEffect::Nothing => Back::Free(landing),
        })
    }

    fn forget(&mut self, transfer: TransferId) {
        if let Some(place) = self.announced.get_mut(usize::from(transfer.0 as u16)) {
            *place = None;
        }
    }

    /// The call is over: nobody wants its bodies. Returns the announcements that are to be refused.
    pub(super) fn handle_over(&mut self, call: CallId) -> Vec<TransferId> {
        if self.landings.len() > 0 {
            let of_call = self.landings.iter().filter(|(_, memory)| memory.body.call == call);
            let numbers: Vec<_> = of_call.map(|(number, _)| number).collect();
            for number in numbers {
                if let Some(memory) = self.landings.find(number)
                    && let Some((Some(state), _)) = memory.state.after(LandingEvent::Over)
                {
                    memory.state = state;
                }
            }
        }
        let mut refused = Vec::new();
        if self.pending == 0 {
            return refused;
        }
        for announced in self.announced.iter_mut().flatten() {
            if announced.call == call && announced.answer == Answer::Pending {
                announced.answer = Answer::Refused;
                refused.push(announced.transfer);
            }
        }
        self.pending -= refused.len();
        refused
    }
}
