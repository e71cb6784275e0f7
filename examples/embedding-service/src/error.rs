//! Why a text was not embedded.
//!
//! Owns the kinds of failure that Text Embeddings Inference tells apart, the status that each becomes, and the label that
//! it is counted under. Invariant: code and beginning of the message are those that its clients know.

use std::fmt;

use byway::{Code, Status};

/// Why a text was not embedded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EmbedError {
    /// As many requests are under way as the server allows.
    Overloaded,
    /// The request cannot be answered as it is.
    Validation(String),
    /// A text is empty, or there is none.
    Empty(String),
    /// There are more texts than one request may have.
    BatchSize {
        /// How many there are.
        given: usize,
        /// How many there may be.
        max: usize,
    },
    /// The tokenizer failed.
    Tokenizer(String),
    /// The model failed.
    Backend(String),
    /// The server is stopping.
    Unhealthy,
}

impl EmbedError {
    /// What Text Embeddings Inference calls this kind.
    pub fn error_type(&self) -> &'static str {
        match self {
            Self::Overloaded => "Overloaded",
            Self::Validation(_) | Self::BatchSize { .. } => "Validation",
            Self::Empty(_) => "Empty",
            Self::Tokenizer(_) => "Tokenizer",
            Self::Backend(_) => "Backend",
            Self::Unhealthy => "Unhealthy",
        }
    }

    /// The code of the status that it becomes.
    pub fn code(&self) -> Code {
        match self {
            Self::Overloaded => Code::ResourceExhausted,
            Self::Validation(_) | Self::Empty(_) | Self::BatchSize { .. } => Code::InvalidArgument,
            Self::Tokenizer(_) | Self::Backend(_) => Code::FailedPrecondition,
            Self::Unhealthy => Code::Unavailable,
        }
    }

    /// The label that `te_request_failure` counts it under.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Overloaded => "overloaded",
            Self::Validation(_) | Self::Empty(_) => "validation",
            Self::BatchSize { .. } => "batch_size",
            Self::Tokenizer(_) => "tokenization",
            Self::Backend(_) => "inference",
            Self::Unhealthy => "unhealthy",
        }
    }
}

impl fmt::Display for EmbedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overloaded => f.write_str("Model is overloaded"),
            Self::Validation(text) | Self::Empty(text) => write!(f, "Input validation error: {text}"),
            Self::BatchSize { given, max } => {
                write!(f, "Input validation error: batch size {given} > maximum allowed batch size {max}")
            }
            Self::Tokenizer(text) => write!(f, "tokenizer error {text}"),
            Self::Backend(text) => write!(f, "Backend error: {text}"),
            Self::Unhealthy => f.write_str("the server is stopping: try another one"),
        }
    }
}

impl std::error::Error for EmbedError {}

impl From<EmbedError> for Status {
    fn from(error: EmbedError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_becomes_the_status_that_clients_of_tei_know() {
        let text = || "why".to_owned();
        let expected = [
            (EmbedError::Overloaded, "Overloaded", Code::ResourceExhausted, "Model is overloaded"),
            (
                EmbedError::Validation(text()),
                "Validation",
                Code::InvalidArgument,
                "Input validation error: why",
            ),
            (EmbedError::Empty(text()), "Empty", Code::InvalidArgument, "Input validation error: why"),
            (
                EmbedError::BatchSize { given: 33, max: 32 },
                "Validation",
                Code::InvalidArgument,
                "Input validation error: batch size 33 > maximum allowed batch size 32",
            ),
            (EmbedError::Tokenizer(text()), "Tokenizer", Code::FailedPrecondition, "tokenizer error why"),
            (EmbedError::Backend(text()), "Backend", Code::FailedPrecondition, "Backend error: why"),
            (
                EmbedError::Unhealthy,
                "Unhealthy",
                Code::Unavailable,
                "the server is stopping: try another one",
            ),
        ];
        for (error, kind, code, message) in expected {
            assert_eq!(error.error_type(), kind);
            let status = Status::from(error);
            assert_eq!((status.code(), status.message()), (code, message));
        }
    }
}
