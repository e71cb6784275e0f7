//! One side of an RDMA link: credits, messages, bodies and landings together.
//!
//! Owns [`Endpoint`]; the module's documentation has the contract. `M` is memory for one message, which only
//! the driver knows how to get. Invariants: see the parts. Here they meet: everything that consumes one of
//! the peer's receives goes out through [`Endpoint::poll_transmit`], and everything that consumed one of ours
//! comes in through [`Endpoint::handle_message`] or [`Endpoint::handle_write`]. Never: does I/O, waits, or
//! looks into a head or a body.

use std::collections::{HashMap, VecDeque};

use byway_runtime::session::{CallId, Flags, Frame, Header, Kind, Role};

use super::credit::{Credits, ReceiveCredits, SendCredits};
use super::event::{Event, NoRoom, Piece, Pushed, Settings, Transmit};
use super::incoming::Landings;
use super::message::Message;
use super::outbox::{Outbound, Outbox};
use super::outgoing::{Bodies, Due, Job};
use super::wire::{
    FRAME_ITEM_LEN, Item, LandingId, MAX_MESSAGE, NUMBERED_FRAME_LEN, PIECE_ITEM_LEN, Place, Refusal,
    SLICE_ITEM_LEN, TransferId,
};
use crate::nic::RemoteSlice;

/// Messages that may wait for credits before senders wait too: enough for the next credits to find work.
const ROOM: usize = 8;

/// One side of an RDMA link.
#[derive(Debug)]
pub struct Endpoint<M> {
    pub(super) settings: Settings,
    pub(super) send: SendCredits,
    pub(super) receive: ReceiveCredits,
    pub(super) outbox: Outbox<M>,
    pub(super) bodies: Bodies,
    pub(super) landings: Landings,
    /// Memory that the peer offered for replies.
    pub(super) offers: HashMap<CallId, (LandingId, RemoteSlice)>,
    pub(super) events: VecDeque<Event>,
    /// Whether the peer owes an answer to a request for credits.
    pub(super) asked: bool,
    /// Whether an answer to the peer's request for credits waits to be sent.
    pub(super) answering: bool,
    /// Whose turn it is, when both want to go.
    write_next: bool,
    piece_next: bool,
}

impl<M: AsMut<[u8]>> Endpoint<M> {
    /// An endpoint after both sides agreed; `None` when the offers do not fit, which their verdict should
    /// have found.
    pub fn new(settings: Settings) -> Option<Self> {
        let Settings { local, remote, limits, remote_limits, .. } = settings;
        if remote.check(remote_limits.max_head).is_err() || local.check(limits.max_head).is_err() {
            return None;
        }
        Some(Self {
            settings,
            send: SendCredits::new(Credits(remote.receive_depth.into())),
            receive: ReceiveCredits::new(Credits(local.receive_depth.into()))?,
            outbox: Outbox::new((remote.receive_size as usize).min(MAX_MESSAGE)),
            bodies: Bodies::new(remote.transfers),
            landings: Landings::new(local.transfers, remote.offers),
            offers: HashMap::new(),
            events: VecDeque::new(),
            asked: false,
            answering: false,
            write_next: false,
            piece_next: false,
        })
    }

    // ---- The session's side ----

    /// Takes a frame, and memory to offer for its reply when it opens a call. A body that comes to travel by
    /// itself must have been encoded before: encoding runs the caller's code, and what is announced must
    /// follow.
    ///
    /// # Errors
    /// For a message when [`has_room`](Self::has_room) is false.
    pub fn push(
        &mut self,
        frame: &Frame<'_>,
        reply: Option<RemoteSlice>,
        memory: impl FnOnce() -> M,
    ) -> Result<Pushed, NoRoom> {
        let Header { kind, call, head_len, body_len, .. } = frame.header;
        let offered = reply.filter(|_| kind == Kind::Open && self.may_offer());
        let offer_len = if offered.is_some() { SLICE_ITEM_LEN } else { 0 };
        let whole = FRAME_ITEM_LEN + usize::from(head_len) + body_len as usize;
        let inline = !self.travels_alone(&frame.header);
        let (mut placed, mut transfer) = (None, None);
        if !inline {
            if !self.bodies.has_room() {
                return Err(NoRoom);
            }
            placed = self.take_offer(call, body_len);
            transfer = match placed {
                Some((landing, slice)) => {
                    // A write must not be longer than its slice, and the offer may be larger than the reply.
                    let place = Place::Slice(RemoteSlice { len: body_len.into(), ..slice });
                    self.bodies.place(call, body_len, (landing, place), self.outbox.pushed())
                }
                None => self.bodies.announce(call, body_len),
            };
        }
        let offered = offered.and_then(|slice| {
            let len = u32::try_from(slice.len).ok()?;
            Some((self.landings.offer(call, len)?, slice))
        });
        let undo = Undo { landings: &mut self.landings, offered };
        let len = if inline { whole } else { NUMBERED_FRAME_LEN + usize::from(head_len) };
        self.outbox.push(len + offer_len, true, memory, |message| {
            if let Some((landing, slice)) = offered {
                message.put(&Item::Offer { call, landing, slice });
            }
            match (transfer, placed) {
                (Some(_), Some((landing, _))) => message.put_placed(landing, frame),
                (Some(transfer), None) => message.put_announced(transfer, frame),
                _ => message.put_frame(frame),
            }
        });
        let offered = undo.keep();
        self.note_ends(&frame.header, true);
        Ok(Pushed { transfer, offered: offered.map(|(landing, _)| landing) })
    }

