//! What all parts of udpd share. The modules stand in the order of their imports: each uses only what comes after it.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
// These crates are parts of one program. mmsg and nic-steer, which strangers use, deny missing docs.
#![allow(missing_docs)]

pub mod sink;

pub mod format;
#[cfg(feature = "testing")]
#[path = "testing/fuzz.rs"]
pub mod fuzz;
pub mod logging;

pub mod handover;
pub mod ledger;

pub mod settings;

pub mod capture;
pub mod codec;
pub mod os;
pub mod text;

pub mod seams;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub mod exit;
