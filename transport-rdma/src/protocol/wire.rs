//! wip
/// a
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferId(pub u32);
/// b
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LandingId(pub u32);
