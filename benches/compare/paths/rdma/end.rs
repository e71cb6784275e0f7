//! One end of a connection: a NIC with one queue pair, and how its user waits for completions.
//!
//! Owns the exchange of endpoints and the posted receives. Invariant: an end sleeps only after it has armed the completion
//! queue and found it empty once more. Never: hides a failed completion.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use byway_rdma::memory::{Buffer, Memory};
use byway_rdma::nic::{
    Completion, Endpoint, Mtu, Nic, QueuePairId, QueuePairSpec, Receive, RecvQueue, Request, WorkId,
};
use byway_rdma::verbs::{NicOptions, VerbsNic};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;

use super::super::CALL_TIMEOUT;
use super::Plan;
use crate::Failure;

/// How an end waits for completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Asleep, until the completion channel's descriptor is readable.
    Sleep,
    /// Polling, without a pause. It yields to nothing, so the runtime does nothing else.
    Spin,
}

/// Larger than any message that fits into a request. A write with immediate leaves its receive's buffer unused.
const RECEIVE_SIZE: usize = 1024;

/// Completions that one call takes.
const POLL_MAX: usize = 128;

/// One second. An emulated device may need a tenth for 1 MiB, and a packet that is sent again although it was not lost is work
/// that nobody asked for. With less, the figures are those of a lossy network.
const ACK_TIMEOUT: u8 = 18;

/// A spinning end looks at the clock after so many empty polls: its peer may be gone.
const POLLS_PER_LOOK: u32 = 1 << 14;

pub(super) struct End {
    nic: VerbsNic,
    queue_pair: QueuePairId,
    wait: Wait,
    wakes: AsyncFd<OwnedFd>,
    /// A completion since the last wake-up raises one.
    is_armed: bool,
    /// Receives to be posted with the next requests.
    used: Vec<Receive>,
}

impl End {
    pub(super) async fn connect(control: &mut TcpStream, plan: Plan, wait: Wait) -> Result<Self, Failure> {
        let window = u32::try_from(plan.window)?;
        // Twice the window: those that came in with the last messages are posted again after these are answered.
        let receives = window.max(2) * 2;
        let spec = QueuePairSpec {
            // Half of it may be waiting for a request that is reported.
            send_depth: (window * 4).max(128),
            recv_depth: Some(receives),
            ack_timeout: ACK_TIMEOUT,
            ..QueuePairSpec::default()
        };
        let options =
            NicOptions { completions: spec.completions_max(), shared_receives: 0, ..NicOptions::default() };
        let mut nic = VerbsNic::open(&options)?;
        let queue_pair = nic.create_queue_pair(&spec)?;
        let wakes = watch(nic.as_fd().try_clone_to_owned()?)?;
        let mut end = Self { nic, queue_pair, wait, wakes, is_armed: false, used: Vec::new() };
        let memory = Memory::allocate(receives as usize * RECEIVE_SIZE)?;
        let slab = end.nic.register(memory).map_err(|refused| refused.error)?;
        // A slab is whole pages, which may be more.
        let buffers = slab.into_buffers(RECEIVE_SIZE).into_iter().take(receives as usize);
        end.used = buffers.map(|buffer| Receive { work: WorkId(0), buffer }).collect();
        end.post_used()?;
        send_endpoint(control, &end.nic.endpoint(queue_pair)?).await?;
        let peer = receive_endpoint(control).await?;
        end.nic.connect(queue_pair, &peer)?;
        // Nobody sends before both are ready.
        control.write_u8(1).await?;
        control.read_u8().await?;
        Ok(end)
    }

    pub(super) fn nic(&mut self) -> (&mut VerbsNic, QueuePairId) {
        (&mut self.nic, self.queue_pair)
    }

    /// Whether messages of that size need no memory of their own.
    pub(super) fn fits_inline(&self, bytes: usize) -> Result<bool, Failure> {
        Ok(bytes <= (self.nic.inline_max(self.queue_pair)? as usize).min(RECEIVE_SIZE))
    }

    /// A registration of its own.
    pub(super) fn buffer(&mut self, bytes: usize) -> Result<Buffer, Failure> {
        let memory = Memory::allocate(bytes)?;
        Ok(self.nic.register(memory).map_err(|refused| refused.error)?.into_buffer())
    }

    /// Posts requests together.
    pub(super) fn post(&mut self, batch: &mut Vec<Request<'_>>) -> Result<(), Failure> {
        if batch.is_empty() {
            return Ok(());
        }
        Ok(self.nic.post(self.queue_pair, batch)?)
    }

    /// Keeps a receive's buffer for [`post_used`](Self::post_used).
    pub(super) fn give_back(&mut self, buffer: Buffer) {
        self.used.push(Receive { work: WorkId(0), buffer });
    }

    /// Posts the buffers that were given back. After the answers, since enough others are posted.
    pub(super) fn post_used(&mut self) -> Result<(), Failure> {
        if self.used.is_empty() {
            return Ok(());
        }
        Ok(self.nic.post_recv(RecvQueue::Own(self.queue_pair), &mut self.used)?)
    }

    /// Appends completions, at least one.
    ///
    /// # Errors
    /// A request failed, or there is none for as long as a call may take.
    pub(super) async fn completions(&mut self, into: &mut Vec<Completion>) -> Result<(), Failure> {
        let before = into.len();
        match self.wait {
            Wait::Sleep => self.sleep_for(into).await?,
            Wait::Spin => self.spin_for(into)?,
        }
        match into[before..].iter().find_map(|completion| completion.outcome.err()) {
            Some(failure) => Err(failure.to_string().into()),
            None => Ok(()),
        }
    }

    async fn sleep_for(&mut self, into: &mut Vec<Completion>) -> Result<(), Failure> {
        while self.nic.poll(into, POLL_MAX)? == 0 {
            if !self.is_armed {
                self.nic.arm(false)?;
                self.is_armed = true;
                continue;
            }
            let mut guard = self.wakes.readable().await?;
            // All of them, so that the next one makes the descriptor readable again.
            self.is_armed = self.nic.take_wakes()? == 0;
            guard.clear_ready();
        }
        Ok(())
    }

    fn spin_for(&mut self, into: &mut Vec<Completion>) -> Result<(), Failure> {
        let (mut polls, mut began) = (0u32, None);
        while self.nic.poll(into, POLL_MAX)? == 0 {
            polls += 1;
            if polls.is_multiple_of(POLLS_PER_LOOK)
                && began.get_or_insert_with(Instant::now).elapsed() > CALL_TIMEOUT
            {
                return Err(format!("nothing came for {CALL_TIMEOUT:?}").into());
            }
        }
        Ok(())
    }
}

#[expect(
    deprecated,
    reason = "its successor is unsafe for the sake of types that lie about their descriptor; this one owns it"
)]
fn watch(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(descriptor, Interest::READABLE)
}

async fn send_endpoint(to: &mut TcpStream, endpoint: &Endpoint) -> Result<(), Failure> {
    to.write_all(&endpoint.gid).await?;
    to.write_u16(endpoint.lid).await?;
    for number in [endpoint.number, endpoint.first_psn, endpoint.mtu.bytes()] {
        to.write_u32(number).await?;
    }
    Ok(())
}

async fn receive_endpoint(from: &mut TcpStream) -> Result<Endpoint, Failure> {
    let mut gid = [0; 16];
    from.read_exact(&mut gid).await?;
    Ok(Endpoint {
        gid,
        lid: from.read_u16().await?,
        number: from.read_u32().await?,
        first_psn: from.read_u32().await?,
        mtu: Mtu::at_most(from.read_u32().await?).ok_or("the peer has no such MTU")?,
    })
}
