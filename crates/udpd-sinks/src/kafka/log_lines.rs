//! The log lines about a Kafka sink, which stay few whatever happens.
//!
//! A client that has lost its broker retries several times a second and could log each time. The operator needs one
//! line when no broker answers, one when a broker answers again, and the counters of the ledger between them. The same
//! holds when brokers refuse udpd, or udpd trusts none: the cause is logged once. Lines of the library and reasons of
//! lost datagrams are limited to a few a minute each; the others are counted, and the count is logged.

use std::time::Instant;

use log::Level;

use udpd_base::logging::LogLimiter;

/// How many lines of one kind are logged within a minute.
const LINES_MAX: u32 = 5;

pub(super) type Lines = Vec<(Level, String)>;

/// Decides which lines are written.
#[derive(Debug)]
pub(super) struct KafkaLog {
    subject: String,
    brokers: String,
    topic: String,
    /// The log says that no broker answers.
    gone: bool,
    /// The log says that brokers and udpd do not accept each other.
    locked_out: bool,
    last_trouble: String,
    library: LogLimiter,
    failures: LogLimiter,
}

impl KafkaLog {
    /// The lines of the sink `name`.
    pub(super) fn new(name: &str, brokers: &str, topic: &str) -> Self {
        Self {
            subject: format!("sink {name}"),
            brokers: brokers.to_owned(),
            topic: topic.to_owned(),
            gone: false,
            locked_out: false,
            last_trouble: String::new(),
            library: LogLimiter::of(LINES_MAX),
            failures: LogLimiter::of(LINES_MAX),
        }
    }

    /// No broker is left, and something waits for one.
    pub(super) fn gone(&mut self) -> Lines {
        // If udpd is locked out, the log has the cause already.
        if std::mem::replace(&mut self.gone, true) || self.locked_out {
            return Vec::new();
        }
        let why = if self.last_trouble.is_empty() { "" } else { ": " };
        let text = format!(
            "{}: no broker of {} answers{why}{}; datagrams wait in the sink's queue, then when_full decides",
            self.subject, self.brokers, self.last_trouble
        );
        vec![(Level::Warn, text)]
    }

    pub(super) fn back(&mut self) -> Lines {
        let (gone, locked_out) = (std::mem::take(&mut self.gone), std::mem::take(&mut self.locked_out));
        if !gone && !locked_out {
            return Vec::new();
        }
        vec![(Level::Info, format!("{}: a broker of {} takes datagrams again", self.subject, self.brokers))]
    }

    /// Brokers and udpd do not accept each other.
    pub(super) fn locked_out(&mut self, cause: &str) -> Lines {
        if !self.note_locked_out() {
            return Vec::new();
        }
        let text = format!(
            "{}: {cause}; udpd tries again by itself; until then datagrams wait in the sink's queue, then when_full \
             decides",
            self.subject
        );
        vec![(Level::Warn, text)]
    }

    /// Whether the log says so already.
    pub(super) fn is_locked_out(&self) -> bool {
        self.locked_out
    }

    /// The same, logged by another line; returns whether that is new.
    pub(super) fn note_locked_out(&mut self) -> bool {
        !std::mem::replace(&mut self.locked_out, true)
    }

    /// The topic takes nothing now, and what comes for it is in a spill.
    pub(super) fn waits(&mut self, reason: &str, cure: &str) -> Lines {
        if !self.note_locked_out() {
            return Vec::new();
        }
        let text = format!(
            "{}: topic {} takes nothing now: {reason}; what comes waits in the spill, and udpd tries again by itself; \
             {cure}",
            self.subject, self.topic
        );
        vec![(Level::Warn, text)]
    }

    /// The client can go on no longer and is replaced by a new one.
    pub(super) fn fatal(&mut self, reason: &str, has_spill: bool, now: Instant) -> Lines {
        let what = if has_spill { "is sent again" } else { "counts as failed" };
        let text = || {
            format!(
                "the producer of topic {} has failed for good; udpd replaces it, and what it had not delivered {what}: \
                 {reason}",
                self.topic
            )
        };
        self.limited(&self.library, Level::Error, text, now)
    }

    /// An error of a connection, for which the library has a log line of its own.
    pub(super) fn trouble(&mut self, reason: &str) {
        reason.clone_into(&mut self.last_trouble);
    }

    pub(super) fn error(&mut self, reason: &str, now: Instant) -> Lines {
        // The binding hands every error over twice.
        if reason == self.last_trouble {
            return Vec::new();
        }
        self.trouble(reason);
        self.limited(&self.library, Level::Warn, || reason.to_owned(), now)
    }

    /// A datagram will not be in the topic, or this is unknown.
    pub(super) fn failed(&self, reason: &str, now: Instant) -> Lines {
        let text = || format!("could not deliver a datagram to topic {}: {reason}", self.topic);
        self.limited(&self.failures, Level::Warn, text, now)
    }

    /// A line of the library's own log.
    pub(super) fn library(&self, level: Level, facility: &str, line: &str, now: Instant) -> Lines {
        let level = match facility {
            // One connection of several, or one that is tried again and again.
            "FAIL" if self.gone || self.locked_out => Level::Debug,
            "FAIL" => Level::Info,
            _ => level,
        };
        let text = || format!("librdkafka: {facility}: {line}");
        if level < Level::Debug {
            return self.limited(&self.library, level, text, now);
        }
        let mut lines = self.remind(now);
        lines.push((level, format!("{}: {}", self.subject, text())));
        lines
    }

