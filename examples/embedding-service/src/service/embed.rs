//! `tei.v1.Embed`.
//!
//! Owns the answers to single texts and to streams of them. Invariants: a stream is answered in the order of its requests,
//! has a bounded number of them under way, and ends at its first error; requests of streams wait for a place, single
//! ones are refused when there is none. Sparse vectors and vectors of tokens are not built.

use std::pin::Pin;
use std::sync::Arc;

use byway::{Request, Response, Status, Streaming, async_trait};
use futures_util::{Stream, StreamExt};

use crate::engine::{Admission, EmbedInput, Embedded, Engine};
use crate::pb::tei::v1::embed_server::Embed;
use crate::pb::tei::v1::{
    EmbedAllRequest, EmbedAllResponse, EmbedRequest, EmbedResponse, EmbedSparseRequest, EmbedSparseResponse,
};
use crate::service::convert::{cut, headers, refused, tei_metadata};
use crate::service::unbuilt::{Nothing, unbuilt};

/// Requests of one stream that are under way at once: enough to keep every thread of a machine busy. What a stream
/// sends beyond that stays with its sender.
const MAX_IN_FLIGHT: usize = 64;

pub(super) struct EmbedService {
    engine: Arc<Engine>,
}

impl EmbedService {
    pub(super) fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }
}

async fn embed(engine: &Engine, request: EmbedRequest, admission: Admission) -> Result<Embedded, Status> {
    let EmbedRequest { inputs, truncate, normalize, truncation_direction, prompt_name, dimensions } = request;
    let input = EmbedInput {
        texts: vec![inputs],
        cut: cut(truncate, truncation_direction).map_err(refused)?,
        prompt_name,
        raw: normalize == Some(false),
        dimensions,
    };
    Ok(engine.embed(input, admission).await?)
}

fn response(embedded: Embedded) -> EmbedResponse {
    EmbedResponse { metadata: Some(tei_metadata(&embedded.cost)), embeddings: embedded.values }
}

#[async_trait]
impl Embed for EmbedService {
    async fn embed(&self, request: Request<EmbedRequest>) -> Result<Response<EmbedResponse>, Status> {
        let embedded = embed(&self.engine, request.into_inner(), Admission::Refuse).await?;
        let cost = embedded.cost;
        let mut response = Response::new(response(embedded));
        headers(&cost, response.metadata_mut());
        Ok(response)
    }

    type EmbedStreamStream = Pin<Box<dyn Stream<Item = Result<EmbedResponse, Status>> + Send>>;

    async fn embed_stream(
        &self,
        request: Request<Streaming<EmbedRequest>>,
    ) -> Result<Response<Self::EmbedStreamStream>, Status> {
        let engine = Arc::clone(&self.engine);
        let answers = request.into_inner().map(move |request| {
            let engine = Arc::clone(&engine);
            async move { embed(&engine, request?, Admission::Wait).await.map(response) }
        });
        Ok(Response::new(Box::pin(answers.buffered(MAX_IN_FLIGHT))))
    }

    async fn embed_sparse(
        &self,
        _: Request<EmbedSparseRequest>,
    ) -> Result<Response<EmbedSparseResponse>, Status> {
        Err(unbuilt("tei.v1.Embed/EmbedSparse"))
    }

    type EmbedSparseStreamStream = Nothing<EmbedSparseResponse>;

    async fn embed_sparse_stream(
        &self,
        _: Request<Streaming<EmbedSparseRequest>>,
    ) -> Result<Response<Self::EmbedSparseStreamStream>, Status> {
        Err(unbuilt("tei.v1.Embed/EmbedSparseStream"))
    }

    async fn embed_all(&self, _: Request<EmbedAllRequest>) -> Result<Response<EmbedAllResponse>, Status> {
        Err(unbuilt("tei.v1.Embed/EmbedAll"))
    }

    type EmbedAllStreamStream = Nothing<EmbedAllResponse>;

    async fn embed_all_stream(
        &self,
        _: Request<Streaming<EmbedAllRequest>>,
    ) -> Result<Response<Self::EmbedAllStreamStream>, Status> {
        Err(unbuilt("tei.v1.Embed/EmbedAllStream"))
    }
}
