//! Lines of the format `jsonl`, for a server that takes one JSON object a line. What was parsed stands in an object of
//! its own at the end.

use super::RecordBound;
use super::row::{self, Numbers, Row};
use udpd_base::format::{json, jsonl};

/// The line, and the message with the fields that were parsed of it: their names have room in what a line may have.
pub(super) const BOUND: RecordBound =
    RecordBound { expansion: jsonl::EXPANSION_MAX + json::NESTED_EXPANSION_MAX, fixed: jsonl::FIXED_BYTES_MAX };

pub(super) fn append(body: &mut Vec<u8>, row: &Row<'_>) {
    jsonl::append(body, row.record);
    if let Some(line) = &row.syslog {
        // Before the brace and the newline that end the object.
        body.truncate(body.len() - 2);
        row::append_string(body, b",\"syslog\":{\"message\":\"", line.message);
        row::append_fields(body, line, Numbers::AsNumbers);
        body.extend_from_slice(b"}}\n");
    }
}
