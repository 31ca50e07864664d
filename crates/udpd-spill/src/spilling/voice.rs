//! What the log hears of a spill: a line when it is needed, a line when it is empty again, and what is wrong with it
//! once for each time that it begins to be. A spill that is needed again and again gets these lines once a minute.

use std::path::Path;
use std::time::Instant;

use crate::{Recovered, Store, Trouble};
use udpd_base::handover::route::FullPolicy;
use udpd_base::logging::limiter::{LogLimiter, repeats};
use udpd_base::text::units::print_size;

/// What is said, and has been.
#[derive(Debug)]
pub(super) struct Voice {
    sink: String,
    is_in_use: bool,
    /// The log has a line that it is needed, and gets one when it is empty.
    is_said_in_use: bool,
    uses: LogLimiter,
    is_full: bool,
    fills: LogLimiter,
    is_unsynced: bool,
    is_stuck: bool,
    /// Datagrams that were sent from the spill, and that could not be read, since that was last said.
    sent: u64,
    damaged: u64,
    /// Something found no room before the end.
    has_given_up: bool,
}

impl Voice {
    pub(super) fn new(sink: &str) -> Self {
        Self {
            sink: sink.to_owned(),
            is_in_use: false,
            is_said_in_use: false,
            uses: LogLimiter::default(),
            is_full: false,
            fills: LogLimiter::default(),
            is_unsynced: false,
            is_stuck: false,
            sent: 0,
            damaged: 0,
            has_given_up: false,
        }
    }

    /// Something goes to the spill.
    pub(super) fn begins(&mut self, store: &Store) {
        if std::mem::replace(&mut self.is_in_use, true) {
            return;
        }
        if let Some(silent) = self.uses.pass(Instant::now()) {
            self.is_said_in_use = true;
            let (sink, directory, times) = (&self.sink, store.directory().display(), repeats(silent));
            log::warn!("sink {sink}: what its destination does not take now waits in {directory}{times}");
        }
    }

    /// What a former process, or a former sink, has left is sent first.
    pub(super) fn takes_over(&mut self, store: &Store, found: &Recovered) {
        let (sink, directory) = (&self.sink, store.directory().display());
        let left: u64 = found.left.iter().map(|(_, datagrams)| datagrams).sum();
        let torn: u64 = found.torn.iter().map(|(_, datagrams)| datagrams).sum();
        if left > 0 {
            (self.is_in_use, self.is_said_in_use) = (true, true);
            let twice: u64 = found.twice_at_most.iter().map(|(_, datagrams)| datagrams).sum();
            log::info!(
                "sink {sink}: sends {left} datagrams first that waited in {directory}; at most {twice} of them were \
                 sent before"
            );
        }
        if torn > 0 || found.torn_bytes > 0 {
            let bytes = found.torn_bytes;
            log::warn!(
                "sink {sink}: {torn} datagrams in {directory} cannot be read, because they were not written to their \
                 end or are damaged (spill_torn), and {bytes} bytes there; udpd goes on behind them"
            );
        }
        for path in &found.set_aside {
            log::warn!("sink {sink}: {} is no spill that udpd can read any more; remove it", path.display());
        }
        for path in &found.empty {
            log::warn!(
                "sink {sink}: {} was empty and is removed; a power cut may have taken what was in it",
                path.display()
            );
        }
        if !found.unknown.is_empty() {
            let unknown = found.unknown.join(", ");
            log::warn!(
                "sink {sink}: there are datagrams in {directory} of listeners that do not feed it any more ({unknown}); \
                 they count for another one"
            );
        }
    }

    /// So many datagrams were sent from the spill.
    pub(super) fn sent(&mut self, datagrams: u64) {
        self.sent += datagrams;
    }

