//! `udpd bench max`: the highest rate that a whole pipeline takes without loss, with the user's own sinks and disk.
//!
//! The sender runs in the same process, on cores that no lane has; where it cannot offer more, the answer is what it
//! did send, and not a limit.

#[cfg(feature = "kafka")]
mod cluster;
mod command;
mod files;
mod listener;
mod peer;
mod scratch;
mod search;
mod stand_ins;
mod trial;

pub use command::{MaxArguments, execute};
