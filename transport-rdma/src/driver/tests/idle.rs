//! What a connection that does nothing costs.

use super::hostile::limits;
use super::world::World;
use crate::options::RdmaOptions;
use crate::protocol::credit::MIN_WINDOW;
use crate::sim::{FabricOptions, SimNicOptions};

const CONNECTIONS: u32 = 1000;

/// A thousand connections of one host, each of which has been used and is idle.
#[test]
fn a_thousand_idle_connections_hold_three_receives_each_and_no_other_memory() {
    let mut world = World::new(FabricOptions::default());
    let nic = SimNicOptions {
        nics_max: 4096,
        queue_pairs_max: 4096,
        shared_receives: 8192,
        ..SimNicOptions::default()
    };
    let options =
        RdmaOptions { receive_size: 4096, spin: std::time::Duration::ZERO, ..RdmaOptions::default() };
    for _ in 0..2 {
        world.add_host(&nic, options.clone());
    }
    for _ in 0..CONNECTIONS {
        world.connect([1, 0], limits()).expect("there are receives");
    }
    // A question and its answer over each, so that everything that a connection makes is there.
    for link in 0..CONNECTIONS as usize {
        let driver = world.links[link].sides[0].driver.as_mut().expect("it runs");
        driver.with(|turn| turn.ping());
    }
    loop {
        let ready = world.ready();
        ready.iter().for_each(|&(link, side)| assert!(world.poll(link, side).is_empty()));
        match world.fabric.next_at() {
            Some(at) => world.fabric.advance_to(at),
            None if ready.is_empty() => break,
            None => {}
        }
    }
    for host in &world.hosts {
        let (posted, free) = host.receives();
        assert_eq!(posted - free, MIN_WINDOW * CONNECTIONS, "the least that works");
        assert_eq!(host.adapter.shared_posted(), posted as usize, "all of them are posted");
        let (left, unused) = host.pool.staging_accounts();
        assert_eq!(left + unused, options.staging, "no connection keeps staging");
        assert_eq!(host.pool.used(), (0, 0, 0));
        let registered = host.adapter.registered();
        let receives = u64::from(posted) * u64::from(options.receive_size);
        let staging = (options.staging - left) as u64;
        assert_eq!(registered, receives + staging, "{posted} receives, and staging that all share");
        let each = (registered - staging) / u64::from(CONNECTIONS);
        println!("{each} bytes are registered for each connection, {staging} for all");
        assert!(each <= 4 * u64::from(options.receive_size), "three receives, and what is free of them");
    }
}
