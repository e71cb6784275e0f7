//! What is not copied, by address.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use byway_runtime::connection::Caller;
use byway_runtime::session::{Metadata, RequestHead};
use byway_runtime::{Call, CallRef, Carrier, Encoded, Inbound, Invoke, NewCall};

use super::hostile::{limits, options};
use super::world::World;
use crate::sim::{FabricOptions, SimNicOptions};

/// A message in a lease is written from there into the landing, and the landing is what its reader gets.
#[test]
fn a_large_message_in_a_lease_is_copied_by_nobody_but_the_nics() {
    let mut world = World::new(FabricOptions::default());
    for _ in 0..2 {
        world.add_host(&SimNicOptions::default(), options());
    }
    let link = world.connect([0, 1], limits()).expect("there are receives");
    let len = 600_000;
    let mut lease = world.hosts[0].pool.lease(len).expect("there is memory");
    lease.bytes_mut().fill(0x5a);
    let bytes = lease.freeze();
    assert!(world.hosts[0].pool.find(&bytes).is_some(), "what is sent lies in registered memory");
    let caller = Arc::new(Caller(Arc::clone(&world.links[link].sides[0].connection)));
    let metadata = Metadata::default().into_map();
    let message = Encoded(bytes.clone());
    let head = RequestHead { path: "/t.S/A", timeout: None, metadata: &metadata };
    let call = caller.start(&NewCall { message: Some(&message), end: true, ..NewCall::new(head) });
    let _call = call.expect("there is room");
    let (mut cx, mut server, mut landings) = (Context::from_waker(Waker::noop()), None, Vec::new());
    let arrived = loop {
        for (link, side) in world.ready() {
            for incoming in world.poll(link, side) {
                let carrier = Arc::clone(&world.links[link].sides[1].connection) as Arc<dyn Carrier>;
                server = Some(Call::new(CallRef::new(carrier, incoming.id)));
            }
            let driver = world.links[link].sides[1].driver.as_ref().expect("it runs");
            landings.extend(driver.nic().granted());
        }
        if let Some(server) = &mut server
            && let Poll::Ready(Inbound { message: Some(message), .. }) = server.poll_request(&mut cx)
        {
            break message;
        }
        let at = world.fabric.next_at().expect("it is on its way");
        assert!(at < Duration::from_secs(1));
        world.fabric.advance_to(at);
    };
    assert!(arrived.iter().all(|byte| *byte == 0x5a));
    assert_eq!(arrived.len(), len);
    let address = arrived.as_ptr() as u64;
    assert!(landings.contains(&address), "the message is where the peer's NIC wrote it");
    let (left, _) = world.hosts[0].pool.staging_accounts();
    assert_eq!(left, world.hosts[0].options.staging, "nothing was ever copied into staging");
}
