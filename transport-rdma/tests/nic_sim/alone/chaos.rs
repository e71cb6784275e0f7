//! Random operations on random connections under random faults, against a model of what may have happened.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use byway_rdma::memory::{Buffer, Memory};
use byway_rdma::nic::{
    Completion, Operation, Payload, Piece, Receive, RecvQueue, RemoteAccess, RemoteSlice, Request, WindowId,
    WorkId,
};
use byway_rdma::sim::{Fault, FaultPlan, SimNic, SimNicOptions};

use super::*;

pub(super) fn cases() -> Vec<(&'static str, fn())> {
    vec![("chaos: every request ends once, and what arrives is the beginning of what was sent", chaos)]
}

/// How many schedules are run, and how long one may take on average without optimization.
const SCHEDULES: u64 = 1000;
const EACH: Duration = Duration::from_millis(40);

const CONNECTIONS: usize = 3;
const BUFFER: usize = 2048;

fn chaos() {
    let begun = Instant::now();
    let (mut arrived, mut failed, mut steps) = (0, 0, 0);
    for seed in 0..SCHEDULES {
        let mut world = World::new(seed);
        for _ in 0..120 {
            world.act();
        }
        let ended = world.end();
        arrived += ended.0;
        failed += ended.1;
        steps += ended.2;
    }
    println!("  {SCHEDULES} schedules, {steps} steps, {arrived} messages arrived, {failed} requests failed");
    assert!(arrived > 10 * SCHEDULES && failed > SCHEDULES, "{arrived} arrived, {failed} failed");
    assert!(begun.elapsed() < EACH * SCHEDULES as u32, "took {:?}", begun.elapsed());
}

/// One end of the world.
struct End {
    nic: SimNic,
    free: Vec<Buffer>,
    /// Requests that have not come back.
    open: BTreeSet<WorkId>,
    next_work: u64,
    windows: BTreeMap<WindowId, QueuePairId>,
    living: Vec<Option<QueuePairId>>,
    /// Numbers of the messages that arrived, for each connection.
    arrived: Vec<Vec<u64>>,
    failed: u64,
}

