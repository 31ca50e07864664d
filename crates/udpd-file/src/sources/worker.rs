//! What the keeper does for a sink of files by source: it syncs them and removes finished files beyond `keep`. A disk
//! may delay both, and the consumer does not wait.
//!
//! One call for each file system (`syncfs`) syncs ten thousand files, including closed ones. It reports that something
//! could not be written, but not what: so all unsynced bytes are doubtful, and no file is set aside.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use crossbeam_channel::{Receiver, Sender, bounded};

use super::super::handle::cure;
use super::super::keeper::{KeeperInbox, Reopened};
use super::super::name::FileName;
use super::super::retention::Retention;
use super::super::settings::Keep;
use super::file_systems::{FileSystem, FileSystems};
use super::source_file::SourceFiles;
use udpd_base::codec::Recipe;
use udpd_base::handover::Caller;
use udpd_base::ledger::FileLedger;
use udpd_base::logging::limiter::{LogLimiter, repeats};
use udpd_base::os::threads;

/// How many sources may wait for the removal of their old files. A source beyond that waits until its next file is
/// finished.
pub(super) const FINISHED_MAX: usize = 16_384;

/// What consumer and keeper share.
#[derive(Debug)]
pub(crate) struct SourceFilesWorker {
    file_systems: Arc<FileSystems>,
    limiters: Arc<[LogLimiter; 2]>,
    /// Limits the lines about failed syncs.
    sync_errors: LogLimiter,
    keep: Keep,
    recipe: Option<Recipe>,
    pub(super) ledger: Arc<FileLedger>,
    /// Held by the consumer while it opens or finishes a file, and by the keeper while it removes a compressed file or
    /// changes an index.
    files_lock: Arc<Mutex<()>>,
    /// A requested sync: the total of bytes written by then.
    sync: Mutex<Option<u64>>,
    is_syncing: AtomicBool,
    finished_names: (Sender<FileName>, Receiver<FileName>),
    reopening: Mutex<ReopenRequests>,
    has_request: AtomicBool,
    /// The channel of finished names was full, so all indexes have to be searched.
    pub(super) has_overflowed: AtomicBool,
    is_closing: AtomicBool,
    consumer: Caller,
}

/// The requests to reopen, by number.
#[derive(Debug, Default)]
struct ReopenRequests {
    asked: u64,
    answered: u64,
    outcome: Reopened,
}

impl SourceFilesWorker {
    pub(super) fn new(
        files: &SourceFiles,
        (keep, recipe): (Keep, Option<Recipe>),
        ledger: Arc<FileLedger>,
        consumer: Caller,
    ) -> Self {
        Self {
            file_systems: Arc::clone(&files.file_systems),
            limiters: Arc::clone(&files.limiters),
            sync_errors: LogLimiter::default(),
            keep,
            recipe,
            ledger,
            files_lock: Arc::clone(&files.files_lock),
            sync: Mutex::default(),
            is_syncing: AtomicBool::new(false),
            finished_names: bounded(FINISHED_MAX),
            reopening: Mutex::default(),
            has_request: AtomicBool::new(false),
            has_overflowed: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            consumer,
        }
    }

    /// Handles the requests, on the keeper's thread; returns false after the last one. Calls `finished` for each source
    /// that has finished a file.
    pub(crate) fn serve(&self, finished: &mut dyn FnMut(&FileName)) -> bool {
        // Read first: the requests before the close are then handled below.
        let is_closing = self.is_closing.load(Ordering::Acquire);
        let written = self.sync.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(written) = written {
            self.force(written);
            self.is_syncing.store(false, Ordering::Release);
        }
        while let Ok(name) = self.finished_names.1.try_recv() {
            self.retention(&name).clear(&[]).iter().for_each(|_| self.ledger.note_removed());
            finished(&name);
        }
        !is_closing
    }

    /// The finished files of a source.
    pub(super) fn retention(&self, name: &FileName) -> Retention {
        let mut retention = Retention::new(name, self.keep, self.recipe).limited_by(&self.limiters);
        retention.read();
        retention
    }

    pub(crate) fn files_lock(&self) -> Arc<Mutex<()>> {
        Arc::clone(&self.files_lock)
    }

