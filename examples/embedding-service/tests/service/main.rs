//! The services over byway on the loopback interface, as clients see them.

mod batch;
mod embed;
mod guarded;
mod harness;
mod others;
mod stream;
