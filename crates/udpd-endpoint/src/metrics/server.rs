//! The metrics address: bound before the daemon takes its first datagram, and served by one thread from then on. What
//! is at which path, and for which client.
//!
//! The address is there for scrapers. The page, its stream and its history are secondary: they have five of the eight
//! places, and streams four of these, so that no number of open pages keeps a Prometheus server out.

use std::io;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::access;
use super::access::TokenFile;
use super::days::DayHistory;
use super::exposition::exposition;
use super::history::{HourHistory, STEP_SECONDS};
use super::http::{HttpRequest, HttpResponse, head_length};
use super::page::MetricsPage;
use crate::service::{AskingClient, ClientQuestion, Reply, Service, ServiceLimits, ServiceProtocol};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::ledger::Snapshot;
use udpd_base::ledger::snapshot::{LedgerWithStreams, ListenerStreams};
use udpd_base::os::threads::ThreadRegistry;

/// A few scrapers and a few people, and the longest request head; a body is never read.
const LIMITS: ServiceLimits = ServiceLimits {
    secondary_max: 5,
    streams_max: 4,
    tick: Some(Duration::from_secs(1)),
    ..ServiceLimits::new(8, 8192)
};

/// How many days of history are kept, and in which directory.
#[derive(Debug, Clone, Copy)]
pub struct KeptDays<'a> {
    pub directory: &'a Path,
    pub days: u32,
}

const JSON: &str = "application/json";

/// A bound endpoint, which is not served yet.
#[derive(Debug)]
pub struct MetricsServer {
    listener: TcpListener,
    address: SocketAddr,
}

impl MetricsServer {
    pub fn bind(address: SocketAddr) -> Result<Self, Failure> {
        let bound = TcpListener::bind(address).and_then(|listener| Ok((listener.local_addr()?, listener)));
        let bound = bound.map_err(|error| listen_failure("metrics_address", address, &error));
        bound.map(|(address, listener)| Self { listener, address })
    }

    /// Where it is bound, with the port that the kernel chose if the port was 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers from what `snapshot` returns, on a thread of its own, until stopped: to all that can connect, or
    /// to those with the token.
    pub fn serve(
        self,
        registry: &ThreadRegistry,
        token: Option<TokenFile>,
        days: Option<KeptDays<'_>>,
        snapshot: impl Fn() -> Snapshot + Send + 'static,
        streams: impl Fn() -> Vec<ListenerStreams> + Send + 'static,
    ) -> Result<MetricsHandle, Failure> {
        if token.is_none() && !self.address.ip().is_loopback() {
            log::warn!(
                "everybody who can reach metrics_address = \"{}\" can see the metrics and the page, with the addresses \
                 of the busiest senders; set metrics_token_file, or let a firewall decide who reaches it",
                self.address
            );
        }
        let days = days.map(|KeptDays { directory, days }| {
            DayHistory::open(&super::days::file_in(directory, self.address), days, registry)
        });
        let answers = MetricsAnswers::new((snapshot, streams), token, self.address.ip().is_loopback(), days);
        let service = Service::start("udpd-metrics", self.listener, registry, answers)?;
        Ok(MetricsHandle { service })
    }
}

/// Why the address that a key names cannot be had.
pub(crate) fn listen_failure(key: &str, address: SocketAddr, error: &io::Error) -> Failure {
    let (code, cure) = match error.kind() {
        ErrorKind::AddrInUse => {
            let cure = format!("`ss -ltnp sport = :{}` shows who has it; choose another port", address.port());
            (ExitCode::Unavailable, cure)
        }
        ErrorKind::AddrNotAvailable => {
            (ExitCode::Unavailable, "no interface has this address; choose one of this host".into())
        }
        ErrorKind::PermissionDenied => (ExitCode::Permission, "choose a port above 1023".into()),
        _ => (ExitCode::Unavailable, "choose another address".into()),
    };
    let way_out = format!("or set {key} to \"\" to run without");
    Failure::new(code, format!("cannot bind {key} = \"{address}\": {error}; {cure}, {way_out}"))
}

