//! From two hellos on a TCP connection to a queue pair that works, or to the reason why not.
//!
//! Owns the exchange that [`Handshake`] prescribes: [`offer`] before a client's hello, then [`client`]; [`server`] between
//! the client's hello and the server's. Invariant: the time that all of it takes is bounded; until the second verdict
//! the stream is usable as it is, whatever failed. What came over the queue pair behind the probe is kept for
//! the driver. Never: chooses what to do without RDMA.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use byway_runtime::Limits;
use byway_runtime::session::{Hello, Role};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

use crate::bell::Rings;
use crate::driver::Joined;
use crate::host::{Host, Prepared};
use crate::link::RdmaLink;
use crate::nic::Adapter;
use crate::protocol::credit::Credits;
use crate::protocol::offer::{Capabilities, Extension, Offer, encode_verdict, take_verdict};
use crate::protocol::{Action, Endpoint, Handshake, Outcome, Received, Settings, Transmit};
use crate::wire::{Arrival, Came, Polled, Slip};

/// What the two sides concluded.
pub enum Agreed<A: Adapter> {
    /// Frames go over this queue pair.
    Rdma(Box<Joined<A>>),
    /// Frames go over the TCP connection, for this reason.
    Tcp(String),
    /// What the peer concluded is not known, for this reason: close, and dial again without RDMA.
    Broken(String),
}

/// What a client says about RDMA in its hello, and the queue pair behind it.
pub struct Offering<A: Adapter> {
    prepared: Option<Prepared<A>>,
    /// For the hello.
    pub extension: Extension,
    /// How long the agreement may take; `None` for as long as the device's options say.
    pub limit: Option<Duration>,
}

/// As a client: a queue pair to be offered, or the reason why there is none.
pub fn offer<A: Adapter>(host: Result<&Arc<Host<A>>, String>, limits: &Limits) -> Offering<A> {
    let prepared = host.and_then(|host| host.prepare(limits));
    match prepared.and_then(|prepared| Ok((own_offer(&prepared)?, prepared))) {
        Ok((offer, prepared)) => {
            Offering { prepared: Some(prepared), extension: Extension::Offer(offer), limit: None }
        }
        Err(reason) => Offering { prepared: None, extension: Extension::Unavailable(reason), limit: None },
    }
}

fn own_offer<A: Adapter>(prepared: &Prepared<A>) -> Result<Offer, String> {
    let endpoint =
        prepared.wire.endpoint().map_err(|error| format!("its queue pair has no address: {error}"))?;
    Ok(Offer { endpoint, capabilities: prepared.capabilities, nonce: nonce() })
}

/// Random, so that a probe proves which connection it is for.
fn nonce() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // Each has keys of its own, seeded by the system.
    RandomState::new().hash_one(0u8)
}

/// As a client, after both hellos: agrees with the server. `buffer` has what was read behind its hello.
pub async fn client<A, S>(
    offering: Offering<A>,
    io: &mut S,
    buffer: &mut BytesMut,
    local: &Limits,
    theirs: &Hello,
) -> Agreed<A>
where
    A: Adapter,
    A::Nic: Rings,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut handshake = Handshake::client(&offering.extension);
    handshake.handle_peer(Extension::decode(&theirs.extension), theirs.limits.max_head);
    let mut agreement = Agreement::new(Role::Client, handshake, offering.prepared, None, local, theirs);
    agreement.limit = offering.limit.unwrap_or(agreement.limit);
    agreement.run(io, buffer).await
}

/// As a server, after the client's hello: says hello and agrees with the client. `buffer` has what was read behind its
/// hello.
pub async fn server<A, S>(
    host: Result<&Arc<Host<A>>, String>,
    io: &mut S,
    buffer: &mut BytesMut,
    local: &Limits,
    theirs: &Hello,
) -> Agreed<A>
where
    A: Adapter,
    A::Nic: Rings,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut handshake = Handshake::server(host.as_ref().map(|_| ()).map_err(Clone::clone));
    handshake.handle_peer(Extension::decode(&theirs.extension), theirs.limits.max_head);
    Agreement::new(Role::Server, handshake, None, host.ok(), local, theirs).run(io, buffer).await
}

/// One side of the agreement while it is made.
struct Agreement<'a, A: Adapter>
where
    A::Nic: Rings,
{
    role: Role,
    handshake: Handshake,
    host: Option<&'a Arc<Host<A>>>,
    prepared: Option<Prepared<A>>,
    endpoint: Option<Endpoint<Slip>>,
    polled: Polled,
    bell: Option<<A::Nic as Rings>::Bell>,
    local: &'a Limits,
    theirs: &'a Hello,
    /// How long all of it may take.
    limit: Duration,
    /// Whether the probe went out, and whether the peer's came.
    probed: bool,
    proven: bool,
}

