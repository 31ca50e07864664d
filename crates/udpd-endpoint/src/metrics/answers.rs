//! What is at which path, and who gets it.
//!
//! Scrapes are what the address is there for: the page, its stream and its history are guests, who have five of the
//! eight places and streams four of these, so that no number of open pages keeps a Prometheus server out.

use std::sync::Arc;
use std::time::Duration;

use super::exposition::exposition;
use super::history::History;
use super::hosts;
use super::listener_hours::STEP_SECONDS;
use super::page::Page;
use super::request::{Request, head_length};
use super::response::Response;
use super::token::TokenFile;
use crate::exchange::{Asker, Limits, Protocol, Question, Reply};
use udpd_base::ledger::Snapshot;

/// A few scrapers and a few people, and the longest request head; a body is never read.
const LIMITS: Limits =
    Limits { guests_max: 5, streams_max: 4, beat: Some(Duration::from_secs(1)), ..Limits::new(8, 8192) };

const JSON: &str = "application/json";

/// Everything that an answer is made from.
pub(super) struct Answers<S> {
    snapshot: S,
    token: Option<TokenFile>,
    /// Whether only this host reaches the address.
    is_local: bool,
    machine: String,
    page: Page,
    history: History,
    /// The reading that the history ends with.
    last: Option<Snapshot>,
}

/// Why somebody gets nothing.
enum Refusal {
    Token,
    Host,
    Site,
}

impl<S: Fn() -> Snapshot> Answers<S> {
    pub(super) fn new(snapshot: S, token: Option<TokenFile>, is_local: bool) -> Self {
        let machine = hosts::machine();
        Self { snapshot, token, is_local, machine, page: Page::new(), history: History::new(), last: None }
    }

    fn refuses(&self, request: &Request<'_>) -> Option<Refusal> {
        if let Some(token) = &self.token {
            return (!token.allows(request.authorization)).then_some(Refusal::Token);
        }
        // A scraper on another host calls this one by whatever name its network has for it.
        let any_name = !self.is_local && request.path == "/metrics";
        if !any_name && !hosts::is_own(request.host, &self.machine) {
            return Some(Refusal::Host);
        }
        None
    }

    /// A stream begins with the reading that the history ends with, so that whoever asks for both can join them.
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

    fn answer(&mut self, request: &Request<'_>, asker: &Asker<'_>) -> Reply {
        let with_body = request.method != "HEAD";
        let now = |response: Response<'_>| Reply::Now(response.bytes(with_body));
        if let Some(refusal) = self.refuses(request).or_else(|| from_elsewhere(request)) {
            return now(refusal.response());
        }
        let is_known = matches!(request.path, "/" | "/metrics" | "/stream" | "/history" | "/alive");
        if !is_known {
            return now(Response::words("404 Not Found", "The page is at /, the metrics are at /metrics.\n"));
        }
        if !matches!(request.method, "GET" | "HEAD") {
            let refusal = Response::words("405 Method Not Allowed", "udpd serves only GET and HEAD.\n");
            return now(refusal.field("Allow", "GET, HEAD"));
        }
        if request.path == "/metrics" {
            let text = exposition(&(self.snapshot)());
            return now(Response::new("200 OK", "text/plain; version=0.0.4; charset=utf-8", &text));
        }
        let is_stream = request.path == "/stream" && with_body;
        if !(if is_stream { asker.has_place_for_stream() } else { asker.has_place_for_guest() }) {
            return now(full(is_stream));
        }
        let response = match request.path {
            "/" => Response::new("200 OK", "text/html; charset=utf-8", self.page.text()).policy(self.page.policy()),
            // The page asks for this in a frame: a browser tells its console of every fetch that fails.
            "/alive" => Response::words("200 OK", "alive\n").policy("default-src 'none'; frame-ancestors 'self'"),
            "/history" => {
                let step = request.parameter("step").and_then(|text| text.parse().ok()).unwrap_or(STEP_SECONDS);
                let json = self.history.json(step.clamp(1, 3600));
                return Reply::Guest(Response::new("200 OK", JSON, &json).bytes(with_body));
            }
            _ if is_stream => {
                let mut first = Response::stream().bytes(true);
                first.extend(line(self.last()));
                return Reply::Stream(first);
            }
            _ => Response::stream(),
        };
        Reply::Guest(response.bytes(with_body))
    }
}

/// Numbers go to no script of another site, and none of them takes the place of a guest.
fn from_elsewhere(request: &Request<'_>) -> Option<Refusal> {
    let is_data = matches!(request.path, "/stream" | "/history" | "/alive");
    let is_own = matches!(request.site, None | Some("same-origin" | "none"));
    (is_data && !is_own).then_some(Refusal::Site)
}

fn full(is_stream: bool) -> Response<'static> {
    let words = if is_stream {
        "As many pages are open as udpd serves at once, which is 4. Close one, or try again later.\n"
    } else {
        "As many pages are being served as udpd serves at once. Try again.\n"
    };
    Response::words("503 Service Unavailable", words).field("Retry-After", "5")
}

impl Refusal {
    fn response(&self) -> Response<'static> {
        match self {
            Self::Token => Response::words(
                "401 Unauthorized",
                "This needs the token in the file that metrics_token_file names, as the password (of any user) or as a \
                 bearer token.\n",
            )
            .field("WWW-Authenticate", "Basic realm=\"udpd\", charset=\"UTF-8\"")
            .field("WWW-Authenticate", "Bearer realm=\"udpd\""),
            Self::Host => Response::words(
                "421 Misdirected Request",
                "udpd is not known by the name in this request, which may be a trick of a foreign site. Ask for an \
                 address, for localhost or for the name of this machine, or set metrics_token_file: then any name \
                 will do.\n",
            ),
            Self::Site => Response::words("403 Forbidden", "udpd shows its numbers to no other site.\n"),
        }
    }
}

fn line(snapshot: &Snapshot) -> Vec<u8> {
    let mut line = serde_json::to_vec(snapshot).unwrap_or_default();
    line.push(b'\n');
    line
}

impl<S: Fn() -> Snapshot + Send + 'static> Protocol for Answers<S> {
    fn limits(&self) -> Limits {
        LIMITS
    }

    fn question_length(&self, bytes: &[u8]) -> Option<usize> {
        head_length(bytes)
    }

    fn reply(&mut self, question: Question<'_>, asker: &Asker<'_>) -> Reply {
        let response = match question {
            Question::Whole(head) => match Request::read(head) {
                Some(request) => return self.answer(&request, asker),
                None => Response::words("400 Bad Request", "udpd does not serve this HTTP request.\n"),
            },
            Question::TooLong => Response::words(
                "431 Request Header Fields Too Large",
                "The head of the request is longer than 8 KiB, which is as much as udpd reads.\n",
            ),
        };
        Reply::Now(response.bytes(true))
    }

    /// One reading of the ledger, for the history and for every stream.
    fn beat(&mut self, has_streams: bool) -> Option<Arc<[u8]>> {
        self.record();
        if let Some(token) = &mut self.token {
            token.look();
        }
        has_streams.then(|| line(self.last()).into())
    }
}
