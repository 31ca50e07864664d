//! One datagram as a message: its key, its headers and its time, written into buffers that are on the stack; and what
//! an error of the library, or of a broker, means for it.
//!
//! Headers are text, so that any client reads them: `time`, the arrival in nanoseconds since the epoch, which the
//! message's own timestamp keeps in milliseconds only; `source`, the sender as `address:port`; `listener`, by name; and
//! for a datagram that was cut `truncated`, the length that it had. The library copies key, payload and headers into
//! memory of its own, one block for the message and some for its headers; on our side only its binding allocates, once
//! per message, for the topic's name.

use std::fmt;
use std::fmt::Write;
use std::time::{Duration, SystemTime};

use mmsg::Datagram;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::message::{Header, OwnedHeaders};

use udpd_base::capture::headers;
use udpd_base::ledger::SinkTally;
use udpd_base::seams::clock;

/// Longer than any address with its port, and than any number.
const TEXT_BYTES: usize = 64;

/// The most that a message takes beside its payload and the name of its listener: the key, four headers with three
/// texts, their names and lengths, and the library's own 36 bytes.
pub(super) const OVERHEAD_MAX: usize = 4 * TEXT_BYTES + 4 * (9 + 2 * 5) + 36;

/// A short text in a buffer of fixed size.
#[derive(Debug)]
pub(super) struct ShortText {
    bytes: [u8; TEXT_BYTES],
    length: usize,
}

impl ShortText {
    pub(super) fn of(value: impl fmt::Display) -> Self {
        let mut text = Self { bytes: [0; TEXT_BYTES], length: 0 };
        write!(text, "{value}").expect("an address or a number fits");
        text
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Write for ShortText {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.length..self.length + part.len()).ok_or(fmt::Error)?;
        room.copy_from_slice(part.as_bytes());
        self.length += part.len();
        Ok(())
    }
}

/// The key: the sender's address without its port, for all that a host sends is one stream.
pub(super) fn key(datagram: &Datagram<'_>) -> ShortText {
    ShortText::of(headers::source(datagram).ip())
}

/// The headers of a datagram that arrived at `arrival`, counted from the epoch, on the listener of that name.
pub(super) fn headers(datagram: &Datagram<'_>, listener: &str, arrival: Duration) -> OwnedHeaders {
    let length = datagram.is_truncated().then(|| ShortText::of(datagram.length()));
    let headers = OwnedHeaders::new_with_capacity(3 + usize::from(length.is_some()))
        .insert(Header { key: "time", value: Some(ShortText::of(arrival.as_nanos()).bytes()) })
        .insert(Header { key: "source", value: Some(ShortText::of(headers::source(datagram)).bytes()) })
        .insert(Header { key: "listener", value: Some(listener) });
    match length {
        Some(length) => headers.insert(Header { key: "truncated", value: Some(length.bytes()) }),
        None => headers,
    }
}

/// The timestamp of a message: milliseconds since the epoch.
pub(super) fn timestamp_ms(arrival: Duration) -> i64 {
    i64::try_from(arrival.as_millis()).unwrap_or(i64::MAX)
}

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
    clock::wall().duration_since(then).map_or(true, |age| age < FRESH)
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
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn the_longest_address_and_the_longest_number_fit() {
        let longest: SocketAddr =
            "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff%4294967295]:65535".parse().expect("an address");
        assert_eq!(ShortText::of(longest).bytes(), longest.to_string().as_bytes());
        assert_eq!(ShortText::of(u128::MAX).bytes(), u128::MAX.to_string().as_bytes());
    }

    #[test]
    fn a_timestamp_is_in_milliseconds_and_never_wraps() {
        assert_eq!(timestamp_ms(Duration::from_nanos(1_700_000_000_123_999_999)), 1_700_000_000_123);
        assert_eq!(timestamp_ms(Duration::MAX), i64::MAX);
    }

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
