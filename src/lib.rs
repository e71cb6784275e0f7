//! byway