/// Two ends with connections whose odd ones have receives of their own.
struct World {
    dice: fastrand::Rng,
    fabric: Fabric,
    ends: [End; 2],
    /// How many messages were sent on each connection, by each end.
    sent: [[u64; CONNECTIONS]; 2],
    /// What an end has been granted on a connection.
    grants: [VecDeque<(usize, RemoteSlice)>; 2],
}

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = fastrand::Rng::with_seed(seed);
        let loss_ppm = if dice.bool() { 0 } else { dice.u32(0..50_000) };
        let delays = Delays { jitter: Duration::from_micros(dice.u64(0..100)), ..Delays::default() };
        let fabric = Fabric::new(FabricOptions { seed, delays, loss_ppm, ..FabricOptions::default() });
        let options = SimNicOptions {
            completions: 512,
            shared_receives: 32,
            mtu: byway_rdma::nic::Mtu::B256,
            ..SimNicOptions::default()
        };
        let mut ends = [(); 2].map(|()| End::new(fabric.nic(&options)));
        let rnr_retry = dice.u8(4..8);
        for index in 0..CONNECTIONS {
            let recv_depth = (index % 2 == 1).then_some(16);
            let spec = QueuePairSpec { recv_depth, send_depth: 16, rnr_retry, ..nic_suite::spec() };
            let [a, b] = ends.each_mut().map(|end| {
                let qp = end.nic.create_queue_pair(&spec).expect("a queue pair");
                end.living.push(Some(qp));
                end.arrived.push(Vec::new());
                qp
            });
            let [end_a, end_b] = &mut ends;
            nic_suite::connect(&mut end_a.nic, a, &mut end_b.nic, b);
        }
        let nics = ends.each_ref().map(|end| end.nic.id());
        let mut plan = FaultPlan::random(
            seed,
            &nics,
            dice.usize(0..4),
            (Duration::ZERO, Duration::from_millis(20)),
            Duration::from_millis(dice.u64(0..120)),
        );
        if dice.u8(0..8) == 0 {
            plan = plan.at(Duration::from_millis(dice.u64(0..20)), Fault::Kill(nics[0]));
        }
        fabric.follow(&plan);
        Self { dice, fabric, ends, sent: [[0; CONNECTIONS]; 2], grants: Default::default() }
    }

    fn act(&mut self) {
        let who = self.dice.usize(0..2);
        let connection = self.dice.usize(0..CONNECTIONS);
        match self.dice.u8(0..100) {
            0..25 => self.send(who, connection),
            25..50 => self.receive(who, connection),
            50..60 => self.grant(who, connection),
            60..70 => self.write(who),
            70..72 => self.invalidate(who),
            76..77 => {
                drop(self.ends[who].living[connection].map(|qp| self.ends[who].nic.fail_queue_pair(qp)))
            }
            77..78 => self.ends[who].destroy(connection),
            _ => {
                self.fabric.advance(Duration::from_micros(self.dice.u64(0..1000)));
                self.ends[0].poll();
                self.ends[1].poll();
            }
        }
    }

    /// The message's number, then its connection's, over and over.
    fn payload(number: u64, connection: usize, len: usize) -> Vec<u8> {
        let mut bytes = number.to_le_bytes().to_vec();
        bytes.resize(8 + len, connection as u8);
        bytes
    }

    fn send(&mut self, who: usize, connection: usize) {
        let end = &mut self.ends[who];
        let Some(qp) = end.living[connection] else { return };
        let number = self.sent[who][connection];
        let bytes = Self::payload(number, connection, self.dice.usize(0..BUFFER - 8));
        let work = end.work();
        let payload = match (bytes.len() <= 128, end.free.pop()) {
            (true, buffer) => {
                end.free.extend(buffer);
                Payload::Inline(&bytes)
            }
            (false, Some(mut buffer)) => {
                buffer.fill_from(&bytes);
                let frozen = buffer.freeze();
                let cut = self.dice.usize(0..=bytes.len());
                let pieces = [frozen.slice(0, cut), frozen.slice(cut, bytes.len() - cut)];
                Payload::Gather(pieces.into_iter().map(Piece::Shared).collect())
            }
            (false, None) => return,
        };
        let operation = Operation::Send { immediate: Some(connection as u32) };
        let signaled = self.dice.bool();
        let request = Request { signaled, ..Request::signaled(work, operation, payload) };
        if end.nic.post(qp, &mut vec![request]).is_ok() {
            end.open.insert(work);
            self.sent[who][connection] += 1;
        }
    }

    fn receive(&mut self, who: usize, connection: usize) {
        let end = &mut self.ends[who];
        let queue = match (connection % 2, end.living[connection]) {
            (1, Some(qp)) => RecvQueue::Own(qp),
            (1, None) => return,
            _ => RecvQueue::Shared,
        };
        let mut batch: Vec<Receive> = Vec::new();
        for _ in 0..self.dice.usize(1..5) {
            let (work, buffer) = (end.work(), end.free.pop());
            batch.extend(buffer.map(|buffer| Receive { work, buffer }));
        }
        let works: Vec<WorkId> = batch.iter().map(|receive| receive.work).collect();
        let _ = end.nic.post_recv(queue, &mut batch);
        end.open.extend(&works[..works.len() - batch.len()]);
        end.free.extend(batch.into_iter().map(|receive| receive.buffer));
    }

    fn grant(&mut self, who: usize, connection: usize) {
        let end = &mut self.ends[who];
        let (Some(qp), Some(buffer)) = (end.living[connection], end.free.pop()) else { return };
        let (work, window) = (end.work(), end.nic.allocate_window());
        let Ok(window) = window else {
            end.free.push(buffer);
            return;
        };
        match end.nic.bind(qp, window, work, buffer, RemoteAccess::Write) {
            Ok(slice) => {
                end.open.insert(work);
                end.windows.insert(window, qp);
                self.grants[1 - who].push_back((connection, slice));
            }
            Err(refused) => {
                end.free.push(refused.returned);
                let _ = end.nic.free_window(window);
            }
        }
    }

    /// Through a grant that may be stale by now: then the connection fails, which is fine.
    fn write(&mut self, who: usize) {
        let Some((connection, slice)) = self.grants[who].pop_front() else { return };
        let end = &mut self.ends[who];
        let (Some(qp), Some(mut buffer)) = (end.living[connection], end.free.pop()) else { return };
        buffer.fill_from(&vec![0xEE; self.dice.usize(0..BUFFER)]);
        let work = end.work();
        match end.nic.post_write(qp, work, Payload::buffer(buffer), slice, None) {
            Ok(()) => drop(end.open.insert(work)),
            Err(refused) => end.free.extend(refused.returned.into_buffers()),
        }
    }

    fn invalidate(&mut self, who: usize) {
        let end = &mut self.ends[who];
        let Some((&window, &qp)) = end.windows.iter().next() else { return };
        let work = end.work();
        if end.nic.invalidate(qp, window, work).is_ok() {
            end.open.insert(work);
        } else {
            end.free_window(window);
        }
    }

    /// Ends everything; how much has arrived, failed and happened.
    fn end(mut self) -> (u64, u64, u64) {
        self.fabric.advance(Duration::from_secs(2));
        for end in &mut self.ends {
            end.poll();
            for connection in 0..CONNECTIONS {
                end.destroy(connection);
            }
            end.poll();
        }
        let mut arrived = 0;
        for who in 0..2 {
            for connection in 0..CONNECTIONS {
                let got = &self.ends[1 - who].arrived[connection];
                let expected: Vec<u64> = (0..got.len() as u64).collect();
                assert_eq!(*got, expected, "connection {connection} of end {who}");
                assert!(got.len() as u64 <= self.sent[who][connection]);
                arrived += got.len() as u64;
            }
        }
        let failed = self.ends.iter().map(|end| end.failed).sum();
        let steps = self.fabric.steps();
        for end in self.ends {
            let End { nic, free, open, .. } = end;
            let id = nic.id();
            // What is left is in the shared queue, which ends with its NIC.
            assert!(open.len() <= 32, "{} requests never came back", open.len());
            drop((nic, free));
            assert_eq!(self.fabric.registered(id), 0, "every buffer is accounted for");
        }
        (arrived, failed, steps)
    }
}

