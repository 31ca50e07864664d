//! The relay itself: hands each datagram to its destination, and has the queues that the kernel did not take tried
//! again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::destination::RelayDestination;
use super::error::{RelayError, START_LOOKUP};
use super::groups::DestinationGroups;
use super::mode::{RelayMode, Route};
use super::target::{DestinationTarget, FIRST_ANSWER, Lookup};
use udpd_base::format::encoder::Scene;
use udpd_base::handover::batch::LaneBatch;
use udpd_base::ledger::{DestinationLedger, Tallies};
use udpd_base::sink::{ConsumerFeeders, Sink};
use udpd_base::text::peer::PeerAddress;

/// How soon a queue that the kernel did not take is tried again.
const RETRY: Duration = Duration::from_millis(1);

/// How long the end waits for a kernel that takes nothing.
const FINISH_LIMIT: Duration = Duration::from_secs(1);

/// Sends datagrams on.
#[derive(Debug)]
pub(super) struct RelaySink {
    /// What the log calls it.
    pub(super) name: String,
    pub(super) destinations: Vec<RelayDestination>,
    pub(super) groups: DestinationGroups,
    /// By lane, what datagrams came to.
    pub(super) scenes: Arc<[Scene]>,
    /// When a queue that was not taken is tried again.
    retry: Option<Instant>,
    /// What the kernel does not take at once fails.
    never_waits: bool,
}

impl RelaySink {
    /// Opens a socket for each destination; nothing is sent yet. The ledgers are those of the destinations, in order.
    pub(super) fn open(
        (destinations, routes): (&[PeerAddress], &[Route]),
        (mode, spills): (RelayMode, bool),
        lookup: Lookup<'_>,
        scenes: &Arc<[Scene]>,
    ) -> Result<(Self, Vec<Arc<DestinationLedger>>), RelayError> {
        let groups = DestinationGroups::new(destinations.len(), routes, mode);
        let peers: Vec<&PeerAddress> = destinations.iter().chain(routes.iter().flat_map(|route| &route.to)).collect();
        let may_wait = peers.len() == 1 && !mode.never_waits;
        let target = |peer: &&PeerAddress| {
            let fail = |error| RelayError { destination: (*peer).clone(), operation: START_LOOKUP, error };
            DestinationTarget::at(peer, lookup).map_err(fail)
        };
        let aims = peers.iter().map(target).collect::<Result<Vec<_>, _>>()?;
        let open = |aimed: (&PeerAddress, DestinationTarget)| {
            RelayDestination::open(lookup.sink, aimed, mode.keep_source, (may_wait, spills))
        };
        let destinations = peers.into_iter().zip(aims).map(open).collect::<Result<Vec<_>, _>>()?;
        let ledgers = destinations.iter().map(RelayDestination::ledger).collect();
        let (name, scenes, never_waits) = (lookup.sink.to_owned(), Arc::clone(scenes), mode.never_waits);
        Ok((Self { name, destinations, groups, scenes, retry: None, never_waits }, ledgers))
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
        self.retry = waits.then(|| Instant::now() + RETRY);
    }
}

impl Sink for RelaySink {
    /// Here and not at the start, which a resolver that is silent would hold up. What comes meanwhile waits in the
    /// queue. One that never waits goes on without what is not known yet.
    fn begin(&mut self) {
        let limit = Instant::now() + if self.never_waits { Duration::ZERO } else { FIRST_ANSWER };
        self.destinations.iter_mut().for_each(|destination| destination.begin(limit));
    }

    fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies) {
        self.groups.review(&self.name, &mut self.destinations);
        let bound = self.scenes[batch.lane].address;
        for datagram in batch.datagrams.datagrams() {
            let chosen = self.groups.choose(&datagram);
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
        let limit = Instant::now() + FINISH_LIMIT;
        self.flush_all(tallies);
        while self.retry.is_some() && Instant::now() < limit {
            std::thread::sleep(RETRY);
            self.flush_all(tallies);
        }
        self.destinations.iter_mut().for_each(|destination| destination.give_up(tallies));
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
