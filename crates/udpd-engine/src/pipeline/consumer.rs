//! The consumer: takes batches and blocks from its channel, gives them to its sink, sends them home. One thread each.
//!
//! An idle consumer sleeps in the channel and is woken by the first batch. Waking a thread costs more than handling a
//! batch does, so a consumer in a flood stops asking for it: it naps for a fixed short time, handles all that came
//! meanwhile, and naps again, until a nap brings little. Receivers fill their batches up while it naps, so a flood
//! travels in full batches. A lone datagram is handed on at once, and no traffic means no wake-ups at all.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{consumer_handoff::ConsumerHandoff, latency_sampling::ResidenceTracker};
use udpd_base::handover::batch::Parcel;
use udpd_base::handover::channel::{ConsumerInbox, Waited};
use udpd_base::handover::pool::Homes;
use udpd_base::ledger::{ConsumerLedger, Tallies};
use udpd_base::os::threads;
use udpd_base::seams::clock;
use udpd_base::sink::{self, Sink};

/// The length of a nap: what a flood may wait.
const NAP: Duration = Duration::from_millis(1);

/// After this many rounds, each begun by a wake-up, a consumer looks how busy it is.
const ROUNDS_PER_LOOK: u32 = 16;

/// From this many datagrams in each millisecond between two looks on, it naps.
const NAP_DATAGRAMS_PER_MS: u64 = 64;

/// A nap that brings fewer datagrams than this was the last.
const NAP_DATAGRAMS_MIN: u64 = 16;

/// A queue of fewer batches and blocks than this, some 1.3 MiB, could overflow during a nap.
const NAP_PLACES_MIN: usize = 64;

/// After so many loads in a row the sink is flushed, and what it has due is looked at.
const LOADS_PER_ROUND: usize = 256;

#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) channel: ConsumerInbox,
    pub(super) sink: Box<dyn Sink>,
    /// Where emptied batches and blocks go back to.
    pub(super) homes: Homes,
    pub(super) ledger: Arc<ConsumerLedger>,
    pub(super) tallies: Tallies,
    /// Measures how long datagrams stayed.
    pub(super) residence: ResidenceTracker,
    /// Where it finds the channel to go on with, when the lanes of this one have ended.
    pub(super) handoff: Arc<ConsumerHandoff>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ConsumerEnd {
    /// Every receiver has ended and everything is handed on.
    Done,
    /// The sink can never take anything again.
    Closed(String),
}

impl Consumer {
    /// Consumes until every receiver of the channel has ended, or until the sink is closed for good; then what still
    /// comes is counted as failed, so that the ledger closes.
    pub(super) fn run(mut self, closed: impl FnOnce(&str)) -> ConsumerEnd {
        let mut closed = Some(closed);
        let mut reason = None;
        let mut pace = Pace::new(self.channel.places_min(), clock::now());
        let mut woken_by = 0;
        loop {
            let (taken, is_empty) = self.consume_some();
            let datagrams = woken_by + taken;
            self.sink.flush(&mut self.tallies);
            // Also while there is no end of batches: what is due for a quiet file does not wait for a busy one.
            if self.sink.due().is_some_and(|due| due <= clock::now()) {
                self.sink.when_due(&mut self.tallies);
            }
            self.publish();
            if reason.is_none()
                && let Some(why) = self.sink.closed()
            {
                if let Some(closed) = closed.take() {
                    closed(&why);
                }
                reason = Some(why);
            }
            woken_by = if !is_empty {
                0
            } else if pace.wants_nap(datagrams, clock::now) {
                self.channel.nap(NAP);
                0
            } else {
                match self.wait() {
                    Some(datagrams) => datagrams,
                    None if self.take_handoff() => {
                        // Its queue may have other places.
                        pace = Pace::new(self.channel.places_min(), clock::now());
                        0
                    }
                    None => break,
                }
            };
        }
        // The end of a sink is a wait for its disk or its peers, with a limit of its own.
        threads::blocking(|| self.sink.finish(&mut self.tallies, &mut |tallies| self.ledger.publish(tallies)));
        self.publish();
        reason.map_or(ConsumerEnd::Done, ConsumerEnd::Closed)
    }

    /// Handles what is in the channel, but no more than a round has; returns how many datagrams that were, and whether
    /// the channel was empty then.
    fn consume_some(&mut self) -> (u64, bool) {
        let mut datagrams = 0;
        for _ in 0..LOADS_PER_ROUND {
            let Some(parcel) = self.channel.take() else { return (datagrams, true) };
            datagrams += self.consume(parcel);
        }
        (datagrams, false)
    }

    fn consume(&mut self, parcel: Parcel) -> u64 {
        threads::step();
        let tally = &mut self.tallies[parcel.listener];
        let datagrams = parcel.datagrams.summary().datagrams;
        tally.taken += datagrams;
        tally.pending += datagrams;
        if let Some(stamp) = parcel.stamp {
            self.residence.track(stamp, parcel.listener, &self.tallies);
        }
        if threads::is_given_up() {
            sink::fail(&mut self.tallies[parcel.listener], datagrams);
        } else {
            self.sink.accept(&parcel, &mut self.tallies);
        }
        self.publish();
        self.homes.send(parcel);
        datagrams
    }

