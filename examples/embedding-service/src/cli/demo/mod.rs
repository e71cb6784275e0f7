//! `demo`: what the service answers, and what each path to it costs.
//!
//! Owns three servers in this process, on free ports of the loopback interface: one with the real model, whose vectors
//! are compared, and two with null models, so that what is timed is the path and not a model. Invariant: whether a path is
//! there, and why not, is what connecting over it said. Takes a few seconds in all.

mod measure;
mod report;

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use byway::{Channel, Transport};
use embedding_service::engine::{Engine, Settings};
use embedding_service::model::{EMBEDDED_MODEL_ID, open};
use embedding_service::pb::tei::v1::EmbedRequest;
use embedding_service::pb::tei::v1::embed_client::EmbedClient;
use embedding_service::service;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::cli::Failure;
use crate::cli::args::DemoArgs;
use report::{PathReport, Report, similarity};

/// What small calls are timed with: vectors as long as those of the real model.
const SMALL_MODEL: &str = "null:384";

/// What large replies are timed with: 32 rows of 8,192 floats are 1 MiB exactly.
const LARGE_MODEL: &str = "null:8192";

/// Texts whose vectors are compared: two pairs that mean nearly the same, and one that is like neither.
const SENTENCES: [&str; 5] = [
    "How do I reset my password?",
    "I forgot my login and cannot get into my account.",
    "The train to the coast leaves at noon.",
    "At twelve o'clock there is a railway connection to the sea.",
    "Add two eggs and stir until the dough is smooth.",
];

/// How alike two paths' vectors of the same text must be: they come from the same model, and may differ only by the
/// order in which its threads add.
const SAME: f64 = 0.9999;

/// One call may take so long.
const TIME_LIMIT: Duration = Duration::from_secs(20);

pub(super) async fn run(args: DemoArgs) -> Result<(), Failure> {
    let real = Served::start(EMBEDDED_MODEL_ID).await?;
    let small = Served::start(SMALL_MODEL).await?;
    let large = Served::start(LARGE_MODEL).await?;
    let mut paths = Vec::new();
    let mut vectors: Option<Vec<Vec<f32>>> = None;
    for transport in [Transport::Rdma, Transport::Tcp, Transport::Grpc] {
        let path = match Channels::connect(transport, [&real, &small, &large]).await {
            Ok(channels) => {
                let embedded = channels.embed_sentences().await?;
                agree(transport, vectors.get_or_insert_with(|| embedded.clone()), &embedded)?;
                let before = channels.small.rdma_counters();
                let small = measure::small(&channels.small).await?;
                let large = measure::large(&channels.large).await?;
                let counters = report::counters(before, channels.small.rdma_counters());
                PathReport::measured(transport, &small, &large, counters)
            }
            Err(error) => PathReport::unavailable(transport, &*error),
        };
        paths.push(path);
    }
    let vectors = vectors.ok_or("no path is there: see the reasons with --json")?;
    let report = Report {
        model_id: EMBEDDED_MODEL_ID.to_owned(),
        dimensions: vectors.first().map_or(0, Vec::len),
        texts: SENTENCES.map(str::to_owned).to_vec(),
        similarity: similarity(&vectors),
        small_model_id: SMALL_MODEL.to_owned(),
        large_model_id: LARGE_MODEL.to_owned(),
        paths,
    };
    for served in [real, small, large] {
        served.stop().await?;
    }
    let json = serde_json::to_string_pretty(&report)?;
    if let Some(file) = &args.out {
        std::fs::write(file, format!("{json}\n"))
            .map_err(|error| format!("{} cannot be written: {error}", file.display()))?;
    }
    let mut stdout = std::io::stdout().lock();
    match args.json {
        true => writeln!(stdout, "{json}")?,
        false => write!(stdout, "{report}")?,
    }
    Ok(())
}

fn agree(transport: Transport, first: &[Vec<f32>], this: &[Vec<f32>]) -> Result<(), Failure> {
    let all = first.iter().zip(this).map(|(first, this)| report::cosine(first, this));
    match all.fold(f64::INFINITY, f64::min) {
        least if least >= SAME => Ok(()),
        least => {
            Err(format!("vectors over {transport} differ from those over another path: cosine {least}")
                .into())
        }
    }
}

/// A server in this process.
struct Served {
    address: String,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Served {
    async fn start(model_id: &str) -> Result<Self, Failure> {
        let (backend, prompts) = open(model_id)?;
        let engine = Arc::new(Engine::start(backend, prompts, Settings::default())?);
        let server = service::server(engine, service::Options::default()).await?;
        let server = server.drain_timeout(Duration::from_secs(2)).bind("127.0.0.1:0").await?;
        let address = server.listening().to_string();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(server.serve_with_shutdown(async {
            let _ = stopped.await;
        }));
        Ok(Self { address, stop, task })
    }

    async fn stop(self) -> Result<(), Failure> {
        drop(self.stop);
        Ok(self.task.await?)
    }
}

/// Channels to all three servers over one path.
struct Channels {
    real: Channel,
    small: Channel,
    large: Channel,
}

impl Channels {
    async fn connect(transport: Transport, [real, small, large]: [&Served; 3]) -> Result<Self, Failure> {
        let connect = async |served: &Served| {
            Channel::builder(&*served.address).transport(transport).timeout(TIME_LIMIT).connect().await
        };
        Ok(Self { real: connect(real).await?, small: connect(small).await?, large: connect(large).await? })
    }

    async fn embed_sentences(&self) -> Result<Vec<Vec<f32>>, Failure> {
        let client = EmbedClient::new(self.real.clone());
        let mut vectors = Vec::with_capacity(SENTENCES.len());
        for text in SENTENCES {
            let request = EmbedRequest { inputs: text.to_owned(), ..Default::default() };
            vectors.push(client.embed(request).await?.into_inner().embeddings);
        }
        Ok(vectors)
    }
}
