//! A pipeline in this process whose listener feeds a Kafka sink and, where a test wants it, a null sink beside it.

use std::cell::Cell;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::util::pipeline::Bed;
use crate::util::*;

/// What the daemon gives its sinks.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// Only what never comes takes this long.
const DEADLINE: Duration = Duration::from_secs(240);

/// The keys of a Kafka sink with these properties of the library.
pub(crate) fn settings(brokers: &str, topic: &str, properties: &[(&str, &str)]) -> String {
    let properties: Vec<String> = properties.iter().map(|(key, value)| format!("'{key}' = '{value}'")).collect();
    format!("brokers = '{brokers}'\ntopic = '{topic}'\nproperties = {{ {} }}", properties.join(", "))
}

/// An address at which no broker answers.
pub(crate) fn unused_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").to_string()
}

/// A listener that feeds a Kafka sink with these keys.
pub(crate) fn to_kafka(address: SocketAddr, lanes: usize, keys: &str) -> Setup {
    let setup = Setup::at(address).keys(format!("lanes = {lanes}\nreceive_buffer = '8MiB'\nmax_length = '32KiB'"));
    setup.sink("stream", "kafka", keys)
}

/// A running pipeline.
pub(crate) struct Running {
    bed: Bed,
    looks: Cell<u64>,
}

impl Running {
    /// Starts one whose Kafka sink, the only one, has these keys.
    pub(crate) fn start(keys: &str) -> Self {
        Self { bed: Bed::start(&to_kafka(free_address(), 1, keys)), looks: Cell::new(0) }
    }

    /// The same with a null sink beside it.
    pub(crate) fn start_with_null(keys: &str) -> Self {
        Self { bed: Bed::start(&to_kafka(free_address(), 1, keys).null("beside")), looks: Cell::new(0) }
    }

    /// Goes on with these keys, which may be the same as before, and so many lanes, as a reload does.
    pub(crate) fn reload(self, keys: &str, lanes: usize) -> Self {
        let setup = to_kafka(self.address(), lanes, keys);
        let has_null = list(&self.bed.stats()["listeners"][0], "sinks").len() == 2;
        let mut bed = self.bed.reload(&if has_null { setup.null("beside") } else { setup });
        bed.pipeline.wait_for_earlier_pipelines(DEADLINE);
        Self { bed, looks: self.looks }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.bed.address
    }

    /// A load of so many datagrams.
    pub(crate) fn load(&self, datagrams: u64) -> Load {
        Load::new(self.address(), Amount::Count(datagrams)).rate(10_000)
    }

    /// How often the ledger was looked at.
    pub(crate) fn looks(&self) -> u64 {
        self.looks.get()
    }

    /// What the ledger says of the Kafka sink now.
    pub(crate) fn look<T>(&self, read: impl FnOnce(&Value) -> T) -> T {
        self.looks.set(self.looks.get() + 1);
        read(sink(&self.bed.stats()))
    }

    /// Waits until the ledger says `enough` of the Kafka sink.
    #[track_caller]
    pub(crate) fn wait(&self, what: &str, enough: impl Fn(&Value) -> bool) {
        self.look_every(Duration::from_millis(10), what, enough);
    }

    /// The same with looks far apart, for they cost something.
    #[track_caller]
    pub(crate) fn wait_with_few_looks(&self, pause: Duration, enough: impl Fn(&Value) -> bool) {
        self.look_every(pause, "enough", enough);
    }

    #[track_caller]
    fn look_every(&self, pause: Duration, what: &str, enough: impl Fn(&Value) -> bool) {
        let start = Instant::now();
        loop {
            let sink = self.look(Value::clone);
            if enough(&sink) {
                return;
            }
            assert!(start.elapsed() < DEADLINE, "{what} never came: {sink:#}");
            std::thread::park_timeout(pause);
        }
    }

    /// Stops it as the daemon does; the final ledger.
    pub(crate) fn stop(self) -> Value {
        self.bed.stop_within(DRAIN_LIMIT).0
    }
}
