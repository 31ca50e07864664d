//! Datagrams sent on to other addresses.
//!
//! Each destination has a socket and a queue of its own: what the kernel does not take at once stays in the queue and
//! is tried again a millisecond later. When the queue is full, a destination that is alone in its relay waits for up to
//! ten milliseconds, for the channel before it keeps what comes meanwhile; one of several does not wait, and what comes
//! is counted as failed. So a destination that is dead, slow or refusing costs only its own datagrams.
//!
//! Datagrams are sent in batches, and runs of one length as one message that the kernel cuts. `delivered` means that
//! the kernel took it: there is no more to be known of UDP, but for the answers of the network, which are counted by
//! destination.

mod batch_outcome;
mod choice;
mod destination;
mod error;
mod failover;
mod groups;
mod log_lines;
mod mode;
mod route_socket;
mod settings;
mod sink;
mod spilled;
mod spoof;
mod target;

pub use mode::{Distribute, KeepSource, Route};
pub use settings::RelaySettings;
