//! What is written of a sink of type `udp`.
//!
//! With `distribute = "all"` every destination becomes a sink of its own, `NAME@ADDRESS:PORT`: its own queue, its own
//! thread, its own line in the ledger. So a destination that is dead or slow costs the others nothing, and the books
//! say of each what became of every datagram.

use std::net::SocketAddr;
use std::sync::Arc;

use super::destination;
use super::sink::RelaySink;
use crate::exit::Failure;
use crate::os::duty::Duty;
use crate::os::lookup;
use crate::settings::kinds::{Flag, List, Words};
use crate::settings::{Findings, Written, settings};
use crate::sink::settings::{AnySettings, Differs, Needs, Opened, Opening, SinkSettings, Target};
use crate::sink::written::{Scheme, Uri, WrittenSink};
use crate::text::address::parse_destination;

/// Each is a socket, a buffer and, with `distribute = "all"`, a thread.
const DESTINATIONS_MAX: usize = 64;

/// What is written of a sink of type `udp`.
#[derive(Debug, Clone, PartialEq)]
pub struct RelaySettings {
    /// At least one, each once.
    pub destinations: Vec<SocketAddr>,
    pub distribute: Distribute,
    /// Send with the original source address and port.
    pub keep_source: bool,
    /// What the destination was looked up as, when it was written as a name.
    pub looked_up: Option<String>,
}

settings! {
    for RelaySettings {
        /// Where datagrams are sent.
        destinations: Vec<SocketAddr> = required like ["10.0.0.9:514"], List(parse_destination);
        /// Whether every destination gets all, or one of them what a source sends.
        distribute: Distribute = "all", Words(&[("all", Distribute::All), ("by_source", Distribute::BySource)]);
        /// Send with the original source address and port.
        keep_source: bool = false, Flag;
        .. looked_up = None;
    }
}

impl WrittenSink for RelaySettings {
    const NAME: &'static str = "udp";
    const SCHEMES: &'static [Scheme] = &[Scheme { name: "udp", form: "udp:HOST:PORT", read: one_destination }];

    fn check(&self, written: &Written<'_>, findings: &mut Findings<'_>) {
        let Some(place) = written.place("destinations") else { return };
        let count = self.destinations.len();
        if count == 0 {
            findings.say(&place, "the list is empty: the datagrams would go nowhere", "name a destination");
        }
        if count > DESTINATIONS_MAX {
            let what = format!("{count} destinations in one sink");
            findings.say(&place, what, format!("name at most {DESTINATIONS_MAX}"));
        }
    }
}

/// A relay to one address or name.
fn one_destination(uri: &Uri<'_>) -> Result<AnySettings, Failure> {
    let to = lookup::destination("--to", uri.rest.strip_prefix("//").unwrap_or(uri.rest))?;
    let (destinations, looked_up) = (vec![to.address], to.looked_up);
    Ok(RelaySettings { destinations, distribute: Distribute::All, keep_source: false, looked_up }.finished())
}

/// Which destination gets a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Distribute {
    #[default]
    All,
    /// One, always the same for a source address.
    BySource,
}

impl SinkSettings for RelaySettings {
    fn target(&self) -> Target<'_> {
        Target::Addresses(&self.destinations)
    }

    fn memory_bytes(&self, consumers: usize, _: usize) -> usize {
        consumers * self.destinations.len() * destination::memory_bytes(self.keep_source)
    }

    fn datagrams_max(&self, consumers: usize) -> Option<usize> {
        Some(consumers * self.destinations.len() * destination::DATAGRAMS_MAX)
    }

    fn split(&self) -> Vec<(String, AnySettings)> {
        if self.distribute == Distribute::BySource || self.destinations.len() < 2 {
            return Vec::new();
        }
        let alone = |&address: &SocketAddr| -> (String, AnySettings) {
            (format!("@{address}"), Arc::new(Self { destinations: vec![address], ..self.clone() }))
        };
        self.destinations.iter().map(alone).collect()
    }

    fn needs(&self) -> Needs {
        Needs::only(if self.keep_source { Duty::SourceKeepingRelay } else { Duty::Relay })
    }

    fn open(&self, opening: Opening<'_>) -> Result<Opened, Failure> {
        let name = opening.sink;
        let (sink, destinations) =
            RelaySink::open(name, &self.destinations, self.keep_source).map_err(|error| error.of_sink(name))?;
        if opening.consumer == 0 {
            if let Some(meaning) = &self.looked_up {
                log::info!("sink {name}: {meaning}; udpd looks it up at the start and never again");
            }
            if self.keep_source {
                log::info!(
                    "sink {name}: sends with the original sources. A destination with rp_filter = 1 (strict) drops packets \
                     from addresses that it would not reach this way (set sysctl net.ipv4.conf.*.rp_filter=2 there). \
                     Clouds drop them unless the source check of the interface is off"
                );
            }
        }
        Ok(Opened { destinations, ..Opened::new(sink) })
    }

    fn goes_on(&self, before: &dyn SinkSettings, _: Differs) -> bool {
        before.of_type() == Some(self)
    }
}
