//! The threads that tokenize and those that run the model.
//!
//! Owns both kinds and the queues before them. Invariants: a panic of the model or its tokenizer fails the request that it
//! happened in, and its thread goes on; all threads end when this is dropped.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use crate::engine::job::{Batch, Interest, Job};
use crate::engine::queue::{PushError, Queue};
use crate::engine::{Settings, SettingsError};
use crate::error::EmbedError;
use crate::metrics;
use crate::model::{Description, Model, Prompts, Side, Tokens};

/// Longest text, in characters for each token that is allowed: what is longer is not tokenized at all, since the time
/// that takes grows with the text.
const CHARS_PER_TOKEN: usize = 250;

pub(super) struct Threads {
    shared: Arc<Shared>,
}

struct Shared {
    model: Arc<dyn Model>,
    prompts: Prompts,
    max_tokens: usize,
    to_tokenize: Queue<Job>,
    to_run: Queue<Running>,
}

/// A batch, and which of its texts is next.
struct Running {
    batch: Arc<Batch>,
    next: usize,
}

impl Threads {
    pub(super) fn start(
        model: Arc<dyn Model>,
        prompts: Prompts,
        max_tokens: usize,
        settings: &Settings,
    ) -> Result<Self, SettingsError> {
        let capacity = settings.max_concurrent_requests;
        let (to_tokenize, to_run) = (Queue::new(capacity), Queue::new(capacity));
        let shared = Shared { model, prompts, max_tokens, to_tokenize, to_run };
        // Dropped on failure, which ends the threads that were started.
        let threads = Self { shared: Arc::new(shared) };
        for index in 0..settings.tokenization_workers {
            threads.spawn(format!("tokenize-{index}"), Shared::tokenize)?;
        }
        for index in 0..settings.inference_workers {
            threads.spawn(format!("infer-{index}"), Shared::infer)?;
        }
        Ok(threads)
    }

    fn spawn(&self, name: String, work: fn(&Shared)) -> Result<(), SettingsError> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name(name).spawn(move || work(&shared));
        thread.map(drop).map_err(SettingsError::Thread)
    }

    pub(super) fn description(&self) -> &Description {
        self.shared.model.description()
    }

    pub(super) fn queued(&self) -> usize {
        let Shared { to_tokenize, to_run, .. } = &*self.shared;
        to_tokenize.count(|job| !job.reply.is_closed())
            + to_run.count(|running| running.batch.interest() == Interest::Wanted)
    }

    pub(super) fn submit(&self, job: Job) -> Result<(), EmbedError> {
        self.shared.to_tokenize.push(job, 1).map_err(|error| match error {
            PushError::Full(_) => EmbedError::Overloaded,
            PushError::Closed(_) => EmbedError::Unhealthy,
        })
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.to_tokenize.close();
        self.shared.to_run.close();
    }
}

impl Shared {
    fn tokenize(&self) {
        while let Some(job) = self.to_tokenize.pop() {
            if job.reply.is_closed() {
                metrics::dropped();
                continue;
            }
            let began = Instant::now();
            let texts = contained("the tokenizer", EmbedError::Tokenizer, || self.tokens(&job));
            match texts {
                Err(error) => {
                    let Job { reply, permit, .. } = job;
                    drop(permit);
                    let _ = reply.send(Err(error));
                }
                Ok((texts, chars)) => {
                    let takers = texts.len();
                    let batch = Arc::new(Batch::new(job, texts, chars, began.elapsed()));
                    let running = Running { batch: Arc::clone(&batch), next: 0 };
                    match self.to_run.push(running, takers) {
                        Ok(()) => metrics::queued(self.to_run.len()),
                        Err(PushError::Full(_)) => batch.finish(0, Err(EmbedError::Overloaded)),
                        Err(PushError::Closed(_)) => batch.finish(0, Err(EmbedError::Unhealthy)),
                    }
                }
            }
        }
    }

    /// All texts of a job as tokens, and their characters.
    fn tokens(&self, job: &Job) -> Result<(Vec<Tokens>, usize), EmbedError> {
        let prompt = self.prompts.choose(job.input.prompt_name.as_deref())?;
        let (mut texts, mut all_chars) = (Vec::with_capacity(job.input.texts.len()), 0);
        for text in &job.input.texts {
            let chars = text.chars().count();
            all_chars += chars;
            let text = limited(text, chars, self.max_tokens.saturating_mul(CHARS_PER_TOKEN), job.input.cut)?;
            let prompted = if prompt.is_empty() { None } else { Some(format!("{prompt}{text}")) };
            let tokens =
                self.model.tokenize(prompted.as_deref().unwrap_or(text), self.max_tokens, job.input.cut)?;
            let count = tokens.ids.len();
            if count > self.max_tokens {
                return Err(EmbedError::Validation(format!(
                    "`inputs` must have less than {} tokens. Given: {count}",
                    self.max_tokens
                )));
            }
            metrics::input_length(count);
            texts.push(tokens);
        }
        Ok((texts, all_chars))
    }

    fn infer(&self) {
        while let Some((batch, index)) = self.to_run.take(next_text) {
            batch.begin();
            let vector =
                contained("the model", EmbedError::Backend, || self.model.embed(&batch.texts[index]));
            batch.finish(index, vector);
        }
    }
}

/// Takes the next text that somebody waits for, and drops what nobody does.
fn next_text(entries: &mut VecDeque<Running>) -> Option<(Arc<Batch>, usize)> {
    loop {
        let running = entries.front_mut()?;
        let interest = running.batch.interest();
        if interest != Interest::Wanted {
            entries.pop_front();
            if interest == Interest::Abandoned {
                metrics::dropped();
            }
            continue;
        }
        let taken = (Arc::clone(&running.batch), running.next);
        running.next += 1;
        if running.next == running.batch.texts.len() {
            entries.pop_front();
            metrics::queued(entries.len());
        }
        return Some(taken);
    }
}

/// The part of a text that is within `limit` characters, of which it has `chars`.
fn limited(text: &str, chars: usize, limit: usize, cut: Option<Side>) -> Result<&str, EmbedError> {
    let Some(excess) = chars.checked_sub(limit).filter(|&excess| excess > 0) else { return Ok(text) };
    let position = |count| text.char_indices().nth(count).map_or(text.len(), |(position, _)| position);
    match cut {
        None => Err(EmbedError::Validation(format!(
            "`inputs` must have less than {limit} characters. Given: {chars}"
        ))),
        Some(Side::Right) => Ok(&text[..position(limit)]),
        Some(Side::Left) => Ok(&text[position(excess)..]),
    }
}

/// Runs `work`, whose panic becomes an error.
fn contained<R>(
    who: &str,
    error: fn(String) -> EmbedError,
    work: impl FnOnce() -> Result<R, EmbedError>,
) -> Result<R, EmbedError> {
    // What `work` borrows is only read, or given up with the request.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        tracing::error!(panic = text, "{who} panicked; its request failed, the service goes on");
        Err(error(format!("{who} panicked: {}", text.unwrap_or("without a message"))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_at_the_end_that_was_chosen() {
        assert_eq!(limited("añb", 3, 3, None), Ok("añb"));
        assert_eq!(limited("añbc", 4, 2, Some(Side::Right)), Ok("añ"));
        assert_eq!(limited("añbñ", 4, 3, Some(Side::Left)), Ok("ñbñ"));
        let error = limited("añb", 3, 2, None).expect_err("too long").to_string();
        assert_eq!(error, "Input validation error: `inputs` must have less than 2 characters. Given: 3");
    }
}
