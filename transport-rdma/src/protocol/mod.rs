//! wip
mod arrivals;
pub mod budget;
pub mod credit;
pub mod endpoint;
pub mod error;
pub mod event;
pub mod handshake;
pub mod history;
pub mod incoming;
pub mod ledger;
pub mod message;
pub mod offer;
pub mod outbox;
pub mod outgoing;
mod table;
mod transfer;
pub mod wire;

#[cfg(test)]
mod tests;
