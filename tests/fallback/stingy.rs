//! A peer that agrees on RDMA and then posts no receive.

use bytes::{BufMut, BytesMut};
use byway::testing::{Fabric, SimNicOptions};
use byway_rdma::memory::Memory;
use byway_rdma::nic::{Kind, Nic, Payload, QueuePairSpec, Receive, RecvQueue, WorkId};
use byway_rdma::protocol::offer::{Capabilities, Extension, Offer, encode_verdict};
use tokio::net::TcpStream;

use crate::front::{hello_with, say, until_closed};

/// The credits that it promises, and one more for the probe that it took.
const CREDITS: u16 = 64;

/// Answers the offer in a client's hello, probes, says yes, and then `bytes` over TCP.
pub(crate) async fn serve(mut near: TcpStream, theirs: Offer, fabric: &Fabric, bytes: &[u8]) {
    let mut nic = fabric.nic(&SimNicOptions::default());
    let spec = QueuePairSpec { recv_depth: Some(1), ..QueuePairSpec::default() };
    let queue_pair = nic.create_queue_pair(&spec).expect("a sound device");
    let memory = Memory::allocate(4096).expect("memory");
    let slab = nic.register(memory).unwrap_or_else(|rejected| panic!("{}", rejected.error));
    let buffer = slab.into_buffers(4096).pop().expect("one buffer");
    let mut receives = vec![Receive { work: WorkId(0), buffer }];
    nic.post_recv(RecvQueue::Own(queue_pair), &mut receives).expect("there is a place");
    nic.connect(queue_pair, &theirs.endpoint).expect("the client's queue pair waits");
    let endpoint = nic.endpoint(queue_pair).expect("it is there");
    let capabilities = Capabilities {
        receive_depth: CREDITS,
        receive_size: 20 << 10,
        transfers: 4,
        offers: 0,
        windows: false,
    };
    let offer = Offer { endpoint, capabilities, nonce: 5 };
    say(&mut near, &hello_with(Extension::Offer(offer).encode())).await;

    let mut completions = Vec::new();
    while !completions.iter().any(|completion: &byway_rdma::nic::Completion| completion.kind == Kind::Receive)
    {
        nic.poll(&mut completions, 16).expect("a sound device");
        tokio::task::yield_now().await;
    }
    let probe = probe(theirs.nonce);
    let sent = nic.post_send(queue_pair, WorkId(1), Payload::Inline(&probe), None);
    sent.unwrap_or_else(|rejected| panic!("{}", rejected.error));
    say(&mut near, &encode_verdict(&Ok(()))).await;
    for part in bytes.chunks(5) {
        say(&mut near, part).await;
        tokio::task::yield_now().await;
    }
    until_closed(near).await;
}

/// A message with a probe, written down from docs/wire.md.
fn probe(nonce: u64) -> BytesMut {
    let mut bytes = BytesMut::new();
    bytes.put_u32_le(u32::from(CREDITS) + 1);
    bytes.put_slice(&[9, 0, 0]);
    bytes.put_u8(0);
    bytes.put_u8(10);
    bytes.put_u64_le(nonce);
    bytes
}
