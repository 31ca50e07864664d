//! `[sink.NAME]`, validated: where datagrams go, and how each kind of destination is used.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

/// `[sink.NAME]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Sink {
    /// Unique, `[A-Za-z0-9_.-]{1,64}`; of a relay to several destinations there is one for each, `NAME@ADDRESS:PORT`.
    pub name: String,
    /// Where the datagrams go.
    pub kind: SinkKind,
    /// How many consumer threads.
    pub consumers: Consumers,
    /// Depth of each consumer's channel, in batches, 1 to 65,536.
    pub queue_batches: usize,
    /// What happens when that is full.
    pub when_full: WhenFull,
}

/// Where the datagrams of a sink go.
#[derive(Debug, Clone, PartialEq)]
pub enum SinkKind {
    /// Counted and forgotten.
    Null,
    /// Records on standard output.
    Stdout(Format),
    /// Records in a file.
    File(FileSink),
    /// Datagrams to other addresses.
    Udp(UdpSink),
    /// A socket of this host.
    Unix(UnixSink),
    /// A topic of a Kafka cluster.
    Kafka(KafkaSink),
    /// Made by whoever starts the pipeline, see `Pipeline::start_with`; no configuration file can name it.
    Supplied,
}

impl SinkKind {
    /// Whether it records when a datagram came and where it went to.
    pub fn records_arrival(&self) -> bool {
        match self {
            SinkKind::Null | SinkKind::Udp(_) | SinkKind::Supplied => false,
            SinkKind::Kafka(_) => true,
            SinkKind::Stdout(format) => format.records_arrival(),
            SinkKind::File(file) => file.format.records_arrival(),
            SinkKind::Unix(unix) => unix.format.records_arrival(),
        }
    }
}

impl SinkKind {
    /// Whether it records how many datagrams the kernel dropped before each one.
    pub fn records_drops(&self) -> bool {
        match self {
            SinkKind::Stdout(format) => *format == Format::Pcapng,
            SinkKind::File(file) => file.format == Format::Pcapng,
            _ => false,
        }
    }
}

/// How a datagram is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// One line, escaped.
    #[default]
    Lines,
    /// One JSON object a line.
    Jsonl,
    /// A packet of a capture.
    Pcapng,
}

impl Format {
    /// Whether it holds more than the payload.
    pub fn records_arrival(self) -> bool {
        self != Format::Lines
    }
}

/// A sink of type `file`.
#[derive(Debug, Clone, PartialEq)]
pub struct FileSink {
    /// Absolute path with `{listener}`, `{lane}`, `{consumer}` and `{sink}`, and `%Y %m %d %H %M %S`, to be filled in.
    pub path: String,
    /// How a datagram is written.
    pub format: Format,
    /// When a new file is begun.
    pub rotate: Rotate,
    /// How much of the old ones is kept.
    pub keep: Keep,
    /// How long a written record may stay unsynced.
    pub sync: SyncPolicy,
}

impl FileSink {
    /// A sink of which only the path is written.
    pub fn new(path: String) -> Self {
        let (format, rotate, keep) = (Format::default(), Rotate::default(), Keep::default());
        Self { path, format, rotate, keep, sync: SyncPolicy::default() }
    }
}

/// When a new file is begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotate {
    /// From this size on; 0 = never.
    pub bytes: u64,
    /// At every multiple of this since midnight, UTC; zero = never.
    pub every: Duration,
}

/// How many finished files are kept, and how many bytes of them; 0 = all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Keep {
    /// Files.
    pub files: u64,
    /// Bytes of all of them together.
    pub bytes: u64,
}

/// When written records are forced to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncPolicy {
    /// The kernel decides.
    Never,
    /// When a file is finished.
    Rotate,
    /// At most this long after the write.
    Every(Duration),
}

/// A sink of type `udp`.
#[derive(Debug, Clone, PartialEq)]
pub struct UdpSink {
    /// At least one, each once. With [`Distribute::All`] exactly one: each has a sink of its own.
    pub destinations: Vec<SocketAddr>,
    /// Who gets what.
    pub distribute: Distribute,
    /// Send with the original source address and port.
    pub keep_source: bool,
    /// What the destination was looked up as, when it was written as a name.
    pub looked_up: Option<String>,
}

/// Which destination gets a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Distribute {
    /// Every one.
    #[default]
    All,
    /// One, always the same for a source address.
    BySource,
}

/// A sink of type `unix`.
#[derive(Debug, Clone, PartialEq)]
pub struct UnixSink {
    /// Where somebody else listens.
    pub path: PathBuf,
    /// What kind of socket that is.
    pub socket: UnixSocket,
    /// How datagrams are told apart in a stream.
    pub framing: Framing,
    /// How a datagram is written, with [`Framing::Newline`].
    pub format: Format,
}

/// The kind of a Unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnixSocket {
    /// One datagram, one message.
    #[default]
    Datagram,
    /// All in one stream.
    Stream,
}

/// How datagrams are told apart in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Framing {
    /// Records that end with a newline and hold no other.
    #[default]
    Newline,
    /// The payload as it is, after its length in four bytes, most significant first.
    Length,
}

/// A sink of type `kafka`.
#[derive(Debug, Clone, PartialEq)]
pub struct KafkaSink {
    /// Where to find the cluster.
    pub brokers: String,
    /// What to write to.
    pub topic: String,
    /// Key records by the address of the source.
    pub key_by_source: bool,
    /// Who must have a record before it counts as delivered: "all", "1" or "0".
    pub acks: String,
    /// Handed to the client library as they are.
    pub properties: Vec<(String, String)>,
}

/// How many consumers a sink has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consumers {
    /// This many; lane i feeds consumer i mod N.
    Count(NonZeroUsize),
    /// One for each lane that feeds the sink.
    PerLane,
}

/// What happens to a batch when its channel is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// The batch that just arrived is dropped.
    DropNewest,
    /// The oldest batch in the channel is dropped to make room.
    DropOldest,
    /// The receiver waits; the kernel then drops what does not fit the receive buffer.
    Block,
}

impl Default for SyncPolicy {
    fn default() -> Self {
        Self::Every(Duration::from_secs(1))
    }
}

impl Default for Rotate {
    fn default() -> Self {
        Self { bytes: 1 << 30, every: Duration::from_secs(3600) }
    }
}

impl Rotate {
    /// One file for ever.
    pub const NEVER: Self = Self { bytes: 0, every: Duration::ZERO };
}

impl Sink {
    /// A sink of which only the name and the type are written.
    pub fn new(name: impl Into<String>, kind: SinkKind) -> Self {
        Self {
            name: name.into(),
            kind,
            consumers: Consumers::Count(NonZeroUsize::MIN),
            queue_batches: 256,
            when_full: WhenFull::DropNewest,
        }
    }
}
