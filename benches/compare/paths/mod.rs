//! What carries the calls.
//!
//! Owns the list of paths and what they have in common: the payload, and the check of every reply. Each path is a server
//! and a client, made as its users make them. Another path of byway takes a variant of [`Path`], its name, its place in
//! [`Path::of`], and the [`Transport`] that it is: nothing else here asks which paths there are.

mod byway;
pub(crate) mod embed;
mod raw;
mod rdma;
mod tonic;

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use ::byway::Transport;
use bytes::Bytes;
use rdma::Wait;
use tonic::Windows;

use crate::Failure;
use crate::closed_loop::{self, Samples};
use crate::pages::Pages;
use crate::peer;
use crate::workload::{Ask, Budget, Family, Workload};

/// The time that each call is given by the settings of its channel, on every path that knows deadlines.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Path {
    /// Whole messages over a socket and nothing else: what no framework can beat.
    RawTcp,
    /// Whole messages between two queue pairs, each end asleep while it has nothing to do.
    RawRdma,
    /// The same with both ends looking for messages all the time.
    RawRdmaSpin,
    /// Stock tonic, all settings default but `TCP_NODELAY` on both sides.
    Tonic,
    /// Stock tonic with large windows too.
    TonicTuned,
    /// byway's gRPC over HTTP/2.
    Grpc,
    /// byway's own framing over TCP.
    Tcp,
    /// byway over RDMA, all settings default.
    Rdma,
    /// The same with both ends looking for messages all the time.
    RdmaSpin,
    /// byway over simulated devices, both ends in one process, a thread each: its software at native speed.
    RdmaSim,
}

impl Path {
    /// What a family is measured over, in the order of the report.
    pub(crate) const fn of(family: Family) -> &'static [Self] {
        match family {
            Family::Unary => &Self::ALL,
            // Whatever carries a service's calls.
            Family::Embed | Family::EmbedMiniLm => &[Self::TonicTuned, Self::Grpc, Self::Tcp, Self::Rdma],
        }
    }

    const ALL: [Self; 10] = [
        Self::RawTcp,
        Self::RawRdma,
        Self::RawRdmaSpin,
        Self::Tonic,
        Self::TonicTuned,
        Self::Grpc,
        Self::Tcp,
        Self::Rdma,
        Self::RdmaSpin,
        Self::RdmaSim,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::RawTcp => "raw-tcp",
            Self::RawRdma => "raw-rdma",
            Self::RawRdmaSpin => "raw-rdma-spin",
            Self::Tonic => "tonic",
            Self::TonicTuned => "tonic-tuned",
            Self::Grpc => "grpc",
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
            Self::RdmaSpin => "rdma-spin",
            Self::RdmaSim => "rdma-sim",
        }
    }

    const fn carrier(self) -> Carrier {
        match self {
            Self::RawTcp => Carrier::RawTcp,
            Self::RawRdma => Carrier::RawRdma(Wait::Sleep),
            Self::RawRdmaSpin => Carrier::RawRdma(Wait::Spin),
            Self::Tonic => Carrier::Tonic(Windows::Default),
            Self::TonicTuned => Carrier::Tonic(Windows::Large),
            Self::Grpc => Carrier::Byway(Transport::Grpc, None),
            Self::Tcp => Carrier::Byway(Transport::Tcp, None),
            Self::Rdma => Carrier::Byway(Transport::Rdma, None),
            Self::RdmaSpin => Carrier::Byway(Transport::Rdma, Some(Wait::Spin)),
            Self::RdmaSim => Carrier::Simulated,
        }
    }

    /// Whether it is left out where there is no RDMA device; then what the device counts is reported too.
    pub(crate) const fn needs_device(self) -> bool {
        matches!(self.carrier(), Carrier::RawRdma(_) | Carrier::Byway(Transport::Rdma, _))
    }

    /// Announces where it listens and serves echoes until the process ends.
    pub(crate) async fn serve(self, at: SocketAddr) -> Result<(), Failure> {
        match self.carrier() {
            Carrier::RawTcp => raw::serve(at).await,
            Carrier::RawRdma(wait) => rdma::serve(at, wait).await,
            Carrier::Tonic(windows) => tonic::serve(at, windows).await,
            Carrier::Byway(_, wait) => byway::serve(at, wait).await,
            // Its server is in the client's process.
            Carrier::Simulated => {
                peer::announce("nowhere")?;
                std::future::pending().await
            }
        }
    }

    /// Opens the one connection of a measurement.
    pub(crate) async fn connect(self, address: &str, workload: &Workload) -> Result<Client, Failure> {
        let in_flight = workload.in_flight;
        if workload.ask != Ask::Echo {
            let caller = embed::Caller::connect(address, workload, self.carrier()).await?;
            return Ok(Client::Embed(caller, in_flight));
        }
        let payload = Payload::new(workload.bytes);
        Ok(match self.carrier() {
            Carrier::RawTcp => Client::Raw(raw::Client::connect(address, payload, in_flight).await?),
            Carrier::RawRdma(wait) => {
                Client::Rdma(rdma::Client::connect(address, payload, in_flight, wait).await?)
            }
            Carrier::Tonic(windows) => {
                Client::Tonic(tonic::Caller::connect(address, payload, windows).await?, in_flight)
            }
            Carrier::Byway(transport, wait) => {
                Client::Byway(byway::Caller::connect(address, payload, transport, wait).await?, in_flight)
            }
            Carrier::Simulated => Client::Byway(byway::Caller::simulated(payload).await?, in_flight),
        })
    }
}

