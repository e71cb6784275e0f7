//! What calls over one channel take.
//!
//! Owns the two kinds of load: small calls, and replies of 1 MiB. Invariant: each phase is bounded in time, and its first
//! calls, which find cold caches, are not counted.

use std::time::{Duration, Instant};

use byway::Channel;
use embedding_service::Embeddings;
use embedding_service::pb::byway::embedding::v1::EmbedBatchRequest;
use embedding_service::pb::byway::embedding::v1::batch_embed_client::BatchEmbedClient;
use embedding_service::pb::tei::v1::EmbedRequest;
use embedding_service::pb::tei::v1::embed_client::EmbedClient;
use futures_util::future::try_join_all;

use crate::cli::Failure;

/// How long each phase takes.
const PHASE: Duration = Duration::from_millis(400);

/// Calls before a phase.
const WARM_UP: usize = 20;

/// Calls under way at once while calls per second are counted.
pub(super) const IN_FLIGHT: usize = 64;

/// Texts in a request with a large reply.
const ROWS: usize = 32;

/// Bytes of a large reply's vectors.
pub(super) const LARGE: usize = 1 << 20;

/// Times of small calls.
pub(super) struct Small {
    /// One after the other.
    pub(super) times: Times,
    /// With [`IN_FLIGHT`] under way.
    pub(super) per_s: f64,
}

/// Times of calls one after the other, in order of length; at least one.
pub(super) struct Times(Vec<Duration>);

impl Times {
    pub(super) fn quantile(&self, quantile: f64) -> Duration {
        let last = self.0.len() - 1;
        self.0[((last as f64 * quantile).round() as usize).min(last)]
    }

    fn total(&self) -> Duration {
        self.0.iter().sum()
    }

    pub(super) fn per_s(&self) -> f64 {
        self.0.len() as f64 / self.total().as_secs_f64()
    }
}

/// Times `call` until the phase is over.
async fn timed(mut call: impl AsyncFnMut() -> Result<(), Failure>) -> Result<Times, Failure> {
    for _ in 0..WARM_UP {
        call().await?;
    }
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.is_empty() || begin.elapsed() < PHASE {
        let start = Instant::now();
        call().await?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(Times(times))
}

/// Small calls of a server with a null model.
pub(super) async fn small(channel: &Channel) -> Result<Small, Failure> {
    let client = EmbedClient::new(channel.clone());
    let call = async || -> Result<(), Failure> {
        let request = EmbedRequest { inputs: "a text of a few words".to_owned(), ..Default::default() };
        let vector = client.embed(request).await?.into_inner().embeddings;
        if vector.is_empty() { Err("the server sent no vector".into()) } else { Ok(()) }
    };
    let times = timed(call).await?;
    let begin = Instant::now();
    let callers = (0..IN_FLIGHT).map(async |_| {
        let mut calls = 0usize;
        while begin.elapsed() < PHASE {
            call().await?;
            calls += 1;
        }
        Ok::<_, Failure>(calls)
    });
    let calls: usize = try_join_all(callers).await?.into_iter().sum();
    Ok(Small { times, per_s: calls as f64 / begin.elapsed().as_secs_f64() })
}

/// Replies of 1 MiB of a server with a null model.
pub(super) async fn large(channel: &Channel) -> Result<Times, Failure> {
    let client = BatchEmbedClient::new(channel.clone());
    let inputs: Vec<String> = (0..ROWS).map(|row| format!("text {row}")).collect();
    timed(async || {
        let request = EmbedBatchRequest { inputs: inputs.clone(), ..Default::default() };
        let embeddings = Embeddings::try_from(client.embed_batch(request).await?.into_inner())?;
        match embeddings.as_bytes().len() {
            LARGE => Ok(()),
            other => Err(format!("a reply has {other} bytes of vectors, not {LARGE}").into()),
        }
    })
    .await
}
