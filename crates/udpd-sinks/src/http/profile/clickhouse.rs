//! Rows for ClickHouse, in its format `JSONEachRow`.

use super::RecordBound;
use super::row::{self, Numbers, Row};
use udpd_base::format::{DatagramRecord, json, prefix};

/// The line, and the fields that were parsed of it.
pub(super) const BOUND: RecordBound =
    RecordBound { expansion: json::EXPANSION_MAX + json::NESTED_EXPANSION_MAX, fixed: 448 };

pub(super) fn append_place(text: &mut Vec<u8>, record: &DatagramRecord<'_>) {
    text.extend_from_slice(b",\"destination\":\"");
    json::append_ip(text, record.destination.ip());
    text.extend_from_slice(b"\",\"destination_port\":");
    json::append_number(text, record.destination.port().into());
    row::append_string(text, b",\"listener\":\"", record.listener);
}

pub(super) fn append(body: &mut Vec<u8>, row: &Row<'_>, place: &[u8]) {
    body.extend_from_slice(b"{\"time\":\"");
    prefix::append_time(body, row.record.arrival);
    body.extend_from_slice(b"\",\"source\":\"");
    json::append_ip(body, row.record.source.ip());
    body.extend_from_slice(b"\",\"source_port\":");
    json::append_number(body, row.record.source.port().into());
    body.extend_from_slice(place);
    match row.message() {
        Some(message) => row::append_string(body, b",\"message\":\"", message),
        None => {
            body.extend_from_slice(b",\"message_base64\":\"");
            row.append_base64(body);
            body.push(b'"');
        }
    }
    if let Some(line) = &row.syslog {
        row::append_known(body, b",\"raw\":\"", row.text);
        row::append_fields(body, line, Numbers::AsNumbers);
    }
    if row.is_truncated() {
        body.extend_from_slice(b",\"truncated\":true");
    }
    body.extend_from_slice(b",\"length\":");
    json::append_number(body, row.record.length as u64);
    body.extend_from_slice(b"}\n");
}
