//! What the tests of several crates share.

pub mod scheduler;
pub mod simulated;
