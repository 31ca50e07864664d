//! The log lines about a spill: one when it is needed, one when it is empty again, and one when a problem with it
//! begins. A spill that is needed again and again gets these lines once a minute.

use std::path::Path;

use crate::{Recovered, SpillReadError, SpillStore};
use udpd_base::handover::route::FullPolicy;
use udpd_base::logging::{LogLimiter, repeats};
use udpd_base::seams::clock;
use udpd_base::text::units::print_size;

/// Writes the lines, and knows which were written.
#[derive(Debug)]
pub(super) struct SpillLog {
    sink: String,
    is_in_use: bool,
    /// The log has a line that the spill is needed, and gets one when it is empty.
    is_logged_in_use: bool,
    uses: LogLimiter,
    is_full: bool,
    fills: LogLimiter,
    is_unsynced: bool,
    is_stuck: bool,
    /// Datagrams sent from the spill, and not readable ones, since the last line about them.
    sent: u64,
    damaged: u64,
    /// Datagrams found no space before the end.
    has_given_up: bool,
}

impl SpillLog {
    pub(super) fn new(sink: &str) -> Self {
        Self {
            sink: sink.to_owned(),
            is_in_use: false,
            is_logged_in_use: false,
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

    /// Datagrams go to the spill.
    pub(super) fn log_in_use(&mut self, store: &SpillStore) {
        if std::mem::replace(&mut self.is_in_use, true) {
            return;
        }
        if let Some(silent) = self.uses.pass(clock::now()) {
            self.is_logged_in_use = true;
            let (sink, directory, times) = (&self.sink, store.directory().display(), repeats(silent));
            log::warn!("sink {sink}: what its destination does not take now waits in {directory}{times}");
        }
    }

    /// What an earlier process or sink has left is sent first.
    pub(super) fn log_recovered(&mut self, store: &SpillStore, found: &Recovered) {
        let (sink, directory) = (&self.sink, store.directory().display());
        let left: u64 = found.left.iter().map(|(_, datagrams)| datagrams).sum();
        let torn: u64 = found.torn.iter().map(|(_, datagrams)| datagrams).sum();
        if left > 0 {
            (self.is_in_use, self.is_logged_in_use) = (true, true);
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
            log::warn!("sink {sink}: {} is damaged or not a spill, and udpd cannot read it; remove it", path.display());
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

    pub(super) fn is_empty(&mut self) {
        (self.is_full, self.is_unsynced, self.is_stuck) = (false, false, false);
        self.is_in_use = false;
        if std::mem::take(&mut self.is_logged_in_use) {
            let unread = match self.damaged {
                0 => String::new(),
                datagrams => format!(", and {datagrams} could not be read"),
            };
            let (sink, sent) = (&self.sink, self.sent);
            log::info!("sink {sink}: its spill is empty again; {sent} datagrams were sent from it{unread}");
            (self.sent, self.damaged) = (0, 0);
        }
    }

    /// The spill takes no more.
    pub(super) fn log_full(&mut self, store: &SpillStore, error: &std::io::Error, when_full: FullPolicy) {
        if std::mem::replace(&mut self.is_full, true) {
            return;
        }
        let Some(silent) = self.fills.pass(clock::now()) else { return };
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
                "sink {sink}: cannot write to its spill {directory}: {error}; {what}; check that disk{times}"
            ),
        }
    }

    /// The spill cannot be synced.
    pub(super) fn log_sync_error(&mut self, directory: &Path, error: &std::io::Error) {
        if !std::mem::replace(&mut self.is_unsynced, true) {
            let (sink, directory) = (&self.sink, directory.display());
            log::warn!("sink {sink}: cannot sync its spill {directory} to the disk: {error}; a power loss may take it");
        }
    }

    /// Nothing can be sent from it now.
    pub(super) fn log_read_error(&mut self, directory: &Path, error: &SpillReadError) {
        if std::mem::replace(&mut self.is_stuck, true) {
            return;
        }
        let (sink, directory) = (&self.sink, directory.display());
        match error {
            SpillReadError::Unread(error) => log::warn!(
                "sink {sink}: cannot read what waits in {directory}: {error}; udpd retries, and then goes on \
                 behind it; check that disk"
            ),
            SpillReadError::Unmarked(error) => log::warn!(
                "sink {sink}: cannot mark in {directory} what it sends: {error}; what waits there is not sent \
                 until it can; check that disk"
            ),
        }
    }

    /// A frame is damaged. A failing disk has many, and the last line about the spill has their number.
    pub(super) fn damaged(&mut self, directory: &Path, datagrams: u64) {
        if self.damaged == 0 {
            let (sink, directory) = (&self.sink, directory.display());
            log::warn!("sink {sink}: {datagrams} datagrams in {directory} are damaged and count as spill_torn");
        }
        self.damaged += datagrams;
    }

    /// The spill cannot be opened.
    pub(super) fn log_open_error(&self, directory: &Path, error: &std::io::Error) {
        let (sink, directory) = (&self.sink, directory.display());
        log::error!("sink {sink}: cannot use the spill {directory}: {error}; it goes on without one");
    }

    /// Datagrams found no space before the end.
    pub(super) fn note_gave_up(&mut self) {
        self.has_given_up = true;
    }

    /// The sink ends, and datagrams stay in the spill.
    pub(super) fn log_left(&self, store: &SpillStore) {
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
