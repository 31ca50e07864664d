//! How datagrams become the body of a request, for each kind of server.
//!
//! A body is begun, records are appended, and it is ended. Records of all profiles but OTLP and Loki stand alone, one
//! behind the other, so some of them are a body as well: only those servers say which records they have not taken.
//! Nothing is allocated for a record. What is the same for a whole batch, or for most of its records, is written once
//! and copied.

mod clickhouse;
mod elasticsearch;
mod loki;
mod ndjson;
mod otlp;
mod row;
mod splunk_hec;
mod target;

use std::net::SocketAddr;

use self::row::Row;
use super::request::{BatchId, RequestBatch};
use super::{HttpProfile, HttpSettings, PayloadParse};
use udpd_base::format::DatagramRecord;

/// What a record is made of besides the payload, and what each byte of the payload becomes, at most.
struct RecordBound {
    expansion: usize,
    fixed: usize,
}

/// The most bytes that a record with such a payload takes, whatever its bytes are and however they are parsed. The end
/// of the body is in it.
pub(super) fn record_bytes_max(profile: HttpProfile, payload: usize) -> usize {
    let bound = match profile {
        HttpProfile::Clickhouse => clickhouse::BOUND,
        HttpProfile::Otlp => otlp::BOUND,
        HttpProfile::SplunkHec => splunk_hec::BOUND,
        HttpProfile::Elasticsearch => elasticsearch::BOUND,
        HttpProfile::Loki => loki::BOUND,
        HttpProfile::Ndjson => ndjson::BOUND,
    };
    bound.expansion * payload + bound.fixed
}

/// The word in front of a token, where a server wants one.
pub(super) fn token_scheme(profile: HttpProfile) -> &'static str {
    match profile {
        HttpProfile::SplunkHec => "Splunk",
        HttpProfile::Elasticsearch => "ApiKey",
        HttpProfile::Clickhouse | HttpProfile::Otlp | HttpProfile::Loki | HttpProfile::Ndjson => "Bearer",
    }
}

/// Writes bodies.
#[derive(Debug)]
pub(super) struct BodyWriter {
    settings: HttpSettings,
    /// What a body begins and ends with.
    head: Vec<u8>,
    tail: &'static [u8],
    /// What each record has of the settings.
    own: Vec<u8>,
    place: Place,
}

/// What a record says of where it came to: the same for most records of a lane.
#[derive(Debug, Default)]
struct Place {
    of: Option<SocketAddr>,
    listener: String,
    text: Vec<u8>,
}

impl Place {
    fn text(&mut self, record: &DatagramRecord<'_>, append: fn(&mut Vec<u8>, &DatagramRecord<'_>)) -> &[u8] {
        if self.of != Some(record.destination) || self.listener != record.listener {
            self.text.clear();
            append(&mut self.text, record);
            self.of = Some(record.destination);
            self.listener.clear();
            self.listener.push_str(record.listener);
        }
        &self.text
    }
}

impl BodyWriter {
    pub(super) fn new(settings: &HttpSettings) -> Self {
        let (head, tail): (Vec<u8>, &[u8]) = match settings.profile {
            HttpProfile::Otlp => (otlp::head(&settings.labels), otlp::TAIL),
            HttpProfile::Loki => (loki::head(&settings.labels), loki::TAIL),
            HttpProfile::Clickhouse | HttpProfile::SplunkHec | HttpProfile::Elasticsearch | HttpProfile::Ndjson => {
                (Vec::new(), b"")
            }
        };
        let own = match settings.profile {
            HttpProfile::SplunkHec => splunk_hec::own(settings),
            _ => Vec::new(),
        };
        Self { settings: settings.clone(), head, tail, own, place: Place::default() }
    }

    /// Where this batch is sent: the URL with path and query.
    pub(super) fn target(&self, batch: &RequestBatch) -> String {
        target::target(&self.settings, &batch.token())
    }

    pub(super) fn content_type(&self) -> &'static str {
        match self.settings.profile {
            HttpProfile::Otlp | HttpProfile::SplunkHec | HttpProfile::Loki => "application/json",
            HttpProfile::Clickhouse | HttpProfile::Elasticsearch | HttpProfile::Ndjson => "application/x-ndjson",
        }
    }

    /// Begins a body of the batch whose id is set.
    pub(super) fn begin(&self, batch: &mut RequestBatch) {
        batch.body.extend_from_slice(&self.head);
    }

    /// Appends a record, and notes where it ends.
    pub(super) fn append(&mut self, batch: &mut RequestBatch, record: &DatagramRecord<'_>) {
        let row = Row::of(record, self.settings.parse == PayloadParse::Syslog);
        let (place, nth) = (&mut self.place, batch.records());
        let body = &mut batch.body;
        match self.settings.profile {
            HttpProfile::Clickhouse => clickhouse::append(body, &row, place.text(record, clickhouse::append_place)),
            HttpProfile::Otlp => otlp::append(body, &row, place.text(record, otlp::append_place), nth == 0),
            HttpProfile::SplunkHec => {
                splunk_hec::append(body, &row, place.text(record, splunk_hec::append_place), &self.own);
            }
            HttpProfile::Elasticsearch => {
                elasticsearch::append_action(body, batch.id, nth);
                elasticsearch::append(body, &row, place.text(record, elasticsearch::append_place));
            }
            HttpProfile::Loki => loki::append(body, &row, place.text(record, loki::append_place), nth == 0),
            HttpProfile::Ndjson => ndjson::append(body, &row),
        }
        batch.ends.push(batch.body.len());
    }

    /// Ends a body.
    pub(super) fn end(&self, batch: &mut RequestBatch) {
        batch.body.extend_from_slice(self.tail);
    }

    /// Writes a batch of these records of another one. Those that stand in a row there have an id by their place.
    pub(super) fn pick(&self, batch: &RequestBatch, places: &[usize], into: &mut RequestBatch) {
        into.clear();
        let begin = batch.id.begin + places.first().map_or(0, |first| *first as u64);
        into.id = BatchId { begin, ..batch.id };
        self.begin(into);
        for &place in places {
            let begin = place.checked_sub(1).map_or(self.head.len(), |before| batch.ends[before]);
            let record = &batch.body[begin..batch.ends[place]];
            // Where commas stand between records, there is none before the first.
            let record = if into.ends.is_empty() { record.strip_prefix(b",").unwrap_or(record) } else { record };
            into.body.extend_from_slice(record);
            into.ends.push(into.body.len());
        }
        self.end(into);
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
