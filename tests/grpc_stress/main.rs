//! gRPC over HTTP/2 under callers that give up wherever it happens, and servers that change their mind.
//!
//! Owns the promise that whatever crosses, every call ends, no handler is begun twice or left behind, and a server stops in
//! good order. What is random follows from a seed, which a failure names and `BYWAY_SEED` sets; how threads interleave does
//! not. Nothing in here depends on time but that a hang is one.

#[path = "../server/harness.rs"]
mod harness;
mod random;
mod tamper;
