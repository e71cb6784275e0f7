//! Stock tonic over its own transport, with code from its own generator.

use std::net::SocketAddr;

use byway_test_support::stock::test::v1::{EchoRequest, echo_client::EchoClient, echo_server::EchoServer};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};

use super::{CALL_TIMEOUT, Payload, echo_service};
use crate::{Failure, closed_loop, peer};

echo_service!(tonic, byway_test_support::stock::test::v1);

/// How much either side may send before the other has said that it has read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Windows {
    /// 64 KiB, and for a connection of the client 1 MiB or more: hyper's own.
    Default,
    /// Never in the way of these workloads.
    Large,
}

const LARGE_STREAM: u32 = 8 << 20;
const LARGE_CONNECTION: u32 = 64 << 20;

pub(super) async fn serve(at: SocketAddr, windows: Windows) -> Result<(), Failure> {
    let incoming = TcpIncoming::bind(at)?.with_nodelay(Some(true));
    peer::announce(incoming.local_addr()?)?;
    let mut server = Server::builder();
    if let Windows::Large = windows {
        server =
            server.initial_stream_window_size(LARGE_STREAM).initial_connection_window_size(LARGE_CONNECTION);
    }
    server.add_service(EchoServer::new(Service)).serve_with_incoming(incoming).await?;
    Ok(())
}

#[derive(Clone)]
pub(crate) struct Caller {
    client: EchoClient<Channel>,
    payload: Payload,
}

impl Caller {
    pub(super) async fn connect(address: &str, payload: Payload, windows: Windows) -> Result<Self, Failure> {
        Ok(Self { client: EchoClient::new(connect(address, windows).await?), payload })
    }
}

/// A client's connection, also to other services.
pub(super) async fn connect(address: &str, windows: Windows) -> Result<Channel, Failure> {
    let mut endpoint =
        Endpoint::from_shared(format!("http://{address}"))?.tcp_nodelay(true).timeout(CALL_TIMEOUT);
    if let Windows::Large = windows {
        endpoint = endpoint
            .initial_stream_window_size(LARGE_STREAM)
            .initial_connection_window_size(LARGE_CONNECTION);
    }
    Ok(endpoint.connect().await?)
}

impl closed_loop::Caller for Caller {
    async fn call(&self) -> Result<(), Failure> {
        let request = EchoRequest { payload: self.payload.0.clone(), ..Default::default() };
        // Its methods want a client that can change; tonic's users clone one for each call.
        let reply = self.client.clone().unary(request).await?;
        self.payload.check(&reply.get_ref().payload)
    }
}
