//! The requests that a queue pair has handed to the device, and what each of them owns.
//!
//! Owns payloads from posting to completion. Invariant: the ring holds exactly the requests that the device has
//! accepted and not finished, in order; a device finishes them in order, so a report of one finishes all before it.
//! At least one request in half a queue is signalled, so a full ring always empties.
//! Never touches the queue pair: the caller passes the operation that posts.

use std::collections::VecDeque;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ffi::*;
use super::window::Window;
use super::work_id;
use crate::memory::Buffer;
use crate::nic::{
    Completion, Failure, Kind, NicError, Operation, Payload, Piece, QueuePairId, Request, Status, Success,
    WorkId,
};

/// What the queue pair granted.
#[derive(Debug, Clone, Copy)]
pub(super) struct SendLimits {
    pub(super) depth: u32,
    pub(super) pieces_max: u32,
    pub(super) inline_max: u32,
    pub(super) domain: u64,
}

pub(super) struct SendQueue {
    id: u32,
    limits: SendLimits,
    state: Mutex<State>,
}

struct State {
    ring: VecDeque<Entry>,
    /// The position of the ring's first entry.
    first: u32,
    /// Requests since the last signalled one.
    unsignaled: u32,
    scratch: Scratch,
}

/// Reused storage for the C structs of one posting call; its pointers mean nothing between calls.
#[derive(Default)]
struct Scratch {
    requests: Vec<ibv_send_wr>,
    /// How many of `requests` belong to this call; the others keep their place, since the struct is large.
    used: usize,
    pieces: Vec<ibv_sge>,
}

/// A request that the device has.
pub(super) struct Entry {
    pub(super) work: WorkId,
    pub(super) kind: Kind,
    pub(super) payload: Payload<'static>,
    pub(super) window: Option<Arc<Window>>,
    /// Of a read or an atomic: how many bytes the device writes into the payload.
    pub(super) arriving: u32,
}

/// What posting tells: how many requests of the list were accepted, and why not all.
pub(super) type Posted = (usize, Option<NicError>);

