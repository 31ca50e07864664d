//! The library's client and what is under way in it.
//!
//! Every datagram that the client took is under way until its delivery report comes, and is then delivered or failed,
//! once. `under_way` is counted apart from the ledger's `pending`, which also holds what the sink has not handed over
//! yet.

use std::fmt;
use std::time::{Duration, Instant};

use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError as LibraryError, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, PurgeConfig};

#[cfg(feature = "kafka-tls")]
use super::certificate_diagnosis;
use super::client_properties;
use super::client_properties::Purpose;
use super::context::{Context, Reported, Returned, size_at_least};
use super::message::{MessageOutcome, MessageRefusal, refuse};
use super::settings::KafkaError;
use super::settings::KafkaSettings;
use crate::secrets::HiddenSecrets;
use udpd_base::ledger::Tallies;
use udpd_base::os::threads;
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::seams::clock;
use udpd_base::sink::{deliver, fail};

/// How long to sleep before the next look for room in a full queue: at first, and at most while nothing is reported.
/// Asleep, because the binding's own wait spins through its last millisecond.
const ROOM_WAIT_MIN: Duration = Duration::from_millis(1);
const ROOM_WAIT_MAX: Duration = Duration::from_millis(50);

/// How long to sleep between two looks at the end of all deliveries.
const END_WAIT: Duration = Duration::from_millis(2);

/// How often a flush is asked for between two of these looks.
const FLUSHES: usize = 32;

/// How long the library may take to report what is taken back from it.
const PURGE_LIMIT: Duration = Duration::from_millis(500);

/// How long a client that has failed for good may take to report what brokers have already been sent.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// The least time between two clients: one that fails at once is not replaced at once.
const RENEWAL_PAUSE: Duration = Duration::from_secs(1);

/// How long datagrams wait for a report before the log says that no broker answers.
const PATIENCE: Duration = Duration::from_secs(2);

/// A message as the binding takes it.
pub(super) type Record<'a> = BaseRecord<'a, [u8], [u8], usize>;

/// What became of a message that was offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offered {
    Taken,
    /// There is no room now, or no topic, or no client.
    NotNow,
    /// It is larger than `message.max.bytes` of the library.
    TooLarge,
}

pub(super) struct KafkaClient {
    producer: BaseProducer<Context>,
    /// Starts the thread that looks at a broker that is not trusted.
    #[cfg_attr(not(feature = "kafka-tls"), expect(dead_code, reason = "without TLS every broker is trusted"))]
    registry: ThreadRegistry,
    /// The name of the sink, for the log.
    name: String,
    settings: KafkaSettings,
    /// Datagrams without a report, by listener.
    under_way: Vec<u64>,
    /// At how many bytes the library ends a batch.
    batch_bytes: usize,
    /// The log says that brokers refuse batches for their size.
    has_logged_split: bool,
    born: Instant,
    /// When something was last reported, or nothing was under way.
    last_report: Instant,
}

impl fmt::Debug for KafkaClient {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Client").field("under_way", &self.under_way).finish_non_exhaustive()
    }
}

impl KafkaClient {
    /// Starts a client; it connects to no broker yet.
    pub(super) fn start(
        name: &str,
        settings: &KafkaSettings,
        listeners: usize,
        registry: ThreadRegistry,
    ) -> Result<Self, KafkaError> {
        let batch_bytes = client_properties::batch_bytes(settings);
        let producer = producer(name, settings, listeners, batch_bytes)?;
        let under_way = vec![0; listeners];
        let now = clock::now();
        Ok(Self {
            producer,
            registry,
            name: name.to_owned(),
            settings: settings.clone(),
            under_way,
            batch_bytes,
            has_logged_split: false,
            born: now,
            last_report: now,
        })
    }

    /// How many datagrams have no report yet.
    pub(super) fn under_way(&self) -> u64 {
        self.under_way.iter().sum()
    }

    /// When the library's client was started last.
    #[cfg(test)]
    pub(super) fn born(&self) -> Instant {
        self.born
    }

