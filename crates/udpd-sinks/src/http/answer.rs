//! What the answer of a server means for the records of a request.
//!
//! A record counts as taken only where the server says so by the documentation of its interface. What can be cured,
//! here or there, is for later, with a reason that names the cure; what will never be taken is refused. Reasons are in
//! the server's words where it has some: short, printable, and never from an answer about a token or a password.

use std::time::Duration;

use super::HttpProfile;
use super::request::{RefusedRecord, Verdict};
use crate::peer_trouble::{REASON_BYTES_MAX, shortened};
use serde_json::Value;

/// An answer, as far as it matters.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServerAnswer<'a> {
    pub(super) status: u16,
    /// How long the server wants to be left alone.
    pub(super) retry_after: Option<Duration>,
    /// `X-ClickHouse-Exception-Code`.
    pub(super) exception_code: Option<&'a str>,
    /// Where a redirect leads.
    pub(super) location: Option<&'a str>,
    /// The beginning of its body.
    pub(super) body: &'a [u8],
}

/// Judges an answer to a request with so many records.
pub(super) fn judge(profile: HttpProfile, answer: &ServerAnswer<'_>, records: usize) -> Verdict {
    let by_profile = match profile {
        HttpProfile::Clickhouse => clickhouse(answer),
        HttpProfile::Otlp => otlp(answer, records),
        HttpProfile::SplunkHec => splunk_hec(answer, records),
        HttpProfile::Elasticsearch => elasticsearch(answer, records),
        HttpProfile::Loki => loki(answer, records),
        HttpProfile::Ndjson => None,
    };
    by_profile.unwrap_or_else(|| by_status(answer))
}

/// So much of an answer is read.
pub(super) const ANSWER_BYTES_MAX: usize = 1 << 20;

/// What a status means by itself.
fn by_status(answer: &ServerAnswer<'_>) -> Verdict {
    let status = answer.status;
    let cure = match status {
        200..=299 => return taken(),
        300..=399 => match answer.location {
            // What follows a question mark may be a secret.
            Some(location) => {
                let to = location.split(['?', '#']).next().unwrap_or_default();
                let to = to.rsplit_once('@').map_or(to, |(_, host)| host);
                return later(answer, &format!("it redirects to {}: write that as url", shortened(to, 120)));
            }
            None => "a redirect that leads nowhere: check url",
        },
        400 | 415 | 422 => return refused(answer, "it takes no such request"),
        413 => return too_large(answer),
        401 => "it knows neither token nor password: check token_file, or username and password_file",
        403 => "what the token or the user may do does not cover this: check token_file, username, and rights there",
        404 => "nothing takes records there: check url",
        405 => "that place takes no POST: check url",
        407 => "the proxy wants a password: use one that wants none",
        _ => return later(answer, &said(answer).unwrap_or_default()),
    };
    later(answer, cure)
}

fn taken() -> Verdict {
    Verdict::Taken { refused: Vec::new() }
}

fn later(answer: &ServerAnswer<'_>, why: &str) -> Verdict {
    Verdict::Later { reason: reason(answer.status, why), after: answer.retry_after }
}

/// Refused for good, in the server's words, or else in these.
fn refused(answer: &ServerAnswer<'_>, otherwise: &str) -> Verdict {
    let why = match (answer.status, said(answer)) {
        (_, None) => otherwise.to_owned(),
        (_, Some(said)) => said,
    };
    Verdict::Refused { reason: reason(answer.status, &why) }
}

fn too_large(answer: &ServerAnswer<'_>) -> Verdict {
    Verdict::TooLarge { reason: reason(answer.status, "the datagram alone is too large: raise the limit there") }
}

fn reason(status: u16, why: &str) -> String {
    let text = if why.is_empty() { format!("it answered {status}") } else { format!("it answered {status}: {why}") };
    shortened(&text, REASON_BYTES_MAX)
}

/// How much of a body is read for a reason.
const SAID_BYTES_MAX: usize = 4096;

