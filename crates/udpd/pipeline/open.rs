//! Opening what the configuration names: sinks with their files, and addresses, with the errors an operator can act on.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;

use super::running::Supply;
use crate::config::{self, Config, Framing, Host, Sink as SinkSettings, SinkKind, SyncPolicy, UnixSocket, WhenFull};
#[cfg(feature = "kafka")]
use crate::config::{KafkaAdvice, Listener};
use crate::exit::{ExitCode, Failure};
use crate::format::encoder::{Encoder, Format, Scene};
use crate::handover::channel::{Caller, FullPolicy};
use crate::ledger::{DestinationLedger, FileLedger};
use crate::os::holder;
use crate::plan::{LanePlan, Plan};
use crate::sink::file::template::{self, Names};
use crate::sink::file::{FileKeeper, FileSettings, FileSink, Sync};
#[cfg(feature = "kafka")]
use crate::sink::kafka::{KafkaError, KafkaSettings, KafkaSink, QUEUE_KIBIBYTES, QueueBounds};
use crate::sink::relay::{self, RelayError, RelaySettings, RelaySink};
use crate::sink::stdout::StreamSink;
use crate::sink::unix::{UnixDatagramSink, UnixStreamSink};
use crate::sink::{NullSink, Sink};

/// The policy of a channel.
pub(super) fn full_policy(when_full: WhenFull) -> FullPolicy {
    match when_full {
        WhenFull::DropNewest => FullPolicy::DropNewest,
        WhenFull::DropOldest => FullPolicy::DropOldest,
        WhenFull::Block => FullPolicy::Block,
    }
}

/// The sink of one consumer, about to be opened.
#[derive(Debug, Clone, Copy)]
pub(super) struct Opening<'a> {
    pub config: &'a Config,
    pub budget: &'a Plan,
    pub settings: &'a SinkSettings,
    /// The number of the consumer.
    pub consumer: usize,
    /// Which lanes feed it.
    pub lanes: &'a [bool],
    /// Wakes it.
    pub caller: &'a Caller,
}

/// An open sink, and what it counts besides datagrams.
#[derive(Debug)]
pub(super) struct Opened {
    pub sink: Box<dyn Sink>,
    pub files: Vec<Arc<FileLedger>>,
    pub destinations: Vec<Arc<DestinationLedger>>,
}

impl From<Box<dyn Sink>> for Opened {
    fn from(sink: Box<dyn Sink>) -> Self {
        Self { sink, files: Vec::new(), destinations: Vec::new() }
    }
}

