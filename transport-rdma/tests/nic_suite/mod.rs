//! The NIC suite: what every implementation of [`Adapter`] and [`Nic`] must do, written once over the traits.
//!
//! A device is described by a [`Fixture`]; what it is known to do differently stands in a list of [`Deviation`]s, and
//! each is checked to be still so, so that the list cannot grow stale. Two NICs talk to each other in every case.

pub(crate) mod access;
pub(crate) mod adapters;
pub(crate) mod completions;
pub(crate) mod failures;
pub(crate) mod order;
pub(crate) mod receives;

use std::time::{Duration, Instant};

use byway_rdma::memory::{Buffer, Memory};
use byway_rdma::nic::{
    Adapter, Completion, Kind, Nic, Operation, Payload, QueuePairId, QueuePairSpec, Receive, RecvQueue,
    RemoteAccess, RemoteSlice, Request, Status, WindowId, WorkId,
};

/// How long a case waits for what must come. Far above what an emulated machine needs.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// The size of the buffers that most cases use.
pub(crate) const SIZE: usize = 4096;

/// What a device is known to do differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deviation {
    /// A write that leaves its window but not the window's registration succeeds.
    WriteBeyondWindow,
    /// A message that does not fit its receive is told to both sides as a failed operation, not as an invalid request
    /// and a wrong length.
    TooLongIsFailedOperation,
}

/// How many entries a NIC is opened with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) completions: u32,
    pub(crate) shared_receives: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { completions: 4096, shared_receives: 64 }
    }
}

/// A kind of device.
pub(crate) trait Fixture {
    type Nic: Nic;
    type Adapter: Adapter<Nic = Self::Nic>;

    /// Two NICs that can reach each other.
    fn pair(&self, sizes: Sizes) -> (Self::Nic, Self::Nic);

    /// Two adapters whose NICs can reach each other, with shared queues of so many receives.
    fn adapters(&self, shared_receives: u32) -> (Self::Adapter, Self::Adapter);

    /// Sleeps until a wake-up waits, at most for `limit`; tells whether there is one.
    fn sleep(&self, nic: &mut Self::Nic, limit: Duration) -> bool;

    /// Lets time pass while a case polls.
    fn pause(&self);

    fn deviations(&self) -> &'static [Deviation];

    fn deviates(&self, deviation: Deviation) -> bool {
        self.deviations().contains(&deviation)
    }
}

pub(crate) type Case<F> = (&'static str, fn(&F));

/// The cases whose name contains `filter`, on a device.
pub(crate) fn cases<'a, F: Fixture>(fixture: &'a F, filter: &str) -> Vec<(&'static str, impl Fn() + 'a)> {
    let all = [
        order::cases(),
        receives::cases(),
        access::cases(),
        failures::cases(),
        completions::cases(),
        adapters::cases(),
    ];
    let cases = all.into_iter().flatten().filter(|(name, _)| name.contains(filter));
    cases.map(|(name, case): Case<F>| (name, move || case(fixture))).collect()
}

/// One NIC with one queue pair, and the completions that no case has taken yet.
pub(crate) struct Side<N> {
    pub(crate) nic: N,
    pub(crate) qp: QueuePairId,
    inbox: Vec<Completion>,
    next_work: u64,
}

impl<N: Nic> Side<N> {
    fn new(mut nic: N, spec: &QueuePairSpec) -> Self {
        let qp = nic.create_queue_pair(spec).expect("a queue pair");
        Self { nic, qp, inbox: Vec::new(), next_work: 1 }
    }

    /// A number that this side has not used.
    pub(crate) fn work(&mut self) -> WorkId {
        self.next_work += 1;
        WorkId(self.next_work)
    }

    /// Registered buffers of `size` bytes, all in one registration.
    pub(crate) fn buffers(&mut self, count: usize, size: usize) -> Vec<Buffer> {
        let memory = Memory::allocate(count * size).expect("memory");
        let slab = self.nic.register(memory).expect("a registration");
        let mut buffers = slab.into_buffers(size);
        buffers.truncate(count);
        buffers
    }

    /// One registered buffer that is its whole registration.
    pub(crate) fn buffer(&mut self, size: usize) -> Buffer {
        let memory = Memory::allocate(size).expect("memory");
        self.nic.register(memory).expect("a registration").into_buffer()
    }

