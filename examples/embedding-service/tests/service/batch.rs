//! `byway.embedding.v1.BatchEmbed/EmbedBatch`.

use std::borrow::Cow;

use byway::Code;
use embedding_service::Embeddings;
use embedding_service::engine::Settings;
use embedding_service::pb::byway::embedding::v1::EmbedBatchRequest;
use embedding_service::pb::byway::embedding::v1::batch_embed_client::BatchEmbedClient;
use embedding_service::pb::tei::v1::embed_client::EmbedClient;

use crate::harness::{Gate, in_time, null, real, text};

fn batch<const N: usize>(inputs: [&str; N]) -> EmbedBatchRequest {
    EmbedBatchRequest { inputs: inputs.map(str::to_owned).to_vec(), ..Default::default() }
}

#[tokio::test]
async fn a_batch_is_its_texts_one_by_one() {
    in_time(async {
        let served = real().await;
        let texts = ["first", "a second text", "and a third, which is longer than both"];
        let client = BatchEmbedClient::new(served.channel().await);
        let response = client.embed_batch(batch(texts)).await.expect("a reply").into_inner();
        let cost = response.metadata.expect("its cost");
        let embeddings = Embeddings::try_from(response).expect("valid");
        assert_eq!((embeddings.rows(), embeddings.dimensions()), (3, 384));
        let single = EmbedClient::new(served.channel().await);
        let (mut chars, mut tokens) = (0, 0);
        for (row, inputs) in texts.iter().enumerate() {
            let reply = single.embed(text(inputs)).await.expect("a reply").into_inner();
            assert_eq!(*embeddings.row(row), reply.embeddings, "{inputs}: neighbours change nothing");
            let cost = reply.metadata.expect("its cost");
            chars += cost.compute_chars;
            tokens += cost.compute_tokens;
        }
        assert_eq!((cost.compute_chars, cost.compute_tokens), (chars, tokens));
        assert!(cost.total_time_ns >= cost.inference_time_ns && cost.inference_time_ns > 0, "{cost:?}");
    })
    .await;
}

#[tokio::test]
async fn the_view_of_a_large_reply_is_the_memory_that_it_landed_in() {
    in_time(async {
        let served = null(8192).await;
        let client = BatchEmbedClient::new(served.channel().await);
        let inputs: Vec<String> = (0..32).map(|row| format!("text {row}")).collect();
        for _ in 0..20 {
            let request = EmbedBatchRequest { inputs: inputs.clone(), ..Default::default() };
            let response = client.embed_batch(request).await.expect("a reply").into_inner();
            let landed = response.data.clone();
            assert_eq!(landed.len(), 1 << 20);
            let embeddings = Embeddings::try_from(response).expect("valid");
            let Cow::Borrowed(view) = embeddings.as_slice() else { panic!("it was copied: not aligned") };
            assert_eq!(view.as_ptr().cast::<u8>(), landed.as_ptr());
            let Cow::Borrowed(row) = embeddings.row(31) else { panic!("it was copied") };
            assert_eq!(row, &view[31 * 8192..]);
        }
    })
    .await;
}

#[tokio::test]
async fn small_replies_are_right_whether_or_not_they_are_aligned() {
    in_time(async {
        let served = null(384).await;
        let client = BatchEmbedClient::new(served.channel().await);
        let single = EmbedClient::new(served.channel().await);
        for rows in 1..=8 {
            let inputs: Vec<String> = (0..rows).map(|row| "x".repeat(row + 1)).collect();
            let request = EmbedBatchRequest { inputs: inputs.clone(), ..Default::default() };
            let response = client.embed_batch(request).await.expect("a reply").into_inner();
            let embeddings = Embeddings::try_from(response).expect("valid");
            assert_eq!(embeddings.rows(), rows);
            for (row, inputs) in inputs.iter().enumerate() {
                let alone = single.embed(text(inputs)).await.expect("a reply").into_inner().embeddings;
                assert_eq!(*embeddings.row(row), alone);
            }
        }
    })
    .await;
}

#[tokio::test]
async fn options_hold_for_all_texts() {
    in_time(async {
        let served = null(384).await;
        let client = BatchEmbedClient::new(served.channel().await);
        let embed = async |request| {
            let response = client.embed_batch(request).await.expect("a reply").into_inner();
            Embeddings::try_from(response).expect("valid")
        };
        let short = embed(EmbedBatchRequest { dimensions: Some(3), ..batch(["a", "b"]) }).await;
        assert_eq!((short.rows(), short.dimensions()), (2, 3));
        let raw = embed(EmbedBatchRequest { normalize: Some(false), ..batch(["a"]) }).await;
        let length = raw.as_slice().iter().map(|value| value * value).sum::<f32>().sqrt();
        assert!(length > 2.0, "{length}");
    })
    .await;
}

#[tokio::test]
async fn a_server_with_all_it_allows_refuses_batches_at_once() {
    in_time(async {
        let (served, gate) =
            Gate::serve(Settings { max_concurrent_requests: 1, ..Settings::default() }).await;
        let client = BatchEmbedClient::new(served.channel().await);
        let first = tokio::spawn({
            let client = client.clone();
            async move { client.embed_batch(batch(["first"])).await }
        });
        let (_, gate) = gate.next().await;
        let status = client.embed_batch(batch(["second"])).await.expect_err("refused");
        assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "Model is overloaded"));
        gate.go();
        first.await.expect("no panic").expect("a reply");
    })
    .await;
}

#[tokio::test]
async fn invalid_batches_are_refused() {
    in_time(async {
        let served = null(4).await;
        let client = BatchEmbedClient::new(served.channel().await);
        let too_many = EmbedBatchRequest { inputs: vec!["a".to_owned(); 33], ..Default::default() };
        let cases = [
            (batch([]), "`inputs` cannot be empty"),
            (batch(["a", ""]), "`inputs` cannot be empty"),
            (too_many, "batch size 33 > maximum allowed batch size 32"),
            (EmbedBatchRequest { dimensions: Some(0), ..batch(["a"]) }, "`dimensions` should be positive"),
            (
                EmbedBatchRequest { truncation_direction: -1, ..batch(["a"]) },
                "`truncation_direction` is -1; it may be 0 (right) or 1 (left)",
            ),
        ];
        for (request, message) in cases {
            let status = client.embed_batch(request).await.expect_err("refused");
            let expected = format!("Input validation error: {message}");
            assert_eq!((status.code(), status.message()), (Code::InvalidArgument, expected.as_str()));
        }
    })
    .await;
}
