//! Both sides of the agreement, with everything that can fail at each.

use std::collections::VecDeque;

use byway_runtime::session::Role;
use fastrand::Rng;

use super::super::handshake::{Action, Handshake, Outcome};
use super::super::offer::{Capabilities, Extension, Offer, Verdict};
use crate::nic::{Endpoint, Mtu};

pub(super) fn offer(nonce: u64) -> Offer {
    let endpoint = Endpoint { gid: [7; 16], lid: 0, number: 17, first_psn: 0xabcdef, mtu: Mtu::B1024 };
    let capabilities =
        Capabilities { receive_depth: 32, receive_size: 32 << 10, transfers: 16, offers: 8, windows: true };
    Offer { endpoint, capabilities, nonce }
}

const MAX_HEAD: u16 = 16 << 10;

/// Where something fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    ClientHasNone,
    ClientTooSmall,
    ServerHasNone,
    ServerTooSmall,
    Prepare,
    Connect,
    ClientProbeLost,
    ServerProbeLost,
    WrongNonce,
    ClientTimesOut,
    ServerTimesOut,
}

const FAULTS: [Fault; 12] = [
    Fault::None,
    Fault::ClientHasNone,
    Fault::ClientTooSmall,
    Fault::ServerHasNone,
    Fault::ServerTooSmall,
    Fault::Prepare,
    Fault::Connect,
    Fault::ClientProbeLost,
    Fault::ServerProbeLost,
    Fault::WrongNonce,
    Fault::ClientTimesOut,
    Fault::ServerTimesOut,
];

enum Input {
    Peer(Extension),
    Probe(u64),
    ProbeSent,
    Verdict(Verdict),
    Failure,
}

struct Side {
    role: Role,
    handshake: Handshake,
    /// What came over TCP and over the queue pair: each in order, not one with the other.
    tcp: VecDeque<Input>,
    queue_pair: VecDeque<Input>,
    outcome: Option<Outcome>,
}

impl Side {
    fn new(role: Role, handshake: Handshake) -> Self {
        Self { role, handshake, tcp: VecDeque::new(), queue_pair: VecDeque::new(), outcome: None }
    }

    fn take(&mut self, random: &mut Rng) -> bool {
        let first = random.bool();
        let (one, other) = (&mut self.tcp, &mut self.queue_pair);
        let input = if first {
            one.pop_front().or_else(|| other.pop_front())
        } else {
            other.pop_front().or_else(|| one.pop_front())
        };
        match input {
            None => return false,
            Some(Input::Peer(extension)) => self.handshake.handle_peer(extension, MAX_HEAD),
            Some(Input::Probe(nonce)) => self.handshake.handle_probe(nonce),
            Some(Input::ProbeSent) => self.handshake.handle_probe_sent(),
            Some(Input::Verdict(verdict)) => self.handshake.handle_verdict(verdict),
            Some(Input::Failure) => self.handshake.handle_failure("the time for RDMA is up"),
        }
        true
    }

    /// Does what is asked, into the peer's queues.
    fn act(&mut self, peer: &mut Self, fault: Fault) {
        while let Some(action) = self.handshake.poll_action() {
            assert_eq!(self.outcome, None, "nothing after the end");
            let role = self.role;
            match action {
                Action::Prepare(_) if fault == Fault::Prepare => {
                    self.handshake.handle_prepared(Err("no memory".into()))
                }
                Action::Prepare(_) => {
                    let mut own = offer(2);
                    if fault == Fault::ServerTooSmall {
                        own.capabilities.receive_depth = 2;
                    }
                    self.handshake.handle_prepared(Ok(own));
                }
                Action::SayHello(extension) => {
                    peer.tcp.push_back(Input::Peer(Extension::decode(&extension.encode())))
                }
                Action::Connect(_) if fault == Fault::Connect => {
                    self.handshake.handle_connected(Err("no route".into()))
                }
                Action::Connect(_) => self.handshake.handle_connected(Ok(())),
                Action::SendProbe(nonce) => match (role, fault) {
                    (Role::Client, Fault::ClientProbeLost) | (Role::Server, Fault::ServerProbeLost) => {}
                    (Role::Client, Fault::WrongNonce) => peer.queue_pair.push_back(Input::Probe(nonce + 1)),
                    _ => {
                        peer.queue_pair.push_back(Input::Probe(nonce));
                        self.queue_pair.push_back(Input::ProbeSent);
                    }
                },
                Action::SendVerdict(verdict) => peer.tcp.push_back(Input::Verdict(verdict)),
                Action::Finish(outcome) => self.outcome = Some(outcome),
            }
        }
    }
}

fn run(fault: Fault, seed: u64) -> [Outcome; 2] {
    let mut random = Rng::with_seed(seed);
    let mut own = offer(1);
    if fault == Fault::ClientTooSmall {
        own.capabilities.receive_size = 1000;
    }
    let own = match fault {
        Fault::ClientHasNone => Extension::Unavailable(String::new()),
        _ => Extension::Offer(own),
    };
    let usable = if fault == Fault::ServerHasNone { Err("no device".into()) } else { Ok(()) };
    let mut client = Side::new(Role::Client, Handshake::client(&own));
    let mut server = Side::new(Role::Server, Handshake::server(usable));
    server.tcp.push_back(Input::Peer(Extension::decode(&own.encode())));
    let (mut idle, mut steps) = (0, 0);
    while client.outcome.is_none() || server.outcome.is_none() {
        let moved = if random.bool() { client.take(&mut random) } else { server.take(&mut random) };
        client.act(&mut server, fault);
        server.act(&mut client, fault);
        idle = if moved { 0 } else { idle + 1 };
        steps += 1;
        let early = random.u8(0..8) == 0;
        // A time limit, at any moment or when nothing else happens any more.
        match fault {
            Fault::ClientTimesOut if early => client.queue_pair.push_back(Input::Failure),
            Fault::ServerTimesOut if early => server.queue_pair.push_back(Input::Failure),
            _ if idle > 50 => client.queue_pair.push_back(Input::Failure),
            _ => {}
        }
        assert!(steps < 5000, "{fault:?}, seed {seed}: {:?} {:?}", client.outcome, server.outcome);
    }
    assert!(client.tcp.is_empty() || fault != Fault::None);
    [client.outcome.expect("over"), server.outcome.expect("over")]
}

