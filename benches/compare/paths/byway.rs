//! byway, by its own framing or by HTTP/2: generated server and client, all settings default but a
//! time-out for each call.

use std::net::SocketAddr;

use byway::{Channel, Server, Transport};
use byway_test_support::test::v1::{EchoRequest, echo_client::EchoClient, echo_server::EchoServer};

use super::{CALL_TIMEOUT, Payload, echo_service};
use crate::{Failure, closed_loop, peer};

echo_service!(byway, byway_test_support::test::v1);

pub(super) async fn serve(at: SocketAddr) -> Result<(), Failure> {
    let server = Server::builder().add_service(EchoServer::new(Service)).bind(at).await?;
    peer::announce(server.listening())?;
    server.serve().await;
    Ok(())
}

#[derive(Clone)]
pub(crate) struct Caller {
    client: EchoClient<Channel>,
    payload: Payload,
}

impl Caller {
    pub(super) async fn connect(
        address: &str,
        payload: Payload,
        transport: Transport,
    ) -> Result<Self, Failure> {
        let builder = Channel::builder(address).transport(transport).timeout(CALL_TIMEOUT);
        let channel = builder.connect().await?;
        Ok(Self { client: EchoClient::new(channel), payload })
    }
}

impl closed_loop::Caller for Caller {
    async fn call(&self) -> Result<(), Failure> {
        let request = EchoRequest { payload: self.payload.0.clone(), ..Default::default() };
        let reply = self.client.unary(request).await?;
        self.payload.check(&reply.get_ref().payload)
    }
}
