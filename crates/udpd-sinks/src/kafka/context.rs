//! The callbacks of the library: delivery reports, errors, log lines and requests for a token. They always come from
//! within a poll and so on the consumer's thread. Reports are counted here, by listener, and the sink fetches the
//! counts after the poll.
//!
//! The binding asks for a context that threads could share. Only one thread ever uses it, so a count is a plain load
//! and store in an atomic, and no lock is ever contended.

use std::error::Error;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use log::Level;
use rdkafka::ClientContext;
use rdkafka::client::OAuthToken;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, DeliveryResult, Message, OwnedMessage};
use rdkafka::producer::ProducerContext;

#[cfg(feature = "kafka-tls")]
use super::certificate_diagnosis::{self, TrustQuestion};
use super::log_lines::{KafkaLog, Lines};
use super::message::{MessageOutcome, MessageRefusal, TICKET_SHIFT};
use super::security::{Sasl, Security};
use super::settings::KafkaSettings;
use super::tokens;
use crate::secrets::HiddenSecrets;
use udpd_base::os::threads::lock;
use udpd_base::seams::clock;

/// A count that one thread writes and reads.
#[derive(Debug, Default)]
struct ReportCount(AtomicU64);

impl ReportCount {
    fn add_one(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn take(&self) -> u64 {
        let count = self.get();
        self.0.store(0, Ordering::Relaxed);
        count
    }
}

/// The reports of one listener's datagrams.
#[derive(Debug, Default)]
struct Reports {
    delivered: ReportCount,
    failed: ReportCount,
    too_large: ReportCount,
    against_policy: ReportCount,
}

/// The reports of one listener's datagrams since the last call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reported {
    pub(super) delivered: u64,
    pub(super) failed: u64,
    pub(super) too_large: u64,
    pub(super) against_policy: u64,
}

/// A message that came back with a batch that was refused, of a sink without a spill.
#[derive(Debug)]
pub(super) struct Returned {
    pub(super) listener: usize,
    pub(super) message: OwnedMessage,
    /// The batch was too large.
    pub(super) is_split: bool,
}

/// Receives the callbacks of the library.
#[derive(Debug)]
pub(super) struct Context {
    reports: Box<[Reports]>,
    /// Of messages that have tickets, with their partitions.
    outcomes: Mutex<Vec<(usize, MessageOutcome, i32)>>,
    returned: Mutex<Vec<Returned>>,
    /// At how many bytes the library ends a batch: a message as large as that is alone in its own.
    batch_bytes: usize,
    has_spill: bool,
    callbacks: ReportCount,
    /// The last broker was lost, and nothing has been acknowledged since.
    away: AtomicBool,
    fatal: AtomicBool,
    log_lines: Mutex<KafkaLog>,
    security: Security,
    hidden: HiddenSecrets,
    /// A broker that is not trusted and was not probed yet.
    #[cfg(feature = "kafka-tls")]
    question: Mutex<Option<TrustQuestion>>,
}

impl Context {
    /// A context for a client of this sink, whose configuration has these secrets.
    pub(super) fn new(
        name: &str,
        settings: &KafkaSettings,
        listeners: usize,
        batch_bytes: usize,
        hidden: HiddenSecrets,
    ) -> Self {
        Self {
            reports: (0..listeners).map(|_| Reports::default()).collect(),
            outcomes: Mutex::default(),
            returned: Mutex::default(),
            batch_bytes,
            has_spill: settings.spill.is_on(),
            callbacks: ReportCount::default(),
            away: AtomicBool::new(false),
            fatal: AtomicBool::new(false),
            log_lines: Mutex::new(KafkaLog::new(name, &settings.brokers, &settings.topic)),
            security: settings.security.clone(),
            hidden,
            #[cfg(feature = "kafka-tls")]
            question: Mutex::default(),
        }
    }

    /// How often the library has called back; while the number grows there may be more.
    pub(super) fn callbacks(&self) -> u64 {
        self.callbacks.get()
    }

    /// The reports about a listener's datagrams since the last call.
    pub(super) fn take_reports(&self, listener: usize) -> Reported {
        let Reports { delivered, failed, too_large, against_policy } = &self.reports[listener];
        Reported {
            delivered: delivered.take(),
            failed: failed.take(),
            too_large: too_large.take(),
            against_policy: against_policy.take(),
        }
    }

    /// The outcomes of messages with tickets since the last call, with their partitions.
    pub(super) fn take_outcomes(&self, mut tell: impl FnMut(usize, MessageOutcome, i32)) {
        let mut outcomes = lock(&self.outcomes);
        outcomes.drain(..).for_each(|(ticket, outcome, partition)| tell(ticket, outcome, partition));
    }

