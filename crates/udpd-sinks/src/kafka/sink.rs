//! The sink itself: makes a message of each datagram, and takes the reports of those under way.
//!
//! With a spill a batch is handed to the library in rounds, and the reports of one are waited for before the next: so
//! it is known of each datagram whether a broker has it, and nothing is under way behind one that is refused.
//!
//! What no broker has acknowledged when the wait is over is left, but the library still has it and goes on trying. The
//! next attempt begins with the same datagrams, because the spill keeps the order. So those are not handed over again,
//! and nothing comes twice while the client lives. The library gives up no message by itself; what it gives back
//! because a broker refuses it for now, or its topic is not there, is handed over again.

use std::time::{Duration, Instant, SystemTime};

use mmsg::Datagram;

use super::client::{KafkaClient, Offered, Record};
use super::client_properties;
use super::message::{self, MessageRefusal, ShortText, TICKET_SHIFT};
use super::rounds::{DeliveryRounds, MessageSlot, MessageSlots};
use super::settings::{KafkaError, KafkaSettings};
use udpd_base::handover::batch::LaneBatch;
use udpd_base::ledger::Tallies;
use udpd_base::os::threads;
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::seams::clock;
use udpd_base::sink::{ConsumerFeeders, Sink};
use udpd_spill::spilling::SpillableSink;

/// The longest wait for outstanding acknowledgements at the end.
const FINISH_LIMIT: Duration = Duration::from_secs(4);

/// How soon after a datagram the reports are looked at.
const REPORT_WAIT_MIN: Duration = Duration::from_millis(10);

/// How rarely, while none comes.
const REPORT_WAIT_MAX: Duration = Duration::from_millis(100);

/// Sends to a Kafka cluster.
#[derive(Debug)]
pub(super) struct KafkaSink {
    name: String,
    settings: KafkaSettings,
    /// The names of the listeners, by index; a batch says only the number of its own.
    listeners: Vec<String>,
    topics: Vec<String>,
    client: KafkaClient,
    /// With a spill, what is in hand.
    slots: MessageSlots,
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
        let topics =
            listeners.iter().map(|listener| client_properties::expand_topic(&settings.topic, listener, name)).collect();
        let (name, listeners, settings) = (name.to_owned(), listeners.to_vec(), settings.clone());
        let (wait, due) = (REPORT_WAIT_MIN, clock::now() + IDLE_WAIT);
        let slots = MessageSlots::new(DeliveryRounds::new(client_properties::batch(&settings)));
        Ok(Self { name, settings, listeners, topics, client, slots, wait, due })
    }

    /// How many bytes of a batch the message of a datagram takes at most.
    fn size_at_most(&self, listener: usize, datagram: &Datagram<'_>) -> usize {
        datagram.payload().len() + self.listeners[listener].len() + message::OVERHEAD_MAX
    }

    /// Makes the message of a datagram and hands it to the client by `send`; `opaque` comes back with its report.
    /// Without a time of its own every datagram of a batch has the time `now` at which the batch is handed over.
    #[inline]
    fn send<R>(
        &mut self,
        listener: usize,
        opaque: usize,
        datagram: &Datagram<'_>,
        now: &mut Option<Duration>,
        send: impl FnOnce(&mut KafkaClient, Record<'_>) -> R,
    ) -> R {
        let (name, topic) = (&self.listeners[listener], &self.topics[listener]);
        let arrival = datagram.arrival_since_epoch().unwrap_or_else(|| *now.get_or_insert_with(since_epoch));
        let key = self.settings.key_by_source.then(|| message::key(datagram));
        let mut record: Record<'_> = Record::with_opaque_to(topic, opaque)
            .payload(datagram.payload())
            .timestamp(message::timestamp_ms(arrival))
            .headers(message::headers(datagram, name, arrival));
        record.key = key.as_ref().map(ShortText::bytes);
        send(&mut self.client, record)
    }

    /// Takes the reports of the library, and decides when to look again.
    fn poll_reports(&mut self, tallies: &mut Tallies) -> bool {
        let settled = self.client.poll_reports(tallies);
        if settled {
            self.wait = REPORT_WAIT_MIN;
        }
        let now = clock::now();
        self.client.review(now);
        self.due = now + if self.client.under_way() == 0 { IDLE_WAIT } else { self.wait };
        settled
    }
}