    /// Hands a message over. While the queue is full it waits, which delays this sink alone; the library makes room by
    /// delivering, or by giving up the oldest when `message.timeout.ms` has passed.
    pub(super) fn send(&mut self, mut record: Record<'_>, tallies: &mut Tallies) {
        let listener = record.delivery_opaque;
        let mut wait = ROOM_WAIT_MIN;
        // What came back goes first.
        while !self.send_again(tallies) {
            threads::blocking(|| clock::sleep(wait));
            wait = (wait * 2).min(ROOM_WAIT_MAX);
            self.review(clock::now());
        }
        wait = ROOM_WAIT_MIN;
        loop {
            let (error, unsent) = match self.producer.send(record) {
                Ok(()) => {
                    self.under_way[listener] += 1;
                    return;
                }
                Err(refused) => refused,
            };
            record = unsent;
            match error {
                LibraryError::MessageProduction(RDKafkaErrorCode::QueueFull) => {
                    if self.drain(tallies) {
                        wait = ROOM_WAIT_MIN;
                    } else {
                        threads::blocking(|| clock::sleep(wait));
                        wait = (wait * 2).min(ROOM_WAIT_MAX);
                        self.review(clock::now());
                    }
                }
                LibraryError::MessageProduction(RDKafkaErrorCode::Fatal) if self.renew(tallies) => {}
                LibraryError::MessageProduction(RDKafkaErrorCode::MessageSizeTooLarge) => {
                    self.producer.context().refused(&error.to_string());
                    return refuse(&mut tallies[listener], MessageRefusal::TooLarge, 1);
                }
                error => {
                    self.producer.context().refused(&error.to_string());
                    return fail(&mut tallies[listener], 1);
                }
            }
        }
    }

    /// Sends again, in smaller batches, what came back with a batch that was refused. Returns false while that has to
    /// wait until the client has nothing else under way, so that nothing overtakes it.
    fn send_again(&mut self, tallies: &mut Tallies) -> bool {
        if self.producer.context().returned() == 0 {
            return true;
        }
        self.drain(tallies);
        if self.under_way() > self.producer.context().returned() as u64 && !self.producer.context().is_fatal() {
            return false;
        }
        let returned = self.take_returned();
        if returned.iter().any(|one| one.is_split) {
            let bytes = returned.iter().map(|one| size_at_least(&one.message)).sum();
            self.batch_bytes = (self.batch_bytes.min(bytes) / 2).max(1);
            self.log_split();
            self.replace();
        }
        self.resend(returned, tallies);
        true
    }

    /// What came back, which is not under way any more.
    fn take_returned(&mut self) -> Vec<Returned> {
        let returned = self.producer.context().take_returned();
        returned.iter().for_each(|one| self.under_way[one.listener] -= 1);
        returned
    }

    fn resend(&mut self, returned: Vec<Returned>, tallies: &mut Tallies) {
        for Returned { listener, mut message, .. } in returned {
            let headers = message.detach_headers();
            let mut record: Record<'_> = Record::with_opaque_to(message.topic(), listener);
            record.payload = message.payload();
            record.key = message.key();
            record.timestamp = message.timestamp().to_millis();
            record.headers = headers;
            self.send(record, tallies);
        }
    }

    /// Logs once that brokers refuse batches for their size.
    pub(super) fn log_split(&mut self) {
        if !std::mem::replace(&mut self.has_logged_split, true) {
            log::warn!(
                "sink {}: the brokers refuse a batch for topic {} because it is too large; udpd sends it again in \
                 smaller ones, which takes longer; raise max.message.bytes of the topic, or write batch.size in \
                 properties, below it",
                self.name,
                self.settings.topic
            );
        }
    }

