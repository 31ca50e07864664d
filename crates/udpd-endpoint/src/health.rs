//! The health address: whether a balancer, a router or Kubernetes is to send here. It answers every client, without a
//! token, because it says a word and a sentence and no number.
//!
//! The main thread looks once a second and publishes the answer as bytes; the thread here copies them. It works at a
//! lower priority than receivers, on few clients at a time: of those that have not asked yet the oldest gives way to
//! the newest, so any number of slow clients keep no question out.
//!
//! A balancer that can only connect takes a connection that is accepted for "ready". It has a socket of its own, which
//! refuses connections while udpd is not ready: on Linux a listening socket that is shut down keeps its port and can
//! listen again.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, setsockopt, sockopt};

use crate::metrics::listen_failure;
use crate::service::{AskingClient, ClientQuestion, Reply, Service, ServiceLimits, ServiceProtocol, StreamListener};
use udpd_base::exit::Failure;
use udpd_base::ledger::snapshot::ReadinessSnapshot;
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads::{ThreadRegistry, lock};

/// A check is short, and one that has asked is answered in the same round.
const LIMITS: ServiceLimits = ServiceLimits { asking: Duration::from_secs(5), ..ServiceLimits::new(256, 4096) };

/// Below receivers and consumers, above what compresses files.
const NICE: i32 = 5;

/// A bound address, which is not served yet.
#[derive(Debug)]
pub struct HealthServer {
    listener: TcpListener,
    key: &'static str,
    by_readiness: bool,
}

/// The socket of one address.
#[derive(Debug)]
struct HealthListener {
    listener: TcpListener,
    is_open: AtomicBool,
    /// Whether it refuses connections while udpd is not ready.
    by_readiness: bool,
}

impl StreamListener for HealthListener {
    type Client = TcpStream;

    fn accept(&self) -> io::Result<TcpStream> {
        StreamListener::accept(&self.listener)
    }

    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }
}

impl AsFd for HealthListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl HealthListener {
    fn follow(&self, is_ready: bool) {
        if is_ready == self.is_open() {
            return;
        }
        if is_ready {
            match socket::listen(&self.listener, Backlog::MAXALLOWABLE) {
                Ok(()) => self.is_open.store(true, Ordering::Release),
                Err(error) => log::warn!(
                    "health_connect_address cannot listen again: {error}; ss -ltnp shows who has its port; until then \
                     it refuses connections"
                ),
            }
        } else {
            self.is_open.store(false, Ordering::Release);
            // It fails only for a descriptor that is no listening socket.
            let _ = socket::shutdown(self.listener.as_raw_fd(), socket::Shutdown::Both);
        }
    }
}

impl HealthServer {
    /// Binds the address that this key names. `by_readiness`: connections are refused while udpd is not ready.
    pub fn bind(key: &'static str, address: SocketAddr, by_readiness: bool) -> Result<Self, Failure> {
        // Another daemon of this user that has the address would share it otherwise, and each get a part of the checks.
        drop(Self::bind_with(key, address, by_readiness, false)?);
        Self::bind_beside(key, address, by_readiness)
    }

    /// The same beside a process of this user that is to be taken over from: so no connection is refused in between.
    pub fn bind_beside(key: &'static str, address: SocketAddr, by_readiness: bool) -> Result<Self, Failure> {
        Self::bind_with(key, address, by_readiness, true)
    }

    fn bind_with(key: &'static str, address: SocketAddr, by_readiness: bool, shares: bool) -> Result<Self, Failure> {
        let bind = || {
            let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
            let own = socket::socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
            setsockopt(&own, sockopt::ReuseAddr, &true)?;
            setsockopt(&own, sockopt::ReusePort, &shares)?;
            socket::bind(own.as_raw_fd(), &SockaddrStorage::from(address))?;
            Ok(own)
        };
        let own = bind().map_err(|error: nix::Error| listen_failure(key, address, &error.into()))?;
        Ok(Self { listener: TcpListener::from(own), key, by_readiness })
    }

    /// Answers what is published, on a thread of its own, until stopped.
    pub fn serve(self, registry: &ThreadRegistry, board: &HealthBoard) -> Result<HealthHandle, Failure> {
        let Self { listener, key, by_readiness } = self;
        let is_open = AtomicBool::new(!by_readiness);
        let listener = HealthListener { listener, is_open, by_readiness };
        let name = if key == "health_address" { "udpd-health" } else { "udpd-connects" };
        Ok(HealthHandle { service: Arc::new(Service::start(name, listener, registry, board.clone())?) })
    }
}

