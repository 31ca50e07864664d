//! What is written of a sink of type `kafka`. A build without Kafka has it too, to say what it lacks.

use std::fmt;

use super::security::Security;
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

    /// A property that is a number.
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
