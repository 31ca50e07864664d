//! As much of HTTP/1.1 as a Prometheus server needs: GET /metrics, one request a connection.
//!
//! Eight connections are held at once and a request has 8 KiB, so no client can hold the endpoint or make it grow.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

use super::exposition::exposition;
use crate::endpoint::exchange::{Asker, Limits, Protocol, Question, Reply, Service};
use crate::exit::{ExitCode, Failure};
use crate::ledger::Snapshot;
use crate::os::crew::Crew;

/// A few scrapers and a few people, and the longest request head; a body is never read.
const LIMITS: Limits = Limits::new(8, 8192);

/// A bound endpoint that nobody serves yet.
#[derive(Debug)]
pub struct MetricsServer {
    listener: TcpListener,
    address: SocketAddr,
}

impl MetricsServer {
    pub fn bind(address: SocketAddr) -> Result<Self, Failure> {
        let bound = TcpListener::bind(address).and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (address, listener) = bound.map_err(|error| {
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
            let way_out = "or set metrics_address to \"\" to run without";
            Failure::new(code, format!("cannot bind metrics_address = \"{address}\": {error}; {cure}, {way_out}"))
        })?;
        Ok(Self { listener, address })
    }

    /// Where it is bound, with the port that the kernel chose if the port was 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers from what `snapshot` returns, on a thread of its own, until stopped.
    pub fn serve(
        self,
        crew: &Crew,
        snapshot: impl Fn() -> Snapshot + Send + 'static,
    ) -> Result<MetricsHandle, Failure> {
        let service = Service::start("udpd-metrics", self.listener, crew, Scrapes(snapshot))?;
        Ok(MetricsHandle { service })
    }
}

/// An endpoint that is being served.
#[derive(Debug)]
#[must_use = "the endpoint is served until it is stopped"]
pub struct MetricsHandle {
    service: Service<TcpListener>,
}

impl MetricsHandle {
    /// Ends the service. Who is owed an answer has a second to take it.
    pub fn stop(self) {
        self.service.stop();
    }
}

/// Answers from what this returns.
struct Scrapes<S>(S);

impl<S: Fn() -> Snapshot + Send + 'static> Protocol for Scrapes<S> {
    fn limits(&self) -> Limits {
        LIMITS
    }

    fn question_length(&self, bytes: &[u8]) -> Option<usize> {
        head_length(bytes)
    }

    fn reply(&mut self, question: Question<'_>, _: &Asker<'_>) -> Reply {
        let request = match question {
            Question::Whole(head) => Request::read(head),
            Question::TooLong => Request::Malformed,
        };
        let response = match request {
            Request::Metrics => {
                let fields = "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n";
                response("200 OK", fields, &exposition(&self.0()))
            }
            Request::ElsePath => response("404 Not Found", PLAIN, "The metrics are at /metrics.\n"),
            Request::ElseMethod => {
                let fields = format!("Allow: GET\r\n{PLAIN}");
                response("405 Method Not Allowed", &fields, "udpd serves only GET.\n")
            }
            Request::Malformed => response("400 Bad Request", PLAIN, "udpd does not serve this HTTP request.\n"),
        };
        Reply::Now(response.into_bytes())
    }
}

const PLAIN: &str = "Content-Type: text/plain; charset=utf-8\r\n";

fn response(status: &str, fields: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{fields}Content-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

/// What a client wants.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    Metrics,
    ElsePath,
    ElseMethod,
    Malformed,
}

impl Request {
    /// Judges a request by its first line; nothing in the fields after it changes the answer.
    fn read(head: &[u8]) -> Self {
        let Ok(head) = std::str::from_utf8(head) else { return Self::Malformed };
        let words: Vec<&str> = head.lines().next().unwrap_or_default().split(' ').collect();
        match words[..] {
            [method, target, "HTTP/1.1" | "HTTP/1.0"] if !method.is_empty() && target.starts_with('/') => {
                let path = target.split('?').next().unwrap_or_default();
                match (method, path) {
                    (_, path) if path != "/metrics" => Self::ElsePath,
                    ("GET", _) => Self::Metrics,
                    _ => Self::ElseMethod,
                }
            }
            _ => Self::Malformed,
        }
    }
}

/// How long the request head is, once its empty line has come.
fn head_length(bytes: &[u8]) -> Option<usize> {
    let with_return = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let without = bytes.windows(2).position(|window| window == b"\n\n");
    with_return.into_iter().chain(without).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::tests::example;
    use std::io::{self, Write};
    use std::net::{Ipv4Addr, TcpStream};
    use std::thread;
    use std::time::Duration;

    fn serve() -> (SocketAddr, MetricsHandle) {
        let server = MetricsServer::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        (server.address(), server.serve(&crate::os::crew::Crew::new().0, example).unwrap())
    }

    fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(request).unwrap();
        io::read_to_string(client).unwrap()
    }

    #[test]
    fn a_scrape_gets_the_whole_exposition_and_its_length() {
        let (address, handle) = serve();
        let answer = ask(address, b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        assert_eq!(body, exposition(&example()));
        handle.stop();
    }

    #[test]
    fn any_other_request_gets_the_status_that_says_why() {
        let (address, handle) = serve();
        for (request, status) in [
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", "405"),
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("GET /metrics/ HTTP/1.1\r\n\r\n", "404"),
            ("GET /metrics?name=x HTTP/1.0\n\n", "200"),
            ("GET /metrics\r\n\r\n", "400"),
            ("GET /metrics HTTP/2\r\n\r\n", "400"),
            ("\r\n\r\n", "400"),
            ("\u{16}\u{3}\u{1} hello TLS \r\n\r\n", "400"),
        ] {
            let answer = ask(address, request.as_bytes());
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {answer}");
        }
        handle.stop();
    }

    #[test]
    fn a_huge_request_is_refused_and_the_refusal_arrives() {
        let (address, handle) = serve();
        let request = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(200_000));
        assert!(ask(address, request.as_bytes()).starts_with("HTTP/1.1 400 "));
        handle.stop();
    }

    #[test]
    fn neither_a_silent_nor_a_dripping_client_keeps_the_next_one_out() {
        let (address, handle) = serve();
        let _silent = TcpStream::connect(address).unwrap();
        let mut dripping = TcpStream::connect(address).unwrap();
        // Drips until the server hangs up, which it does only if dripping buys no time.
        let drips = thread::spawn(move || {
            while dripping.write_all(b"G").is_ok() {
                thread::sleep(Duration::from_millis(10));
            }
        });
        assert!(ask(address, b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
        handle.stop();
        drips.join().unwrap();
    }

    #[test]
    fn an_address_in_use_names_the_key_and_the_cure() {
        let server = MetricsServer::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let failure = MetricsServer::bind(server.address()).unwrap_err();
        assert_eq!(failure.code, ExitCode::Unavailable);
        for part in ["metrics_address", &server.address().to_string(), "ss -ltnp", "another port"] {
            assert!(failure.message.contains(part), "{failure} says nothing of {part}");
        }
    }

    #[test]
    fn an_address_of_another_host_is_unavailable() {
        let failure = MetricsServer::bind("192.0.2.1:9817".parse().unwrap()).unwrap_err();
        assert_eq!(failure.code, ExitCode::Unavailable);
        assert!(failure.message.contains("192.0.2.1:9817"), "{failure}");
    }
}
