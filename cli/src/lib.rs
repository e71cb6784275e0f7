//! What the `byway` command does.
//!
//! [`doctor`] looks at a machine in the order in which somebody with experience does, and says of each thing whether it
//! is right, what was read, and what to type if it is not.

pub mod doctor;