/// What the body says went wrong, if that is for people.
fn said(answer: &ServerAnswer<'_>) -> Option<String> {
    if let Ok(value) = serde_json::from_slice::<Value>(answer.body) {
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let error = &value["error"];
        let typed = match (error["type"].as_str(), error["reason"].as_str()) {
            (Some(kind), Some(why)) => Some(format!("{kind}: {why}")),
            (kind, why) => kind.or(why).map(str::to_owned),
        };
        let words = [&value["message"], &value["text"], error, &error["message"]];
        return typed.or_else(|| words.into_iter().find_map(text));
    }
    let beginning = &answer.body[..answer.body.len().min(SAID_BYTES_MAX)];
    let text = String::from_utf8_lossy(beginning);
    let text = text.trim_start();
    // A page for browsers, or JSON that was cut off, says nothing in a line.
    (!text.is_empty() && !text.starts_with(['<', '{', '['])).then(|| text.to_owned())
}

/// The last so many records. Servers that count what they refuse do not say which records these are.
fn last(count: u64, records: usize, reason: &str) -> Vec<RefusedRecord> {
    let count = usize::try_from(count).unwrap_or(records).min(records);
    let reason = shortened(reason, REASON_BYTES_MAX);
    (records - count..records).map(|place| RefusedRecord { place, reason: reason.clone() }).collect()
}

// ClickHouse: the code of an exception says more than the status, and an exception may follow a status of 200.

/// What values of a row it cannot read, or will not store: no later time changes that.
const CLICKHOUSE_REFUSES: [u32; 23] =
    [6, 25, 26, 27, 38, 41, 53, 69, 70, 72, 117, 128, 130, 131, 321, 349, 376, 407, 441, 467, 469, 675, 676];

/// What an operator can put right, and how.
const CLICKHOUSE_CURES: [(u32, &str); 22] = [
    (8, "the table lacks a column: ALTER TABLE, see docs/http.md"),
    (10, "the table lacks a column: ALTER TABLE, see docs/http.md"),
    (16, "the table lacks a column: ALTER TABLE, see docs/http.md"),
    (47, "the table lacks a column: ALTER TABLE, see docs/http.md"),
    (60, "there is no such table: CREATE TABLE, see docs/http.md"),
    (62, "it does not understand the statement: check table, and the query in url"),
    (81, "there is no such database: CREATE DATABASE, or check table"),
    (115, "it does not know a setting: check the query in url"),
    (164, "the user may only read: GRANT INSERT, and let it change settings"),
    (192, "it does not know the user: check username"),
    (193, "the password is wrong: check password_file"),
    (194, "it wants a password: write username and password_file"),
    (195, "the user may not come from this address: check HOST of the user there"),
    (201, "the quota of the user is used up"),
    (241, "its memory is full"),
    (242, "the table is read-only: look at its replica and its keeper"),
    (243, "its disk is full"),
    (252, "too many parts: raise batch.every and batch.datagrams"),
    (291, "the user may not use the database: GRANT INSERT"),
    (452, "the user may not change a setting: see docs/http.md"),
    (497, "the user may not insert: GRANT INSERT"),
    (516, "it did not let the user in: check username and password_file"),
];

/// It has found that it has these rows.
const CLICKHOUSE_HAS_IT: u32 = 389;

fn clickhouse(answer: &ServerAnswer<'_>) -> Option<Verdict> {
    let text = String::from_utf8_lossy(answer.body);
    let exception = text.find("DB::Exception").and_then(|at| {
        let before = &text[..at];
        Some(&text[before.rfind("Code: ")?..])
    });
    let in_body = || exception?.strip_prefix("Code: ")?.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok();
    let code: Option<u32> = answer.exception_code.and_then(|code| code.trim().parse().ok()).or_else(in_body);
    let Some(code) = code else {
        let has_failed = exception.is_some() || answer.exception_code.is_some() || text.contains("DB::Exception");
        return (answer.status < 300 && has_failed).then(|| later(answer, "an exception in the answer"));
    };
    let words = exception.map(|text| text.split(" (version ").next().unwrap_or(text));
    let told =
        |code: u32| words.map_or_else(|| format!("exception {code}"), |words| words.replacen("DB::Exception: ", "", 1));
    if code == CLICKHOUSE_HAS_IT {
        return Some(taken());
    }
    if let Some((_, cure)) = CLICKHOUSE_CURES.iter().find(|(known, _)| *known == code) {
        return Some(later(answer, &format!("code {code}, {cure}")));
    }
    if code == 117 && text.contains("Unknown field found") {
        return Some(later(answer, "code 117, the table lacks a column: ALTER TABLE, see docs/http.md"));
    }
    if CLICKHOUSE_REFUSES.contains(&code) {
        return Some(Verdict::Refused { reason: reason(answer.status, &told(code)) });
    }
    match answer.status {
        413 => Some(too_large(answer)),
        400 | 415 | 422 => Some(Verdict::Refused { reason: reason(answer.status, &told(code)) }),
        _ => Some(later(answer, &told(code))),
    }
}

