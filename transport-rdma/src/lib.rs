//! RDMA for byway: DMA memory, the [`nic`] traits, verbs, a simulated NIC (feature `sim`), and the [`protocol`] that two
//! sides speak over them.
//!
//! `verbs` and `memory` are the only modules with unsafe code. Nothing here needs a package to build: libibverbs is
//! loaded at run time, and [`verbs::probe`] says why when it cannot be used.

mod mailbox;
pub mod memory;
pub mod nic;
pub mod protocol;
#[cfg(feature = "sim")]
pub mod sim;
pub mod verbs;