    /// How many messages came back and are to be sent again.
    pub(super) fn returned(&self) -> usize {
        lock(&self.returned).len()
    }

    /// Those messages, in their order.
    pub(super) fn take_returned(&self) -> Vec<Returned> {
        std::mem::take(&mut lock(&self.returned))
    }

    /// Whether the client can never deliver anything again.
    pub(super) fn is_fatal(&self) -> bool {
        self.fatal.load(Ordering::Relaxed)
    }

    /// Logs that a datagram will not be in the topic, a few times a minute at most.
    pub(super) fn refused(&self, reason: &str) {
        self.write(|log_lines| log_lines.failed(&self.hidden.clean(reason), clock::now()));
    }

    /// Logs once that the topic takes nothing now, until it takes something again.
    pub(super) fn waits(&self, error: &KafkaError) {
        let cure = match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::UnknownTopic | RDKafkaErrorCode::UnknownTopicOrPartition) => "make the topic",
            Some(RDKafkaErrorCode::TopicAuthorizationFailed) => "allow udpd to write to it",
            Some(RDKafkaErrorCode::InvalidTimestamp) => "the clocks of this host and of the brokers differ: set them",
            _ => "check the brokers",
        };
        let reason = error.to_string();
        self.away.store(true, Ordering::Relaxed);
        self.write(|log_lines| log_lines.waits(&self.hidden.clean(&reason), cure));
    }

    /// Logs how many lines were left out, when a minute is over; and, if datagrams have waited in vain, that no broker
    /// answers. A connection that was closed because nothing was sent for a while is not logged.
    pub(super) fn review(&self, in_vain: bool, now: Instant) {
        if in_vain && self.away.load(Ordering::Relaxed) {
            self.write(KafkaLog::gone);
        }
        self.write(|log_lines| log_lines.remind(now));
    }

    /// The broker to probe, once for each time that udpd ceases to trust one.
    #[cfg(feature = "kafka-tls")]
    pub(super) fn take_question(&self) -> Option<TrustQuestion> {
        lock(&self.question).take()
    }

    /// A broker refuses to authenticate udpd.
    fn refused_by_broker(&self, reason: &str) {
        let cure = match self.security.sasl {
            Some(Sasl::OauthBearer) => "check token_file, which udpd reads again by itself",
            Some(_) => "check sasl, username and password_file, and then: udpd reload",
            None => "check whether the brokers want sasl",
        };
        self.locked_out(&format!("the brokers do not let udpd in: {reason}; {cure}"));
    }

    /// A broker does not take the certificate that udpd has shown, or wants one.
    fn certificate_refused(&self, reason: &str) {
        // Each attempt comes here; the file is read only for the one that is logged.
        if lock(&self.log_lines).is_locked_out() {
            return self.away.store(true, Ordering::Relaxed);
        }
        let mut cure = "the brokers may want one: tls_certificate_file, tls_key_file".to_owned();
        if let Some(path) = &self.security.certificate_file {
            cure = format!("check {}, and then: udpd reload", path.display());
            #[cfg(feature = "kafka-tls")]
            if let Some(until) = certificate_diagnosis::valid_until(path) {
                cure = format!("{until}; check it, and then: udpd reload");
            }
        }
        self.locked_out(&format!("the brokers refuse the certificate of udpd: {reason}; {cure}"));
    }

    /// TLS with a broker fails.
    fn not_trusted(&self, reason: &str) {
        #[cfg(feature = "kafka-tls")]
        if let Some(broker) =
            certificate_diagnosis::broker_of(reason).filter(|_| reason.contains("certificate verify failed"))
        {
            self.away.store(true, Ordering::Relaxed);
            if lock(&self.log_lines).note_locked_out() {
                let (broker, ca_file) = (broker.to_owned(), self.security.ca_file.clone());
                let question = TrustQuestion { broker, ca_file, reason: reason.to_owned() };
                *lock(&self.question) = Some(question);
            }
            return;
        }
        self.locked_out(&format!("no TLS connection to a broker: {reason}; check brokers, tls and tls_ca_file"));
    }

    fn locked_out(&self, cause: &str) {
        self.away.store(true, Ordering::Relaxed);
        self.write(|log_lines| log_lines.locked_out(cause));
    }

    fn write(&self, lines: impl FnOnce(&mut KafkaLog) -> Lines) {
        let lines = lines(&mut lock(&self.log_lines));
        for (level, text) in lines {
            log::log!(level, "{text}");
        }
    }
}

