//! A server that asks for a key, and one that serves another name.

use std::sync::Arc;

use byway::{Code, Request};
use embedding_service::engine::{Engine, Settings};
use embedding_service::model::open;
use embedding_service::pb::byway::embedding::v1::EmbedBatchRequest;
use embedding_service::pb::byway::embedding::v1::batch_embed_client::BatchEmbedClient;
use embedding_service::pb::tei::v1::embed_client::EmbedClient;
use embedding_service::pb::tei::v1::info_client::InfoClient;
use embedding_service::pb::tei::v1::{InfoRequest, PredictRequest, predict_client::PredictClient};
use embedding_service::service::Options;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::harness::{Served, in_time, text};

async fn served(options: Options) -> Served {
    let (backend, prompts) = open("null:4").expect("a null model");
    let engine = Engine::start(backend, prompts, Settings::default()).expect("it starts");
    Served::start(Arc::new(engine), options).await
}

#[tokio::test]
async fn calls_need_the_key_and_health_does_not() {
    in_time(async {
        let served = served(Options { api_key: Some("secret".to_owned()), ..Options::default() }).await;
        let channel = served.channel().await;
        for header in [None, Some("Bearer other"), Some("secret")] {
            let mut request = Request::new(text("a"));
            if let Some(header) = header {
                request.metadata_mut().insert("authorization", header.parse().expect("ASCII"));
            }
            let status = EmbedClient::new(channel.clone()).embed(request).await.expect_err("refused");
            assert_eq!((status.code(), status.message()), (Code::Unauthenticated, "No valid auth token"));
        }
        let info = InfoClient::new(channel.clone()).info(InfoRequest {}).await;
        assert_eq!(info.expect_err("refused").code(), Code::Unauthenticated);
        let batch = BatchEmbedClient::new(channel.clone()).embed_batch(EmbedBatchRequest::default()).await;
        assert_eq!(batch.expect_err("refused").code(), Code::Unauthenticated);
        let predict = PredictClient::new(channel.clone()).predict(PredictRequest::default()).await;
        assert_eq!(predict.expect_err("refused").code(), Code::Unauthenticated);

        let mut request = Request::new(text("a"));
        request.metadata_mut().insert("authorization", "Bearer secret".parse().expect("ASCII"));
        let reply = EmbedClient::new(channel.clone()).embed(request).await.expect("a reply");
        assert_eq!(reply.into_inner().embeddings.len(), 4);
        let request = HealthCheckRequest { service: "tei.v1.Embed".to_owned() };
        HealthClient::new(channel).check(request).await.expect("health needs no key");
    })
    .await;
}

#[tokio::test]
async fn info_tells_the_name_that_was_chosen() {
    in_time(async {
        let served =
            served(Options { served_model_name: Some("mine".to_owned()), ..Options::default() }).await;
        let client = InfoClient::new(served.channel().await);
        assert_eq!(client.info(InfoRequest {}).await.expect("a reply").into_inner().model_id, "mine");
    })
    .await;
}
