//! `udpd bench max`: the highest rate that a whole pipeline takes without loss, with the user's own sinks and disk.
//!
//! Each trial starts a pipeline of its own and closes its books, so a trial owes nothing to the one before. The sender
//! runs in the same process, on cores that no lane has; where it cannot offer more, the answer is what it did send, and
//! not a limit.

#[cfg(feature = "kafka")]
mod cluster;
mod command;
mod files;
mod measure;
mod peer;
mod real;
mod scratch;
mod search;
mod show;
mod stage;
mod subject;
mod task;
mod trial;

pub use command::{Arguments, execute};
pub use measure::Report;
pub use search::Limit;
pub use trial::{Lost, Trial};
