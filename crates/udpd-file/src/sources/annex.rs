//! What the keeper does for a sink of files by source: it forces them to the disk, and removes finished files beyond
//! what is to be kept. Both can take as long as a disk likes, and the consumer does not wait.
//!
//! Ten thousand files are forced to the disk by one call for each of their file systems (`syncfs`), which also reaches
//! those that are closed by then. It says that something could not be written, and not what: its bytes are doubtful,
//! and no file is set aside.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use crossbeam_channel::{Receiver, Sender, bounded};

use super::super::handle::cure;
use super::super::name::Name;
use super::super::office::{Office, Reopened};
use super::super::settings::Keep;
use super::super::shelf::Shelf;
use super::disks::{Disk, Disks};
use super::source_file::SourceFiles;
use udpd_base::codec::Recipe;
use udpd_base::handover::Caller;
use udpd_base::ledger::FileLedger;
use udpd_base::logging::muffle::{Muffle, count};
use udpd_base::os::crew;

/// How many sources may wait for their old files to be removed. One that finds no place is looked at when its next file
/// is finished.
pub(super) const CLEARINGS_MAX: usize = 16_384;

/// What consumer and keeper leave for each other.
#[derive(Debug)]
pub(crate) struct Annex {
    disks: Arc<Disks>,
    muffles: Arc<[Muffle; 2]>,
    /// Failed syncs.
    unsynced: Muffle,
    keep: Keep,
    recipe: Option<Recipe>,
    pub(super) ledger: Arc<FileLedger>,
    /// Held by the consumer while it opens or finishes a file, and by the keeper while it removes one that is
    /// compressed or changes its list.
    latch: Arc<Mutex<()>>,
    /// How many bytes were written when it was asked for.
    sync: Mutex<Option<u64>>,
    is_syncing: AtomicBool,
    clearings: (Sender<Name>, Receiver<Name>),
    reopening: Mutex<Reopening>,
    has_wish: AtomicBool,
    /// Some found no place among the clearings.
    pub(super) has_missed: AtomicBool,
    is_closing: AtomicBool,
    consumer: Caller,
}

/// Wishes to go over to new files, by number.
#[derive(Debug, Default)]
struct Reopening {
    asked: u64,
    answered: u64,
    outcome: Reopened,
}

impl Annex {
    pub(super) fn new(
        files: &SourceFiles,
        (keep, recipe): (Keep, Option<Recipe>),
        ledger: Arc<FileLedger>,
        consumer: Caller,
    ) -> Self {
        Self {
            disks: Arc::clone(&files.disks),
            muffles: Arc::clone(&files.muffles),
            unsynced: Muffle::default(),
            keep,
            recipe,
            ledger,
            latch: Arc::clone(&files.latch),
            sync: Mutex::default(),
            is_syncing: AtomicBool::new(false),
            clearings: bounded(CLEARINGS_MAX),
            reopening: Mutex::default(),
            has_wish: AtomicBool::new(false),
            has_missed: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            consumer,
        }
    }

    /// Does what was asked for, on the keeper's thread; false when that was the last of it. `finished` hears which
    /// sources have finished a file.
    pub(crate) fn serve(&self, finished: &mut dyn FnMut(&Name)) -> bool {
        // Read before what was asked for before it.
        let is_closing = self.is_closing.load(Ordering::Acquire);
        let written = self.sync.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(written) = written {
            self.force(written);
            self.is_syncing.store(false, Ordering::Release);
        }
        while let Ok(name) = self.clearings.1.try_recv() {
            self.shelf(&name).clear(&[]).iter().for_each(|_| self.ledger.note_removed());
            finished(&name);
        }
        !is_closing
    }

    /// The finished files of a source.
    pub(super) fn shelf(&self, name: &Name) -> Shelf {
        let mut shelf = Shelf::new(name, self.keep, self.recipe).muffled_by(&self.muffles);
        shelf.read();
        shelf
    }

    pub(crate) fn latch(&self) -> Arc<Mutex<()>> {
        Arc::clone(&self.latch)
    }

