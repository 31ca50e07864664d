//! Servers on loopback that do as a test says, and connections to them.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::super::answer::ServerAnswer;
use super::super::request::{BatchOutcome, ConnectionReport, FinishedBatch, RefusedRecord, RequestBatch, Verdict};
use super::super::{HttpProfile, HttpSettings, parse_url};
use super::HttpConnections;
use crate::target::Lookup;
use udpd_base::handover::Caller;
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::settings::TableSettings;

/// What a server does when it has a request.
pub(in crate::http) enum Reply {
    /// A status, headers and a body.
    Answer(u16, &'static str, String),
    /// These bytes, and the end of the connection.
    Raw(&'static str),
    /// A byte at a time, until there is no client any more.
    Drip(&'static str),
    /// Waits for the other side of the channel, and then does this.
    After(Receiver<()>, Box<Self>),
    /// Something else happens before.
    Doing(Box<dyn FnOnce() + Send>, Box<Self>),
    /// Ends the connection after the answer, of which it says nothing.
    Closing(Box<Self>),
}

impl Reply {
    pub(in crate::http) fn taken() -> Self {
        Self::Answer(200, "", String::new())
    }

    pub(in crate::http) fn status(status: u16) -> Self {
        Self::Answer(status, "", String::new())
    }
}

/// A request as a server has got it.
#[derive(Debug, Clone)]
pub(in crate::http) struct SeenRequest {
    /// The number of its connection.
    pub(in crate::http) connection: usize,
    /// Its first line and its headers, in small letters.
    pub(in crate::http) head: String,
    pub(in crate::http) body: Vec<u8>,
}

impl SeenRequest {
    pub(in crate::http) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    /// The value of a header.
    pub(in crate::http) fn header(&self, name: &str) -> Option<&str> {
        let value = |line: &str| line.strip_prefix(name)?.strip_prefix(": ").map(str::len);
        let length = self.head.lines().find_map(value)?;
        let line = self.head.lines().find(|line| value(line).is_some())?;
        Some(&line[line.len() - length..])
    }
}

/// The name of a batch, by the request line.
pub(in crate::http) fn token(request: &SeenRequest) -> String {
    let (_, behind) = request.head.split_once("insert_deduplication_token=").expect("it has one");
    behind.split(['&', ' ']).next().expect("a token").to_owned()
}

#[derive(Debug, Default)]
struct Shared {
    seen: Mutex<Vec<SeenRequest>>,
    is_done: AtomicBool,
}

/// What a server replies to a request.
type Replies = Mutex<Box<dyn FnMut(&SeenRequest) -> Reply + Send>>;

/// A server that has a reply for each request.
pub(in crate::http) struct TestServer {
    pub(in crate::http) address: SocketAddr,
    shared: Arc<Shared>,
    thread: JoinHandle<usize>,
}

impl TestServer {
    pub(in crate::http) fn start(replies: Vec<Reply>) -> Self {
        Self::listen("127.0.0.1:0", replies, None)
    }

    /// With replies in the order in which requests come.
    pub(in crate::http) fn listen(address: &str, replies: Vec<Reply>, tls: Option<Arc<ServerConfig>>) -> Self {
        let mut replies = VecDeque::from(replies);
        Self::replying(address, move |_| replies.pop_front().expect("a reply for each request"), tls)
    }

    pub(in crate::http) fn replying(
        address: &str,
        replies: impl FnMut(&SeenRequest) -> Reply + Send + 'static,
        tls: Option<Arc<ServerConfig>>,
    ) -> Self {
        let listener = TcpListener::bind(address).expect("a free port");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let replies: Arc<Replies> = Arc::new(Mutex::new(Box::new(replies)));
        let thread = std::thread::spawn(move || {
            let mut connections: Vec<JoinHandle<()>> = Vec::new();
            loop {
                let (stream, _) = listener.accept().expect("a connection");
                if own.is_done.load(Ordering::Relaxed) {
                    break;
                }
                let (number, replies, own, tls) =
                    (connections.len(), Arc::clone(&replies), Arc::clone(&own), tls.clone());
                connections.push(std::thread::spawn(move || match tls {
                    None => serve(&stream, number, &replies, &own),
                    Some(tls) => {
                        let connection = ServerConnection::new(tls).expect("a connection");
                        serve(StreamOwned::new(connection, stream), number, &replies, &own);
                    }
                }));
            }
            let count = connections.len();
            connections.into_iter().for_each(|connection| connection.join().expect("no panic"));
            count
        });
        Self { address, shared, thread }
    }

    pub(in crate::http) fn url(&self) -> String {
        format!("http://{}/in", self.address)
    }

    pub(in crate::http) fn seen(&self) -> Vec<SeenRequest> {
        self.shared.seen.lock().expect("no panic").clone()
    }

    /// Waits until it has so many requests.
    pub(in crate::http) fn until_seen(&self, count: usize) {
        until("the requests have come", || self.seen().len() >= count);
    }

    /// All requests, and how many connections there were. Its clients are to be gone.
    pub(in crate::http) fn end(self) -> (Vec<SeenRequest>, usize) {
        self.shared.is_done.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.address).expect("it listens"));
        let connections = self.thread.join().expect("no panic");
        let seen = self.shared.seen.lock().expect("no panic").clone();
        (seen, connections)
    }
}

/// Waits until this holds.
pub(in crate::http) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = std::time::Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(std::time::Instant::now() < limit, "{what}");
        std::thread::yield_now();
    }
}

