//! The sending half of an RDMA link, as the session sees it.
//!
//! Owns [`RdmaLink`]: the protocol's [`Endpoint`] and what belongs to it by number: bodies that wait to be written, and
//! memory that the peer may write. It lives under the connection's lock; the driver, which has the NIC, does everything
//! that takes long. Memory for replies is bound before it is needed: the driver keeps a small stock, of the sizes that
//! calls of late asked for. Invariant: what is encoded here is encoded once. Never: touches the NIC.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::BytesMut;
use byway_runtime::link::Link;
use byway_runtime::output::Segments;
use byway_runtime::session::{Frame, Header, Kind};

use crate::nic::{RemoteSlice, WindowId};
use crate::pool::Pool;
use crate::protocol::history::History;
use crate::protocol::{Endpoint, LandingId, TransferId};
use crate::wire::Slip;

/// Registered memory for messages that a link keeps at hand; what it needs beyond is copied once more.
const SPARE: usize = 4;

/// Bound memory for replies that a link keeps at hand: as many large replies as come at once without a round trip.
const STOCK: usize = 16;

/// Largest reply for which memory is bound before it is announced.
const OFFER_MAX: u32 = 4 << 20;

/// Where a body goes that the peer sends.
#[derive(Debug)]
pub(crate) enum Target {
    /// Into memory behind a window.
    Window(WindowId),
    /// Into this, piece by piece.
    Pieces(BytesMut),
}

/// Memory behind a window, for a reply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stocked {
    pub(crate) window: WindowId,
    pub(crate) slice: RemoteSlice,
}

/// The sending half of an RDMA link.
#[derive(Debug)]
pub struct RdmaLink {
    pub(crate) endpoint: Endpoint<Slip>,
    pool: Arc<Pool>,
    /// Encoded bodies that travel by themselves, until the driver takes them.
    pub(crate) bodies: HashMap<TransferId, Segments>,
    pub(crate) targets: HashMap<LandingId, Target>,
    spare: Vec<Slip>,
    history: History,
    /// The method of each open call, by slot.
    methods: Vec<u64>,
    pub(crate) stock: Vec<Stocked>,
    /// Sizes of which there should be more in stock.
    wanted: Vec<u32>,
    /// Whether nothing is sent any more.
    closed: bool,
}

impl RdmaLink {
    pub(crate) fn new(endpoint: Endpoint<Slip>, pool: Arc<Pool>, large_from: u32) -> Self {
        Self {
            endpoint,
            pool,
            bodies: HashMap::new(),
            targets: HashMap::new(),
            spare: Vec::new(),
            history: History::new(large_from, OFFER_MAX),
            methods: Vec::new(),
            stock: Vec::new(),
            wanted: Vec::new(),
            closed: false,
        }
    }

    /// Memory for one message.
    pub(crate) fn slip(spare: &mut Vec<Slip>, pool: &Arc<Pool>, capacity: usize) -> Slip {
        spare.pop().unwrap_or_else(|| match pool.free_staging(capacity) {
            Some(staging) => Slip::Staging(staging),
            None => Slip::Plain(vec![0; capacity]),
        })
    }

    /// What is posted next, if credits allow.
    pub(crate) fn poll_transmit(&mut self) -> Option<crate::protocol::Transmit<Slip>> {
        let capacity = self.endpoint.message_capacity();
        let (spare, pool) = (&mut self.spare, &self.pool);
        self.endpoint.poll_transmit(|| Self::slip(spare, pool, capacity))
    }

    /// Queues the next piece of a body that travels in pieces; whether there was one.
    pub(crate) fn push_piece(&mut self) -> bool {
        let Some(piece) = self.endpoint.poll_piece() else { return false };
        let capacity = self.endpoint.message_capacity();
        let (spare, pool, bodies) = (&mut self.spare, &self.pool, &mut self.bodies);
        let memory = || Self::slip(spare, pool, capacity);
        self.endpoint.push_piece(piece, memory, |to| {
            let body = bodies.get_mut(&piece.transfer).expect("a body is kept until it has ended");
            bytes::Buf::copy_to_slice(body, to);
        });
        true
    }

