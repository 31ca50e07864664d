//! The daemon around the pipeline: `run` starts, reloads, hands off and ends it, `watch` finds what goes
//! wrong meanwhile, `check` tells before a start what it would find.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
// These crates are parts of one program. mmsg and nic-steer, which strangers use, deny missing docs.
#![allow(missing_docs)]

mod announcer;
pub mod check;
#[cfg(feature = "testing")]
#[path = "testing/fuzz.rs"]
pub mod fuzz;
pub mod privilege_helper;
pub mod run;
pub mod watch;
