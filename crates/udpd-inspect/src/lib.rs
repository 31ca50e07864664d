//! What a receiver looks at in each datagram before it hands it on.
//!
//! `policy` decides which sources may send and how much, and finds the true sender. `upstream` finds in sequence
//! numbers what was lost before it reached this host. `deduplicate` finds what has come before on the other side of a
//! redundant pair.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
// These crates are parts of one program. mmsg and nic-steer, which strangers use, deny missing docs.
#![allow(missing_docs)]

pub mod deduplicate;
#[cfg(feature = "testing")]
#[path = "testing/fuzz.rs"]
pub mod fuzz;
pub mod policy;
pub mod upstream;
