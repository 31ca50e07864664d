//! Taking over: a process that starts asks the one that runs for its sockets, over the control socket, and then takes
//! its place.
//!
//! ```text
//! new                                               old
//! take-over                                   -->             same user? then it tells of itself
//!                                             <--   offer
//! send_all                                    -->
//!                                             <--   sockets   descriptors and their names, the record among them
//!   makes and checks all it can                       receives on
//! ready, with the names it goes on with       -->   ends receivers, drains, closes files
//!                                             <--   stopped
//!   opens files
//! open                                        -->
//!                                             <--   gone      it receives again only if the new one fails or is dead
//!   binds, receives
//! bye                                         -->   closes its endpoints, writes its ledger, ends
//! ```
//!
//! The sockets come before anything else is made, so that the new process has them should the old one die. The old one
//! keeps the record up to date until its end: it says how far that process has counted.
//!
//! Up to `ready` the old process does nothing but answer. Up to `gone` it goes back to work when the new one fails, is
//! killed or takes too long, because its sockets are still open here. The old process says `gone` and the new one hears
//! it, so never do both receive. What arrives in between waits in the sockets.
//!
//! Some changes need an address that the old process must close first. Then it ends with `stopped`, and there is no way
//! back.
//!
//! The two processes may be of different versions: a message that is not known ends the attempt, and a field that is
//! not known is skipped.

#[cfg(feature = "testing")]
#[path = "testing/fuzz.rs"]
pub(crate) mod fuzz;
mod new_side;
mod old_side;
mod wire;

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use new_side::{OldProcess, OldProcessEnd, OldProcessSearch};
pub(super) use old_side::TakeOverServer;
pub use old_side::{NewProcess, NewProcessState, OfferedSockets, TakeOverRequest};
pub(super) use wire::is_readable;

/// How long the other process may take over a message that it owes at once.
const ANSWERING_LIMIT: Duration = Duration::from_secs(10);

/// How long a process that hangs up may take until it is seen to have ended.
const DYING_LIMIT: Duration = Duration::from_secs(1);

/// What the old process tells of itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TakeOverOffer {
    pub version: String,
    pub sockets: usize,
    /// What its plan takes.
    pub memory_bytes: u64,
    /// The service manager that started it, and which of its services it is.
    pub manager: Option<String>,
    pub metrics_address: Option<SocketAddr>,
    /// What the next process has to know of it, should it die now.
    pub record: Value,
    /// Whether `send_all` also gets the file in which it keeps that record.
    #[serde(default)]
    pub has_file: bool,
}

/// What the old process says when it receives no more.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Stopped {
    /// It ends whatever happens to the new one, which may open nothing of it before it has ended.
    ends: bool,
    /// What the next process has to know of it.
    record: Value,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TakeOverMessage {
    Offer(TakeOverOffer),
    /// Asks for its sockets, as versions do that know of nothing else.
    Send,
    /// Asks for these and the file of the record.
    SendAll,
    /// The names of the descriptors that came before this message.
    Sockets(Vec<String>),
    /// The names of those that the new process goes on with.
    Ready(Vec<String>),
    Stopped(Stopped),
    Open,
    Gone,
    Bye,
    /// The attempt ends, and why.
    Error(String),
}

/// Why the other process ends the attempt, in its words; another message in this place is of another version.
fn refusal_in(message: TakeOverMessage) -> String {
    match message {
        TakeOverMessage::Error(why) => why,
        other => format!("it said {other:?}, which does not belong there"),
    }
}
