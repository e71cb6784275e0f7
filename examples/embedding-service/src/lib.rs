//! An embedding service that speaks the protocol of Text Embeddings Inference, on byway.
//!
//! Owns the parts, for the program of the same name and for tests and tools:
//!
//! - [`model`]: what turns text into vectors; one model is part of the program.
//! - [`engine`]: many callers, few threads.
//! - [`service`]: the gRPC services in front of an engine, and the server that has them all.
//! - [`Embeddings`]: the view that a client has of the vectors of `EmbedBatch`.

pub mod engine;
mod error;
mod matrix;
pub mod metrics;
pub mod model;
pub mod service;

pub use error::EmbedError;
pub use matrix::{Embeddings, MatrixError};

/// Generated code.
pub mod pb {
    /// Package `tei`.
    pub mod tei {
        /// Package `tei.v1`.
        pub mod v1 {
            byway::include_proto!("tei.v1");
        }
    }
    /// Package `byway`.
    pub mod byway {
        /// Package `byway.embedding`.
        pub mod embedding {
            /// Package `byway.embedding.v1`.
            pub mod v1 {
                ::byway::include_proto!("byway.embedding.v1");
            }
        }
    }
}

/// Descriptors of both packages, for reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = byway::include_file_descriptor_set!("embedding_descriptor");
