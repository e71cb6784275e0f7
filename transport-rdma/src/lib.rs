//! RDMA for byway: DMA memory, the [`nic`] traits, verbs, a simulated NIC (feature `sim`), and the [`protocol`] that two
//! sides speak over them.
//!
//! `verbs` and `memory` are the only modules with unsafe code. Nothing here needs a package to build: libibverbs is
//! loaded at run time, and [`verbs::probe`] says why when it cannot be used.

mod bell;
pub mod bootstrap;
mod counters;
pub mod driver;
mod host;
mod link;
mod mailbox;
pub mod memory;
pub mod nic;
mod options;
pub mod pool;
pub mod protocol;
mod receives;
#[cfg(feature = "sim")]
pub mod sim;
pub mod task;
pub mod verbs;
mod wire;

pub use bell::Rings;
pub use counters::Counted;
pub use host::Host;
pub use link::RdmaLink;
pub use options::RdmaOptions;
