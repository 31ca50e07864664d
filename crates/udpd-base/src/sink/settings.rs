//! What is written of a sink: what the rest of the program asks of it, whatever its type, and how it becomes a
//! [`Sink`].

use std::any::Any;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::OpenContext;
use super::Sink;
use crate::exit::{ExitCode, Failure};
use crate::format::Format;
use crate::format::prefix::LinePrefix;
use crate::format::{Encoder, Scene};
use crate::handover::Caller;
use crate::handover::route::FullPolicy;
use crate::ledger::{DestinationLedger, FileLedger, PeerLedger};
use crate::os::path_check;
use crate::os::role::ThreadRole;
use crate::os::threads::ThreadRegistry;
use crate::settings::{Findings, TableSettings, WrittenKeys};
use crate::text::address::PeerAddress;
use crate::text::advice::ValueAdvice;

/// The settings of a sink of any type; cheap to clone.
pub type AnySettings = Arc<dyn SinkSettings>;

/// The settings of one type of sink.
pub trait SinkSettings: Any + fmt::Debug + Send + Sync {
    fn target(&self) -> SinkTarget<'_>;

    /// Whether it records when a datagram came and where it went to.
    fn records_arrival(&self) -> bool {
        false
    }

    /// Whether it records where a datagram went to, and no more of its arrival.
    fn records_destination(&self) -> bool {
        false
    }

    /// Whether it records how many datagrams the kernel dropped before each one.
    fn records_drops(&self) -> bool {
        false
    }

    /// The memory of so many consumers, which write so many files together.
    fn memory_bytes(&self, _consumers: usize, _files: usize) -> usize {
        0
    }

    /// The memory of the thread that compresses files, which all sinks share; 0 where it compresses none.
    fn compression_bytes(&self) -> usize {
        0
    }

    /// How many files of theirs are open at once, those that take the place of others among them.
    fn files_open(&self, _consumers: usize, files: usize) -> usize {
        2 * files
    }

    /// How many threads so many consumers have besides, that look up names or keep connections.
    fn lookup_threads(&self, _consumers: usize) -> usize {
        0
    }

    /// Where finished files of it are uploaded, in words, if they are.
    fn uploads_to(&self) -> Option<String> {
        None
    }

    /// Where datagrams wait that it cannot hand on, if anywhere.
    fn spill(&self) -> Option<SpillPlace<'_>> {
        None
    }

    /// How many datagrams so many consumers hold at most beside those in batches; `None` where their bytes are all that
    /// is bounded.
    fn datagrams_max(&self, _consumers: usize) -> Option<usize> {
        None
    }

    /// The same with records in this format; none where it writes none.
    fn in_format(&self, _format: Format) -> Option<AnySettings> {
        None
    }

    /// The same with this in front of each line; none where it writes no lines.
    fn with_prefix(&self, _prefix: LinePrefix) -> Option<AnySettings> {
        None
    }

    /// The sinks that this one stands for, where it is short for several, each with what its name has besides.
    fn split(&self) -> Vec<(String, AnySettings)> {
        Vec::new()
    }

    /// Whether it can be opened so that it never waits, for its peer or for a disk.
    fn never_waits(&self) -> bool {
        false
    }

    /// What it needs of the system besides what its target says, once it runs.
    fn needs(&self) -> Needs;

    fn open(&self, opening: Opening<'_>) -> Result<OpenedSink, Failure>;

    /// Whether what was opened for `before` can go on for these, when the pipeline is made anew: nothing is different
    /// but `what` feeds it. Otherwise the one is finished and the other opened.
    fn goes_on(&self, _before: &dyn SinkSettings, _what: Differs) -> bool {
        false
    }
}

/// What is different about the feeders of a sink that could go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Differs {
    /// Which lanes they are, or what those are bound to.
    pub lanes: bool,
    /// Which listeners there are, or their order.
    pub listeners: bool,
}

impl dyn SinkSettings {
    /// The settings of this type of sink, if they are.
    pub fn of_type<T: SinkSettings>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }
}

/// Where a sink brings datagrams, for checks that there is only one writer, and that it does not send to udpd itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SinkTarget<'a> {
    /// Nowhere outside of this process.
    Nowhere,
    Stdout,
    /// Files; the path holds names and codes for the time that are not filled in yet.
    Files(&'a str),
    /// Datagrams to these.
    Peers(Vec<&'a PeerAddress>),
    /// Elsewhere, in words: "the topic x of y".
    Elsewhere(String),
}

/// Where the datagrams of a sink wait on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpillPlace<'a> {
    /// A directory of this sink alone.
    pub path: &'a Path,
    /// How much it may take on the disk, for all consumers together.
    pub bytes: u64,
    /// The memory of each consumer.
    pub memory_bytes: usize,
}

/// What a sink needs of the system. What it does not name here, a sandbox denies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needs {
    /// What its consumers do.
    pub roles: Vec<ThreadRole>,
    /// What they read besides.
    pub reads: Vec<PathBuf>,
    /// Threads beside them look up names of hosts.
    pub names: bool,
    /// A thread beside them brings finished files to other hosts.
    pub uploads: bool,
}

