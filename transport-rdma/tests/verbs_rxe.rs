//! What `verbs` can do beyond the NIC trait, on a kernel device, and that nothing leaks.
//!
//! Run it with `cargo xtask test`. Some cases change the guest's network interface, so they need the guest.

#[path = "runner/device.rs"]
mod device;
mod runner;

use std::fs;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;
use std::time::{Duration, Instant};

use byway_rdma::memory::{Buffer, Exposed, Memory};
use byway_rdma::nic::{
    Adapter, Completion, Event, Kind, Nic, Payload, QueuePairId, QueuePairSpec, Receive, RecvQueue,
    RemoteSlice, Status, WorkId,
};
use byway_rdma::verbs::{
    Atomic, CompletionChannel, CompletionQueue, DeviceChoice, NicOptions, QueuePair, VerbsAdapter, VerbsNic,
    allocate_huge, best_gid, open_all,
};

const LIMIT: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let all: [(&str, fn()); 14] = [
        ("read: remote memory arrives, and only within its bounds", read),
        ("atomics: old values come back and the sums are right", atomics),
        ("exposed memory is out of reach once withdrawn", withdrawn),
        ("huge pages are registered and written like others", huge_pages),
        ("errors name the verb, the object and what to do", errors),
        ("a device that does not exist is named", no_such_device),
        ("a child process does not disturb receives", child_process),
        ("the shared queue tells when it runs low", low_mark),
        ("the error state is seen from outside", error_state),
        ("class, level and timer of a connection are the caller's", path_settings),
        ("port events and address changes are reported", port_events),
        ("an event finds its way to a NIC that did not ask", routed_events),
        ("an address behind a hole of the table works", gid_hole),
        ("1,000 queue pairs, 200 NICs and 10,000 registrations leave nothing behind", no_leaks),
    ];
    device::with_device("verbs", |filter| {
        let chosen: Vec<_> = all.into_iter().filter(|(name, _)| name.contains(filter)).collect();
        runner::run("verbs", &chosen)
    })
}

fn open(choice: DeviceChoice) -> VerbsNic {
    let options = NicOptions { choice, completions: 1024, shared_receives: 64 };
    VerbsNic::open(&options).expect("the device was probed")
}

/// A NIC with two queue pairs that are connected to each other.
struct Loop {
    nic: VerbsNic,
    a: QueuePairId,
    b: QueuePairId,
    inbox: Vec<Completion>,
}

impl Loop {
    fn new() -> Self {
        Self::on(open(DeviceChoice::default()), Some(16))
    }

    fn on(nic: VerbsNic, recv_depth: Option<u32>) -> Self {
        Self::with(nic, QueuePairSpec { send_depth: 16, recv_depth, ..QueuePairSpec::default() })
    }

    fn with(mut nic: VerbsNic, spec: QueuePairSpec) -> Self {
        let a = nic.create_queue_pair(&spec).expect("a queue pair");
        let b = nic.create_queue_pair(&spec).expect("a queue pair");
        let at = |nic: &VerbsNic, qp| nic.endpoint(qp).expect("an endpoint");
        let (at_a, at_b) = (at(&nic, a), at(&nic, b));
        nic.connect(a, &at_b).expect("a connects");
        nic.connect(b, &at_a).expect("b connects");
        Self { nic, a, b, inbox: Vec::new() }
    }

    fn buffer(&mut self, len: usize) -> Buffer {
        let memory = Memory::allocate(len).expect("memory");
        self.nic.register(memory).expect("a registration").into_buffer()
    }

    fn expose(&self, len: usize) -> Exposed {
        let memory = Memory::allocate(len).expect("memory");
        self.nic.domain().expose(memory).expect("a registration")
    }

    fn post_recv(&mut self, queue: RecvQueue, work: WorkId) {
        let buffer = self.buffer(4096);
        self.nic.post_recv(queue, &mut vec![Receive { work, buffer }]).expect("room");
    }

    fn take(&mut self, kind: Kind) -> Completion {
        let end = Instant::now() + LIMIT;
        loop {
            self.nic.poll(&mut self.inbox, 16).expect("a poll");
            if let Some(at) = self.inbox.iter().position(|completion| completion.kind == kind) {
                return self.inbox.remove(at);
            }
            assert!(Instant::now() < end, "no {kind:?} came; there are {:?}", self.inbox);
            std::thread::yield_now();
        }
    }

