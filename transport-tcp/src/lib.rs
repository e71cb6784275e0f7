//! transport-tcp
