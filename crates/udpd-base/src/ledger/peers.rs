//! What a sink knows of the servers that it is connected to: how each connection fares, and why they refuse what.
//!
//! The threads that speak to servers note it when something changes, and never for each datagram. Reasons are put in
//! kinds, because the words of a server may name a sender, and have no bound; a kind is a code or one word.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};

use crate::os::threads::lock;
use crate::seams::clock;

/// So many kinds of refusals are told apart.
const KINDS_MAX: usize = 16;

/// All other kinds.
const OTHER: &str = "other";

/// The longest kind.
const KIND_BYTES_MAX: usize = 48;

/// How a connection fares.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionState {
    /// Nothing was sent yet.
    #[default]
    New,
    /// The last attempt to connect or to send succeeded.
    Up,
    /// It did not.
    Down,
}

impl ConnectionState {
    pub const ALL: [Self; 3] = [Self::New, Self::Up, Self::Down];

    pub fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

/// A connection of a sink.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ConnectionSnapshot {
    /// The server that it goes to, or went to last.
    pub peer: String,
    pub state: ConnectionState,
    /// Seconds since 1970.
    pub since: f64,
    /// Datagrams that are sent or being sent, and not answered or acknowledged.
    pub on_the_way: u64,
    /// The last error, also after its end, and when it was, in seconds since 1970.
    pub error: Option<String>,
    pub error_at: Option<f64>,
}

/// How many datagrams servers have refused for good for reasons of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalSnapshot {
    /// A status or code of the server, its name for the error, or `other`.
    pub reason: String,
    pub datagrams: u64,
}

/// The connections and refusals of a sink.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PeersSnapshot {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub connections: Vec<ConnectionSnapshot>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<RefusalSnapshot>,
}

impl PeersSnapshot {
    /// Adds what was refused before, by a sink whose connections are gone.
    pub fn add_earlier(&mut self, before: &Self) {
        for refusal in &before.refusals {
            self.add_refused(&refusal.reason, refusal.datagrams);
        }
    }

    fn add_refused(&mut self, reason: &str, datagrams: u64) {
        match self.refusals.iter_mut().find(|own| own.reason == reason) {
            Some(own) => own.datagrams += datagrams,
            None => self.refusals.push(RefusalSnapshot { reason: reason.to_owned(), datagrams }),
        }
    }
}

/// What one thread knows of its connection.
#[derive(Debug)]
pub struct ConnectionLedger {
    seen: Mutex<ConnectionSnapshot>,
    on_the_way: AtomicU64,
}

impl ConnectionLedger {
    pub fn new(peer: impl ToString) -> Self {
        let seen = ConnectionSnapshot { peer: peer.to_string(), ..ConnectionSnapshot::default() };
        let (seen, on_the_way) = (Mutex::new(seen), AtomicU64::new(0));
        Self { seen, on_the_way }
    }

    pub fn set_on_the_way(&self, datagrams: u64) {
        self.on_the_way.store(datagrams, Ordering::Relaxed);
    }

    /// It works.
    pub fn note_up(&self) {
        let mut seen = lock(&self.seen);
        if seen.state != ConnectionState::Up {
            (seen.state, seen.since) = (ConnectionState::Up, clock::seconds_since_1970());
        }
    }

    /// It works, with this peer.
    pub fn note_peer(&self, peer: impl ToString) {
        lock(&self.seen).peer = peer.to_string();
        self.note_up();
    }

    /// It does not, for this reason.
    pub fn note_down(&self, error: impl ToString) {
        let (now, mut seen) = (clock::seconds_since_1970(), lock(&self.seen));
        if seen.state != ConnectionState::Down {
            (seen.state, seen.since) = (ConnectionState::Down, now);
        }
        (seen.error, seen.error_at) = (Some(error.to_string()), Some(now));
    }

    fn read(&self) -> ConnectionSnapshot {
        ConnectionSnapshot { on_the_way: self.on_the_way.load(Ordering::Relaxed), ..lock(&self.seen).clone() }
    }
}

/// The connections of one consumer, and what their servers have refused.
#[derive(Debug, Default)]
pub struct PeerLedger {
    connections: Vec<Arc<ConnectionLedger>>,
    refusals: Mutex<BTreeMap<String, u64>>,
}

impl PeerLedger {
    pub fn new(connections: Vec<Arc<ConnectionLedger>>) -> Self {
        Self { connections, refusals: Mutex::default() }
    }

