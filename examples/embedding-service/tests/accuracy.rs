//! The model that is part of the program against a reference that shares nothing with it but the published weights:
//! `reference/make.py`, float32, numpy.

use std::sync::Arc;
use std::time::Duration;

use byway::Channel;
use embedding_service::engine::{Engine, Settings};
use embedding_service::model::{EMBEDDED_MODEL_ID, open};
use embedding_service::pb::tei::v1::embed_client::EmbedClient;
use embedding_service::pb::tei::v1::{EmbedRequest, TruncationDirection};
use embedding_service::service::{Options, server};
use serde::Deserialize;

/// Least cosine between the service's vector of a text and the reference's.
const EACH: f64 = 0.995;

/// Least mean of all.
const MEAN: f64 = 0.999;

#[derive(Deserialize)]
struct Reference {
    texts: Vec<Text>,
}

#[derive(Deserialize)]
struct Text {
    name: String,
    text: String,
    cut: Option<String>,
    tokens: u32,
    vector: Vec<f64>,
}

impl Text {
    fn request(&self) -> EmbedRequest {
        let direction = match self.cut.as_deref() {
            Some("left") => TruncationDirection::Left,
            None | Some("right") => TruncationDirection::Right,
            Some(other) => panic!("{other} is no direction"),
        };
        EmbedRequest {
            inputs: self.text.clone(),
            truncate: self.cut.is_some(),
            truncation_direction: direction.into(),
            ..Default::default()
        }
    }

    fn cosine(&self, vector: &[f32]) -> f64 {
        assert_eq!(vector.len(), self.vector.len(), "{}", self.name);
        let dot: f64 = self.vector.iter().zip(vector).map(|(left, &right)| left * f64::from(right)).sum();
        let length =
            |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
        let lengths =
            length(&mut self.vector.iter().copied()) * length(&mut vector.iter().map(|&value| value.into()));
        dot / lengths
    }
}

#[tokio::test]
async fn vectors_are_those_of_the_reference() {
    let reference: Reference =
        serde_json::from_str(include_str!("../reference/vectors.json")).expect("the reference is JSON");
    assert!(reference.texts.len() >= 12, "{} texts", reference.texts.len());
    let (backend, prompts) = open(EMBEDDED_MODEL_ID).expect("it is part of the program");
    let engine = Arc::new(Engine::start(backend, prompts, Settings::default()).expect("it starts"));
    let server = server(engine, Options::default()).await.expect("sound descriptors");
    let bound = server.bind("127.0.0.1:0").await.expect("a free port");
    let address = bound.listening().to_string();
    let serving = tokio::spawn(bound.serve());
    let channel = Channel::builder(&*address).timeout(Duration::from_secs(60)).connect().await;
    let client = EmbedClient::new(channel.expect("a connection"));

    let mut cosines = Vec::new();
    for text in &reference.texts {
        let reply = client.embed(text.request()).await.expect("a reply").into_inner();
        assert_eq!(reply.metadata.expect("its cost").compute_tokens, text.tokens, "{}", text.name);
        let cosine = text.cosine(&reply.embeddings);
        println!("{cosine:.6}  {:>3} tokens  {}", text.tokens, text.name);
        cosines.push((cosine, &text.name));
    }
    let mean = cosines.iter().map(|(cosine, _)| cosine).sum::<f64>() / cosines.len() as f64;
    println!("{mean:.6}  mean of {}", cosines.len());
    let far: Vec<_> = cosines.iter().filter(|(cosine, _)| *cosine < EACH).collect();
    assert!(far.is_empty(), "less than {EACH}: {far:?}");
    assert!(mean >= MEAN, "{mean}");

    let refused = client.embed(EmbedRequest::default()).await.expect_err("an empty text");
    assert_eq!(refused.message(), "Input validation error: `inputs` cannot be empty");
    serving.abort();
}