impl SendQueue {
    pub(super) fn new(id: u32, limits: SendLimits) -> Self {
        Self {
            id,
            limits,
            state: Mutex::new(State {
                ring: VecDeque::with_capacity(limits.depth as usize),
                first: 0,
                unsignaled: 0,
                scratch: Scratch::default(),
            }),
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    pub(super) fn limits(&self) -> SendLimits {
        self.limits
    }

    /// Hands as many requests as there is room for to `post`, as one linked list.
    pub(super) fn post(
        &self,
        batch: &mut Vec<Request<'_>>,
        post: impl FnOnce(*mut ibv_send_wr, usize) -> Posted,
    ) -> Result<(), NicError> {
        let mut state = self.lock();
        let state = &mut *state;
        state.scratch.clear();
        let room = self.room(state);
        let mut refused = (batch.len() > room).then_some(NicError::Full);
        for request in batch.iter().take(room) {
            if let Err(error) = state.scratch.push(&self.limits, request) {
                refused = Some(error);
                break;
            }
        }
        let built = state.scratch.used;
        if built == 0 {
            return refused.map_or(Ok(()), Err);
        }
        self.number(state);
        let (accepted, failed) = post(state.scratch.link(), built);
        for (request, wr) in batch.drain(..accepted.min(built)).zip(&state.scratch.requests) {
            let is_signaled = wr.send_flags & IBV_SEND_SIGNALED != 0;
            state.unsignaled = if is_signaled { 0 } else { state.unsignaled + 1 };
            state.ring.push_back(Entry::from_request(request));
        }
        failed.or(refused).map_or(Ok(()), Err)
    }

    /// Numbers the built requests, and signals where half a queue would go by without a report.
    fn number(&self, state: &mut State) {
        let (mut position, mut unsignaled) = (state.next_position(), state.unsignaled);
        for wr in &mut state.scratch.requests[..state.scratch.used] {
            wr.wr_id = work_id::join(self.id, position);
            position = position.wrapping_add(1);
            unsignaled += 1;
            if unsignaled >= self.limits.depth / 2 {
                wr.send_flags |= IBV_SEND_SIGNALED;
            }
            if wr.send_flags & IBV_SEND_SIGNALED != 0 {
                unsignaled = 0;
            }
        }
    }

    /// Hands one request to `post`; `entry` is what it owns.
    pub(super) fn post_one(
        &self,
        mut request: ibv_send_wr,
        mut pieces: Vec<ibv_sge>,
        entry: Entry,
        post: impl FnOnce(*mut ibv_send_wr, usize) -> Posted,
    ) -> Result<(), (NicError, Entry)> {
        let mut state = self.lock();
        if self.room(&state) == 0 {
            return Err((NicError::Full, entry));
        }
        request.wr_id = work_id::join(self.id, state.next_position());
        request.send_flags |= IBV_SEND_SIGNALED;
        request.sg_list = pieces.as_mut_ptr();
        request.num_sge = pieces.len() as i32;
        match post(&mut request, 1) {
            (0, error) => Err((error.unwrap_or(NicError::Full), entry)),
            // With an error too: then the device may have it, and it comes back flushed.
            _ => {
                state.unsignaled = 0;
                state.ring.push_back(entry);
                Ok(())
            }
        }
    }

    /// Finishes the request at `position` and, since requests finish in order, all before it.
    /// `false` when there is no such request.
    pub(super) fn complete(
        &self,
        position: u32,
        outcome: Result<Success, Failure>,
        queue_pair: Option<QueuePairId>,
        into: &mut Vec<Completion>,
    ) -> bool {
        let mut found = false;
        while let Some((entry, is_last)) = self.pop_through(position) {
            // A failed request is always reported, signalled or not; so those before this one succeeded.
            let failure = outcome.err().filter(|_| is_last);
            // Outside the lock: a window locks itself around posting, so the other order would deadlock.
            into.push(entry.finish(queue_pair, failure));
            found = true;
            if is_last {
                break;
            }
        }
        found
    }

    /// The oldest request, if the one at `position` is in the ring, and whether it is that one.
    fn pop_through(&self, position: u32) -> Option<(Entry, bool)> {
        let mut state = self.lock();
        let ahead = position.wrapping_sub(state.first) as usize;
        if ahead >= state.ring.len() {
            return None;
        }
        let entry = state.ring.pop_front()?;
        state.first = state.first.wrapping_add(1);
        Some((entry, ahead == 0))
    }

    /// Everything that is left when the device is done with the queue pair.
    pub(super) fn flush(&self, queue_pair: Option<QueuePairId>, into: &mut Vec<Completion>) {
        let left = std::mem::take(&mut self.lock().ring);
        let failure = Some(Failure { status: Status::Flushed, vendor: 0 });
        into.extend(left.into_iter().map(|entry| entry.finish(queue_pair, failure)));
    }

    fn room(&self, state: &State) -> usize {
        (self.limits.depth as usize).saturating_sub(state.ring.len())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock, so the state is whole even if the flag says otherwise.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn next_position(&self) -> u32 {
        self.first.wrapping_add(self.ring.len() as u32)
    }
}

impl Scratch {
    fn clear(&mut self) {
        self.used = 0;
        self.pieces.clear();
    }

    fn push(&mut self, limits: &SendLimits, request: &Request<'_>) -> Result<(), NicError> {
        let before = self.pieces.len();
        let described = self
            .gather(limits, &request.payload)
            .and_then(|inline| self.describe(limits, request, before, inline));
        if described.is_err() {
            self.pieces.truncate(before);
        }
        described
    }

    /// Fills the next request, whose pieces are those from `first_piece` on.
    fn describe(
        &mut self,
        limits: &SendLimits,
        request: &Request<'_>,
        first_piece: usize,
        inline: bool,
    ) -> Result<(), NicError> {
        let pieces = &self.pieces[first_piece..];
        let len: u64 = pieces.iter().map(|piece| u64::from(piece.length)).sum();
        let (opcode, immediate, to) = match request.operation {
            Operation::Send { immediate: None } => (IBV_WR_SEND, None, None),
            Operation::Send { immediate } => (IBV_WR_SEND_WITH_IMM, immediate, None),
            Operation::Write { to, immediate: None } => (IBV_WR_RDMA_WRITE, None, Some(to)),
            Operation::Write { to, immediate } => (IBV_WR_RDMA_WRITE_WITH_IMM, immediate, Some(to)),
        };
        if to.is_some_and(|to| len > to.len) {
            return Err(NicError::Invalid("a write longer than the memory it goes to"));
        }
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        if self.used == self.requests.len() {
            self.requests.push(blank(opcode));
        }
        let wr = &mut self.requests[self.used];
        wr.opcode = opcode;
        wr.num_sge = pieces.len() as i32;
        wr.imm_or_key = immediate.unwrap_or(0).to_be();
        wr.send_flags = flag(request.signaled, IBV_SEND_SIGNALED)
            | flag(request.solicited, IBV_SEND_SOLICITED)
            | flag(inline || len <= u64::from(limits.inline_max), IBV_SEND_INLINE);
        if let Some(to) = to {
            wr.wr.rdma = wr_rdma { remote_addr: to.address, rkey: to.key };
        }
        self.used += 1;
        Ok(())
    }

    /// Appends the payload's pieces; `true` when they must be sent inline.
    fn gather(&mut self, limits: &SendLimits, payload: &Payload<'_>) -> Result<bool, NicError> {
        match payload {
            Payload::Empty => {}
            Payload::Inline(bytes) => {
                if bytes.len() > limits.inline_max as usize {
                    return Err(NicError::Invalid("more inline bytes than the queue pair takes"));
                }
                self.pieces.push(ibv_sge {
                    addr: bytes.as_ptr() as u64,
                    length: bytes.len() as u32,
                    lkey: 0,
                });
                return Ok(true);
            }
            Payload::One(piece) => self.pieces.push(describe_piece(limits, piece)?),
            Payload::Gather(pieces) => {
                if pieces.len() > limits.pieces_max as usize {
                    return Err(NicError::Invalid("more pieces than the queue pair gathers"));
                }
                for piece in pieces {
                    self.pieces.push(describe_piece(limits, piece)?);
                }
            }
        }
        Ok(false)
    }

    /// Chains the requests and points each at its pieces, now that neither list grows any more.
    fn link(&mut self) -> *mut ibv_send_wr {
        let base = self.requests.as_mut_ptr();
        let mut piece = self.pieces.as_mut_ptr();
        let count = self.used;
        for (index, request) in self.requests[..count].iter_mut().enumerate() {
            let last = index + 1 == count;
            request.next = if last { ptr::null_mut() } else { base.wrapping_add(index + 1) };
            request.sg_list = piece;
            piece = piece.wrapping_add(request.num_sge as usize);
        }
        self.requests.as_mut_ptr()
    }
}

fn describe_piece(limits: &SendLimits, piece: &Piece) -> Result<ibv_sge, NicError> {
    let (addr, len, lkey, domain) = match piece {
        Piece::Owned(buffer) => {
            (buffer.address(), buffer.filled().len(), buffer.local_key(), buffer.domain())
        }
        Piece::Shared(view) => (view.address(), view.bytes().len(), view.local_key(), view.domain()),
    };
    if domain != limits.domain {
        return Err(NicError::ForeignMemory);
    }
    let length = u32::try_from(len).map_err(|_| NicError::Invalid("a piece of 4 GiB or more"))?;
    Ok(ibv_sge { addr, length, lkey })
}

/// A request with every field empty but the opcode.
pub(super) fn blank(opcode: u32) -> ibv_send_wr {
    ibv_send_wr {
        wr_id: 0,
        next: ptr::null_mut(),
        sg_list: ptr::null_mut(),
        num_sge: 0,
        opcode,
        send_flags: 0,
        imm_or_key: 0,
        wr: wr_target { atomic: wr_atomic { remote_addr: 0, compare_add: 0, swap: 0, rkey: 0 } },
        xrc_remote_srqn: 0,
        bind_mw: wr_bind_mw {
            mw: ptr::null_mut(),
            rkey: 0,
            bind_info: ibv_mw_bind_info { mr: ptr::null_mut(), addr: 0, length: 0, mw_access_flags: 0 },
        },
    }
}

impl Entry {
    fn from_request(request: Request<'_>) -> Self {
        let kind = match request.operation {
            Operation::Send { .. } => Kind::Send,
            Operation::Write { .. } => Kind::Write,
        };
        let payload = match request.payload {
            // Inline bytes were copied while posting.
            Payload::Empty | Payload::Inline(_) => Payload::Empty,
            Payload::One(piece) => Payload::One(piece),
            Payload::Gather(pieces) => Payload::Gather(pieces),
        };
        Self { work: request.work, kind, payload, window: None, arriving: 0 }
    }

    fn finish(mut self, queue_pair: Option<QueuePairId>, failure: Option<Failure>) -> Completion {
        if let Some(window) = &self.window {
            match (self.kind, failure) {
                (Kind::Invalidate, None) => {
                    let buffer = window.invalidated();
                    self.payload = buffer.map_or(Payload::Empty, Payload::buffer);
                }
                (Kind::Invalidate, Some(_)) => window.still_bound(),
                _ => {}
            }
        }
        if let (Payload::One(Piece::Owned(buffer)), None, 1..) = (&mut self.payload, failure, self.arriving) {
            set_arrived(buffer, self.arriving);
        }
        Completion {
            queue_pair,
            work: self.work,
            kind: self.kind,
            outcome: failure.map_or(Ok(Success { len: self.arriving, immediate: None }), Err),
            payload: self.payload,
        }
    }
}

/// Makes what arrived the content; a driver that claims more than the buffer holds is not believed.
pub(super) fn set_arrived(buffer: &mut Buffer, len: u32) {
    buffer.set_filled(buffer.capacity().min(len as usize));
}