    /// One more was refused for good, in these words.
    pub fn note_refused(&self, reason: &str) {
        let (kind, mut refusals) = (kind_of(reason), lock(&self.refusals));
        let kind = if refusals.len() < KINDS_MAX - 1 || refusals.contains_key(&kind) { kind } else { OTHER.to_owned() };
        *refusals.entry(kind).or_default() += 1;
    }

    /// What all consumers of a sink have.
    pub fn sum<'l>(ledgers: impl Iterator<Item = &'l Self>) -> PeersSnapshot {
        let mut sum = PeersSnapshot::default();
        for ledger in ledgers {
            sum.connections.extend(ledger.connections.iter().map(|connection| connection.read()));
            lock(&ledger.refusals).iter().for_each(|(reason, datagrams)| sum.add_refused(reason, *datagrams));
        }
        sum
    }
}

/// The code of a reason such as `it answered 400: Code: 27. no number`, or the name that the server has for it.
fn kind_of(reason: &str) -> String {
    let number = |text: &str| -> String { text.chars().take_while(char::is_ascii_digit).take(9).collect() };
    let (status, text) = match reason.strip_prefix("it answered ") {
        Some(answered) => (number(answered), answered.split_once(": ").map_or("", |(_, text)| text)),
        None => (String::new(), reason),
    };
    let code = text.strip_prefix("Code: ").map(number).filter(|code| !code.is_empty());
    let word = text.split(':').next().unwrap_or_default();
    // Such as mapper_parsing_exception; other words may be about anything.
    let is_name = word.contains('_') && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    match code {
        Some(code) => format!("code {code}"),
        None if is_name && word.len() <= KIND_BYTES_MAX => word.to_owned(),
        None if !status.is_empty() => status,
        None => OTHER.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_a_code_or_a_name_and_never_what_a_sender_wrote() {
        for (reason, kind) in [
            ("it answered 400", "400"),
            ("it answered 500 no such thing from 192.0.2.7", "500"),
            ("it answered 400: Code: 27. Cannot parse input: expected 192.0.2.7", "code 27"),
            ("it answered 413: the datagram alone is too large: raise the limit there", "413"),
            ("mapper_parsing_exception: failed to parse [192.0.2.7]", "mapper_parsing_exception"),
            ("it answered 400: illegal_argument_exception: no", "illegal_argument_exception"),
            ("192.0.2.7_: no", "other"),
            ("too odd", "other"),
            ("", "other"),
        ] {
            assert_eq!(kind_of(reason), kind, "{reason}");
        }
        assert_eq!(kind_of(&format!("{}_: no", "x".repeat(KIND_BYTES_MAX))), OTHER);
    }

    #[test]
    fn kinds_are_bounded_and_each_refusal_is_in_one() {
        let ledger = PeerLedger::default();
        (0..100).for_each(|status| ledger.note_refused(&format!("it answered {status}")));
        ledger.note_refused("it answered 3: again");
        let mut sum = PeerLedger::sum([&ledger].into_iter());
        assert_eq!(sum.refusals.len(), KINDS_MAX);
        assert_eq!(sum.refusals.iter().map(|refusal| refusal.datagrams).sum::<u64>(), 101);
        let of_three = |sum: &PeersSnapshot| sum.refusals.iter().find(|own| own.reason == "3").map(|own| own.datagrams);
        assert_eq!(of_three(&sum), Some(2));
        sum.add_earlier(&sum.clone());
        assert_eq!(of_three(&sum), Some(4));
    }

    #[test]
    fn a_connection_is_down_until_it_works_again_and_keeps_its_last_error() {
        let connection = Arc::new(ConnectionLedger::new("a:1"));
        let ledger = PeerLedger::new(vec![Arc::clone(&connection)]);
        let read = || PeerLedger::sum([&ledger].into_iter()).connections.remove(0);
        assert_eq!((read().state, read().error), (ConnectionState::New, None));
        connection.note_down("no route");
        let down = read();
        assert_eq!(
            (down.state, down.error.as_deref(), down.since),
            (ConnectionState::Down, Some("no route"), down.since)
        );
        connection.set_on_the_way(7);
        connection.note_peer("b:2");
        let up = read();
        assert_eq!((up.state, up.peer.as_str(), up.on_the_way), (ConnectionState::Up, "b:2", 7));
        assert_eq!((up.error.as_deref(), up.error_at), (Some("no route"), down.error_at));
    }
}
