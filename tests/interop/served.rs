//! A byway server of any services for one test, and an echo service in the words of tonic alone.

use std::pin::Pin;
use std::time::Duration;

use byway::{Channel, ServerBuilder};
use byway_test_support::stock::test::v1::echo_server::Echo;
use byway_test_support::stock::test::v1::{EchoReply, EchoRequest};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;
use tokio_stream::{Stream, StreamExt};
use tonic::{Code, Request, Response, Status, Streaming};

/// Runs a test, which fails when it hangs.
pub(crate) async fn in_time(story: impl Future<Output = ()>) {
    tokio::time::timeout(Duration::from_secs(20), story).await.expect("the test does not hang");
}

/// A server that is stopped with this.
pub(crate) struct Served {
    address: String,
    task: JoinHandle<()>,
}

/// Serves on a free port of the loopback interface.
pub(crate) async fn serve(server: ServerBuilder) -> Served {
    let bound = server.bind("127.0.0.1:0").await.expect("a free port");
    Served { address: bound.listening().to_string(), task: tokio::spawn(bound.serve()) }
}

impl Served {
    pub(crate) async fn channel(&self) -> Channel {
        Channel::connect(&self.address).await.expect("a connection")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Sends back what it gets.
#[derive(Default)]
pub(crate) struct Mirror {
    /// Where to say how uploads ended, as their handler sees it.
    pub(crate) uploads: Option<UnboundedSender<Result<(), Status>>>,
}

type Replies = Pin<Box<dyn Stream<Item = Result<EchoReply, Status>> + Send>>;

async fn reply(request: EchoRequest, index: u32) -> Result<EchoReply, Status> {
    tokio::time::sleep(Duration::from_millis(request.delay_ms.into())).await;
    if request.fail_code != 0 {
        let code = Code::from_i32(request.fail_code);
        return Err(Status::with_details(code, request.fail_message, request.fail_details));
    }
    Ok(EchoReply { payload: request.payload, text: request.text, index })
}

#[tonic::async_trait]
impl Echo for Mirror {
    async fn unary(&self, request: Request<EchoRequest>) -> Result<Response<EchoReply>, Status> {
        Ok(Response::new(reply(request.into_inner(), 0).await?))
    }

    async fn collect(&self, request: Request<Streaming<EchoRequest>>) -> Result<Response<EchoReply>, Status> {
        let (mut requests, mut all) = (request.into_inner(), EchoReply::default());
        loop {
            let request = requests.message().await;
            if let (Ok(None) | Err(_), Some(uploads)) = (&request, &self.uploads) {
                let ended = request.as_ref().map(|_| ()).map_err(Status::clone);
                uploads.send(ended).expect("the test listens");
            }
            let Some(request) = request? else { break };
            all.text.push_str(&reply(request, 0).await?.text);
        }
        Ok(Response::new(all))
    }

    type ExpandStream = Replies;

    async fn expand(&self, request: Request<EchoRequest>) -> Result<Response<Replies>, Status> {
        let request = request.into_inner();
        let replies = (0..request.count).map(move |index| (request.clone(), index));
        let replies = tokio_stream::iter(replies).then(|(request, index)| reply(request, index));
        Ok(Response::new(Box::pin(replies)))
    }

    type ChatStream = Replies;

    async fn chat(&self, request: Request<Streaming<EchoRequest>>) -> Result<Response<Replies>, Status> {
        let replies = request.into_inner().then(async |request| reply(request?, 0).await);
        Ok(Response::new(Box::pin(replies)))
    }
}
