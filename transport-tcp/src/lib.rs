//! byway over streams of bytes.
//!
//! [`native`] carries byway's own frames over TCP, Unix sockets or anything else that reads and writes. gRPC over
//! HTTP/2 will live beside it.

pub mod native;
