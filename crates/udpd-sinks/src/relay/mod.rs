//! Datagrams sent on to other addresses.
//!
//! Each destination has a socket and a queue of its own: what the kernel does not take at once stays in the queue and
//! is tried again a millisecond later. When the queue is full, a destination that is alone in its relay waits for up to
//! ten milliseconds, because the channel before it keeps what comes meanwhile; one of several does not wait, and what
//! comes counts as failed. So a destination that is dead, slow or refusing costs only its own datagrams.
//!
//! Datagrams are sent in batches, and runs of one length as one message that the kernel cuts. `delivered` means that
//! the kernel took it: UDP tells no more, except for the answers of the network, which are counted by destination.

mod destination;
mod groups;
mod log_lines;
mod route;
mod settings;
mod templates;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use settings::DISTRIBUTIONS;
pub use settings::{Distribute, KeepSource, RelaySettings, SourceRoute};

use destination::RelayDestination;
use groups::{ANSWER_TIME, DestinationGroups};
use route::{RelayError, START_LOOKUP};
use settings::RelayMode;
use templates::RelayTemplates;

use mmsg::Datagram;

use crate::target::{DestinationTarget, FIRST_ANSWER, Lookup};
use udpd_base::capture::headers;
use udpd_base::format::Scene;
use udpd_base::handover::batch::LaneBatch;
use udpd_base::ledger::{DestinationLedger, Tallies};
use udpd_base::seams::clock;
use udpd_base::sink::{ConsumerFeeders, Sink};
use udpd_base::text::address::PeerAddress;
use udpd_spill::spilling::SpillableSink;

/// How soon a queue that the kernel did not take is tried again.
const RETRY: Duration = Duration::from_millis(1);

/// How long the end waits for a kernel that takes nothing.
const FINISH_LIMIT: Duration = Duration::from_secs(1);

/// Sends datagrams on.
#[derive(Debug)]
struct RelaySink {
    name: String,
    destinations: Vec<RelayDestination>,
    groups: DestinationGroups,
    /// Where templates follow their exporters.
    templates: Option<RelayTemplates>,
    keeps_address: bool,
    /// The addresses of the lanes.
    scenes: Arc<[Scene]>,
    /// When a queue that was not taken is tried again.
    retry: Option<Instant>,
    /// What the kernel does not take at once fails.
    never_waits: bool,
}

impl RelaySink {
    /// Opens a socket for each destination; nothing is sent yet. The ledgers are those of the destinations, in order.
    fn open(
        destinations: &[PeerAddress],
        routes: &[SourceRoute],
        mode: RelayMode<'_>,
        lookup: Lookup<'_>,
        scenes: &Arc<[Scene]>,
    ) -> Result<(Self, Vec<Arc<DestinationLedger>>), RelayError> {
        let groups = DestinationGroups::new(destinations, routes, mode);
        let peers: Vec<&PeerAddress> = destinations.iter().chain(routes.iter().flat_map(|route| &route.to)).collect();
        let may_wait = peers.len() == 1 && !mode.never_waits;
        let templates = RelayTemplates::open(lookup.sink, mode.templates, &peers);
        let open = |peer: &PeerAddress| {
            let fail = |error| RelayError { destination: peer.clone(), operation: START_LOOKUP, error };
            let target = DestinationTarget::at(peer, lookup).map_err(fail)?;
            RelayDestination::open(lookup.sink, peer, target, mode.keep_source, may_wait, mode.spills)
        };
        let destinations = peers.into_iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let ledgers = destinations.iter().map(RelayDestination::ledger).collect();
        let (name, scenes, never_waits) = (lookup.sink.to_owned(), Arc::clone(scenes), mode.never_waits);
        let keeps_address = mode.keep_source == KeepSource::Address;
        let relay = Self { name, destinations, groups, templates, keeps_address, scenes, retry: None, never_waits };
        Ok((relay, ledgers))
    }

    /// Takes account of failures, before a batch is sent.
    fn review(&mut self) {
        self.groups.review(&self.name, &mut self.destinations);
        let Some(templates) = &mut self.templates else { return };
        templates.review();
        for (place, destination) in self.destinations.iter_mut().enumerate() {
            if destination.take_new() {
                templates.owe_to(place, |source| self.groups.place_of(source));
            }
        }
    }

