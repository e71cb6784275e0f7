//! The other end, asked over TCP.
//!
//! Owns the questions to a peer: a connection, and the exchange of hellos with what both say about RDMA. An offer is made
//! where this side can make one, since a server answers only an offer with its own; then the peer is told that it was a
//! question, which leaves it with an ordinary TCP connection that is closed. Then a channel connects to it, to see which
//! path calls take. Invariant: nothing here takes longer than its time limit. Never connects a queue pair itself: that is
//! the channel's to do.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use byway_rdma::nic::{Mtu, Nic, NicError, QueuePairSpec};
use byway_rdma::protocol::offer::{Capabilities, Extension, Offer, encode_verdict};
use byway_rdma::protocol::wire::least_receive;
use byway_rdma::verbs::{DeviceChoice, NicOptions, VerbsNic, gid_text};
use byway_runtime::Limits;
use byway_runtime::session::Hello;

use super::joined::{self, Joined};
use super::report::{Finding, Verdict};
use super::verbs::Verbs;

/// How long to wait for a connection to one address: three times what a lost first packet costs.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// How long to wait for a hello: longer than a server takes to make a queue pair.
const HELLO_LIMIT: Duration = Duration::from_secs(5);

/// The fewest receives that an offer may have. They are never used.
const RECEIVES: u16 = 3;

/// A connection to a peer, or why there is none.
pub(super) struct Dialled {
    name: String,
    connection: Result<(TcpStream, Duration), String>,
}

/// Connects to the first address of `HOST:PORT` that answers.
pub(super) fn dial(name: &str) -> Dialled {
    let connection = match name.to_socket_addrs() {
        Ok(addresses) => first_that_answers(addresses).map_err(|(address, error)| match address {
            // A name can stand for several addresses; which of them refused matters.
            Some(address) if address.to_string() != name => format!("{address}: {error}"),
            _ => error,
        }),
        Err(error) => Err(format!("the name cannot be resolved: {error}")),
    };
    Dialled { name: name.to_owned(), connection }
}

/// A connection and how long it took, or the last address that was tried and why it failed.
fn first_that_answers(
    addresses: impl Iterator<Item = SocketAddr>,
) -> Result<(TcpStream, Duration), (Option<SocketAddr>, String)> {
    let mut failure = (None, "the name has no address".to_owned());
    for address in addresses {
        let start = Instant::now();
        match TcpStream::connect_timeout(&address, CONNECT_LIMIT) {
            // The system returns when the answer to its first packet is there: one round trip.
            Ok(stream) => return Ok((stream, start.elapsed())),
            Err(error) => failure = (Some(address), error.to_string()),
        }
    }
    Err(failure)
}

impl Dialled {
    /// This side's address of the connection.
    pub(super) fn local(&self) -> Option<IpAddr> {
        Some(self.connection.as_ref().ok()?.0.local_addr().ok()?.ip())
    }

    /// Exchanges hellos, and says `extension` about RDMA.
    pub(super) fn ask(self, extension: &Extension) -> Peer {
        let Self { name, connection } = self;
        let asked = extension.offers();
        match connection {
            Ok((stream, round_trip)) => {
                let answer = exchange(stream, extension);
                Peer { name, round_trip: Ok(round_trip), answer, asked, joined: None }
            }
            Err(error) => {
                Peer { name, round_trip: Err(error), answer: Err(String::new()), asked, joined: None }
            }
        }
    }
}

