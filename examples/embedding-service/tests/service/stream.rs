//! `tei.v1.Embed/EmbedStream`.

use byway::Code;
use embedding_service::engine::Settings;
use embedding_service::pb::tei::v1::EmbedRequest;
use embedding_service::pb::tei::v1::embed_client::EmbedClient;
use futures_util::{StreamExt, stream};

use crate::harness::{Gate, in_time, null, real, text};

#[tokio::test]
async fn answers_come_in_the_order_of_the_requests() {
    in_time(async {
        let served = real().await;
        let client = EmbedClient::new(served.channel().await);
        // Long ones first: whoever finishes first is not whoever came first.
        let texts: Vec<String> = (1..=12).rev().map(|words| "word ".repeat(words * 4)).collect();
        let requests = stream::iter(texts.clone()).map(|inputs| text(&inputs));
        let mut replies = client.embed_stream(requests).await.expect("replies").into_inner();
        for inputs in &texts {
            let reply = replies.message().await.expect("no failure").expect("an answer");
            let alone = client.embed(text(inputs)).await.expect("a reply").into_inner();
            assert_eq!(reply.embeddings, alone.embeddings);
            let tokens = |reply: &embedding_service::pb::tei::v1::EmbedResponse| {
                reply.metadata.expect("its cost").compute_tokens
            };
            assert_eq!(tokens(&reply), tokens(&alone));
        }
        assert!(replies.message().await.expect("no failure").is_none());
    })
    .await;
}

#[tokio::test]
async fn the_first_error_ends_the_stream() {
    in_time(async {
        let served = null(4).await;
        let client = EmbedClient::new(served.channel().await);
        // It never ends by itself.
        let requests = stream::iter(["a", "b", "", "c"]).map(text).chain(stream::pending());
        let mut replies = client.embed_stream(requests).await.expect("replies").into_inner();
        for _ in 0..2 {
            assert_eq!(replies.message().await.expect("no failure").expect("an answer").embeddings.len(), 4);
        }
        let status = replies.message().await.expect_err("the error");
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status.message(), "Input validation error: `inputs` cannot be empty");
    })
    .await;
}

#[tokio::test]
async fn streams_wait_where_single_requests_are_refused() {
    in_time(async {
        let (served, gate) =
            Gate::serve(Settings { max_concurrent_requests: 1, ..Settings::default() }).await;
        let client = EmbedClient::new(served.channel().await);
        let requests = stream::iter(["1", "22", "333"]).map(text);
        let mut replies = client.embed_stream(requests).await.expect("replies").into_inner();
        for _ in 0..3 {
            gate.go();
        }
        let mut lengths = Vec::new();
        while let Some(reply) = replies.message().await.expect("no failure") {
            lengths.push(reply.metadata.expect("its cost").compute_tokens);
        }
        assert_eq!(lengths, [1, 2, 3]);
        let mut gate = gate;
        for expected in ["1", "22", "333"] {
            let (began, rest) = gate.next().await;
            gate = rest;
            assert_eq!(began, expected);
        }
    })
    .await;
}

#[tokio::test]
async fn what_is_left_of_a_stream_that_was_dropped_is_not_computed() {
    in_time(async {
        let (served, gate) = Gate::serve(Settings::default()).await;
        let client = EmbedClient::new(served.channel().await);
        let requests = stream::iter(["1", "2", "3", "4"]).map(text);
        let replies = client.embed_stream(requests).await.expect("replies");
        let (began, gate) = gate.next().await;
        assert_eq!(began, "1");
        gate.until_queued(3).await;
        drop(replies);
        gate.until_queued(0).await;
        gate.go();
        gate.go();
        client.embed(text("after")).await.expect("a reply");
        let (began, gate) = gate.next().await;
        assert_eq!(began, "after");
        assert_eq!(gate.unseen(), None);
    })
    .await;
}

#[tokio::test]
async fn a_stream_has_a_bounded_number_of_requests_under_way() {
    /// As the service has it.
    const MAX_IN_FLIGHT: usize = 64;
    in_time(async {
        let (served, gate) = Gate::serve(Settings::default()).await;
        let client = EmbedClient::new(served.channel().await);
        let requests = stream::iter(0..3 * MAX_IN_FLIGHT).map(|_| text("x"));
        let mut replies = client.embed_stream(requests).await.expect("replies").into_inner();
        let (_, gate) = gate.next().await;
        // One is with the model. There is room for hundreds in the engine.
        gate.until_queued(MAX_IN_FLIGHT - 1).await;
        // Another call goes all the way, so that whatever else the stream would send has come too.
        client.embed(text("")).await.expect_err("refused");
        assert_eq!(gate.queued(), MAX_IN_FLIGHT - 1);
        for _ in 0..3 * MAX_IN_FLIGHT {
            gate.go();
        }
        let mut answers = 0;
        while replies.message().await.expect("no failure").is_some() {
            answers += 1;
        }
        assert_eq!(answers, 3 * MAX_IN_FLIGHT);
    })
    .await;
}

#[tokio::test]
async fn an_empty_stream_has_no_answers() {
    in_time(async {
        let served = null(4).await;
        let client = EmbedClient::new(served.channel().await);
        let requests = stream::empty::<EmbedRequest>();
        let mut replies = client.embed_stream(requests).await.expect("replies").into_inner();
        assert!(replies.message().await.expect("no failure").is_none());
    })
    .await;
}