    /// Nothing is in it any more.
    pub(super) fn is_empty(&mut self) {
        (self.is_full, self.is_unsynced, self.is_stuck) = (false, false, false);
        self.is_in_use = false;
        if std::mem::take(&mut self.is_said_in_use) {
            let unread = match self.damaged {
                0 => String::new(),
                datagrams => format!(", and {datagrams} could not be read"),
            };
            let (sink, sent) = (&self.sink, self.sent);
            log::info!("sink {sink}: its spill is empty again; {sent} datagrams were sent from it{unread}");
            (self.sent, self.damaged) = (0, 0);
        }
    }

    /// It takes no more.
    pub(super) fn full(&mut self, store: &Store, error: &std::io::Error, when_full: FullPolicy) {
        if std::mem::replace(&mut self.is_full, true) {
            return;
        }
        let Some(silent) = self.fills.pass(Instant::now()) else { return };
        let (sink, directory, bytes) = (&self.sink, store.directory().display(), print_size(store.bytes()));
        let what = match when_full {
            FullPolicy::DropNewest => "what comes now counts as spill_full",
            FullPolicy::DropOldest => "what waits there for longest makes room and counts as spill_full",
            FullPolicy::Block => "the sink waits for room, and what comes meanwhile for the sink",
        };
        let times = repeats(silent);
        match error.kind() {
            std::io::ErrorKind::QuotaExceeded => {
                log::warn!("sink {sink}: its spill {directory} is full ({bytes}); {what}; raise spill.bytes{times}");
            }
            _ => log::warn!(
                "sink {sink}: cannot write to its spill {directory}: {error}; {what}; see to that disk{times}"
            ),
        }
    }

    /// What is in it cannot be forced to the disk.
    pub(super) fn cannot_sync(&mut self, directory: &Path, error: &std::io::Error) {
        if !std::mem::replace(&mut self.is_unsynced, true) {
            let (sink, directory) = (&self.sink, directory.display());
            log::warn!(
                "sink {sink}: cannot force its spill {directory} to the disk: {error}; a power loss may take it"
            );
        }
    }

    /// Nothing of it can be sent now.
    pub(super) fn stuck(&mut self, directory: &Path, trouble: &Trouble) {
        if std::mem::replace(&mut self.is_stuck, true) {
            return;
        }
        let (sink, directory) = (&self.sink, directory.display());
        match trouble {
            Trouble::Unread(error) => log::warn!(
                "sink {sink}: cannot read what waits in {directory}: {error}; udpd looks again, and then goes on \
                 behind it; see to that disk"
            ),
            Trouble::Unmarked(error) => log::warn!(
                "sink {sink}: cannot write down in {directory} what it sends: {error}; what waits there is not sent \
                 until it can; see to that disk"
            ),
        }
    }

    /// A frame is not what was written. A disk that fails has many, and the last line of the spill says how many.
    pub(super) fn damaged(&mut self, directory: &Path, datagrams: u64) {
        if self.damaged == 0 {
            let (sink, directory) = (&self.sink, directory.display());
            log::warn!("sink {sink}: {datagrams} datagrams in {directory} are damaged and count as spill_torn");
        }
        self.damaged += datagrams;
    }

    /// It cannot be read.
    pub(super) fn cannot_open(&self, directory: &Path, error: &std::io::Error) {
        let (sink, directory) = (&self.sink, directory.display());
        log::error!("sink {sink}: cannot use the spill {directory}: {error}; it goes on without one");
    }

    /// Something found no room before the end.
    pub(super) fn gave_up(&mut self) {
        self.has_given_up = true;
    }

    /// The sink ends, and something stays.
    pub(super) fn stays(&self, store: &Store) {
        let (sink, directory, left) = (&self.sink, store.directory().display(), store.left());
        if self.has_given_up {
            log::error!(
                "sink {sink}: its spill {directory} had no room before the end; what waited for it was not taken in \
                 time and counts as sink_error"
            );
        }
        if left > 0 {
            log::warn!(
                "sink {sink}: {left} datagrams stay in {directory}; the next sink of its type with that spill sends them"
            );
        }
    }
}
