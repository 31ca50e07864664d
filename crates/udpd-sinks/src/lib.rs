//! The sinks of udpd and the table of their types. A type of sink is one folder here, or a crate of its own where it is
//! large, and one line of the table in `types`.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
// These crates are parts of one program. mmsg and nic-steer, which strangers use, deny missing docs.
#![allow(missing_docs)]

#[cfg(feature = "testing")]
#[path = "testing/fuzz.rs"]
pub mod fuzz;
pub mod http;
pub mod kafka;
mod named_files;
pub mod null;
mod peer_trouble;
pub mod relay;
#[cfg(any(feature = "http", feature = "kafka", feature = "testing"))]
mod secrets;
mod target;
pub mod tcp;
mod tls;
pub mod types;
pub mod unix;
mod weights;