fn exchange(mut stream: TcpStream, extension: &Extension) -> Result<Answer, String> {
    let own = Hello { extension: extension.encode(), ..Hello::new(&limits()) };
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
            format!("no hello came within {} s", HELLO_LIMIT.as_secs())
        }
        _ => format!("the connection failed: {error}"),
    };
    stream.set_write_timeout(Some(HELLO_LIMIT)).map_err(failed)?;
    stream.write_all(&own.encode()).map_err(failed)?;
    let (end, mut buffer) = (Instant::now() + HELLO_LIMIT, BytesMut::new());
    let hello = loop {
        if let Some(hello) = Hello::take(&mut buffer).map_err(|error| error.to_string())? {
            break hello;
        }
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left)).map_err(failed)?;
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk).map_err(failed)? {
            0 => return Err("it closed the connection before it said hello".into()),
            len => buffer.extend_from_slice(&chunk[..len]),
        }
    };
    let rdma = Extension::decode(&hello.extension);
    if extension.offers() && rdma.offers() {
        let verdict = Err("byway doctor only asks".to_owned());
        // The answer is known; whether the peer hears this matters to its log alone.
        let _ = stream.write_all(&encode_verdict(&verdict));
    }
    Ok(Answer { oldest: hello.oldest, newest: hello.version, rdma })
}

/// A client's.
fn limits() -> Limits {
    Limits { max_calls: 0, ..Limits::default() }
}

/// An offer with what backs it: a queue pair that is never connected.
pub(super) struct Offering {
    pub(super) extension: Extension,
    _nic: Option<VerbsNic>,
}

impl Offering {
    /// An offer as a connection would make it, or why this side makes none.
    pub(super) fn make(choice: &DeviceChoice, verbs: &Verbs) -> Self {
        let made = match &verbs.trial {
            Ok(_) => Self::back(choice),
            Err(reason) => Err(reason.to_string()),
        };
        made.unwrap_or_else(|reason| Self { extension: Extension::Unavailable(reason), _nic: None })
    }

    fn back(choice: &DeviceChoice) -> Result<Self, String> {
        let options = NicOptions { choice: choice.clone(), completions: 64, shared_receives: 0 };
        let mut nic = VerbsNic::open(&options).map_err(|error| error.to_string())?;
        let offer = Self::offer(&mut nic).map_err(|error| error.to_string())?;
        Ok(Self { extension: Extension::Offer(offer), _nic: Some(nic) })
    }

    fn offer(nic: &mut VerbsNic) -> Result<Offer, NicError> {
        let spec = QueuePairSpec {
            send_depth: 16,
            recv_depth: Some(u32::from(RECEIVES)),
            ..QueuePairSpec::default()
        };
        let queue_pair = nic.create_queue_pair(&spec)?;
        let capabilities = Capabilities {
            receive_depth: RECEIVES,
            receive_size: u32::try_from(least_receive(limits().max_head)).unwrap_or(u32::MAX),
            transfers: 1,
            offers: 0,
            windows: nic.limits().windows,
        };
        // Nobody's probe repeats it.
        Ok(Offer { endpoint: nic.endpoint(queue_pair)?, capabilities, nonce: 0 })
    }
}

/// What a peer said.
#[derive(Debug)]
struct Answer {
    oldest: u16,
    newest: u16,
    rdma: Extension,
}

/// What is known about a peer.
#[derive(Debug)]
pub struct Peer {
    /// As it was named.
    pub name: String,
    round_trip: Result<Duration, String>,
    answer: Result<Answer, String>,
    /// Whether this side made an offer. Without one, the peer's silence means nothing.
    asked: bool,
    /// What a channel made of it; `None` when it has not tried.
    joined: Option<Joined>,
}

impl Peer {
    /// Lets a channel connect, if the peer is a byway server.
    pub(super) fn join(self) -> Self {
        let joined = self.answer.is_ok().then(|| joined::join(&self.name));
        Self { joined, ..self }
    }

    /// Whether calls to the peer go by RDMA; before a channel has tried, whether the peer offers it in a way that can be
    /// used.
    pub(super) fn is_usable(&self) -> bool {
        match &self.joined {
            Some(joined) => joined::is_rdma(joined),
            None => self.answer.as_ref().is_ok_and(|answer| matches!(answer.rdma, Extension::Offer(_))),
        }
    }