    /// Whether a frame's body travels by itself, and so must be encoded before [`push`](Self::push).
    pub fn travels_alone(&self, header: &Header) -> bool {
        let whole = FRAME_ITEM_LEN + usize::from(header.head_len) + header.body_len as usize;
        // As if memory for the reply were always offered: one rule for all frames of a kind.
        let offer_len = if header.kind == Kind::Open { SLICE_ITEM_LEN } else { 0 };
        let fits = whole + offer_len <= self.outbox.longest_item();
        header.body_len > 0 && (header.body_len >= self.settings.large_from || !fits)
    }

    /// Whether another message is welcome.
    pub fn has_room(&self) -> bool {
        self.accepts() && self.bodies.has_room()
    }

    /// Whether a server's driver should hand over frames. It depends on credits alone: if it depended on
    /// numbers for bodies, the client's grants, which free them, could wait for receives that frames hold.
    pub fn accepts(&self) -> bool {
        self.outbox.batches() < ROOM
    }

    /// Whether memory for a reply would be offered.
    pub fn may_offer(&self) -> bool {
        self.settings.role == Role::Client && self.landings.may_offer()
    }

    /// Whether anything waits to be sent, for whatever.
    pub fn has_to_send(&self) -> bool {
        !self.outbox.is_empty() || self.bodies.len() > 0
    }

    /// Gives up everything that waits to be sent.
    #[must_use]
    pub fn close(&mut self) -> impl Sized + use<M> {
        self.outbox.close()
    }

    /// Frames that were pushed.
    pub fn position(&self) -> u64 {
        self.outbox.pushed()
    }

    /// Frames whose messages were handed out to be posted.
    pub fn delivered(&self) -> u64 {
        self.outbox.delivered()
    }

    /// Lets the probe go, before anything else.
    pub fn push_probe(&mut self, nonce: u64) {
        self.outbox.push_urgent(Item::Probe(nonce));
    }

    // ---- To the NIC ----

    /// The longest message: how much memory one must have.
    pub fn message_capacity(&self) -> usize {
        self.outbox.capacity()
    }

    /// What to post next, if credits allow. The driver has room in the send queue.
    pub fn poll_transmit(&mut self, memory: impl FnOnce() -> M) -> Option<Transmit<M>> {
        if self.send.may_send() {
            let waits = !self.outbox.is_empty();
            if (self.write_next || !waits)
                && let Some((job, due)) = self.bodies.poll_final()
            {
                self.write_next = false;
                self.send.use_one();
                self.settle(due);
                return Some(Transmit::LastWrite(job));
            }
            if waits {
                self.write_next = true;
                return Some(self.take_message(memory));
            }
        }
        (self.receive.wants_bare() && self.send.may_send_bare()).then(|| self.take_bare(memory))
    }

    fn take_message(&mut self, memory: impl FnOnce() -> M) -> Transmit<M> {
        self.send.use_one();
        self.piece_next = true;
        let waiting = self.outbox.batches() + self.bodies.finals();
        let wants_credits = waiting > self.send.available().0 as usize;
        let total = self.receive.announce();
        let (landings, bodies, answering) = (&mut self.landings, &mut self.bodies, &mut self.answering);
        let message = self.outbox.take(total, wants_credits, memory, |item, body| match item {
            Item::Release { .. } => body.into_iter().for_each(|body| bodies.handle_release_sent(body)),
            Item::Grant { transfer, .. } | Item::Refused { transfer, .. } => {
                landings.handle_answer_sent(transfer);
            }
            Item::GivenBack(_) => *answering = false,
            _ => {}
        });
        self.bodies.handle_frames_sent(self.outbox.delivered());
        Transmit::Message(message)
    }

