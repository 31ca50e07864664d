//! Streams over TCP to programs such as rsyslog and syslog-ng: the keys of a sink of type `tcp`.
//!
//! TCP says which bytes the kernel of the peer has, and not what its program did with them. So a datagram is kept until
//! it is acknowledged, and sent again on the next connection where one breaks before: it may come twice, and is counted
//! as such. What a program had not read yet when it ended is lost, and no sender can know it (RFC 6587, section 3).
//!
//! With RELP the program itself answers for each record, and only its answer counts.

mod answered;
mod connection;
#[cfg(test)]
mod odd_peers_tests;
pub(crate) mod peer_stream;
pub(crate) mod relp;
#[cfg(test)]
mod relp_tests;
pub(crate) mod search;
mod sink;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod tls_tests;
mod window;

use std::sync::Arc;
use std::time::Duration;

use crate::relay::{DISTRIBUTIONS, Distribute};
use crate::target::Lookup;
use crate::tls::TlsSettings;
use crate::weights::{self, PeerWeights, Weights};
use peer_stream::TLS_MEMORY_BYTES;
use sink::TcpSink;
use udpd_base::exit::Failure;
use udpd_base::format::Format;
use udpd_base::os::lookup;
use udpd_base::os::role::ThreadRole;
use udpd_base::settings::kinds::{Flat, List, OneOf, SubTable, TimeSpan};
use udpd_base::settings::{Findings, TableSettings, WrittenKeys, settings};
use udpd_base::sink::settings::{
    AnySettings, Differs, Needs, OpenedSink, Opening, SinkSettings, SinkTarget, SpillPlace,
};
use udpd_base::sink::settings::{Scheme, Uri, WrittenSink};
use udpd_base::text::address::{PeerAddress, parse_peer};
use udpd_spill::spilling::{Spill, SpillFirst};

/// Each is a connection and a window of bytes that are kept.
const DESTINATIONS_MAX: usize = 16;

/// What is written of a sink of type `tcp`.
#[derive(Debug, Clone, PartialEq)]
pub struct TcpSettings {
    /// At least one, each once.
    pub destinations: Vec<PeerAddress>,
    pub distribute: Distribute,
    pub weights: PeerWeights,
    pub probe_every: Duration,
    pub framing: TcpFraming,
    pub format: Format,
    pub timeout: Duration,
    pub resolve_every: Duration,
    pub tls: TlsSettings,
    pub spill: Spill,
    /// What the destination was looked up as, when it was written as a name.
    pub looked_up: Option<String>,
}

settings! {
    for TcpSettings {
        /// Where a program listens.
        destinations: Vec<PeerAddress> = required like ["10.0.0.9:601"], List(parse_peer);
        /// Whether every destination gets all, or one of them what a source sends, or the first that works.
        distribute: Distribute = "all", OneOf(DISTRIBUTIONS);
        /// With "by_source", the destinations that get more than one share of the sources, and how many.
        weights: PeerWeights = {} like { "10.0.0.9:601" = 2 }, Weights;
        /// With "failover", after how long a destination that has failed is tried again.
        probe_every: Duration = "10s", TimeSpan(Duration::from_secs(1)..=Duration::from_secs(3_600));
        /// How datagrams are told apart in the stream, or "relp", in which the server answers for each.
        framing: TcpFraming = "newline",
            OneOf(&TcpFraming::WORDS);
        /// How a datagram is written.
        format: Format = "lines", OneOf(&Format::WORDS);
        /// How long a peer may take to answer or to acknowledge before its connection is given up.
        timeout: Duration = "30s", TimeSpan(Duration::from_secs(1)..=Duration::from_secs(3_600));
        /// How often the names of destinations are looked up.
        resolve_every: Duration = "60s", TimeSpan(Duration::from_secs(1)..=Duration::from_secs(86_400));
        /// How udpd and the peer know each other.
        tls: TlsSettings = {}, Flat;
        /// What its destination does not take waits on a disk, see docs/spill.md.
        spill: Spill = {}, SubTable;
        .. looked_up = None;
    }
}

