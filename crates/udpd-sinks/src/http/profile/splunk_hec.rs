//! Events for the HTTP Event Collector of Splunk.

use super::RecordBound;
use super::row::{self, Row};
use crate::http::HttpSettings;
use udpd_base::format::{DatagramRecord, json};

/// The longest source type and index that count into the bound of a record.
const WORDS_BYTES_MAX: usize = 2 * 255;

/// The line, and the fields that were parsed of it.
pub(super) const BOUND: RecordBound =
    RecordBound { expansion: json::EXPANSION_MAX + json::NESTED_EXPANSION_MAX, fixed: 512 + WORDS_BYTES_MAX };

/// What each event has of the settings.
pub(super) fn own(settings: &HttpSettings) -> Vec<u8> {
    let mut own = Vec::new();
    for (name, word) in [(&b",\"sourcetype\":\""[..], &settings.source_type), (b",\"index\":\"", &settings.index)] {
        row::append_known(&mut own, name, Some(word.as_str()).filter(|word| !word.is_empty()));
    }
    own
}

pub(super) fn append_place(text: &mut Vec<u8>, record: &DatagramRecord<'_>) {
    text.extend_from_slice(b",\"destination\":\"");
    json::append_ip(text, record.destination.ip());
    text.extend_from_slice(b"\",\"destination_port\":\"");
    json::append_number(text, record.destination.port().into());
    row::append_string(text, b"\",\"listener\":\"", record.listener);
}

pub(super) fn append(body: &mut Vec<u8>, row: &Row<'_>, place: &[u8], own: &[u8]) {
    body.extend_from_slice(b"{\"time\":");
    json::append_decimal_seconds(body, row.record.arrival);
    body.extend_from_slice(b",\"host\":\"");
    json::append_ip(body, row.record.source.ip());
    // As Splunk names what its own inputs receive.
    body.extend_from_slice(b"\",\"source\":\"udp:");
    json::append_number(body, row.record.destination.port().into());
    body.push(b'"');
    body.extend_from_slice(own);
    // Splunk refuses a blank event, and the rest of the request with it.
    let is_blank = row.text.is_some_and(|text| text.trim().is_empty());
    body.extend_from_slice(if is_blank { b",\"event\":{\"payload\":\"" } else { b",\"event\":\"" });
    row.append_payload(body);
    body.extend_from_slice(if is_blank {
        b"\"},\"fields\":{\"source_port\":\""
    } else {
        b"\",\"fields\":{\"source_port\":\""
    });
    row::append_words(body, row, place);
    body.extend_from_slice(b"}}\n");
}
