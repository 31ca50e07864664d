//! The keys of a spill, and what a spill needs of the machine.

use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use super::SpillableSink;
use super::sink::Spilling;
use crate::{BYTES_MIN, FILES_MAX, MEMORY_BYTES, SpillLane, SpillLanes};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::role::ThreadRole;
use udpd_base::os::trusted_files;
use udpd_base::settings::kinds::{ByteSize, Optional};
use udpd_base::settings::{Findings, WrittenKeys, settings};
use udpd_base::sink::Sink;
use udpd_base::sink::settings::{OpenedSink, Opening, SpillPlace};
use udpd_base::text::advice::ValueAdvice;
use udpd_base::text::units::print_size;

settings! {
    /// Where datagrams wait that a sink cannot hand on.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Spill {
        /// A directory of this sink alone; "" = no spill.
        path: Option<PathBuf> = "" like "/var/spool/udpd/relay", Optional(check_path);
        /// How much it may take on the disk, for all consumers together.
        bytes: u64 = 0 like "10GiB", ByteSize(0..=u64::MAX);
    }
}

fn check_path(text: &str) -> Result<PathBuf, ValueAdvice> {
    let advice = |what: String| ValueAdvice::new(what, "write an absolute path, such as \"/var/spool/udpd/relay\"");
    let path = Path::new(text);
    if !path.is_absolute() || text.chars().any(char::is_control) {
        return Err(advice(format!("{text:?} is no absolute path")));
    }
    if path.components().any(|component| component == std::path::Component::ParentDir) {
        return Err(ValueAdvice::new(format!("{text:?} climbs with .."), "write the path that it leads to"));
    }
    if path.exists() && !path.is_dir() {
        return Err(ValueAdvice::new(format!("{text:?} is no directory"), "name a directory, which udpd makes"));
    }
    Ok(path.components().collect())
}

impl Spill {
    #[cfg(any(test, feature = "testing"))]
    pub fn at(path: PathBuf, bytes: u64) -> Self {
        Self { path: Some(path), bytes }
    }

    pub fn is_on(&self) -> bool {
        self.path.is_some()
    }

    /// The sink, behind this spill if there is one.
    pub fn around<S: Sink + SpillableSink + 'static>(
        &self,
        sink: S,
        opening: &Opening<'_>,
    ) -> Result<OpenedSink, Failure> {
        Ok(match self.is_on() {
            true => OpenedSink::new(Spilling::open(sink, self, opening)?),
            false => OpenedSink::new(sink),
        })
    }

    /// The share of one of several sinks that this one stands for.
    pub fn share(&self, name: &str, of: usize) -> Self {
        Self { path: self.path.as_ref().map(|path| path.join(name)), bytes: self.bytes / of.max(1) as u64 }
    }

    /// The role that a spill adds to a consumer.
    pub fn role(&self) -> Option<ThreadRole> {
        self.is_on().then_some(ThreadRole::Spill)
    }

    /// Where it is, if there is one.
    pub fn place(&self) -> Option<SpillPlace<'_>> {
        let path = self.path.as_deref()?;
        Some(SpillPlace { path, bytes: self.bytes, memory_bytes: self.memory_bytes(1) })
    }

    pub fn memory_bytes(&self, consumers: usize) -> usize {
        if self.is_on() { consumers * MEMORY_BYTES } else { 0 }
    }

    /// How many files of theirs are open at once.
    pub fn files_open(&self, consumers: usize) -> usize {
        if self.is_on() { consumers * FILES_MAX } else { 0 }
    }

    /// Checks one key against the other, and against the disk.
    pub fn check(&self, written: &WrittenKeys<'_>, findings: &mut Findings<'_>) {
        let Some(place) = written.place("spill") else { return };
        let at = |key| written.inner("spill", key).unwrap_or_else(|| place.clone());
        match &self.path {
            None if self.bytes > 0 => {
                findings.say(&place, "names no directory", "write spill = { path = \"/var/spool/udpd/relay\", ... }");
            }
            None => {}
            Some(_) if self.bytes < BYTES_MIN => {
                let what = format!("{} holds hardly a second", print_size(self.bytes));
                let cure = format!("write how much it may take on the disk, {} or more", print_size(BYTES_MIN));
                findings.say(&at("bytes"), what, cure);
            }
            Some(path) => {
                if let Err(error) = writable(path) {
                    let what = format!("cannot write below {}: {error}", path.display());
                    findings.say(&at("path"), what, "make it, and let the user of udpd write there");
                }
            }
        }
    }
}