    /// One message from a to b.
    fn exchange(&mut self, bytes: &[u8]) {
        let (a, b) = (self.a, self.b);
        self.post_recv(RecvQueue::Own(b), WorkId(1));
        self.nic.post_send(a, WorkId(2), Payload::Inline(bytes), None).expect("room");
        let received = self.take(Kind::Receive);
        assert!(received.outcome.is_ok(), "{received:?}");
        assert_eq!(received.payload.into_buffers()[0].filled(), bytes);
        assert!(self.take(Kind::Send).outcome.is_ok());
    }
}

fn slice(exposed: &Exposed, offset: u64, len: u64) -> RemoteSlice {
    RemoteSlice { address: exposed.address() + offset, len, key: exposed.remote_key() }
}

fn read() {
    let mut pair = Loop::new();
    let remote = pair.expose(4096);
    remote.write(100, b"far away");
    let (buffer, small) = (pair.buffer(4096), pair.buffer(4096));
    let queue_pair = pair.nic.queue_pair(pair.a).expect("a queue pair");
    queue_pair.post_read(WorkId(1), buffer, slice(&remote, 100, 8)).expect("room");
    let refused = queue_pair.post_read(WorkId(2), small, slice(&remote, 0, 4097));
    let small = refused.expect_err("more than the buffer holds").returned;
    let done = pair.take(Kind::Read);
    assert_eq!(done.outcome.expect("allowed").len, 8);
    assert_eq!(done.payload.into_buffers()[0].filled(), b"far away");
    let queue_pair = pair.nic.queue_pair(pair.a).expect("a queue pair");
    queue_pair.post_read(WorkId(3), small, slice(&remote, 4090, 8)).expect("room");
    let beyond = pair.take(Kind::Read);
    assert_eq!(beyond.outcome.expect_err("out of bounds").status, Status::RemoteAccess);
}

fn atomics() {
    let mut pair = Loop::new();
    let remote = pair.expose(4096);
    remote.write(8, &5u64.to_ne_bytes());
    let target = slice(&remote, 8, 8);
    let steps = [
        (Atomic::FetchAdd(37), 5),
        (Atomic::CompareSwap { expected: 42, new: 7 }, 42),
        (Atomic::CompareSwap { expected: 42, new: 8 }, 7),
        (Atomic::FetchAdd(u64::MAX), 7),
    ];
    for (index, (atomic, old)) in steps.into_iter().enumerate() {
        let buffer = pair.buffer(8);
        let queue_pair = pair.nic.queue_pair(pair.a).expect("a queue pair");
        queue_pair.post_atomic(WorkId(index as u64), buffer, target, atomic).expect("room");
        let done = pair.take(Kind::Atomic);
        assert!(done.outcome.is_ok(), "{done:?}");
        assert_eq!(done.payload.into_buffers()[0].filled(), u64::to_ne_bytes(old), "{atomic:?}");
    }
    let mut now = [0; 8];
    remote.read(8, &mut now);
    assert_eq!(u64::from_ne_bytes(now), 6);
}

fn withdrawn() {
    let mut pair = Loop::new();
    let remote = pair.expose(4096);
    let target = slice(&remote, 0, 4);
    pair.nic.post_write(pair.a, WorkId(1), Payload::Inline(b"here"), target, None).expect("room");
    assert!(pair.take(Kind::Write).outcome.is_ok());
    let mut bytes = [0; 4];
    remote.read(0, &mut bytes);
    assert_eq!(&bytes, b"here");
    drop(remote);
    pair.nic.post_write(pair.a, WorkId(2), Payload::Inline(b"gone"), target, None).expect("room");
    assert_eq!(pair.take(Kind::Write).outcome.expect_err("withdrawn").status, Status::RemoteAccess);
}

