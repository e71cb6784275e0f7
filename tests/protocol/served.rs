//! A byway server of the reference service, for clients that speak HTTP/2.

use byway::{Server, ServerBuilder};
use byway_test_support::reference::{Journal, Reference};
use byway_test_support::test::v1::echo_server::EchoServer;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::harness::soon;
use crate::wire::Wire;

/// A server on a free port, until it is stopped.
pub(crate) struct Served {
    pub(crate) journal: Journal,
    address: String,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Served {
    pub(crate) async fn start() -> Self {
        Self::with(Server::builder()).await
    }

    pub(crate) async fn with(builder: ServerBuilder) -> Self {
        let (reference, journal) = Reference::new();
        let server = builder.add_service(EchoServer::new(reference));
        let bound = server.bind("127.0.0.1:0").await.expect("a free port");
        let address = bound.listening().to_string();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(bound.serve_with_shutdown(async {
            let _ = stopped.await;
        }));
        Self { journal, address, stop: Some(stop), task }
    }

    /// `host:port`.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// A connection.
    pub(crate) async fn wire(&self) -> Wire {
        Wire::connect(&self.address).await
    }

    /// Tells it to take no more calls.
    pub(crate) fn drain(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// Drains it and waits until it has ended. The journal is then complete.
    pub(crate) async fn stop(mut self) -> Journal {
        self.drain();
        soon(&mut self.task).await.expect("the server does not panic");
        self.journal
    }
}
