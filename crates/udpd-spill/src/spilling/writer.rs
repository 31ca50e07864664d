//! The disk side of a sink with a spill: opens the store, writes to it what was pushed, and syncs it.
//!
//! It counts what is written. What becomes of datagrams that find no room is for the sink to decide.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::log_lines::SpillLog;
use super::settings::{Spill, SpillLocation, refusal};
use crate::{Recovered, SpillStore};
use udpd_base::exit::Failure;
use udpd_base::handover::route::FullPolicy;
use udpd_base::ledger::Tallies;
use udpd_base::os::threads;
use udpd_base::os::threads::lock;
use udpd_base::seams::clock;
use udpd_base::sink::fail;
use udpd_base::sink::settings::Opening;

/// How often what was written to the spill is synced.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// How long a small amount that a disk does not take waits for another attempt.
const WRITE_PATIENCE: Duration = Duration::from_secs(1);

/// The spills that this process has had. What is found in them is in its ledger already.
static OWN: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// What was found in a spill and is not in the ledger yet.
#[derive(Debug)]
struct RecoveredSpill {
    found: Recovered,
    /// By a sink of this process.
    is_own: bool,
}

/// How an attempt to write has ended.
#[derive(Debug)]
pub(super) enum WriteOutcome {
    /// There was nothing to write, or it waits for another attempt.
    Nothing,
    /// All of it is on the disk: also the frame that was read from memory, up to this place of this segment.
    Written(Option<(u64, u64)>),
    /// There is no room, or the disk has failed for too long.
    NoRoom,
}

#[derive(Debug)]
pub(super) struct SpillWriter {
    /// `None` where no lane feeds the consumer.
    location: Option<SpillLocation>,
    /// `None` before it is open, or where it cannot be.
    pub(super) store: Option<SpillStore>,
    opened: Option<RecoveredSpill>,
    pub(super) when_full: FullPolicy,
    /// Whether the daemon has stopped waiting for this consumer.
    pub(super) is_unawaited: fn() -> bool,
    /// The daemon has stopped waiting and the spill was full: further datagrams are lost.
    pub(super) is_given_up: bool,
    pub(super) log_lines: SpillLog,
    pub(super) next_sync: Option<Instant>,
    /// No more datagrams come.
    pub(super) is_last: bool,
    /// Since when the disk has taken nothing of what waits to be written.
    pub(super) refused_since: Option<Instant>,
}

impl SpillWriter {
    pub(super) fn new(name: &str, location: Option<SpillLocation>, when_full: FullPolicy) -> Self {
        Self {
            location,
            store: None,
            opened: None,
            when_full,
            is_unawaited: threads::is_given_up,
            is_given_up: false,
            log_lines: SpillLog::new(name),
            next_sync: None,
            is_last: false,
            refused_since: None,
        }
    }

    /// Opens the spill, unless another sink has it and ends before this one begins.
    pub(super) fn open(spill: &Spill, opening: &Opening<'_>) -> Result<Self, Failure> {
        let mut writer = Self::new(opening.sink, SpillLocation::of(spill, opening)?, opening.when_full);
        if !opening.context.has_predecessor {
            writer.open_store().map_err(|error| refusal(opening.sink, &writer.directory(), &error))?;
        }
        Ok(writer)
    }

    fn directory(&self) -> PathBuf {
        self.location.as_ref().map(|location| location.directory.clone()).unwrap_or_default()
    }

    /// One more than the place of the last listener that feeds it.
    pub(super) fn listeners(&self) -> usize {
        self.location.as_ref().map_or(0, |location| location.lanes.listeners())
    }

    pub(super) fn open_store(&mut self) -> io::Result<()> {
        let Some(location) = self.location.clone() else { return Ok(()) };
        let (store, found) =
            SpillStore::open(&location.directory, location.bytes_max, location.lanes, &location.others)?;
        let is_own = !lock(&OWN).insert(location.directory);
        self.log_lines.log_recovered(&store, &found);
        if !store.is_empty() {
            self.next_sync = Some(clock::now() + SYNC_EVERY);
        }
        (self.store, self.opened) = (Some(store), Some(RecoveredSpill { found, is_own }));
        Ok(())
    }