    /// The lines that are due, and this one unless there were too many of its kind within a minute. Only a line that is
    /// logged is formatted: each of a million datagrams may fail.
    fn limited(&self, limiter: &LogLimiter, level: Level, text: impl Fn() -> String, now: Instant) -> Lines {
        let mut lines = self.remind(now);
        lines.extend(limiter.pass(now).map(|_| (level, format!("{}: {}", self.subject, text()))));
        lines
    }

    /// Tells how many lines were left out in a minute that is over.
    pub(super) fn remind(&self, now: Instant) -> Lines {
        let told = |limiter: &LogLimiter, text: &dyn Fn(u64) -> String| {
            let count = Some(limiter.take_suppressed(now)).filter(|count| *count > 0)?;
            Some((Level::Warn, format!("{}: {}", self.subject, text(count))))
        };
        let library = told(&self.library, &|count| format!("librdkafka logged {count} more lines"));
        let topic = &self.topic;
        let failures =
            told(&self.failures, &|count| format!("could not deliver {count} more datagrams to topic {topic}"));
        library.into_iter().chain(failures).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use udpd_base::logging::INTERVAL;

    fn log_lines() -> KafkaLog {
        KafkaLog::new("stream", "a:9092", "syslog")
    }

    #[test]
    fn a_broker_that_is_away_is_one_warning_and_one_line_when_it_is_back() {
        let mut log_lines = log_lines();
        log_lines.trouble("connection refused");
        let lines = log_lines.gone();
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].0, Level::Warn);
        assert!(lines[0].1.starts_with("sink stream: no broker of a:9092 answers: connection refused; "), "{lines:?}");
        for _ in 0..1_000 {
            assert_eq!(log_lines.gone(), []);
            let lines = log_lines.library(Level::Error, "FAIL", "again", Instant::now());
            assert!(lines.iter().all(|(level, _)| *level == Level::Debug));
        }
        let lines = log_lines.back();
        assert_eq!(lines, [(Level::Info, "sink stream: a broker of a:9092 takes datagrams again".to_owned())]);
        assert_eq!(log_lines.back(), []);
        assert_eq!(log_lines.gone().len(), 1, "the next time it is said again");
    }

    #[test]
    fn a_refusal_by_brokers_is_logged_once_with_the_cause_until_datagrams_are_taken_again() {
        let mut log_lines = log_lines();
        for _ in 0..1_000 {
            let said = log_lines.locked_out("wrong password");
            assert!(said.iter().all(|(level, text)| *level == Level::Warn && text.contains("stream: wrong password;")));
            assert_eq!(log_lines.gone(), [], "the cause has been named");
            let lines = log_lines.library(Level::Error, "FAIL", "again", Instant::now());
            assert!(lines.iter().all(|(level, _)| *level == Level::Debug));
        }
        assert_eq!(log_lines.back().len(), 1);
        assert_eq!(log_lines.back(), []);
        assert_eq!(log_lines.locked_out("wrong password").len(), 1, "the next time it is said again");
        assert_eq!(log_lines.locked_out("wrong password"), []);
    }

    #[test]
    fn a_topic_that_takes_nothing_is_one_warning_until_it_takes_something_again() {
        let mut log_lines = log_lines();
        for _ in 0..1_000 {
            let said = log_lines.waits("unknown topic", "make the topic");
            assert!(
                said.iter().all(|(level, text)| *level == Level::Warn && text.contains("topic syslog takes nothing"))
            );
        }
        assert_eq!(log_lines.back().len(), 1);
        assert_eq!(log_lines.waits("unknown topic", "make the topic").len(), 1, "the next time it is said again");
        assert_eq!(log_lines.waits("unknown topic", "make the topic"), []);
    }

    #[test]
    fn a_flood_of_failures_is_a_few_lines_and_then_their_count() {
        let log_lines = log_lines();
        let start = Instant::now();
        let said: usize = (0..100_000).map(|_| log_lines.failed("timed out", start).len()).sum();
        assert_eq!(said, LINES_MAX as usize);
        assert_eq!(log_lines.remind(start), [], "not before the minute is over");
        let lines = log_lines.remind(start + INTERVAL);
        assert_eq!(lines.len(), 1);
        assert!(lines[0].1.contains("99995 more datagrams"), "{lines:?}");
        assert_eq!(log_lines.remind(start + INTERVAL * 2), [], "a count is said once");
        assert_eq!(log_lines.failed("timed out", start + INTERVAL * 3).len(), 1, "a new minute");
    }

    #[test]
    fn a_library_that_says_too_much_does_not_hide_why_datagrams_are_lost() {
        let log_lines = log_lines();
        let now = Instant::now();
        let said: usize = (0..100).map(|_| log_lines.library(Level::Warn, "METADATA", "odd", now).len()).sum();
        assert_eq!(said, LINES_MAX as usize);
        assert_eq!(log_lines.failed("timed out", now).len(), 1);
        let lines = log_lines.remind(now + INTERVAL);
        assert_eq!(lines, [(Level::Warn, "sink stream: librdkafka logged 95 more lines".to_owned())]);
    }

    #[test]
    fn an_error_that_the_binding_repeats_is_said_once() {
        let mut log_lines = log_lines();
        assert_eq!(log_lines.error("bad credentials", Instant::now()).len(), 1);
        assert_eq!(log_lines.error("bad credentials", Instant::now()), []);
    }

    #[test]
    fn debug_lines_of_the_library_are_not_limited() {
        let log_lines = log_lines();
        let now = Instant::now();
        assert!((0..100).all(|_| log_lines.library(Level::Debug, "MSG", "sent", now).len() == 1));
        assert_eq!(log_lines.library(Level::Warn, "REQTMOUT", "timed out", now).len(), 1);
    }
}