/// An address that is served.
#[derive(Debug)]
#[must_use = "the address is served until it is stopped"]
pub struct HealthHandle {
    service: Arc<Service<HealthListener>>,
}

impl HealthHandle {
    /// For following what is published.
    pub fn follower(&self) -> impl Fn(bool) + Send + 'static {
        let service = Arc::downgrade(&self.service);
        move |is_ready| {
            if let Some(service) = service.upgrade().filter(|service| service.listener().by_readiness) {
                service.change_socket(|listener| listener.follow(is_ready));
            }
        }
    }

    /// Ends the service.
    pub fn stop(self) {
        if let Ok(service) = Arc::try_unwrap(self.service) {
            service.stop();
        }
    }
}

/// Where the main thread publishes whether udpd is ready.
#[derive(Debug, Clone)]
pub struct HealthBoard(Arc<Mutex<Arc<PublishedAnswers>>>);

/// What is answered, as bytes.
#[derive(Debug)]
struct PublishedAnswers {
    ready: Vec<u8>,
    ready_head: Vec<u8>,
}

impl HealthBoard {
    pub fn new(readiness: &ReadinessSnapshot) -> Self {
        Self(Arc::new(Mutex::new(Arc::new(PublishedAnswers::of(readiness)))))
    }

    pub fn publish(&self, readiness: &ReadinessSnapshot) {
        let answers = Arc::new(PublishedAnswers::of(readiness));
        *lock(&self.0) = answers;
    }
}

impl PublishedAnswers {
    fn of(readiness: &ReadinessSnapshot) -> Self {
        let status = if readiness.ready { "200 OK" } else { "503 Service Unavailable" };
        let body =
            if readiness.ready { "ready\n".into() } else { format!("{}\n{}\n", readiness.reason, readiness.text) };
        Self { ready: response(status, &body, true), ready_head: response(status, &body, false) }
    }
}

fn response(status: &str, body: &str, with_body: bool) -> Vec<u8> {
    let length = body.len();
    let body = if with_body { body } else { "" };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\nCache-Control: \
         no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

/// The method and the path of a request line. Nothing else of a request matters here: what checks health often sends no
/// `Host`, and the answer is the same for all.
fn request_line(head: &[u8]) -> Option<(&str, &str)> {
    let line = std::str::from_utf8(head.split(|byte| *byte == b'\n').next()?).ok()?;
    match line.trim_end_matches('\r').split(' ').collect::<Vec<_>>()[..] {
        [method, target, version] if version.starts_with("HTTP/1.") => Some((method, target.split('?').next()?)),
        _ => None,
    }
}

impl ServiceProtocol for HealthBoard {
    fn limits(&self) -> ServiceLimits {
        LIMITS
    }

    fn role(&self) -> ThreadRole {
        ThreadRole::Health
    }

    fn begin(&self) {
        if let Err(error) = rustix::process::setpriority_process(None, NICE) {
            log::warn!("cannot lower the priority of the thread that answers checks of health: {error}");
        }
    }

    fn question_length(&self, bytes: &[u8]) -> Option<usize> {
        crate::metrics::head_length(bytes)
    }

    fn reply(&mut self, question: ClientQuestion<'_>, _: &AskingClient<'_>) -> Reply {
        let line = match question {
            ClientQuestion::Whole(head) => request_line(head),
            ClientQuestion::TooLong => None,
        };
        let published = || Arc::clone(&lock(&self.0));
        Reply::Now(match line {
            Some(("GET" | "OPTIONS", "/ready")) => published().ready.clone(),
            Some(("HEAD", "/ready")) => published().ready_head.clone(),
            Some((method @ ("GET" | "HEAD" | "OPTIONS"), "/live")) => response("200 OK", "live\n", method != "HEAD"),
            Some(("GET" | "HEAD" | "OPTIONS", _)) => {
                response("404 Not Found", "udpd answers at /ready and at /live.\n", true)
            }
            Some(_) => response("405 Method Not Allowed", "udpd answers GET, HEAD and OPTIONS.\n", true),
            None => response("400 Bad Request", "This is no request of HTTP/1 that udpd reads.\n", true),
        })
    }
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
