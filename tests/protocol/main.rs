//! gRPC over HTTP/2 to the letter: what one side answers when the other makes a mistake, and what it looks like when
//! nobody does.
//!
//! Owns the promise of gRPC's doc/PROTOCOL-HTTP2.md, http-grpc-status-mapping.md, statuscodes.md and compression.md, in
//! tables of one row for each mistake. The other side is the `h2` crate alone, which knows nothing of gRPC. Every server
//! is on a free loopback port.

mod endings;
mod floods;
mod framing;
#[path = "../server/harness.rs"]
mod harness;
mod heads;
mod letting_go;
mod outgoing;
mod places;
mod replies;
mod resets;
mod scripted;
mod served;
mod shapes;
mod table;
mod wire;