#[derive(Debug)]
#[must_use = "the endpoint is served until it is stopped"]
pub struct MetricsHandle {
    service: Service<TcpListener>,
}

impl MetricsHandle {
    /// Ends the service. Clients with an owed answer have a second to take it.
    pub fn stop(self) {
        self.service.stop();
    }
}

/// Everything that an answer is made from.
pub(super) struct MetricsAnswers<S, T> {
    snapshot: S,
    streams: T,
    token: Option<TokenFile>,
    /// Whether only this host reaches the address.
    is_local: bool,
    machine: String,
    page: MetricsPage,
    history: HourHistory,
    /// The reading that the history ends with.
    last: Option<Snapshot>,
}

/// Why a client gets nothing.
enum AccessRefusal {
    Token,
    Host,
    Site,
}

impl<S: Fn() -> Snapshot, T: Fn() -> Vec<ListenerStreams>> MetricsAnswers<S, T> {
    pub(super) fn new(
        (snapshot, streams): (S, T),
        token: Option<TokenFile>,
        is_local: bool,
        days: Option<DayHistory>,
    ) -> Self {
        let (machine, history) = (access::machine_name(), HourHistory::new(days));
        Self { snapshot, streams, token, is_local, machine, page: MetricsPage::new(), history, last: None }
    }

    fn refuses(&self, request: &HttpRequest<'_>) -> Option<AccessRefusal> {
        if let Some(token) = &self.token {
            return (!token.allows(request.authorization)).then_some(AccessRefusal::Token);
        }
        // A scraper on another host calls this one by whatever name its network has for it.
        let any_name = !self.is_local && request.path == "/metrics";
        if !any_name && !access::is_own_name(request.host, &self.machine) {
            return Some(AccessRefusal::Host);
        }
        None
    }

    /// A stream begins with the reading that the history ends with, so that a client that asks for both can join them.
    fn last(&mut self) -> &Snapshot {
        if self.last.is_none() {
            self.record();
        }
        self.last.as_ref().expect("just recorded")
    }

    fn record(&mut self) {
        let snapshot = (self.snapshot)();
        self.history.record(&snapshot);
        self.last = Some(snapshot);
    }

    fn answer(&mut self, request: &HttpRequest<'_>, asker: &AskingClient<'_>) -> Reply {
        let with_body = request.method != "HEAD";
        let now = |response: HttpResponse<'_>| Reply::Now(response.bytes(with_body));
        if let Some(refusal) = self.refuses(request).or_else(|| from_elsewhere(request)) {
            return now(refusal.response());
        }
        let is_known = matches!(request.path, "/" | "/metrics" | "/ledger" | "/stream" | "/history" | "/alive");
        if !is_known {
            return now(HttpResponse::words("404 Not Found", "The page is at /, the metrics are at /metrics.\n"));
        }
        if !matches!(request.method, "GET" | "HEAD") {
            let refusal = HttpResponse::words("405 Method Not Allowed", "udpd serves only GET and HEAD.\n");
            return now(refusal.field("Allow", "GET, HEAD"));
        }
        if request.path == "/metrics" {
            let text = exposition(&(self.snapshot)());
            return now(HttpResponse::new("200 OK", "text/plain; version=0.0.4; charset=utf-8", &text));
        }
        let is_stream = request.path == "/stream" && with_body;
        if !(if is_stream { asker.has_stream_place } else { asker.has_secondary_place }) {
            return now(full(is_stream));
        }
        let response = match request.path {
            "/" => HttpResponse::new("200 OK", "text/html; charset=utf-8", self.page.text()).policy(self.page.policy()),
            // The page asks for this in a frame: a browser tells its console of every fetch that fails.
            "/alive" => HttpResponse::words("200 OK", "alive\n").policy("default-src 'none'; frame-ancestors 'self'"),
            "/ledger" => {
                let whole = LedgerWithStreams { ledger: (self.snapshot)(), streams: (self.streams)() };
                let json = serde_json::to_string(&whole).unwrap_or_default();
                return Reply::Secondary(HttpResponse::new("200 OK", JSON, &json).bytes(with_body));
            }
            "/history" => {
                let step = request.parameter("step").and_then(|text| text.parse().ok()).unwrap_or(STEP_SECONDS);
                let json = match request.parameter("span") {
                    Some("day") => self.history.json_of_days(1, 5),
                    Some("week") => self.history.json_of_days(7, 30),
                    _ => self.history.json(step.clamp(1, 3600)),
                };
                return Reply::Secondary(HttpResponse::new("200 OK", JSON, &json).bytes(with_body));
            }
            _ if is_stream => {
                let mut first = HttpResponse::stream().bytes(true);
                first.extend(line(self.last()));
                return Reply::Stream(first);
            }
            _ => HttpResponse::stream(),
        };
        Reply::Secondary(response.bytes(with_body))
    }
}