fn huge_pages() {
    let mut pair = Loop::new();
    let memory = allocate_huge(3 << 20).expect("memory");
    assert_eq!((memory.len(), memory.address() % (2 << 20)), (4 << 20, 0));
    println!("    the system agreed to huge pages: {}", memory.is_huge());
    let mut buffers = pair.nic.register(memory).expect("a registration").into_buffers(2 << 20);
    let (landing, mut source) = (buffers.pop().expect("two"), buffers.pop().expect("two"));
    source.set_filled(2 << 20);
    source.bytes_mut().fill(0x5A);
    let b = pair.b;
    let mut batch = vec![Receive { work: WorkId(1), buffer: landing }];
    pair.nic.post_recv(RecvQueue::Own(b), &mut batch).expect("room");
    pair.nic.post_send(pair.a, WorkId(2), Payload::buffer(source), None).expect("room");
    let landed = pair.take(Kind::Receive).payload.into_buffers().remove(0);
    assert!(landed.filled().len() == 2 << 20 && landed.filled().iter().all(|&byte| byte == 0x5A));
}

fn errors() {
    let contexts = open_all().expect("the library");
    let channel = CompletionChannel::create(&contexts[0]).expect("a channel");
    let error = CompletionQueue::create(&channel, 1 << 30).expect_err("beyond any device");
    let text = error.to_string();
    assert!(text.contains("ibv_create_cq failed for a queue of 1073741824 entries on rxe0"), "{text}");
    let mut nic = open(DeviceChoice::default());
    let spec = QueuePairSpec { send_depth: 900, pieces_max: 10_000, ..QueuePairSpec::default() };
    let text = nic.create_queue_pair(&spec).expect_err("too many pieces").to_string();
    assert!(text.contains("ibv_create_qp failed for a queue pair of 900 sends"), "{text}");
    assert!(text.contains("beyond what the device supports"), "{text}");
}

fn no_such_device() {
    let options = NicOptions {
        choice: DeviceChoice { device: Some("mlx5_7".into()), ..DeviceChoice::default() },
        ..NicOptions::default()
    };
    let error = VerbsNic::open(&options).expect_err("it does not exist");
    assert_eq!(error.to_string(), "there is no RDMA device named mlx5_7; there is rxe0");
}

/// A child shares pages with its parent until one of them writes. The device must keep writing to the parent's.
fn child_process() {
    let mut pair = Loop::new();
    let b = pair.b;
    for work in 0..4 {
        pair.post_recv(RecvQueue::Own(b), WorkId(work));
    }
    let mut child = Command::new("cat").stdin(std::process::Stdio::piped()).spawn().expect("cat runs");
    for round in 0..4u8 {
        pair.nic.post_send(pair.a, WorkId(9), Payload::Inline(&[round; 50]), None).expect("room");
        let received = pair.take(Kind::Receive);
        assert_eq!(received.payload.into_buffers()[0].filled(), [round; 50]);
    }
    drop(child.stdin.take());
    assert!(child.wait().expect("cat ends").success());
}

fn low_mark() {
    let mut pair = Loop::on(open(DeviceChoice::default()), None);
    for work in 0..4 {
        pair.post_recv(RecvQueue::Shared, WorkId(work));
    }
    pair.nic.set_shared_low_mark(3).expect("a low mark");
    for _ in 0..3 {
        pair.nic.post_send(pair.a, WorkId(9), Payload::Empty, None).expect("room");
        pair.take(Kind::Receive);
    }
    assert_eq!(wait_for_event(&mut pair.nic, |event| event == Event::SharedReceiveLow), 1);
}

fn wait_for_event(nic: &mut VerbsNic, wanted: impl Fn(Event) -> bool) -> usize {
    let end = Instant::now() + LIMIT;
    let mut events = Vec::new();
    loop {
        nic.take_events(&mut events).expect("events");
        let count = events.iter().filter(|&&event| wanted(event)).count();
        if count > 0 {
            return count;
        }
        assert!(Instant::now() < end, "the event never came; there are {events:?}");
        std::thread::yield_now();
    }
}

fn error_state() {
    let pair = Loop::new();
    let failed = || pair.nic.queue_pair(pair.a).and_then(|qp| Ok(QueuePair::is_failed(qp)?));
    assert!(!failed().expect("a query"));
    pair.nic.queue_pair(pair.a).expect("a queue pair").fail().expect("the error state");
    assert!(failed().expect("a query"));
}

fn ip(args: &str) {
    let status = Command::new("ip").args(args.split(' ')).status().expect("ip runs");
    assert!(status.success(), "ip {args}");
}