    /// Credits and nothing else, although there may be more to say: the last credit is for this.
    fn take_bare(&mut self, memory: impl FnOnce() -> M) -> Transmit<M> {
        self.send.use_one();
        let mut memory = memory();
        let wants_credits = !self.outbox.is_empty() || self.bodies.finals() > 0;
        let total = self.receive.announce();
        let len = Message::new(memory.as_mut()).finish(total, wants_credits);
        Transmit::Message(Outbound { memory, len })
    }

    /// A body that may now be copied and written, all but its last write.
    pub fn poll_job(&mut self) -> Option<Job> {
        self.bodies.poll_job()
    }

    /// Whether the driver may still post a write for this body: asked right before each. After a release has
    /// been posted, a write would fail the queue pair.
    pub fn may_write(&mut self, transfer: TransferId) -> bool {
        self.bodies.may_write(transfer)
    }

    /// All but the last write of this body were posted. `false` when its call was over before.
    pub fn handle_staged(&mut self, transfer: TransferId) -> bool {
        self.bodies.handle_staged(transfer)
    }

    /// The next piece to be queued, when it is its turn: between two messages of frames goes at most one.
    pub fn poll_piece(&mut self) -> Option<Piece> {
        if self.outbox.batches() > 0 && !self.piece_next {
            return None;
        }
        let (job, offset) = self.bodies.next_in_pieces()?;
        let room = self.outbox.longest_item() - PIECE_ITEM_LEN;
        let len = (job.len - offset).min(u32::try_from(room).unwrap_or(u32::MAX));
        Some(Piece { transfer: job.transfer, landing: job.landing, offset, len })
    }

    /// Queues what [`poll_piece`](Self::poll_piece) returned; `fill` writes its bytes.
    pub fn push_piece(&mut self, piece: Piece, memory: impl FnOnce() -> M, fill: impl FnOnce(&mut [u8])) {
        self.piece_next = false;
        let len = PIECE_ITEM_LEN + piece.len as usize;
        self.outbox.push(len, false, memory, |message| message.put_piece(piece.landing, piece.len, fill));
        let due = self.bodies.handle_piece_queued(piece.len);
        self.settle(due);
    }

    /// Acts on frames that end a call, whether they come or go: what is for nobody any more is not sent,
    /// granted or kept.
    pub(super) fn note_ends(&mut self, header: &Header, outgoing: bool) {
        let (call, ends) = (header.call, header.flags.contains(Flags::END));
        let (sending, receiving) = match (self.settings.role, header.kind, outgoing) {
            (_, Kind::Reset, _) => (true, true),
            // The server has ended the call: what the client still has to say is of no use.
            (Role::Client, Kind::Data, false) => (ends, false),
            // What the server sent before its end still has to arrive.
            (Role::Server, Kind::Data, true) => (false, ends),
            _ => (false, false),
        };
        if sending {
            self.bodies.cancel(call).into_iter().for_each(|due| self.settle(due));
        }
        if receiving {
            for transfer in self.landings.handle_over(call) {
                self.outbox.push_urgent(Item::Refused { transfer, reason: Refusal::Over });
            }
            // No further reply can use it.
            if let Some((landing, _)) = self.offers.remove(&call) {
                self.outbox.push_release(landing, None);
            }
        }
    }

    /// The offer for this call's reply, if the body fits; one that does not fit is released.
    fn take_offer(&mut self, call: CallId, len: u32) -> Option<(LandingId, RemoteSlice)> {
        let (landing, slice) = self.offers.remove(&call)?;
        if slice.len < len.into() {
            self.outbox.push_release(landing, None);
            return None;
        }
        Some((landing, slice))
    }

    pub(super) fn settle(&mut self, due: Due) {
        if let Some((landing, transfer)) = due.release {
            self.outbox.push_release(landing, Some(transfer));
        }
        if let Some((transfer, ended)) = due.ended {
            self.events.push_back(Event::Ended(transfer, ended));
        }
    }
}

/// Takes an offer back when the frame that it was to ride on could not be encoded.
struct Undo<'a> {
    landings: &'a mut Landings,
    offered: Option<(LandingId, RemoteSlice)>,
}

impl Undo<'_> {
    fn keep(mut self) -> Option<(LandingId, RemoteSlice)> {
        self.offered.take()
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some((landing, _)) = self.offered {
            self.landings.withdraw(landing);
        }
    }
}
