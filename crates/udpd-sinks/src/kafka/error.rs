//! What is wrong with a sink of type `kafka`.

use std::fmt;

/// Why a Kafka sink cannot be opened. The message names key and value; whose they are the caller says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KafkaError {
    /// One setting is wrong.
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
