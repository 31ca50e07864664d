//! From a configuration to sockets, threads and sinks: `config` reads and checks, `plan` decides, `pipeline` runs.
//!
//! ```text
//! NIC queue --> core --> socket --> receiver --> channel --> consumer --> sink
//!                                     ^                         |
//!                                     +----- empty batches <----+
//! ```
//!
//! Reading order for a newcomer: `pipeline`, its `receiver` and `consumer`, then `udpd_base::handover` and
//! `udpd_base::ledger`.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
// These crates are parts of one program. mmsg and nic-steer, which strangers use, deny missing docs.
#![allow(missing_docs)]

pub mod pipeline;
pub mod plan;

pub mod config;
#[cfg(feature = "testing")]
#[path = "testing/fuzz.rs"]
pub mod fuzz;
