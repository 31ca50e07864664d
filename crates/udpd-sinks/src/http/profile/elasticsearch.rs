//! Documents for the bulk interface of Elasticsearch and OpenSearch, with the names of the Elastic Common Schema.

use super::super::request::BatchId;
use super::RecordBound;
use super::row::{self, Quoting, Row};
use udpd_base::format::{DatagramRecord, json, prefix};

/// The line, and the message with the fields that were parsed of it.
pub(super) const BOUND: RecordBound = RecordBound { expansion: 2 * json::EXPANSION_MAX, fixed: 640 };

/// Each record is created under an id of its own, so that one that is sent again is there once.
pub(super) fn append_action(body: &mut Vec<u8>, id: BatchId, nth: usize) {
    body.extend_from_slice(b"{\"create\":{\"_id\":\"");
    json::append_number(body, id.origin);
    body.push(b'-');
    json::append_number(body, id.begin.wrapping_add(nth as u64));
    body.extend_from_slice(b"\"}}\n");
}

pub(super) fn append_place(text: &mut Vec<u8>, record: &DatagramRecord<'_>) {
    text.extend_from_slice(b",\"destination\":{\"ip\":\"");
    json::append_ip(text, record.destination.ip());
    text.extend_from_slice(b"\",\"port\":");
    json::append_number(text, record.destination.port().into());
    row::append_string(text, b"},\"udpd\":{\"listener\":\"", record.listener);
}

pub(super) fn append(body: &mut Vec<u8>, row: &Row<'_>, place: &[u8]) {
    body.extend_from_slice(b"{\"@timestamp\":\"");
    prefix::append_time(body, row.record.arrival);
    body.extend_from_slice(b"\",\"source\":{\"ip\":\"");
    json::append_ip(body, row.record.source.ip());
    body.extend_from_slice(b"\",\"port\":");
    json::append_number(body, row.record.source.port().into());
    body.push(b'}');
    body.extend_from_slice(place);
    if row.is_truncated() {
        body.extend_from_slice(b",\"truncated\":true,\"length\":");
        json::append_number(body, row.record.length as u64);
    }
    if row.text.is_none() {
        body.extend_from_slice(b",\"payload_base64\":\"");
        row.append_base64(body);
        body.push(b'"');
    }
    body.push(b'}');
    row::append_known(body, b",\"message\":\"", row.message());
    if let Some(line) = &row.syslog {
        row::append_known(body, b",\"event\":{\"original\":\"", row.text);
        row::append_string(body, b"},\"log\":{\"level\":\"", line.severity_word());
        body.extend_from_slice(b",\"syslog\":{\"priority\":");
        json::append_number(body, line.priority().into());
        body.extend_from_slice(b",\"severity\":{\"code\":");
        json::append_number(body, line.severity.into());
        row::append_string(body, b",\"name\":\"", line.severity_word());
        body.extend_from_slice(b"},\"facility\":{\"code\":");
        json::append_number(body, line.facility.into());
        row::append_string(body, b",\"name\":\"", line.facility_word());
        body.push(b'}');
        row::append_known(body, b",\"hostname\":\"", line.hostname);
        row::append_known(body, b",\"appname\":\"", line.app);
        row::append_known(body, b",\"procid\":\"", line.procid);
        row::append_known(body, b",\"msgid\":\"", line.msgid);
        if let Some(data) = line.structured_data {
            body.extend_from_slice(b",\"structured_data\":");
            row::append_structured_data(body, data, Quoting::Plain);
        }
        body.extend_from_slice(b"}}");
    }
    body.extend_from_slice(b"}\n");
}