/// How datagrams are told apart in a stream (RFC 6587), or how each is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TcpFraming {
    /// Records that end with a newline and hold no other.
    #[default]
    Newline,
    /// The payload as it is, after its length in digits and a space.
    OctetCounting,
    /// The payload as it is, as a transaction of RELP.
    Relp,
}

impl TcpFraming {
    const WORDS: [(&'static str, Self); 3] =
        [("newline", Self::Newline), ("octet_counting", Self::OctetCounting), ("relp", Self::Relp)];
}

impl WrittenSink for TcpSettings {
    const NAME: &'static str = "tcp";
    const SCHEMES: &'static [Scheme] = &[
        Scheme { name: "tcp", form: "tcp:HOST:PORT", read: one_destination },
        Scheme { name: "relp", form: "relp:HOST:PORT", read: one_destination },
    ];

    fn check(&self, written: &WrittenKeys<'_>, findings: &mut Findings<'_>) {
        self.spill.check(written, findings);
        self.tls.check(written, findings);
        let Some(place) = written.place("destinations") else { return };
        let count = self.destinations.len();
        if count == 0 {
            findings.say(&place, "the list is empty: the datagrams would go nowhere", "name a destination");
        }
        if count > DESTINATIONS_MAX {
            let what = format!("{count} destinations in one sink");
            findings.say(&place, what, format!("name at most {DESTINATIONS_MAX}"));
        }
        for peer in &self.destinations {
            if matches!(peer, PeerAddress::Address(address) if address.ip().is_multicast()) {
                let what = format!("{peer} is a group, and TCP has none");
                findings.say(&place, what, "name the hosts, or write type = \"udp\"");
            }
        }
        let peers: Vec<&PeerAddress> = self.destinations.iter().collect();
        weights::check(&self.weights, self.distribute == Distribute::BySource, &peers, written, findings);
        if let Some(place) = written.place("probe_every").filter(|_| self.distribute != Distribute::Failover) {
            findings.say(&place, "nothing is tried", "write distribute = \"failover\", or remove it");
        }
        if count == 1 && self.distribute == Distribute::Failover {
            findings.say(&place, "there is no other destination to go over to", "name a second one");
        }
        if self.spill.is_on() && self.is_shared() {
            let place = written.place("spill").unwrap_or_else(|| place.clone());
            let what = "a destination that is gone would hold up what the others could have: they share the spill";
            let cure = "give each destination a sink of its own, or write distribute = \"failover\"";
            findings.say(&place, what, cure);
        }
        let Some(place) = written.place("format") else { return };
        if self.framing != TcpFraming::Newline {
            let what = "the payload is handed on as it is";
            findings.say(&place, what, "remove it, or write framing = \"newline\"");
        } else if self.format == Format::Pcapng {
            findings.say(&place, "a capture is not a sequence of lines", "write format = \"jsonl\" or \"lines\"");
        }
    }

    fn finished(self) -> AnySettings {
        Arc::new(Self { tls: self.tls.with_prints(), ..self })
    }
}

impl TcpSettings {
    /// How records are written.
    fn stream_format(&self) -> Format {
        match self.framing {
            TcpFraming::Newline => self.format,
            TcpFraming::OctetCounting | TcpFraming::Relp => Format::Lengths,
        }
    }

    /// Whether each destination gets what some of the sources send.
    fn is_shared(&self) -> bool {
        self.distribute == Distribute::BySource && self.destinations.len() > 1
    }

    /// How many connections one consumer has at once, but for a moment.
    fn connections(&self) -> usize {
        if self.is_shared() { self.destinations.len() } else { 1 }
    }

