//! An answer in HTTP/1.1. The connection ends with it, which is also how a stream ends: without a length and without
//! chunks, so that a daemon which is killed ends a stream in good order too.

/// What every answer says, whatever it is: nobody keeps it, guesses at its type, shows it in a frame of another site or
/// tells others where it came from.
const ALWAYS: &str = "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
                      Cross-Origin-Resource-Policy: same-origin\r\nConnection: close\r\n";

/// What a document may do that is only text or numbers.
const NOTHING: &str = "default-src 'none'; frame-ancestors 'none'";

/// An answer before it is worded.
#[derive(Debug)]
pub(super) struct Response<'a> {
    status: &'static str,
    kind: &'static str,
    policy: &'a str,
    /// Further fields, each with its line end.
    more: String,
    body: Option<&'a str>,
}

impl<'a> Response<'a> {
    pub(super) fn new(status: &'static str, kind: &'static str, body: &'a str) -> Self {
        Self { status, kind, policy: NOTHING, more: String::new(), body: Some(body) }
    }

    /// A refusal in words.
    pub(super) fn words(status: &'static str, body: &'a str) -> Self {
        Self::new(status, "text/plain; charset=utf-8", body)
    }

    /// The beginning of a stream: lines of JSON follow for as long as the connection lasts.
    pub(super) fn stream() -> Self {
        Self { body: None, ..Self::new("200 OK", "application/x-ndjson", "") }
    }

    /// What a browser may do with it, instead of nothing.
    pub(super) fn policy(self, policy: &'a str) -> Self {
        Self { policy, ..self }
    }

    pub(super) fn field(mut self, name: &str, value: &str) -> Self {
        self.more.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    /// The bytes of it; for HEAD without the body, but with its length.
    pub(super) fn bytes(self, with_body: bool) -> Vec<u8> {
        let Self { status, kind, policy, more, body } = self;
        let length = body.map(|body| format!("Content-Length: {}\r\n", body.len())).unwrap_or_default();
        let body = body.filter(|_| with_body).unwrap_or_default();
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{length}{more}Content-Security-Policy: {policy}\r\n{ALWAYS}\
             \r\n{body}"
        )
        .into_bytes()
    }
}
