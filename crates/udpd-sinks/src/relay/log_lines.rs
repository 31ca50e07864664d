//! The log lines about one destination: one when a kind of error begins, and one when all errors are over. Between them
//! the ledger counts.

use std::io;
use std::time::{Duration, Instant};

use udpd_base::seams::clock;
use udpd_base::text::address::PeerAddress;

/// Errors are over after so long without one.
const QUIET: Duration = Duration::from_secs(10);

/// More kinds of errors than there are, which bounds the memory whatever the kernel returns.
const KINDS_MAX: usize = 16;

/// The consequence for datagrams that cannot be sent.
pub(super) const LOST: &str = "count as sink_error";

/// A kind of error of a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DestinationError {
    NoRoute,
    TooLong,
    OtherFamily,
    Truncated,
    /// The kernel did not take a datagram, with this error number.
    Failed(i32),
    /// The kernel has taken nothing until the queue was full.
    Full,
    Stuck(i32),
    /// The network has answered to something sent before.
    Answered(i32),
}

impl DestinationError {
    /// Whether it counts against the destination and not the datagram.
    pub(super) fn is_of_destination(self) -> bool {
        match self {
            Self::NoRoute | Self::Full => true,
            Self::Failed(errno) | Self::Stuck(errno) | Self::Answered(errno) => errno != nix::libc::EMSGSIZE,
            Self::TooLong | Self::OtherFamily | Self::Truncated => false,
        }
    }
}

/// Decides which lines are written.
#[derive(Debug)]
pub(super) struct DestinationLog {
    sink: String,
    peer: PeerAddress,
    /// Datagrams that are not taken wait in a spill.
    spills: bool,
    /// There was trouble since the last [`DestinationLog::settle`].
    fresh: bool,
    /// The last error, until errors are over.
    last_error: Option<Instant>,
    logged: Vec<DestinationError>,
}

impl DestinationLog {
    pub(super) fn new(sink: &str, peer: PeerAddress, spills: bool) -> Self {
        let logged = Vec::with_capacity(KINDS_MAX);
        Self { sink: sink.to_owned(), peer, spills, fresh: false, last_error: None, logged }
    }

    /// The consequence for datagrams that the destination does not take.
    pub(super) fn consequence(&self) -> &'static str {
        if self.spills { "wait in the spill" } else { LOST }
    }

    pub(super) fn peer(&self) -> &PeerAddress {
        &self.peer
    }

    pub(super) fn has_error(&self) -> bool {
        self.last_error.is_some()
    }

    /// Datagrams fail, or errors come as answers. Each kind is logged once until errors are over; `text` is called only
    /// then.
    pub(super) fn error(&mut self, kind: DestinationError, text: impl FnOnce() -> String) {
        self.fresh = true;
        if self.logged.len() < KINDS_MAX && !self.logged.contains(&kind) {
            self.logged.push(kind);
            log::warn!("sink {}: {}: {}", self.sink, self.peer, text());
        }
    }

    /// Logs a change that needs no action.
    pub(super) fn info(&self, text: &str) {
        log::info!("sink {}: {}: {text}", self.sink, self.peer);
    }

    /// A round of sending is over; so many datagrams have failed and been answered with an error since the start.
    pub(super) fn settle(&mut self, failed: u64, answers: u64) {
        if std::mem::take(&mut self.fresh) {
            self.last_error = Some(clock::now());
        } else if self.last_error.is_some_and(|last_error| clock::since(last_error) >= QUIET) {
            self.last_error = None;
            self.logged.clear();
            self.info(&format!(
                "takes datagrams again; since the start {failed} have failed, and {answers} errors came as answers"
            ));
        }
    }
}

pub(super) fn words(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}
