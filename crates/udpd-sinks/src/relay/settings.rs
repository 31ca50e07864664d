//! The keys of a sink of type `udp`: to which of its destinations it sends, and how those learn who sent a datagram.
//!
//! With `distribute = "all"` every destination becomes a sink of its own, `NAME@ADDRESS:PORT`: its own queue, its own
//! thread, its own line in the ledger. So a destination that is dead or slow costs the others nothing, and the ledger
//! says of each what became of every datagram.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use super::RelaySink;
use super::destination;
use super::templates;
use crate::target::Lookup;
use crate::weights::{self, PeerWeights, Weights};
use udpd_base::exit::Failure;
use udpd_base::os::lookup;
use udpd_base::os::role::ThreadRole;
use udpd_base::settings::kinds::{Flag, List, OneOf, OneOrMore, Or, SubTable, TimeSpan, WholeNumber};
use udpd_base::settings::{Field, Findings, TableSettings, TomlTable, ValueKind, WrittenKeys, settings};
use udpd_base::sink::settings::{
    AnySettings, Differs, Needs, OpenedSink, Opening, SinkSettings, SinkTarget, SpillPlace,
};
use udpd_base::sink::settings::{Scheme, Uri, WrittenSink};
use udpd_base::text::address::{PeerAddress, parse_peer};
use udpd_inspect::policy::parse_network;
use udpd_spill::spilling::Spill;

/// Each is a socket, a buffer and, with `distribute = "all"`, a thread.
const DESTINATIONS_MAX: usize = 64;

/// Each takes 2 KiB, and so many are 200 MiB.
const EXPORTERS_MAX: u64 = 100_000;

/// What is written of a sink of type `udp`.
#[derive(Debug, Clone, PartialEq)]
pub struct RelaySettings {
    /// At least one, each once.
    pub destinations: Vec<PeerAddress>,
    /// Each network once.
    pub routes: Vec<SourceRoute>,
    pub distribute: Distribute,
    pub weights: PeerWeights,
    pub probe_every: Duration,
    pub keep_source: KeepSource,
    pub templates: usize,
    pub resolve_every: Duration,
    pub spill: Spill,
    /// What the destination was looked up as, when it was written as a name.
    pub looked_up: Option<String>,
}

settings! {
    for RelaySettings {
        /// Where datagrams are sent.
        destinations: Vec<PeerAddress> = required like ["10.0.0.9:514"], List(parse_peer);
        /// The destinations of these networks of sources; the longest that holds a source decides.
        routes: Vec<SourceRoute> = {} like { "10.0.0.0/8" = "10.0.0.9:514" }, Routes;
        /// Whether every destination gets all, or one of them what a source sends, or the first that works.
        distribute: Distribute = "all", OneOf(DISTRIBUTIONS);
        /// With "by_source", the destinations that get more than one share of the sources, and how many.
        weights: PeerWeights = {} like { "10.0.0.9:514" = 2 }, Weights;
        /// With "failover", after how long a destination that has failed is tried again.
        probe_every: Duration = "10s", TimeSpan(Duration::from_secs(1)..=Duration::from_secs(3_600));
        /// Send with the original source address and port, or with a header that names them.
        keep_source: KeepSource = false like "proxy", Or(&[("proxy", KeepSource::Header)], Flag, KeepSource::flag);
        /// For how many NetFlow 9 and IPFIX exporters templates are kept, for destinations that lack them; 0 = none.
        templates: usize = 0 like 1000, WholeNumber(0..=EXPORTERS_MAX);
        /// How often the names of destinations are looked up.
        resolve_every: Duration = "60s", TimeSpan(Duration::from_secs(1)..=Duration::from_secs(86_400));
        /// What its destination does not take waits on a disk, see docs/spill.md.
        spill: Spill = {}, SubTable;
        .. looked_up = None;
    }
}

impl WrittenSink for RelaySettings {
    const NAME: &'static str = "udp";
    const SCHEMES: &'static [Scheme] = &[Scheme { name: "udp", form: "udp:HOST:PORT", read: one_destination }];

    fn check(&self, written: &WrittenKeys<'_>, findings: &mut Findings<'_>) {
        self.spill.check(written, findings);
        let Some(place) = written.place("destinations") else { return };
        let count = self.destinations.len();
        self.check_routes(written, findings);
        self.check_spill(written, findings);
        if count == 0 {
            findings.say(&place, "the list is empty: the datagrams would go nowhere", "name a destination");
        }
        let peers: Vec<&PeerAddress> = self.peers().collect();
        weights::check(&self.weights, self.distribute == Distribute::BySource, &peers, written, findings);
        if let Some(place) = written.place("probe_every").filter(|_| self.distribute != Distribute::Failover) {
            findings.say(&place, "nothing is tried", "write distribute = \"failover\", or remove it");
        }
        let has_choice = count > 1 || self.routes.iter().any(|route| route.to.len() > 1);
        if count > 0 && !has_choice && self.distribute == Distribute::Failover {
            findings.say(&place, "there is no other destination to go over to", "name a second one");
        }
        let count = peers.len();
        if count > DESTINATIONS_MAX {
            let what = format!("{count} destinations in one sink");
            findings.say(&place, what, format!("name at most {DESTINATIONS_MAX}"));
        }
    }
}

