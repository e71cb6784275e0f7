//! How simulated queue pairs come and go, and who may use what.
//!
//! Invariants: an object is used only while it is there and in the state that the call needs; destroying a queue pair
//! gives back everything that it had and was not polled; what is on the wire by then is beyond its owner's reach.

use super::adapter::{NO_SHARED_QUEUE, SimNicOptions, refused};
use super::consumer::flushed_receive;
use super::device::{Device, Health};
use super::fabric::State;
use super::queue_pair::{QueuePair, Stage};
use super::request::Action;
use super::schedule::QpRef;
use crate::memory::Buffer;
use crate::nic::{Endpoint, NicError, QueuePairId, QueuePairSpec, Status, WindowId, WorkId};

/// Cannot happen: a consumer is closed when its handle is dropped.
const CLOSED: &str = "the NIC is closed";

/// 24 bits.
const NUMBER_MAX: u32 = (1 << 24) - 1;

impl Device {
    /// Refuses once the device or its process is gone.
    pub(super) fn usable(&self) -> Result<(), NicError> {
        match self.health {
            Health::Running | Health::Frozen => Ok(()),
            Health::Dead => Err(refused("it is gone")),
        }
    }

    /// A queue pair of this consumer.
    pub(super) fn known(&self, consumer: u32, id: QueuePairId) -> Result<&QueuePair, NicError> {
        let ours = self.qp(id.0).filter(|qp| qp.consumer == consumer);
        ours.ok_or(NicError::UnknownQueuePair(id))
    }

    pub(super) fn known_mut(&mut self, consumer: u32, id: QueuePairId) -> Result<&mut QueuePair, NicError> {
        let ours = self.qp_mut(id.0).filter(|qp| qp.consumer == consumer);
        ours.ok_or(NicError::UnknownQueuePair(id))
    }

    /// Whether sends may be posted. A failed queue pair takes them, to flush them.
    pub(super) fn can_send(&self, consumer: u32, id: QueuePairId) -> Result<&QueuePair, NicError> {
        self.usable()?;
        let qp = self.known(consumer, id)?;
        match qp.stage {
            Stage::Sending(_) => Ok(qp),
            _ => Err(NicError::State("the queue pair must be activated before it sends")),
        }
    }

    /// Whether a request about a window may be posted.
    pub(super) fn can_post_about(
        &self,
        consumer: u32,
        id: QueuePairId,
        window: WindowId,
    ) -> Result<(), NicError> {
        let qp = self.can_send(consumer, id)?;
        if !self.windows.exists(consumer, window.0) {
            return Err(NicError::UnknownWindow(window));
        }
        if qp.room() == 0 { Err(NicError::Full) } else { Ok(()) }
    }

    pub(super) fn can_bind(
        &mut self,
        consumer: u32,
        id: QueuePairId,
        window: WindowId,
        buffer: &Buffer,
    ) -> Result<(), NicError> {
        self.can_post_about(consumer, id, window)?;
        self.windows.check_bind(window.0, buffer, self.regions.domain())
    }
}

impl State {
    pub(super) fn create(
        &mut self,
        nic: u32,
        owner: u32,
        spec: &QueuePairSpec,
        options: &SimNicOptions,
    ) -> Result<QueuePairId, NicError> {
        let device = &mut self.devices[nic as usize];
        device.usable()?;
        if spec.recv_depth.is_none() && device.receives.is_none() {
            return Err(NicError::State(NO_SHARED_QUEUE));
        }
        let needed = spec.completions_max();
        let consumer = device.consumer(owner).ok_or(NicError::State(CLOSED))?;
        let free = consumer.capacity.saturating_sub(consumer.reserved + consumer.retiring);
        if needed > free {
            return Err(NicError::CompletionsExhausted { needed, free });
        }
        let depth = spec.send_depth.max(spec.recv_depth.unwrap_or(1));
        if spec.send_depth == 0 || spec.recv_depth == Some(0) || depth > options.depth_max {
            return Err(refused("a queue is deeper than it allows, or of no depth at all"));
        }
        if spec.pieces_max > options.pieces_max {
            return Err(refused("it does not gather that many pieces"));
        }
        let number = device.first_number + device.queue_pairs.len() as u32;
        let living = device.queue_pairs.iter().flatten().count();
        if living >= options.queue_pairs_max as usize || number > NUMBER_MAX {
            return Err(refused("it has no queue pair left"));
        }
        let spec = QueuePairSpec { inline_max: spec.inline_max.min(options.inline_max), ..*spec };
        let first_psn = self.schedule.psn();
        let endpoint = Endpoint { gid: gid(nic), lid: 0, number, first_psn, mtu: options.mtu };
        let id = QueuePairId(device.queue_pairs.len() as u32);
        device.queue_pairs.push(Some(Box::new(QueuePair::new(owner, &spec, endpoint))));
        if let Some(consumer) = device.consumer_mut(owner) {
            consumer.reserved += needed;
        }
        Ok(id)
    }

    /// Where an endpoint's address leads to; `None` when to nothing.
    pub(super) fn find(&self, peer: &Endpoint) -> Option<QpRef> {
        let nic = (0..self.devices.len() as u32).find(|&nic| gid(nic) == peer.gid)?;
        // A number that no queue pair has leads to nobody, which only shows when nobody answers.
        let qp = peer.number.wrapping_sub(self.device(nic).first_number);
        Some(QpRef { nic, qp })
    }

    /// Takes a checked request about a window.
    pub(super) fn post_local(&mut self, at: QpRef, work: WorkId, action: Action) {
        self.device_mut(at.nic).counters.posted += 1;
        if let Some(qp) = self.qp_mut(at) {
            qp.push_local(work, action);
        }
        self.transmit(at);
    }

    pub(super) fn destroy(&mut self, at: QpRef, number: u32) -> Result<(), NicError> {
        self.device(at.nic).known(number, QueuePairId(at.qp))?;
        if self.device(at.nic).windows.any_active(at.qp) {
            return Err(NicError::State("windows are bound to the queue pair: they must be freed first"));
        }
        self.fail(at, None);
        let device = self.device_mut(at.nic);
        let slot = device.queue_pairs.get_mut(at.qp as usize);
        let Some(qp) = slot.and_then(Option::take) else { return Ok(()) };
        let (reports, begun) = (qp.spec.completions_max(), qp.begun_shared());
        let mut flushed = Vec::with_capacity(qp.ring.len());
        for entry in qp.ring {
            flushed.push(device.finish(entry, at.qp, Some(Status::Flushed)));
        }
        if let (Some(slot), Some(receives)) = (begun, &mut device.receives) {
            flushed.extend(receives.finish(slot).map(|taken| flushed_receive(at.qp, taken)));
        }
        let left = qp.receives.into_iter().flat_map(|receives| receives.into_left());
        flushed.extend(left.map(|taken| flushed_receive(at.qp, taken)));
        if let Some(consumer) = device.consumer_mut(number) {
            consumer.reserved -= reports;
            consumer.retiring += reports;
            consumer.flushed.append(&mut flushed);
        }
        Ok(())
    }

    /// Ends a device whose last handle is gone, and returns what it had.
    pub(super) fn remove(&mut self, nic: u32) -> impl Sized + use<> {
        self.kill(nic);
        self.device_mut(nic).empty()
    }
}

/// A NIC's address: one of a private IPv6 network.
fn gid(nic: u32) -> [u8; 16] {
    let mut gid = [0xfd, b'b', b'y', b'w', b'a', b'y', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    gid[12..].copy_from_slice(&(nic + 1).to_be_bytes());
    gid
}
