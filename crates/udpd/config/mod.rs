//! The validated configuration: what the rest of the program may rely on without checking again.
//!
//! Configuration is read in two stages. `raw` holds the file as written, every value with its place in the text;
//! `validate` turns that into the types below or into a list of errors that name file, line, column, key and cure.
//! Nothing outside this module ever sees an unchecked value, and nothing here opens, binds or creates anything.

mod arguments;
mod check;
pub mod defaults;
pub mod error;
pub mod feeds;
pub(crate) mod file;
mod host;
pub mod lookup;
mod sinks;

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use check::SINKS_PER_LISTENER_MAX;
pub use check::address::overlap;
pub use error::{Problem, Problems};
pub use host::{Host, KafkaAdvice};
pub use sinks::{
    Consumers, Distribute, FileSink, Format, Framing, KafkaSink, Keep, Rotate, Sink, SinkKind, SyncPolicy, UdpSink,
    UnixSink, UnixSocket, WhenFull,
};

use crate::exit::{ExitCode, Failure};
use crate::logging::LogFormat;

/// A whole configuration that has passed every check.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Settings of the process itself.
    pub daemon: Daemon,
    /// At least one; names and addresses are unique.
    pub listeners: Vec<Listener>,
    /// Every sink that is defined, in the order of the file.
    pub sinks: Vec<Sink>,
    /// Which cores udpd may use.
    pub steer: Steer,
}

impl Config {
    /// Reads and checks the file at `path` against `host`. Opens nothing else, creates and binds nothing.
    ///
    /// Every failure, also that of a file that cannot be read, ends with [`ExitCode::Configuration`]: starting again
    /// without an edit would not help.
    pub fn load(path: &Path, host: &Host) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let text = file::load::read_text(path, &name)?;
        Ok(Self::parse(&text, &name, host)?)
    }

    /// Checks the text of a file called `name` against `host`, and returns the configuration or all its problems.
    pub fn parse(text: &str, name: &str, host: &Host) -> Result<Self, Problems> {
        let mut report = file::reader::Report::new(name, text);
        let Some(table) = file::syntax::parse(text, &mut report) else {
            return Err(report.into_problems());
        };
        let raw = file::raw::read(&table, &mut report);
        let config = check::validate(&raw, host, &mut report);
        report.finish(config)
    }

    /// The configuration of `udpd run --listen ADDR --to URI`, where a wrong value ends with [`ExitCode::Usage`].
    ///
    /// Relative paths are taken from the current directory.
    pub fn from_arguments(
        listen: &str,
        to: &str,
        lanes: Option<usize>,
        stats_on_exit: Option<PathBuf>,
    ) -> Result<Self, Failure> {
        let directory = std::env::current_dir().map_err(|error| {
            let cure = "change to a directory that exists, or give absolute paths with -c FILE";
            Failure::new(ExitCode::Usage, format!("the current directory cannot be read: {error}; {cure}"))
        })?;
        arguments::configure(listen, to, lanes, stats_on_exit, &directory)
    }
}

/// A value with a default, and whether the operator wrote it: a default that cannot be had degrades with a warning,
/// a written value that cannot be had is an error.
#[derive(Debug, Clone, PartialEq)]
pub struct Chosen<T> {
    /// The value to use.
    pub value: T,
    /// True when it stands in the file (or on the command line).
    pub written: bool,
}

/// `[daemon]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Daemon {
    /// Where `udpd stats` finds the daemon; `None` when written as "".
    pub control_socket: Chosen<Option<PathBuf>>,
    /// Prometheus endpoint; `None` when written as "".
    pub metrics_address: Chosen<Option<SocketAddr>>,
    /// The least severe line that is logged.
    pub log_level: log::LevelFilter,
    /// How a line looks.
    pub log_format: LogFormat,
    /// Where the final ledger goes as JSON.
    pub stats_on_exit: Option<PathBuf>,
}

