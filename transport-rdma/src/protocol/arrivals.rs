//! What arrives at an endpoint, and what its driver decides about it.
//!
//! Owns nothing but the incoming half of [`Endpoint`]. Invariant: a message is counted before it is looked
//! at, and every answer that a peer can cause takes a place of which there are few, until it has left; so a
//! peer that gives no credits cannot make answers pile up. Never: decides what the driver should: whether
//! there is memory.

use byway_runtime::session::{CallId, Role};

use super::credit::{Credits, ReceiveCredits, SendCredits};
use super::endpoint::Endpoint;
use super::error::ProtocolError;
use super::event::{Event, Received, ReceivedBody, Settings};
use super::incoming::Back;
use super::wire::{Item, Items, LandingId, Place, Refusal, TransferId, decode};
use crate::nic::RemoteSlice;

impl<M: AsMut<[u8]>> Endpoint<M> {
    /// Counts a message that arrived and takes its credits; its items are read one by one with
    /// [`next_received`](Self::next_received).
    ///
    /// # Errors
    /// The peer broke the protocol, here as in all functions of this part.
    pub fn handle_message<'b>(&mut self, message: &'b [u8]) -> Result<Items<'b>, ProtocolError> {
        self.receive.handle_arrival()?;
        let (header, items) = decode(message)?;
        self.send.handle_total(header.total)?;
        if header.wants_credits {
            self.events.push_back(Event::CreditsWanted);
        }
        Ok(items)
    }

    /// The next thing in a message that is for the driver. Between two of them the driver takes the events.
    pub fn next_received<'b>(
        &mut self,
        items: &mut Items<'b>,
    ) -> Result<Option<Received<'b>>, ProtocolError> {
        while let Some(item) = items.next(&self.settings.limits)? {
            if let Some(received) = self.handle_item(item)? {
                return Ok(Some(received));
            }
        }
        Ok(None)
    }

    fn handle_item<'b>(&mut self, item: Item<'b>) -> Result<Option<Received<'b>>, ProtocolError> {
        match item {
            Item::Frame { header, head, body } => {
                self.note_ends(&header, false);
                return Ok(Some(Received::Frame { header, head, body: ReceivedBody::Here(body) }));
            }
            Item::Announced { transfer, header, head } => {
                let number = self.landings.handle_announced(transfer, header.call, header.body_len)?;
                self.note_ends(&header, false);
                let body = ReceivedBody::Later { number, announced: Some(transfer) };
                return Ok(Some(Received::Frame { header, head, body }));
            }
            Item::Placed { landing, header, head } => {
                let number = self.landings.handle_placed(landing, header.call, header.body_len)?;
                self.note_ends(&header, false);
                let body = ReceivedBody::Later { number, announced: None };
                return Ok(Some(Received::Frame { header, head, body }));
            }
            Item::Piece { landing, bytes } => {
                let (offset, back) = self.landings.handle_piece(landing, bytes.len())?;
                self.note_back(back);
                return Ok(offset.map(|offset| Received::Piece { landing, offset, bytes }));
            }
            Item::Probe(nonce) => return Ok(Some(Received::Probe(nonce))),
            Item::Grant { transfer, landing, place } => {
                let due = self.bodies.handle_grant(transfer, landing, place)?;
                self.settle(due);
            }
            Item::Refused { transfer, reason } => {
                let due = self.bodies.handle_refusal(transfer, reason)?;
                self.settle(due);
            }
            Item::Release { landing } => {
                let back = self.landings.handle_release(landing)?;
                self.note_back(Some(back));
            }
            Item::Offer { call, landing, slice } => self.handle_offer(call, landing, slice)?,
            Item::Ask(credits) => self.handle_ask(credits)?,
            Item::GivenBack(credits) => {
                if !std::mem::take(&mut self.asked) {
                    return Err(ProtocolError::Credits("credits given back that nobody asked for"));
                }
                self.receive.handle_given_back(credits)?;
                self.events.push_back(Event::CreditsGivenBack(credits));
            }
        }
        Ok(None)
    }

    /// Takes a write with immediate that arrived.
    pub fn handle_write(&mut self, immediate: u32) -> Result<(), ProtocolError> {
        self.receive.handle_arrival()?;
        let back = self.landings.handle_written(LandingId(immediate))?;
        self.note_back(Some(back));
        Ok(())
    }

    /// Counts receives that are posted again, of those that arrivals used.
    pub fn handle_returned(&mut self, entries: Credits) {
        self.receive.handle_returned(entries);
    }

    /// Says how many receives hold frames back, because [`accepts`](Self::accepts) was false: they stay in
    /// use until the session has taken the last frame of each.
    pub fn set_held(&mut self, entries: Credits) {
        self.receive.set_held(entries);
    }

    /// What happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    // ---- Decisions of the driver ----

    /// Answers an announcement with memory, whose slice may be longer than the body; `None` when nobody waits
    /// for it any more, and the memory is still the driver's. The window was bound by an earlier request of
    /// the same queue pair.
    pub fn grant(&mut self, transfer: TransferId, place: Place) -> Option<LandingId> {
        let (landing, len) = self.landings.grant(transfer, place)?;
        let place = match place {
            Place::Slice(slice) => Place::Slice(RemoteSlice { len: len.into(), ..slice }),
            Place::Pieces => Place::Pieces,
        };
        self.outbox.push_urgent(Item::Grant { transfer, landing, place });
        Some(landing)
    }

    /// Answers an announcement with a refusal, and ends its call if that is not over; `false` when nobody
    /// waits for it any more.
    pub fn refuse(&mut self, transfer: TransferId, reason: Refusal) -> bool {
        let waits = self.landings.refuse(transfer);
        if waits {
            self.outbox.push_urgent(Item::Refused { transfer, reason });
        }
        waits
    }

    /// Lends the peer more entries of a shared queue; returns how many it takes.
    pub fn grow(&mut self, entries: Credits) -> Credits {
        self.receive.grow(entries)
    }

    /// Asks the peer to give back credits that it does not need; `false` when it owes an answer already.
    pub fn ask_back(&mut self, entries: Credits) -> bool {
        if self.asked {
            return false;
        }
        self.asked = true;
        self.outbox.push_urgent(Item::Ask(entries));
        true
    }

    /// Credits of both directions: what this side may use, and what of its own is whose.
    pub fn credits(&self) -> (&SendCredits, &ReceiveCredits) {
        (&self.send, &self.receive)
    }

    /// Bodies that this side sends, and landings that the peer has not given back.
    pub fn under_way(&self) -> (usize, usize) {
        (self.bodies.len(), self.landings.len())
    }

    fn handle_offer(
        &mut self,
        call: CallId,
        landing: LandingId,
        slice: RemoteSlice,
    ) -> Result<(), ProtocolError> {
        let Settings { role, local, remote, .. } = self.settings;
        if role == Role::Client {
            return Err(ProtocolError::Offer(call, "an offer for a reply that a client would send"));
        }
        // Releases that wait count too: offering and cancelling in a loop must not pile them up.
        let releases = self.outbox.releases() + self.offers.len();
        let most = usize::from(local.offers) + usize::from(remote.transfers);
        if self.offers.len() >= usize::from(local.offers) || releases >= most {
            return Err(ProtocolError::TooMany("offers"));
        }
        match self.offers.insert(call, (landing, slice)) {
            None => Ok(()),
            Some(_) => Err(ProtocolError::Offer(call, "a second offer")),
        }
    }

    fn handle_ask(&mut self, credits: Credits) -> Result<(), ProtocolError> {
        if std::mem::replace(&mut self.answering, true) {
            return Err(ProtocolError::TooMany("requests for credits"));
        }
        let given = self.send.give_back(credits);
        self.outbox.push_urgent(Item::GivenBack(given));
        Ok(())
    }

    fn note_back(&mut self, back: Option<Back>) {
        self.events.extend(back.map(|back| match back {
            Back::Landed(landed) => Event::Landed(landed),
            Back::Free(landing) => Event::Freed(landing),
        }));
    }
}
