//! Large messages: writes into memory that the peer has granted, each with an immediate that says that it is whole.
//!
//! Memory that a peer may write is never read: both ends grant three buffers in turn, end the grant of the one that a message is
//! in before they look at it, and grant it again, under another key, when they are through with it. The addresses are exchanged
//! once; the key of the buffer that the next message goes to is the immediate of the message before it.
//!
//! ```text
//!   granted --message arrives--> revoked --answered or checked--> granted
//! ```
//!
//! Granting is the NIC's own work and takes no packet. It is posted after the next message, so a message waits for one
//! revocation at each end and for nothing else. Never more than one message each way.

use std::time::Instant;

use byway_rdma::memory::{Buffer, Frozen};
use byway_rdma::nic::{
    self, Completion, Kind, Nic, Operation, Piece, RemoteAccess, RemoteSlice, Request, WindowId, WorkId,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::super::Payload;
use super::end::End;
use crate::Failure;
use crate::closed_loop::Samples;
use crate::workload::Budget;

/// One that the peer writes, one that is being sent, and one whose sending the peer has not acknowledged.
const BUFFERS: usize = 3;

/// Where an end's messages arrive, and where those of its peer do.
pub(super) struct Mailbox {
    windows: [WindowId; BUFFERS],
    /// `None` while this end has the buffer.
    keys: [Option<u32>; BUFFERS],
    /// Where the next message arrives.
    next: usize,
    peer: PeerBuffers,
    /// Buffers of this end to grant again.
    done: Vec<(usize, Buffer)>,
    completions: Vec<Completion>,
}

struct PeerBuffers {
    addresses: [u64; BUFFERS],
    len: u64,
    next: usize,
    /// Of the next one.
    key: u32,
}

impl Mailbox {
    pub(super) async fn open(end: &mut End, control: &mut TcpStream, bytes: usize) -> Result<Self, Failure> {
        let (windows, mut addresses) = ([WindowId(0); BUFFERS], [0; BUFFERS]);
        let peer = PeerBuffers { addresses, len: bytes as u64, next: 0, key: 0 };
        let (done, completions) = (Vec::new(), Vec::new());
        let mut mailbox = Self { windows, keys: [None; BUFFERS], next: 0, peer, done, completions };
        for (index, address) in addresses.iter_mut().enumerate() {
            let buffer = end.buffer(bytes)?;
            *address = buffer.address();
            mailbox.windows[index] = end.nic().0.allocate_window()?;
            mailbox.done.push((index, buffer));
        }
        mailbox.grant(end)?;
        // The keys travel another way than requests do, so the grants must be in place.
        let mut granted = 0;
        while granted < BUFFERS {
            end.completions(&mut mailbox.completions).await?;
            granted += mailbox.completions.drain(..).filter(|done| done.kind == Kind::Bind).count();
        }
        for address in addresses {
            control.write_u64(address).await?;
        }
        control.write_u32(mailbox.keys[0].unwrap_or_default()).await?;
        for address in &mut mailbox.peer.addresses {
            *address = control.read_u64().await?;
        }
        mailbox.peer.key = control.read_u32().await?;
        Ok(mailbox)
    }

    /// Grants what this end is through with. A request that is posted later may tell the keys.
    fn grant(&mut self, end: &mut End) -> Result<(), Failure> {
        let (nic, queue_pair) = end.nic();
        for (index, buffer) in self.done.drain(..) {
            let work = WorkId(index as u64);
            let granted = nic.bind(queue_pair, self.windows[index], work, buffer, RemoteAccess::Write);
            self.keys[index] = Some(granted.map_err(|refused| refused.error)?.key);
        }
        Ok(())
    }

    /// Sends a message, and tells where the next one may go.
    async fn send(&mut self, end: &mut End, from: usize, message: Piece) -> Result<(), Failure> {
        let key = loop {
            match self.keys[self.next] {
                Some(key) => break key,
                // Only if the peer's acknowledgements are late.
                None => {
                    self.collect(end).await?;
                    self.grant(end)?;
                }
            }
        };
        let PeerBuffers { addresses, len, next, key: remote } = self.peer;
        let to = RemoteSlice { address: addresses[next], len, key: remote };
        self.peer.next = (next + 1) % BUFFERS;
        let operation = Operation::Write { to, immediate: Some(key) };
        let payload = nic::Payload::One(message);
        end.post(&mut vec![Request::unsignaled(WorkId(from as u64), operation, payload)])?;
        end.post_used()
    }

    /// Waits for a message, and returns it with its place.
    async fn receive(&mut self, end: &mut End) -> Result<(usize, Buffer), Failure> {
        let len = loop {
            if let Some(Arrived::Message { len, key }) = self.collect(end).await? {
                self.peer.key = key;
                break len;
            }
        };
        let index = self.next;
        self.next = (index + 1) % BUFFERS;
        self.keys[index] = None;
        let (nic, queue_pair) = end.nic();
        nic.invalidate(queue_pair, self.windows[index], WorkId(index as u64))?;
        loop {
            if let Some(Arrived::Revoked(mut buffer)) = self.collect(end).await? {
                buffer.set_filled(len);
                return Ok((index, buffer));
            }
        }
    }

    /// Takes completions. With one message each way, no two of them are news.
    async fn collect(&mut self, end: &mut End) -> Result<Option<Arrived>, Failure> {
        let mut news = None;
        let mut completions = std::mem::take(&mut self.completions);
        end.completions(&mut completions).await?;
        for Completion { kind, work, outcome, payload, .. } in completions.drain(..) {
            let (buffer, success) = (payload.into_buffers().pop(), outcome.unwrap_or_default());
            match (kind, buffer) {
                (Kind::ReceiveWrite, Some(buffer)) => {
                    end.give_back(buffer);
                    let key = success.immediate.ok_or("a message without a key")?;
                    news = Some(Arrived::Message { len: success.len as usize, key });
                }
                (Kind::Invalidate, Some(buffer)) => news = Some(Arrived::Revoked(buffer)),
                (Kind::Write, Some(buffer)) => self.done.push((work.0 as usize, buffer)),
                _ => {}
            }
        }
        self.completions = completions;
        Ok(news)
    }
}

enum Arrived {
    Message { len: usize, key: u32 },
    Revoked(Buffer),
}

/// Sends back every message from where it arrived.
pub(super) async fn answer(end: &mut End, mut mailbox: Mailbox) -> Result<(), Failure> {
    loop {
        let (index, message) = mailbox.receive(end).await?;
        mailbox.send(end, index, Piece::Owned(message)).await?;
        mailbox.grant(end)?;
    }
}

/// The client's mailbox, and its message in registered memory.
pub(super) struct Client {
    mailbox: Mailbox,
    message: Frozen,
}

impl Client {
    pub(super) fn new(end: &mut End, mailbox: Mailbox, payload: &Payload) -> Result<Self, Failure> {
        let mut buffer = end.buffer(payload.0.len())?;
        buffer.fill_from(&payload.0);
        Ok(Self { mailbox, message: buffer.freeze() })
    }

    pub(super) async fn run(
        &mut self,
        end: &mut End,
        payload: &Payload,
        budget: Budget,
    ) -> Result<Samples, Failure> {
        let mut latencies = Vec::with_capacity(budget.calls);
        let began = Instant::now();
        let until = began + budget.time;
        let mut last = began;
        while last < until && latencies.len() < budget.calls {
            let message = Piece::Shared(self.message.clone());
            self.mailbox.send(end, 0, message).await?;
            self.mailbox.grant(end)?;
            let (index, answer) = self.mailbox.receive(end).await?;
            payload.check(answer.filled())?;
            self.mailbox.done.push((index, answer));
            let now = Instant::now();
            latencies.push(now - last);
            last = now;
        }
        Samples::new(last - began, latencies)
    }
}
