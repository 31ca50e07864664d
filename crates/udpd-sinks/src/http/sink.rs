//! The sink itself, without a spill: fills batches, and counts what the server has answered.
//!
//! While every connection has a batch on the way, the consumer waits. So a server that is slow or gone fills the sink's
//! queue, and `when_full` decides.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use super::HttpSettings;
use super::client::HttpClient;
use crate::target::Lookup;
use udpd_base::exit::Failure;
use udpd_base::handover::batch::LaneBatch;
use udpd_base::ledger::Tallies;
use udpd_base::os::threads;
use udpd_base::seams::clock;
use udpd_base::sink::settings::{OpenedSink, Opening};
use udpd_base::sink::{ConsumerFeeders, Sink, fail};
use udpd_spill::spilling::{BatchDestination, SpillFirst, add_count};

/// How long answers are waited for at the end.
const FINISH_LIMIT: Duration = Duration::from_secs(4);

/// How long one wait for an answer is.
const ANSWER_WAIT: Duration = Duration::from_millis(20);

/// How long after a stop answers are waited for that are just coming.
const STOP_LIMIT: Duration = Duration::from_millis(20);

/// Sends datagrams from memory.
#[derive(Debug)]
pub(super) struct HttpSink {
    name: String,
    client: HttpClient,
    /// Names the batches of this sink, and where the next one begins.
    origin: u64,
    begin: u64,
    /// When the first record came of the batch that is being filled.
    since: Option<Instant>,
    /// How many datagrams a batch on the way has, by listener.
    counts: HashMap<u64, Vec<(usize, u64)>>,
    filled: Vec<(usize, u64)>,
}

impl HttpSink {
    pub(super) fn open(
        settings: &HttpSettings,
        lookup: Lookup<'_>,
        opening: &Opening<'_>,
    ) -> Result<OpenedSink, Failure> {
        let client = HttpClient::open(settings, lookup, opening)?;
        let peers = vec![client.peers()];
        if settings.spill.is_on() {
            let sink = SpillFirst::open(client, &settings.spill, opening)?;
            return Ok(OpenedSink { peers, ..OpenedSink::new(sink) });
        }
        // The seed of a hash table is the only random number of the standard library.
        let origin = RandomState::new().hash_one(opening.sink);
        let (name, counts, filled) = (opening.sink.to_owned(), HashMap::new(), Vec::new());
        let sink = Self { name, client, origin, begin: 0, since: None, counts, filled };
        Ok(OpenedSink { peers, ..OpenedSink::new(sink) })
    }

    /// Waits until a batch can be filled. Returns false when the daemon waits no longer for this consumer.
    fn make_room(&mut self, tallies: &mut Tallies) -> bool {
        loop {
            self.take_answers(tallies);
            if self.client.has_room() {
                return true;
            }
            if threads::is_given_up() {
                return false;
            }
            // This may take as long as the server does.
            tallies.publish();
            threads::blocking(|| self.client.wait(ANSWER_WAIT));
        }
    }

    fn take_answers(&mut self, tallies: &mut Tallies) {
        while let Some(answer) = self.client.take_answer() {
            for &(listener, datagrams) in &answer.repeats {
                tallies[listener].stream_repeats_at_most += datagrams;
            }
            for (listener, datagrams) in self.counts.remove(&answer.ticket).unwrap_or_default() {
                if !answer.is_decided {
                    fail(&mut tallies[listener], datagrams);
                    continue;
                }
                let of_listener = answer.refused.iter().find(|(own, _)| *own == listener);
                let refused = of_listener.map_or(0, |(_, refused)| *refused);
                let tally = &mut tallies[listener];
                tally.pending -= datagrams;
                tally.delivered += datagrams - refused;
                tally.dropped.refused += refused;
            }
        }
    }

    /// Sends what is filled, when there is room for it.
    fn send(&mut self, tallies: &mut Tallies) {
        self.since = None;
        if self.filled.is_empty() {
            return;
        }
        let filled = std::mem::take(&mut self.filled);
        if !self.make_room(tallies) {
            return filled.into_iter().for_each(|(listener, datagrams)| fail(&mut tallies[listener], datagrams));
        }
        self.begin += filled.iter().map(|(_, datagrams)| datagrams).sum::<u64>();
        let ticket = self.client.send();
        self.counts.insert(ticket, filled);
    }
}

impl Sink for HttpSink {
    fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies) {
        for datagram in batch.datagrams.datagrams() {
            // There is one batch more than may be on the way.
            if self.filled.is_empty() {
                self.client.begin_batch(self.origin, self.begin);
                self.since = Some(clock::now());
            }
            let is_full = self.client.add(batch.listener, batch.lane, &datagram);
            add_count(&mut self.filled, batch.listener, 1);
            if is_full {
                self.send(tallies);
            }
        }
    }

    fn flush(&mut self, tallies: &mut Tallies) {
        self.take_answers(tallies);
        if self.due().is_some_and(|due| due <= clock::now()) {
            self.send(tallies);
        }
    }

    fn due(&self) -> Option<Instant> {
        // What ends on the way wakes the consumer.
        self.since.filter(|_| self.client.has_room()).map(|since| since + self.client.triggers().every)
    }

    fn when_due(&mut self, tallies: &mut Tallies) {
        self.flush(tallies);
    }

    fn go_on_for(&mut self, feeders: &ConsumerFeeders) {
        self.client.go_on_for(feeders);
    }

    fn finish(&mut self, tallies: &mut Tallies, publish: &mut dyn FnMut(&mut Tallies)) {
        let limit = clock::now() + FINISH_LIMIT;
        self.take_answers(tallies);
        loop {
            if self.client.has_room() {
                self.send(tallies);
            }
            let is_over = self.counts.is_empty() && self.filled.is_empty();
            if is_over || self.client.is_failing() || clock::now() >= limit {
                break;
            }
            publish(tallies);
            self.client.wait(ANSWER_WAIT);
            self.take_answers(tallies);
        }
        self.client.stop();
        let limit = clock::now() + STOP_LIMIT;
        while !self.counts.is_empty() && clock::now() < limit {
            self.client.wait(ANSWER_WAIT);
            self.take_answers(tallies);
        }
        let mut left = 0;
        let undecided = std::mem::take(&mut self.counts).into_values().flatten();
        for (listener, datagrams) in undecided.chain(std::mem::take(&mut self.filled)) {
            fail(&mut tallies[listener], datagrams);
            left += datagrams;
        }
        if left > 0 {
            log::warn!(
                "sink {}: the server has not answered for {left} datagrams before the end; they count as sink_error, \
                 and the server may have some",
                self.name
            );
        }
    }
}
