//! `tei.v1.Embed/Embed` and `tei.v1.Info`.

use byway::Code;
use embedding_service::engine::Settings;
use embedding_service::pb::tei::v1::embed_client::EmbedClient;
use embedding_service::pb::tei::v1::info_client::InfoClient;
use embedding_service::pb::tei::v1::{EmbedRequest, InfoRequest, ModelType, TruncationDirection};

use crate::harness::{Gate, in_time, null, real, text};

#[tokio::test]
async fn info_describes_the_model_and_the_limits() {
    in_time(async {
        let served = real().await;
        let client = InfoClient::new(served.channel().await);
        let info = client.info(InfoRequest {}).await.expect("a reply").into_inner();
        assert_eq!((info.model_id.as_str(), info.model_dtype.as_str()), ("all-MiniLM-L6-v2-int8", "int8"));
        assert_eq!(info.model_type(), ModelType::Embedding);
        assert_eq!((info.max_concurrent_requests, info.max_client_batch_size), (512, 32));
        assert_eq!((info.max_input_length, info.max_batch_tokens), (256, 16_384));
        assert_eq!(info.version, env!("CARGO_PKG_VERSION"));
        let workers = Settings::default().tokenization_workers;
        assert_eq!(info.tokenization_workers as usize, workers);
    })
    .await;
}

#[tokio::test]
async fn a_text_becomes_a_vector_and_its_cost_is_told_twice() {
    in_time(async {
        let served = real().await;
        let client = EmbedClient::new(served.channel().await);
        let response = client.embed(text("This is an example sentence")).await.expect("a reply");
        let headers = response.metadata().clone();
        let reply = response.into_inner();
        assert_eq!(reply.embeddings.len(), 384);
        let length = reply.embeddings.iter().map(|value| value * value).sum::<f32>().sqrt();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
        let cost = reply.metadata.expect("its cost");
        assert_eq!((cost.compute_chars, cost.compute_tokens), (27, 7));
        assert!(cost.inference_time_ns > 0 && cost.tokenization_time_ns > 0, "{cost:?}");
        let parts = cost.tokenization_time_ns + cost.queue_time_ns + cost.inference_time_ns;
        assert!(cost.total_time_ns >= parts, "{cost:?}");
        let header = |name: &str| headers.get(name).map(|value| value.to_str().expect("text").to_owned());
        assert_eq!(header("x-compute-type").as_deref(), Some("cpu"));
        assert_eq!(header("x-compute-characters").as_deref(), Some("27"));
        assert_eq!(header("x-compute-tokens").as_deref(), Some("7"));
        let ms = |ns: u64| Some((ns / 1_000_000).to_string());
        assert_eq!(header("x-total-time"), ms(cost.total_time_ns));
        assert_eq!(header("x-compute-time"), ms(cost.total_time_ns));
        assert_eq!(header("x-inference-time"), ms(cost.inference_time_ns));
        assert_eq!(header("x-tokenization-time"), ms(cost.tokenization_time_ns));
        assert_eq!(header("x-queue-time"), ms(cost.queue_time_ns));
    })
    .await;
}

#[tokio::test]
async fn vectors_are_raw_or_shortened_on_request() {
    in_time(async {
        let served = real().await;
        let client = EmbedClient::new(served.channel().await);
        let vector = async |request| client.embed(request).await.expect("a reply").into_inner().embeddings;
        let raw = vector(EmbedRequest { normalize: Some(false), ..text("a") }).await;
        let short = vector(EmbedRequest { dimensions: Some(64), ..text("a") }).await;
        assert_eq!((raw.len(), short.len()), (384, 64));
        let length = |vector: &[f32]| vector.iter().map(|value| value * value).sum::<f32>().sqrt();
        assert!(length(&raw) > 1.5, "{}", length(&raw));
        assert!((length(&short) - 1.0).abs() < 1e-5, "{}", length(&short));
        let scale = length(&raw[..64]);
        assert!(raw.iter().zip(&short).all(|(raw, short)| (raw / scale - short).abs() < 1e-5));
    })
    .await;
}

