//! Completion queues and the channel that wakes whoever sleeps on them.
//!
//! Owns the device's reports. Invariant: a [`WorkCompletion`] exists once per report of the device and cannot be made
//! or copied elsewhere, so it is the proof with which a queue releases what its request owned. Every event taken from
//! a channel is acknowledged at once, so destroying a completion queue never waits. Never interprets a work request's
//! number: the queue that issued it does.
#![expect(unsafe_code, reason = "foreign calls")]

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::device::{Context, set_nonblocking};
use super::error::{VerbsError, check};
use super::ffi::*;
use crate::nic::{Failure, Status, Success};

/// Wakes a sleeper: its descriptor is readable when an armed completion queue has news.
pub struct CompletionChannel {
    raw: NonNull<ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: libibverbs allows calls on a channel from any thread.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    /// Creates a channel whose descriptor never blocks.
    pub fn create(context: &Arc<Context>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.library.ibv_create_comp_channel)(context.raw.as_ptr()) };
        let raw = NonNull::new(raw)
            .ok_or_else(|| VerbsError::from_errno("ibv_create_comp_channel", context.name()))?;
        let channel = Self { raw, context: Arc::clone(context) };
        set_nonblocking(channel.as_fd())
            .map_err(|source| VerbsError::new("fcntl", "a completion channel", source))?;
        Ok(Arc::new(channel))
    }

    /// Sleeps until an event waits, at most for `limit`; tells whether one does. For programs without an event loop,
    /// and the only call of this layer that waits.
    pub fn wait(&self, limit: Duration) -> Result<bool, VerbsError> {
        let end = Instant::now() + limit;
        loop {
            let mut entry = libc::pollfd { fd: self.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
            let left = end.saturating_duration_since(Instant::now());
            let left_ms = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
            // SAFETY: one entry, writable for the duration of the call.
            match unsafe { libc::poll(&mut entry, 1, left_ms) } {
                0 => return Ok(false),
                1.. => return Ok(true),
                _ => {
                    let error = std::io::Error::last_os_error();
                    if error.kind() != std::io::ErrorKind::Interrupted {
                        return Err(VerbsError::new("poll", "a completion channel", error));
                    }
                }
            }
        }
    }

    /// Takes and acknowledges every waiting event; returns how many there were. All of them, because an edge-triggered
    /// poller is not told again about those left behind.
    pub fn drain(&self) -> Result<usize, VerbsError> {
        let mut taken = 0;
        loop {
            let (mut cq, mut cq_context) = (ptr::null_mut(), ptr::null_mut());
            let next = self.context.library.ibv_get_cq_event;
            // SAFETY: the channel is alive, and both results are writable.
            let code = unsafe { next(self.raw.as_ptr(), &mut cq, &mut cq_context) };
            if code != 0 {
                let error = std::io::Error::last_os_error();
                return match error.raw_os_error() {
                    Some(libc::EAGAIN) => Ok(taken),
                    Some(libc::EINTR) => continue,
                    _ => Err(VerbsError::new("ibv_get_cq_event", self.context.name(), error)),
                };
            }
            // SAFETY: destroying the queue waits for this acknowledgement, so the pointer is valid.
            unsafe { (self.context.library.ibv_ack_cq_events)(cq, 1) };
            taken += 1;
        }
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive.
        let fd = unsafe { self.raw.as_ref() }.fd;
        // SAFETY: the descriptor belongs to the channel and stays open as long as it.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: this is the last owner, and every queue on the channel held an `Arc` of it.
        unsafe { (self.context.library.ibv_destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompletionChannel(fd {:?})", self.as_fd())
    }
}

/// Where the device reports finished requests.
pub struct CompletionQueue {
    pub(super) raw: NonNull<ibv_cq>,
    pub(super) context: Arc<Context>,
    channel: Arc<CompletionChannel>,
    poll: PollCq,
    req_notify: ReqNotifyCq,
    capacity: u32,
    number: u32,
}

// SAFETY: providers lock their completion queues.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// Creates a queue with room for at least `capacity` reports. More outstanding requests than that ruin it, so the
    /// owner has to count.
    pub fn create(channel: &Arc<CompletionChannel>, capacity: u32) -> Result<Arc<Self>, VerbsError> {
        let context = &channel.context;
        let object = || format!("a queue of {capacity} entries on {}", context.name());
        let refused =
            |code| VerbsError::new("ibv_create_cq", object(), std::io::Error::from_raw_os_error(code));
        let (Some(poll), Some(req_notify)) = (context.ops().poll_cq, context.ops().req_notify_cq) else {
            return Err(refused(libc::EOPNOTSUPP));
        };
        let number = super::work_id::new_queue().ok_or_else(|| refused(libc::ENOSPC))?;
        let create = context.library.ibv_create_cq;
        let entries = i32::try_from(capacity).unwrap_or(i32::MAX);
        // Comes back in the queue's asynchronous events; nobody follows it.
        let name = ptr::without_provenance_mut(number as usize);
        // SAFETY: the context is open and the channel alive; vector 0 always exists.
        let raw = unsafe { create(context.raw.as_ptr(), entries, name, channel.raw.as_ptr(), 0) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::from_errno("ibv_create_cq", object()))?;
        // SAFETY: the library returned a valid queue.
        let granted = unsafe { raw.as_ref() }.cqe;
        Ok(Arc::new(Self {
            raw,
            context: Arc::clone(context),
            channel: Arc::clone(channel),
            poll,
            req_notify,
            capacity: u32::try_from(granted).unwrap_or(0),
            number,
        }))
    }

    /// What no other queue of this process is called, whatever it is a queue of.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// How many reports the queue holds.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The channel that wakes this queue's sleeper.
    pub fn channel(&self) -> &Arc<CompletionChannel> {
        &self.channel
    }

    /// Appends up to `max` reports to `into`; fewer mean that the queue was empty.
    pub fn poll(&self, into: &mut Vec<WorkCompletion>, max: usize) -> Result<usize, VerbsError> {
        let max = max.min(i32::MAX as usize);
        into.reserve(max);
        let spare: &mut [MaybeUninit<WorkCompletion>] = &mut into.spare_capacity_mut()[..max];
        // SAFETY: the queue is alive; the slice has room for `max` reports, and `WorkCompletion` is laid out as one.
        let count = unsafe { (self.poll)(self.raw.as_ptr(), max as i32, spare.as_mut_ptr().cast()) };
        let Ok(count) = usize::try_from(count) else {
            let source = std::io::Error::from_raw_os_error(libc::EIO);
            return Err(VerbsError::new("ibv_poll_cq", self.context.name(), source));
        };
        // SAFETY: the provider has written `count <= max` entries past the old length.
        unsafe { into.set_len(into.len() + count.min(max)) };
        Ok(count)
    }

    /// Asks for one event at the next report, or at the next solicited or failed one.
    pub fn arm(&self, solicited_only: bool) -> Result<(), VerbsError> {
        // SAFETY: the queue is alive.
        let code = unsafe { (self.req_notify)(self.raw.as_ptr(), i32::from(solicited_only)) };
        check(code, "ibv_req_notify_cq", || self.context.name().to_owned())
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: this is the last owner: every queue pair that reports here held an `Arc`. All events are acknowledged.
        unsafe { (self.context.library.ibv_destroy_cq)(self.raw.as_ptr()) };
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompletionQueue({} entries on {})", self.capacity, self.context.name())
    }
}

/// One report of the device. The queue that issued the request turns it into a completion, once.
#[derive(Debug)]
#[repr(transparent)]
pub struct WorkCompletion(ibv_wc);

impl WorkCompletion {
    /// The queue that issued the request; see [`super::work_id`].
    pub(super) fn queue(&self) -> u32 {
        super::work_id::queue(self.0.wr_id)
    }

    /// The request's position in that queue.
    pub(super) fn position(&self) -> u32 {
        super::work_id::position(self.0.wr_id)
    }

    /// The number of the queue pair that the device names.
    pub(super) fn queue_pair_number(&self) -> u32 {
        self.0.qp_num
    }

    /// Whether a write with immediate consumed this receive. Meaningful only for a success: on a failure the opcode is
    /// undefined.
    pub(super) fn is_receive_write(&self) -> bool {
        self.0.opcode == IBV_WC_RECV_RDMA_WITH_IMM
    }

    pub(super) fn outcome(&self) -> Result<Success, Failure> {
        if self.0.status != IBV_WC_SUCCESS {
            return Err(Failure { status: Status::from_code(self.0.status), vendor: self.0.vendor_err });
        }
        let with_immediate = self.0.wc_flags & IBV_WC_WITH_IMM != 0;
        Ok(Success { len: self.0.byte_len, immediate: with_immediate.then(|| u32::from_be(self.0.imm_data)) })
    }
}
