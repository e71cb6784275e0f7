//! Everything that keeps a connection from RDMA before its first call, and what a person is told.

use bytes::Bytes;
use byway::testing::{Delays, Fabric, FabricOptions, Fault, Progress, SimAdapter, SimNicOptions};
use byway::{Rdma, RdmaOptions};
use byway_rdma::protocol::offer::Extension;
use std::time::Duration;

use crate::front::{Manner, endpoint_of_another_version};

/// One of them.
pub(crate) struct Cause {
    pub(crate) name: &'static str,
    /// What the reason must say.
    pub(crate) reason: &'static str,
    /// TCP connections that the first call takes.
    pub(crate) connections: usize,
    pub(crate) place: fn() -> Place,
}

/// Both sides, and what is between them.
pub(crate) struct Place {
    pub(crate) client: Rdma,
    pub(crate) server: Rdma,
    pub(crate) manner: Manner,
}

/// Long enough that a machine with other things to do still sends both verdicts in time.
const AGREEMENT: Duration = Duration::from_secs(2);

/// Never, in a test.
const NEVER: Duration = Duration::from_secs(24 * 3600);

pub(crate) fn options() -> RdmaOptions {
    RdmaOptions { agreement_timeout: AGREEMENT, retry_after: NEVER, ..RdmaOptions::default() }
}

/// A network in which everything arrives at once.
pub(crate) fn network() -> Fabric {
    Fabric::new(FabricOptions {
        delays: Delays::NONE,
        progress: Progress::AtOnce,
        ..FabricOptions::default()
    })
}

fn simulated(adapter: SimAdapter) -> Rdma {
    Rdma::simulated(adapter, options())
}

fn sound(fabric: &Fabric) -> SimAdapter {
    fabric.adapter(&SimNicOptions::default())
}

/// Sound devices, and a peer or a network that is not.
fn between(manner: Manner) -> Place {
    let fabric = network();
    let [client, server] = [(); 2].map(|()| simulated(sound(&fabric)));
    Place { client, server, manner }
}

/// The client's device or the server's is made with these options.
fn device(of_client: bool, odd: SimNicOptions) -> Place {
    with_rdma(of_client, |fabric| simulated(fabric.adapter(&odd)))
}

/// The client has this instead of a sound device, or the server has.
fn with_rdma(client: bool, make: impl FnOnce(&Fabric) -> Rdma) -> Place {
    let fabric = network();
    let (odd, sound) = (make(&fabric), simulated(sound(&fabric)));
    let (client, server) = if client { (odd, sound) } else { (sound, odd) };
    Place { client, server, manner: Manner::Carries }
}

/// These faults happen after the client has made its offer.
fn faults(make: impl FnOnce(&SimAdapter, &SimAdapter) -> Vec<Fault>) -> Place {
    let fabric = network();
    let [client, server] = [(); 2].map(|()| sound(&fabric));
    let manner = Manner::Faults(fabric, make(&client, &server));
    Place { client: simulated(client), server: simulated(server), manner }
}

const NO_MEMORY: SimNicOptions = SimNicOptions { memory_max: 0, ..USUAL };
const NO_QUEUE_PAIR: SimNicOptions = SimNicOptions { queue_pairs_max: 0, ..USUAL };
const NO_COMPLETION_QUEUE: SimNicOptions = SimNicOptions { nics_max: 0, ..USUAL };
const NO_SHARED_RECEIVES: SimNicOptions = SimNicOptions { shared_receives: 0, ..USUAL };

/// What [`SimNicOptions::default`] says, which is no constant.
const USUAL: SimNicOptions = SimNicOptions {
    completions: 16 * 1024,
    shared_receives: 1024,
    depth_max: 16 * 1024,
    pieces_max: 16,
    inline_max: 256,
    nics_max: 1024,
    queue_pairs_max: 1024,
    memory_max: u64::MAX,
    mtu: byway_rdma::nic::Mtu::B1024,
    windows: true,
    last_receive_event: false,
    failed_sends_wake: false,
};

fn small_receives(fabric: &Fabric) -> Rdma {
    Rdma::simulated(sound(fabric), RdmaOptions { receive_size: 1024, ..options() })
}

const SILENCE: &str = "no probe came over the queue pair within ";

