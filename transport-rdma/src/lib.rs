//! transport-rdma
