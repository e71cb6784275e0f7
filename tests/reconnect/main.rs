//! A channel through the failures of its server and of what lies between.
//!
//! Owns the promises about connecting, reconnecting, what is sent again and what never is, and what `Channel::path`
//! says meanwhile. Every server is on a free loopback port; a proxy stands in for a network that fails.

#[path = "../server/harness.rs"]
mod harness;
mod in_flight;
mod paths;
mod proxy;
#[path = "../hostile/raw.rs"]
mod raw;
mod refused;
mod returning;
