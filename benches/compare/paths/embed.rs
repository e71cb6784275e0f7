//! byway's embedding service: texts to vectors, the job that byway exists for.
//!
//! One server for all paths, the embedding service with default settings but one thread for calls. Clients are what
//! its users have: generated code over a byway channel, and a stock tonic client over HTTP/2. Never measures a model, unless
//! asked to: null models make up vectors.

use std::net::SocketAddr;
use std::sync::Arc;

use byway::Channel;
use embedding_service::Embeddings;
use embedding_service::engine::{Engine, Settings};
use embedding_service::model::open;
use embedding_service::pb::byway::embedding::v1::batch_embed_client::BatchEmbedClient;
use embedding_service::pb::byway::embedding::v1::{EmbedBatchRequest, EmbedBatchResponse};
use embedding_service::pb::tei::v1::embed_client::EmbedClient;
use embedding_service::pb::tei::v1::{EmbedRequest, EmbedResponse};
use embedding_service::service::{self, Options};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic_prost::ProstCodec;

use super::tonic::connect;
use super::{CALL_TIMEOUT, Carrier};
use crate::workload::{Ask, TEXTS, Workload};
use crate::{Failure, closed_loop, peer};

const TEXT: &str = "a text of a few words";

pub(crate) async fn serve(model: &str, at: SocketAddr) -> Result<(), Failure> {
    let (backend, prompts) = open(model)?;
    let engine = Arc::new(Engine::start(backend, prompts, Settings::default())?);
    let server = service::server(engine, Options::default()).await?.bind(at).await?;
    peer::announce(server.listening())?;
    server.serve().await;
    Ok(())
}

#[derive(Clone)]
pub(crate) struct Caller {
    client: Client,
    ask: Ask,
    /// Of the vectors in each reply.
    bytes: usize,
    texts: Vec<String>,
}

#[derive(Clone)]
enum Client {
    Byway {
        embed: EmbedClient<Channel>,
        batch: BatchEmbedClient<Channel>,
    },
    /// What tonic's generator makes of a service is this and the path of each method.
    Stock(Grpc<tonic::transport::Channel>),
}

impl Caller {
    pub(super) async fn connect(
        address: &str,
        workload: &Workload,
        carrier: Carrier,
    ) -> Result<Self, Failure> {
        let client = match carrier {
            Carrier::Byway(transport, _) => {
                let builder = Channel::builder(address).transport(transport).timeout(CALL_TIMEOUT);
                let channel = builder.connect().await?;
                Client::Byway {
                    embed: EmbedClient::new(channel.clone()),
                    batch: BatchEmbedClient::new(channel),
                }
            }
            Carrier::Tonic(windows) => Client::Stock(Grpc::new(connect(address, windows).await?)),
            Carrier::RawTcp | Carrier::RawRdma(_) | Carrier::Simulated => {
                return Err("it carries no service".into());
            }
        };
        let texts = (0..TEXTS).map(|number| format!("text {number}")).collect();
        Ok(Self { client, ask: workload.ask, bytes: workload.bytes, texts })
    }

    async fn embed(&self) -> Result<EmbedResponse, Failure> {
        let request = EmbedRequest { inputs: TEXT.to_owned(), ..Default::default() };
        match &self.client {
            Client::Byway { embed, .. } => Ok(embed.embed(request).await?.into_inner()),
            Client::Stock(grpc) => unary(grpc, "/tei.v1.Embed/Embed", request).await,
        }
    }

    async fn embed_batch(&self) -> Result<EmbedBatchResponse, Failure> {
        let request = EmbedBatchRequest { inputs: self.texts.clone(), ..Default::default() };
        match &self.client {
            Client::Byway { batch, .. } => Ok(batch.embed_batch(request).await?.into_inner()),
            Client::Stock(grpc) => unary(grpc, "/byway.embedding.v1.BatchEmbed/EmbedBatch", request).await,
        }
    }
}

/// What a generated method does.
async fn unary<Q, R>(
    grpc: &Grpc<tonic::transport::Channel>,
    path: &'static str,
    request: Q,
) -> Result<R, Failure>
where
    Q: prost::Message + Send + Sync + 'static,
    R: prost::Message + Default + Send + Sync + 'static,
{
    let mut grpc = grpc.clone();
    grpc.ready().await?;
    let codec = ProstCodec::<Q, R>::default();
    let reply = grpc.unary(tonic::Request::new(request), PathAndQuery::from_static(path), codec).await?;
    Ok(reply.into_inner())
}

impl closed_loop::Caller for Caller {
    async fn call(&self) -> Result<(), Failure> {
        let bytes = match self.ask {
            Ask::EmbedBatch(_) => Embeddings::try_from(self.embed_batch().await?)?.as_bytes().len(),
            Ask::Embed(_) | Ask::Echo => size_of_val(&self.embed().await?.embeddings[..]),
        };
        if bytes == self.bytes {
            return Ok(());
        }
        Err(format!("a reply has {bytes} bytes of vectors, not {}", self.bytes).into())
    }
}
