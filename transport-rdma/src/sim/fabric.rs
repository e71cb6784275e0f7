//! The network that simulated NICs share, and the passing of its time.
//!
//! Owns every simulated device, what is on the wire, and time. Invariants: the same options and the same calls in the
//! same order give the same steps, bit by bit; time moves only in [`Fabric::step`], [`Fabric::advance_to`] and, if asked for, arming; wakers
//! are called after the fabric's lock was released. No threads, no clock, no I/O.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use super::adapter::{NicId, SimAdapter, SimNicOptions};
use super::completion::{Pushed, Report};
use super::device::{Counters, Device};
use super::faults::{Fault, FaultPlan};
use super::nic::SimNic;
use super::queue_pair::QueuePair;
use super::request::Message;
use super::schedule::{QpRef, Schedule, Step, nanos};
use super::trace::Trace;
use crate::nic::{Event, QueuePairId};

/// How long things take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delays {
    /// The shortest way from one end to the other.
    pub least: Duration,
    /// Up to this much longer, drawn for each message. Messages of one queue pair still keep their order.
    pub jitter: Duration,
    /// How much longer for each KiB.
    pub per_kib: Duration,
    /// Up to this long passes before a device looks at a request that was posted.
    pub device: Duration,
    /// Up to this long passes in a call that arms, before the arming holds: what completes meanwhile came too late for the
    /// poll before it and wakes nobody. Zero by default; else that call moves time.
    pub arming: Duration,
}

impl Delays {
    /// None: everything happens at the instant at which it was asked for.
    pub const NONE: Self = Self {
        least: Duration::ZERO,
        jitter: Duration::ZERO,
        per_kib: Duration::ZERO,
        device: Duration::ZERO,
        arming: Duration::ZERO,
    };
}

impl Default for Delays {
    /// A switch away, at 100 Gbit/s.
    fn default() -> Self {
        Self {
            least: Duration::from_micros(1),
            jitter: Duration::from_micros(5),
            per_kib: Duration::from_nanos(82),
            device: Duration::from_micros(1),
            arming: Duration::ZERO,
        }
    }
}

/// Who makes things happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Progress {
    /// Only [`Fabric::step`] and [`Fabric::advance_to`].
    #[default]
    WhenTold,
    /// Also every call of a NIC, as far as it is due. With [`Delays::NONE`] a message is at its peer, and the peer's
    /// waker called, when the posting call returns. For use in real time, in one process; somebody has to call
    /// [`Fabric::advance_to`] by [`Fabric::next_at`] only where messages can be lost or meet no receive.
    AtOnce,
}

/// What to make a fabric with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FabricOptions {
    /// Where all chance comes from.
    pub seed: u64,
    /// How long things take.
    pub delays: Delays,
    /// Of a million packets, how many are lost. Queue pairs repeat them, so this shows as delay.
    pub loss_ppm: u32,
    /// Who makes things happen.
    pub progress: Progress,
}

/// A network of simulated NICs. Clones are the same network.
#[derive(Clone)]
pub struct Fabric {
    shared: Arc<Shared>,
}

impl Fabric {
    /// A network without NICs, at time zero.
    pub fn new(options: FabricOptions) -> Self {
        Self {
            shared: Arc::new(Shared { progress: options.progress, state: Mutex::new(State::new(options)) }),
        }
    }

    /// Adds a device that can reach all others.
    pub fn adapter(&self, options: &SimNicOptions) -> SimAdapter {
        SimAdapter::add(Arc::clone(&self.shared), options)
    }

    /// Adds a device, and makes the NIC that is its only user.
    pub fn nic(&self, options: &SimNicOptions) -> SimNic {
        SimNic::only(&self.adapter(options))
    }

