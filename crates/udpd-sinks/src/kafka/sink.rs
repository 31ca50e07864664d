//! The sink itself: makes a message of each datagram, and hears what became of those under way.

use std::time::{Duration, Instant, SystemTime};

use mmsg::Datagram;

use super::client::{KafkaClient, Offered, Record};
use super::error::KafkaError;
use super::library;
use super::outcome::TICKET_SHIFT;
use super::record;
use super::rounds::DeliveryRounds;
use super::settings::KafkaSettings;
use super::slots::MessageSlots;
use super::topic;
use udpd_base::handover::batch::LaneBatch;
use udpd_base::ledger::Tallies;
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::sink::Sink;

/// The longest wait for outstanding acknowledgements at the end.
pub(super) const FINISH_LIMIT: Duration = Duration::from_secs(4);

/// How soon after a datagram its report is looked for.
const REPORT_WAIT_MIN: Duration = Duration::from_millis(10);

/// How rarely, while none comes.
const REPORT_WAIT_MAX: Duration = Duration::from_millis(100);

/// How often the library is heard while nothing is under way.
const IDLE_WAIT: Duration = Duration::from_secs(1);

/// Sends to a Kafka cluster.
#[derive(Debug)]
pub(super) struct KafkaSink {
    name: String,
    settings: KafkaSettings,
    /// The names of the listeners, by index; a batch says only the number of its own.
    listeners: Vec<String>,
    /// The topic of each.
    topics: Vec<String>,
    pub(super) client: KafkaClient,
    /// With a spill, what is in hand.
    pub(super) slots: MessageSlots,
    wait: Duration,
    due: Instant,
}

impl KafkaSink {
    /// Checks the settings and starts the library. It does not fail because no broker answers: that is a matter of the
    /// moment, and datagrams wait for it.
    pub(super) fn open(
        name: &str,
        settings: &KafkaSettings,
        listeners: &[String],
        registry: ThreadRegistry,
    ) -> Result<Self, KafkaError> {
        let client = KafkaClient::start(name, settings, listeners.len(), registry)?;
        let topics = listeners.iter().map(|listener| topic::expand(&settings.topic, listener, name)).collect();
        let (name, listeners, settings) = (name.to_owned(), listeners.to_vec(), settings.clone());
        let (wait, due) = (REPORT_WAIT_MIN, Instant::now() + IDLE_WAIT);
        let slots = MessageSlots::new(DeliveryRounds::new(library::batch(&settings)));
        Ok(Self { name, settings, listeners, topics, client, slots, wait, due })
    }

    /// How many bytes of a batch the message of a datagram takes at most.
    pub(super) fn size_at_most(&self, listener: usize, datagram: &Datagram<'_>) -> usize {
        datagram.payload().len() + self.listeners[listener].len() + record::OVERHEAD_MAX
    }

    /// Offers the message of a datagram, with a ticket. `now` is when its batch was begun, where that is known.
    pub(super) fn offer(
        &mut self,
        listener: usize,
        ticket: usize,
        datagram: &Datagram<'_>,
        now: &mut Option<Duration>,
    ) -> Offered {
        let (name, topic) = (&self.listeners[listener], &self.topics[listener]);
        let arrival = datagram.arrival_since_epoch().unwrap_or_else(|| *now.get_or_insert_with(since_epoch));
        let key = self.settings.key_by_source.then(|| record::key(datagram));
        let mut message: Record<'_> = Record::with_opaque_to(topic, listener | ticket << TICKET_SHIFT)
            .payload(datagram.payload())
            .timestamp(record::timestamp_ms(arrival))
            .headers(record::headers(datagram, name, arrival));
        message.key = key.as_ref().map(record::Text::bytes);
        self.client.offer(message)
    }

    /// Hears the library, and decides when to hear it again.
    fn hear(&mut self, tallies: &mut Tallies) -> bool {
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
    fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies) {
        let listener = batch.listener;
        let (name, topic) = (&self.listeners[listener], &self.topics[listener]);
        // Without a time of its own every datagram of the batch has the time at which the batch is handed over.
        let mut now = None;
        for datagram in batch.datagrams.datagrams() {
            let arrival = datagram.arrival_since_epoch().unwrap_or_else(|| *now.get_or_insert_with(since_epoch));
            let key = self.settings.key_by_source.then(|| record::key(&datagram));
            let mut message: Record<'_> = Record::with_opaque_to(topic, listener)
                .payload(datagram.payload())
                .timestamp(record::timestamp_ms(arrival))
                .headers(record::headers(&datagram, name, arrival));
            message.key = key.as_ref().map(record::Text::bytes);
            self.client.send(message, tallies);
        }
        self.wait = REPORT_WAIT_MIN;
    }

    fn flush(&mut self, tallies: &mut Tallies) {
        self.hear(tallies);
    }

    fn due(&self) -> Option<Instant> {
        Some(self.due)
    }

    fn when_due(&mut self, tallies: &mut Tallies) {
        if !self.hear(tallies) {
            self.wait = (self.wait * 2).min(REPORT_WAIT_MAX);
        }
    }

    fn finish(&mut self, tallies: &mut Tallies, publish: &mut dyn FnMut(&mut Tallies)) {
        let left = self.client.finish(FINISH_LIMIT, tallies, publish);
        if left > 0 {
            log::warn!(
                "sink {}: no broker acknowledged {left} datagrams within {} s of the end; they count as failed, and \
                 some may be in the topic",
                self.name,
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
#[path = "tests.rs"]
mod tests;