// OTLP: a status of 200 with a count of what was refused.

fn otlp(answer: &ServerAnswer<'_>, records: usize) -> Option<Verdict> {
    if answer.status >= 300 {
        return None;
    }
    let value: Value = serde_json::from_slice(answer.body).ok()?;
    let partial =
        [&value["partialSuccess"], &value["partial_success"]].into_iter().find(|partial| partial.is_object())?;
    let either = |first: &str, second: &str| partial.get(first).or_else(|| partial.get(second)).cloned();
    let count = either("rejectedLogRecords", "rejected_log_records")?;
    // 64-bit numbers are text in this form of JSON, and some write them as numbers.
    let count = count.as_u64().or_else(|| count.as_str()?.parse().ok()).filter(|&count| count > 0)?;
    let why = either("errorMessage", "error_message").and_then(|why| why.as_str().map(str::to_owned));
    let why = why.filter(|why| !why.trim().is_empty()).unwrap_or_else(|| "it gave no reason".to_owned());
    Some(Verdict::Taken { refused: last(count, records, &why) })
}

// Splunk: a code in the body.

fn splunk_hec(answer: &ServerAnswer<'_>, records: usize) -> Option<Verdict> {
    let value: Value = serde_json::from_slice(answer.body).ok()?;
    let code = value["code"].as_u64()?;
    let text = value["text"].as_str().unwrap_or("no reason");
    let cure = match code {
        0 if answer.status < 300 => return Some(taken()),
        1 => "the token is disabled: enable it",
        2..=4 => "it does not know the token: check token_file",
        7 => "the token may not write to that index: check index, and the indexes of the token",
        10 | 11 => "the token wants a channel: switch its indexer acknowledgement off",
        _ => {
            let nth = value["invalid-event-number"].as_u64().and_then(|nth| usize::try_from(nth).ok());
            let Some(nth) = nth.filter(|&nth| answer.status >= 400 && nth < records) else {
                let is_known = answer.status >= 300;
                return (!is_known).then(|| later(answer, &format!("{text} (code {code})")));
            };
            // It goes through the events one by one and stops at this one; those before it are taken.
            let reason = reason(answer.status, &format!("{text} (code {code})"));
            let (refused, first) = match answer.status {
                400 => (vec![RefusedRecord { place: nth, reason: reason.clone() }], nth + 1),
                _ => (Vec::new(), nth),
            };
            let after = if refused.is_empty() { answer.retry_after } else { Some(Duration::ZERO) };
            return Some(Verdict::Partly { refused, again: (first..records).collect(), reason, after });
        }
    };
    Some(later(answer, &format!("code {code}, {cure}")))
}

// Elasticsearch: an item for each record. A long answer may be cut off; records whose items are missing are sent again,
// which their ids make harmless.

fn elasticsearch(answer: &ServerAnswer<'_>, records: usize) -> Option<Verdict> {
    if answer.status >= 300 {
        return None;
    }
    let Some(has_errors) = has_errors(answer.body) else {
        return Some(later(answer, "this is no answer of a bulk interface: check url"));
    };
    if !has_errors {
        return Some(taken());
    }
    let mut refused = Vec::new();
    let mut again = Vec::new();
    let mut why_again = None;
    let mut told = 0;
    for (place, item) in items(answer.body).take(records).enumerate() {
        told = place + 1;
        match item_fate(&item) {
            ItemFate::Taken => {}
            ItemFate::Refused(reason) => refused.push(RefusedRecord { place, reason }),
            ItemFate::Again(why) => {
                why_again.get_or_insert(why);
                again.push(place);
            }
        }
    }
    again.extend(told..records);
    if again.is_empty() {
        return Some(Verdict::Taken { refused });
    }
    let reason = why_again.unwrap_or_else(|| "it answered for a part of the records only".to_owned());
    let is_all = again.len() == records;
    let after = answer.retry_after;
    Some(if is_all { Verdict::Later { reason, after } } else { Verdict::Partly { refused, again, reason, after } })
}

