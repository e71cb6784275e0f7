//! What generated code refers to. Not for direct use: it changes with the generator.
#![doc(hidden)]

pub use std::convert::Infallible;
pub use std::sync::Arc;
pub use std::task::{Context, Poll};

pub use byway_runtime::{
    CallOptions, Direct, Handling, HttpCall, Idempotency, Intercepted, Invoke, MethodCall, MethodDescriptor,
    MethodKind, ServerCall, ServiceSettings, client,
};
pub use http;
pub use prost;
pub use prost_types;
pub use tonic;
pub use tonic::codegen::{
    Body, BoxFuture, BoxStream, CompressionEncoding, InterceptedService, Service, StdError, async_trait,
    tokio_stream,
};
pub use tonic::server::NamedService;
pub use tonic::service::Interceptor;
