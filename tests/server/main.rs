//! A server from binding to its end.
//!
//! Owns the promises about the accept loop, draining, what is left afterwards, and the errors of binding. What a server
//! does about peers that break the protocol is in `hostile`.

mod binding;
mod draining;
mod exhaustion;
mod harness;
