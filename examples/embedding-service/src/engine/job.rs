//! One request on its way through the engine's threads.
//!
//! Owns its state: a [`Job`] until its texts are tokens, then a [`Batch`] whose texts are run in any order by any
//! thread. Invariant: it is answered at most once, by its first failure or by its last text.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::engine::{Cost, EmbedInput, Embedded};
use crate::error::EmbedError;
use crate::model::{Tokens, normalize};

pub(super) type Reply = oneshot::Sender<Result<Embedded, EmbedError>>;

/// Texts to tokenize.
pub(super) struct Job {
    pub(super) input: EmbedInput,
    /// Leading dimensions to keep.
    pub(super) dimensions: usize,
    pub(super) arrived: Instant,
    pub(super) reply: Reply,
    /// Its place among the requests under way.
    pub(super) permit: OwnedSemaphorePermit,
}

/// Texts to run.
pub(super) struct Batch {
    pub(super) texts: Vec<Tokens>,
    dimensions: usize,
    raw: bool,
    arrived: Instant,
    tokenized: Instant,
    cost: Cost,
    progress: Mutex<Progress>,
}

/// Who waits for the rest of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interest {
    /// Its caller does.
    Wanted,
    /// Its caller has gone.
    Abandoned,
    /// Nobody any more: one of its texts failed.
    Answered,
}

struct Progress {
    /// Until it was answered. The permit goes with it.
    reply: Option<(Reply, OwnedSemaphorePermit)>,
    values: Vec<f32>,
    left: usize,
    began: Option<Instant>,
}

impl Batch {
    /// `chars` in all `texts`, on whose tokenization `tokenization` was spent.
    pub(super) fn new(job: Job, texts: Vec<Tokens>, chars: usize, tokenization: Duration) -> Self {
        let Job { input, dimensions, arrived, reply, permit } = job;
        let tokens = texts.iter().map(|text| text.ids.len()).sum();
        let progress = Progress {
            reply: Some((reply, permit)),
            values: vec![0.0; texts.len() * dimensions],
            left: texts.len(),
            began: None,
        };
        Self {
            texts,
            dimensions,
            raw: input.raw,
            arrived,
            tokenized: Instant::now(),
            cost: Cost { chars, tokens, tokenization, ..Cost::default() },
            progress: Mutex::new(progress),
        }
    }

    /// Whether it is still of use to run its texts.
    pub(super) fn interest(&self) -> Interest {
        match &self.lock().reply {
            None => Interest::Answered,
            Some((reply, _)) if reply.is_closed() => Interest::Abandoned,
            Some(_) => Interest::Wanted,
        }
    }

    /// The model begins with one of its texts.
    pub(super) fn begin(&self) {
        self.lock().began.get_or_insert_with(Instant::now);
    }

    /// The model is through with text `index`.
    pub(super) fn finish(&self, index: usize, result: Result<Vec<f32>, EmbedError>) {
        let result = result.and_then(|vector| self.shaped(vector));
        let mut progress = self.lock();
        let answer = match result {
            Err(error) => Err(error),
            Ok(vector) => {
                let row = index * self.dimensions;
                progress.values[row..row + self.dimensions].copy_from_slice(&vector);
                progress.left -= 1;
                if progress.left > 0 {
                    return;
                }
                let began = progress.began.unwrap_or(self.tokenized);
                let cost = Cost {
                    queue: began.duration_since(self.tokenized),
                    inference: began.elapsed(),
                    total: self.arrived.elapsed(),
                    ..self.cost
                };
                Ok(Embedded {
                    dimensions: self.dimensions,
                    values: std::mem::take(&mut progress.values),
                    cost,
                })
            }
        };
        let Some((reply, permit)) = progress.reply.take() else { return };
        drop(progress);
        // The place is free before its caller knows, so that the caller's next request finds it.
        drop(permit);
        let _ = reply.send(answer);
    }

    fn shaped(&self, mut vector: Vec<f32>) -> Result<Vec<f32>, EmbedError> {
        if vector.len() < self.dimensions {
            return Err(EmbedError::Backend(format!("the model made {} dimensions only", vector.len())));
        }
        vector.truncate(self.dimensions);
        if !self.raw {
            normalize(&mut vector);
        }
        Ok(vector)
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