fn port_events() {
    let mut nic = open(DeviceChoice::default());
    ip("link set rdma0 down");
    wait_for_event(&mut nic, |event| event == Event::PortDown(1));
    ip("link set rdma0 up");
    wait_for_event(&mut nic, |event| event == Event::PortUp(1));
    ip("addr add 10.99.1.1/24 dev rdma0");
    wait_for_event(&mut nic, |event| matches!(event, Event::AddressesChanged(1)));
    ip("addr del 10.99.1.1/24 dev rdma0");
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// All NICs of an adapter have one queue of events at the device: who takes from it takes for all.
fn routed_events() {
    let adapter = VerbsAdapter::open(&DeviceChoice::default(), 16).expect("the device was probed");
    let [mut asks, mut sleeps] = [(); 2].map(|()| adapter.nic(64, 16).expect("a NIC"));
    let flag = Arc::new(Flag(AtomicBool::new(false)));
    sleeps.set_event_waker(Some(Arc::clone(&flag).into()));
    let came = |nic: &mut VerbsNic, event| {
        let mut events = Vec::new();
        nic.take_events(&mut events).expect("events");
        events.contains(&event)
    };
    ip("link set rdma0 down");
    wait_for_event(&mut asks, |event| event == Event::PortDown(1));
    assert!(flag.0.swap(false, Ordering::Relaxed), "it was not woken");
    assert!(came(&mut sleeps, Event::PortDown(1)));
    ip("link set rdma0 up");
    let end = Instant::now() + LIMIT;
    while !flag.0.load(Ordering::Relaxed) {
        adapter.route_events().expect("events");
        assert!(Instant::now() < end, "no event came");
        std::thread::yield_now();
    }
    wait_for_event(&mut sleeps, |event| event == Event::PortUp(1));
    assert!(came(&mut asks, Event::PortUp(1)));
}

fn path_settings() {
    // Code 28: a sender that met no receive waits 164 ms.
    let spec = QueuePairSpec {
        send_depth: 16,
        recv_depth: Some(16),
        min_rnr_timer: 28,
        traffic_class: 104,
        service_level: 3,
        ..QueuePairSpec::default()
    };
    let mut pair = Loop::with(open(DeviceChoice::default()), spec);
    pair.exchange(b"in a class of its own");
    let start = Instant::now();
    pair.nic.post_send(pair.a, WorkId(1), Payload::Inline(b"too early"), None).expect("room");
    std::thread::sleep(Duration::from_millis(20));
    pair.post_recv(RecvQueue::Own(pair.b), WorkId(2));
    assert!(pair.take(Kind::Receive).outcome.is_ok());
    assert!(
        start.elapsed() >= Duration::from_millis(164),
        "the default would have been {:?}",
        start.elapsed()
    );
}

fn gid_hole() {
    let context = Arc::clone(&open(DeviceChoice::default()).located().context);
    ip("addr add 10.99.7.1/24 dev rdma0");
    ip("addr add 10.99.8.1/24 dev rdma0");
    ip("addr del 10.99.7.1/24 dev rdma0");
    let ipv4 = |last: [u8; 4]| {
        let mut raw = [0; 16];
        (raw[10], raw[11]) = (0xff, 0xff);
        raw[12..].copy_from_slice(&last);
        raw
    };
    let (gone, behind) = (ipv4([10, 99, 7, 1]), ipv4([10, 99, 8, 1]));
    let end = Instant::now() + LIMIT;
    let gids = loop {
        let port = context.port(1).expect("port 1");
        let gids = context.gids(&port).expect("addresses");
        let has = |raw| gids.iter().any(|gid| gid.raw == raw);
        if has(behind) && !has(gone) {
            break gids;
        }
        assert!(Instant::now() < end, "the table never settled: {gids:?}");
    };
    let last = gids.iter().find(|gid| gid.raw == behind).expect("the new address");
    assert!(usize::from(last.index) >= gids.len(), "there is a hole before it: {gids:?}");
    assert!(best_gid(&gids).is_some());
    let choice = DeviceChoice { gid_index: Some(last.index), ..DeviceChoice::default() };
    let mut pair = Loop::on(open(choice), Some(16));
    pair.exchange(b"over the hole");
    ip("addr del 10.99.8.1/24 dev rdma0");
}

/// What a process holds: descriptors, pinned pages in KiB, resident memory in KiB.
fn holdings() -> (usize, u64, u64) {
    let descriptors = fs::read_dir("/proc/self/fd").expect("proc").count();
    let status = fs::read_to_string("/proc/self/status").expect("proc");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a known field");
        line.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
    };
    (descriptors, field("VmPin:"), field("VmRSS:"))
}

