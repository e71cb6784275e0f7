//! How two sides agree on RDMA, or on going without.
//!
//! Owns [`Handshake`]: which step is next, after the hellos' extensions and until both verdicts are known.
//! Invariant: both sides come to the same conclusion, whatever fails at either: RDMA only if both said yes,
//! and everything else before the second verdict means that the same TCP connection carries on. When a hello
//! or a verdict does not come at all, nobody can know what the peer concluded: the stream is
//! [`Outcome::Broken`].
//!
//! ```text
//! client  AwaitPeer ──offer──▶ Joining ──connected; sends probe──▶ Probing ──probe came──▶ Deciding
//!
//! server  AwaitPeer ──offer──▶ Preparing ──prepared; says hello──▶ Listening ──probe came; sends its own──▶
//!         Answering ──probe acknowledged──▶ Deciding
//!
//!         AwaitPeer, Preparing ──no offer──▶ Over (TCP)
//!         any before Deciding ──a failure, or the peer's no──▶ Deciding      Deciding ──peer's verdict──▶ Over
//! ```
//! The server's queue pair can send before its hello leaves, the client's before its probe; so a probe never
//! meets a queue pair that cannot receive it. The client probes first, and the server's probe answers. Both
//! are ordinary messages of the link, and use a credit. Never: keeps time. The driver says when it is up.

use std::collections::VecDeque;

use byway_runtime::session::Role;

use super::offer::{Extension, Offer, Verdict};

/// What the driver does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// As a server: creates a queue pair, posts receives, lets it receive from this peer and send, and reports.
    Prepare(Offer),
    /// As a server: sends the hello with this extension.
    SayHello(Extension),
    /// As a client: lets the queue pair, which has its receives, receive from this peer and send, and reports.
    Connect(Offer),
    /// Sends the probe over the queue pair.
    SendProbe(u64),
    /// Sends the verdict over TCP.
    SendVerdict(Verdict),
    /// Nothing more: goes on as this says.
    Finish(Outcome),
}

/// What both sides concluded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Frames go over the queue pair. A server's may arrive there before the client's verdict has come over
    /// TCP.
    Rdma(Offer),
    /// Frames go over this TCP connection, for this reason.
    Tcp(String),
    /// The peer's conclusion is not known: close, and dial again without RDMA.
    Broken(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    AwaitPeer,
    Preparing,
    Joining,
    Probing,
    Listening,
    Answering,
    Deciding,
    Over,
}

/// One side of the agreement.
#[derive(Debug)]
pub struct Handshake {
    role: Role,
    state: State,
    own: Option<Offer>,
    /// Why this side makes no offer.
    unavailable: String,
    peer: Option<Offer>,
    own_verdict: Option<Verdict>,
    peer_verdict: Option<Verdict>,
    actions: VecDeque<Action>,
}

impl Handshake {
    /// As a client, with what its hello said.
    pub fn client(own: &Extension) -> Self {
        let (own, unavailable) = match own {
            Extension::Offer(offer) => (Some(*offer), String::new()),
            Extension::Unusable(reason) | Extension::Unavailable(reason) => (None, reason.clone()),
        };
        Self::new(Role::Client, own, unavailable)
    }

    /// As a server; `Err` with the reason when it could not use RDMA whoever comes.
    pub fn server(usable: Result<(), String>) -> Self {
        Self::new(Role::Server, None, usable.err().unwrap_or_default())
    }

    fn new(role: Role, own: Option<Offer>, unavailable: String) -> Self {
        Self {
            role,
            state: State::AwaitPeer,
            own,
            unavailable,
            peer: None,
            own_verdict: None,
            peer_verdict: None,
            actions: VecDeque::new(),
        }
    }

    /// What to do next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Takes the extension of the peer's hello, and the largest head that it accepts.
    pub fn handle_peer(&mut self, extension: Extension, max_head: u16) {
        if self.state != State::AwaitPeer {
            return;
        }
        let usable = match &extension {
            Extension::Offer(offer) => offer.capabilities.check(max_head).map(|()| *offer),
            Extension::Unusable(reason) | Extension::Unavailable(reason) => Err(reason.clone()),
        };
        let both_offer = extension.offers() && self.own.is_some();
        match (self.role, usable) {
            (Role::Server, _) if !self.unavailable.is_empty() => {
                self.decline(self.unavailable.clone(), extension.offers());
            }
            (Role::Server, Ok(offer)) => {
                self.peer = Some(offer);
                self.state = State::Preparing;
                self.actions.push_back(Action::Prepare(offer));
            }
            (Role::Server, Err(reason)) => {
                self.decline(reason_of_peer("the client", &reason), extension.offers());
            }
            (Role::Client, Ok(offer)) if both_offer => {
                self.peer = Some(offer);
                self.state = State::Joining;
                self.actions.push_back(Action::Connect(offer));
            }
            // The server sees its own offer and waits for a verdict.
            (Role::Client, Err(reason)) if both_offer => self.decide(Err(reason)),
            (Role::Client, Err(reason)) if self.own.is_some() => {
                self.finish(Outcome::Tcp(reason_of_peer("the server", &reason)));
            }
            (Role::Client, _) => {
                let reason = self.unavailable.clone();
                self.finish(Outcome::Tcp(reason_of_peer("this side", &reason)));
            }
        }
    }

