//! What the library calls back, always from within a poll and so always on the consumer's thread: delivery reports,
//! errors and log lines. Reports are counted here, by listener, and the sink fetches the counts after the poll.
//!
//! The binding asks for a context that threads could share. Only one thread ever uses it, so a count is a plain load
//! and store in an atomic, and the lock around the voice is never contended.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use log::Level;
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::ProducerContext;

use super::settings::KafkaSettings;
use super::voice::{Lines, Voice};

/// A count with one writer, who is its only reader too.
#[derive(Debug, Default)]
struct Count(AtomicU64);

impl Count {
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
    delivered: Count,
    failed: Count,
}

/// The receiver of everything that the library has to say.
#[derive(Debug)]
pub(super) struct Context {
    reports: Box<[Reports]>,
    heard: Count,
    /// The last broker was lost, and nothing has been acknowledged since.
    away: AtomicBool,
    fatal: AtomicBool,
    voice: Mutex<Voice>,
}

impl Context {
    /// A context for a client of this sink.
    pub(super) fn new(name: &str, settings: &KafkaSettings, listeners: usize) -> Self {
        Self {
            reports: (0..listeners).map(|_| Reports::default()).collect(),
            heard: Count::default(),
            away: AtomicBool::new(false),
            fatal: AtomicBool::new(false),
            voice: Mutex::new(Voice::new(name, &settings.brokers, &settings.topic)),
        }
    }

    /// How often the library has called back; while it grows there may be more to hear.
    pub(super) fn heard(&self) -> u64 {
        self.heard.get()
    }

    /// The reports about a listener's datagrams since the last call: delivered and failed.
    pub(super) fn take_reports(&self, listener: usize) -> (u64, u64) {
        let reports = &self.reports[listener];
        (reports.delivered.take(), reports.failed.take())
    }

    /// Whether the client can never deliver anything again.
    pub(super) fn is_fatal(&self) -> bool {
        self.fatal.load(Ordering::Relaxed)
    }

    /// Says, within the allowance, that a datagram could not even be handed over.
    pub(super) fn refused(&self, reason: &KafkaError) {
        self.speak(|voice| voice.failed(&reason.to_string(), Instant::now()));
    }

    /// Says what was withheld from the log, when it is time; and, where datagrams have waited in vain, that nobody
    /// answers. A connection that was closed because nothing was sent for a while is no news.
    pub(super) fn review(&self, in_vain: bool, now: Instant) {
        if in_vain && self.away.load(Ordering::Relaxed) {
            self.speak(Voice::gone);
        }
        self.speak(|voice| voice.remind(now));
    }

    fn speak(&self, ask: impl FnOnce(&mut Voice) -> Lines) {
        let lines = ask(&mut self.voice.lock().unwrap_or_else(PoisonError::into_inner));
        for (level, text) in lines {
            log::log!(level, "{text}");
        }
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.heard.add_one();
        let level = match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error
            | RDKafkaLogLevel::Warning => Level::Warn,
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => Level::Info,
            RDKafkaLogLevel::Debug => Level::Debug,
        };
        self.speak(|voice| voice.library(level, facility, line, Instant::now()));
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.heard.add_one();
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::AllBrokersDown) => {
                self.away.store(true, Ordering::Relaxed);
            }
            Some(RDKafkaErrorCode::Fatal) => {
                if !self.fatal.swap(true, Ordering::Relaxed) {
                    self.speak(|voice| voice.fatal(reason));
                }
            }
            // The library's log has a line of its own for these.
            Some(
                RDKafkaErrorCode::BrokerTransportFailure
                | RDKafkaErrorCode::Resolve
                | RDKafkaErrorCode::OperationTimedOut,
            ) => {
                self.speak(|voice| {
                    voice.trouble(reason);
                    Lines::new()
                });
            }
            _ => self.speak(|voice| voice.error(reason, Instant::now())),
        }
    }

    fn stats_raw(&self, statistics: &[u8]) {
        self.heard.add_one();
        log::debug!("statistics of librdkafka: {}", String::from_utf8_lossy(statistics));
    }
}

impl ProducerContext for Context {
    /// The index of the listener, carried where the library would carry a pointer.
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, listener: usize) {
        self.heard.add_one();
        let reports = &self.reports[listener];
        match result {
            Ok(_) => {
                reports.delivered.add_one();
                if self.away.load(Ordering::Relaxed) {
                    self.away.store(false, Ordering::Relaxed);
                    self.speak(Voice::back);
                }
            }
            Err((error, _)) => {
                reports.failed.add_one();
                let purged = [RDKafkaErrorCode::PurgeQueue, RDKafkaErrorCode::PurgeInflight];
                // What the sink itself takes back at the end it says in one line.
                if !error.rdkafka_error_code().is_some_and(|code| purged.contains(&code)) {
                    self.refused(error);
                }
            }
        }
    }
}
