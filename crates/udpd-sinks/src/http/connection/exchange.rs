//! One request and its answer.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::{AlertDescription, CertificateError, ClientConfig};
use ureq::http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, LOCATION, RETRY_AFTER};
use ureq::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use ureq::unversioned::transport::{ConnectProxyConnector, Connector};
use ureq::{Agent, Error, Proxy, SendBody, Timeout};

use super::super::answer::{ANSWER_BYTES_MAX, ServerAnswer};
use super::super::{HttpProfile, HttpSettings};
use super::connector::{HttpConnector, RequestWatch, TargetResolver};
use crate::peer_trouble;
use crate::target::DestinationTarget;
use udpd_base::codec::{self, Recipe};
use udpd_base::seams::clock;
use udpd_base::text::units::print_duration;

/// What ureq takes for a connection: what it has read, and what it is to write.
pub(in crate::http) const BUFFER_BYTES: usize = 2 * HALF_BUFFER_BYTES;
const HALF_BUFFER_BYTES: usize = 64 << 10;

/// How bodies are compressed: fast. The level of a file would take longer than the datagrams take to come.
pub(super) fn recipe(method: codec::Method) -> Recipe {
    Recipe { method, level: 1 }
}

/// So much of an answer is read. The answer to a bulk request has an item for each record.
pub(super) fn answer_bytes_max(profile: HttpProfile) -> usize {
    match profile {
        HttpProfile::Elasticsearch => 16 << 20,
        _ => ANSWER_BYTES_MAX,
    }
}

/// An answer but for its body.
#[derive(Debug)]
pub(super) struct AnswerHead {
    pub(super) status: u16,
    retry_after: Option<Duration>,
    exception_code: Option<String>,
    location: Option<String>,
}

impl AnswerHead {
    fn of<B>(response: &Response<B>) -> Self {
        let text = |name: &HeaderName| response.headers().get(name).and_then(|value| value.to_str().ok());
        Self {
            status: response.status().as_u16(),
            retry_after: text(&RETRY_AFTER).and_then(|text| retry_after(text, clock::wall())),
            exception_code: text(&HeaderName::from_static("x-clickhouse-exception-code")).map(str::to_owned),
            location: text(&LOCATION).map(str::to_owned),
        }
    }

    pub(super) fn with_body<'a>(&'a self, body: &'a [u8]) -> ServerAnswer<'a> {
        let Self { status, retry_after, exception_code, location } = self;
        let (exception_code, location) = (exception_code.as_deref(), location.as_deref());
        ServerAnswer { status: *status, retry_after: *retry_after, exception_code, location, body }
    }
}

/// How long a server wants to be left alone: seconds, or a date.
pub(in crate::http) fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let then = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text.trim()).ok()?;
    let then = Duration::from_secs(u64::try_from(then.as_second()).ok()?);
    Some(then.saturating_sub(now.duration_since(UNIX_EPOCH).ok()?))
}

/// A request without a whole answer.
#[derive(Debug)]
pub(in crate::http) struct ExchangeTrouble {
    pub(in crate::http) what: String,
    pub(in crate::http) cure: &'static str,
    /// The server may have the records.
    pub(super) is_doubtful: bool,
    /// It was sent by a connection that the server had closed meanwhile.
    pub(in crate::http) is_stale: bool,
}

/// Sends requests to one server.
#[derive(Debug)]
pub(in crate::http) struct Exchange {
    agent: Agent,
    watch: Arc<RequestWatch>,
    headers: HeaderMap,
    timeout: Duration,
    answer_bytes_max: usize,
}