impl RelaySettings {
    /// The ledger counts a datagram once, so with routes it goes to one destination.
    fn check_routes(&self, written: &WrittenKeys<'_>, findings: &mut Findings<'_>) {
        let Some(place) = written.place("routes").filter(|_| !self.routes.is_empty()) else { return };
        let groups = std::iter::once(&self.destinations).chain(self.routes.iter().map(|route| &route.to));
        if self.distribute == Distribute::All && groups.into_iter().any(|group| group.len() > 1) {
            let what =
                "with routes each datagram goes to one destination, and distribute = \"all\" has several of them";
            findings.say(&place, what, "write distribute = \"by_source\" or \"failover\", or one destination for each");
        }
    }

    fn has_names(&self) -> bool {
        self.peers().any(|peer| matches!(peer, PeerAddress::Host { .. }))
    }

    /// Datagrams that wait for one destination would delay those for others.
    fn check_spill(&self, written: &WrittenKeys<'_>, findings: &mut Findings<'_>) {
        let Some(place) = written.place("spill").filter(|_| self.spill.is_on()) else { return };
        let is_shared = self.distribute == Distribute::BySource && self.destinations.len() > 1;
        if is_shared || !self.routes.is_empty() {
            let what = "a destination that is gone would hold up what the others could have: they share the spill";
            let cure = "give each destination a sink of its own, or write distribute = \"failover\" without routes";
            findings.say(&place, what, cure);
        }
    }

    /// All destinations, in the order of their places.
    fn peers(&self) -> impl Iterator<Item = &PeerAddress> {
        self.destinations.iter().chain(self.routes.iter().flat_map(|route| &route.to))
    }
}

/// A table of networks, and where each one's datagrams go.
struct Routes;

impl ValueKind<Vec<SourceRoute>> for Routes {
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<Vec<SourceRoute>> {
        let table = TomlTable::open(field, findings, "a table of networks")?;
        let mut routes: Vec<SourceRoute> = Vec::new();
        for (name, field) in table.fields() {
            let source = findings.accept(parse_network(&name.value), &name.place);
            let to = OneOrMore(parse_peer).read(&field, findings);
            let (Some(source), Some(to)) = (source, to) else { continue };
            if routes.iter().any(|route| route.source == source) {
                findings.say(&name.place, format!("{source} is named twice"), "name it once");
            } else if to.is_empty() {
                findings.say(&field.place(), "the list is empty", "name a destination");
            } else {
                routes.push(SourceRoute { source, to });
            }
        }
        Some(routes)
    }

    fn bounds(&self) -> String {
        "a destination or a list of them for each network".to_owned()
    }
}

/// A relay to one address or name.
fn one_destination(uri: &Uri<'_>) -> Result<AnySettings, Failure> {
    let to = lookup::destination("--to", uri.rest.strip_prefix("//").unwrap_or(uri.rest))?;
    let (destinations, looked_up) = (vec![to.address.into()], to.looked_up);
    Ok(RelaySettings { destinations, looked_up, ..RelaySettings::defaults() }.finished())
}

