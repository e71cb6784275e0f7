//! The server that fails.
//!
//! Owns what calls ask for: an echo, or a stream of them, not all at once. Invariant: a call that is told `OK` ran once
//! in this process; one that comes again fails. Never: fails by itself.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use byway::{Request, Response, Server, Status, Streaming};
use byway_test_support::test::v1::echo_server::{Echo, EchoServer};
use byway_test_support::test::v1::{EchoReply, EchoRequest};
use tokio_stream::wrappers::ReceiverStream;

use crate::{Failure, KEEPALIVE, rdma};

/// Calls of each caller that are remembered: a caller makes one at a time, so a repetition cannot be far behind.
const REMEMBERED: usize = 64;

/// Serves for as long as it lives.
pub(crate) async fn serve(address: SocketAddr, windows: bool) -> Result<(), Failure> {
    let server = Server::builder().add_service(EchoServer::new(Service::default()));
    server.rdma(rdma(windows)).keepalive(KEEPALIVE).serve(address).await?;
    Ok(())
}

#[derive(Default)]
struct Service {
    /// By caller, the numbers of its last calls.
    seen: Mutex<HashMap<String, VecDeque<u64>>>,
}

impl Service {
    /// Notes that the call of this name (`CALLER:NUMBER`) runs.
    fn note(&self, name: &str) -> Result<(), Status> {
        let parts = name.split_once(':').and_then(|(caller, number)| Some((caller, number.parse().ok()?)));
        let (caller, number) = parts.ok_or_else(|| Status::invalid_argument("a call without a name"))?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let calls = seen.entry(caller.to_owned()).or_default();
        if calls.contains(&number) {
            return Err(Status::data_loss(format!("call {name} came twice")));
        }
        if calls.len() == REMEMBERED {
            calls.pop_front();
        }
        calls.push_back(number);
        Ok(())
    }
}

#[byway::async_trait]
impl Echo for Service {
    async fn unary(&self, request: Request<EchoRequest>) -> Result<Response<EchoReply>, Status> {
        let EchoRequest { payload, text, .. } = request.into_inner();
        self.note(&text)?;
        Ok(Response::new(EchoReply { payload, text, index: 0 }))
    }

    async fn collect(&self, _: Request<Streaming<EchoRequest>>) -> Result<Response<EchoReply>, Status> {
        Err(Status::unimplemented("nobody calls it here"))
    }

    type ExpandStream = ReceiverStream<Result<EchoReply, Status>>;

    async fn expand(&self, request: Request<EchoRequest>) -> Result<Response<Self::ExpandStream>, Status> {
        let EchoRequest { payload, text, count, delay_ms, .. } = request.into_inner();
        self.note(&text)?;
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            for index in 0..count {
                tokio::time::sleep(Duration::from_millis(delay_ms.into())).await;
                let reply = EchoReply { payload: payload.clone(), text: text.clone(), index };
                if sender.send(Ok(reply)).await.is_err() {
                    break;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    type ChatStream = ReceiverStream<Result<EchoReply, Status>>;

    async fn chat(&self, _: Request<Streaming<EchoRequest>>) -> Result<Response<Self::ChatStream>, Status> {
        Err(Status::unimplemented("nobody calls it here"))
    }
}
