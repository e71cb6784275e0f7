//! The client of the echo service that a case calls by, whoever generated it.

use byway::{IntoRequest, IntoStreamingRequest, Response, Status, Streaming};
use byway_test_support::shared::test::v1::echo_client::EchoClient as StockClient;
use byway_test_support::test::v1::echo_client::EchoClient;
use byway_test_support::test::v1::{EchoReply, EchoRequest};

use crate::path::AnyPath;

/// A client, with the methods of byway's own.
#[derive(Clone)]
pub(crate) enum Client {
    /// byway's, over anything of byway's.
    Byway(EchoClient<AnyPath>),
    /// tonic's, over tonic's channel.
    Stock(StockClient<tonic::transport::Channel>),
}

impl Client {
    pub(crate) async fn unary(
        &self,
        request: impl IntoRequest<EchoRequest>,
    ) -> Result<Response<EchoReply>, Status> {
        match self {
            Self::Byway(client) => client.unary(request).await,
            Self::Stock(client) => client.clone().unary(request).await,
        }
    }

    pub(crate) async fn collect(
        &self,
        requests: impl IntoStreamingRequest<Message = EchoRequest>,
    ) -> Result<Response<EchoReply>, Status> {
        match self {
            Self::Byway(client) => client.collect(requests).await,
            Self::Stock(client) => client.clone().collect(requests).await,
        }
    }

    pub(crate) async fn expand(
        &self,
        request: impl IntoRequest<EchoRequest>,
    ) -> Result<Response<Streaming<EchoReply>>, Status> {
        match self {
            Self::Byway(client) => client.expand(request).await,
            Self::Stock(client) => client.clone().expand(request).await,
        }
    }

    pub(crate) async fn chat(
        &self,
        requests: impl IntoStreamingRequest<Message = EchoRequest>,
    ) -> Result<Response<Streaming<EchoReply>>, Status> {
        match self {
            Self::Byway(client) => client.chat(requests).await,
            Self::Stock(client) => client.clone().chat(requests).await,
        }
    }

    pub(crate) fn max_decoding_message_size(self, limit: usize) -> Self {
        match self {
            Self::Byway(client) => Self::Byway(client.max_decoding_message_size(limit)),
            Self::Stock(client) => Self::Stock(client.max_decoding_message_size(limit)),
        }
    }

    pub(crate) fn max_encoding_message_size(self, limit: usize) -> Self {
        match self {
            Self::Byway(client) => Self::Byway(client.max_encoding_message_size(limit)),
            Self::Stock(client) => Self::Stock(client.max_encoding_message_size(limit)),
        }
    }
}