fn no_leaks() {
    let mut nic = open(DeviceChoice::default());
    let nothing = holdings();
    let held = nic.register(Memory::allocate(1 << 20).expect("memory")).expect("a registration");
    assert_eq!(holdings().1, nothing.1 + 1024, "the measure sees a region of 1 MiB");
    drop(held);
    // What the first uses allocate once is no leak.
    cycle_queue_pairs(&mut nic, 300);
    cycle_nics(nic.adapter(), 50);
    cycle_registrations(&mut nic, 1000);
    let before = holdings();
    cycle_queue_pairs(&mut nic, 1000);
    cycle_nics(nic.adapter(), 200);
    let between = holdings();
    cycle_registrations(&mut nic, 10_000);
    let after = holdings();
    println!("    descriptors, pinned KiB, resident KiB: {before:?} before");
    println!("    {between:?} after 1,000 queue pairs and 200 NICs, {after:?} after 10,000 registrations");
    for now in [between, after] {
        assert_eq!((now.0, now.1), (before.0, before.1), "descriptors and pinned memory");
        assert!(now.2 as f64 <= before.2 as f64 * 1.05, "resident memory grew beyond 5 %");
    }
}

/// Connects, uses and destroys pairs of queue pairs, so `count` queue pairs in all.
fn cycle_queue_pairs(nic: &mut VerbsNic, count: usize) {
    let spec = QueuePairSpec { send_depth: 16, recv_depth: Some(4), ..QueuePairSpec::default() };
    let mut completions = Vec::new();
    let memory = Memory::allocate(4096).expect("memory");
    let mut buffer = Some(nic.register(memory).expect("a registration").into_buffer());
    for _ in 0..count / 2 {
        let [a, b] = [(); 2].map(|()| nic.create_queue_pair(&spec).expect("a queue pair"));
        let (at_a, at_b) = (nic.endpoint(a), nic.endpoint(b));
        nic.connect(a, &at_b.expect("an endpoint")).expect("a connects");
        nic.connect(b, &at_a.expect("an endpoint")).expect("b connects");
        let receive = Receive { work: WorkId(1), buffer: buffer.take().expect("it came back") };
        nic.post_recv(RecvQueue::Own(b), &mut vec![receive]).expect("room");
        nic.post_send(a, WorkId(2), Payload::Inline(b"once"), None).expect("room");
        let end = Instant::now() + LIMIT;
        while completions.len() < 2 {
            nic.poll(&mut completions, 4).expect("a poll");
            assert!(Instant::now() < end, "only {completions:?} came");
        }
        for completion in completions.drain(..) {
            assert!(completion.outcome.is_ok(), "{completion:?}");
            buffer = completion.payload.into_buffers().pop().or(buffer);
        }
        nic.destroy_queue_pair(a).expect("a queue pair");
        nic.destroy_queue_pair(b).expect("a queue pair");
    }
}

/// Makes NICs on one adapter and drops them with a queue pair that waits for shared receives.
fn cycle_nics(adapter: &VerbsAdapter, count: usize) {
    let spec = QueuePairSpec { send_depth: 16, recv_depth: None, ..QueuePairSpec::default() };
    for _ in 0..count {
        let mut nic = adapter.nic(128, 64).expect("a NIC");
        let qp = nic.create_queue_pair(&spec).expect("a queue pair");
        nic.accept(qp, &nic.endpoint(qp).expect("an endpoint")).expect("it accepts itself");
        nic.activate(qp).expect("it is connected to itself");
        nic.post_send(qp, WorkId(1), Payload::Inline(b"nobody receives this"), None).expect("room");
    }
}

fn cycle_registrations(nic: &mut VerbsNic, count: usize) {
    for _ in 0..count {
        let memory = Memory::allocate(64 * 1024).expect("memory");
        drop(nic.register(memory).expect("a registration"));
    }
}