/// Whether a directory can be made or written here.
fn writable(path: &Path) -> io::Result<()> {
    let there = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    access(there, AccessFlags::W_OK | AccessFlags::X_OK)?;
    match there.is_dir() {
        true => Ok(()),
        false => Err(io::ErrorKind::NotADirectory.into()),
    }
}

fn directory_of(path: &Path, consumer: usize) -> PathBuf {
    path.join(consumer.to_string())
}

/// The directories of consumers that no longer exist, whose spills this one of so many consumers takes over.
fn left_behind(path: &Path, consumer: usize, consumers: usize) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut numbers = Vec::new();
    for entry in entries {
        let number = entry?.file_name().to_str().and_then(|name| name.parse::<usize>().ok());
        numbers.extend(number.filter(|number| *number >= consumers && number % consumers.max(1) == consumer));
    }
    numbers.sort_unstable();
    Ok(numbers.into_iter().map(|number| directory_of(path, number)).collect())
}

/// The directory of a spill and its limit.
#[derive(Debug, Clone)]
pub(super) struct SpillLocation {
    pub(super) directory: PathBuf,
    pub(super) bytes_max: u64,
    pub(super) lanes: SpillLanes,
    /// The directories of consumers that no longer exist.
    pub(super) others: Vec<PathBuf>,
}

impl SpillLocation {
    /// Of the consumer that is opened; `None` where nothing feeds it.
    pub(super) fn of(spill: &Spill, opening: &Opening<'_>) -> Result<Option<Self>, Failure> {
        let Some(root) = spill.path.as_deref() else { return Ok(None) };
        let fed = opening.scenes.iter().enumerate().filter(|(lane, _)| opening.feeds[*lane]);
        let lane = |(lane, scene): (usize, &udpd_base::format::Scene)| {
            let listener = opening.listeners.iter().position(|name| *name == scene.listener)?;
            Some(SpillLane { lane, listener, name: scene.listener.clone(), bound: scene.address.to_string() })
        };
        let Some(lanes) = SpillLanes::of(fed.filter_map(lane).collect()) else { return Ok(None) };
        let (consumer, consumers) = (opening.consumer, opening.consumers);
        let directory = directory_of(root, consumer);
        let bytes_max = spill.bytes / consumers.max(1) as u64;
        if bytes_max < BYTES_MIN {
            let (each, least) = (print_size(bytes_max), print_size(BYTES_MIN));
            let message = format!(
                "[sink.{}] spill.bytes leaves {each} for each consumer and destination; raise it until that is {least}",
                opening.sink
            );
            return Err(Failure::new(ExitCode::Configuration, message));
        }
        trusted_files::make_directory(root).map_err(|error| refusal(opening.sink, root, &error))?;
        let others = left_behind(root, consumer, consumers).map_err(|error| refusal(opening.sink, root, &error))?;
        Ok(Some(Self { directory, bytes_max, lanes, others }))
    }
}

/// The error for a directory that cannot be used, with its cure.
pub(super) fn refusal(sink: &str, directory: &Path, error: &io::Error) -> Failure {
    let directory = directory.display();
    if trusted_files::is_refusal(error) {
        return Failure::new(ExitCode::Permission, format!("[sink.{sink}] cannot use the spill {directory}: {error}"));
    }
    let (code, cure) = match error.kind() {
        io::ErrorKind::PermissionDenied => (ExitCode::Permission, "let the user of udpd write there"),
        io::ErrorKind::Unsupported => (ExitCode::Disk, "have that one send what is in it, or name another directory"),
        io::ErrorKind::Other => (ExitCode::Disk, "give each its own directory"),
        _ => (ExitCode::Disk, "check that disk, or name another directory"),
    };
    Failure::new(code, format!("[sink.{sink}] cannot use the spill {directory}: {error}; {cure}"))
}
