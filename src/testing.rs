//! A network of simulated NICs with faults on virtual time, for tests without a device.

pub use byway_rdma::sim::*;