#[test]
fn both_sides_conclude_the_same_whatever_fails_where() {
    for fault in FAULTS {
        for seed in 0..500 {
            let outcomes = run(fault, seed);
            let agreed =
                matches!(outcomes, [Outcome::Rdma(_), Outcome::Rdma(_)] | [Outcome::Tcp(_), Outcome::Tcp(_)]);
            assert!(agreed, "{fault:?}, seed {seed}: {outcomes:?}");
            let timely = matches!(fault, Fault::ClientTimesOut | Fault::ServerTimesOut);
            if !timely {
                let rdma = matches!(outcomes[0], Outcome::Rdma(_));
                assert_eq!(rdma, fault == Fault::None, "{fault:?}, seed {seed}: {outcomes:?}");
            }
            for outcome in outcomes {
                if let Outcome::Tcp(reason) = outcome {
                    assert!(!reason.is_empty(), "{fault:?}: the user asks why");
                }
            }
        }
    }
}

#[test]
fn a_peer_without_an_extension_has_no_rdma() {
    let mut client = Handshake::client(&Extension::Offer(offer(1)));
    client.handle_peer(Extension::decode(&[]), MAX_HEAD);
    assert_eq!(client.poll_action(), Some(Action::Finish(Outcome::Tcp("the server offers no RDMA".into()))));
    let mut server = Handshake::server(Ok(()));
    server.handle_peer(Extension::decode(&[]), MAX_HEAD);
    let Some(Action::SayHello(extension)) = server.poll_action() else { panic!("it answers") };
    assert!(extension.encode().is_empty(), "as version 1 always did");
    assert_eq!(server.poll_action(), Some(Action::Finish(Outcome::Tcp("the client offers no RDMA".into()))));
}

#[test]
fn a_hello_or_a_verdict_that_never_comes_leaves_the_stream_broken() {
    let broken = |handshake: &mut Handshake| {
        handshake.handle_silence("nothing came");
        let actions: Vec<_> = std::iter::from_fn(|| handshake.poll_action()).collect();
        assert_eq!(actions.last(), Some(&Action::Finish(Outcome::Broken("nothing came".into()))));
        handshake.handle_silence("again");
        handshake.handle_failure("again");
        handshake.handle_verdict(Ok(()));
        assert_eq!(handshake.poll_action(), None, "it is over");
    };
    let mut client = Handshake::client(&Extension::Offer(offer(1)));
    broken(&mut client);
    let mut client = Handshake::client(&Extension::Offer(offer(1)));
    client.handle_peer(Extension::Offer(offer(2)), MAX_HEAD);
    client.handle_connected(Ok(()));
    client.handle_probe(1);
    client.handle_failure("the queue pair failed after the verdict");
    broken(&mut client);
}

#[test]
fn an_offer_that_cannot_be_used_is_answered_with_a_verdict() {
    let mut client = Handshake::client(&Extension::Offer(offer(1)));
    client.handle_peer(Extension::Unusable("cut off".into()), MAX_HEAD);
    assert_eq!(client.poll_action(), Some(Action::SendVerdict(Err("cut off".into()))));
    assert_eq!(client.poll_action(), None, "the server's verdict is still to come");
    client.handle_verdict(Ok(()));
    assert_eq!(client.poll_action(), Some(Action::Finish(Outcome::Tcp("cut off".into()))));
}

#[test]
fn what_comes_twice_or_out_of_place_changes_nothing() {
    let mut server = Handshake::server(Ok(()));
    server.handle_probe(2);
    server.handle_probe_sent();
    server.handle_prepared(Ok(offer(2)));
    server.handle_verdict(Ok(()));
    assert_eq!(server.poll_action(), None, "nothing before the client's hello");
    server.handle_peer(Extension::Offer(offer(1)), MAX_HEAD);
    server.handle_peer(Extension::Unavailable(String::new()), MAX_HEAD);
    assert_eq!(server.poll_action(), Some(Action::Prepare(offer(1))));
    server.handle_prepared(Ok(offer(2)));
    server.handle_prepared(Err("late".into()));
    assert_eq!(server.poll_action(), Some(Action::SayHello(Extension::Offer(offer(2)))));
    server.handle_connected(Ok(()));
    server.handle_probe(2);
    server.handle_probe(2);
    assert_eq!(server.poll_action(), Some(Action::SendProbe(1)));
    server.handle_verdict(Ok(()));
    server.handle_verdict(Err("changed its mind".into()));
    assert_eq!(server.poll_action(), None);
    server.handle_probe_sent();
    assert_eq!(server.poll_action(), Some(Action::SendVerdict(Ok(()))));
    assert_eq!(server.poll_action(), Some(Action::Finish(Outcome::Rdma(offer(1)))));
}