    fn force(&self, written: u64) {
        let begun = SystemTime::now();
        let (file_systems, are_all) = self.file_systems.all();
        // All bytes written so far are on these file systems.
        let sync = |file_system: FileSystem| {
            rustix::fs::syncfs(&file_system.opened).err().map(|error| (file_system, io::Error::from(error)))
        };
        let failures: Vec<_> = file_systems.into_iter().filter_map(sync).collect();
        if !failures.is_empty() {
            self.log_unsynced(&failures);
            self.ledger.note_sync_failure();
            self.ledger.note_doubtful(written);
        } else if are_all {
            self.ledger.note_synced(written, begun);
        }
    }

    /// A failing disk fails at every sync, which may be each second, so the lines are limited.
    fn log_unsynced(&self, failures: &[(FileSystem, io::Error)]) {
        let Some(silent) = self.sync_errors.pass(Instant::now()) else { return };
        for (file_system, error) in failures {
            log::error!(
                "cannot sync the file system of {} to the disk: {error}; what was written to files by source since \
                 the last sync may be lost{}{}",
                file_system.directory.display(),
                cure(error),
                repeats(silent)
            );
        }
    }

    /// Asks the consumer to close every moved file; returns the number of the request.
    pub(crate) fn request_reopen(&self) -> u64 {
        let mut reopening = self.reopening.lock().unwrap_or_else(PoisonError::into_inner);
        reopening.asked += 1;
        self.has_request.store(true, Ordering::Release);
        self.consumer.call();
        reopening.asked
    }

    /// The outcome of a request once it is done. Counts are reported once.
    pub(crate) fn answer_to(&self, request: u64) -> Option<Reopened> {
        let mut reopening = self.reopening.lock().unwrap_or_else(PoisonError::into_inner);
        (reopening.answered >= request).then(|| std::mem::take(&mut reopening.outcome))
    }
}

/// The consumer's side.
#[derive(Debug)]
pub(crate) struct SourceFilesHandle {
    worker: Arc<SourceFilesWorker>,
    inbox: Arc<KeeperInbox>,
    /// Disconnected when all requests are done.
    done: Receiver<std::convert::Infallible>,
}

impl SourceFilesHandle {
    pub(crate) fn new(
        worker: Arc<SourceFilesWorker>,
        inbox: Arc<KeeperInbox>,
        done: Receiver<std::convert::Infallible>,
    ) -> Self {
        Self { worker, inbox, done }
    }

    /// Requests a sync; returns false while the previous one is pending.
    pub(super) fn sync(&self, written: u64) -> bool {
        if self.worker.is_syncing.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.leave_sync(written);
        true
    }

    fn leave_sync(&self, written: u64) {
        *self.worker.sync.lock().unwrap_or_else(PoisonError::into_inner) = Some(written);
        self.inbox.wake();
    }

    /// Requests the removal of old files of this name, and the compression of others.
    pub(super) fn clear(&self, name: FileName) {
        if self.worker.keep == Keep::ALL && self.worker.recipe.is_none() {
            return;
        }
        match self.worker.finished_names.0.try_send(name) {
            Ok(()) => self.inbox.wake(),
            Err(_) => self.worker.has_overflowed.store(true, Ordering::Release),
        }
    }

    /// The number of a request to reopen, if there is one.
    pub(super) fn request(&self) -> Option<u64> {
        if !self.worker.has_request.load(Ordering::Acquire) {
            return None;
        }
        let reopening = self.worker.reopening.lock().unwrap_or_else(PoisonError::into_inner);
        self.worker.has_request.store(false, Ordering::Relaxed);
        Some(reopening.asked)
    }

    pub(super) fn answer(&self, request: u64, left: usize, stayed: usize) {
        let mut reopening = self.worker.reopening.lock().unwrap_or_else(PoisonError::into_inner);
        reopening.answered = request;
        reopening.outcome.left += left;
        reopening.outcome.stayed += stayed;
        drop(reopening);
        self.inbox.wake();
    }

    /// Waits until all requests are done, after a last sync if one is given.
    pub(super) fn close(self, sync: Option<u64>) {
        if let Some(written) = sync {
            self.leave_sync(written);
        }
        self.worker.is_closing.store(true, Ordering::Release);
        self.inbox.wake();
        // Nothing is ever sent: the wait ends when the keeper drops the other end.
        let _ = threads::blocking(|| self.done.recv());
    }
}
