//! tests/support