impl SinkSettings for RelaySettings {
    fn target(&self) -> SinkTarget<'_> {
        SinkTarget::Peers(self.peers().collect())
    }

    fn records_destination(&self) -> bool {
        self.keep_source == KeepSource::Header
    }

    fn memory_bytes(&self, consumers: usize, _: usize) -> usize {
        let own = consumers * self.peers().count() * destination::memory_bytes(self.keep_source);
        own + templates::memory_bytes(consumers, self.templates) + self.spill.memory_bytes(consumers)
    }

    fn files_open(&self, consumers: usize, _: usize) -> usize {
        self.spill.files_open(consumers)
    }

    fn lookup_threads(&self, consumers: usize) -> usize {
        consumers * self.peers().filter(|peer| matches!(peer, PeerAddress::Host { .. })).count()
    }

    fn spill(&self) -> Option<SpillPlace<'_>> {
        self.spill.place()
    }

    fn datagrams_max(&self, consumers: usize) -> Option<usize> {
        Some(consumers * self.peers().count() * destination::DATAGRAMS_MAX)
    }

    fn split(&self) -> Vec<(String, AnySettings)> {
        if self.distribute != Distribute::All || self.destinations.len() < 2 || !self.routes.is_empty() {
            return Vec::new();
        }
        let alone = |peer: &PeerAddress| -> (String, AnySettings) {
            let spill = self.spill.share(&peer.to_string(), self.destinations.len());
            (format!("@{peer}"), Arc::new(Self { destinations: vec![peer.clone()], spill, ..self.clone() }))
        };
        self.destinations.iter().map(alone).collect()
    }

    fn never_waits(&self) -> bool {
        !self.spill.is_on()
    }

    fn needs(&self) -> Needs {
        let mut roles = vec![ThreadRole::Relay];
        roles.extend((self.keep_source == KeepSource::Address).then_some(ThreadRole::SourceKeeper));
        roles.extend(self.spill.role());
        Needs { names: self.has_names(), ..Needs::only(roles) }
    }

    fn open(&self, opening: Opening<'_>) -> Result<OpenedSink, Failure> {
        let name = opening.sink;
        let Self { distribute, probe_every, keep_source, templates, .. } = *self;
        let spills = self.spill.is_on();
        let (never_waits, weights) = (opening.is_inline, &self.weights);
        let mode = RelayMode { never_waits, spills, distribute, weights, probe_every, keep_source, templates };
        let bound: Vec<SocketAddr> = opening.scenes.iter().map(|scene| scene.address).collect();
        let lookup = Lookup { registry: opening.registry, every: self.resolve_every, sink: name, bound: &bound };
        let opened = RelaySink::open(&self.destinations, &self.routes, mode, lookup, opening.scenes);
        let (sink, destinations) = opened.map_err(|error| error.of_sink(name))?;
        if opening.consumer == 0 {
            if let Some(meaning) = &self.looked_up {
                log::info!("sink {name}: {meaning}; udpd looks it up at the start and never again");
            }
            match self.keep_source {
                KeepSource::No => {}
                KeepSource::Address => log::info!(
                    "sink {name}: sends with the original sources. A destination with rp_filter = 1 (strict) drops \
                     packets from addresses that it would not reach this way (set sysctl \
                     net.ipv4.conf.*.rp_filter=2 there). \
                     Clouds drop them unless the source check of the interface is off"
                ),
                KeepSource::Header => log::info!(
                    "sink {name}: puts a PROXY header of 28 (IPv4) or 52 bytes (IPv6) before each datagram, which its \
                     destination has to read; udpd does with proxy_protocol = \"v2\""
                ),
            }
        }
        Ok(OpenedSink { destinations, ..self.spill.around(sink, &opening)? })
    }

    fn goes_on(&self, before: &dyn SinkSettings, differs: Differs) -> bool {
        // Whether a name leads back to a listener is judged by the listeners there were when the sink was opened.
        let is_for_these = self.spill.is_on() && (differs.lanes || differs.listeners);
        before.of_type() == Some(self) && !is_for_these && !(differs.lanes && self.has_names())
    }
}

/// Which destination gets a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Distribute {
    #[default]
    All,
    /// One, always the same for a source address.
    BySource,
    /// The first that works.
    Failover,
}

pub(crate) const DISTRIBUTIONS: &[(&str, Distribute)] =
    &[("all", Distribute::All), ("by_source", Distribute::BySource), ("failover", Distribute::Failover)];

/// How the destination learns who sent a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeepSource {
    /// Not at all.
    #[default]
    No,
    /// It is sent with that address.
    Address,
    /// It begins with a header of the PROXY protocol.
    Header,
}

impl KeepSource {
    fn flag(keeps: bool) -> Self {
        if keeps { KeepSource::Address } else { KeepSource::No }
    }
}

/// Where the datagrams of one network go instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceRoute {
    pub source: IpNet,
    /// At least one.
    pub to: Vec<PeerAddress>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct RelayMode<'a> {
    /// What the kernel does not take at once fails.
    pub(super) never_waits: bool,
    /// What a destination does not take waits in a spill.
    pub(super) spills: bool,
    pub(super) distribute: Distribute,
    pub(super) weights: &'a [(PeerAddress, u32)],
    /// With [`Distribute::Failover`], after how long one that has failed is tried.
    pub(super) probe_every: Duration,
    pub(super) keep_source: KeepSource,
    /// For how many exporters templates are kept.
    pub(super) templates: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_to_a_name_is_opened_anew_where_the_listeners_differ_that_no_name_may_lead_back_to() {
        let relay = |destination: &str| RelaySettings {
            destinations: vec![parse_peer(destination).expect(destination)],
            ..RelaySettings::defaults()
        };
        let goes_on =
            |destination, lanes| relay(destination).goes_on(&relay(destination), Differs { lanes, listeners: lanes });
        assert_eq!([goes_on("collector:514", false), goes_on("collector:514", true)], [true, false]);
        assert_eq!([goes_on("10.0.0.9:514", false), goes_on("10.0.0.9:514", true)], [true, true]);
    }

    #[test]
    fn each_consumer_has_a_thread_for_each_name_and_none_for_an_address() {
        let destinations = ["collector:514", "10.0.0.9:514", "other:514"];
        let destinations = destinations.map(|text| parse_peer(text).expect(text)).to_vec();
        let relay = RelaySettings { destinations, ..RelaySettings::defaults() };
        assert_eq!((relay.lookup_threads(1), relay.lookup_threads(3)), (2, 6));
    }
}
