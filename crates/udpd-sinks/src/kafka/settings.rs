//! The keys of a sink of type `kafka`, their checks, and how they become an open sink. A build without Kafka has them
//! too, to say what it lacks.

use std::fmt;
use std::path::{Path, PathBuf};

use toml::de::DeValue;

#[cfg(feature = "kafka")]
use super::client_properties;
use super::security::Security;
#[cfg(feature = "kafka")]
use super::sink::KafkaSink;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::role::ThreadRole;
#[cfg(feature = "kafka")]
use udpd_base::os::threads;
use udpd_base::settings::kinds::{Flat, OneOf, QuotedText, SubTable};
use udpd_base::settings::{Field, Findings, Located, TomlTable, ValueKind, WrittenKeys, settings};
use udpd_base::sink::settings::{
    AnySettings, Differs, Needs, OpenedSink, Opening, SinkSettings, SinkTarget, SpillPlace,
};
use udpd_base::sink::settings::{Scheme, Uri, WrittenSink, wrong};
use udpd_base::text::advice::ValueAdvice;
use udpd_spill::spilling::Spill;

/// The most bytes of messages that wait in the library for each consumer, unless `properties` say otherwise.
pub(super) const QUEUE_KIBIBYTES: usize = 64 * 1024;

/// The most messages that wait there for each consumer, unless `properties` say otherwise.
pub(super) const QUEUE_MESSAGES: usize = 100_000;

/// What is written of a sink of type `kafka`.
#[derive(Clone, PartialEq)]
pub struct KafkaSettings {
    /// `host:port`, or several with commas between them.
    pub brokers: String,
    pub topic: String,
    /// Whether the address of its sender is the key of a message, which keeps each sender's datagrams in order.
    pub key_by_source: bool,
    /// How many replicas have a datagram before it counts as delivered: `all`, or a number.
    pub acks: String,
    /// The library's name for how batches are compressed.
    pub compression: &'static str,
    pub security: Security,
    pub spill: Spill,
    /// Handed to the library as they are.
    pub properties: Vec<(String, String)>,
}

impl KafkaSettings {
    /// Settings of which only brokers and topic are written.
    pub fn new(brokers: impl Into<String>, topic: impl Into<String>) -> Self {
        let (brokers, topic, acks) = (brokers.into(), topic.into(), "all".to_owned());
        let (security, spill, properties) = (Security::default(), Spill::default(), Vec::new());
        Self { brokers, topic, key_by_source: true, acks, compression: "none", security, spill, properties }
    }

    /// The most bytes and messages that wait in the library for each consumer; 0 messages is no limit of their own.
    pub(super) fn queue(&self) -> (usize, usize) {
        let kibibytes: usize = self.number("queue.buffering.max.kbytes").unwrap_or(QUEUE_KIBIBYTES);
        let messages = self.number("queue.buffering.max.messages").unwrap_or(QUEUE_MESSAGES);
        (kibibytes.saturating_mul(1024), messages)
    }

    pub(super) fn number(&self, name: &str) -> Option<usize> {
        let value = self.properties.iter().find(|(key, _)| key == name).map(|(_, value)| value.trim().parse());
        value.and_then(Result::ok)
    }
}

impl fmt::Debug for KafkaSettings {
    /// Shows of the properties only the names: a value may be a password.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let properties: Vec<&str> = self.properties.iter().map(|(key, _)| key.as_str()).collect();
        formatter
            .debug_struct("KafkaSettings")
            .field("brokers", &self.brokers)
            .field("topic", &self.topic)
            .field("key_by_source", &self.key_by_source)
            .field("acks", &self.acks)
            .field("compression", &self.compression)
            .field("security", &self.security)
            .field("spill", &self.spill)
            .field("properties", &properties)
            .finish()
    }
}

settings! {
    for KafkaSettings {
        /// Where to find the cluster: host:port, or several with commas between them.
        brokers: String = required like "10.0.0.5:9092", QuotedText(check_brokers);
        /// What to write to; {listener} and {sink} are filled in.
        topic: String = required like "syslog", QuotedText(|text| not_empty(text, "topic = \"syslog\""));
        /// Whether records have the address of the source as their key, which keeps each source's datagrams in order.
        key_by_source as key: bool = "source", OneOf(&[("source", true), ("none", false)]);
        /// Which brokers must have a record before it counts as delivered: all replicas, the leader (1), or none (0).
        acks: String = "all", QuotedText(check_acks);
        /// How the library compresses what it sends.
        compression: &'static str = "none", CODECS;
        /// How udpd and the brokers know each other.
        security: Security = {}, Flat;
        /// What its destination does not take waits on a disk, see docs/spill.md.
        spill: Spill = {}, SubTable;
        /// Handed to librdkafka as they are.
        properties: Vec<(String, String)> = {}, Properties;
    }
}

