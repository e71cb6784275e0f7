//! What the contract of Text Embeddings Inference has and this server does not, yet.
//!
//! Owns the answer to such calls: UNIMPLEMENTED, and which method it is that is missing.

use byway::{Request, Response, Status, Streaming, async_trait};

use crate::pb::tei::v1::predict_server::Predict;
use crate::pb::tei::v1::rerank_server::Rerank;
use crate::pb::tei::v1::tokenize_server::Tokenize;
use crate::pb::tei::v1::{
    DecodeRequest, DecodeResponse, EncodeRequest, EncodeResponse, PredictPairRequest, PredictRequest,
    PredictResponse, RerankRequest, RerankResponse, RerankStreamRequest,
};

/// The answers of a stream that is not built.
pub(super) type Nothing<M> = futures_util::stream::Empty<Result<M, Status>>;

/// The answer to calls of `method`.
pub(super) fn unbuilt(method: &str) -> Status {
    Status::unimplemented(format!(
        "{method} is not built yet: this server has tei.v1.Embed/Embed and EmbedStream, and byway.embedding.v1.BatchEmbed"
    ))
}

/// Services of which nothing is built.
pub(super) struct Unbuilt;

#[async_trait]
impl Predict for Unbuilt {
    async fn predict(&self, _: Request<PredictRequest>) -> Result<Response<PredictResponse>, Status> {
        Err(unbuilt("tei.v1.Predict/Predict"))
    }

    async fn predict_pair(
        &self,
        _: Request<PredictPairRequest>,
    ) -> Result<Response<PredictResponse>, Status> {
        Err(unbuilt("tei.v1.Predict/PredictPair"))
    }

    type PredictStreamStream = Nothing<PredictResponse>;

    async fn predict_stream(
        &self,
        _: Request<Streaming<PredictRequest>>,
    ) -> Result<Response<Self::PredictStreamStream>, Status> {
        Err(unbuilt("tei.v1.Predict/PredictStream"))
    }

    type PredictPairStreamStream = Nothing<PredictResponse>;

    async fn predict_pair_stream(
        &self,
        _: Request<Streaming<PredictPairRequest>>,
    ) -> Result<Response<Self::PredictPairStreamStream>, Status> {
        Err(unbuilt("tei.v1.Predict/PredictPairStream"))
    }
}

#[async_trait]
impl Rerank for Unbuilt {
    async fn rerank(&self, _: Request<RerankRequest>) -> Result<Response<RerankResponse>, Status> {
        Err(unbuilt("tei.v1.Rerank/Rerank"))
    }

    async fn rerank_stream(
        &self,
        _: Request<Streaming<RerankStreamRequest>>,
    ) -> Result<Response<RerankResponse>, Status> {
        Err(unbuilt("tei.v1.Rerank/RerankStream"))
    }
}

#[async_trait]
impl Tokenize for Unbuilt {
    async fn tokenize(&self, _: Request<EncodeRequest>) -> Result<Response<EncodeResponse>, Status> {
        Err(unbuilt("tei.v1.Tokenize/Tokenize"))
    }

    type TokenizeStreamStream = Nothing<EncodeResponse>;

    async fn tokenize_stream(
        &self,
        _: Request<Streaming<EncodeRequest>>,
    ) -> Result<Response<Self::TokenizeStreamStream>, Status> {
        Err(unbuilt("tei.v1.Tokenize/TokenizeStream"))
    }

    async fn decode(&self, _: Request<DecodeRequest>) -> Result<Response<DecodeResponse>, Status> {
        Err(unbuilt("tei.v1.Tokenize/Decode"))
    }

    type DecodeStreamStream = Nothing<DecodeResponse>;

    async fn decode_stream(
        &self,
        _: Request<Streaming<DecodeRequest>>,
    ) -> Result<Response<Self::DecodeStreamStream>, Status> {
        Err(unbuilt("tei.v1.Tokenize/DecodeStream"))
    }
}
