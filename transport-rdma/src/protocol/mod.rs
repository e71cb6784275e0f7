//! wip
pub mod budget;
pub mod credit;
pub mod error;
pub mod ledger;
pub mod message;
mod table;
#[cfg(test)]
mod tests;
pub mod wire;