impl Exchange {
    pub(in crate::http) fn new(
        settings: &HttpSettings,
        client: Option<Arc<ClientConfig>>,
        target: Arc<DestinationTarget>,
        watch: Arc<RequestWatch>,
    ) -> Result<Self, Error> {
        let proxy = settings.proxy.as_ref().map(|proxy| Proxy::new(&proxy.text)).transpose()?;
        let timeout = settings.timeout;
        let config = Agent::config_builder()
            .proxy(proxy)
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("udpd/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("")
            .max_idle_connections(1)
            .max_idle_connections_per_host(1)
            .input_buffer_size(HALF_BUFFER_BYTES)
            .output_buffer_size(HALF_BUFFER_BYTES)
            .timeout_connect(Some(timeout))
            .timeout_send_body(Some(timeout))
            .timeout_recv_response(Some(timeout))
            // Each byte of an answer may be late, and yet it has an end.
            .timeout_global(Some(2 * timeout))
            .build();
        let connector = HttpConnector { tls: settings.tls(), client, watch: Arc::clone(&watch) };
        let resolver = TargetResolver { target, watch: Arc::clone(&watch) };
        let agent = Agent::with_parts(config, ConnectProxyConnector::default().chain(connector), resolver);
        let answer_bytes_max = answer_bytes_max(settings.profile);
        Ok(Self { agent, watch, headers: headers(settings), timeout, answer_bytes_max })
    }

    /// Whether its end was not the server's doing.
    pub(in crate::http) fn is_interrupted(&self) -> bool {
        self.watch.is_interrupted()
    }

    pub(in crate::http) fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Sends a request and reads the answer, whose body it puts into `answer`.
    pub(super) fn send(
        &self,
        target: &str,
        content_type: &str,
        authorization: Option<&HeaderValue>,
        body: &[u8],
        answer: &mut Vec<u8>,
    ) -> Result<AnswerHead, ExchangeTrouble> {
        let mut headers = HeaderMap::new();
        if !self.headers.contains_key(CONTENT_TYPE)
            && let Ok(content_type) = HeaderValue::try_from(content_type)
        {
            headers.insert(CONTENT_TYPE, content_type);
        }
        headers.extend(self.headers.clone());
        if let Some(authorization) = authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        let (mut reader, length) = (body, body.len() as u64);
        self.ask(Method::POST, target, headers, (&mut reader, length), answer).map(|response| AnswerHead::of(&response))
    }

    /// Sends a request of any kind, with so many bytes of a body, and reads the answer, whose body it puts into
    /// `answer`.
    pub(in crate::http) fn ask(
        &self,
        method: Method,
        target: &str,
        mut headers: HeaderMap,
        (body, length): (&mut dyn Read, u64),
        answer: &mut Vec<u8>,
    ) -> Result<Response<()>, ExchangeTrouble> {
        self.watch.begin();
        answer.clear();
        let mut reader = BodyReader { left: body, watch: &self.watch };
        let has_body = method != Method::GET;
        if has_body {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        let answered = || {
            let mut request = Request::builder().method(method).uri(target).body(())?;
            *request.headers_mut() = headers;
            let (head, body) = match has_body {
                true => self.agent.run(request.map(|()| SendBody::from_reader(&mut reader)))?,
                false => self.agent.run(request)?,
            }
            .into_parts();
            body.into_reader().take(self.answer_bytes_max as u64).read_to_end(answer)?;
            Ok(Response::from_parts(head, ()))
        };
        answered().map_err(|error| self.trouble(&error))
    }

    fn trouble(&self, error: &Error) -> ExchangeTrouble {
        let is_refused_by_tls = tls_error(error).is_some_and(is_refusal);
        let (what, cure) = self.words(error);
        ExchangeTrouble {
            what,
            cure,
            // A server that ends the handshake has not read on.
            is_doubtful: self.watch.has_body_left() && !is_refused_by_tls,
            is_stale: matches!(error, Error::Io(_)) && !is_refused_by_tls && self.watch.is_on_old_connection(),
        }
    }

    /// What has happened, and what to do about it.
    fn words(&self, error: &Error) -> (String, &'static str) {
        let limit = print_duration(self.timeout);
        match error {
            Error::Timeout(Timeout::Connect | Timeout::Resolve) => {
                (format!("cannot be reached within {limit}"), "; see whether a firewall on the way drops it")
            }
            Error::Timeout(Timeout::Global) => {
                (format!("has not answered in full within twice {limit}"), "; see its log, or raise timeout")
            }
            Error::Timeout(_) => (format!("has not answered within {limit}"), "; see its log, or raise timeout"),
            Error::Io(error) if self.watch.has_body_left() => {
                (format!("has ended the connection before its answer: {}", plain(error)), peer_trouble::cure(error))
            }
            Error::Io(io) => {
                let of_the_name = "; write the name in its certificate into url";
                let cure = if is_of_the_name(error) { of_the_name } else { peer_trouble::cure(io) };
                (format!("cannot be reached: {}", plain(io)), cure)
            }
            Error::ConnectProxyFailed(why) => {
                (format!("cannot be reached: {why}"), "; see whether the proxy allows that host and port")
            }
            Error::Protocol(why) => {
                (format!("does not answer in HTTP: {why}"), "; see whether what listens there is the server")
            }
            other => (format!("cannot be asked: {other}"), ""),
        }
    }
}

/// The headers of every request.
fn headers(settings: &HttpSettings) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Some(method) = settings.compress {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(method.name()));
    }
    for header in &settings.headers {
        // Both were checked when they were read.
        if let (Ok(name), Ok(mut value)) = (HeaderName::try_from(&header.name), HeaderValue::try_from(&header.value)) {
            // Some servers want a secret there.
            value.set_sensitive(true);
            headers.append(name, value);
        }
    }
    headers
}

/// What TLS has refused, on this side or on the other.
fn tls_error(error: &Error) -> Option<&rustls::Error> {
    match error {
        Error::Io(error) => error.get_ref()?.downcast_ref(),
        _ => None,
    }
}

/// Whether one side has refused the other for good: a server that does so has read no request.
fn is_refusal(error: &rustls::Error) -> bool {
    use AlertDescription::{
        AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked, CertificateUnknown,
        HandshakeFailure, ProtocolVersion, UnknownCA,
    };
    match error {
        rustls::Error::InvalidCertificate(_) => true,
        rustls::Error::AlertReceived(alert) => matches!(
            alert,
            AccessDenied
                | BadCertificate
                | CertificateExpired
                | CertificateRequired
                | CertificateRevoked
                | CertificateUnknown
                | HandshakeFailure
                | ProtocolVersion
                | UnknownCA
        ),
        _ => false,
    }
}

fn is_of_the_name(error: &Error) -> bool {
    use CertificateError::{NotValidForName, NotValidForNameContext};
    matches!(tls_error(error), Some(rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })))
}

/// An error in the words of an operator.
fn plain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "its program has closed the connection".to_owned(),
        _ => error.to_string(),
    }
}

/// A body that notes when it is begun.
struct BodyReader<'a> {
    left: &'a mut dyn Read,
    watch: &'a RequestWatch,
}

impl Read for BodyReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.watch.note_body();
        self.left.read(into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_says_in_seconds_or_by_a_date_how_long_it_wants_to_be_left_alone() {
        let now = UNIX_EPOCH + Duration::from_secs(784_111_777);
        for (text, expected) in [
            ("120", Some(120)),
            (" 0 ", Some(0)),
            ("Sun, 06 Nov 1994 08:49:47 GMT", Some(10)),
            ("Sun, 06 Nov 1994 08:49:30 GMT", Some(0)),
            ("soon", None),
            ("-1", None),
        ] {
            assert_eq!(retry_after(text, now), expected.map(Duration::from_secs), "{text}");
        }
    }
}