    /// How much time has passed in this network.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.shared.lock().schedule.now)
    }

    /// When the next step is due, if any is.
    pub fn next_at(&self) -> Option<Duration> {
        self.shared.lock().next_at().map(Duration::from_nanos)
    }

    /// Takes the next step, however far off it is; `false` when there is none.
    pub fn step(&self) -> bool {
        self.shared.with(State::step)
    }

    /// Takes all steps until `time` since the start, and then it is that late. Never goes back.
    pub fn advance_to(&self, time: Duration) {
        self.shared.with(|state| state.advance_to(nanos(time)));
    }

    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        self.shared.with(|state| state.advance_to(state.schedule.now.saturating_add(nanos(by))));
    }

    /// Takes steps until none is left or it is `limit` since the start; `true` when none is left.
    pub fn settle(&self, limit: Duration) -> bool {
        self.shared.with(|state| {
            loop {
                match state.next_at() {
                    None => return true,
                    Some(at) if at > nanos(limit) => return false,
                    Some(_) => state.step(),
                };
            }
        })
    }

    /// Lets something go wrong now.
    pub fn inject(&self, fault: Fault) {
        self.shared.with(|state| state.apply(fault));
    }

    /// Lets something go wrong at a time since the start.
    pub fn schedule(&self, at: Duration, fault: Fault) {
        self.shared.with(|state| state.plan(nanos(at), fault));
    }

    /// Schedules every fault of a plan.
    pub fn follow(&self, plan: &FaultPlan) {
        self.shared.with(|state| plan.faults().for_each(|(at, fault)| state.plan(nanos(at), fault)));
    }

    /// A number that differs as soon as anything happened differently, or at another time.
    pub fn trace_hash(&self) -> u64 {
        self.shared.lock().trace.hash()
    }

    /// How many steps were taken.
    pub fn steps(&self) -> u64 {
        self.shared.lock().trace.steps
    }

    /// Keeps a line of text for everything that happens from now on, to find out why a run failed.
    pub fn keep_trace(&self) {
        self.shared.lock().trace.keep_lines();
    }

    /// Takes the lines kept so far.
    pub fn take_trace(&self) -> Vec<String> {
        self.shared.lock().trace.take_lines()
    }

    /// What happened at a device.
    pub fn counters(&self, nic: NicId) -> Counters {
        self.shared.lock().device(nic.0).counters
    }

    /// How many bytes are registered with a device: zero once every buffer is gone.
    pub fn registered(&self, nic: NicId) -> u64 {
        self.shared.lock().device(nic.0).regions.registered()
    }
}

impl std::fmt::Debug for Fabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.shared.lock();
        write!(f, "Fabric({} NICs, {:?})", state.devices.len(), Duration::from_nanos(state.schedule.now))
    }
}

pub(super) struct Shared {
    progress: Progress,
    state: Mutex<State>,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock is a bug of the simulator, and fails the test that met it anyway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `act`, what is then due if nobody else does, and whatever wakers are to be called.
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = act(&mut state);
        if self.progress == Progress::AtOnce {
            state.advance_to(0);
        }
        if state.woken.is_empty() {
            return result;
        }
        let woken = std::mem::take(&mut state.woken);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        result
    }
}

/// A message whose queue pair has failed or is gone, and how many of its arrivals are scheduled.
pub(super) struct Orphan {
    pub(super) message: Message,
    pub(super) in_flight: u32,
}

/// Everything in a fabric. Other files of this module have the methods: requester, responder, faults, nic.
pub(super) struct State {
    pub(super) schedule: Schedule,
    pub(super) devices: Vec<Device>,
    /// Directions in which nothing passes.
    pub(super) blocked: Vec<(u32, u32)>,
    pub(super) orphans: BTreeMap<(QpRef, u64), Orphan>,
    pub(super) planned: Vec<Fault>,
    pub(super) trace: Trace,
    woken: Vec<Waker>,
}

impl State {
    fn new(options: FabricOptions) -> Self {
        Self {
            schedule: Schedule::new(options.seed, options.delays, options.loss_ppm),
            devices: Vec::new(),
            blocked: Vec::new(),
            orphans: BTreeMap::new(),
            planned: Vec::new(),
            trace: Trace::default(),
            woken: Vec::new(),
        }
    }

    /// Handles are made by this fabric only, and devices stay until it is gone.
    pub(super) fn device(&self, nic: u32) -> &Device {
        &self.devices[nic as usize]
    }

    pub(super) fn device_mut(&mut self, nic: u32) -> &mut Device {
        &mut self.devices[nic as usize]
    }