#[tokio::test]
async fn every_kind_of_invalid_request_is_told_in_teis_words() {
    in_time(async {
        let served = real().await;
        let client = EmbedClient::new(served.channel().await);
        let long = "word ".repeat(300);
        let cases = [
            (text(""), "`inputs` cannot be empty"),
            (text(&long), "`inputs` must have less than 256 tokens. Given: 302"),
            (EmbedRequest { dimensions: Some(0), ..text("a") }, "`dimensions` should be positive"),
            (
                EmbedRequest { dimensions: Some(385), ..text("a") },
                "`dimensions` should be smaller than the maximum embedding dimension.",
            ),
            (
                EmbedRequest { truncation_direction: 2, ..text("a") },
                "`truncation_direction` is 2; it may be 0 (right) or 1 (left)",
            ),
            (
                EmbedRequest { prompt_name: Some("query".to_owned()), ..text("a") },
                "the prompt `query` was asked for, but the model has no prompts: leave the name out",
            ),
        ];
        for (request, message) in cases {
            let status = client.embed(request).await.expect_err("refused");
            let expected = format!("Input validation error: {message}");
            assert_eq!((status.code(), status.message()), (Code::InvalidArgument, expected.as_str()));
        }
    })
    .await;
}

#[tokio::test]
async fn a_text_that_is_too_long_is_cut_at_the_end_that_was_chosen() {
    in_time(async {
        let served = real().await;
        let client = EmbedClient::new(served.channel().await);
        let long = format!("{}{}", "first ".repeat(200), "second ".repeat(200));
        let cut = async |direction: TruncationDirection| {
            let truncation_direction = direction.into();
            let request = EmbedRequest { truncate: true, truncation_direction, ..text(&long) };
            let reply = client.embed(request).await.expect("a reply").into_inner();
            assert_eq!(reply.metadata.expect("its cost").compute_tokens, 256);
            reply.embeddings
        };
        let whole =
            async |inputs: &str| client.embed(text(inputs)).await.expect("a reply").into_inner().embeddings;
        let right = format!("{}{}", "first ".repeat(200), "second ".repeat(54));
        let left = format!("{}{}", "first ".repeat(54), "second ".repeat(200));
        assert_eq!(cut(TruncationDirection::Right).await, whole(&right).await);
        assert_eq!(cut(TruncationDirection::Left).await, whole(&left).await);
    })
    .await;
}

#[tokio::test]
async fn a_server_with_all_it_allows_refuses_single_requests_at_once() {
    in_time(async {
        let (served, gate) =
            Gate::serve(Settings { max_concurrent_requests: 1, ..Settings::default() }).await;
        let client = EmbedClient::new(served.channel().await);
        let first = tokio::spawn({
            let client = client.clone();
            async move { client.embed(text("first")).await }
        });
        let (began, gate) = gate.next().await;
        assert_eq!(began, "first");
        let status = client.embed(text("second")).await.expect_err("refused");
        assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "Model is overloaded"));
        gate.go();
        assert_eq!(first.await.expect("no panic").expect("a reply").into_inner().embeddings, [1.0]);
        gate.go();
        client.embed(text("third")).await.expect("there is room again");
    })
    .await;
}

#[tokio::test]
async fn what_a_client_gave_up_is_not_computed() {
    in_time(async {
        let (served, gate) = Gate::serve(Settings::default()).await;
        let client = EmbedClient::new(served.channel().await);
        let call = |inputs: &'static str| {
            let client = client.clone();
            tokio::spawn(async move { client.embed(text(inputs)).await })
        };
        let first = call("first");
        let (_, gate) = gate.next().await;
        let second = call("given up");
        gate.until_queued(1).await;
        second.abort();
        gate.until_queued(0).await;
        let third = call("third");
        gate.go();
        first.await.expect("no panic").expect("a reply");
        let (began, gate) = gate.next().await;
        assert_eq!(began, "third");
        gate.go();
        third.await.expect("no panic").expect("a reply");
        assert_eq!(gate.unseen(), None);
    })
    .await;
}

#[tokio::test]
async fn a_model_that_fails_fails_the_request() {
    in_time(async {
        let (served, gate) = Gate::serve(Settings::default()).await;
        let client = EmbedClient::new(served.channel().await);
        gate.go();
        let status = client.embed(text("fail")).await.expect_err("it failed");
        assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, "Backend error: as told"));
    })
    .await;
}

#[tokio::test]
async fn a_null_model_answers_the_same_for_the_same_text() {
    in_time(async {
        let served = null(384).await;
        let client = EmbedClient::new(served.channel().await);
        let vector =
            async |inputs| client.embed(text(inputs)).await.expect("a reply").into_inner().embeddings;
        let first = vector("a").await;
        assert_eq!(first.len(), 384);
        assert_eq!(first, vector("a").await);
        assert_ne!(first, vector("b").await);
    })
    .await;
}
