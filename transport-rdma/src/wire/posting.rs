//! What goes to the send queue.
//!
//! Owns which requests ask for a report, and where a message or a part of a body is when it is posted: inline, in staging,
//! or in a caller's own memory. Never: decides what is sent.

use std::task::Waker;

use super::{Chunk, Out, Slip, Wire};
use crate::counters::add;
use crate::memory::Buffer;
use crate::nic::{Nic, Operation, Payload, Piece, RemoteSlice, Request, WorkId};
use crate::protocol::Outbound;

/// A request as it is posted: with registered memory, or inline from a slip, which is also kept when it was copied.
struct Posting {
    payload: Option<Piece>,
    slip: Option<(Slip, usize)>,
    operation: Operation,
}

impl<N: Nic> Wire<N> {
    /// Posts what no driver would.
    #[cfg(test)]
    pub(crate) fn post_raw(&mut self, operation: Operation, bytes: &[u8]) {
        let mut staging = self.pool.staging(bytes.len(), Waker::noop()).expect("there is some");
        staging.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        let buffer = staging.into_buffer(bytes.len()).expect("there is memory");
        let mut batch = vec![Request::signaled(WorkId(0), operation, Payload::buffer(buffer))];
        self.nic.post(self.queue_pair, &mut batch).expect("there is room in the send queue");
        (self.outstanding, self.staging_out) = (self.outstanding + 1, self.staging_out + 1);
    }

    /// Queues a message.
    pub(crate) fn send(&mut self, message: Outbound<Slip>) {
        self.waiting.push_back(Out::Message(message));
    }

    /// Queues a write.
    pub(crate) fn write(&mut self, chunk: Chunk, to: RemoteSlice, immediate: Option<u32>) {
        self.waiting.push_back(Out::Write { chunk, to, immediate });
    }

    /// Forgets what waits to be posted.
    pub(crate) fn forget(&mut self) {
        self.waiting.clear();
    }

    /// Posts what waits, as far as there is room in the send queue and staging to copy to; whether anything was posted.
    /// `waker` is woken when staging comes back.
    ///
    /// # Errors
    /// Why the queue pair is of no more use, for a person.
    pub(crate) fn flush(&mut self, waker: &Waker) -> Result<bool, String> {
        let room = self.depth.saturating_sub(self.outstanding).saturating_sub(self.reserve / 2) as usize;
        let mut ready = Vec::new();
        while ready.len() < room
            && let Some(out) = self.waiting.pop_front()
        {
            match self.made_ready(out, waker) {
                Ok(posting) => ready.push(posting),
                Err(out) => {
                    self.waiting.push_front(out);
                    break;
                }
            }
        }
        if ready.is_empty() {
            return Ok(false);
        }
        let count = ready.len();
        self.count(&ready);
        let mut batch = Vec::with_capacity(count);
        for (index, posting) in ready.iter_mut().enumerate() {
            self.unreported += 1;
            self.holds_memory |= posting.payload.is_some();
            let last = index + 1 == count;
            let signaled =
                self.unreported >= self.signal_every || (last && (self.holds_memory || self.report_last));
            if signaled {
                (self.unreported, self.holds_memory) = (0, false);
            }
            let payload = match (posting.payload.take(), &mut posting.slip) {
                (Some(piece), _) => {
                    let is_own = |buffer: &Buffer| Some(buffer.address()) == self.own_address;
                    self.staging_out += u32::from(matches!(&piece, Piece::Owned(buffer) if !is_own(buffer)));
                    Payload::One(piece)
                }
                (None, Some((slip, len))) => Payload::Inline(&slip.as_mut()[..*len]),
                (None, None) => Payload::Empty,
            };
            let solicited = !matches!(posting.operation, Operation::Write { immediate: None, .. });
            batch.push(Request {
                work: WorkId(0),
                operation: posting.operation,
                payload,
                signaled,
                solicited,
            });
        }
        let posted = self.nic.post(self.queue_pair, &mut batch);
        self.outstanding += (count - batch.len()) as u32;
        let left: Vec<_> = batch.into_iter().map(|request| request.payload).collect();
        left.into_iter().for_each(|payload| self.give_back(payload));
        self.spent.extend(ready.into_iter().filter_map(|posting| Some(posting.slip?.0)));
        posted.map_err(|error| format!("the send queue refused a request: {error}"))?;
        Ok(true)
    }

    fn count(&self, ready: &[Posting]) {
        let (mut messages, mut writes, mut last) = (0, 0, 0);
        for posting in ready {
            match posting.operation {
                Operation::Send { .. } => messages += 1,
                Operation::Write { immediate: None, .. } => writes += 1,
                Operation::Write { .. } => last += 1,
            }
            if let (Operation::Write { .. }, Some(piece)) = (posting.operation, &posting.payload) {
                match piece {
                    Piece::Owned(buffer) => add(&self.counters.bytes_copied, buffer.filled().len() as u64),
                    Piece::Shared(view) => add(&self.counters.bytes_by_reference, view.bytes().len() as u64),
                }
            }
        }
        add(&self.counters.messages_sent, messages);
        add(&self.counters.writes, writes);
        add(&self.counters.writes_with_imm, last);
    }

    /// The memory for one message that is this connection's own, unless it is out: the device may have no more.
    fn take_own(&mut self, len: usize) -> Option<Buffer> {
        if self.own_address.is_none() {
            let buffer = self.pool.register_one(len.max(self.pool.message_max()))?;
            (self.own_address, self.own) = (Some(buffer.address()), Some(buffer));
        }
        self.own.take_if(|own| own.capacity() >= len)
    }

    fn made_ready(&mut self, out: Out, waker: &Waker) -> Result<Posting, Out> {
        let (payload, slip, operation) = match out {
            Out::Write { chunk, to, immediate } => {
                let to = RemoteSlice { len: chunk.len() as u64, ..to };
                let piece = match chunk {
                    Chunk::Copied(staging, len) => staging.into_buffer(len).map(Piece::Owned),
                    Chunk::View(view) => view.into_frozen().map(Piece::Shared),
                };
                (piece, None, Operation::Write { to, immediate })
            }
            Out::Message(Outbound { mut memory, len }) => {
                let operation = Operation::Send { immediate: None };
                if len <= self.inline_max {
                    return Ok(Posting { payload: None, slip: Some((memory, len)), operation });
                }
                match memory {
                    Slip::Staging(staging) => (staging.into_buffer(len).map(Piece::Owned), None, operation),
                    Slip::Plain(_) => {
                        let staging =
                            self.pool.staging(len, waker).and_then(|staging| staging.into_buffer(len));
                        let Some(mut buffer) = staging.or_else(|| self.take_own(len)) else {
                            return Err(Out::Message(Outbound { memory, len }));
                        };
                        buffer.bytes_mut()[..len].copy_from_slice(&memory.as_mut()[..len]);
                        buffer.set_filled(len);
                        // An empty length: only its memory is of use now.
                        (Some(Piece::Owned(buffer)), Some((memory, 0)), operation)
                    }
                }
            }
        };
        Ok(Posting { payload, slip, operation })
    }
}