    /// The same when it begins: a sink without a spill is better than none.
    pub(super) fn open_late(&mut self) {
        if self.store.is_none()
            && let Err(error) = self.open_store()
        {
            self.log_lines.log_open_error(&self.directory(), &error);
        }
    }

    /// What was found in the spill is not in the ledger yet.
    pub(super) fn has_news(&self) -> bool {
        self.opened.is_some()
    }

    /// Adds what was found in the spill to the ledger.
    pub(super) fn count_opened(&mut self, tallies: &mut Tallies) {
        let Some(RecoveredSpill { found, is_own }) = self.opened.take() else { return };
        for (listener, datagrams) in found.left {
            let tally = &mut tallies[listener];
            tally.spilled += datagrams;
            *(if is_own { &mut tally.spilled_again } else { &mut tally.spilled_before }) += datagrams;
        }
        for (listener, datagrams) in found.torn {
            let tally = &mut tallies[listener];
            tally.dropped.spill_torn += datagrams;
            tally.spilled_before += datagrams;
        }
        for (listener, datagrams) in found.twice_at_most {
            tallies[listener].spill_repeats_at_most += datagrams;
        }
    }

    /// Writes what was pushed.
    pub(super) fn write_out(&mut self, tallies: &mut Tallies) -> WriteOutcome {
        let Some(store) = self.store.as_mut().filter(|store| store.unwritten_bytes() > 0) else {
            return WriteOutcome::Nothing;
        };
        let mut spilled = |listener: usize, datagrams| {
            tallies[listener].pending -= datagrams;
            tallies[listener].spilled += datagrams;
        };
        let error = match threads::blocking(|| store.write_out(&mut spilled)) {
            Err(error) => error,
            Ok(lent) => {
                self.refused_since = None;
                self.next_sync.get_or_insert_with(|| clock::now() + SYNC_EVERY);
                if let Some(error) = store.take_sync_error() {
                    self.log_lines.log_sync_error(store.directory(), &error);
                }
                return WriteOutcome::Written(lent);
            }
        };
        self.log_lines.log_full(store, &error, self.when_full);
        let is_patient = !(self.is_last && self.when_full == FullPolicy::Block);
        if error.kind() != io::ErrorKind::QuotaExceeded && !store.is_write_due() && is_patient {
            // The disk may have failed for a moment only.
            let since = *self.refused_since.get_or_insert_with(clock::now);
            if clock::since(since) < WRITE_PATIENCE {
                return WriteOutcome::Nothing;
            }
        }
        WriteOutcome::NoRoom
    }

    /// Gives up what could not be written.
    pub(super) fn forget_unwritten(&mut self, tallies: &mut Tallies) {
        self.refused_since = None;
        let Some(store) = &mut self.store else { return };
        let is_given_up = self.is_given_up;
        store.forget_unwritten(|listener, datagrams| {
            let tally = &mut tallies[listener];
            if is_given_up {
                fail(tally, datagrams);
            } else {
                tally.pending -= datagrams;
                tally.dropped.spill_full += datagrams;
            }
        });
    }

    /// The daemon does not wait any longer for room.
    pub(super) fn give_up(&mut self) {
        self.is_given_up = true;
        self.log_lines.note_gave_up();
    }

    /// Syncs the spill, when it is due.
    pub(super) fn sync_when_due(&mut self) {
        let (Some(due), Some(store)) = (self.next_sync, &mut self.store) else { return };
        if due > clock::now() {
            return;
        }
        self.next_sync = None;
        if let Err(error) = threads::blocking(|| store.sync()) {
            self.log_lines.log_sync_error(store.directory(), &error);
        }
    }

    /// The last call. Unless the destination may still deliver some of the rest, none of it will be sent twice.
    pub(super) fn close(&mut self, may_be_twice: bool) {
        let Some(mut store) = self.store.take() else { return };
        if let Err(error) = store.close(may_be_twice) {
            self.log_lines.log_sync_error(store.directory(), &error);
        }
        self.log_lines.log_left(&store);
    }
}
