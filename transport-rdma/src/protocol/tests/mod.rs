//! Tests that join several parts of the protocol.

mod calls;
mod credits;
mod endpoint;
mod handshake;
mod hostile;
mod offer;
mod schedules;
mod side;
mod wire;