impl Opening<'_> {
    /// Opens it; `supply` makes the sinks that only the caller can make, and `keeper` keeps the files of them all.
    pub(super) fn sink(self, supply: Supply<'_>, keeper: &mut Option<FileKeeper>) -> Result<Opened, Failure> {
        let opened: Box<dyn Sink> = match &self.settings.kind {
            SinkKind::Null => Box::new(NullSink),
            SinkKind::Supplied => supply(&self.settings.name, self.consumer),
            SinkKind::Stdout(format) => self.stdout(*format)?,
            SinkKind::File(file) => return self.files(file, keeper),
            SinkKind::Unix(unix) => self.unix(unix),
            SinkKind::Udp(relay) => return self.relay(relay),
            SinkKind::Kafka(kafka) => self.kafka(kafka)?,
        };
        Ok(opened.into())
    }

    fn scenes(self) -> Arc<[Scene]> {
        let scene = |plan: &LanePlan| Scene {
            listener: self.config.listeners[plan.listener].name.clone(),
            lane: plan.number,
            address: plan.address,
        };
        self.budget.lanes.iter().map(scene).collect()
    }

    fn encoder(self, format: Format) -> Encoder {
        Encoder::new(format, self.scenes(), |lane| self.lanes[lane])
    }

    fn stdout(self, format: config::Format) -> Result<Box<dyn Sink>, Failure> {
        // A handle of its own: the standard one would buffer lines and write each by itself.
        let stream = io::stdout().as_fd().try_clone_to_owned().map_err(|error| {
            let message = format!("sink {}: cannot use standard output: {error}", self.settings.name);
            Failure::new(ExitCode::Failure, message)
        })?;
        Ok(Box::new(StreamSink::new(std::fs::File::from(stream), self.encoder(sink_format(format)))))
    }

    fn unix(self, unix: &config::UnixSink) -> Box<dyn Sink> {
        let framing = match (unix.socket, unix.framing) {
            (UnixSocket::Datagram, _) => {
                return Box::new(UnixDatagramSink::new(&self.settings.name, unix.path.clone()));
            }
            (UnixSocket::Stream, Framing::Newline) => sink_format(unix.format),
            (UnixSocket::Stream, Framing::Length) => Format::Lengths,
        };
        Box::new(UnixStreamSink::new(&self.settings.name, unix.path.clone(), self.encoder(framing)))
    }

    #[cfg(feature = "kafka")]
    fn kafka(self, kafka: &config::KafkaSink) -> Result<Box<dyn Sink>, Failure> {
        let settings = kafka_settings(&self.config.listeners, &self.settings.name, kafka);
        let sink = KafkaSink::open(&settings).map_err(|error| kafka_failure(&settings.name, &error))?;
        Ok(Box::new(sink))
    }

    #[cfg(not(feature = "kafka"))]
    fn kafka(self, _: &config::KafkaSink) -> Result<Box<dyn Sink>, Failure> {
        unreachable!("the configuration refuses sink {} in a build without Kafka", self.settings.name)
    }

    fn relay(self, relay: &config::UdpSink) -> Result<Opened, Failure> {
        let settings = RelaySettings {
            sink: self.settings.name.clone(),
            destinations: relay.destinations.clone(),
            keep_source: relay.keep_source,
        };
        let (sink, destinations) = RelaySink::open(&settings).map_err(|error| relay_failure(&settings.sink, &error))?;
        if let Some(meaning) = relay.looked_up.as_ref().filter(|_| self.consumer == 0) {
            log::info!("sink {}: {meaning}; udpd looks it up at the start and never again", settings.sink);
        }
        if relay.keep_source && self.consumer == 0 {
            log::info!(
                "sink {}: sends with the original sources. A destination with rp_filter = 1 (strict) drops packets \
                 from addresses that it would not reach this way (set sysctl net.ipv4.conf.*.rp_filter=2 there). \
                 Clouds drop them unless the source check of the interface is off",
                settings.sink
            );
        }
        Ok(Opened { destinations, ..Opened::from(Box::new(sink) as Box<dyn Sink>) })
    }

    fn files(self, file: &config::FileSink, keeper: &mut Option<FileKeeper>) -> Result<Opened, Failure> {
        let path = |(lane, feeds): (usize, &bool)| {
            let plan = &self.budget.lanes[lane];
            let listener = &self.config.listeners[plan.listener].name;
            let names = Names { listener, lane: plan.number, consumer: self.consumer, sink: &self.settings.name };
            feeds.then(|| template::expand(&file.path, &names))
        };
        let paths: Vec<Option<String>> = self.lanes.iter().enumerate().map(path).collect();
        let settings = FileSettings {
            format: sink_format(file.format),
            rotate_bytes: file.rotate.bytes,
            rotate_every: file.rotate.every,
            keep_files: file.keep.files,
            keep_bytes: file.keep.bytes,
            sync: match file.sync {
                SyncPolicy::Never => Sync::Never,
                SyncPolicy::Rotate => Sync::WhenFinished,
                SyncPolicy::Every(interval) => Sync::Every(interval),
            },
        };
        let fail = |error: io::Error| {
            let shown: Vec<&str> = paths.iter().flatten().map(String::as_str).collect();
            open_failure(&self.settings.name, &shown.join(" or "), &error)
        };
        let keeper = match keeper {
            Some(keeper) => keeper,
            none => none.insert(FileKeeper::new(self.lanes.len()).map_err(fail)?),
        };
        let (sink, files) = FileSink::open(&paths, &self.scenes(), settings, keeper, self.caller).map_err(fail)?;
        Ok(Opened { files, ..Opened::from(Box::new(sink) as Box<dyn Sink>) })
    }
}

/// This host, with what only a library knows of the settings of its sinks, for the check of a file.
pub fn host() -> Host {
    #[cfg(feature = "kafka")]
    let host = Host { check_kafka, ..Host::default() };
    #[cfg(not(feature = "kafka"))]
    let host = Host::default();
    host
}

#[cfg(feature = "kafka")]
fn check_kafka(kafka: &config::KafkaSink) -> Result<(), KafkaAdvice> {
    kafka_settings(&[], "", kafka)
        .check()
        .map_err(|error| KafkaAdvice { key: error.key().unwrap_or_default().to_owned(), what: error.what() })
}

/// The same for sinks that no file has defined, without opening or starting anything.
pub fn check_sinks(config: &Config) -> Result<(), Failure> {
    #[cfg(feature = "kafka")]
    for sink in &config.sinks {
        if let SinkKind::Kafka(kafka) = &sink.kind {
            kafka_settings(&config.listeners, &sink.name, kafka)
                .check()
                .map_err(|error| kafka_failure(&sink.name, &error))?;
        }
    }
    let _ = config;
    Ok(())
}