    pub(super) fn qp_mut(&mut self, at: QpRef) -> Option<&mut QueuePair> {
        self.device_mut(at.nic).qp_mut(at.qp)
    }

    /// When the next step is due, not counting timers that have nothing to wait for any more.
    fn next_at(&mut self) -> Option<u64> {
        loop {
            let (at, step) = self.schedule.peek()?;
            let Step::Timer { of } = step else { return Some(at) };
            let Some(qp) = self.devices[of.nic as usize].qp_mut(of.qp) else {
                self.schedule.discard();
                continue;
            };
            match qp.deadline {
                Some(deadline) if deadline <= at => return Some(at),
                Some(deadline) => {
                    self.schedule.discard();
                    self.schedule.push(deadline, step);
                }
                None => {
                    qp.timer_due = false;
                    self.schedule.discard();
                }
            }
        }
    }

    fn step(&mut self) -> bool {
        if self.next_at().is_none() {
            return false;
        }
        let Some(step) = self.schedule.pop() else { return false };
        self.trace.steps += 1;
        self.trace.note(self.schedule.now, &step);
        match step {
            Step::Arrive { sender, position, from, to } => self.arrive(sender, position, from, to),
            Step::Answer { to, wire, answer } => self.answered(to, wire, answer),
            Step::Local { at, position } => self.execute_local(at, position),
            Step::Timer { of } => self.timed_out(of),
            Step::Resume { of } => self.resume(of),
            Step::Flush { of } => self.flush(of),
            Step::Fault(index) => self.apply(self.planned[index]),
        }
        true
    }

    /// Takes all steps until `time`; if that has passed, those that are due now.
    fn advance_to(&mut self, time: u64) {
        let time = time.max(self.schedule.now);
        while self.next_at().is_some_and(|at| at <= time) {
            self.step();
        }
        self.schedule.now = time;
    }

    /// What happens while a completion queue is being armed.
    pub(super) fn pass_arming(&mut self) {
        let by = self.schedule.arming();
        if by > 0 {
            self.advance_to(self.schedule.now + by);
        }
    }

    fn plan(&mut self, at: u64, fault: Fault) {
        self.schedule.push(at, Step::Fault(self.planned.len()));
        self.planned.push(fault);
    }

    /// Whether a packet that is now between two NICs gets through.
    pub(super) fn passes(&self, from: u32, to: u32) -> bool {
        let cut = !self.blocked.is_empty() && self.blocked.contains(&(from, to));
        !cut && self.device(from).link_up && self.device(to).link_up
    }

    /// Puts a report into the completion queue of the queue pair that it is about.
    pub(super) fn report(&mut self, nic: u32, report: Report, solicited: bool) {
        self.trace.note(self.schedule.now, &(nic, report));
        let device = self.device_mut(nic);
        let Some(number) = device.qp(report.qp).map(|qp| qp.consumer) else { return };
        let Some(consumer) = device.consumer_mut(number) else { return };
        match consumer.completions.push(report, solicited) {
            Pushed::Quiet => {}
            Pushed::Wakes => self.wake(nic, number),
            Pushed::Overran => {
                self.tell_one(nic, number, Event::CompletionQueueFailed);
                self.fail_all(nic, Some(number), true);
            }
        }
    }

    /// Fails every queue pair of a consumer, or of all; tells of each if asked to.
    pub(super) fn fail_all(&mut self, nic: u32, consumer: Option<u32>, tell: bool) {
        for qp in 0..self.device(nic).queue_pairs.len() as u32 {
            let at = QpRef { nic, qp };
            let concerned =
                |qp: &mut QueuePair| !qp.failed && consumer.is_none_or(|only| qp.consumer == only);
            if self.qp_mut(at).is_some_and(concerned) {
                if tell {
                    self.tell(nic, Event::QueuePairFailed(QueuePairId(qp)));
                }
                self.fail(at, None);
            }
        }
    }

    pub(super) fn wake(&mut self, nic: u32, consumer: u32) {
        let consumer = self.devices[nic as usize].consumer(consumer);
        self.woken.extend(consumer.and_then(|consumer| consumer.waker.clone()));
    }
}