const CODECS: OneOf<&'static str> =
    OneOf(&[("none", "none"), ("gzip", "gzip"), ("snappy", "snappy"), ("lz4", "lz4"), ("zstd", "zstd")]);

fn not_empty(text: &str, right: &str) -> Result<String, ValueAdvice> {
    match text.trim() {
        "" => Err(ValueAdvice::new("is empty", format!("write {right}, for example"))),
        _ => Ok(text.to_owned()),
    }
}

/// Brokers are known by address alone. Who writes a user before it as in a URL has put a password where it would be
/// shown with the address, so nothing of it is repeated here.
fn check_brokers(text: &str) -> Result<String, ValueAdvice> {
    match text.contains('@') {
        true => Err(ValueAdvice::new(
            "names a user before the @, and would show a password (what is written is not shown here)",
            "write host:port alone, and beside it sasl, username and password_file, see docs/kafka.md",
        )),
        false => not_empty(text, "brokers = \"10.0.0.5:9092\""),
    }
}

fn check_acks(text: &str) -> Result<String, ValueAdvice> {
    match text {
        "all" | "-1" | "1" | "0" => Ok(text.to_owned()),
        _ => {
            let cure = "write \"all\", \"1\" (the leader) or \"0\" (none, so that a loss is not seen)";
            Err(ValueAdvice::new(format!("{text:?} is unknown"), cure))
        }
    }
}

/// The properties in the order of their names, each as the library takes it: as text.
struct Properties;

impl ValueKind<Vec<(String, String)>> for Properties {
    fn read(&self, field: &Field<'_>, findings: &mut Findings<'_>) -> Option<Vec<(String, String)>> {
        let table = TomlTable::open(field, findings, "a table")?;
        let text = |(name, field): (Located<String>, Field<'_>)| {
            let value = match field.value {
                DeValue::String(text) => text.to_string(),
                DeValue::Integer(number) => number.as_str().to_owned(),
                DeValue::Boolean(truth) => truth.to_string(),
                _ => return field.wrong(findings, "a string, a number or a boolean"),
            };
            Some((name.value, value))
        };
        Some(table.fields().into_iter().filter_map(text).collect())
    }
}

impl WrittenSink for KafkaSettings {
    const NAME: &'static str = "kafka";
    const SCHEMES: &'static [Scheme] = &[Scheme { name: "kafka", form: "kafka://HOST:PORT/TOPIC", read: one_topic }];

    fn available() -> Result<(), ValueAdvice> {
        match cfg!(feature = "kafka") {
            true => Ok(()),
            false => Err(ValueAdvice::new(
                "this udpd was built without Kafka",
                "build it with: cargo build --release --features kafka",
            )),
        }
    }

    fn check(&self, written: &WrittenKeys<'_>, findings: &mut Findings<'_>) {
        self.spill.check(written, findings);
        if let Err(error) = self.verify() {
            let key = error.key().unwrap_or_default();
            let place = written.place(key).or_else(|| written.inner("properties", key));
            let place = place.unwrap_or_else(|| written.place.inner("properties"));
            findings.say(&place, error.what(), "docs/kafka.md says more");
        }
        for (key, doubt) in self.security.doubts() {
            let place = written.place(key).unwrap_or_else(|| written.place.inner(key));
            findings.warn(&place, doubt);
        }
    }

    fn finished(self) -> AnySettings {
        std::sync::Arc::new(Self { security: self.security.with_prints(), ..self })
    }
}

fn one_topic(uri: &Uri<'_>) -> Result<AnySettings, Failure> {
    KafkaSettings::available().map_err(wrong)?;
    if uri.rest.contains('@') {
        let cure = "name a file with --config, and there brokers, sasl, username and password_file, see docs/kafka.md";
        let what = "a kafka: URI with an @ names a user, and would show a password (it is not shown here)";
        return Err(wrong(ValueAdvice::new(what, cure)));
    }
    let named = uri.rest.strip_prefix("//").and_then(|rest| rest.split_once('/'));
    let Some((brokers, topic)) = named.filter(|(brokers, topic)| !brokers.is_empty() && !topic.is_empty()) else {
        let what = format!("{:?} does not name a broker and a topic", uri.whole);
        return Err(wrong(ValueAdvice::new(what, "write kafka://10.0.0.5:9092/syslog, for example")));
    };
    let settings = KafkaSettings::new(brokers, topic);
    let refused = |error: KafkaError| wrong(ValueAdvice::new(error.to_string(), "docs/kafka.md says more"));
    settings.verify().map(|()| settings.finished()).map_err(refused)
}

