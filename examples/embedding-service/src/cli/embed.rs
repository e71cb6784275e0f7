//! `embed`: vectors of a few texts, in this process or by a server.

use std::time::Duration;

use byway::{Channel, Request};
use embedding_service::engine::{Admission, EmbedInput, Engine, Settings};
use embedding_service::model;
use embedding_service::pb::tei::v1::embed_client::EmbedClient;
use embedding_service::pb::tei::v1::info_client::InfoClient;
use embedding_service::pb::tei::v1::{EmbedRequest, InfoRequest};
use serde::Serialize;

use crate::cli::Failure;
use crate::cli::args::EmbedArgs;

/// How long one call may take: many times what the longest text takes on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Numbers of a vector that are printed for people.
const SHOWN: usize = 4;

#[derive(Serialize)]
struct Answer {
    model_id: String,
    dimensions: usize,
    /// How the server was reached.
    path: Option<String>,
    embeddings: Vec<Vec<f32>>,
}

pub(super) async fn run(args: EmbedArgs) -> Result<(), Failure> {
    let answer = match &args.url {
        Some(url) => ask(url, &args).await?,
        None => here(&args).await?,
    };
    if args.json {
        println!("{}", serde_json::to_string(&answer)?);
        return Ok(());
    }
    let place =
        answer.path.as_ref().map_or_else(|| "in this process".to_owned(), |path| format!("over {path}"));
    println!("{}, {} dimensions, {place}", answer.model_id, answer.dimensions);
    for (text, vector) in args.text.iter().zip(&answer.embeddings) {
        let shown: Vec<String> = vector.iter().take(SHOWN).map(|value| format!("{value:.5}")).collect();
        let more = if vector.len() > SHOWN { ", …" } else { "" };
        println!("[{}{more}]  {text}", shown.join(", "));
    }
    Ok(())
}

async fn ask(url: &str, args: &EmbedArgs) -> Result<Answer, Failure> {
    let channel = Channel::builder(url).transport(args.transport).timeout(TIME_LIMIT).connect().await?;
    let key = args.api_key.as_ref().map(|key| format!("Bearer {key}").parse()).transpose();
    let key = key.map_err(|_| "the API key has characters that a header cannot carry")?;
    let authorize = |mut request: Request<()>| {
        if let Some(key) = &key {
            request.metadata_mut().insert("authorization", byway::metadata::AsciiMetadataValue::clone(key));
        }
        Ok(request)
    };
    let info = InfoClient::with_interceptor(channel.clone(), authorize);
    let model_id = info.info(InfoRequest {}).await?.into_inner().model_id;
    // Not in one batch: servers that speak only the protocol of Text Embeddings Inference have none.
    let client = EmbedClient::with_interceptor(channel.clone(), authorize);
    let mut embeddings = Vec::with_capacity(args.text.len());
    for text in &args.text {
        let reply = client.embed(EmbedRequest { inputs: text.clone(), ..Default::default() }).await?;
        embeddings.push(reply.into_inner().embeddings);
    }
    let dimensions = embeddings.first().map_or(0, Vec::len);
    Ok(Answer { model_id, dimensions, path: Some(channel.path().to_string()), embeddings })
}

async fn here(args: &EmbedArgs) -> Result<Answer, Failure> {
    let (backend, prompts) = model::open(&args.model_id)?;
    let settings = Settings { max_client_batch_size: args.text.len(), ..Settings::default() };
    let engine = Engine::start(backend, prompts, settings)?;
    let input = EmbedInput { texts: args.text.clone(), ..Default::default() };
    let embedded = engine.embed(input, Admission::Wait).await?;
    let dimensions = embedded.dimensions;
    let embeddings = embedded.values.chunks_exact(dimensions).map(<[f32]>::to_vec).collect();
    Ok(Answer { model_id: engine.description().model_id.clone(), dimensions, path: None, embeddings })
}
