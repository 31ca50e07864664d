//! How datagrams become the body of a request, for each kind of server.

use super::request::{BatchId, RequestBatch};
use super::{HttpProfile, HttpSettings};
use udpd_base::format::DatagramRecord;

/// The most bytes that a record with such a payload takes.
pub(super) fn record_bytes_max(_profile: HttpProfile, payload: usize) -> usize {
    12 * payload + 2048
}

/// How a token is called in the header `Authorization`.
pub(super) fn token_scheme(profile: HttpProfile) -> &'static str {
    match profile {
        HttpProfile::SplunkHec => "Splunk",
        HttpProfile::Elasticsearch => "ApiKey",
        _ => "Bearer",
    }
}

/// Writes bodies.
#[derive(Debug)]
pub(super) struct BodyWriter {
    settings: HttpSettings,
}

impl BodyWriter {
    pub(super) fn new(settings: &HttpSettings) -> Self {
        Self { settings: settings.clone() }
    }

    /// Where a request goes.
    pub(super) fn target(&self, _id: BatchId) -> String {
        self.settings.url.text.clone()
    }

    pub(super) fn content_type(&self) -> &'static str {
        "application/x-ndjson"
    }

    /// Begins a body; the batch has its id.
    pub(super) fn begin(&mut self, _batch: &mut RequestBatch) {}

    /// Appends a record, and notes where it ends.
    pub(super) fn append(&mut self, _batch: &mut RequestBatch, _record: &DatagramRecord<'_>) {}

    /// Ends a body.
    pub(super) fn end(&mut self, _batch: &mut RequestBatch) {}
}
