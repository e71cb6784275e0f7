//! Large messages that go out: copied to staging, or taken from where they are, and written.
//!
//! Owns [`Bodies`]. A body is cut into chunks without the connection's lock. All but the last are queued when the
//! protocol says that they may still be written; the last waits for a credit. Invariant: a chunk is queued before
//! whatever the protocol says afterwards, such as the release of its landing. Bounded by staging, and by bytes for one
//! turn. Never: copies what lies in a caller's registered memory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use bytes::Buf;
use byway_runtime::output::Segments;

use crate::link::RdmaLink;
use crate::nic::{Nic, RemoteSlice};
use crate::pool::Pool;
use crate::protocol::{Job, Place, TransferId};
use crate::wire::{Chunk, Wire};

/// Bytes that are copied in one turn, after which other connections have theirs.
const COPIED_PER_TURN: usize = 1 << 20;

/// A lease's bytes are written from where they are, if there are at least so many in one piece: below that, another
/// request costs more than to copy them.
const VIEW_MIN: usize = 4096;

/// Chunks of one connection that wait to be queued: a peer that gives no credits holds no more of the staging.
const CUT_MAX: usize = 8;

/// One body on its way.
#[derive(Debug)]
struct Sending {
    job: Job,
    segments: Segments,
    /// Bytes that were cut into chunks.
    cut: u64,
    /// Chunks that were cut and not queued, each with its place in the body.
    chunks: VecDeque<(u64, Chunk)>,
    /// Whether only the last chunk is left, for [`Bodies::write_last`].
    staged: bool,
}

impl Sending {
    /// Whether a chunk waits that is not the last. It goes at once: the next one may wait for its memory.
    fn has_another(&self) -> bool {
        self.chunks.len() > usize::from(!self.segments.has_remaining())
    }
}

/// The bodies that one connection sends.
#[derive(Debug, Default)]
pub(super) struct Bodies {
    sending: VecDeque<Sending>,
}

impl Bodies {
    /// Cuts bodies into chunks, about `room` of them; whether it stopped because that was enough for one turn.
    pub(super) fn copy(&mut self, pool: &Arc<Pool>, room: usize, waker: &Waker) -> bool {
        let (mut copied, mut count) =
            (0, self.sending.iter().map(|sending| sending.chunks.len()).sum::<usize>());
        let room = room.min(CUT_MAX);
        for sending in &mut self.sending {
            while sending.segments.has_remaining() && copied < COPIED_PER_TURN && count < room {
                let Some(chunk) = next_chunk(&mut sending.segments, pool, waker) else { return false };
                if let Chunk::Copied(_, len) = &chunk {
                    copied += len;
                }
                let len = chunk.len() as u64;
                sending.chunks.push_back((sending.cut, chunk));
                sending.cut += len;
                count += 1;
            }
        }
        copied >= COPIED_PER_TURN && count < room
    }

    /// Takes new bodies, and queues what was cut; whether there is something to cut again.
    pub(super) fn advance<N: Nic>(&mut self, link: &mut RdmaLink, wire: &mut Wire<N>) -> bool {
        let mut again = false;
        while let Some(job) = link.endpoint.poll_job() {
            let segments = link.bodies.remove(&job.transfer).unwrap_or_default();
            let chunks = VecDeque::new();
            self.sending.push_back(Sending { job, segments, cut: 0, chunks, staged: false });
            again = true;
        }
        for sending in &mut self.sending {
            while sending.has_another() && wire.room() > 0 && link.endpoint.may_write(sending.job.transfer) {
                let Some((offset, chunk)) = sending.chunks.pop_front() else { break };
                if let Some(to) = place(&sending.job, offset) {
                    wire.write(chunk, to, None);
                }
                again |= sending.segments.has_remaining();
            }
            let is_last = sending.chunks.len() == 1 && !sending.segments.has_remaining();
            if is_last && !sending.staged {
                sending.staged = link.endpoint.handle_staged(sending.job.transfer);
            }
        }
        again
    }

    /// Queues the last chunk of a body, with the immediate that completes it.
    pub(super) fn write_last<N: Nic>(&mut self, job: &Job, wire: &mut Wire<N>) {
        let index = self.sending.iter().position(|sending| sending.job.transfer == job.transfer);
        let Some(mut sending) = index.and_then(|index| self.sending.remove(index)) else { return };
        if let Some((offset, chunk)) = sending.chunks.pop_front()
            && let Some(to) = place(job, offset)
        {
            wire.write(chunk, to, Some(job.landing.0));
        }
    }

    /// What is being sent.
    #[cfg(test)]
    pub(super) fn jobs(&self) -> Vec<Job> {
        self.sending.iter().map(|sending| sending.job).collect()
    }

    /// Drops a body that needs nothing more.
    pub(super) fn forget(&mut self, transfer: TransferId) {
        self.sending.retain(|sending| sending.job.transfer != transfer);
    }
}

fn place(job: &Job, offset: u64) -> Option<RemoteSlice> {
    match job.place {
        Place::Slice(slice) => {
            Some(RemoteSlice { address: slice.address + offset, len: slice.len - offset, key: slice.key })
        }
        Place::Pieces => None,
    }
}

/// The next part of a body: a lease's own memory, or a copy of what comes before one. `None` without staging.
fn next_chunk(segments: &mut Segments, pool: &Arc<Pool>, waker: &Waker) -> Option<Chunk> {
    if let Some(view) = view(segments.chunk(), pool) {
        segments.advance(view.len());
        return Some(Chunk::View(view));
    }
    let mut staging = pool.staging_for_part(segments.remaining(), waker)?;
    let memory = staging.bytes_mut();
    let mut filled = 0;
    while filled < memory.len() && segments.has_remaining() {
        let piece = segments.chunk();
        if filled > 0 && view(piece, pool).is_some() {
            break;
        }
        let len = piece.len().min(memory.len() - filled);
        memory[filled..filled + len].copy_from_slice(&piece[..len]);
        segments.advance(len);
        filled += len;
    }
    Some(Chunk::Copied(staging, filled))
}

fn view(piece: &[u8], pool: &Arc<Pool>) -> Option<crate::pool::View> {
    (piece.len() >= VIEW_MIN).then(|| pool.find(piece)).flatten()
}