/// Numbers go to no script of another site, and none of them takes a secondary place.
fn from_elsewhere(request: &HttpRequest<'_>) -> Option<AccessRefusal> {
    let is_data = matches!(request.path, "/ledger" | "/stream" | "/history" | "/alive");
    let is_own = matches!(request.site, None | Some("same-origin" | "none"));
    (is_data && !is_own).then_some(AccessRefusal::Site)
}

fn full(is_stream: bool) -> HttpResponse<'static> {
    let words = if is_stream {
        "As many pages are open as udpd serves at once, which is 4. Close one, or try again later.\n"
    } else {
        "As many pages are being served as udpd serves at once. Try again.\n"
    };
    HttpResponse::words("503 Service Unavailable", words).field("Retry-After", "5")
}

impl AccessRefusal {
    fn response(&self) -> HttpResponse<'static> {
        match self {
            Self::Token => HttpResponse::words(
                "401 Unauthorized",
                "This needs the token in the file that metrics_token_file names, as the password (of any user) or as a \
                 bearer token.\n",
            )
            .field("WWW-Authenticate", "Basic realm=\"udpd\", charset=\"UTF-8\"")
            .field("WWW-Authenticate", "Bearer realm=\"udpd\""),
            Self::Host => HttpResponse::words(
                "421 Misdirected Request",
                "udpd is not known by the name in this request, which may be a trick of a foreign site. Ask for an \
                 address, for localhost or for the name of this machine, or set metrics_token_file: then any name \
                 will do.\n",
            ),
            Self::Site => HttpResponse::words("403 Forbidden", "udpd shows its numbers to no other site.\n"),
        }
    }
}

fn line(snapshot: &Snapshot) -> Vec<u8> {
    let mut line = serde_json::to_vec(snapshot).unwrap_or_default();
    line.push(b'\n');
    line
}

impl<S, T> ServiceProtocol for MetricsAnswers<S, T>
where
    S: Fn() -> Snapshot + Send + 'static,
    T: Fn() -> Vec<ListenerStreams> + Send + 'static,
{
    fn limits(&self) -> ServiceLimits {
        LIMITS
    }

    fn question_length(&self, bytes: &[u8]) -> Option<usize> {
        head_length(bytes)
    }

    fn reply(&mut self, question: ClientQuestion<'_>, asker: &AskingClient<'_>) -> Reply {
        let response = match question {
            ClientQuestion::Whole(head) => match HttpRequest::read(head) {
                Some(request) => return self.answer(&request, asker),
                None => HttpResponse::words("400 Bad Request", "udpd does not serve this HTTP request.\n"),
            },
            ClientQuestion::TooLong => HttpResponse::words(
                "431 Request Header Fields Too Large",
                "The head of the request is longer than 8 KiB, which is as much as udpd reads.\n",
            ),
        };
        Reply::Now(response.bytes(true))
    }

    /// One reading of the ledger, for the history and for every stream.
    fn tick(&mut self, has_streams: bool) -> Option<Arc<[u8]>> {
        self.record();
        if let Some(token) = &mut self.token {
            token.look();
        }
        has_streams.then(|| line(self.last()).into())
    }
}
