//! `byway.embedding.v1.BatchEmbed`: many texts to one matrix.

use std::sync::Arc;

use byway::{Request, Response, Status, async_trait};

use crate::engine::{Admission, EmbedInput, Engine};
use crate::matrix;
use crate::pb::byway::embedding::v1::batch_embed_server::BatchEmbed;
use crate::pb::byway::embedding::v1::{EmbedBatchRequest, EmbedBatchResponse};
use crate::service::convert::{batch_metadata, cut, refused, u32_of};

pub(super) struct BatchService {
    engine: Arc<Engine>,
}

impl BatchService {
    pub(super) fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }
}

#[async_trait]
impl BatchEmbed for BatchService {
    async fn embed_batch(
        &self,
        request: Request<EmbedBatchRequest>,
    ) -> Result<Response<EmbedBatchResponse>, Status> {
        let EmbedBatchRequest { inputs, truncate, normalize, truncation_direction, prompt_name, dimensions } =
            request.into_inner();
        let rows = u32_of(inputs.len());
        let input = EmbedInput {
            texts: inputs,
            cut: cut(truncate, truncation_direction).map_err(refused)?,
            prompt_name,
            raw: normalize == Some(false),
            dimensions,
        };
        let embedded = self.engine.embed(input, Admission::Refuse).await?;
        let mut response = EmbedBatchResponse {
            rows,
            dimensions: u32_of(embedded.dimensions),
            metadata: Some(batch_metadata(&embedded.cost)),
            ..Default::default()
        };
        matrix::encode(&mut response, embedded.values);
        Ok(Response::new(response))
    }
}