    /// Chooses a destination for a datagram, and sends there first what has to go before it.
    #[inline]
    fn choose(&mut self, listener: usize, bound: SocketAddr, datagram: &Datagram<'_>, tallies: &mut Tallies) -> usize {
        let chosen = self.groups.choose(datagram);
        if let Some(templates) = &mut self.templates {
            // What tries a destination alone brings it no exporter.
            if templates.are_owed() && chosen == self.groups.place_of(headers::source(datagram).ip()) {
                let destination = &mut self.destinations[chosen];
                templates.send_before(datagram, chosen, |made| {
                    destination.push_templates(listener, bound, datagram, made, tallies);
                });
            }
            tallies[listener].templates_forgotten += templates.keep(datagram, chosen);
        }
        chosen
    }

    fn flush_all(&mut self, tallies: &mut Tallies) {
        let mut waits = false;
        for destination in &mut self.destinations {
            if destination.flush(tallies) {
                continue;
            }
            match self.never_waits {
                true => destination.refuse_rest(tallies),
                false => waits = true,
            }
        }
        self.retry = waits.then(|| clock::now() + RETRY);
    }
}

impl Sink for RelaySink {
    /// Waits for resolvers here and not at the start, which a silent resolver would delay. What comes meanwhile waits
    /// in the queue. A sink that never waits begins without the addresses that are not known yet.
    fn begin(&mut self) {
        let limit = clock::now() + if self.never_waits { Duration::ZERO } else { FIRST_ANSWER };
        self.destinations.iter_mut().for_each(|destination| destination.begin(limit));
        if let Some(templates) = &mut self.templates {
            templates.begin(self.keeps_address, |source| self.groups.place_of(source));
        }
    }

    fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies) {
        self.review();
        let bound = self.scenes[batch.lane].address;
        for datagram in batch.datagrams.datagrams() {
            let chosen = self.choose(batch.listener, bound, &datagram, tallies);
            self.destinations[chosen].push(batch.listener, bound, &datagram, tallies);
        }
    }

    fn flush(&mut self, tallies: &mut Tallies) {
        self.flush_all(tallies);
    }

    fn go_on_for(&mut self, feeders: &ConsumerFeeders) {
        self.scenes = Arc::clone(&feeders.scenes);
    }

    fn due(&self) -> Option<Instant> {
        self.retry
    }

    fn when_due(&mut self, tallies: &mut Tallies) {
        self.flush_all(tallies);
    }

    fn finish(&mut self, tallies: &mut Tallies, _publish: &mut dyn FnMut(&mut Tallies)) {
        let limit = clock::now() + FINISH_LIMIT;
        self.flush_all(tallies);
        while self.retry.is_some() && clock::now() < limit {
            clock::sleep(RETRY);
            self.flush_all(tallies);
        }
        self.destinations.iter_mut().for_each(|destination| destination.give_up(tallies));
    }
}

impl SpillableSink for RelaySink {
    fn begin(&mut self) {
        Sink::begin(self);
    }

    fn attempt(&mut self, batch: &LaneBatch, tallies: &mut Tallies, left: &mut Vec<usize>) {
        let bound = self.scenes[batch.lane].address;
        // With a failover the next destination is there at once.
        for turn in 0..self.destinations.len() {
            let again = std::mem::take(left);
            if turn > 0 && again.is_empty() {
                break;
            }
            self.review();
            let mut wanted = again.iter().peekable();
            for (place, datagram) in batch.datagrams.datagrams().enumerate() {
                if turn > 0 && wanted.next_if_eq(&&place).is_none() {
                    continue;
                }
                let chosen = self.choose(batch.listener, bound, &datagram, tallies);
                let chosen = &mut self.destinations[chosen];
                chosen.begin_datagram(place);
                chosen.push(batch.listener, bound, &datagram, tallies);
            }
            for destination in &mut self.destinations {
                destination.end_batch(batch.listener, tallies, left);
            }
            left.sort_unstable();
        }
    }

    fn answer_time(&self) -> Duration {
        ANSWER_TIME
    }

    fn has_refused(&mut self) -> bool {
        self.destinations.iter_mut().fold(false, |refused, destination| destination.take_refusal() | refused)
    }

    fn go_on_for(&mut self, feeders: &ConsumerFeeders) {
        Sink::go_on_for(self, feeders);
    }
}

#[cfg(test)]
mod failover_tests;
#[cfg(test)]
#[path = "simulated_tests.rs"]
mod simulated;
#[cfg(test)]
mod tests;