    /// A buffer with content.
    pub(crate) fn filled(&mut self, bytes: &[u8]) -> Payload<'static> {
        let mut buffer = self.buffer(bytes.len().max(1));
        buffer.fill_from(bytes);
        Payload::buffer(buffer)
    }

    /// Posts `count` receives of [`SIZE`] bytes to the queue and returns their numbers.
    pub(crate) fn post_receives(&mut self, queue: RecvQueue, count: usize) -> Vec<WorkId> {
        let works: Vec<WorkId> = (0..count).map(|_| self.work()).collect();
        let buffers = self.buffers(count, SIZE);
        let zip = works.iter().zip(buffers);
        let mut batch = zip.map(|(&work, buffer)| Receive { work, buffer }).collect();
        self.nic.post_recv(queue, &mut batch).expect("room for the receives");
        assert!(batch.is_empty());
        works
    }

    pub(crate) fn own(&self) -> RecvQueue {
        RecvQueue::Own(self.qp)
    }

    /// Posts one signalled send.
    pub(crate) fn send(&mut self, payload: Payload<'_>) -> WorkId {
        let (qp, work) = (self.qp, self.work());
        self.nic.post_send(qp, work, payload, None).expect("room for a send");
        work
    }

    /// Posts one signalled write.
    pub(crate) fn write(&mut self, payload: Payload<'_>, to: RemoteSlice, immediate: Option<u32>) -> WorkId {
        let (qp, work) = (self.qp, self.work());
        self.nic.post_write(qp, work, payload, to, immediate).expect("room for a write");
        work
    }

    /// Binds a new window over `buffer` and waits until it is bound.
    pub(crate) fn grant(
        &mut self,
        fixture: &impl Fixture<Nic = N>,
        buffer: Buffer,
        access: RemoteAccess,
    ) -> (WindowId, RemoteSlice) {
        let (qp, work) = (self.qp, self.work());
        let window = self.nic.allocate_window().expect("a window");
        let slice = self.nic.bind(qp, window, work, buffer, access).expect("room for a bind");
        success(&self.take(fixture, Kind::Bind, 1)[0]);
        (window, slice)
    }

    /// Polls once into the inbox.
    pub(crate) fn poll(&mut self) -> usize {
        self.nic.poll(&mut self.inbox, 16).expect("a poll")
    }

    /// Waits for `count` completions of a kind and takes them, in order. Others stay.
    pub(crate) fn take(
        &mut self,
        fixture: &impl Fixture<Nic = N>,
        kind: Kind,
        count: usize,
    ) -> Vec<Completion> {
        let end = Instant::now() + LIMIT;
        loop {
            self.poll();
            if self.inbox.iter().filter(|completion| completion.kind == kind).count() >= count {
                break;
            }
            assert!(
                Instant::now() < end,
                "waited in vain for {count} completions of kind {kind:?}; there are {:?}",
                self.inbox
            );
            fixture.pause();
        }
        let mut taken = Vec::with_capacity(count);
        let mut index = 0;
        while taken.len() < count {
            if self.inbox[index].kind == kind {
                taken.push(self.inbox.remove(index));
            } else {
                index += 1;
            }
        }
        taken
    }

    /// Asserts that nothing else has completed.
    pub(crate) fn assert_quiet(&mut self) {
        self.poll();
        assert!(self.inbox.is_empty(), "nothing more should complete: {:?}", self.inbox);
    }

    /// Takes whatever has come.
    pub(crate) fn drain(&mut self) -> Vec<Completion> {
        while self.poll() > 0 {}
        std::mem::take(&mut self.inbox)
    }
}

/// Two connected sides.
pub(crate) struct Pair<N> {
    pub(crate) a: Side<N>,
    pub(crate) b: Side<N>,
}

impl<N: Nic> Pair<N> {
    /// Connected queue pairs with receives of their own.
    pub(crate) fn new(fixture: &impl Fixture<Nic = N>) -> Self {
        Self::with(fixture, Sizes::default(), &spec())
    }

    pub(crate) fn with(fixture: &impl Fixture<Nic = N>, sizes: Sizes, spec: &QueuePairSpec) -> Self {
        let mut pair = Self::unconnected(fixture, sizes, spec);
        pair.connect();
        pair
    }

    pub(crate) fn unconnected(fixture: &impl Fixture<Nic = N>, sizes: Sizes, spec: &QueuePairSpec) -> Self {
        let (a, b) = fixture.pair(sizes);
        Self { a: Side::new(a, spec), b: Side::new(b, spec) }
    }

    pub(crate) fn connect(&mut self) {
        let (a, b) = (self.a.qp, self.b.qp);
        connect(&mut self.a.nic, a, &mut self.b.nic, b);
    }
}

/// Connects two queue pairs.
pub(crate) fn connect<N: Nic>(a: &mut N, a_qp: QueuePairId, b: &mut N, b_qp: QueuePairId) {
    let (at_a, at_b) = (a.endpoint(a_qp), b.endpoint(b_qp));
    let (at_a, at_b) = (at_a.expect("an endpoint"), at_b.expect("an endpoint"));
    a.accept(a_qp, &at_b).expect("a accepts");
    b.connect(b_qp, &at_a).expect("b connects");
    a.activate(a_qp).expect("a activates");
}

/// Queue pairs of moderate size with receives of their own, that detect a dead peer quickly.
pub(crate) fn spec() -> QueuePairSpec {
    QueuePairSpec {
        send_depth: 64,
        recv_depth: Some(64),
        ack_timeout: 12,
        retry: 3,
        ..QueuePairSpec::default()
    }
}

/// A signalled request.
pub(crate) fn signaled(work: WorkId, payload: Payload<'_>) -> Request<'_> {
    Request::signaled(work, Operation::Send { immediate: None }, payload)
}

/// An unsignalled send.
pub(crate) fn unsignaled(work: WorkId, payload: Payload<'_>) -> Request<'_> {
    Request::unsignaled(work, Operation::Send { immediate: None }, payload)
}

/// Asserts success and returns what arrived.
pub(crate) fn success(completion: &Completion) -> byway_rdma::nic::Success {
    completion.outcome.unwrap_or_else(|failure| panic!("{:?} failed: {failure}", completion.kind))
}

/// Asserts failure and returns the reason.
pub(crate) fn failure(completion: &Completion) -> Status {
    match completion.outcome {
        Ok(_) => panic!("{:?} should have failed", completion.kind),
        Err(failure) => failure.status,
    }
}

/// The only buffer that a completion returned.
pub(crate) fn buffer_of(completion: Completion) -> Buffer {
    let mut buffers = completion.payload.into_buffers();
    assert_eq!(buffers.len(), 1, "one buffer comes back");
    buffers.remove(0)
}

/// `len` bytes that differ between seeds and along their length.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(step).collect()
}
