//! Receives that the device may fill: a queue pair's own, or those that queue pairs share.
//!
//! Owns posted buffers. Invariant: a slot is taken from the moment the device accepts its buffer until the device
//! reports it, and only that report frees it; so a slot's number names one buffer at a time. Receives of a shared
//! queue may complete in any order.
#![expect(unsafe_code, reason = "foreign calls")]

use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

use super::completion::WorkCompletion;
use super::error::{VerbsError, check};
use super::ffi::*;
use super::region::ProtectionDomain;
use super::send_queue::{Posted, set_arrived};
use super::work_id;
use crate::memory::Buffer;
use crate::nic::{Completion, Failure, Kind, NicError, Payload, QueuePairId, Receive, Status, WorkId};

/// The slots of one receive queue. Whoever owns it vouches for its use from several threads: the raw pointers in the
/// reused storage are written and read within one call, under the lock.
pub(super) struct ReceiveSlots {
    id: u32,
    domain: u64,
    state: Mutex<State>,
}

struct State {
    slots: Vec<Option<(WorkId, Buffer)>>,
    free: Vec<u32>,
    /// Reused storage for the C structs of one posting call; its pointers mean nothing between calls.
    requests: Vec<ibv_recv_wr>,
    pieces: Vec<ibv_sge>,
}

