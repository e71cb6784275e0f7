//! `tei.v1.Info`.

use std::sync::Arc;

use byway::{Request, Response, Status, async_trait};

use crate::engine::Engine;
use crate::pb::tei::v1::info_server::Info;
use crate::pb::tei::v1::{InfoRequest, InfoResponse, ModelType};
use crate::service::convert::u32_of;

pub(super) struct InfoService {
    engine: Arc<Engine>,
    served_model_name: Option<String>,
}

impl InfoService {
    pub(super) fn new(engine: Arc<Engine>, served_model_name: Option<String>) -> Self {
        Self { engine, served_model_name }
    }
}

#[async_trait]
impl Info for InfoService {
    async fn info(&self, _: Request<InfoRequest>) -> Result<Response<InfoResponse>, Status> {
        let (model, settings) = (self.engine.description(), self.engine.settings());
        Ok(Response::new(InfoResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            // None of these is known: builds do not record a commit, models come without a revision.
            sha: None,
            docker_label: None,
            model_sha: None,
            model_id: self.served_model_name.clone().unwrap_or_else(|| model.model_id.clone()),
            model_dtype: model.dtype.to_owned(),
            model_type: ModelType::Embedding.into(),
            max_concurrent_requests: u32_of(settings.max_concurrent_requests),
            max_input_length: u32_of(self.engine.max_tokens()),
            max_batch_tokens: u32_of(settings.max_batch_tokens),
            // The model is given one text at a time.
            max_batch_requests: Some(1),
            max_client_batch_size: u32_of(settings.max_client_batch_size),
            tokenization_workers: u32_of(settings.tokenization_workers),
        }))
    }
}