    fn force(&self, written: u64) {
        let begun = SystemTime::now();
        let (disks, are_all) = self.disks.all();
        // What is written by now lies on these.
        let sync = |disk: Disk| rustix::fs::syncfs(&disk.opened).err().map(|error| (disk, io::Error::from(error)));
        let failures: Vec<_> = disks.into_iter().filter_map(sync).collect();
        if !failures.is_empty() {
            self.say_unsynced(&failures);
            self.ledger.note_sync_failure();
            self.ledger.note_doubtful(written);
        } else if are_all {
            self.ledger.note_synced(written, begun);
        }
    }

    /// A disk that fails does so at every sync, which may be each second.
    fn say_unsynced(&self, failures: &[(Disk, io::Error)]) {
        let Some(silent) = self.unsynced.let_speak(Instant::now()) else { return };
        for (disk, error) in failures {
            log::error!(
                "cannot sync the file system of {} to the disk: {error}; what was written to files by source since \
                 the last sync may be lost{}{}",
                disk.directory.display(),
                cure(error),
                count(silent)
            );
        }
    }

    /// Asks the consumer to leave every file that somebody has moved; returns the number of that wish.
    pub(crate) fn ask_to_reopen(&self) -> u64 {
        let mut reopening = self.reopening.lock().unwrap_or_else(PoisonError::into_inner);
        reopening.asked += 1;
        self.has_wish.store(true, Ordering::Release);
        self.consumer.call();
        reopening.asked
    }

    /// What became of that wish, once it is done; what one answer has said no other says again.
    pub(crate) fn answer_to(&self, wish: u64) -> Option<Reopened> {
        let mut reopening = self.reopening.lock().unwrap_or_else(PoisonError::into_inner);
        (reopening.answered >= wish).then(|| std::mem::take(&mut reopening.outcome))
    }
}

/// The consumer's end.
#[derive(Debug)]
pub(crate) struct AnnexPost {
    annex: Arc<Annex>,
    office: Arc<Office>,
    /// Disconnected when everything asked for is done.
    done: Receiver<std::convert::Infallible>,
}

impl AnnexPost {
    pub(crate) fn new(annex: Arc<Annex>, office: Arc<Office>, done: Receiver<std::convert::Infallible>) -> Self {
        Self { annex, office, done }
    }

    /// Has everything forced to the disk; false while the disk has yet to do that from before.
    pub(super) fn sync(&self, written: u64) -> bool {
        if self.annex.is_syncing.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.leave_sync(written);
        true
    }

    fn leave_sync(&self, written: u64) {
        *self.annex.sync.lock().unwrap_or_else(PoisonError::into_inner) = Some(written);
        self.office.ring();
    }

    /// Has old files of this name removed, and others compressed.
    pub(super) fn clear(&self, name: Name) {
        if self.annex.keep == Keep::ALL && self.annex.recipe.is_none() {
            return;
        }
        match self.annex.clearings.0.try_send(name) {
            Ok(()) => self.office.ring(),
            Err(_) => self.annex.has_missed.store(true, Ordering::Release),
        }
    }

    /// The number of a wish to go over to new files, if there is one.
    pub(super) fn wish(&self) -> Option<u64> {
        if !self.annex.has_wish.load(Ordering::Acquire) {
            return None;
        }
        let reopening = self.annex.reopening.lock().unwrap_or_else(PoisonError::into_inner);
        self.annex.has_wish.store(false, Ordering::Relaxed);
        Some(reopening.asked)
    }

    pub(super) fn answer(&self, wish: u64, left: usize, stayed: usize) {
        let mut reopening = self.annex.reopening.lock().unwrap_or_else(PoisonError::into_inner);
        reopening.answered = wish;
        reopening.outcome.left += left;
        reopening.outcome.stayed += stayed;
        drop(reopening);
        self.office.ring();
    }

    /// Waits until everything asked for is done, with a last sync where one is wanted.
    pub(super) fn close(self, sync: Option<u64>) {
        if let Some(written) = sync {
            self.leave_sync(written);
        }
        self.annex.is_closing.store(true, Ordering::Release);
        self.office.ring();
        // Nothing is ever sent: it ends when the keeper lets go of the other end.
        let _ = crew::at_rest(|| self.done.recv());
    }
}