/// All of them, each under the name of its test.
pub(crate) const CAUSES: &[Cause] = &[
    Cause {
        name: "client_may_lock_no_memory",
        reason: "this side does not use RDMA: receives cannot be posted: the simulated device refused: too much memory",
        connections: 1,
        place: || device(true, NO_MEMORY),
    },
    Cause {
        name: "server_may_lock_no_memory",
        reason: "the server does not use RDMA: receives cannot be posted: the simulated device refused: too much memory",
        connections: 1,
        place: || device(false, NO_MEMORY),
    },
    Cause {
        name: "client_has_no_queue_pair_left",
        reason: "this side does not use RDMA: a queue pair cannot be created: ",
        connections: 1,
        place: || device(true, NO_QUEUE_PAIR),
    },
    Cause {
        name: "server_has_no_queue_pair_left",
        reason: "the server does not use RDMA: a queue pair cannot be created: ",
        connections: 1,
        place: || device(false, NO_QUEUE_PAIR),
    },
    Cause {
        name: "client_has_no_completion_queue_left",
        reason: "this side does not use RDMA: a queue pair cannot be created: the simulated device refused: it has no completion queue left",
        connections: 1,
        place: || device(true, NO_COMPLETION_QUEUE),
    },
    Cause {
        name: "server_has_no_completion_queue_left",
        reason: "the server does not use RDMA: a queue pair cannot be created: the simulated device refused: it has no completion queue left",
        connections: 1,
        place: || device(false, NO_COMPLETION_QUEUE),
    },
    Cause {
        name: "client_has_no_shared_receives",
        reason: "this side does not use RDMA: receives cannot be posted: the device or its options have no shared receives",
        connections: 1,
        place: || device(true, NO_SHARED_RECEIVES),
    },
    Cause {
        name: "server_has_no_shared_receives",
        reason: "the server does not use RDMA: receives cannot be posted: the device or its options have no shared receives",
        connections: 1,
        place: || device(false, NO_SHARED_RECEIVES),
    },
    Cause {
        name: "heads_do_not_fit_the_receives_of_the_client",
        reason: "this side does not use RDMA: heads of up to 16384 bytes (max_head) do not fit its receives of 1024: set receive_size to ",
        connections: 1,
        place: || with_rdma(true, small_receives),
    },
    Cause {
        name: "heads_do_not_fit_the_receives_of_the_server",
        reason: "the server does not use RDMA: heads of up to 16384 bytes (max_head) do not fit its receives of 1024: set receive_size to ",
        connections: 1,
        place: || with_rdma(false, small_receives),
    },
    Cause {
        name: "client_has_it_switched_off",
        reason: "this side does not use RDMA: the operator wants none",
        connections: 1,
        place: || with_rdma(true, |_| Rdma::off("the operator wants none")),
    },
    Cause {
        name: "server_has_it_switched_off",
        reason: "the server does not use RDMA: the operator wants none",
        connections: 1,
        place: || with_rdma(false, |_| Rdma::off("the operator wants none")),
    },
    Cause {
        name: "server_knows_nothing_of_rdma",
        reason: "the server offers no RDMA",
        connections: 1,
        place: || between(Manner::Native),
    },
    Cause {
        name: "server_offers_in_the_words_of_another_version",
        reason: "the peer describes its queue pair in no way that this version knows",
        connections: 1,
        place: || between(Manner::Offers(endpoint_of_another_version())),
    },
    Cause {
        name: "server_offers_what_is_cut_off",
        reason: "the peer's offer is cut off",
        connections: 1,
        place: || between(Manner::Offers(Bytes::from_static(b"\x01\0\xff\0new"))),
    },
    Cause {
        name: "server_declines_when_both_have_offered",
        reason: "the peer does not use RDMA: its operator says so",
        connections: 1,
        place: || between(Manner::Declines("its operator says so")),
    },
    Cause {
        name: "every_packet_is_lost",
        reason: SILENCE,
        connections: 1,
        place: || faults(|_, _| vec![Fault::Lose(1_000_000)]),
    },
    Cause {
        name: "packets_are_lost_on_the_way_to_the_server",
        reason: SILENCE,
        connections: 1,
        place: || faults(|client, server| vec![Fault::Block(client.id(), server.id())]),
    },
    Cause {
        name: "packets_are_lost_on_the_way_to_the_client",
        reason: SILENCE,
        connections: 1,
        place: || faults(|client, server| vec![Fault::Block(server.id(), client.id())]),
    },
    Cause {
        name: "port_of_the_server_goes_down",
        reason: SILENCE,
        connections: 1,
        place: || faults(|_, server| vec![Fault::LinkDown(server.id())]),
    },
    Cause {
        name: "port_of_the_client_goes_down",
        reason: SILENCE,
        connections: 1,
        place: || faults(|client, _| vec![Fault::LinkDown(client.id())]),
    },
    Cause {
        name: "device_of_the_server_stops",
        reason: SILENCE,
        connections: 1,
        place: || faults(|_, server| vec![Fault::Freeze(server.id())]),
    },
    Cause {
        name: "device_of_the_client_stops",
        reason: SILENCE,
        connections: 1,
        place: || faults(|client, _| vec![Fault::Freeze(client.id())]),
    },
    Cause {
        name: "device_of_the_server_fails",
        reason: "the server does not use RDMA: ",
        connections: 1,
        place: || faults(|_, server| vec![Fault::FailDevice(server.id())]),
    },
    Cause {
        name: "device_of_the_client_fails",
        reason: "the simulated device refused: it is gone",
        connections: 1,
        place: || faults(|client, _| vec![Fault::FailDevice(client.id())]),
    },
    Cause {
        name: "no_hello_comes",
        reason: "RDMA was offered, and no hello came within 2.0s",
        connections: 2,
        place: || between(Manner::Silent),
    },
    Cause {
        name: "server_closes_before_its_hello",
        reason: "RDMA was offered, and the peer closed the connection before it said hello",
        connections: 2,
        place: || between(Manner::Closes),
    },
    Cause {
        name: "no_verdict_comes",
        reason: "the peer did not say within ",
        connections: 2,
        place: || between(Manner::NoVerdict),
    },
    Cause {
        name: "server_closes_before_its_verdict",
        reason: "the peer closed the connection before it said whether it uses RDMA",
        connections: 2,
        place: || between(Manner::ClosesAfterHello),
    },
    Cause {
        name: "garbage_comes_instead_of_a_verdict",
        reason: "something else where the peer's verdict about RDMA should be",
        connections: 2,
        place: || between(Manner::Garbage),
    },
];

/// What the names say of offers holds.
pub(crate) fn offers_are_as_named() {
    assert!(matches!(Extension::decode(&endpoint_of_another_version()), Extension::Unusable(_)));
}