impl Needs {
    /// Those of consumers that read nothing.
    pub fn only(roles: impl Into<Vec<ThreadRole>>) -> Self {
        Self { roles: roles.into(), reads: Vec::new(), names: false, uploads: false }
    }

    /// Whether it connects to other hosts by TCP.
    pub fn connects_to_hosts(&self) -> bool {
        self.uploads
            || self
                .roles
                .iter()
                .any(|role| matches!(role, ThreadRole::BrokerClient | ThreadRole::TcpClient | ThreadRole::HttpClient))
    }
}

/// The sink of one consumer, about to be opened.
#[derive(Debug)]
pub struct Opening<'a> {
    pub sink: &'a str,
    pub consumer: usize,
    /// Of so many of the sink.
    pub consumers: usize,
    pub when_full: FullPolicy,
    pub scenes: &'a Arc<[Scene]>,
    /// Which of them feed the consumer.
    pub feeds: &'a [bool],
    pub listeners: &'a [String],
    /// Starts threads.
    pub registry: &'a ThreadRegistry,
    /// Wakes the consumer.
    pub caller: &'a Caller,
    /// What all consumers of the sink share, such as the thread that keeps their files. The first one makes it.
    pub shared: &'a mut Option<Box<dyn Any + Send>>,
    /// It runs on the thread of a receiver: it never waits, and decides the fate of what it accepted when it is
    /// flushed.
    pub is_inline: bool,
    pub context: &'a OpenContext,
}

impl Opening<'_> {
    /// Writes records of what the consumer is fed.
    pub fn encoder(&self, format: Format) -> Encoder {
        Encoder::new(format, Arc::clone(self.scenes), |lane| self.feeds[lane])
    }
}

/// An open sink, and what it counts besides datagrams.
#[derive(Debug)]
pub struct OpenedSink {
    pub sink: Box<dyn Sink>,
    pub files: Vec<Arc<FileLedger>>,
    pub destinations: Vec<Arc<DestinationLedger>>,
    pub peers: Vec<Arc<PeerLedger>>,
}

impl OpenedSink {
    /// A sink that counts nothing besides datagrams.
    pub fn new(sink: impl Sink + 'static) -> Self {
        Self { sink: Box::new(sink), files: Vec::new(), destinations: Vec::new(), peers: Vec::new() }
    }
}

// What a type of sink says of itself so that it can be written: its name, its keys, and its schemes for the command
// line.

/// The settings of a sink that a file can hold. Its keys are those of [`TableSettings`].
pub trait WrittenSink: TableSettings + SinkSettings {
    /// As `type` names it.
    const NAME: &'static str;

    /// How the command line names it.
    const SCHEMES: &'static [Scheme];

    /// Whether this build has such sinks.
    fn available() -> Result<(), ValueAdvice> {
        Ok(())
    }

    /// Holds one value against another.
    fn check(&self, _written: &WrittenKeys<'_>, _findings: &mut Findings<'_>) {}

    /// For the rest of the program.
    fn finished(self) -> AnySettings {
        std::sync::Arc::new(self)
    }
}

/// A way to name a sink on the command line: `--to SCHEME:REST`.
#[derive(Debug)]
pub struct Scheme {
    pub name: &'static str,
    /// As messages show it.
    pub form: &'static str,
    pub read: fn(&Uri<'_>) -> Result<AnySettings, Failure>,
}

/// What stands behind `--to`.
#[derive(Debug, Clone, Copy)]
pub struct Uri<'a> {
    pub whole: &'a str,
    pub scheme: &'a str,
    pub rest: &'a str,
    /// Where relative paths begin.
    pub directory: &'a Path,
}

impl Uri<'_> {
    /// Nothing may stand behind the colon.
    pub fn alone(&self) -> Result<(), Failure> {
        if self.rest.is_empty() {
            return Ok(());
        }
        let what = format!("{:?} has something behind the colon", self.whole);
        Err(wrong(ValueAdvice::new(what, format!("write {}:", self.scheme))))
    }

    /// The path behind the scheme, made absolute.
    pub fn path(&self) -> Result<String, Failure> {
        let scheme = self.scheme;
        // file:///path is how browsers write what is file:/path here; file://host/path is not a path at all.
        let written = self.rest.strip_prefix("//").filter(|rest| rest.starts_with('/')).unwrap_or(self.rest);
        if written.is_empty() {
            let cure = format!("write {scheme}:PATH, such as {scheme}:/tmp/udpd.log");
            return Err(wrong(ValueAdvice::new(format!("{scheme}: names no file"), cure)));
        }
        if written == "-" {
            let what = format!("{scheme}:- would be a file called -");
            let other = if scheme == "file" { "stdout: for standard output, or " } else { "" };
            return Err(wrong(ValueAdvice::new(what, format!("write {other}{scheme}:./- for such a file"))));
        }
        if let Some(rest) = written.strip_prefix("//") {
            let what = format!("\"{scheme}://{rest}\" names a host");
            return Err(wrong(ValueAdvice::new(what, format!("write {scheme}:/{rest}"))));
        }
        path_check::absolute(Path::new(written), self.directory).map_err(wrong)
    }
}

/// What is wrong with the value of `--to`.
pub fn wrong(advice: ValueAdvice) -> Failure {
    Failure::new(ExitCode::Usage, format!("--to: {advice}"))
}
