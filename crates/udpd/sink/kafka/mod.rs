//! Messages in a topic of a Kafka cluster, one for each datagram, through librdkafka (cargo feature `kafka`).
//!
//! **The books.** Delivered is what the brokers have acknowledged as `acks` asks; failed is what the library reports as
//! lost after its own retries, which may have reached a broker whose answer did not reach us. Between the two a
//! datagram is pending, also after [`Sink::flush`]: a flush sends nothing earlier than the library would and waits for
//! nothing. Instead the sink is due every few milliseconds while anything is under way, hears the reports, and the
//! consumer publishes them. The consumer's thread does all of it, so the counters keep their one writer; the library's
//! own threads only talk to brokers. With nothing under way it is due once a second, because the library talks about
//! connections also then, and what nobody hears would pile up.
//!
//! **A broker that is away or slow.** The library's queue is bounded in messages and bytes. While it is full,
//! [`Sink::accept`] waits for room: the consumer takes nothing more, its channel fills, and `when_full` decides what
//! that means for the receivers. Nothing is lost in silence and nobody else waits. The wait has an end: after
//! `message.timeout.ms` (five minutes unless `properties` say otherwise; 0 means never) the library gives up the oldest
//! messages, which are then failed, and there is room. Reconnecting, with a growing pause, is the library's.
//!
//! **Stopping.** [`Sink::finish`] waits for what is under way, at most [`FINISH_LIMIT`], and publishes what is
//! acknowledged as it learns of it; then it takes the rest back and counts it as failed. A consumer that is in `accept`
//! when the daemon stops does not see it, as the trait has no way to tell; the daemon waits for it as for any sink that
//! takes nothing, and then counts what it has not settled as its failure. So the ledger closes either way.
//!
//! **A client that fails for good**, which an idempotent one does when a broker has lost messages that it acknowledged,
//! is replaced by a new one. What was under way is failed; the daemon goes on.

mod client;
mod context;
mod record;
mod settings;
mod voice;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

pub use settings::{KafkaError, KafkaSettings, QUEUE_KIBIBYTES, QUEUE_MESSAGES, QueueBounds};

use super::Sink;
use crate::handover::pool::LaneBatch;
use crate::ledger::Tally;
use client::{Client, Record};

/// The longest wait for outstanding acknowledgements at the end.
pub const FINISH_LIMIT: Duration = Duration::from_secs(4);

/// How soon after a datagram its report is looked for.
const REPORT_WAIT_MIN: Duration = Duration::from_millis(10);

/// How rarely, while none comes.
const REPORT_WAIT_MAX: Duration = Duration::from_millis(100);

/// How often the library is heard while nothing is under way.
const IDLE_WAIT: Duration = Duration::from_secs(1);

/// Sends to a Kafka cluster.
#[derive(Debug)]
pub struct KafkaSink {
    settings: Arc<KafkaSettings>,
    client: Client,
    wait: Duration,
    due: Instant,
}

impl KafkaSink {
    /// Checks the settings and starts the library. It does not fail because no broker answers: that is a matter of the
    /// moment, and datagrams wait for it.
    pub fn open(settings: &KafkaSettings) -> Result<Self, KafkaError> {
        let settings = Arc::new(settings.clone());
        let client = Client::start(&settings)?;
        Ok(Self { settings, client, wait: REPORT_WAIT_MIN, due: Instant::now() + IDLE_WAIT })
    }

    /// Hears the library, and decides when to hear it again.
    fn hear(&mut self, tallies: &mut [Tally]) -> bool {
        let settled = self.client.hear(tallies);
        if settled {
            self.wait = REPORT_WAIT_MIN;
        }
        let now = Instant::now();
        self.client.review(now);
        self.due = now + if self.client.under_way() == 0 { IDLE_WAIT } else { self.wait };
        settled
    }
}

impl Sink for KafkaSink {
    fn accept(&mut self, batch: &LaneBatch, tallies: &mut [Tally]) {
        let listener = batch.listener;
        let name = &self.settings.listeners[listener];
        // Without a time of its own every datagram of the batch has the time at which the batch is handed over.
        let mut now = None;
        for datagram in batch.datagrams.datagrams() {
            let arrival = datagram.arrival_since_epoch().unwrap_or_else(|| *now.get_or_insert_with(since_epoch));
            let key = self.settings.key_by_source.then(|| record::key(&datagram));
            let mut message: Record<'_> = Record::with_opaque_to(&self.settings.topic, listener)
                .payload(datagram.payload())
                .timestamp(record::timestamp_ms(arrival))
                .headers(record::headers(&datagram, name, arrival));
            message.key = key.as_ref().map(record::Text::bytes);
            self.client.send(message, tallies);
        }
        self.wait = REPORT_WAIT_MIN;
    }

    fn flush(&mut self, tallies: &mut [Tally]) {
        self.hear(tallies);
    }

    fn due(&self) -> Option<Instant> {
        Some(self.due)
    }

    fn when_due(&mut self, tallies: &mut [Tally]) {
        if !self.hear(tallies) {
            self.wait = (self.wait * 2).min(REPORT_WAIT_MAX);
        }
    }

    fn finish(&mut self, tallies: &mut [Tally], publish: &mut dyn FnMut(&[Tally])) {
        let left = self.client.finish(FINISH_LIMIT, tallies, publish);
        if left > 0 {
            log::warn!(
                "sink {}: no broker acknowledged {left} datagrams within {} s of the end; they count as failed, and \
                 some may be in the topic",
                self.settings.name,
                FINISH_LIMIT.as_secs()
            );
        }
    }
}

/// The time of day, as the kernel would give it.
fn since_epoch() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests;
