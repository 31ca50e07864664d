//! A pipeline in this process that is replaced again and again, a load that never sends more than can wait, and a look
//! at what came. This is the only place where the tests of the program know how a pipeline is made.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use udpd_base::exit::Failure;
use udpd_base::os::threads::ThreadRegistry;
use udpd_engine::config::{Config, HostView};
use udpd_engine::pipeline::{CumulativeLedger, Pipeline, ReplacementPipeline};
use udpd_engine::plan::PipelinePlan;

use super::ledger::{arrived, listener, received};
use super::setup::{Setup, in_directory};
use super::wait::PATIENCE;

/// How many datagrams may be on their way: far fewer than a receive buffer holds.
const WINDOW: u64 = 200;

/// A pipeline that is replaced again and again.
pub(crate) struct Bed {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) pipeline: Pipeline,
    pub(crate) address: SocketAddr,
    registry: ThreadRegistry,
}

pub(crate) fn never(wait: Duration) -> bool {
    std::thread::sleep(wait);
    false
}

/// A configuration as it is read, and its plan.
fn read(text: &str, directory: &Path) -> (Arc<Config>, Arc<PipelinePlan>) {
    let text = in_directory(text, directory);
    let config =
        Config::parse(&text, "test.toml", &HostView::default()).unwrap_or_else(|problems| panic!("{problems:?}"));
    let plan = udpd_engine::plan::make(&config, &Default::default()).expect("a plan");
    (Arc::new(config), Arc::new(plan))
}

impl Bed {
    pub(crate) fn start(setup: &Setup) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let (config, plan) = read(&setup.text(), directory.path());
        let (registry, _) = ThreadRegistry::new();
        let pipeline = Pipeline::start(&config, &plan, Instant::now(), &registry).expect("started");
        Self { directory, registry, pipeline, address: setup.address }
    }

    /// Makes the pipeline that is to follow, which takes its addresses and does not yet receive.
    pub(crate) fn make_next(&self, setup: &Setup) -> Result<ReplacementPipeline, Failure> {
        self.make_next_unless(setup, false)
    }

    /// The same; where it is given up before, it must take no address.
    pub(crate) fn make_next_unless(&self, setup: &Setup, is_given_up: bool) -> Result<ReplacementPipeline, Failure> {
        let (config, plan) = read(&setup.text(), self.directory.path());
        let context = self.pipeline.reload_context();
        assert!(!is_given_up || context.commit_flag().cancel(), "it has no address yet");
        let made = context.build_replacement(&config, &plan, &self.registry);
        assert!(made.is_err() || !context.commit_flag().cancel(), "it has its addresses");
        made
    }

    /// Goes on with that one.
    pub(crate) fn go_on_with(mut self, next: ReplacementPipeline) -> Self {
        self.pipeline = self.pipeline.hand_over_to(next, never);
        self
    }

    /// Goes on with another configuration, or as before where that is refused.
    pub(crate) fn try_reload(mut self, setup: &Setup) -> (Self, Option<Failure>) {
        self.pipeline.wait_for_earlier_pipelines(PATIENCE);
        match self.make_next(setup) {
            Ok(next) => (self.go_on_with(next), None),
            Err(failure) => (self, Some(failure)),
        }
    }

    #[track_caller]
    pub(crate) fn reload(self, setup: &Setup) -> Self {
        let (bed, refused) = self.try_reload(setup);
        assert!(refused.is_none(), "{refused:?}");
        bed
    }

    /// The ledger now.
    pub(crate) fn stats(&self) -> Value {
        as_json(&self.pipeline.ledger())
    }

    /// The names of the threads.
    pub(crate) fn threads(&self) -> usize {
        self.registry.statuses().len()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Begins to send numbers to it.
    pub(crate) fn load(&self) -> Numbers {
        Numbers::begin(self.address, self.pipeline.ledger())
    }

    /// Ends it; its last ledger.
    pub(crate) fn stop(self) -> (Value, tempfile::TempDir) {
        self.stop_within(PATIENCE)
    }

    /// The same, where its sinks have this time to deliver the rest.
    pub(crate) fn stop_within(self, limit: Duration) -> (Value, tempfile::TempDir) {
        let ledger = self.pipeline.stop(limit, never);
        (serde_json::to_value(ledger).expect("a ledger is JSON"), self.directory)
    }

    /// Ends it when the first listener has received so many, of which nothing is lost; its last ledger.
    #[track_caller]
    pub(crate) fn stop_after(self, sent: u64) -> (Value, tempfile::TempDir) {
        let (ledger, directory) = self.stop();
        let own = listener(&ledger);
        assert_eq!((arrived(&ledger), received(&ledger)), (sent, sent), "{own:#}");
        assert_eq!(own["residual"].as_i64(), Some(0), "{own:#}");
        (ledger, directory)
    }
}

fn as_json(books: &CumulativeLedger) -> Value {
    serde_json::to_value(books.snapshot()).expect("a ledger is JSON")
}

/// Sends numbers from several ports and never more than can wait, until it is told to stop.
pub(crate) struct Numbers {
    is_over: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: JoinHandle<u64>,
}

impl Numbers {
    fn begin(to: SocketAddr, books: Arc<CumulativeLedger>) -> Self {
        let (is_over, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (own_over, own_sent) = (Arc::clone(&is_over), Arc::clone(&sent));
        let thread = std::thread::spawn(move || {
            let senders: Vec<UdpSocket> = (0..8).map(|_| UdpSocket::bind("127.0.0.1:0").expect("a port")).collect();
            let mut number = 0;
            while !own_over.load(Ordering::Relaxed) {
                let begun = Instant::now();
                while number - books.snapshot().listeners[0].counts.received > WINDOW / 2 {
                    assert!(begun.elapsed() < PATIENCE, "it receives no more: {:#}", as_json(&books));
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
    #[track_caller]
    pub(crate) fn wait_for(&self, more: u64) {
        let (until, begun) = (self.sent.load(Ordering::Relaxed) + more, Instant::now());
        while self.sent.load(Ordering::Relaxed) < until {
            assert!(begun.elapsed() < PATIENCE && !self.thread.is_finished(), "the sender has stopped");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Stops, and returns how many were sent.
    pub(crate) fn end(self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("the sender")
    }
}

/// How often each number is in a file of lines.
pub(crate) fn numbers(path: &Path) -> BTreeMap<u64, u32> {
    let mut seen = BTreeMap::new();
    for line in fs::read_to_string(path).expect("the file").lines() {
        *seen.entry(line.parse().expect("a number")).or_default() += 1;
    }
    seen
}

/// Checks that the numbers 0 to `sent` are in a file of lines, each once, and nothing else.
#[track_caller]
pub(crate) fn assert_numbers(path: &Path, sent: u64) {
    let seen = numbers(path);
    let missing: Vec<u64> = (0..sent).filter(|number| !seen.contains_key(number)).take(10).collect();
    assert!(missing.is_empty(), "{missing:?} of {sent} missing in {}", path.display());
    assert!(seen.values().all(|&times| times == 1), "a number is twice in {}", path.display());
    assert_eq!(seen.len() as u64, sent);
}
