//! How an engine is to work.
//!
//! Owns the limits and what each may be. Invariant: an engine runs with settings that were checked together with its model.

use std::fmt;
use std::io;

use crate::model::Description;

/// How an engine is to work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Requests under way at once, at least 1.
    pub max_concurrent_requests: usize,
    /// Texts in one request, at least 1.
    pub max_client_batch_size: usize,
    /// Tokens that the model is given at once. Texts run one at a time, so that this limits a text.
    pub max_batch_tokens: usize,
    /// Whether a model that takes longer texts than `max_batch_tokens` is served with that limit, instead of refused.
    pub auto_truncate: bool,
    /// Threads that tokenize, at least 1.
    pub tokenization_workers: usize,
    /// Threads that run texts, at least 1.
    pub inference_workers: usize,
}

/// Most threads of either kind.
const MAX_THREADS: usize = 64;

/// Most requests and texts that may be allowed: keeps products of both within memory and 32 bits.
const MAX_REQUESTS: usize = 65_536;

impl Default for Settings {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            max_concurrent_requests: 512,
            max_client_batch_size: 32,
            max_batch_tokens: 16_384,
            auto_truncate: true,
            tokenization_workers: (cores - 1).clamp(1, MAX_THREADS),
            inference_workers: cores.min(MAX_THREADS),
        }
    }
}

/// Why an engine does not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum SettingsError {
    /// A number is out of its range.
    Range {
        /// The flag that sets it.
        flag: &'static str,
        /// What it is.
        given: usize,
        /// What it may be at most; the least is 1.
        max: usize,
    },
    /// The model takes longer texts than `max_batch_tokens`, and they are not to be cut.
    InputLength {
        /// What the model takes.
        model: usize,
        /// What the settings allow.
        max_batch_tokens: usize,
    },
    /// A thread could not be started.
    Thread(io::Error),
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range { flag, given, max } => write!(f, "{flag} is {given}; it may be 1 to {max}"),
            Self::InputLength { model, max_batch_tokens } => write!(
                f,
                "the model takes texts of {model} tokens, --max-batch-tokens allows {max_batch_tokens}: raise it, or set \
                 --auto-truncate true to serve the model with that limit"
            ),
            Self::Thread(source) => write!(f, "a thread could not be started: {source}"),
        }
    }
}

impl std::error::Error for SettingsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Thread(source) => Some(source),
            Self::Range { .. } | Self::InputLength { .. } => None,
        }
    }
}

impl Settings {
    /// Checks the settings; returns the longest text that is taken, in tokens.
    pub(super) fn check(&self, model: &Description) -> Result<usize, SettingsError> {
        let ranges = [
            ("--max-concurrent-requests", self.max_concurrent_requests, MAX_REQUESTS),
            ("--max-client-batch-size", self.max_client_batch_size, MAX_REQUESTS),
            ("--max-batch-tokens", self.max_batch_tokens, u32::MAX as usize),
            ("--tokenization-workers", self.tokenization_workers, MAX_THREADS),
            ("the number of inference threads", self.inference_workers, MAX_THREADS),
        ];
        for (flag, given, max) in ranges {
            if given == 0 || given > max {
                return Err(SettingsError::Range { flag, given, max });
            }
        }
        // A model without a limit of its own has none that could be broken.
        let is_too_long = model.max_tokens > self.max_batch_tokens && model.max_tokens != usize::MAX;
        if is_too_long && !self.auto_truncate {
            return Err(SettingsError::InputLength {
                model: model.max_tokens,
                max_batch_tokens: self.max_batch_tokens,
            });
        }
        Ok(model.max_tokens.min(self.max_batch_tokens))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(max_tokens: usize) -> Description {
        Description { model_id: "m".to_owned(), dtype: "float32", dimensions: 1, max_tokens }
    }

    #[test]
    fn the_longest_text_is_what_model_and_settings_both_allow() {
        let settings = Settings { max_batch_tokens: 100, ..Settings::default() };
        assert_eq!(settings.check(&model(256)).ok(), Some(100));
        assert_eq!(settings.check(&model(64)).ok(), Some(64));
        let strict = Settings { auto_truncate: false, ..settings };
        assert_eq!(strict.check(&model(64)).ok(), Some(64));
        assert_eq!(strict.check(&model(usize::MAX)).ok(), Some(100));
        let error = strict.check(&model(256)).expect_err("refused").to_string();
        assert!(error.contains("256") && error.contains("--max-batch-tokens"), "{error}");
    }

    #[test]
    fn numbers_out_of_range_are_refused_by_the_name_of_their_flag() {
        let settings = Settings { tokenization_workers: 0, ..Settings::default() };
        let error = settings.check(&model(1)).expect_err("refused").to_string();
        assert_eq!(error, "--tokenization-workers is 0; it may be 1 to 64");
        let settings = Settings { max_client_batch_size: usize::MAX, ..Settings::default() };
        let error = settings.check(&model(1)).expect_err("refused").to_string();
        assert!(error.starts_with("--max-client-batch-size is"), "{error}");
    }
}
