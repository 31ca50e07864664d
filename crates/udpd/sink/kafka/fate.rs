//! What became of a single message, where there is a spill: then each has a ticket, and otherwise none, and reports
//! are only counted.

use rdkafka::error::RDKafkaErrorCode;

/// What a message carries where the library would carry a pointer: the listener and, above this bit, its ticket.
pub(super) const TICKET_SHIFT: u32 = 16;

/// What is known of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Delivered,
    /// No broker will ever take it.
    Failed,
    /// No broker has taken it now.
    Again,
}

impl Fate {
    /// What an error means for a message.
    pub(super) fn of(code: Option<RDKafkaErrorCode>) -> Self {
        match code {
            Some(
                RDKafkaErrorCode::MessageSizeTooLarge
                | RDKafkaErrorCode::InvalidMessage
                | RDKafkaErrorCode::InvalidMessageSize
                | RDKafkaErrorCode::InvalidTopic,
            ) => Self::Failed,
            _ => Self::Again,
        }
    }
}
