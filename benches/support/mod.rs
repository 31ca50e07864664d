//! Parts of the measurements: who is compared, on which machine, and how it is written down.
//!
//! Each bench uses a part, so what one leaves unused is not dead.
#![allow(dead_code)]

pub(crate) mod c_program;
pub(crate) mod contender;
pub(crate) mod latency;
pub(crate) mod machine;
pub(crate) mod options;
pub(crate) mod report;