/// `[[listener]]`: one port, or one port on several addresses, and how its lanes receive.
#[derive(Debug, Clone, PartialEq)]
pub struct Listener {
    /// Unique, `[A-Za-z0-9_.-]{1,64}`.
    pub name: String,
    /// At least one. A lane is made for each address and each lane number.
    pub addresses: Vec<SocketAddr>,
    /// Bind to this interface.
    pub interface: Option<String>,
    /// How many lanes each address gets.
    pub lanes: Lanes,
    /// How the kernel chooses among them.
    pub spread: Spread,
    /// How datagrams are fetched.
    pub engine: Engine,
    /// Other processes may bind sockets to its addresses too.
    pub share_port: bool,
    /// UDP_GRO: take trains of equal datagrams in one buffer.
    pub gro: bool,
    /// Datagrams per receive call, 1 to 1024.
    pub batch_size: usize,
    /// Longest payload that is kept whole, in bytes, 1 to 65,535.
    pub max_length_bytes: usize,
    /// What happens to a longer one.
    pub on_truncate: OnTruncate,
    /// Let datagrams gather this long after a short batch.
    pub gather: Duration,
    /// What to ask of the kernel for each socket.
    pub receive_buffer: ReceiveBuffer,
    /// The burst to survive.
    pub absorb: Absorb,
    /// How long a receive call spins for datagrams before it sleeps.
    pub busy_poll: Duration,
    /// Kernel arrival times.
    pub timestamps: Timestamps,
    /// The groups it joins.
    pub multicast: Multicast,
    /// Whose datagrams it takes.
    pub access: Access,
    /// What one source may send.
    pub rate_limit: Option<RateLimit>,
    /// Indexes into [`Config::sinks`], at least one, no duplicates.
    pub sinks: Vec<usize>,
}

/// The multicast groups of a listener.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Multicast {
    /// Each once; every one is received by an address of the listener.
    pub groups: Vec<IpAddr>,
    /// Where they are joined; `None` leaves it to the kernel's routes.
    pub interface: Option<String>,
    /// From whom, each once; empty = from anybody. Otherwise every group has one of its family.
    pub sources: Vec<IpAddr>,
}

/// `allow` and `deny`: the longest prefix decides. No network is in both.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// Empty = everybody who is not denied.
    pub allow: Vec<Network>,
    /// Who is refused.
    pub deny: Vec<Network>,
}

/// A network: an address with nothing set behind its first bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Network {
    /// Never an IPv4 address in IPv6 clothes.
    pub address: IpAddr,
    /// How many bits count.
    pub bits: u8,
}

impl fmt::Display for Network {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.address, self.bits)
    }
}

/// What one source address may send to one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// Datagrams per second, 1 to 10,000,000.
    pub per_source: u64,
    /// Datagrams at once, 1 to 10,000,000.
    pub burst: u64,
}

/// How many lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lanes {
    /// One per receive queue of the interface; without one, as many as `absorb.rate` needs at 500,000/s each.
    Auto,
    /// This many.
    Count(NonZeroUsize),
}

/// How the kernel chooses the lane of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// By its hash of addresses and ports.
    Flow,
    /// By the core on which it handles the datagram.
    Cpu,
    /// By the receive queue of the interface.
    Queue,
    /// At random.
    Random,
}

/// How datagrams are fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// What measured better: recvmmsg.
    Auto,
    /// By recvmmsg.
    Recvmmsg,
    /// By io_uring, or not at all.
    IoUring,
}

impl Engine {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Auto => "auto",
            Engine::Recvmmsg => "recvmmsg",
            Engine::IoUring => "io_uring",
        }
    }
}

/// What happens to a datagram longer than `max_length`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnTruncate {
    /// Its head is delivered, marked and counted.
    Keep,
    /// It is dropped and counted.
    Drop,
}

/// The receive buffer of each socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiveBuffer {
    /// Computed from `absorb`.
    Auto,
    /// This many bytes, as given to SO_RCVBUF.
    Bytes(usize),
}

/// The burst that a listener must survive while nobody reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Absorb {
    /// Datagrams per second, over all lanes of the listener.
    pub rate: u64,
    /// How long nobody reads.
    pub stall: Duration,
}

/// Whether the kernel stamps each datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timestamps {
    /// When a sink records it.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// `[steer]`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Steer {
    /// The interfaces that `udpd steer` sets up.
    pub interfaces: Vec<String>,
    /// What is wished of them. Its cores are those that udpd may use at all.
    pub request: steer::plan::Request,
    /// Have irqbalance leave the interrupts alone, instead of only warning of it.
    pub ban_irqbalance: bool,
}
