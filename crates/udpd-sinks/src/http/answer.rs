//! What the answer of a server means for the records of a request.

use std::time::Duration;

use super::HttpProfile;
use super::request::Verdict;

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
pub(super) fn judge(_profile: HttpProfile, answer: &ServerAnswer<'_>, _records: usize) -> Verdict {
    match answer.status {
        200..=299 => Verdict::Taken { refused: Vec::new() },
        status => Verdict::Later { reason: format!("it answered {status}"), after: answer.retry_after },
    }
}
