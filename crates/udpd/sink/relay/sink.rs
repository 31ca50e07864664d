//! The relay itself: hands each datagram to its destination, and has the queues that the kernel did not take tried
//! again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::aim::{Aim, Lookup};
use super::choice;
use super::destination::Destination;
use super::error::{RelayError, START_LOOKUP};
use super::failover::Failover;
use super::manner::{Distribute, Manner};
use crate::capture::headers;
use crate::format::encoder::Scene;
use crate::handover::batch::LaneBatch;
use crate::ledger::{DestinationLedger, Tallies};
use crate::sink::{Feeders, Sink};
use crate::text::peer::Peer;

/// How soon a queue that the kernel did not take is tried again.
const RETRY: Duration = Duration::from_millis(1);

/// How long the end waits for a kernel that takes nothing.
const FINISH_LIMIT: Duration = Duration::from_secs(1);

/// Sends datagrams on.
#[derive(Debug)]
pub(super) struct RelaySink {
    /// What the log calls it.
    name: String,
    destinations: Vec<Destination>,
    /// What chooses among them, where the first that works gets everything.
    failover: Option<Failover>,
    /// By lane, what datagrams came to.
    scenes: Arc<[Scene]>,
    /// When a queue that was not taken is tried again.
    retry: Option<Instant>,
}

impl RelaySink {
    /// Opens a socket for each destination; nothing is sent yet. The ledgers are those of the destinations, in order.
    pub(super) fn open(
        destinations: &[Peer],
        manner: Manner,
        lookup: Lookup<'_>,
        scenes: &Arc<[Scene]>,
    ) -> Result<(Self, Vec<Arc<DestinationLedger>>), RelayError> {
        let begun = Instant::now();
        let is_alone = destinations.len() == 1;
        let aim = |peer: &Peer| {
            let fail = |error| RelayError { destination: peer.clone(), operation: START_LOOKUP, error };
            Aim::at(peer, lookup).map_err(fail)
        };
        let aims = destinations.iter().map(aim).collect::<Result<Vec<_>, _>>()?;
        let open = |(peer, aim): (&Peer, Aim)| {
            aim.settle(begun);
            Destination::open(lookup.sink, (peer, aim), manner.keep_source, is_alone)
        };
        let destinations = destinations.iter().zip(aims).map(open).collect::<Result<Vec<_>, _>>()?;
        let ledgers = destinations.iter().map(Destination::ledger).collect();
        let has_failover = manner.distribute == Distribute::Failover;
        let failover = has_failover.then(|| Failover::new(destinations.len(), manner.probe_every));
        let (name, scenes) = (lookup.sink.to_owned(), Arc::clone(scenes));
        Ok((Self { name, destinations, failover, scenes, retry: None }, ledgers))
    }

    /// Where there is a failover: which destination is in use for a batch, and one that its first datagram tries.
    fn review(&mut self) -> (usize, Option<usize>) {
        let Some(failover) = &mut self.failover else { return (0, None) };
        let destinations = &mut self.destinations;
        // Nobody asks for the time while the first one works.
        if failover.is_at_rest() && !destinations[0].take_failure() {
            return (0, None);
        }
        let now = Instant::now();
        let is_at_rest = failover.is_at_rest();
        let has_failed = |place: usize| (is_at_rest && place == 0) || destinations[place].take_failure();
        if let Some(place) = failover.review(now, has_failed) {
            let peer = destinations[place].peer();
            if place == 0 {
                log::info!("sink {}: sends to {peer} again, the first of its destinations", self.name);
            } else {
                log::warn!("sink {}: sends to {peer} now, because those before it do not work", self.name);
            }
        }
        (failover.current(), failover.tries(now))
    }

    fn flush_all(&mut self, tallies: &mut Tallies) {
        let mut waits = false;
        for destination in &mut self.destinations {
            waits |= !destination.flush(tallies);
        }
        self.retry = waits.then(|| Instant::now() + RETRY);
    }
}

impl Sink for RelaySink {
    fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies) {
        let (current, mut tried) = self.review();
        let count = self.destinations.len();
        let bound = self.scenes[batch.lane].address;
        for datagram in batch.datagrams.datagrams() {
            let chosen = match self.failover {
                Some(_) => tried.take().unwrap_or(current),
                None if count == 1 => 0,
                None => choice::of_source(headers::source(&datagram).ip(), count),
            };
            self.destinations[chosen].push(batch.listener, bound, &datagram, tallies);
        }
    }

    fn flush(&mut self, tallies: &mut Tallies) {
        self.flush_all(tallies);
    }

    fn go_on_for(&mut self, feeders: &Feeders) {
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