    /// As a server: takes the result of [`Action::Prepare`].
    pub fn handle_prepared(&mut self, prepared: Result<Offer, String>) {
        if self.state != State::Preparing {
            return;
        }
        match prepared {
            Ok(offer) => {
                self.own = Some(offer);
                self.state = State::Listening;
                self.actions.push_back(Action::SayHello(Extension::Offer(offer)));
            }
            Err(reason) => self.decline(reason, true),
        }
    }

    /// As a client: takes the result of [`Action::Connect`].
    pub fn handle_connected(&mut self, connected: Result<(), String>) {
        match (self.state, connected, self.peer) {
            (State::Joining, Ok(()), Some(peer)) => {
                self.state = State::Probing;
                self.actions.push_back(Action::SendProbe(peer.nonce));
            }
            (State::Joining, Err(reason), _) => self.decide(Err(reason)),
            _ => {}
        }
    }

    /// Takes the peer's probe from the queue pair.
    pub fn handle_probe(&mut self, nonce: u64) {
        let (Some(own), Some(peer)) = (self.own, self.peer) else { return };
        match self.state {
            State::Probing | State::Listening if nonce != own.nonce => {
                self.decide(Err("a probe came that was meant for another connection".into()));
            }
            State::Probing => self.decide(Ok(())),
            State::Listening => {
                self.state = State::Answering;
                self.actions.push_back(Action::SendProbe(peer.nonce));
            }
            _ => {}
        }
    }

    /// As a server: its probe was acknowledged by the client's NIC.
    pub fn handle_probe_sent(&mut self) {
        if self.state == State::Answering {
            self.decide(Ok(()));
        }
    }

    /// Takes the peer's verdict from the TCP connection.
    pub fn handle_verdict(&mut self, verdict: Verdict) {
        if matches!(self.state, State::AwaitPeer | State::Preparing | State::Over)
            || self.peer_verdict.is_some()
        {
            return;
        }
        let refused = verdict.as_ref().err().cloned();
        self.peer_verdict = Some(verdict);
        match refused {
            // The peer waits for a verdict all the same.
            Some(reason) if self.state != State::Deciding => {
                self.decide(Err(reason_of_peer("the peer", &reason)));
            }
            _ => self.conclude(),
        }
    }

    /// RDMA does not work, or the time for it is up.
    pub fn handle_failure(&mut self, reason: &str) {
        match self.state {
            State::AwaitPeer | State::Over => {}
            State::Preparing => self.decline(reason.into(), true),
            // What was said cannot be taken back: if the peer said yes too, the connection fails as any other.
            State::Deciding => {}
            State::Joining | State::Probing | State::Listening | State::Answering => {
                self.decide(Err(reason.into()));
            }
        }
    }

    /// The TCP connection failed, or the time for a hello or a verdict is up.
    pub fn handle_silence(&mut self, reason: &str) {
        if self.state != State::Over {
            self.finish(Outcome::Broken(reason.into()));
        }
    }

    /// As a server: answers without an offer, so that no verdicts follow. Whoever offers is told why.
    fn decline(&mut self, reason: String, tell: bool) {
        let told = if tell { reason.clone() } else { String::new() };
        self.actions.push_back(Action::SayHello(Extension::Unavailable(told)));
        self.finish(Outcome::Tcp(reason));
    }

    fn decide(&mut self, verdict: Verdict) {
        self.state = State::Deciding;
        self.actions.push_back(Action::SendVerdict(verdict.clone()));
        self.own_verdict = Some(verdict);
        self.conclude();
    }

    fn conclude(&mut self) {
        let (Some(own), Some(theirs)) = (&self.own_verdict, &self.peer_verdict) else { return };
        let outcome = match (own, theirs, self.peer) {
            (Ok(()), Ok(()), Some(peer)) => Outcome::Rdma(peer),
            (Err(reason), ..) => Outcome::Tcp(reason.clone()),
            (_, Err(reason), _) => Outcome::Tcp(reason_of_peer("the peer", reason)),
            (Ok(()), Ok(()), None) => Outcome::Broken("verdicts without an offer".into()),
        };
        self.finish(outcome);
    }

    fn finish(&mut self, outcome: Outcome) {
        self.state = State::Over;
        self.actions.push_back(Action::Finish(outcome));
    }
}

fn reason_of_peer(who: &str, reason: &str) -> String {
    match reason {
        "" => format!("{who} offers no RDMA"),
        reason => format!("{who} does not use RDMA: {reason}"),
    }
}