/// What the agreement waits for.
enum Happened {
    Rang,
    Read(io::Result<usize>),
    TimeUp,
}

impl<'a, A: Adapter> Agreement<'a, A>
where
    A::Nic: Rings,
{
    fn new(
        role: Role,
        handshake: Handshake,
        prepared: Option<Prepared<A>>,
        host: Option<&'a Arc<Host<A>>>,
        local: &'a Limits,
        theirs: &'a Hello,
    ) -> Self {
        let own = host.or(prepared.as_ref().map(|prepared| &prepared.share.host));
        // Without a device there is nothing to agree on.
        let limit = own.map_or(Duration::from_secs(1), |host| host.options.agreement_timeout);
        Self {
            role,
            handshake,
            host,
            prepared,
            endpoint: None,
            polled: Polled::default(),
            bell: None,
            local,
            theirs,
            limit,
            probed: false,
            proven: false,
        }
    }

    async fn run<S>(mut self, io: &mut S, buffer: &mut BytesMut) -> Agreed<A>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let limit = self.limit;
        // Half of the time for the queue pair, all of it for the verdicts.
        let began = Instant::now();
        let mut patience = began + limit / 2;
        loop {
            while let Some(action) = self.handshake.poll_action() {
                if let Action::Finish(outcome) = action {
                    return self.finish(outcome);
                }
                if let Err(error) = self.act(action, io).await {
                    self.handshake.handle_silence(&format!("the TCP connection failed: {error}"));
                }
            }
            match take_verdict(buffer) {
                Ok(Some(verdict)) => {
                    self.handshake.handle_verdict(verdict);
                    continue;
                }
                Ok(None) => {}
                Err(what) => {
                    self.handshake.handle_silence(what);
                    continue;
                }
            }
            if self.look() {
                continue;
            }
            match self.happens(io, buffer, patience).await {
                Happened::Rang => self.rang(),
                Happened::Read(Ok(0)) => {
                    self.handshake
                        .handle_silence("the peer closed the connection before it said whether it uses RDMA");
                }
                Happened::Read(Ok(_)) => {}
                Happened::Read(Err(error)) => {
                    self.handshake.handle_silence(&format!("the TCP connection failed: {error}"));
                }
                Happened::TimeUp if patience < began + limit => {
                    patience = began + limit;
                    self.handshake.handle_failure(&format!(
                        "no probe came over the queue pair within {:.1?}: packets do not pass between the two devices; \
                         look at the route between their addresses, their MTU and, for RoCE, a firewall on UDP port 4791",
                        limit / 2
                    ));
                }
                Happened::TimeUp => {
                    self.handshake.handle_silence(&format!(
                        "the peer did not say within {limit:.1?} whether it uses RDMA"
                    ));
                }
            }
        }
    }

    async fn act<S>(&mut self, action: Action, io: &mut S) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        match action {
            Action::Prepare(peer) => {
                let prepared = self.prepare(&peer);
                self.handshake.handle_prepared(prepared);
            }
            Action::Connect(peer) => {
                let connected = self.connect(&peer);
                self.handshake.handle_connected(connected);
            }
            Action::SayHello(extension) => {
                let hello = Hello { extension: extension.encode(), ..Hello::new(self.local) };
                io.write_all(&hello.encode()).await?;
            }
            Action::SendProbe(nonce) => {
                if let Err(reason) = self.probe(nonce) {
                    self.handshake.handle_failure(&reason);
                }
            }
            Action::SendVerdict(verdict) => io.write_all(&encode_verdict(&verdict)).await?,
            Action::Finish(_) => {}
        }
        Ok(())
    }

    fn prepare(&mut self, peer: &Offer) -> Result<Offer, String> {
        let Some(host) = self.host else { return Err("this side has no device".into()) };
        let prepared = host.prepare(self.local)?;
        let own = own_offer(&prepared)?;
        self.prepared = Some(prepared);
        self.connect(peer)?;
        Ok(own)
    }

    fn connect(&mut self, peer: &Offer) -> Result<(), String> {
        let Some(prepared) = &mut self.prepared else { return Err("this side has no queue pair".into()) };
        let wire = &mut prepared.wire;
        wire.connect(&peer.endpoint)
            .map_err(|error| format!("the queue pair cannot be connected: {error}"))?;
        self.bell =
            Some(wire.nic().bell().map_err(|error| format!("the device cannot be watched: {error}"))?);
        let host = &prepared.share.host;
        let settings = Settings {
            role: self.role,
            local: prepared.capabilities,
            remote: sendable(&peer.capabilities, self.theirs.limits.max_head, host.options.receive_size),
            limits: *self.local,
            remote_limits: self.theirs.limits,
            large_from: host.options.large_from,
        };
        self.endpoint = Some(Endpoint::new(settings).ok_or("the two sides' offers do not fit each other")?);
        wire.arm(true)
    }

    fn probe(&mut self, nonce: u64) -> Result<(), String> {
        let (Some(prepared), Some(endpoint)) = (&mut self.prepared, &mut self.endpoint) else {
            return Ok(());
        };
        endpoint.push_probe(nonce);
        let pool = &prepared.share.host.pool;
        let capacity = endpoint.message_capacity();
        while let Some(Transmit::Message(message)) =
            endpoint.poll_transmit(|| RdmaLink::slip(&mut Vec::new(), pool, capacity))
        {
            prepared.wire.send(message);
        }
        self.probed = true;
        self.post()
    }

    fn post(&mut self) -> Result<(), String> {
        let Some(prepared) = &mut self.prepared else { return Ok(()) };
        // Whether there is staging is looked at again when the time is up at the latest.
        prepared.wire.report_last = true;
        prepared.wire.flush(std::task::Waker::noop()).map(drop)
    }

    /// Takes what came over the queue pair, up to the probe; whether there was anything.
    fn look(&mut self) -> bool {
        let Some(prepared) = self.prepared.as_mut().filter(|_| self.endpoint.is_some()) else { return false };
        match prepared.wire.poll(&mut self.polled) {
            Err(reason) => {
                // Asked once: it stays failed.
                self.endpoint = None;
                self.handshake.handle_failure(&reason);
                true
            }
            Ok(came) => {
                let mut seen = came != Came::Nothing;
                if self.polled.acknowledged > 0 && self.probed {
                    self.polled.acknowledged = 0;
                    self.handshake.handle_probe_sent();
                    seen = true;
                }
                seen | self.take_probe()
            }
        }
    }

    /// The first message is the probe, and what is behind it is for the driver.
    fn take_probe(&mut self) -> bool {
        let Some(endpoint) = self.endpoint.as_mut().filter(|_| !self.proven) else { return false };
        let Some(first) = self.polled.arrivals.pop_front() else { return false };
        let nonce = match &first {
            Arrival::Message(message) => only_probe(endpoint, message),
            Arrival::Write(_) => Err("a write before the probe".into()),
        };
        self.proven = true;
        endpoint.handle_returned(Credits(1));
        match nonce {
            Ok(nonce) => self.handshake.handle_probe(nonce),
            Err(reason) => self
                .handshake
                .handle_failure(&format!("the first message over the queue pair is no probe: {reason}")),
        }
        true
    }

    fn rang(&mut self) {
        let Some(prepared) = &mut self.prepared else { return };
        if let Err(reason) = prepared.wire.take_wakes().and_then(|()| prepared.wire.arm(true)) {
            self.handshake.handle_failure(&reason);
        }
    }

    async fn happens<S>(&mut self, io: &mut S, buffer: &mut BytesMut, until: Instant) -> Happened
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut nic = self.prepared.as_mut().map(|prepared| prepared.wire.nic_mut());
        let bell = &mut self.bell;
        let rang = poll_fn(|cx| match (nic.as_mut(), bell.as_mut()) {
            (Some(nic), Some(bell)) => nic.poll_rang(bell, cx).map(drop),
            _ => Poll::Pending,
        });
        tokio::select! {
            biased;
            () = rang => Happened::Rang,
            read = io.read_buf(buffer) => Happened::Read(read),
            () = tokio::time::sleep_until(until) => Happened::TimeUp,
        }
    }

    fn finish(self, outcome: Outcome) -> Agreed<A> {
        match (outcome, self.prepared, self.endpoint) {
            (Outcome::Rdma(_), Some(Prepared { mut wire, share, .. }), Some(endpoint)) => {
                wire.report_last = false;
                Agreed::Rdma(Box::new(Joined { wire, share, endpoint, polled: self.polled }))
            }
            (Outcome::Rdma(_), ..) => {
                Agreed::Broken("the queue pair failed as soon as both sides had agreed".into())
            }
            (Outcome::Tcp(reason), ..) => Agreed::Tcp(reason),
            (Outcome::Broken(reason), ..) => Agreed::Broken(reason),
        }
    }
}

/// What a peer accepts, as far as this side makes use of it.
pub(crate) fn sendable(remote: &Capabilities, max_head: u16, own: u32) -> Capabilities {
    let most = (crate::protocol::wire::least_receive(max_head) as u32).max(own);
    Capabilities { receive_size: remote.receive_size.min(most), ..*remote }
}

fn only_probe(endpoint: &mut Endpoint<Slip>, message: &[u8]) -> Result<u64, String> {
    let mut items = endpoint.handle_message(message).map_err(|error| error.to_string())?;
    match endpoint.next_received(&mut items).map_err(|error| error.to_string())? {
        Some(Received::Probe(nonce)) => Ok(nonce),
        _ => Err("it carries something else".into()),
    }
}