impl Sink for KafkaSink {
    fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies) {
        let (listener, mut now) = (batch.listener, None);
        for datagram in batch.datagrams.datagrams() {
            self.send(listener, listener, &datagram, &mut now, |client, record| client.send(record, tallies));
        }
        self.wait = REPORT_WAIT_MIN;
    }

    fn flush(&mut self, tallies: &mut Tallies) {
        self.poll_reports(tallies);
    }

    fn due(&self) -> Option<Instant> {
        Some(self.due)
    }

    fn when_due(&mut self, tallies: &mut Tallies) {
        if !self.poll_reports(tallies) {
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

/// The time of day, counted as the kernel counts it.
fn since_epoch() -> Duration {
    clock::wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// How long the reports of a batch are waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// The same of one that was waited for before.
const PATIENCE_AGAIN: Duration = Duration::from_millis(20);

/// How long one look for reports is from the next.
const LOOK: Duration = Duration::from_millis(1);

/// How often the library is polled while nothing is under way.
const IDLE_WAIT: Duration = Duration::from_secs(1);

impl KafkaSink {
    /// Takes the outcomes of messages. Returns true when a broker has given some back, which it will not take at once.
    fn poll_outcomes(&mut self) -> bool {
        let slots = &mut self.slots;
        let was_renewed =
            self.client.poll_outcomes(&mut |ticket, outcome, partition| slots.note(ticket, outcome, partition));
        if was_renewed {
            // The new client has nothing under way.
            slots.begin_anew();
        }
        let outcome = slots.conclude(clock::now());
        if outcome.is_too_large {
            self.client.log_split();
        }
        outcome.refused.into_iter().for_each(|(refusal, size)| self.client.log_refused(refusal, size));
        outcome.is_broken
    }

    /// Hands over a round of the messages that the library does not have. Returns false if none can be handed over now.
    fn hand_over(&mut self, batch: &LaneBatch) -> bool {
        let (mut now, mut any) = (None, false);
        let mut room = self.slots.rounds.begin();
        for (place, datagram) in batch.datagrams.datagrams().enumerate() {
            if self.slots.slots.len() == place {
                self.slots.slots.push_back(MessageSlot::Free);
            }
            if self.slots.slots[place] != MessageSlot::Free {
                continue;
            }
            let size = self.size_at_most(batch.listener, &datagram);
            if !self.slots.rounds.has_room(&mut room, size) {
                break;
            }
            let ticket = self.slots.ticket();
            let opaque = batch.listener | ticket << TICKET_SHIFT;
            let offered = self.send(batch.listener, opaque, &datagram, &mut now, |client, record| client.offer(record));
            self.slots.slots[place] = match offered {
                Offered::Taken => MessageSlot::UnderWay { ticket, size },
                Offered::TooLarge => MessageSlot::Refused(MessageRefusal::TooLarge),
                Offered::NotNow => break,
            };
            any = true;
        }
        // Later datagrams do not overtake.
        let missing = batch.datagrams.datagrams().count().saturating_sub(self.slots.slots.len());
        self.slots.slots.extend(std::iter::repeat_n(MessageSlot::Free, missing));
        if self.slots.under_way() > 0 {
            self.slots.rounds.under_way(room);
        }
        any
    }
}

impl SpillableSink for KafkaSink {
    fn attempt(&mut self, batch: &LaneBatch, tallies: &mut Tallies, left: &mut Vec<usize>) {
        let was_tried = !self.slots.slots.is_empty();
        let count = batch.datagrams.datagrams().count();
        let deadline = clock::now() + if was_tried { PATIENCE_AGAIN } else { PATIENCE };
        let mut is_over = false;
        loop {
            let is_given_back = self.poll_outcomes();
            if is_given_back || self.slots.is_decided(count) {
                break;
            }
            if self.slots.under_way() == 0 && !self.hand_over(batch) {
                break;
            }
            is_over = clock::now() >= deadline;
            if is_over {
                break;
            }
            self.client.hurry();
            threads::blocking(|| clock::sleep(LOOK));
        }
        self.client.review(clock::now());
        self.slots.settle(count, &mut tallies[batch.listener], left);
        self.slots.goes_on = is_over && left.len() < count;
        self.slots.idle_due = Some(clock::now() + IDLE_WAIT);
    }

    fn goes_on(&self) -> bool {
        self.slots.goes_on
    }

    fn in_hand(&self) -> usize {
        self.slots.under_way()
    }

    fn forget_left(&mut self) {
        self.client.take_back();
        self.slots.begin_anew();
        self.slots.slots.clear();
    }

    fn due(&self) -> Option<Instant> {
        Some(self.slots.idle_due.unwrap_or_else(clock::now))
    }

    fn when_due(&mut self) {
        self.poll_outcomes();
        self.client.review(clock::now());
        self.slots.idle_due = Some(clock::now() + IDLE_WAIT);
    }

    fn go_on_for(&mut self, _: &ConsumerFeeders) {}
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
