//! What the two processes of a take-over say to each other. One may be of another version: a word that is not known
//! ends the attempt, and a field that is not known is skipped.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a process tells of itself before another one takes over from it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Offer {
    pub version: String,
    /// How many sockets it has.
    pub sockets: usize,
    /// What its plan takes.
    pub memory_bytes: u64,
    /// The service manager that started it, and which of its services it is.
    pub manager: Option<String>,
    /// Where its metrics are.
    pub metrics_address: Option<SocketAddr>,
    /// What the next process has to know of it, should it die now.
    pub record: Value,
    /// Whether it passes the file with its sockets in which it writes that down, when it is asked for all.
    #[serde(default)]
    pub has_file: bool,
}

/// What it says when it receives no more.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Stopped {
    /// It ends whatever becomes of the other one, and nothing of it may be touched before it has.
    pub(super) ends: bool,
    /// What the next process has to know of it.
    pub(super) record: Value,
}

/// What the two processes say to each other.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Word {
    Offer(Offer),
    /// Asks for its sockets, as versions do that know of nothing else.
    Send,
    /// Asks for these and the file.
    SendAll,
    /// The names of the descriptors that have come before it.
    Sockets(Vec<String>),
    /// The names of those that it goes on with.
    Ready(Vec<String>),
    Stopped(Stopped),
    Open,
    Gone,
    Bye,
    /// Nothing becomes of it, and why.
    Error(String),
}
