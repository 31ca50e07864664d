//! A pipeline in this process whose listener feeds a Kafka sink and, beside it, a null sink.

use std::cell::Cell;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use udpd_base::os::crew::{Crew, Event};
use udpd_engine::config::{Config, Host};
use udpd_engine::pipeline::Pipeline;
use udpd_engine::plan;
use udpd_sinks::kafka::KafkaSettings;

use crate::util::daemon::free_address;

/// What the daemon gives its sinks.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// Only what never comes takes this long.
const DEADLINE: Duration = Duration::from_secs(240);

/// What a configuration file with defaults would say.
pub(crate) fn settings(brokers: &str, topic: &str, properties: &[(&str, &str)]) -> KafkaSettings {
    let properties = properties.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    KafkaSettings { properties, ..KafkaSettings::new(brokers, topic) }
}

/// An address at which no broker answers.
pub(crate) fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").to_string()
}

/// One listener that feeds the Kafka sink and a null sink.
fn configuration(address: SocketAddr, lanes: usize, settings: &KafkaSettings, queue_bytes: Option<usize>) -> Config {
    let text = format!(
        r#"
        [[listener]]
        name = "in"
        address = "{address}"
        lanes = {lanes}
        receive_buffer = "8MiB"
        max_length = "32KiB"
        sinks = ["stream", "beside"]
        [sink.stream]
        type = "null"
        [sink.beside]
        type = "null"
        "#
    );
    let mut config = Config::parse(&text, "test", &Host::default()).expect("a valid configuration");
    config.sinks[0].settings = Arc::new(settings.clone());
    config.sinks[0].queue_bytes = queue_bytes;
    config
}

/// A listener that feeds nothing but a Kafka sink with these keys.
pub(crate) fn written(address: SocketAddr, keys: &str) -> String {
    format!(
        "[[listener]]\nname = \"in\"\naddress = \"{address}\"\nlanes = 1\nreceive_buffer = \"8MiB\"\n\
         max_length = \"32KiB\"\nsinks = [\"stream\"]\n[sink.stream]\ntype = \"kafka\"\n{keys}\n"
    )
}

/// The same, read.
fn read(address: SocketAddr, keys: &str) -> Config {
    Config::parse(&written(address, keys), "test", &Host::default()).unwrap_or_else(|problems| panic!("{problems}"))
}

/// A running pipeline.
pub(crate) struct Running {
    pipeline: Pipeline,
    crew: Crew,
    address: SocketAddr,
    looks: Cell<u64>,
    _events: crossbeam_channel::Receiver<Event>,
}

impl Running {
    /// Starts one.
    pub(crate) fn start(settings: &KafkaSettings) -> Self {
        Self::start_with_queue(settings, None)
    }

    /// The same with a queue of so many bytes before the sink.
    pub(crate) fn start_with_queue(settings: &KafkaSettings, queue_bytes: Option<usize>) -> Self {
        let address = free_address();
        Self::of(configuration(address, 1, settings, queue_bytes), address)
    }

    /// Starts one whose Kafka sink, the only one, has these keys.
    pub(crate) fn start_written(keys: &str) -> Self {
        let address = free_address();
        Self::of(read(address, keys), address)
    }

    fn of(config: Config, address: SocketAddr) -> Self {
        let (crew, inbox) = Crew::new();
        let plan = plan::make(&config, &Default::default()).expect("a plan");
        let pipeline = Pipeline::start(&config, &plan, Instant::now(), &crew).expect("the pipeline starts");
        Self { pipeline, crew, address, looks: Cell::new(0), _events: inbox }
    }

    /// Goes on with these settings and so many lanes, as a reload does.
    pub(crate) fn reload(self, settings: &KafkaSettings, lanes: usize) -> Self {
        let config = configuration(self.address, lanes, settings, None);
        self.go_on_with(config)
    }

    /// Goes on with these keys of the Kafka sink, which may be the same as before.
    #[cfg(feature = "kafka-tls")]
    pub(crate) fn reload_written(self, keys: &str) -> Self {
        let config = read(self.address, keys);
        self.go_on_with(config)
    }

    fn go_on_with(mut self, config: Config) -> Self {
        let config = Arc::new(config);
        let plan = Arc::new(plan::make(&config, &Default::default()).expect("a plan"));
        let heir = self.pipeline.forerunner().make_heir(&config, &plan, &self.crew).expect("made");
        self.pipeline = self.pipeline.hand_over_to(heir, |wait| {
            std::thread::park_timeout(wait);
            false
        });
        self.pipeline.wait_for_those_before(DEADLINE);
        self
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How often the ledger was looked at.
    pub(crate) fn looks(&self) -> u64 {
        self.looks.get()
    }

    /// What the books of the Kafka sink say now.
    pub(crate) fn look<T>(&self, read: impl FnOnce(&Value) -> T) -> T {
        let snapshot = serde_json::to_value(self.pipeline.books().snapshot()).expect("a snapshot is JSON");
        self.looks.set(self.looks.get() + 1);
        read(&snapshot["listeners"][0]["sinks"][0])
    }

    /// Waits until the books of the Kafka sink say `enough`.
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
        let snapshot = self.pipeline.stop(DRAIN_LIMIT, |wait| {
            std::thread::park_timeout(wait);
            false
        });
        serde_json::to_value(snapshot).expect("a snapshot is JSON")
    }
}