impl ClientContext for Context {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        self.callbacks.add_one();
        let path = self.security.token_file.as_deref().ok_or("there is no token_file")?;
        let token = tokens::read_token(path)?;
        self.hidden.add(&token.text);
        Ok(OAuthToken { token: token.text, principal_name: token.principal, lifetime_ms: token.expires_ms })
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.callbacks.add_one();
        let level = match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error
            | RDKafkaLogLevel::Warning => Level::Warn,
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => Level::Info,
            RDKafkaLogLevel::Debug => Level::Debug,
        };
        self.write(|log_lines| log_lines.library(level, facility, &self.hidden.clean(line), clock::now()));
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.callbacks.add_one();
        let reason = &*self.hidden.clean(reason);
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::AllBrokersDown) => {
                self.away.store(true, Ordering::Relaxed);
            }
            Some(RDKafkaErrorCode::Fatal) => {
                if !self.fatal.swap(true, Ordering::Relaxed) {
                    self.write(|log_lines| log_lines.fatal(reason, self.has_spill, clock::now()));
                }
            }
            Some(RDKafkaErrorCode::Authentication) => self.refused_by_broker(reason),
            Some(RDKafkaErrorCode::SSL) => self.not_trusted(reason),
            // An alert from the other end of TLS, which may come after the handshake.
            Some(RDKafkaErrorCode::BrokerTransportFailure) if reason.contains("SSL") && reason.contains(" alert ") => {
                self.certificate_refused(reason);
            }
            // The library's log has a line of its own for these.
            Some(
                RDKafkaErrorCode::BrokerTransportFailure
                | RDKafkaErrorCode::Resolve
                | RDKafkaErrorCode::OperationTimedOut,
            ) => {
                self.write(|log_lines| {
                    log_lines.trouble(reason);
                    Lines::new()
                });
            }
            _ => self.write(|log_lines| log_lines.error(reason, clock::now())),
        }
    }

    fn stats_raw(&self, statistics: &[u8]) {
        self.callbacks.add_one();
        log::debug!("statistics of librdkafka: {}", String::from_utf8_lossy(statistics));
    }
}

impl ProducerContext for Context {
    /// The index of the listener, and a ticket where there is a spill.
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, carried: usize) {
        self.callbacks.add_one();
        let (listener, ticket) = (carried & ((1 << TICKET_SHIFT) - 1), carried >> TICKET_SHIFT);
        match result {
            Ok(message) => {
                if ticket > 0 {
                    self.note(ticket, MessageOutcome::Delivered, message.partition());
                } else {
                    self.reports[listener].delivered.add_one();
                }
                if self.away.load(Ordering::Relaxed) {
                    self.away.store(false, Ordering::Relaxed);
                    self.write(KafkaLog::back);
                }
            }
            Err((error, message)) => {
                let purged = [RDKafkaErrorCode::PurgeQueue, RDKafkaErrorCode::PurgeInflight];
                // The sink logs in one line what it takes back itself.
                let is_purged = error.rdkafka_error_code().is_some_and(|code| purged.contains(&code));
                let outcome = MessageOutcome::of(error.rdkafka_error_code(), message.timestamp().to_millis());
                match (ticket, outcome) {
                    (0, outcome) => self.count(listener, outcome, message, error, is_purged),
                    (ticket, outcome) => {
                        self.note(ticket, outcome, message.partition());
                        if outcome == MessageOutcome::Again && !is_purged {
                            self.waits(error);
                        }
                    }
                }
            }
        }
    }
}

/// How many bytes a message takes of a batch at least.
pub(super) fn size_at_least(message: &impl Message) -> usize {
    message.payload().map_or(0, <[u8]>::len) + message.key().map_or(0, <[u8]>::len)
}

impl Context {
    fn note(&self, ticket: usize, outcome: MessageOutcome, partition: i32) {
        lock(&self.outcomes).push((ticket, outcome, partition));
    }

    /// Counts a message without a ticket that was not delivered, or keeps it to be sent again.
    fn count(
        &self,
        listener: usize,
        outcome: MessageOutcome,
        message: &BorrowedMessage<'_>,
        error: &KafkaError,
        is_purged: bool,
    ) {
        let is_split =
            outcome == MessageOutcome::Refused(MessageRefusal::TooLarge) && size_at_least(message) < self.batch_bytes;
        if is_split || outcome == MessageOutcome::Bystander {
            let returned = Returned { listener, message: message.detach(), is_split };
            return lock(&self.returned).push(returned);
        }
        let reports = &self.reports[listener];
        match outcome {
            MessageOutcome::Refused(MessageRefusal::TooLarge) => reports.too_large.add_one(),
            MessageOutcome::Refused(MessageRefusal::Policy) => reports.against_policy.add_one(),
            _ => reports.failed.add_one(),
        }
        if !is_purged {
            self.refused(&error.to_string());
        }
    }
}