    fn has_names(&self) -> bool {
        self.destinations.iter().any(|peer| matches!(peer, PeerAddress::Host { .. }))
    }
}

/// Appends a number in digits.
fn append_digits(bytes: &mut Vec<u8>, number: usize) {
    let mut divisor = 1;
    while number / divisor >= 10 {
        divisor *= 10;
    }
    while divisor > 0 {
        bytes.push(b'0' + (number / divisor % 10) as u8);
        divisor /= 10;
    }
}

/// A stream to one address or name.
fn one_destination(uri: &Uri<'_>) -> Result<AnySettings, Failure> {
    let to = lookup::destination("--to", uri.rest.strip_prefix("//").unwrap_or(uri.rest))?;
    let (destinations, looked_up) = (vec![to.address.into()], to.looked_up);
    let framing = if uri.scheme == "relp" { TcpFraming::Relp } else { TcpFraming::default() };
    Ok(TcpSettings { destinations, framing, looked_up, ..TcpSettings::defaults() }.finished())
}

impl SinkSettings for TcpSettings {
    fn target(&self) -> SinkTarget<'_> {
        let peers: Vec<String> = self.destinations.iter().map(ToString::to_string).collect();
        let how = if self.framing == TcpFraming::Relp { "RELP" } else { "TCP" };
        SinkTarget::Elsewhere(format!("{how} to {}", peers.join(", ")))
    }

    fn records_arrival(&self) -> bool {
        self.stream_format().records_arrival()
    }

    fn memory_bytes(&self, consumers: usize, _: usize) -> usize {
        let tls = if self.tls.on { TLS_MEMORY_BYTES } else { 0 };
        let own = consumers * self.connections() * (window::memory_bytes_max(self.stream_format()) + tls);
        own + self.spill.memory_bytes(consumers)
    }

    fn files_open(&self, consumers: usize, _: usize) -> usize {
        // Beside the one that is counted for each consumer: a destination that is tried has a connection of its own.
        consumers * self.connections() + self.spill.files_open(consumers)
    }

    fn lookup_threads(&self, consumers: usize) -> usize {
        consumers * self.destinations.iter().filter(|peer| matches!(peer, PeerAddress::Host { .. })).count()
    }

    fn spill(&self) -> Option<SpillPlace<'_>> {
        self.spill.place()
    }

    fn split(&self) -> Vec<(String, AnySettings)> {
        if self.distribute != Distribute::All || self.destinations.len() < 2 {
            return Vec::new();
        }
        let alone = |peer: &PeerAddress| -> (String, AnySettings) {
            let spill = self.spill.share(&peer.to_string(), self.destinations.len());
            (format!("@{peer}"), Arc::new(Self { destinations: vec![peer.clone()], spill, ..self.clone() }))
        };
        self.destinations.iter().map(alone).collect()
    }

    fn needs(&self) -> Needs {
        let roles = [&[ThreadRole::TcpClient][..], self.spill.role().as_slice()].concat();
        Needs { names: self.has_names(), reads: self.tls.directories(), ..Needs::only(roles) }
    }

    fn open(&self, opening: Opening<'_>) -> Result<OpenedSink, Failure> {
        let name = opening.sink;
        let lookup = Lookup { registry: opening.registry, every: self.resolve_every, sink: name, bound: &[] };
        let sink = TcpSink::open(self, lookup, opening.encoder(self.stream_format()))?;
        if let (0, Some(meaning)) = (opening.consumer, &self.looked_up) {
            log::info!("sink {name}: {meaning}; udpd looks it up at the start and never again");
        }
        let peers = vec![Arc::clone(&sink.outcomes.peers)];
        let opened = match self.framing == TcpFraming::Relp && self.spill.is_on() {
            true => OpenedSink::new(SpillFirst::open(sink, &self.spill, &opening)?),
            false => self.spill.around(sink, &opening)?,
        };
        Ok(OpenedSink { peers, ..opened })
    }

    fn goes_on(&self, before: &dyn SinkSettings, differs: Differs) -> bool {
        // What is not acknowledged yet belongs to a listener by its number.
        before.of_type() == Some(self) && !differs.listeners && !(self.spill.is_on() && differs.lanes)
    }
}
