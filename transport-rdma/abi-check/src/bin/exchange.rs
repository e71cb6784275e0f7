//! Exchanges messages between our layer and the `ibverbs` crate, both ways, over one device.
//!
//! Run it in the guest: `cargo xtask abi`. Two layers that were written apart and agree on the wire are each other's
//! check.

use std::time::{Duration, Instant};

use byway_rdma::memory::Memory;
use byway_rdma::nic::{Endpoint, Kind, Mtu, Nic, Payload, QueuePairSpec, Receive, RecvQueue, WorkId};
use byway_rdma::verbs::{NicOptions, VerbsNic};

const MESSAGES: usize = 100;
const SIZE: usize = 64;
const LIMIT: Duration = Duration::from_secs(30);

fn main() {
    let mut nic = VerbsNic::open(&NicOptions::default()).expect("a device");
    let spec = QueuePairSpec { recv_depth: Some(MESSAGES as u32), ..QueuePairSpec::default() };
    let qp = nic.create_queue_pair(&spec).expect("a queue pair");
    let ours = nic.endpoint(qp).expect("an endpoint");

    let devices = ibverbs::devices().expect("a list of devices");
    let context = devices.iter().next().expect("a device").open().expect("an open device");
    let gid_index = u32::from(nic.located().gid.index);
    let domain = context.alloc_pd().expect("a domain");
    let completions = context.create_cq(2 * MESSAGES as i32, 0).expect("a completion queue");
    let prepared = domain
        .create_qp(&completions, &completions, ibverbs::ibv_qp_type::IBV_QPT_RC)
        .set_gid_index(gid_index)
        .set_timeout(14)
        .set_rq_psn(ours.first_psn)
        .set_max_send_wr(MESSAGES as u32)
        .set_max_recv_wr(MESSAGES as u32)
        .build()
        .expect("a queue pair");
    let theirs = prepared.endpoint();

    post_receives(&mut nic, RecvQueue::Own(qp));
    let peer = Endpoint {
        // Both sides are on one port and use the same address.
        gid: ours.gid,
        lid: theirs.lid,
        number: theirs.num,
        // The crate always starts at zero.
        first_psn: 0,
        mtu: Mtu::B1024,
    };
    let mut remote = theirs;
    remote.num = ours.number;
    nic.accept(qp, &peer).expect("accepted");
    let mut their_qp = prepared.handshake(remote).expect("their side connects");
    nic.activate(qp).expect("activated");

    // Theirs to ours.
    let mut memory = domain.allocate::<u8>(SIZE * MESSAGES).expect("memory");
    for index in 0..MESSAGES {
        memory[index * SIZE..][..SIZE].copy_from_slice(&message(1, index));
        their_send(&mut their_qp, &mut memory, index);
    }
    wait_theirs(&completions, MESSAGES);
    let mut inbox = Vec::new();
    let end = Instant::now() + LIMIT;
    while inbox.len() < MESSAGES {
        nic.poll(&mut inbox, 16).expect("a poll");
        assert!(Instant::now() < end, "only {} messages came", inbox.len());
    }
    for (index, completion) in inbox.drain(..).enumerate() {
        assert!(completion.outcome.is_ok(), "{completion:?}");
        assert_eq!(completion.payload.into_buffers()[0].filled(), message(1, index));
    }
    println!("ibverbs crate -> byway: {MESSAGES} messages");

    // Ours to theirs.
    memory.fill(0);
    for index in 0..MESSAGES {
        their_receive(&mut their_qp, &mut memory, index);
    }
    for index in 0..MESSAGES {
        let bytes = message(2, index);
        nic.post_send(qp, WorkId(index as u64), Payload::Inline(&bytes), None).expect("room");
    }
    wait_theirs(&completions, MESSAGES);
    for index in 0..MESSAGES {
        assert_eq!(memory[index * SIZE..][..SIZE], message(2, index));
    }
    while inbox.len() < MESSAGES {
        nic.poll(&mut inbox, 16).expect("a poll");
        assert!(Instant::now() < end, "only {} sends completed", inbox.len());
    }
    assert!(inbox.iter().all(|sent| sent.kind == Kind::Send && sent.outcome.is_ok()));
    println!("byway -> ibverbs crate: {MESSAGES} messages");
}

fn message(seed: u8, index: usize) -> [u8; SIZE] {
    std::array::from_fn(|at| seed.wrapping_mul(31).wrapping_add((index * 7 + at) as u8))
}

fn post_receives(nic: &mut VerbsNic, queue: RecvQueue) {
    let memory = Memory::allocate(SIZE * MESSAGES).expect("memory");
    let buffers = nic.register(memory).expect("a registration").into_buffers(SIZE);
    let receive = |(index, buffer)| Receive { work: WorkId(index as u64), buffer };
    let mut batch = buffers.into_iter().take(MESSAGES).enumerate().map(receive).collect();
    nic.post_recv(queue, &mut batch).expect("room");
}

/// Waits for successful completions on their side.
fn wait_theirs(queue: &ibverbs::CompletionQueue<'_>, count: usize) {
    let end = Instant::now() + LIMIT;
    let mut seen = 0;
    let mut slots = [ibverbs::ibv_wc::default(); 16];
    while seen < count {
        for completion in queue.poll(&mut slots).expect("a poll").iter() {
            assert!(completion.is_valid(), "{:?}", completion.error());
            seen += 1;
        }
        assert!(Instant::now() < end, "only {seen} of their requests completed");
    }
}

#[expect(unsafe_code, reason = "the crate leaves posting unsafe")]
fn their_send(qp: &mut ibverbs::QueuePair<'_>, memory: &mut ibverbs::MemoryRegion<u8>, index: usize) {
    let range = index * SIZE..(index + 1) * SIZE;
    // SAFETY: the region outlives the request, whose completion the caller waits for before it changes the bytes.
    unsafe { qp.post_send(memory, range, index as u64) }.expect("room for a send");
}

#[expect(unsafe_code, reason = "the crate leaves posting unsafe")]
fn their_receive(qp: &mut ibverbs::QueuePair<'_>, memory: &mut ibverbs::MemoryRegion<u8>, index: usize) {
    let range = index * SIZE..(index + 1) * SIZE;
    // SAFETY: the region outlives the request, whose completion the caller waits for before it reads the bytes.
    unsafe { qp.post_receive(memory, range, index as u64) }.expect("room for a receive");
}