/// What `errors` says, which stands in front of the items.
fn has_errors(body: &[u8]) -> Option<bool> {
    const KEY: &[u8] = b"\"errors\"";
    let at = body.windows(KEY.len()).position(|window| window == KEY)? + KEY.len();
    let rest = body[at..].trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    match rest {
        [b't', b'r', b'u', b'e', ..] => Some(true),
        [b'f', b'a', b'l', b's', b'e', ..] => Some(false),
        _ => None,
    }
}

/// The items that are whole, one at a time: together they may be many times as long as the answer.
fn items(body: &[u8]) -> impl Iterator<Item = Value> {
    const KEY: &[u8] = b"\"items\"";
    let begin = body.windows(KEY.len()).position(|window| window == KEY).map(|at| &body[at + KEY.len()..]);
    let mut next =
        begin.and_then(|rest| rest.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start().strip_prefix(b"["));
    std::iter::from_fn(move || {
        let rest = next?;
        let mut values = serde_json::Deserializer::from_slice(rest).into_iter::<Value>();
        let item = values.next()?.ok()?;
        let behind = rest.get(values.byte_offset()..)?.trim_ascii_start();
        next = behind.strip_prefix(b",");
        Some(item)
    })
}

enum ItemFate {
    Taken,
    Refused(String),
    Again(String),
}

fn item_fate(item: &Value) -> ItemFate {
    // The one key of an item is the action.
    let Some(result) = item.as_object().and_then(|item| item.values().next()) else {
        return ItemFate::Again("an item of its answer is no item".to_owned());
    };
    let status = result["status"].as_u64().and_then(|status| u16::try_from(status).ok()).unwrap_or(0);
    let error = &result["error"];
    let why = || {
        let kind = error["type"].as_str().unwrap_or("no reason");
        let text = error["reason"].as_str().map_or_else(|| kind.to_owned(), |why| format!("{kind}: {why}"));
        reason(status, &text)
    };
    match status {
        // A record under its own id that is there already is this record, sent before.
        200..=299 | 409 => ItemFate::Taken,
        // An index that is missing, closed to writing or to this user can be cured.
        401 | 403 | 404 | 408 | 429 => ItemFate::Again(why()),
        400..=499 => ItemFate::Refused(why()),
        _ => ItemFate::Again(why()),
    }
}

// Loki: with a status of 400 some entries are refused, and the others of the request are taken. Its distributor counts
// what it refuses of the same kind (`2 errors like: ...; 1 errors like: ...`), its ingester what came too late. Neither
// says which entries these are.

fn loki(answer: &ServerAnswer<'_>, records: usize) -> Option<Verdict> {
    if answer.status != 400 {
        return None;
    }
    let text = String::from_utf8_lossy(answer.body);
    if text.contains("this feature is disallowed") {
        return Some(later(
            answer,
            "it takes no structured metadata: set limits_config.allow_structured_metadata there",
        ));
    }
    if text.contains("error parsing labels") || text.contains("at least one label pair") {
        return Some(later(answer, "it takes no such labels: check labels"));
    }
    let ignored = refused_by_ingester(&text, records).or_else(|| refused_by_distributor(&text))?;
    // What is cut off may name more.
    if ignored >= records || answer.body.len() >= ANSWER_BYTES_MAX {
        return None;
    }
    let reason = reason(answer.status, &said(answer).unwrap_or_default());
    // What is too old is the beginning of a batch.
    let refused = (0..ignored).map(|place| RefusedRecord { place, reason: reason.clone() });
    Some(Verdict::Taken { refused: refused.collect() })
}

/// Of `total ignored: 3 out of 10 for stream`.
fn refused_by_ingester(text: &str, records: usize) -> Option<usize> {
    let (_, counts) = text.split_once("total ignored: ")?;
    let mut numbers = counts.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let (ignored, total) = (numbers.next()?.parse().ok()?, numbers.next()?.parse::<usize>().ok()?);
    (total == records).then_some(ignored)
}

/// Of `2 errors like: ...; 1 errors like: ...`, the sum.
fn refused_by_distributor(text: &str) -> Option<usize> {
    let mut parts = text.split(" errors like: ");
    let mut before = parts.next()?;
    let mut sum: usize = 0;
    for part in parts {
        let count = before.rsplit("; ").next()?;
        sum = sum.checked_add(count.parse().ok()?)?;
        before = part;
    }
    (sum > 0).then_some(sum)
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
