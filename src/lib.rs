//! gRPC services over RDMA, with automatic fallback to TCP.
//!
//! A `.proto` file becomes service stubs ([`byway-build`](https://docs.rs/byway-build), from `build.rs`); byway carries
//! them. A service written for tonic compiles here after `tonic::` becomes `byway::`:
//! requests, responses, status and metadata are tonic's own types.
//!
//! - [`Server`] answers on one port.
//! - [`Channel`] reaches it, by the best path that both sides have; [`Channel::path`] says which, and why not a better
//!   one. It is also what tonic calls a `GrpcService`, so stock tonic clients run over it.
//! - [`runtime`] is what lies beneath, for those who write transports or test against the reference link.
//! - `testing` (feature `testing`) has simulated NICs.

mod address;
mod backoff;
mod buffer;
mod channel;
pub mod codegen;
mod dial;
mod error;
mod foreign;
mod listener;
mod path;
mod rdma;
mod remembered;
mod server;
#[cfg(feature = "testing")]
pub mod testing;

pub use address::{Address, AddressError, Target};
pub use buffer::PayloadBuffer;
pub use channel::{Channel, ChannelBuilder};
pub use error::{ConnectError, ServeError};
pub use listener::Listening;
pub use path::{Connections, Path, Transport, connections};
pub use rdma::{Rdma, RdmaCounters, RdmaOptions};
pub use server::{BoundServer, Server, ServerBuilder};

#[doc(no_inline)]
pub use tonic::{
    Code, Extensions, IntoRequest, IntoStreamingRequest, Request, Response, Status, Streaming, async_trait,
    metadata,
    service::{Interceptor, interceptor::InterceptedService},
};

pub use byway_runtime as runtime;
pub use byway_runtime::{CallContext, CallOptions, ConnectionInfo, Deadline, Endpoint, Intercepted, Limits};
pub use byway_tcp::Keepalive;

/// Includes the code that `byway_build` generated for a package.
///
/// ```ignore
/// pub mod pb {
///     byway::include_proto!("greeter.v1");
/// }
/// ```
#[macro_export]
macro_rules! include_proto {
    ($package:tt) => {
        include!(concat!(env!("OUT_DIR"), "/", $package, ".rs"));
    };
}

/// Includes a file descriptor set that `byway_build` wrote to `OUT_DIR`, for reflection.
///
/// ```ignore
/// const DESCRIPTORS: &[u8] = byway::include_file_descriptor_set!("greeter_descriptor");
/// ```
#[macro_export]
macro_rules! include_file_descriptor_set {
    ($name:tt) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bin"))
    };
}
