//! One datagram as a message: its key, its headers and its time, written into buffers that are on the stack.
//!
//! Headers are text, so that any client reads them: `time`, the arrival in nanoseconds since the epoch, which the
//! message's own timestamp keeps in milliseconds only; `source`, the sender as `address:port`; `listener`, by name; and
//! for a datagram that was cut `truncated`, the length that it had. The library copies key, payload and headers into
//! memory of its own, one block for the message and some for its headers; on our side only its binding allocates, once
//! per message, for the topic's name.

use std::fmt::{self, Write};
use std::time::Duration;

use mmsg::Datagram;
use rdkafka::message::{Header, OwnedHeaders};

use udpd_base::capture::headers;

/// Longer than any address with its port, and than any number.
const TEXT_BYTES: usize = 64;

/// The most that a message takes beside its payload and the name of its listener: the key, four headers with three
/// texts, their names and lengths, and the library's own 36 bytes.
pub(super) const OVERHEAD_MAX: usize = 4 * TEXT_BYTES + 4 * (9 + 2 * 5) + 36;

/// A short text in a fixed place.
#[derive(Debug)]
pub(super) struct Text {
    bytes: [u8; TEXT_BYTES],
    length: usize,
}

impl Text {
    /// `value` as text.
    pub(super) fn of(value: impl fmt::Display) -> Self {
        let mut text = Self { bytes: [0; TEXT_BYTES], length: 0 };
        write!(text, "{value}").expect("an address or a number fits");
        text
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Write for Text {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.length..self.length + part.len()).ok_or(fmt::Error)?;
        room.copy_from_slice(part.as_bytes());
        self.length += part.len();
        Ok(())
    }
}

/// The key: the sender's address without its port, for all that a host sends is one stream.
pub(super) fn key(datagram: &Datagram<'_>) -> Text {
    Text::of(headers::source(datagram).ip())
}

/// The headers of a datagram that arrived at `arrival`, counted from the epoch, on the listener of that name.
pub(super) fn headers(datagram: &Datagram<'_>, listener: &str, arrival: Duration) -> OwnedHeaders {
    let length = datagram.is_truncated().then(|| Text::of(datagram.length()));
    let headers = OwnedHeaders::new_with_capacity(3 + usize::from(length.is_some()))
        .insert(Header { key: "time", value: Some(Text::of(arrival.as_nanos()).bytes()) })
        .insert(Header { key: "source", value: Some(Text::of(headers::source(datagram)).bytes()) })
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    #[test]
    fn the_longest_address_and_the_longest_number_fit() {
        let longest: SocketAddr =
            "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff%4294967295]:65535".parse().expect("an address");
        assert_eq!(Text::of(longest).bytes(), longest.to_string().as_bytes());
        assert_eq!(Text::of(u128::MAX).bytes(), u128::MAX.to_string().as_bytes());
    }

    #[test]
    fn a_timestamp_is_in_milliseconds_and_never_wraps() {
        assert_eq!(timestamp_ms(Duration::from_nanos(1_700_000_000_123_999_999)), 1_700_000_000_123);
        assert_eq!(timestamp_ms(Duration::MAX), i64::MAX);
    }
}