#[cfg(feature = "kafka")]
fn kafka_settings(listeners: &[Listener], name: &str, kafka: &config::KafkaSink) -> KafkaSettings {
    const { assert!(crate::plan::KAFKA_QUEUE_BYTES == QUEUE_KIBIBYTES as usize * 1024) };
    KafkaSettings {
        name: name.to_owned(),
        brokers: kafka.brokers.clone(),
        topic: kafka.topic.clone(),
        key_by_source: kafka.key_by_source,
        acks: kafka.acks.clone(),
        properties: kafka.properties.clone(),
        listeners: listeners.iter().map(|listener| listener.name.clone()).collect(),
        queue: QueueBounds::default(),
    }
}

#[cfg(feature = "kafka")]
fn kafka_failure(sink: &str, error: &KafkaError) -> Failure {
    Failure::new(ExitCode::Configuration, format!("[sink.{sink}] {error}; docs/kafka.md says more"))
}

fn sink_format(format: config::Format) -> Format {
    match format {
        config::Format::Lines => Format::Lines,
        config::Format::Jsonl => Format::Jsonl,
        config::Format::Pcapng => Format::Pcapng,
    }
}

fn relay_failure(sink: &str, error: &RelayError) -> Failure {
    let (code, cure) = match (error.operation, error.error.raw_os_error().map(Errno::from_raw)) {
        (relay::MAKE_RAW_SOCKET, Some(Errno::EPERM | Errno::EACCES)) => {
            let cure = "; keep_source needs CAP_NET_RAW; in the unit file: AmbientCapabilities=CAP_NET_RAW, and \
                        CapabilityBoundingSet= with it";
            (ExitCode::Permission, cure)
        }
        (relay::FIND_WAY, Some(Errno::EACCES)) => {
            (ExitCode::Configuration, "; that is a broadcast address: name the hosts, or a group")
        }
        _ => (ExitCode::Unavailable, "; see `ip route get` for that address"),
    };
    Failure::new(code, format!("sink {sink}: {error}{cure}"))
}

fn open_failure(sink: &str, paths: &str, error: &io::Error) -> Failure {
    let (code, cure) = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            (ExitCode::Permission, "; let the user of udpd write there, or choose another path")
        }
        _ if error.raw_os_error() == Some(Errno::ELOOP as i32) => {
            (ExitCode::Disk, "; it is a symbolic link, which udpd does not follow: write the path that it leads to")
        }
        _ => (ExitCode::Disk, ""),
    };
    Failure::new(code, format!("sink {sink}: cannot open {paths} for appending: {error}{cure}"))
}

/// Why an address could not be bound, and what to do.
pub(super) fn bind_failure(address: SocketAddr, error: &io::Error) -> Failure {
    let errno = error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw);
    let (code, cure) = match errno {
        Errno::EADDRINUSE => {
            let holders = holder::of_udp_address(address, &[], Path::new("/proc"));
            let names: Vec<String> = holders.iter().map(ToString::to_string).collect();
            let who = if names.is_empty() { "a process that /proc does not show".to_owned() } else { names.join(", ") };
            (ExitCode::Unavailable, format!("{who} holds it; stop that process or choose another address"))
        }
        Errno::EADDRNOTAVAIL => {
            let cure = "no interface of this host has it; `ip address` shows which have one; or use the wildcard \
                        address";
            (ExitCode::Unavailable, cure.to_owned())
        }
        Errno::EACCES => {
            let cure = format!(
                "ports below {} need CAP_NET_BIND_SERVICE; in the unit file: AmbientCapabilities=CAP_NET_BIND_SERVICE",
                first_unprivileged_port()
            );
            (ExitCode::Permission, cure)
        }
        _ => (ExitCode::Unavailable, "choose another address".to_owned()),
    };
    Failure::new(code, format!("cannot bind {address}: {error}; {cure}"))
}

/// The first port that needs no capability.
fn first_unprivileged_port() -> u16 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
    text.trim().parse().unwrap_or(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_right_names_the_capability_and_the_line_that_grants_it() {
        let address = "127.0.0.1:514".parse().expect("an address");
        let failure = bind_failure(address, &io::Error::from_raw_os_error(Errno::EACCES as i32));
        assert_eq!(failure.code, ExitCode::Permission);
        assert!(failure.message.contains("AmbientCapabilities=CAP_NET_BIND_SERVICE"), "{failure}");
    }

    #[test]
    fn an_address_of_no_interface_is_unavailable() {
        let address = "192.0.2.1:514".parse().expect("an address");
        let failure = bind_failure(address, &io::Error::from_raw_os_error(Errno::EADDRNOTAVAIL as i32));
        assert_eq!(failure.code, ExitCode::Unavailable);
        assert!(failure.message.contains("192.0.2.1:514"), "{failure}");
    }
}