    /// Publishes what was counted, and measures what has been decided by now.
    fn publish(&mut self) {
        self.ledger.publish(&mut self.tallies);
        self.residence.measure_decided(&self.tallies);
    }

    /// Goes on with the channel that a replacement has offered; `false` when there is none. Waits first for what the
    /// sink still holds of a listener that has another index in the replacement, or none.
    fn take_handoff(&mut self) -> bool {
        let Some(mut next) = self.handoff.take() else { return false };
        self.sink.flush(&mut self.tallies);
        while !next.fits(&self.tallies) && !self.channel.is_ended() && !threads::is_given_up() {
            threads::blocking(|| clock::sleep(NAP));
            self.sink.when_due(&mut self.tallies);
            self.publish();
        }
        self.publish();
        if !next.fits(&self.tallies) {
            return false;
        }
        next.carry_over(&mut self.tallies, &self.ledger);
        self.sink.go_on_for(&next.feeders);
        self.channel.go_on_with(next.channel);
        (self.homes, self.ledger, self.tallies, self.residence) =
            (next.homes, next.ledger, next.tallies, next.residence);
        self.handoff.note_done();
        true
    }

    /// Sleeps until a batch comes, handles it, and returns how many datagrams are in it; meanwhile does what the sink
    /// has due. `None` when no receiver is left.
    fn wait(&mut self) -> Option<u64> {
        loop {
            match self.channel.wait(self.sink.due()) {
                Waited::Batch(parcel) => return Some(self.consume(parcel)),
                Waited::Deadline => {
                    self.sink.when_due(&mut self.tallies);
                    self.publish();
                }
                Waited::Ended => return None,
            }
        }
    }
}

/// Decides between sleeping in the channel and napping, by how many datagrams come and not by how often it is woken:
/// one datagram every 100 µs is wanted at once, a batch of 64 every 100 µs is a flood.
#[derive(Debug)]
struct Pace {
    may_nap: bool,
    napping: bool,
    last_look: Instant,
    rounds: u32,
    datagrams: u64,
}

impl Pace {
    fn new(places_of_lane: usize, now: Instant) -> Self {
        Self { may_nap: places_of_lane >= NAP_PLACES_MIN, napping: false, last_look: now, rounds: 0, datagrams: 0 }
    }

    /// A round has emptied the channel and brought this many datagrams: nap next? The clock is asked once in many
    /// rounds.
    fn wants_nap(&mut self, datagrams: u64, clock: impl FnOnce() -> Instant) -> bool {
        if self.napping {
            self.napping = datagrams >= NAP_DATAGRAMS_MIN;
            return self.napping;
        }
        self.datagrams += datagrams;
        self.rounds += 1;
        if self.may_nap && self.rounds >= ROUNDS_PER_LOOK {
            let now = clock();
            let passed_ns = u64::try_from((now - self.last_look).as_nanos()).unwrap_or(u64::MAX);
            self.napping = self.datagrams * 1_000_000 >= NAP_DATAGRAMS_PER_MS.saturating_mul(passed_ns);
            (self.last_look, self.rounds, self.datagrams) = (now, 0, 0);
        }
        self.napping
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the pace wants after each of `rounds` rounds that bring `datagrams` each, one every `interval`.
    fn wants(pace: &mut Pace, rounds: u32, datagrams: u64, interval: Duration) -> Vec<bool> {
        let start = pace.last_look;
        (1..=rounds).map(|round| pace.wants_nap(datagrams, || start + interval * round)).collect()
    }

    #[test]
    fn single_datagrams_at_ten_thousand_a_second_never_make_it_nap() {
        let mut pace = Pace::new(256, Instant::now());
        assert!(!wants(&mut pace, 1_000, 1, Duration::from_micros(100)).contains(&true));
    }

    #[test]
    fn full_batches_as_rare_as_that_make_it_nap_at_the_first_look() {
        let mut pace = Pace::new(256, Instant::now());
        let wanted = wants(&mut pace, ROUNDS_PER_LOOK, 64, Duration::from_micros(100));
        assert_eq!(wanted.iter().position(|&nap| nap), Some(ROUNDS_PER_LOOK as usize - 1));
    }

    #[test]
    fn a_nap_that_brings_little_is_the_last() {
        let mut pace = Pace::new(256, Instant::now());
        wants(&mut pace, ROUNDS_PER_LOOK, 64, Duration::from_micros(100));
        assert!(pace.wants_nap(NAP_DATAGRAMS_MIN, Instant::now));
        assert!(!pace.wants_nap(NAP_DATAGRAMS_MIN - 1, Instant::now));
        assert!(!pace.wants_nap(NAP_DATAGRAMS_MIN, Instant::now));
    }

    #[test]
    fn a_short_channel_never_lets_it_nap() {
        let mut pace = Pace::new(NAP_PLACES_MIN - 1, Instant::now());
        assert!(!wants(&mut pace, 100, 64, Duration::from_micros(1)).contains(&true));
    }
}