    /// Logs that brokers refuse a message alone, a few times a minute at most.
    pub(super) fn log_refused(&self, refusal: MessageRefusal, bytes_at_most: usize) {
        let why = match refusal {
            MessageRefusal::TooLarge => "its size; raise max.message.bytes of the topic (too_large)",
            MessageRefusal::Policy => "its time, its key or what it is (against_policy)",
        };
        let reason = format!("the brokers refuse it alone, of {bytes_at_most} bytes at most, for {why}");
        self.producer.context().refused(&reason);
    }

    /// Hands a message with a ticket over, if the library takes it now.
    pub(super) fn offer(&mut self, record: Record<'_>) -> Offered {
        let Err((error, _)) = self.producer.send(record) else { return Offered::Taken };
        match error {
            LibraryError::MessageProduction(RDKafkaErrorCode::MessageSizeTooLarge) => {
                self.producer.context().refused(&format!("{error}; raise message.max.bytes in properties (too_large)"));
                Offered::TooLarge
            }
            LibraryError::MessageProduction(RDKafkaErrorCode::QueueFull | RDKafkaErrorCode::Fatal) => Offered::NotNow,
            // The topic is not there, or not open to udpd.
            error => {
                self.producer.context().waits(&error);
                Offered::NotNow
            }
        }
    }

    /// Calls `tell` for each message with a ticket whose outcome is known. Returns true when the client had failed for
    /// good and another one, which has no messages, replaces it.
    pub(super) fn poll_outcomes(&mut self, tell: &mut dyn FnMut(usize, MessageOutcome, i32)) -> bool {
        self.poll();
        let is_fatal = self.producer.context().is_fatal();
        if is_fatal {
            // It sends nothing any more. What it has sent may still be acknowledged, and would come twice.
            self.producer.purge(PurgeConfig::default().queue());
            let deadline = clock::now() + ANSWER_LIMIT;
            while self.producer.in_flight_count() > 0 && clock::now() < deadline {
                threads::blocking(|| clock::sleep(END_WAIT));
                self.poll();
            }
        }
        let mut any = false;
        self.producer.context().take_outcomes(|ticket, outcome, partition| {
            any = true;
            tell(ticket, outcome, partition);
        });
        if any {
            self.last_report = clock::now();
        }
        if is_fatal {
            self.take_back();
        }
        is_fatal && self.renew(&mut Tallies::new(0..0))
    }

    /// Has the library send at once, because a caller waits.
    pub(super) fn hurry(&self) {
        let _ = self.producer.flush(Duration::ZERO);
    }

    /// Takes back what is under way, and drops its reports.
    pub(super) fn take_back(&mut self) {
        self.producer.purge(PurgeConfig::default().queue().inflight());
        self.poll();
        self.producer.context().take_outcomes(|_, _, _| {});
    }

    /// Takes all reports that there are, without waiting for more; returns true if anything was delivered or failed.
    pub(super) fn poll_reports(&mut self, tallies: &mut Tallies) -> bool {
        let settled = self.drain(tallies);
        if self.producer.context().is_fatal() {
            self.renew(tallies);
        }
        self.send_again(tallies);
        settled
    }

    /// Writes the log lines that are due.
    pub(super) fn review(&mut self, now: Instant) {
        if self.under_way() == 0 {
            self.last_report = now;
        }
        let in_vain = now.saturating_duration_since(self.last_report) >= PATIENCE;
        self.producer.context().review(in_vain, now);
        #[cfg(feature = "kafka-tls")]
        if let Some(question) = self.producer.context().take_question() {
            certificate_diagnosis::log_distrust(&self.registry, &self.name, question);
        }
    }

    /// Waits until everything is delivered or failed, no longer than `limit`; what is left then is taken back and
    /// failed. Returns how many that were.
    pub(super) fn finish(
        &mut self,
        limit: Duration,
        tallies: &mut Tallies,
        publish: &mut dyn FnMut(&mut Tallies),
    ) -> u64 {
        let deadline = clock::now() + limit;
        while self.under_way() > 0 && !self.producer.context().is_fatal() && clock::now() < deadline {
            // The library sends at once while this call lasts, which is a moment: hence so often, or a busy machine
            // never runs the library's own thread in that moment. Its result is known from what is under way.
            for _ in 0..FLUSHES {
                let _ = self.producer.flush(Duration::ZERO);
            }
            if self.drain(tallies) {
                publish(tallies);
            } else {
                clock::sleep(END_WAIT);
            }
            self.send_again(tallies);
        }
        let left = self.under_way();
        self.give_up(tallies);
        left
    }

