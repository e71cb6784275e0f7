//! tonic, unchanged, at one end of a path: its channel and generated client, or its server and generated service.
//!
//! Owns what both are given of a case's setup. Never: repairs what tonic does; `exclusions.rs` lists it.

use byway_test_support::reference::Reference;
use byway_test_support::shared::test::v1::echo_client::EchoClient;
use byway_test_support::shared::test::v1::echo_server::EchoServer;
use tokio::sync::oneshot;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};

use crate::path::{Served, Serving, Setup, signal};
use crate::trailing::Trailing;

/// A stock client with a connection to this address.
pub(crate) async fn connect(setup: &Setup, address: &str) -> EchoClient<Channel> {
    let mut endpoint = Endpoint::from_shared(format!("http://{address}"))
        .expect("a URI")
        .tcp_nodelay(true)
        .initial_stream_window_size(setup.client.window)
        .http2_max_header_list_size(u32::from(setup.client.max_head));
    if let Some(timeout) = setup.timeout {
        endpoint = endpoint.timeout(timeout);
    }
    EchoClient::new(endpoint.connect().await.expect("a connection"))
}

/// Starts a stock server.
pub(crate) fn serve(setup: Setup, reference: Reference, at: String) -> Serving {
    Box::pin(async move {
        let incoming = TcpIncoming::bind(at.parse().expect("an address")).ok()?.with_nodelay(Some(true));
        let address = incoming.local_addr().expect("it is bound").to_string();
        let mut service = EchoServer::new(reference);
        if let Some(limit) = setup.max_decoding {
            service = service.max_decoding_message_size(limit);
        }
        if let Some(limit) = setup.max_encoding {
            service = service.max_encoding_message_size(limit);
        }
        let server = Server::builder()
            .initial_stream_window_size(setup.server.window)
            .max_concurrent_streams(u32::from(setup.server.max_calls))
            .http2_max_header_list_size(u32::from(setup.server.max_head))
            .add_service(service)
            .add_service(Trailing);
        let (drain, draining) = oneshot::channel();
        let task = tokio::spawn(async move {
            server.serve_with_incoming_shutdown(incoming, signal(draining)).await.expect("it stops well");
        });
        Some(Served { address, drain, task })
    })
}