    /// Takes back the memory of messages that were copied.
    pub(crate) fn give_back(&mut self, slips: &mut Vec<Slip>) {
        let room = SPARE.saturating_sub(self.spare.len());
        self.spare.extend(slips.drain(..).take(room));
    }

    /// Whether memory is kept only to be at hand.
    pub(crate) fn has_spare(&self) -> bool {
        !self.spare.is_empty()
    }

    /// Moves what is kept only to be at hand to `idle`, to be dropped without the connection's lock: a connection that
    /// sleeps keeps nothing that others may wait for.
    pub(crate) fn shrink(&mut self, idle: &mut Vec<Slip>) {
        idle.append(&mut self.spare);
    }

    /// Takes the memory that is bound for replies: nobody calls.
    pub(crate) fn take_stock(&mut self) -> Vec<Stocked> {
        self.wanted.clear();
        std::mem::take(&mut self.stock)
    }

    /// The driver is gone and nothing will be sent any more: gives up all memory, to be dropped without the
    /// connection's lock, which callers may hold for long.
    #[must_use]
    pub(crate) fn close(&mut self) -> impl Sized + use<> {
        self.closed = true;
        self.targets.clear();
        self.stock.clear();
        (self.endpoint.close(), std::mem::take(&mut self.bodies), std::mem::take(&mut self.spare))
    }

    /// Notes a message that answers a call.
    pub(crate) fn note_reply(&mut self, header: &Header) {
        if header.kind == Kind::Data
            && let Some(method) = self.methods.get(usize::from(header.call.slot()))
        {
            self.history.note(*method, header.body_len);
        }
    }

    /// Sizes for which memory is to be bound and put into [`stock`](Self::stock).
    pub(crate) fn take_wanted(&mut self) -> Vec<u32> {
        let room = STOCK.saturating_sub(self.stock.len());
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.truncate(room);
        wanted
    }

    /// Memory in stock for the reply to the call that this frame opens; its place in the stock.
    fn reply_for(&mut self, frame: &Frame<'_>) -> Option<usize> {
        let path = frame.path?;
        let method = History::method(path.as_bytes());
        let slot = usize::from(frame.header.call.slot());
        if slot >= self.methods.len() {
            self.methods.resize(slot + 1, 0);
        }
        self.methods[slot] = method;
        let len = self.history.predict(method).filter(|_| self.endpoint.may_offer())?;
        // Whether one is taken or there is none: there should be another.
        if self.wanted.len() < STOCK {
            self.wanted.push(len);
        }
        let fits = |stocked: &Stocked| stocked.slice.len >= u64::from(len);
        let candidates = self.stock.iter().enumerate().filter(|(_, stocked)| fits(stocked));
        candidates.min_by_key(|(_, stocked)| stocked.slice.len).map(|(index, _)| index)
    }
}

impl Link for RdmaLink {
    fn push(&mut self, frame: &Frame<'_>) {
        if self.closed {
            return;
        }
        let reply = self.reply_for(frame);
        let body = self.endpoint.travels_alone(&frame.header).then(|| {
            let mut segments = Segments::default();
            segments.append(|output| frame.body.iter().for_each(|body| body.encode(output)));
            segments
        });
        let capacity = self.endpoint.message_capacity();
        let (spare, pool) = (&mut self.spare, &self.pool);
        let slice = reply.map(|index| self.stock[index].slice);
        let pushed = self.endpoint.push(frame, slice, || Self::slip(spare, pool, capacity));
        let pushed = pushed.expect("the session asks whether there is room");
        if let (Some(index), Some(landing)) = (reply, pushed.offered) {
            self.targets.insert(landing, Target::Window(self.stock.swap_remove(index).window));
        }
        if let (Some(transfer), Some(body)) = (pushed.transfer, body) {
            debug_assert_eq!(
                body.len(),
                frame.header.body_len as usize,
                "a message has the length it announced"
            );
            self.bodies.insert(transfer, body);
        }
    }

    fn has_room(&self) -> bool {
        self.endpoint.has_room()
    }

    fn position(&self) -> u64 {
        self.endpoint.position()
    }
}