    /// Takes the reports that there are; returns true if anything was delivered or failed.
    fn drain(&mut self, tallies: &mut Tallies) -> bool {
        self.poll();
        self.settle(tallies)
    }

    fn poll(&self) {
        loop {
            let callbacks = self.producer.context().callbacks();
            self.producer.poll(Duration::ZERO);
            if self.producer.context().callbacks() == callbacks {
                break;
            }
        }
    }

    /// Moves what was reported since the last time from pending to delivered or failed; true if that was anything.
    fn settle(&mut self, tallies: &mut Tallies) -> bool {
        let mut any = false;
        for (listener, under_way) in self.under_way.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
            let Reported { delivered, failed, too_large, against_policy } =
                self.producer.context().take_reports(listener);
            deliver(&mut tallies[listener], delivered);
            fail(&mut tallies[listener], failed);
            refuse(&mut tallies[listener], MessageRefusal::TooLarge, too_large);
            refuse(&mut tallies[listener], MessageRefusal::Policy, against_policy);
            let settled = delivered + failed + too_large + against_policy;
            *under_way -= settled;
            any |= settled > 0;
        }
        if any {
            self.last_report = clock::now();
        }
        any
    }

    /// Takes back everything that is under way. What the library does not report in time fails too.
    fn give_up(&mut self, tallies: &mut Tallies) {
        if self.under_way() == 0 {
            return;
        }
        self.producer.purge(PurgeConfig::default().queue().inflight());
        let deadline = clock::now() + PURGE_LIMIT;
        while self.under_way() > 0 && clock::now() < deadline {
            if !self.drain(tallies) {
                threads::blocking(|| clock::sleep(END_WAIT));
            }
        }
        for (listener, under_way) in self.under_way.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
            fail(&mut tallies[listener], std::mem::take(under_way));
        }
    }

    /// Replaces a client that has failed for good; returns false if no other can be started now.
    fn renew(&mut self, tallies: &mut Tallies) -> bool {
        let returned = self.take_returned();
        self.give_up(tallies);
        // Only this sink waits.
        threads::blocking(|| clock::sleep(RENEWAL_PAUSE.saturating_sub(clock::since(self.born))));
        let is_renewed = self.replace();
        if is_renewed {
            self.resend(returned, tallies);
        } else {
            returned.iter().for_each(|one| fail(&mut tallies[one.listener], 1));
        }
        is_renewed
    }

    /// Starts another client in the place of this one; returns false if that fails.
    fn replace(&mut self) -> bool {
        self.born = clock::now();
        match producer(&self.name, &self.settings, self.under_way.len(), self.batch_bytes) {
            Ok(producer) => {
                // The library ends the threads of the old one, and waits for them.
                threads::blocking(|| self.producer = producer);
                true
            }
            Err(error) => {
                log::error!("sink {}: cannot start another client: {error}; trying again", self.name);
                false
            }
        }
    }
}

/// A client of the library whose batches end at so many bytes, with the passwords and certificates that the files hold
/// now.
fn producer(
    name: &str,
    settings: &KafkaSettings,
    listeners: usize,
    batch_bytes: usize,
) -> Result<BaseProducer<Context>, KafkaError> {
    let mut config = client_properties::client_config(settings, Purpose::Use)?;
    config.set("batch.size", batch_bytes.to_string());
    let hidden = HiddenSecrets::new(client_properties::secrets(&config));
    let context = Context::new(name, settings, listeners, batch_bytes, hidden);
    BaseProducer::from_config_and_context(&config, context).map_err(|error| client_properties::refusal(settings, error))
}
