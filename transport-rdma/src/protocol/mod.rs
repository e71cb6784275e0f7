//! wip
pub mod budget;
pub mod credit;
pub mod error;
pub mod ledger;
mod table;
pub mod wire;
