//! The format `jsonl`: one datagram, one JSON object, one line.
//!
//! `{"time":"2026-11-21T06:42:21.000000001Z","source":"192.0.2.7:40000","destination":"10.0.0.1:514",
//! "listener":"syslog","lane":0,"truncated":false,"payload":"..."}`. The time is UTC with nanoseconds. A payload that
//! is not UTF-8 stands in `payload_base64` instead; of one that was longer than `max_length`, `truncated` is true,
//! `length` says how long it was, and the payload is its beginning, which can end in the middle of a character and is
//! then in base64. Where the time is that of a batch, `"time_from":"batch"` stands at the end. Whatever some reader
//! takes for the end of a line, for a command to a terminal or for an order to show text backwards is escaped, so that
//! a line is the same line for everybody.

use std::fmt::{self, Write};
use std::str;

use super::prefix;
use super::{DatagramRecord, json};
use crate::text::base64;

/// The most bytes that one byte of the payload becomes.
pub const EXPANSION_MAX: usize = json::EXPANSION_MAX;

/// The most bytes of a line besides those of the payload: a listener's name of 64 bytes, two addresses, and the rest.
pub const FIXED_BYTES_MAX: usize = 512;

/// Appends the line of one datagram.
pub fn append(line: &mut Vec<u8>, record: &DatagramRecord<'_>) {
    line.extend_from_slice(b"{\"time\":\"");
    prefix::append_time(line, record.arrival);
    // Writing to a vector cannot fail.
    let _ = write!(
        JsonText(line),
        "\",\"source\":\"{}\",\"destination\":\"{}\",\"listener\":\"{}\",\"lane\":{}",
        record.source,
        record.destination,
        record.listener,
        record.lane
    );
    if record.length > record.payload.len() {
        let _ = write!(JsonText(line), ",\"truncated\":true,\"length\":{}", record.length);
    } else {
        line.extend_from_slice(b",\"truncated\":false");
    }
    match str::from_utf8(record.payload) {
        Ok(text) => {
            line.extend_from_slice(b",\"payload\":\"");
            json::append_text(line, text);
        }
        Err(_) => {
            line.extend_from_slice(b",\"payload_base64\":\"");
            base64::append(line, record.payload);
        }
    }
    line.extend_from_slice(if record.is_time_of_batch { b"\",\"time_from\":\"batch\"}\n" } else { b"\"}\n" });
}

/// Formats into bytes.
struct JsonText<'v>(&'v mut Vec<u8>);

impl Write for JsonText<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn record(payload: &[u8]) -> DatagramRecord<'_> {
        DatagramRecord {
            listener: "syslog",
            lane: 3,
            arrival: Duration::new(1_795_243_341, 7),
            is_time_of_batch: false,
            source: "192.0.2.7:40000".parse().expect("an address"),
            destination: "[2001:db8::1]:514".parse().expect("an address"),
            payload,
            length: payload.len(),
        }
    }

    fn line(record: &DatagramRecord<'_>) -> String {
        let mut line = Vec::new();
        append(&mut line, record);
        assert!(line.len() <= EXPANSION_MAX * record.payload.len() + FIXED_BYTES_MAX);
        String::from_utf8(line).expect("UTF-8")
    }

    fn value(record: &DatagramRecord<'_>) -> serde_json::Value {
        let line = line(record);
        let text = line.strip_suffix('\n').expect("a newline at the end");
        let commands = "\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\
                        \u{2066}\u{2067}\u{2068}\u{2069}";
        assert!(!text.contains(|c: char| c.is_control() || commands.contains(c)), "{text:?}");
        serde_json::from_str(text).expect("JSON")
    }

    #[test]
    fn a_datagram_is_one_object_with_all_that_is_known_of_it() {
        assert_eq!(
            line(&record(b"<34>su: failed")),
            "{\"time\":\"2026-11-21T06:42:21.000000007Z\",\"source\":\"192.0.2.7:40000\",\
             \"destination\":\"[2001:db8::1]:514\",\"listener\":\"syslog\",\"lane\":3,\"truncated\":false,\
             \"payload\":\"<34>su: failed\"}\n"
        );
        let past_the_stack = value(&DatagramRecord { is_time_of_batch: true, ..record(b"begun") });
        assert_eq!((&past_the_stack["time_from"], &past_the_stack["payload"]), (&"batch".into(), &"begun".into()));
        let cut = value(&DatagramRecord { length: 9000, ..record(b"begun") });
        assert_eq!((&cut["truncated"], &cut["length"], &cut["payload"]), (&true.into(), &9000.into(), &"begun".into()));
    }

    #[test]
    fn the_longest_facts_fit_their_bound() {
        let name = "x".repeat(64);
        let long = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff%4294967295]:65535".parse().expect("an address");
        let facts =
            DatagramRecord { listener: &name, lane: usize::MAX, source: long, destination: long, ..record(b"\xff") };
        let facts = DatagramRecord { is_time_of_batch: true, ..facts };
        line(&DatagramRecord { length: usize::MAX, ..facts });
        line(&record(&[1; 65_507]));
    }

    #[test]
    fn every_payload_comes_back() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let words = [
            "\"",
            "\\",
            "\n",
            "\r\t",
            "\0",
            "\x7f",
            "\u{85}",
            "\u{9b}",
            "\u{2028}",
            "\u{202e}",
            "\u{2069}",
            "\u{200f}",
            "\u{61c}",
            "ü",
            "😀",
            "plain text of some length",
        ];
        for _ in 0..if cfg!(debug_assertions) { 20_000 } else { 300_000 } {
            let text: String = (0..next() % 12).map(|_| words[(next() % words.len() as u64) as usize]).collect();
            assert_eq!(value(&record(text.as_bytes()))["payload"], text.as_str());
            let bytes: Vec<u8> = (0..next() % 20).map(|_| next() as u8).chain([0xff]).collect();
            let value = value(&record(&bytes));
            assert_eq!(base64::decode(value["payload_base64"].as_str().expect("base64")), Some(bytes));
            assert!(value.get("payload").is_none());
        }
    }
}