impl ReceiveSlots {
    pub(super) fn new(id: u32, depth: u32, domain: u64) -> Self {
        Self {
            id,
            domain,
            state: Mutex::new(State {
                slots: (0..depth).map(|_| None).collect(),
                // The lowest number last, so that it is used first.
                free: (0..depth).rev().collect(),
                requests: Vec::new(),
                pieces: Vec::new(),
            }),
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    /// Hands as many buffers as there are slots for to `post`, as one linked list.
    pub(super) fn post(
        &self,
        batch: &mut Vec<Receive>,
        post: impl FnOnce(*mut ibv_recv_wr, usize) -> Posted,
    ) -> Result<(), NicError> {
        let mut state = self.lock();
        let state = &mut *state;
        let room = state.free.len();
        let mut refused = (batch.len() > room).then_some(NicError::Full);
        state.requests.clear();
        state.pieces.clear();
        for receive in batch.iter().take(room) {
            let Some(piece) = self.describe(&receive.buffer) else {
                refused = Some(NicError::ForeignMemory);
                break;
            };
            state.pieces.push(piece);
        }
        let count = state.pieces.len();
        if count == 0 {
            return refused.map_or(Ok(()), Err);
        }
        state.link(self.id);
        let (accepted, failed) = post(state.requests.as_mut_ptr(), count);
        for receive in batch.drain(..accepted.min(count)) {
            let slot = state.free.pop().expect("no more were posted than there are free slots");
            state.slots[slot as usize] = Some((receive.work, receive.buffer));
        }
        failed.or(refused).map_or(Ok(()), Err)
    }

    fn describe(&self, buffer: &Buffer) -> Option<ibv_sge> {
        (buffer.domain() == self.domain).then(|| ibv_sge {
            addr: buffer.address(),
            length: u32::try_from(buffer.capacity()).unwrap_or(u32::MAX),
            lkey: buffer.local_key(),
        })
    }

    /// Turns a report into the completion of the receive that it names; `false` when there is no such receive.
    pub(super) fn complete(
        &self,
        report: &WorkCompletion,
        queue_pair: Option<QueuePairId>,
        into: &mut Vec<Completion>,
    ) -> bool {
        let Some((work, mut buffer)) = self.lock().take(report.position()) else {
            return false;
        };
        let outcome = report.outcome();
        let by_write = outcome.is_ok() && report.is_receive_write();
        let arrived = if by_write { 0 } else { outcome.map_or(0, |success| success.len) };
        set_arrived(&mut buffer, arrived);
        into.push(Completion {
            queue_pair,
            work,
            kind: if by_write { Kind::ReceiveWrite } else { Kind::Receive },
            outcome,
            payload: Payload::buffer(buffer),
        });
        true
    }

    /// Hands the buffer of a reported receive to `post` once more, under the number it had. If the device refuses, the
    /// slot keeps it, unused.
    fn repost(&self, slot: u32, post: impl FnOnce(*mut ibv_recv_wr, usize) -> Posted) {
        let mut state = self.lock();
        let state = &mut *state;
        let taken = state.slots.get(slot as usize).and_then(Option::as_ref);
        let Some(piece) = taken.and_then(|(_, buffer)| self.describe(buffer)) else { return };
        state.requests.clear();
        state.pieces.clear();
        state.pieces.push(piece);
        state.requests.push(ibv_recv_wr {
            wr_id: work_id::join(self.id, slot),
            next: ptr::null_mut(),
            sg_list: state.pieces.as_mut_ptr(),
            num_sge: 1,
        });
        post(state.requests.as_mut_ptr(), 1);
    }

    /// Everything that is left when the device is done with the queue.
    pub(super) fn flush(&self, queue_pair: Option<QueuePairId>, into: &mut Vec<Completion>) {
        let mut state = self.lock();
        let left = state.slots.iter_mut().filter_map(Option::take);
        into.extend(left.map(|(work, mut buffer)| {
            buffer.set_filled(0);
            Completion {
                queue_pair,
                work,
                kind: Kind::Receive,
                outcome: Err(Failure { status: Status::Flushed, vendor: 0 }),
                payload: Payload::buffer(buffer),
            }
        }));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock, so the state is whole even if the flag says otherwise.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take(&mut self, slot: u32) -> Option<(WorkId, Buffer)> {
        let taken = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(taken)
    }

    /// Builds one request for each piece and chains them, now that the pieces do not move any more. Slots are used
    /// from the end of the free list.
    fn link(&mut self, queue: u32) {
        let count = self.pieces.len();
        let pieces = self.pieces.as_mut_ptr();
        let slots = self.free.iter().rev();
        self.requests.extend(slots.take(count).enumerate().map(|(index, &slot)| ibv_recv_wr {
            wr_id: work_id::join(queue, slot),
            next: ptr::null_mut(),
            sg_list: pieces.wrapping_add(index),
            num_sge: 1,
        }));
        let base = self.requests.as_mut_ptr();
        for (index, request) in self.requests[..count - 1].iter_mut().enumerate() {
            request.next = base.wrapping_add(index + 1);
        }
    }
}

/// How many requests of a list the provider took, from its result and the first one that it refused.
/// A provider that refuses but does not name one of ours is taken to have accepted all: their buffers are then kept
/// until the queue is destroyed, which is safe, while giving them back might not be.
pub(super) fn accepted<T>(
    code: i32,
    first: *const T,
    refused: *const T,
    count: usize,
    verb: &'static str,
    device: &str,
) -> Posted {
    let Err(error) = check(code, verb, || device.to_owned()) else {
        return (count, None);
    };
    let offset = (refused as usize).wrapping_sub(first as usize) / size_of::<T>();
    let taken = offset.min(count);
    // A full queue is no failure, whatever our own count says: some devices free entries late.
    let error = if error.is_out_of_memory() { NicError::Full } else { NicError::Device(Box::new(error)) };
    (taken, Some(error))
}

/// Receives that many queue pairs consume.
pub struct SharedReceiveQueue {
    pub(super) raw: NonNull<ibv_srq>,
    domain: Arc<ProtectionDomain>,
    post: PostSrqRecv,
    pub(super) slots: ReceiveSlots,
    depth: u32,
}

// SAFETY: providers lock their shared receive queues.
unsafe impl Send for SharedReceiveQueue {}
// SAFETY: as above.
unsafe impl Sync for SharedReceiveQueue {}

impl SharedReceiveQueue {
    /// Creates a queue for `depth` receives.
    pub fn create(domain: &Arc<ProtectionDomain>, depth: u32) -> Result<Arc<Self>, VerbsError> {
        let context = &domain.context;
        let object = || format!("a shared queue of {depth} receives on {}", context.name());
        let exhausted =
            |code| VerbsError::new("ibv_create_srq", object(), io::Error::from_raw_os_error(code));
        let post = context.ops().post_srq_recv.ok_or_else(|| exhausted(libc::EOPNOTSUPP))?;
        let id = work_id::new_queue().ok_or_else(|| exhausted(libc::ENOSPC))?;
        let mut attributes = ibv_srq_init_attr {
            srq_context: ptr::null_mut(),
            attr: ibv_srq_attr { max_wr: depth, max_sge: 1, srq_limit: 0 },
        };
        // SAFETY: the domain is alive and the attributes are complete.
        let raw = unsafe { (context.library.ibv_create_srq)(domain.raw.as_ptr(), &mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::from_errno("ibv_create_srq", object()))?;
        Ok(Arc::new(Self {
            raw,
            domain: Arc::clone(domain),
            post,
            slots: ReceiveSlots::new(id, depth, domain.id()),
            depth,
        }))
    }

    /// How many receives fit.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Posts receives, in order. On an error those not taken are still in `batch`.
    pub fn post(&self, batch: &mut Vec<Receive>) -> Result<(), NicError> {
        self.slots.post(batch, |first, count| self.post_list(first, count))
    }

    /// Puts the receive that a report is about back into the queue, as if it had just been posted.
    pub(super) fn repost(&self, report: WorkCompletion) {
        if report.queue() == self.slots.id() {
            self.slots.repost(report.position(), |first, count| self.post_list(first, count));
        }
    }

    fn post_list(&self, first: *mut ibv_recv_wr, count: usize) -> Posted {
        let mut refused = ptr::null_mut();
        // SAFETY: the list is linked and complete; each buffer it names moves into a slot or is in it, where it stays
        // until the device reports it or the queue is destroyed.
        let code = unsafe { (self.post)(self.raw.as_ptr(), first, &mut refused) };
        accepted(code, first, refused, count, "ibv_post_srq_recv", self.domain.context.name())
    }

    /// Asks for one event when fewer than `limit` receives are left.
    pub fn set_low_mark(&self, limit: u32) -> Result<(), VerbsError> {
        let mut attributes = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
        let modify = self.domain.context.library.ibv_modify_srq;
        // SAFETY: the queue is alive, and the mask names the one field that is set.
        let code = unsafe { modify(self.raw.as_ptr(), &mut attributes, IBV_SRQ_LIMIT) };
        check(code, "ibv_modify_srq", || format!("a low mark of {limit}"))
    }

    /// Appends the completion that a report of one of this queue's receives tells of; gives any other report back.
    /// `queue_pair` is the caller's name of the queue pair that the report names.
    pub fn complete(
        &self,
        report: WorkCompletion,
        queue_pair: Option<QueuePairId>,
        into: &mut Vec<Completion>,
    ) -> Result<(), WorkCompletion> {
        match report.queue() == self.slots.id() && self.slots.complete(&report, queue_pair, into) {
            true => Ok(()),
            false => Err(report),
        }
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: this is the last owner: every queue pair on the queue held an `Arc` of it.
        let code = unsafe { (self.domain.context.library.ibv_destroy_srq)(self.raw.as_ptr()) };
        if code != 0 {
            // The device may still write into what is posted.
            let mut left = Vec::new();
            self.slots.flush(None, &mut left);
            std::mem::forget(left);
        }
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedReceiveQueue({} on {})", self.depth, self.domain.context.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_in_the_middle_keeps_what_came_before() {
        let list = [0u64; 4];
        let (taken, error) = accepted(libc::ENOMEM, &list[0], &list[2], 4, "verb", "device");
        assert_eq!(taken, 2);
        assert!(matches!(error, Some(NicError::Full)));
        let (taken, error) = accepted(libc::EINVAL, &list[0], &list[0], 4, "verb", "device");
        assert_eq!(taken, 0);
        assert!(matches!(error, Some(NicError::Device(_))));
        assert!(matches!(accepted(0, &list[0], ptr::null(), 4, "verb", "device"), (4, None)));
    }

    #[test]
    fn a_refusal_that_names_no_request_of_ours_keeps_all_buffers() {
        let list = [0u64; 4];
        assert_eq!(accepted(libc::EIO, &list[0], ptr::null(), 4, "verb", "device").0, 4);
    }
}
