//! What turns text into vectors.
//!
//! Owns the seam between the engine and what it runs ([`Model`]), what is known of a model ([`Description`]), and which
//! model a name stands for ([`open`]). Never: threads, queues or calls, which are the engine's.

mod bert;
mod directory;
mod null;
mod pooling;
mod prompts;

use std::path::Path;
use std::sync::Arc;

pub use directory::LoadError;
pub use null::{MAX_NULL_DIMENSIONS, NullModel};
pub(crate) use pooling::normalize;
pub use prompts::{PromptChoice, PromptError, Prompts};

use crate::error::EmbedError;

/// Name of the model that is part of the program.
pub const EMBEDDED_MODEL_ID: &str = "all-MiniLM-L6-v2-int8";

/// What is known of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Its name.
    pub model_id: String,
    /// What its weights are stored as: `float32`, `float16` or `int8`.
    pub dtype: &'static str,
    /// Numbers in a vector.
    pub dimensions: usize,
    /// Longest text that it takes, in tokens.
    pub max_tokens: usize,
}

/// A text as a model reads it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tokens {
    /// Their numbers in the vocabulary.
    pub ids: Vec<i32>,
    /// Which of two texts each belongs to.
    pub type_ids: Vec<i32>,
}

/// Which end of a text is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Its beginning.
    Left,
    /// Its end.
    Right,
}

/// Turns text into vectors, on threads that may be kept busy.
pub trait Model: Send + Sync + 'static {
    /// What is known of it.
    fn description(&self) -> &Description;

    /// Text to tokens, those included that the model wants around a text. More than `limit` are cut off at `cut`, if it
    /// says so, and returned otherwise.
    ///
    /// # Errors
    /// The tokenizer failed.
    fn tokenize(&self, text: &str, limit: usize, cut: Option<Side>) -> Result<Tokens, EmbedError>;

    /// Tokens of one text to its vector, which is not normalized.
    ///
    /// # Errors
    /// The model failed.
    fn embed(&self, tokens: &Tokens) -> Result<Vec<f32>, EmbedError>;
}

/// A model, and where it is to run.
#[derive(Clone)]
pub enum Backend {
    /// On threads of the engine.
    Threads(Arc<dyn Model>),
    /// At once, wherever it is asked: it costs less than handing a text to another thread.
    AtOnce(NullModel),
}

impl Backend {
    /// What is known of the model.
    pub fn description(&self) -> &Description {
        match self {
            Self::Threads(model) => model.description(),
            Self::AtOnce(null) => null.description(),
        }
    }
}

/// The model that `id` stands for, and the prompts that it comes with.
///
/// `all-MiniLM-L6-v2-int8` is part of the program, `null:N` makes up vectors of N dimensions, and all else is a directory.
///
/// # Errors
/// There is no such model, or it is one that cannot be run.
pub fn open(id: &str) -> Result<(Backend, Prompts), LoadError> {
    if id == EMBEDDED_MODEL_ID {
        let (model, prompts) = directory::embedded()?;
        return Ok((Backend::Threads(Arc::new(model)), prompts));
    }
    if let Some(dimensions) = id.strip_prefix("null:") {
        let dimensions = dimensions.parse().map_err(|_| LoadError::NullDimensions(dimensions.to_owned()))?;
        return Ok((Backend::AtOnce(NullModel::new(dimensions)?), Prompts::default()));
    }
    let (model, prompts) = directory::load(id, Path::new(id))?;
    Ok((Backend::Threads(Arc::new(model)), prompts))
}
