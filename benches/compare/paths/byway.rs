//! byway, by its own framing over TCP or RDMA, or by HTTP/2: generated server and client, all settings default but a
//! time-out for each call, and where both ends are to spin.

use std::net::SocketAddr;
use std::time::Duration;

use byway::testing::{Delays, Fabric, FabricOptions, Progress, SimNicOptions};
use byway::{Channel, Rdma, RdmaOptions, Server, Transport};
use byway_test_support::test::v1::{EchoRequest, echo_client::EchoClient, echo_server::EchoServer};

use super::rdma::Wait;
use super::{CALL_TIMEOUT, Payload, echo_service};
use crate::{Failure, closed_loop, current_thread, peer};

echo_service!(byway, byway_test_support::test::v1);

/// For as long as any call takes.
const SPIN: Duration = Duration::from_secs(1);

fn rdma(wait: Option<Wait>) -> Rdma {
    match wait {
        Some(Wait::Spin) => Rdma::new(RdmaOptions { spin: SPIN, ..RdmaOptions::default() }),
        _ => Rdma::default(),
    }
}

pub(super) async fn serve(at: SocketAddr, wait: Option<Wait>) -> Result<(), Failure> {
    let builder = Server::builder().add_service(EchoServer::new(Service)).rdma(rdma(wait));
    let server = builder.bind(at).await?;
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
        wait: Option<Wait>,
    ) -> Result<Self, Failure> {
        let builder = Channel::builder(address).transport(transport).rdma(rdma(wait)).timeout(CALL_TIMEOUT);
        let channel = builder.connect().await?;
        Ok(Self { client: EchoClient::new(channel), payload })
    }

    /// A client and a server in this process, each on a thread, with a simulated device each.
    pub(super) async fn simulated(payload: Payload) -> Result<Self, Failure> {
        let options =
            FabricOptions { delays: Delays::NONE, progress: Progress::AtOnce, ..FabricOptions::default() };
        let fabric = Fabric::new(options);
        let [here, there] = [(); 2]
            .map(|()| Rdma::simulated(fabric.adapter(&SimNicOptions::default()), RdmaOptions::default()));
        let (announce, announced) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let serving = async {
                let server = Server::builder().add_service(EchoServer::new(Service)).rdma(there);
                let server = server.bind("127.0.0.1:0").await?;
                let _ = announce.send(server.listening().to_string());
                server.serve().await;
                Ok::<_, Failure>(())
            };
            // When it fails, nothing is announced.
            current_thread().map(|runtime| runtime.block_on(serving))
        });
        let builder = Channel::builder(announced.await?).transport(Transport::Rdma).rdma(here);
        let channel = builder.timeout(CALL_TIMEOUT).connect().await?;
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
