//! Generates [byway] services from `.proto` files, in a build script, with nothing to install.
//!
//! ```no_run
//! // build.rs
//! fn main() -> Result<(), byway_build::Error> {
//!     byway_build::compile_protos("proto/echo.proto")
//! }
//! ```
//!
//! ```ignore
//! // src/lib.rs
//! pub mod echo {
//!     byway::include_proto!("echo");
//! }
//! ```
//!
//! Sources are parsed by protox; there is no need of `protoc`. Generated code needs the crate
//! `byway` and no other. A broken source is reported with file, line and column.
//!
//! # What is generated
//! One file for each protobuf package, named after it: `test.v1.rs`, or `_.rs` for sources
//! without a package. In it
//! - messages and enums as prost makes them, except that `bytes` fields are `Bytes`, which are
//!   sent and received without being copied ([`Builder::vec_bytes`] gives `Vec<u8>` back);
//! - for a service `Echo` the module `echo_client` with `EchoClient`, and the module
//!   `echo_server` with the trait `Echo` and `EchoServer`. Their shape is tonic's, so that an
//!   implementation written for tonic compiles; the methods of clients take `&self`.
//!
//! An rpc whose Rust name is that of a function every client has (`new`, `clone`, `connect`,
//! `with_interceptor`, `max_decoding_message_size`, `max_encoding_message_size`) has an
//! underscore after its name on the client, whatever the options: `connect_`. On the server
//! trait it keeps its name.
//!
//! Packages that refer to each other are generated with paths like `super::super::a::b`, and so
//! must sit in modules named after them; [`Builder::include_file`] writes those.
//!
//! # Editions
//! Sources that use protobuf editions are not parsed. Have protoc write a descriptor file, check
//! it in, and give it to [`Builder::file_descriptor_set`].
//!
//! [byway]: https://docs.rs/byway

mod builder;
mod client;
mod compile;
mod descriptors;
mod editions;
mod error;
mod format;
mod generator;
mod model;
mod paths;
mod server;

use std::path::Path;

pub use builder::Builder;
pub use error::{Error, Problem};
pub use prost_types::FileDescriptorSet;

/// Starts a configuration that generates clients and servers.
#[must_use]
pub fn configure() -> Builder {
    Builder::default()
}

/// Generates code for one file and what it imports, from the directory that it is in.
///
/// # Errors
/// If a file is missing or broken.
pub fn compile_protos(proto: impl AsRef<Path>) -> Result<(), Error> {
    let proto = proto.as_ref();
    let directory = proto.parent().unwrap_or(Path::new(""));
    configure().compile_protos(&[proto], &[directory])
}

/// Generates code for a descriptor set that is already in memory.
///
/// # Errors
/// If an import is missing.
pub fn compile_fds(fds: FileDescriptorSet) -> Result<(), Error> {
    configure().compile_fds(fds)
}