impl KafkaSettings {
    /// Whether the library takes these settings, as far as it can tell without a broker.
    fn verify(&self) -> Result<(), KafkaError> {
        self.security.check()?;
        #[cfg(feature = "kafka")]
        client_properties::check(self)?;
        Ok(())
    }
}

impl SinkSettings for KafkaSettings {
    fn target(&self) -> SinkTarget<'_> {
        SinkTarget::Elsewhere(format!("the topic {} of {}", self.topic, self.brokers))
    }

    fn records_arrival(&self) -> bool {
        true
    }

    fn memory_bytes(&self, consumers: usize, _: usize) -> usize {
        consumers * self.queue().0 + self.spill.memory_bytes(consumers)
    }

    fn files_open(&self, consumers: usize, _: usize) -> usize {
        self.spill.files_open(consumers)
    }

    fn spill(&self) -> Option<SpillPlace<'_>> {
        self.spill.place()
    }

    fn datagrams_max(&self, consumers: usize) -> Option<usize> {
        Some(consumers * self.queue().1).filter(|messages| *messages > 0)
    }

    fn needs(&self) -> Needs {
        // Certificates and keys, where they are given as files.
        let files = self.properties.iter().map(|(_, value)| PathBuf::from(value)).filter(|value| value.is_absolute());
        let reads = files.chain(self.security.directories()).collect();
        Needs { reads, ..Needs::only([&[ThreadRole::BrokerClient][..], self.spill.role().as_slice()].concat()) }
    }

    #[cfg(feature = "kafka")]
    fn open(&self, opening: Opening<'_>) -> Result<OpenedSink, Failure> {
        let (name, settings, listeners) = (opening.sink.to_owned(), self.clone(), opening.listeners.to_vec());
        let registry = opening.registry.clone();
        let fail = |error: KafkaError| {
            let message = format!("[sink.{}] {error}; docs/kafka.md says more", opening.sink);
            Failure::new(ExitCode::Configuration, message)
        };
        // The library starts threads of its own, which have what the thread has that starts them.
        let start = move || KafkaSink::open(&name, &settings, &listeners, registry);
        let starting = opening.registry.spawn("kafka-start", ThreadRole::BrokerClient, start);
        let starting = starting.map_err(|error| threads::start_failure("kafka-start", &error))?;
        let sink = starting.join().map_err(|_| Failure::new(ExitCode::Failure, "librdkafka cannot be started"))?;
        let sink = sink.map_err(fail)?;
        self.spill.around(sink, &opening)
    }

    #[cfg(not(feature = "kafka"))]
    fn open(&self, opening: Opening<'_>) -> Result<OpenedSink, Failure> {
        let fail = |advice| Failure::new(ExitCode::Configuration, format!("[sink.{}] {advice}", opening.sink));
        Err(Self::available().map_err(fail).expect_err("a build without Kafka"))
    }

    fn goes_on(&self, before: &dyn SinkSettings, differs: Differs) -> bool {
        before.of_type() == Some(self) && !differs.listeners && !(differs.lanes && self.spill.is_on())
    }
}

/// Why a Kafka sink cannot be opened. The message names key and value; whose they are the caller says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KafkaError {
    Setting {
        /// The key, as the operator writes it.
        key: String,
        value: String,
        /// Why that is wrong and what would be right.
        reason: String,
    },
    /// Settings do not go together, or the library could not start.
    KafkaClient(String),
}

impl KafkaError {
    pub(super) fn of_key(key: &str, value: impl AsRef<Path>, reason: impl Into<String>) -> Self {
        let value = value.as_ref().to_string_lossy().into_owned();
        Self::Setting { key: key.to_owned(), value, reason: reason.into() }
    }

    /// The key of the sink, or the name of the property, that it is about, if it is about one.
    pub fn key(&self) -> Option<&str> {
        let Self::Setting { key, .. } = self else { return None };
        Some(key.strip_prefix("properties.\"").and_then(|name| name.strip_suffix('"')).unwrap_or(key))
    }

    /// The message without the key.
    pub fn what(&self) -> String {
        match self {
            Self::Setting { value, reason, .. } => format!("{value:?}: {reason}"),
            Self::KafkaClient(_) => self.to_string(),
        }
    }
}

impl fmt::Display for KafkaError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting { key, value, reason } => write!(formatter, "{key} = {value:?}: {reason}"),
            Self::KafkaClient(reason) => {
                write!(formatter, "librdkafka refuses these properties together: {reason}; change what it names")
            }
        }
    }
}

impl std::error::Error for KafkaError {}
