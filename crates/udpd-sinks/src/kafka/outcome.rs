//! What an error of the library, or of a broker, means for a message.

use std::time::{Duration, SystemTime};

use rdkafka::error::RDKafkaErrorCode;

use udpd_base::ledger::SinkTally;

/// What a message carries where the library would carry a pointer: the listener and, above this bit, its ticket, where
/// there is a spill. Without one there is none.
pub(super) const TICKET_SHIFT: u32 = 16;

/// A message whose time is no older than this is refused because the clocks of the two hosts differ.
const FRESH: Duration = Duration::from_secs(60);

/// Why no broker ever takes a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageRefusal {
    TooLarge,
    Policy,
}

/// What is known of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageOutcome {
    Delivered,
    /// A broker refuses the batch in which it came, for good. Alone in it, it is the message that is refused.
    Refused(MessageRefusal),
    /// It came in the batch of one that is refused, and nothing is wrong with it.
    Bystander,
    /// No broker has taken it now.
    Again,
}

impl MessageOutcome {
    /// What an error means for a message with this timestamp.
    pub(super) fn of(code: Option<RDKafkaErrorCode>, timestamp_ms: Option<i64>) -> Self {
        match code {
            Some(RDKafkaErrorCode::MessageSizeTooLarge | RDKafkaErrorCode::InvalidMessageSize) => {
                Self::Refused(MessageRefusal::TooLarge)
            }
            Some(RDKafkaErrorCode::InvalidTimestamp) if timestamp_ms.is_some_and(is_fresh) => Self::Again,
            Some(
                RDKafkaErrorCode::InvalidMessage
                | RDKafkaErrorCode::InvalidRecord
                | RDKafkaErrorCode::InvalidTimestamp
                | RDKafkaErrorCode::PolicyViolation,
            ) => Self::Refused(MessageRefusal::Policy),
            Some(RDKafkaErrorCode::InvalidDifferentRecord) => Self::Bystander,
            _ => Self::Again,
        }
    }
}

/// Whether a time is of the last minute, or is still to come.
fn is_fresh(timestamp_ms: i64) -> bool {
    let then = SystemTime::UNIX_EPOCH + Duration::from_millis(timestamp_ms.try_into().unwrap_or(0));
    then.elapsed().is_ok_and(|age| age < FRESH) || then > SystemTime::now()
}

/// Moves datagrams of a listener from pending to those that no broker takes.
pub(super) fn refuse(tally: &mut SinkTally, refusal: MessageRefusal, datagrams: u64) {
    tally.pending -= datagrams;
    match refusal {
        MessageRefusal::TooLarge => tally.dropped.too_large += datagrams,
        MessageRefusal::Policy => tally.dropped.against_policy += datagrams,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_is_too_old_is_refused_and_one_of_now_waits_until_the_clocks_agree() {
        let ms =
            |time: SystemTime| i64::try_from(time.duration_since(SystemTime::UNIX_EPOCH).expect("after").as_millis());
        let now = SystemTime::now();
        let outcome =
            |time| MessageOutcome::of(Some(RDKafkaErrorCode::InvalidTimestamp), Some(ms(time).expect("a time")));
        assert_eq!(outcome(now), MessageOutcome::Again);
        assert_eq!(outcome(now + Duration::from_secs(7200)), MessageOutcome::Again);
        assert_eq!(outcome(now - Duration::from_secs(7200)), MessageOutcome::Refused(MessageRefusal::Policy));
    }

    #[test]
    fn a_topic_that_is_not_there_or_not_open_to_udpd_is_waited_for() {
        for code in [
            RDKafkaErrorCode::UnknownTopic,
            RDKafkaErrorCode::UnknownTopicOrPartition,
            RDKafkaErrorCode::UnknownPartition,
            RDKafkaErrorCode::TopicAuthorizationFailed,
            RDKafkaErrorCode::ClusterAuthorizationFailed,
            RDKafkaErrorCode::InvalidTopic,
            RDKafkaErrorCode::NotEnoughReplicas,
            RDKafkaErrorCode::MessageTimedOut,
            RDKafkaErrorCode::PurgeQueue,
            RDKafkaErrorCode::Fatal,
        ] {
            assert_eq!(MessageOutcome::of(Some(code), None), MessageOutcome::Again, "{code}");
        }
    }
}