impl End {
    fn new(mut nic: SimNic) -> Self {
        let memory = Memory::allocate(64 * BUFFER).expect("memory");
        let free = nic.register(memory).expect("a registration").into_buffers(BUFFER);
        Self {
            nic,
            free,
            open: BTreeSet::new(),
            next_work: 0,
            windows: BTreeMap::new(),
            living: Vec::new(),
            arrived: Vec::new(),
            failed: 0,
        }
    }

    fn work(&mut self) -> WorkId {
        self.next_work += 1;
        WorkId(self.next_work)
    }

    fn free_window(&mut self, window: WindowId) {
        self.windows.remove(&window);
        self.free.extend(self.nic.free_window(window).expect("a window"));
    }

    fn destroy(&mut self, connection: usize) {
        self.poll();
        let Some(qp) = self.living[connection].take() else { return };
        let bound: Vec<WindowId> =
            self.windows.iter().filter(|&(_, owner)| *owner == qp).map(|(&window, _)| window).collect();
        bound.into_iter().for_each(|window| self.free_window(window));
        self.nic.destroy_queue_pair(qp).expect("a queue pair");
    }

    fn poll(&mut self) {
        let mut all = Vec::new();
        while self.nic.poll(&mut all, 7).expect("a poll") > 0 {}
        for completion in all {
            self.ended(completion);
        }
    }

    fn ended(&mut self, completion: Completion) {
        let Completion { work, kind, outcome, payload, .. } = completion;
        assert!(self.open.remove(&work), "{work:?} came back twice, or unasked");
        self.failed += u64::from(outcome.is_err());
        for buffer in payload.into_buffers() {
            if let (Kind::Receive, Ok(success)) = (kind, outcome) {
                let connection = success.immediate.expect("the connection") as usize;
                let bytes = buffer.filled();
                let number = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
                assert_eq!(bytes, World::payload(number, connection, bytes.len() - 8));
                self.arrived[connection].push(number);
            }
            self.free.push(buffer);
        }
    }
}