    /// Why the peer and this side do not use RDMA.
    pub(super) fn refusal(&self) -> String {
        if let Some(joined) = &self.joined {
            return joined::refusal(joined);
        }
        match (&self.round_trip, &self.answer) {
            (Err(error), _) => format!("it cannot be reached: {error}"),
            (_, Err(error)) => error.clone(),
            (_, Ok(answer)) => match &answer.rdma {
                Extension::Offer(_) => "this side cannot".into(),
                Extension::Unusable(what) => what.clone(),
                Extension::Unavailable(reason) if reason.is_empty() => "it offers none".into(),
                Extension::Unavailable(reason) => format!("it says: {reason}"),
            },
        }
    }

    /// The lines of the report.
    pub(super) fn findings(&self, verbs: &Verbs) -> Vec<Finding> {
        vec![self.reach(), self.hello(), self.rdma(verbs), joined::finding(self.joined.as_ref())]
    }

    fn reach(&self) -> Finding {
        match &self.round_trip {
            Ok(time) => {
                let evidence = format!("{}: connected in {:.3} ms", self.name, time.as_secs_f64() * 1e3);
                Finding::new("peer TCP", Verdict::Ok, evidence)
            }
            Err(error) => Finding::new("peer TCP", Verdict::Fail, format!("{}: {error}", self.name)).remedy(
                "is the server running, and does a firewall let this port through? (nc -vz HOST PORT)",
            ),
        }
    }

    fn hello(&self) -> Finding {
        const CHECK: &str = "peer hello";
        match (&self.round_trip, &self.answer) {
            (Err(_), _) => Finding::new(CHECK, Verdict::Skipped, "there is no connection"),
            (_, Ok(Answer { oldest, newest, .. })) => Finding::new(
                CHECK,
                Verdict::Ok,
                format!("it speaks versions {oldest} to {newest} of byway's protocol"),
            ),
            (_, Err(error)) => Finding::new(CHECK, Verdict::Fail, error.clone()).remedy(
                "is it a byway server? Any other gRPC server is reached over HTTP/2, never over RDMA",
            ),
        }
    }

    fn rdma(&self, verbs: &Verbs) -> Finding {
        const CHECK: &str = "peer RDMA";
        const THERE: &str = "run `byway doctor` on the peer's machine";
        let Ok(answer) = &self.answer else {
            return Finding::new(CHECK, Verdict::Skipped, "there is no hello");
        };
        match &answer.rdma {
            Extension::Offer(offer) => offered(CHECK, offer, verbs),
            Extension::Unusable(what) => Finding::new(CHECK, Verdict::Fail, what.clone()).remedy(THERE),
            Extension::Unavailable(reason) if !reason.is_empty() => {
                Finding::new(CHECK, Verdict::Fail, format!("the peer says: {reason}")).remedy(THERE)
            }
            Extension::Unavailable(_) if self.asked => {
                Finding::new(CHECK, Verdict::Fail, "the peer offers none, and gives no reason").remedy(THERE)
            }
            Extension::Unavailable(_) => {
                let evidence = "a server offers RDMA only in answer to an offer, and this side can make none";
                Finding::new(CHECK, Verdict::Unknown, evidence).remedy(THERE)
            }
        }
    }
}

fn offered(check: &str, offer: &Offer, verbs: &Verbs) -> Finding {
    let Offer { endpoint, capabilities, .. } = offer;
    let theirs = endpoint.mtu;
    let evidence = format!(
        "offered at {}, packets of {} bytes, {} receives of {} bytes",
        gid_text(&endpoint.gid),
        theirs.bytes(),
        capabilities.receive_depth,
        capabilities.receive_size
    );
    match verbs.chosen().and_then(|port| port.mtu) {
        Some(ours) if ours != theirs => {
            let used: Mtu = ours.min(theirs);
            Finding::new(check, Verdict::Warn, format!("{evidence}; this side's port has {}", ours.bytes()))
                .remedy(format!(
                    "a connection uses the smaller size, {}: give both interfaces the same MTU",
                    used.bytes()
                ))
        }
        _ => Finding::new(check, Verdict::Ok, evidence),
    }
}

#[cfg(test)]
mod tests;
