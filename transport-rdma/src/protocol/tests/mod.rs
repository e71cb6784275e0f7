//! Tests that join several parts of the protocol.

mod wire;
