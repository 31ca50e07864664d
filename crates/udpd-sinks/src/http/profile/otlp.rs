//! Log records of OpenTelemetry, in the JSON form of OTLP, with the names of its semantic conventions.

use super::RecordBound;
use super::row::{self, Quoting, Row};
use crate::http::Pair;
use udpd_base::format::{DatagramRecord, json};

/// The line as an attribute, and the message with the fields that were parsed of it.
pub(super) const BOUND: RecordBound =
    RecordBound { expansion: json::EXPANSION_MAX + json::NESTED_EXPANSION_MAX, fixed: 1104 };

pub(super) const TAIL: &[u8] = b"]}]}]}";

/// The severity numbers of OpenTelemetry, by the severity of syslog.
const SEVERITY_NUMBERS: [u64; 8] = [21, 19, 18, 17, 13, 10, 9, 5];

/// The resource with the labels as its attributes.
pub(super) fn head(labels: &[Pair]) -> Vec<u8> {
    let mut head = b"{\"resourceLogs\":[{\"resource\":{\"attributes\":[".to_vec();
    let is_named = labels.iter().any(|label| label.name == "service.name");
    let service = (!is_named).then_some(("service.name", "udpd"));
    let labels = labels.iter().map(|label| (label.name.as_str(), label.value.as_str()));
    for (nth, (name, value)) in service.into_iter().chain(labels).enumerate() {
        if nth > 0 {
            head.push(b',');
        }
        row::append_string(&mut head, b"{\"key\":\"", name);
        row::append_string(&mut head, b",\"value\":{\"stringValue\":\"", value);
        head.extend_from_slice(b"}}");
    }
    head.extend_from_slice(b"]},\"scopeLogs\":[{\"scope\":{\"name\":\"udpd\",\"version\":\"");
    head.extend_from_slice(env!("CARGO_PKG_VERSION").as_bytes());
    head.extend_from_slice(b"\"},\"logRecords\":[");
    head
}

pub(super) fn append_place(text: &mut Vec<u8>, record: &DatagramRecord<'_>) {
    text.extend_from_slice(b",{\"key\":\"destination.address\",\"value\":{\"stringValue\":\"");
    json::append_ip(text, record.destination.ip());
    text.extend_from_slice(b"\"}},{\"key\":\"destination.port\",\"value\":{\"intValue\":\"");
    json::append_number(text, record.destination.port().into());
    text.extend_from_slice(b"\"}}");
    append_attribute(text, b",{\"key\":\"udpd.listener\",\"value\":{\"stringValue\":\"", Some(record.listener));
}

pub(super) fn append(body: &mut Vec<u8>, row: &Row<'_>, place: &[u8], is_first: bool) {
    let arrival = row.record.arrival;
    body.extend_from_slice(if is_first { b"{\"timeUnixNano\":\"" } else { b",{\"timeUnixNano\":\"" });
    json::append_nanoseconds(body, row.syslog.and_then(|line| line.time).unwrap_or(arrival));
    body.extend_from_slice(b"\",\"observedTimeUnixNano\":\"");
    json::append_nanoseconds(body, arrival);
    body.push(b'"');
    if let Some(line) = &row.syslog {
        body.extend_from_slice(b",\"severityNumber\":");
        json::append_number(body, SEVERITY_NUMBERS[usize::from(line.severity & 7)]);
        row::append_string(body, b",\"severityText\":\"", line.severity_word());
    }
    match row.message() {
        Some(message) => row::append_string(body, b",\"body\":{\"stringValue\":\"", message),
        None => {
            body.extend_from_slice(b",\"body\":{\"bytesValue\":\"");
            row.append_base64(body);
            body.push(b'"');
        }
    }
    body.extend_from_slice(b"},\"attributes\":[{\"key\":\"source.address\",\"value\":{\"stringValue\":\"");
    json::append_ip(body, row.record.source.ip());
    body.extend_from_slice(b"\"}},{\"key\":\"source.port\",\"value\":{\"intValue\":\"");
    json::append_number(body, row.record.source.port().into());
    body.extend_from_slice(b"\"}}");
    body.extend_from_slice(place);
    if row.is_truncated() {
        body.extend_from_slice(b",{\"key\":\"udpd.truncated\",\"value\":{\"boolValue\":true}}");
        body.extend_from_slice(b",{\"key\":\"udpd.length\",\"value\":{\"intValue\":\"");
        json::append_number(body, row.record.length as u64);
        body.extend_from_slice(b"\"}}");
    }
    if let Some(line) = &row.syslog {
        body.extend_from_slice(b",{\"key\":\"syslog.facility\",\"value\":{\"intValue\":\"");
        json::append_number(body, line.facility.into());
        body.extend_from_slice(b"\"}}");
        append_attribute(body, b",{\"key\":\"syslog.hostname\",\"value\":{\"stringValue\":\"", line.hostname);
        append_attribute(body, b",{\"key\":\"syslog.appname\",\"value\":{\"stringValue\":\"", line.app);
        append_attribute(body, b",{\"key\":\"syslog.procid\",\"value\":{\"stringValue\":\"", line.procid);
        append_attribute(body, b",{\"key\":\"syslog.msgid\",\"value\":{\"stringValue\":\"", line.msgid);
        if let Some(data) = line.structured_data {
            body.extend_from_slice(b",{\"key\":\"syslog.structured_data\",\"value\":{\"stringValue\":\"");
            row::append_structured_data(body, data, Quoting::Nested);
            body.extend_from_slice(b"\"}}");
        }
        append_attribute(body, b",{\"key\":\"log.record.original\",\"value\":{\"stringValue\":\"", row.text);
    }
    body.extend_from_slice(b"]}");
}

fn append_attribute(body: &mut Vec<u8>, name: &[u8], value: Option<&str>) {
    if let Some(value) = value {
        row::append_string(body, name, value);
        body.extend_from_slice(b"}}");
    }
}