/// What a path is made of. Paths of one carrier differ in a setting.
#[derive(Debug, Clone, Copy)]
enum Carrier {
    RawTcp,
    RawRdma(Wait),
    Tonic(Windows),
    Byway(Transport, Option<Wait>),
    Simulated,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Path {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|path| path.name() == name);
        found.ok_or_else(|| format!("there is no path \"{name}\""))
    }
}

/// A connected client and how many calls it keeps in flight.
pub(crate) enum Client {
    Raw(raw::Client),
    Rdma(rdma::Client),
    Embed(embed::Caller, usize),
    Tonic(tonic::Caller, usize),
    Byway(byway::Caller, usize),
}

impl Client {
    pub(crate) async fn run(&mut self, budget: Budget) -> Result<Samples, Failure> {
        match self {
            Self::Raw(client) => client.run(budget).await,
            Self::Rdma(client) => client.run(budget).await,
            Self::Embed(caller, in_flight) => closed_loop::run(caller, *in_flight, budget).await,
            Self::Tonic(caller, in_flight) => closed_loop::run(caller, *in_flight, budget).await,
            Self::Byway(caller, in_flight) => closed_loop::run(caller, *in_flight, budget).await,
        }
    }
}

/// What is sent and must come back. Cloning it copies no bytes.
#[derive(Clone)]
pub(crate) struct Payload(Bytes);

impl Payload {
    fn new(len: usize) -> Self {
        // No period of a power of two, so that pieces in the wrong order are noticed.
        let mut memory = Pages::zeroed(len);
        for (at, byte) in memory.iter_mut().enumerate() {
            *byte = (at % 251) as u8;
        }
        Self(memory.freeze())
    }

    /// Up to this size all bytes are compared; of more, which would take part of the time that is measured, the ends.
    const COMPARED_WHOLE: usize = 1024;

    /// # Errors
    /// The reply is not what was sent.
    fn check(&self, reply: &[u8]) -> Result<(), Failure> {
        let sent = &self.0[..];
        let is_same = if sent.len() <= Self::COMPARED_WHOLE {
            sent == reply
        } else {
            sent.len() == reply.len() && sent.first() == reply.first() && sent.last() == reply.last()
        };
        if is_same {
            return Ok(());
        }
        Err(format!("a reply of {} bytes is not the {} bytes that were sent", reply.len(), sent.len()).into())
    }
}

/// An echo service, written in tonic's words, for whichever crate has them.
macro_rules! echo_service {
    ($api:ident, $package:path) => {
        struct Service;

        #[$api::async_trait]
        impl package::echo_server::Echo for Service {
            async fn unary(
                &self,
                request: $api::Request<package::EchoRequest>,
            ) -> Result<$api::Response<package::EchoReply>, $api::Status> {
                let package::EchoRequest { payload, text, .. } = request.into_inner();
                Ok($api::Response::new(package::EchoReply { payload, text, index: 0 }))
            }

            async fn collect(
                &self,
                _: $api::Request<$api::Streaming<package::EchoRequest>>,
            ) -> Result<$api::Response<package::EchoReply>, $api::Status> {
                Err($api::Status::unimplemented("only unary calls are compared"))
            }

            type ExpandStream = $api::Streaming<package::EchoReply>;

            async fn expand(
                &self,
                _: $api::Request<package::EchoRequest>,
            ) -> Result<$api::Response<Self::ExpandStream>, $api::Status> {
                Err($api::Status::unimplemented("only unary calls are compared"))
            }

            type ChatStream = $api::Streaming<package::EchoReply>;

            async fn chat(
                &self,
                _: $api::Request<$api::Streaming<package::EchoRequest>>,
            ) -> Result<$api::Response<Self::ChatStream>, $api::Status> {
                Err($api::Status::unimplemented("only unary calls are compared"))
            }
        }

        use $package as package;
    };
}
use echo_service;
