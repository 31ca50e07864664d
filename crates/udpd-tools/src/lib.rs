//! What a person asks of udpd, one module a command. They end with an answer or an exit code.
#![forbid(unsafe_code)]
// These crates are parts of one program. mmsg and nic-steer, which strangers use, deny missing docs.
#![allow(missing_docs)]

pub mod explain;
#[cfg(feature = "testing")]
#[path = "testing/fuzz.rs"]
pub mod fuzz;
pub mod man;
pub mod replay;
pub mod stats;
pub mod steer;
pub mod top;
