//! A server for one test, and a model that waits to be told to go on.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use byway::Channel;
use embedding_service::EmbedError;
use embedding_service::engine::{Engine, Settings};
use embedding_service::model::{Backend, Description, EMBEDDED_MODEL_ID, Model, Prompts, Side, Tokens, open};
use embedding_service::pb::tei::v1::EmbedRequest;
use embedding_service::service::{Options, server};
use tokio::task::JoinHandle;

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Runs a test, which fails when it hangs.
pub(crate) async fn in_time(story: impl Future<Output = ()>) {
    tokio::time::timeout(PATIENCE, story).await.expect("the test does not hang");
}

/// A server that stops with this.
pub(crate) struct Served {
    pub(crate) address: String,
    task: JoinHandle<()>,
}

impl Served {
    pub(crate) async fn start(engine: Arc<Engine>, options: Options) -> Self {
        let server = server(engine, options).await.expect("sound descriptors");
        let bound = server.bind("127.0.0.1:0").await.expect("a free port");
        Self { address: bound.listening().to_string(), task: tokio::spawn(bound.serve()) }
    }

    pub(crate) async fn channel(&self) -> Channel {
        Channel::connect(&self.address).await.expect("a connection")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The engine of the real model, loaded once for all tests.
static REAL: LazyLock<Arc<Engine>> = LazyLock::new(|| {
    let (backend, prompts) = open(EMBEDDED_MODEL_ID).expect("it is part of the program");
    Arc::new(Engine::start(backend, prompts, Settings::default()).expect("it starts"))
});

pub(crate) async fn real() -> Served {
    Served::start(Arc::clone(&REAL), Options::default()).await
}

pub(crate) async fn null(dimensions: usize) -> Served {
    let (backend, prompts) = open(&format!("null:{dimensions}")).expect("a null model");
    let engine = Engine::start(backend, prompts, Settings::default()).expect("it starts");
    Served::start(Arc::new(engine), Options::default()).await
}

pub(crate) fn text(inputs: &str) -> EmbedRequest {
    EmbedRequest { inputs: inputs.to_owned(), ..Default::default() }
}

/// A model whose one thread stops at each text until it is let go. A token is a character; the vector is their
/// number. A text that begins with `fail` fails.
pub(crate) struct Gate {
    began: Receiver<String>,
    go: Sender<()>,
    engine: Arc<Engine>,
}

struct Gated {
    description: Description,
    began: Mutex<Sender<String>>,
    go: Mutex<Receiver<()>>,
}

impl Model for Gated {
    fn description(&self) -> &Description {
        &self.description
    }

    fn tokenize(&self, text: &str, _: usize, _: Option<Side>) -> Result<Tokens, EmbedError> {
        let ids: Vec<i32> = text.chars().map(|character| character as i32).collect();
        Ok(Tokens { type_ids: vec![0; ids.len()], ids })
    }

    fn embed(&self, tokens: &Tokens) -> Result<Vec<f32>, EmbedError> {
        let text: String = tokens.ids.iter().filter_map(|&id| char::from_u32(id.unsigned_abs())).collect();
        let failed = text.starts_with("fail");
        let _ = self.began.lock().unwrap_or_else(PoisonError::into_inner).send(text);
        // A test that is over lets everything go.
        let _ = self.go.lock().unwrap_or_else(PoisonError::into_inner).recv();
        if failed {
            Err(EmbedError::Backend("as told".to_owned()))
        } else {
            Ok(vec![tokens.ids.len() as f32])
        }
    }
}

impl Gate {
    pub(crate) async fn serve(settings: Settings) -> (Served, Self) {
        let (began_sender, began) = channel();
        let (go, go_receiver) = channel();
        let description =
            Description { model_id: "gate".to_owned(), dtype: "float32", dimensions: 1, max_tokens: 64 };
        let model = Gated { description, began: Mutex::new(began_sender), go: Mutex::new(go_receiver) };
        let settings = Settings { inference_workers: 1, tokenization_workers: 1, ..settings };
        let engine = Engine::start(Backend::Threads(Arc::new(model)), Prompts::default(), settings);
        let engine = Arc::new(engine.expect("it starts"));
        (Served::start(Arc::clone(&engine), Options::default()).await, Self { began, go, engine })
    }

    /// The next text that the model begins with. Waits on a thread of its own: the runtime goes on.
    pub(crate) async fn next(self) -> (String, Self) {
        let waited = tokio::task::spawn_blocking(move || (self.began.recv_timeout(PATIENCE), self));
        let (text, gate) = waited.await.expect("no panic");
        (text.expect("the model begins with a text"), gate)
    }

    /// Waits until so many requests are queued whose callers have not gone.
    pub(crate) async fn until_queued(&self, requests: usize) {
        while self.queued() != requests {
            tokio::task::yield_now().await;
        }
    }

    pub(crate) fn queued(&self) -> usize {
        self.engine.queued()
    }

    /// Whether the model began with a text that nobody asked about yet.
    pub(crate) fn unseen(&self) -> Option<String> {
        self.began.try_recv().ok()
    }

    /// Lets the model finish one text.
    pub(crate) fn go(&self) {
        self.go.send(()).expect("the model is there");
    }
}
