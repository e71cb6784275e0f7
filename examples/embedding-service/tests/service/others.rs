//! What is not built, health and reflection.

use byway::{Code, Status};
use embedding_service::pb::tei::v1::embed_client::EmbedClient;
use embedding_service::pb::tei::v1::predict_client::PredictClient;
use embedding_service::pb::tei::v1::rerank_client::RerankClient;
use embedding_service::pb::tei::v1::tokenize_client::TokenizeClient;
use embedding_service::pb::tei::v1::{
    DecodeRequest, EmbedAllRequest, EmbedSparseRequest, EncodeRequest, PredictPairRequest, PredictRequest,
    RerankRequest, RerankStreamRequest,
};
use embedding_service::service::{NOT_SERVING, SERVING};
use futures_util::{StreamExt, stream};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::harness::{in_time, null};

#[tokio::test]
async fn what_is_not_built_says_so_by_its_name() {
    in_time(async {
        let served = null(4).await;
        let channel = served.channel().await;
        fn check<R>(method: &str, answer: Result<R, Status>) {
            let Err(status) = answer else { panic!("{method} answered") };
            assert_eq!(status.code(), Code::Unimplemented, "{method}");
            assert!(
                status.message().starts_with(&format!("{method} is not built yet")),
                "{}",
                status.message()
            );
        }
        let embed = EmbedClient::new(channel.clone());
        check("tei.v1.Embed/EmbedSparse", embed.embed_sparse(EmbedSparseRequest::default()).await);
        check("tei.v1.Embed/EmbedAll", embed.embed_all(EmbedAllRequest::default()).await);
        check(
            "tei.v1.Embed/EmbedSparseStream",
            first(embed.embed_sparse_stream(stream::empty()).await).await,
        );
        check("tei.v1.Embed/EmbedAllStream", first(embed.embed_all_stream(stream::empty()).await).await);
        let predict = PredictClient::new(channel.clone());
        check("tei.v1.Predict/Predict", predict.predict(PredictRequest::default()).await);
        check("tei.v1.Predict/PredictPair", predict.predict_pair(PredictPairRequest::default()).await);
        check("tei.v1.Predict/PredictStream", first(predict.predict_stream(stream::empty()).await).await);
        let pairs = predict.predict_pair_stream(stream::empty()).await;
        check("tei.v1.Predict/PredictPairStream", first(pairs).await);
        let rerank = RerankClient::new(channel.clone());
        check("tei.v1.Rerank/Rerank", rerank.rerank(RerankRequest::default()).await);
        check(
            "tei.v1.Rerank/RerankStream",
            rerank.rerank_stream(stream::empty::<RerankStreamRequest>()).await,
        );
        let tokenize = TokenizeClient::new(channel);
        check("tei.v1.Tokenize/Tokenize", tokenize.tokenize(EncodeRequest::default()).await);
        check("tei.v1.Tokenize/Decode", tokenize.decode(DecodeRequest::default()).await);
        check("tei.v1.Tokenize/TokenizeStream", first(tokenize.tokenize_stream(stream::empty()).await).await);
        check("tei.v1.Tokenize/DecodeStream", first(tokenize.decode_stream(stream::empty()).await).await);
    })
    .await;
}

/// The first answer of a stream, wherever its failure comes.
async fn first<M>(replies: Result<byway::Response<byway::Streaming<M>>, Status>) -> Result<M, Status> {
    let reply = replies?.into_inner().message().await?;
    reply.ok_or_else(|| Status::unknown("the stream was empty"))
}

#[tokio::test]
async fn health_tells_what_is_built() {
    in_time(async {
        let served = null(4).await;
        let mut client = HealthClient::new(served.channel().await);
        let mut status = async |service: &str| {
            let request = HealthCheckRequest { service: service.to_owned() };
            client.check(request).await.map(|reply| reply.into_inner().status())
        };
        for name in SERVING {
            assert_eq!(status(name).await.expect("known"), ServingStatus::Serving, "{name}");
        }
        for name in NOT_SERVING {
            assert_eq!(status(name).await.expect("known"), ServingStatus::NotServing, "{name}");
        }
        assert_eq!(status("").await.expect("known"), ServingStatus::Serving);
        assert_eq!(status("tei.v1.Other").await.expect_err("unknown").code(), Code::NotFound);
    })
    .await;
}

/// Lists services and describes one, in one version of the protocol.
macro_rules! reflection {
    ($name:ident, $version:ident) => {
        #[tokio::test]
        async fn $name() {
            use tonic_reflection::pb::$version::ServerReflectionRequest;
            use tonic_reflection::pb::$version::server_reflection_client::ServerReflectionClient;
            use tonic_reflection::pb::$version::server_reflection_request::MessageRequest;
            use tonic_reflection::pb::$version::server_reflection_response::MessageResponse;
            in_time(async {
                let served = null(4).await;
                let mut client = ServerReflectionClient::new(served.channel().await);
                let symbol = "byway.embedding.v1.BatchEmbed".to_owned();
                let requests = [
                    MessageRequest::ListServices(String::new()),
                    MessageRequest::FileContainingSymbol(symbol),
                ];
                let requests = requests.map(|request| ServerReflectionRequest {
                    host: String::new(),
                    message_request: Some(request),
                });
                let replies = client.server_reflection_info(stream::iter(requests)).await.expect("replies");
                let replies: Vec<_> = replies
                    .into_inner()
                    .map(|reply| reply.expect("no failure").message_response.expect("an answer"))
                    .collect()
                    .await;
                let [
                    MessageResponse::ListServicesResponse(list),
                    MessageResponse::FileDescriptorResponse(files),
                ] = &replies[..]
                else {
                    panic!("other answers: {replies:?}");
                };
                for name in SERVING.iter().chain(&NOT_SERVING).chain(&["grpc.health.v1.Health"]) {
                    assert!(list.service.iter().any(|service| service.name == *name), "{name} in {list:?}");
                }
                let described = files
                    .file_descriptor_proto
                    .iter()
                    .any(|file| file.windows(10).any(|window| window == b"EmbedBatch"));
                assert!(described, "its file is sent");
            })
            .await;
        }
    };
}

reflection!(reflection_v1_describes_the_services, v1);
reflection!(reflection_v1alpha_describes_the_services, v1alpha);
