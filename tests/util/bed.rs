//! A pipeline that is made anew again and again, a load that never sends more than can wait, and a look at what came.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use udpd_base::exit::Failure;
use udpd_base::ledger::Snapshot;
use udpd_base::ledger::snapshot::{ListenerSnapshot, SinkSnapshot};
use udpd_base::os::crew::Crew;
use udpd_engine::config::{Config, Host};
use udpd_engine::pipeline::{Chronicle, Pipeline};

/// How many datagrams may be on their way: far fewer than a receive buffer holds.
const WINDOW: u64 = 200;

/// How long a look takes at most; never as long unless something is broken.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// A pipeline that is made anew again and again.
pub(crate) struct Bed {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) crew: Crew,
    pub(crate) pipeline: Pipeline,
    pub(crate) port: u16,
}

/// The configuration, with the port and the directory filled in.
pub(crate) fn configuration(text: &str, port: u16, directory: &Path) -> Config {
    let text = text.replace("PORT", &port.to_string()).replace("DIR", &directory.display().to_string());
    Config::parse(&text, "test.toml", &Host::default()).unwrap_or_else(|problems| panic!("{problems:?}"))
}

impl Bed {
    pub(crate) fn start(text: &str) -> Self {
        let port = UdpSocket::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
        let directory = tempfile::tempdir().expect("a directory");
        let config = configuration(text, port, directory.path());
        let plan = udpd_engine::plan::make(&config, &Default::default()).expect("a plan");
        let (crew, _) = Crew::new();
        let pipeline = Pipeline::start(&config, &plan, Instant::now(), &crew).expect("started");
        Self { directory, crew, pipeline, port }
    }

    pub(crate) fn try_reload(self, text: &str) -> (Self, Option<Failure>) {
        let Self { directory, crew, mut pipeline, port } = self;
        let config = Arc::new(configuration(text, port, directory.path()));
        let plan = Arc::new(udpd_engine::plan::make(&config, &Default::default()).expect("a plan"));
        pipeline.wait_for_those_before(LIMIT);
        match pipeline.forerunner().make_heir(&config, &plan, &crew) {
            Ok(heir) => (Self { pipeline: pipeline.hand_over_to(heir, never), directory, crew, port }, None),
            Err(failure) => (Self { directory, crew, pipeline, port }, Some(failure)),
        }
    }

    pub(crate) fn reload(self, text: &str) -> Self {
        let (bed, refused) = self.try_reload(text);
        assert!(refused.is_none(), "{refused:?}");
        bed
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn stop(self) -> (Snapshot, tempfile::TempDir) {
        (self.pipeline.stop(LIMIT, never), self.directory)
    }
}

pub(crate) fn never(wait: Duration) -> bool {
    std::thread::sleep(wait);
    false
}

/// Sends numbers from several ports and never more than can wait, until told to stop.
pub(crate) struct Load {
    is_over: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: JoinHandle<u64>,
}

impl Load {
    pub(crate) fn begin(to: SocketAddr, books: Arc<Chronicle>) -> Self {
        let (is_over, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (own_over, own_sent) = (Arc::clone(&is_over), Arc::clone(&sent));
        let thread = std::thread::spawn(move || {
            let senders: Vec<UdpSocket> = (0..8).map(|_| UdpSocket::bind("127.0.0.1:0").expect("a port")).collect();
            let mut number = 0;
            while !own_over.load(Ordering::Relaxed) {
                let begun = Instant::now();
                while number - listener(&books.snapshot(), "in").counts.received > WINDOW / 2 {
                    assert!(begun.elapsed() < LIMIT, "nobody receives: {:?}", books.snapshot());
                    std::thread::sleep(Duration::from_micros(200));
                }
                for _ in 0..WINDOW / 2 {
                    let sender = &senders[(number % 8) as usize];
                    sender.send_to(format!("{number:08}").as_bytes(), to).expect("loopback takes it");
                    number += 1;
                }
                own_sent.store(number, Ordering::Relaxed);
            }
            number
        });
        Self { is_over, sent, thread }
    }

    /// Returns when so many more are sent.
    pub(crate) fn wait_for(&self, more: u64) {
        let (until, begun) = (self.sent.load(Ordering::Relaxed) + more, Instant::now());
        while self.sent.load(Ordering::Relaxed) < until {
            assert!(begun.elapsed() < LIMIT && !self.thread.is_finished(), "the sender has stopped");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn end(self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("the sender")
    }
}

pub(crate) fn listener<'s>(snapshot: &'s Snapshot, name: &str) -> &'s ListenerSnapshot {
    snapshot.listeners.iter().find(|listener| listener.name == name).expect("it is in the books")
}

pub(crate) fn sink<'s>(snapshot: &'s Snapshot, listener_name: &str, name: &str) -> &'s SinkSnapshot {
    let listener = listener(snapshot, listener_name);
    listener.sinks.iter().find(|sink| sink.name == name).expect("it is in the books")
}

/// How often each number is in a file.
pub(crate) fn numbers(path: &Path) -> BTreeMap<u64, u32> {
    let mut seen = BTreeMap::new();
    for line in fs::read_to_string(path).expect("the file").lines() {
        *seen.entry(line.parse().expect("a number")).or_default() += 1;
    }
    seen
}

pub(crate) fn assert_each_once(path: &Path, sent: u64) {
    let seen = numbers(path);
    let missing: Vec<u64> = (0..sent).filter(|number| !seen.contains_key(number)).take(10).collect();
    assert!(missing.is_empty(), "{missing:?} of {sent} missing in {}", path.display());
    assert!(seen.values().all(|&times| times == 1), "twice in {}", path.display());
    assert_eq!(seen.len() as u64, sent);
}

const STAYS: &str = r#"
[sink.stays]
type = "file"
path = "DIR/stays.log"
"#;

/// One listener, with these keys besides, that feeds these sinks.
pub(crate) fn with(keys: &str, sinks: &str, more: &str) -> String {
    format!(
        "[daemon]\ncontrol_socket = \"\"\n[[listener]]\nname = \"in\"\naddress = \"127.0.0.1:PORT\"\n{keys}\n\
         sinks = [{sinks}]\n{STAYS}\n{more}"
    )
}
