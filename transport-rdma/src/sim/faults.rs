//! What can go wrong in a fabric, by hand or by plan.
//!
//! Invariant: a fault changes only what its documentation says, at the instant at which it is injected; a plan depends on
//! its seed alone. Faults never break a rule of the NIC trait: they are what a device, a host or a network may do.

use std::time::Duration;

use super::adapter::NicId;
use super::device::Health;
use super::fabric::State;
use super::schedule::{QpRef, nanos};
use crate::nic::{Event, QueuePairId};

/// Something that goes wrong, or that goes well again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The process that uses this device is gone, for good and without a word: peers hear nothing any more. Some of what
    /// was on its way still arrives. Calls of its NICs are refused; what was posted comes back by destroying.
    Kill(NicId),
    /// The device fails for good and says so ([`Event::DeviceFailed`]). Nothing comes back but by destroying.
    FailDevice(NicId),
    /// The device stops: it neither sends nor answers nor reports, and takes requests without looking at them.
    /// Peers repeat what it does not answer, as long as their patience lasts.
    Freeze(NicId),
    /// A frozen device goes on, and repeats what was not answered.
    Thaw(NicId),
    /// Nothing passes from the first to the second; the other direction is left alone.
    Block(NicId, NicId),
    /// Nothing passes between the two, in either direction.
    Partition(NicId, NicId),
    /// Everything passes again between the two.
    Heal(NicId, NicId),
    /// The port goes down ([`Event::PortDown`]): nothing reaches the NIC or leaves it.
    LinkDown(NicId),
    /// The port comes up ([`Event::PortUp`]).
    LinkUp(NicId),
    /// The port's addresses changed, as far as the device tells: only the event.
    ChangeAddresses(NicId),
    /// From now on so many packets of a million are lost.
    Lose(u32),
    /// The device fails one queue pair and says so.
    FailQueuePair(NicId, QueuePairId),
    /// The completion queues that the device has now turn out to be smaller than it had told, so that they can overrun.
    ShrinkCompletions(NicId, u32),
    /// Failed queue pairs do not flush, as on a device that does so late: until they are released or destroyed.
    WithholdFlushes(NicId),
    /// What was withheld comes back.
    ReleaseFlushes(NicId),
}

/// Faults and their times, counted from the start of a fabric.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FaultPlan {
    faults: Vec<(Duration, Fault)>,
}

impl FaultPlan {
    /// Nothing goes wrong.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a fault.
    pub fn at(mut self, time: Duration, fault: Fault) -> Self {
        self.faults.push((time, fault));
        self
    }

    /// `count` disturbances that begin between `from` and `until`; each is over at most `longest` later: frozen
    /// devices, partitions in one or both directions, links that go down, flushes that are withheld, bursts of loss.
    /// What happens to connections depends on their patience; by itself nothing fails.
    pub fn random(
        seed: u64,
        nics: &[NicId],
        count: usize,
        (from, until): (Duration, Duration),
        longest: Duration,
    ) -> Self {
        let mut dice = fastrand::Rng::with_seed(seed);
        let mut plan = Self::new();
        for _ in 0..count {
            let begin = Duration::from_nanos(dice.u64(nanos(from)..=nanos(until.max(from))));
            let end = begin + Duration::from_nanos(dice.u64(0..=nanos(longest)));
            let (Some(&one), Some(&other)) = (dice.choice(nics), dice.choice(nics)) else { break };
            let (wrong, right) = match dice.u8(0..6) {
                0 => (Fault::Freeze(one), Fault::Thaw(one)),
                1 => (Fault::Partition(one, other), Fault::Heal(one, other)),
                2 => (Fault::Block(one, other), Fault::Heal(one, other)),
                3 => (Fault::LinkDown(one), Fault::LinkUp(one)),
                4 => (Fault::WithholdFlushes(one), Fault::ReleaseFlushes(one)),
                _ => (Fault::Lose(dice.u32(0..200_000)), Fault::Lose(0)),
            };
            plan = plan.at(begin, wrong).at(end, right);
        }
        plan
    }

    /// All faults, in the order they were added.
    pub fn faults(&self) -> impl Iterator<Item = (Duration, Fault)> {
        self.faults.iter().copied()
    }
}

impl State {
    pub(super) fn apply(&mut self, fault: Fault) {
        match fault {
            Fault::Kill(nic) => self.kill(nic.0),
            Fault::FailDevice(nic) => {
                self.kill(nic.0);
                self.tell(nic.0, Event::DeviceFailed);
            }
            Fault::Freeze(nic) => {
                let device = self.device_mut(nic.0);
                if device.is_running() {
                    device.health = Health::Frozen;
                }
            }
            Fault::Thaw(nic) => self.thaw(nic.0),
            Fault::Block(from, to) => self.block(from.0, to.0),
            Fault::Partition(one, other) => {
                self.block(one.0, other.0);
                self.block(other.0, one.0);
            }
            Fault::Heal(one, other) => {
                self.blocked.retain(|&cut| cut != (one.0, other.0) && cut != (other.0, one.0))
            }
            Fault::LinkDown(nic) => self.set_link(nic.0, false, Event::PortDown(PORT)),
            Fault::LinkUp(nic) => self.set_link(nic.0, true, Event::PortUp(PORT)),
            Fault::ChangeAddresses(nic) => self.tell(nic.0, Event::AddressesChanged(PORT)),
            Fault::Lose(ppm) => self.schedule.loss_ppm = ppm,
            Fault::FailQueuePair(nic, qp) => {
                let at = QpRef { nic: nic.0, qp: qp.0 };
                if self.qp_mut(at).is_some_and(|qp| !qp.failed) {
                    self.tell(nic.0, Event::QueuePairFailed(qp));
                    self.fail(at, None);
                }
            }
            Fault::ShrinkCompletions(nic, entries) => {
                let consumers = self.device_mut(nic.0).consumers.iter_mut().flatten();
                consumers.for_each(|consumer| consumer.completions.shrink(entries));
            }
            Fault::WithholdFlushes(nic) => self.device_mut(nic.0).withholds_flushes = true,
            Fault::ReleaseFlushes(nic) => {
                self.device_mut(nic.0).withholds_flushes = false;
                self.each_queue_pair(nic.0, Self::flush_soon);
            }
        }
    }

    /// The end of a device: its queue pairs fail, and it never reports again.
    pub(super) fn kill(&mut self, nic: u32) {
        self.device_mut(nic).health = Health::Dead;
        self.fail_all(nic, None, false);
    }

    fn thaw(&mut self, nic: u32) {
        let device = self.device_mut(nic);
        if device.health != Health::Frozen {
            return;
        }
        device.health = Health::Running;
        self.each_queue_pair(nic, |state, at| {
            if let Some(qp) = state.qp_mut(at) {
                qp.forget_scheduled();
                qp.rewind();
            }
            state.transmit(at);
        });
    }

    fn set_link(&mut self, nic: u32, up: bool, event: Event) {
        if std::mem::replace(&mut self.device_mut(nic).link_up, up) != up {
            self.tell(nic, event);
        }
    }

    fn block(&mut self, from: u32, to: u32) {
        if !self.blocked.contains(&(from, to)) {
            self.blocked.push((from, to));
        }
    }

    fn each_queue_pair(&mut self, nic: u32, mut act: impl FnMut(&mut Self, QpRef)) {
        for qp in 0..self.device(nic).queue_pairs.len() as u32 {
            act(self, QpRef { nic, qp });
        }
    }
}

/// The one port that a simulated NIC has.
const PORT: u8 = 1;