fn serve(stream: impl Read + Write, connection: usize, replies: &Replies, shared: &Shared) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            match stream.read_line(&mut head) {
                Ok(count) if count > 0 => {}
                _ => return,
            }
        }
        // The values of headers are compared as they are.
        let small = |line: &str| match line.split_once(": ") {
            Some((name, value)) => format!("{}: {value}\n", name.to_lowercase()),
            None => format!("{line}\n"),
        };
        let head: String = head.lines().map(small).collect();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        if stream.read_exact(&mut body).is_err() {
            return;
        }
        let request = SeenRequest { connection, head, body };
        shared.seen.lock().expect("no panic").push(request.clone());
        let reply = (replies.lock().expect("no panic"))(&request);
        if !answer(stream.get_mut(), reply) {
            return;
        }
    }
}

/// Whether the connection goes on.
fn answer(stream: &mut (impl Read + Write), reply: Reply) -> bool {
    match reply {
        Reply::Answer(status, headers, body) => {
            let mut text = format!("HTTP/1.1 {status} Said\r\nContent-Length: {}\r\n", body.len());
            let _ = write!(text, "{headers}\r\n{body}");
            stream.write_all(text.as_bytes()).and_then(|()| stream.flush()).is_ok()
        }
        Reply::Raw(text) => {
            let _ = stream.write_all(text.as_bytes()).and_then(|()| stream.flush());
            false
        }
        Reply::Drip(text) => {
            for byte in text.bytes().chain(std::iter::repeat(b'.')) {
                if stream.write_all(&[byte]).and_then(|()| stream.flush()).is_err() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            false
        }
        Reply::After(released, reply) => {
            // A test that has ended wants no answer.
            released.recv().is_ok() && answer(stream, *reply)
        }
        Reply::Doing(action, reply) => {
            action();
            answer(stream, *reply)
        }
        Reply::Closing(reply) => {
            answer(stream, *reply);
            false
        }
    }
}

pub(in crate::http) fn to(url: &str) -> HttpSettings {
    HttpSettings { url: parse_url(url).expect("a URL"), ..HttpSettings::defaults() }
}

/// Connections whose answers are read by [`read_answer`].
pub(super) fn connections(settings: &HttpSettings) -> HttpConnections {
    let (registry, _events) = ThreadRegistry::new();
    let lookup = Lookup { registry: &registry, every: settings.resolve_every, sink: "s", bound: &[] };
    HttpConnections::start_judged(settings, lookup, 0, Caller::default(), read_answer).expect("it starts")
}

/// A judge that reads of each record in the answer: "again 1", "refused 2".
fn read_answer(_: HttpProfile, answer: &ServerAnswer<'_>, _: usize) -> Verdict {
    let text = String::from_utf8_lossy(answer.body);
    let places = |word: &str| -> Vec<usize> {
        let place = |line: &str| line.strip_prefix(word)?.trim().parse().ok();
        text.lines().filter_map(place).collect()
    };
    let refused: Vec<RefusedRecord> =
        places("refused").into_iter().map(|place| RefusedRecord { place, reason: "too odd".to_owned() }).collect();
    let (again, after) = (places("again"), answer.retry_after);
    match answer.status {
        200 if again.is_empty() => Verdict::Taken { refused },
        200 => Verdict::Partly { refused, again, reason: "busy".to_owned(), after },
        400 => Verdict::Refused { reason: text.into_owned() },
        413 => Verdict::TooLarge { reason: "too large".to_owned() },
        status => Verdict::Later { reason: format!("it answered {status}"), after },
    }
}

/// A batch with a line for each record.
pub(super) fn batch(records: &[&str]) -> RequestBatch {
    let mut batch = RequestBatch::new(0);
    for record in records {
        batch.body.extend_from_slice(record.as_bytes());
        batch.body.push(b'\n');
        batch.ends.push(batch.body.len());
        batch.listeners.push(0);
    }
    batch
}

/// A batch that has ended, and how often records were sent again that the server may have had.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) ticket: u64,
    pub(super) batch: RequestBatch,
    pub(super) outcome: BatchOutcome,
    pub(super) repeated: u64,
}

/// The next batch that has ended.
pub(super) fn finished(connections: &mut HttpConnections) -> Ended {
    let (mut found, mut repeated) = (None, 0);
    until("a batch ends", || {
        match connections.take_report() {
            Some(ConnectionReport::Repeats(repeats)) => {
                repeated += repeats.iter().map(|(_, records)| records).sum::<u64>();
            }
            Some(ConnectionReport::Finished(batch)) => found = Some(batch),
            None => {}
        }
        found.is_some()
    });
    let FinishedBatch { ticket, batch, outcome } = found.expect("found");
    Ended { ticket, batch, outcome, repeated }
}
