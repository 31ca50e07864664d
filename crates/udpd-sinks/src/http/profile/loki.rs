//! Entries of one stream of Loki: the time, the line, and the rest as structured metadata, whose values are all text.

use super::RecordBound;
use super::row::{self, Row};
use crate::http::Pair;
use udpd_base::format::{DatagramRecord, json};

/// The line, and the fields that were parsed of it.
pub(super) const BOUND: RecordBound =
    RecordBound { expansion: json::EXPANSION_MAX + json::NESTED_EXPANSION_MAX, fixed: 448 };

pub(super) const TAIL: &[u8] = b"]}]}";

/// The stream with its labels. Names of labels have neither dots nor dashes in Loki.
pub(super) fn head(labels: &[Pair]) -> Vec<u8> {
    let mut head = b"{\"streams\":[{\"stream\":{".to_vec();
    for (nth, label) in labels.iter().enumerate() {
        if nth > 0 {
            head.push(b',');
        }
        let name = label.name.replace(['.', '-'], "_");
        let name = if name.starts_with(|first: char| first.is_ascii_digit()) { format!("_{name}") } else { name };
        row::append_string(&mut head, b"\"", &name);
        row::append_string(&mut head, b":\"", &label.value);
    }
    if labels.is_empty() {
        head.extend_from_slice(b"\"job\":\"udpd\"");
    }
    head.extend_from_slice(b"},\"values\":[");
    head
}

pub(super) fn append_place(text: &mut Vec<u8>, record: &DatagramRecord<'_>) {
    text.extend_from_slice(b",\"destination\":\"");
    json::append_ip(text, record.destination.ip());
    text.extend_from_slice(b"\",\"destination_port\":\"");
    json::append_number(text, record.destination.port().into());
    row::append_string(text, b"\",\"listener\":\"", record.listener);
}

pub(super) fn append(body: &mut Vec<u8>, row: &Row<'_>, place: &[u8], is_first: bool) {
    body.extend_from_slice(if is_first { b"[\"" } else { b",[\"" });
    json::append_nanoseconds(body, row.record.arrival);
    body.extend_from_slice(b"\",\"");
    row.append_payload(body);
    body.extend_from_slice(b"\",{\"source\":\"");
    json::append_ip(body, row.record.source.ip());
    body.extend_from_slice(b"\",\"source_port\":\"");
    row::append_words(body, row, place);
    body.extend_from_slice(b"}]");
}
