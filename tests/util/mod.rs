//! What the tests and the benches share: a load generator, a daemon to aim it at, and the eye of the style test.
//!
//! Each of them uses a part, so what one leaves unused is not dead.
#![allow(dead_code)]

pub(crate) mod bed;
pub(crate) mod daemon;
pub(crate) mod engines;
pub(crate) mod examples;
pub(crate) mod ledger;
pub(crate) mod licence;
pub(crate) mod load;
pub(crate) mod manager;
pub(crate) mod patience;
pub(crate) mod source;
pub(crate) mod succession;
