//! What the log says of one destination: a line when a trouble begins, a line when it is over, and between them
//! nothing, for the ledger goes on counting.

use std::io;
use std::time::{Duration, Instant};

use udpd_base::text::peer::Peer;

/// A destination without trouble for so long is said to be well again.
const QUIET: Duration = Duration::from_secs(10);

/// More kinds of trouble than there are; whatever the kernel says, the memory for it is bounded.
const KINDS_MAX: usize = 16;

/// What becomes of datagrams that nobody can send.
pub(super) const LOST: &str = "count as sink_error";

/// What can go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    NoWay,
    TooLong,
    OtherFamily,
    Truncated,
    /// The kernel did not take a datagram, with this error number.
    Failed(i32),
    /// The kernel has taken nothing for so long that there is no more room.
    Full,
    Stuck(i32),
    /// The network has answered to something sent before.
    Answered(i32),
}

impl Trouble {
    /// Whether another destination might have fared better.
    pub(super) fn is_of_destination(self) -> bool {
        match self {
            Self::NoWay | Self::Full => true,
            Self::Failed(errno) | Self::Stuck(errno) | Self::Answered(errno) => errno != nix::libc::EMSGSIZE,
            Self::TooLong | Self::OtherFamily | Self::Truncated => false,
        }
    }
}

/// Decides what is said.
#[derive(Debug)]
pub(super) struct Voice {
    sink: String,
    peer: Peer,
    /// What is not taken waits in a spill.
    spills: bool,
    /// There was trouble since the last [`Voice::settle`].
    fresh: bool,
    /// When there was last any trouble, while it is not over.
    troubled: Option<Instant>,
    said: Vec<Trouble>,
}

impl Voice {
    pub(super) fn new(sink: &str, peer: Peer, spills: bool) -> Self {
        let said = Vec::with_capacity(KINDS_MAX);
        Self { sink: sink.to_owned(), peer, spills, fresh: false, troubled: None, said }
    }

    /// What becomes of datagrams that the destination does not take.
    pub(super) fn fate(&self) -> &'static str {
        if self.spills { "wait in the spill" } else { LOST }
    }

    pub(super) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Whether something was said that is not over.
    pub(super) fn is_troubled(&self) -> bool {
        self.troubled.is_some()
    }

    /// Datagrams fail, or come back as errors. Each kind is said once until all is well again; `text` is asked for only
    /// then.
    pub(super) fn trouble(&mut self, kind: Trouble, text: impl FnOnce() -> String) {
        self.fresh = true;
        if self.said.len() < KINDS_MAX && !self.said.contains(&kind) {
            self.said.push(kind);
            log::warn!("sink {}: {}: {}", self.sink, self.peer, text());
        }
    }

    /// Something has changed and nothing is to be done.
    pub(super) fn news(&self, text: &str) {
        log::info!("sink {}: {}: {text}", self.sink, self.peer);
    }

    /// A round of sending is over; so many datagrams have failed and been answered with an error since the start.
    pub(super) fn settle(&mut self, failed: u64, answers: u64) {
        if std::mem::take(&mut self.fresh) {
            self.troubled = Some(Instant::now());
        } else if self.troubled.is_some_and(|troubled| troubled.elapsed() >= QUIET) {
            self.troubled = None;
            self.said.clear();
            self.news(&format!(
                "takes datagrams again; since the start {failed} have failed, and {answers} errors came as answers"
            ));
        }
    }
}

/// The words for an error number.
pub(super) fn words(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}
