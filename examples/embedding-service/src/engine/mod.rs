//! From texts to vectors, for many callers at once.
//!
//! Owns admission (one semaphore), the queue of requests to tokenize, the queue of texts to run, and the threads behind
//! both. Texts flow: caller, tokenization queue, tokenizing thread, inference queue, inference threads (one
//! text each at a time, so that the texts of one request run side by side), caller.
//!
//! Invariants: a request under way holds a permit until it is answered or dropped, so that each queue holds at most
//! `max_concurrent_requests` entries; what a caller no longer waits for is not computed; a model that panics fails one
//! request. Never: computes on a caller's thread, except for a null model, which costs less than the way to another.

mod job;
mod queue;
mod settings;
mod threads;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, oneshot};

use crate::error::EmbedError;
use crate::metrics;
use crate::model::{Backend, NullModel, Prompts, Side};

use job::Job;
pub use settings::{Settings, SettingsError};
use threads::Threads;

/// Texts to embed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EmbedInput {
    /// The texts.
    pub texts: Vec<String>,
    /// Which end of a text that is too long is cut off; such a text is refused if this is `None`.
    pub cut: Option<Side>,
    /// Name of the prompt to put before each text.
    pub prompt_name: Option<String>,
    /// Whether vectors are left as the model made them, instead of being scaled to length 1.
    pub raw: bool,
    /// Leading dimensions to keep.
    pub dimensions: Option<u32>,
}

/// Vectors of texts, in their order.
#[derive(Debug, Clone, PartialEq)]
pub struct Embedded {
    /// Numbers in a vector.
    pub dimensions: usize,
    /// The vectors, one after the other.
    pub values: Vec<f32>,
    /// What they cost.
    pub cost: Cost,
}

/// What an answer cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Characters of the texts.
    pub chars: usize,
    /// Tokens that the model was given.
    pub tokens: usize,
    /// From the request to the answer.
    pub total: Duration,
    /// Spent on tokenization.
    pub tokenization: Duration,
    /// From then until the model began with the first text.
    pub queue: Duration,
    /// From then until the model was through with the last text.
    pub inference: Duration,
}

/// What becomes of a request that finds as many others as are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It is refused.
    Refuse,
    /// It waits.
    Wait,
}

/// Embeds texts.
pub struct Engine {
    backend: Running,
    settings: Settings,
    prompts: Prompts,
    permits: Arc<Semaphore>,
    max_tokens: usize,
}

enum Running {
    Threads(Threads),
    AtOnce(NullModel),
}

impl Engine {
    /// Starts the threads that `backend` needs.
    ///
    /// # Errors
    /// The settings cannot be, alone or with this model, or a thread cannot be started.
    pub fn start(backend: Backend, prompts: Prompts, settings: Settings) -> Result<Self, SettingsError> {
        let max_tokens = settings.check(backend.description())?;
        let permits = Arc::new(Semaphore::new(settings.max_concurrent_requests));
        let backend = match backend {
            Backend::AtOnce(null) => Running::AtOnce(null),
            Backend::Threads(model) => {
                Running::Threads(Threads::start(model, prompts.clone(), max_tokens, &settings)?)
            }
        };
        Ok(Self { backend, settings, prompts, permits, max_tokens })
    }

    /// What it was started with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What is known of its model.
    pub fn description(&self) -> &crate::model::Description {
        match &self.backend {
            Running::Threads(threads) => threads.description(),
            Running::AtOnce(null) => null.description(),
        }
    }

    /// Longest text that is taken, in tokens.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Requests that wait for a thread to tokenize them, or some of whose texts wait for the model; those that were given
    /// up are not counted.
    pub fn queued(&self) -> usize {
        match &self.backend {
            Running::Threads(threads) => threads.queued(),
            Running::AtOnce(_) => 0,
        }
    }

    /// Embeds the texts of one request. Dropping the future gives up on them.
    ///
    /// # Errors
    /// The first thing that is wrong with the request, or that went wrong.
    pub async fn embed(&self, input: EmbedInput, admission: Admission) -> Result<Embedded, EmbedError> {
        let arrived = Instant::now();
        let method = if input.texts.len() == 1 { "single" } else { "batch" };
        metrics::request(method);
        let result = self.embed_admitted(input, admission, arrived).await;
        match &result {
            Ok(embedded) => metrics::success(method, &embedded.cost),
            Err(error) => metrics::failure(error),
        }
        result
    }

    async fn embed_admitted(
        &self,
        input: EmbedInput,
        admission: Admission,
        arrived: Instant,
    ) -> Result<Embedded, EmbedError> {
        let permit = self.admit(admission).await?;
        let dimensions = self.check(&input)?;
        match &self.backend {
            Running::AtOnce(null) => self.at_once(null, &input, dimensions, arrived),
            Running::Threads(threads) => {
                let (reply, answer) = oneshot::channel();
                threads.submit(Job { input, dimensions, arrived, reply, permit })?;
                // The threads drop what they cannot answer only when they stop.
                answer.await.unwrap_or(Err(EmbedError::Unhealthy))
            }
        }
    }

    async fn admit(&self, admission: Admission) -> Result<OwnedSemaphorePermit, EmbedError> {
        let permits = Arc::clone(&self.permits);
        match admission {
            Admission::Refuse => permits.try_acquire_owned().map_err(|error| match error {
                TryAcquireError::NoPermits => EmbedError::Overloaded,
                TryAcquireError::Closed => EmbedError::Unhealthy,
            }),
            Admission::Wait => permits.acquire_owned().await.map_err(|_| EmbedError::Unhealthy),
        }
    }

    /// Refuses what needs no thread to be refused; returns the dimensions to keep.
    fn check(&self, input: &EmbedInput) -> Result<usize, EmbedError> {
        let (given, max) = (input.texts.len(), self.settings.max_client_batch_size);
        if given > max {
            return Err(EmbedError::BatchSize { given, max });
        }
        if input.texts.is_empty() || input.texts.iter().any(String::is_empty) {
            return Err(EmbedError::Empty("`inputs` cannot be empty".to_owned()));
        }
        self.prompts.choose(input.prompt_name.as_deref())?;
        let all = self.description().dimensions;
        match input.dimensions.map(|wanted| usize::try_from(wanted).unwrap_or(usize::MAX)) {
            None => Ok(all),
            Some(0) => Err(EmbedError::Validation("`dimensions` should be positive".to_owned())),
            Some(wanted) if wanted > all => Err(EmbedError::Validation(
                "`dimensions` should be smaller than the maximum embedding dimension.".to_owned(),
            )),
            Some(wanted) => Ok(wanted),
        }
    }

    fn at_once(
        &self,
        null: &NullModel,
        input: &EmbedInput,
        dimensions: usize,
        arrived: Instant,
    ) -> Result<Embedded, EmbedError> {
        let began = Instant::now();
        let mut values = Vec::with_capacity(dimensions * input.texts.len());
        for text in &input.texts {
            null.embed(text, dimensions, !input.raw, &mut values);
        }
        let chars = input.texts.iter().map(|text| text.chars().count()).sum();
        let cost = Cost { chars, inference: began.elapsed(), total: arrived.elapsed(), ..Cost::default() };
        Ok(Embedded { dimensions, values, cost })
    }
}

#[cfg(test)]
mod tests;
