//! What the keeper does for the files by source of one consumer: it syncs them, removes finished files beyond `keep`,
//! and offers the others to the threads that compress and upload. A disk may delay all of that, and the consumer does
//! not wait.
//!
//! One call for each file system (`syncfs`) syncs ten thousand files, including closed ones. It reports that something
//! could not be written, but not what: so all unsynced bytes are doubtful, and no file is set aside.
//!
//! The queue of finished files holds names of paths, not of files; the index of a source tells which of its files have
//! no compressed form, or were not uploaded. So nothing is lost when the queue is full: when it is empty, all indexes
//! are searched again. The first search also finds what an earlier run has left.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use super::super::clock::WallClock;
use super::super::compress::{CompressError, CompressReport, list, remove_plain, take_place};
use super::super::handle::cure;
use super::super::keeper::{CompressOffer, KeptFiles};
use super::super::mailbox::{KeeperRequest, Mailbox, Reopened};
use super::super::name::FileName;
use super::super::queue::JobQueue;
use super::super::retention::{FileRetention, RetentionLimiters, Treatment, WaitingFile};
use super::super::settings::FileSettings;
use super::super::upload::{self, UploadOffer, UploadOutcome, UploadReport};
use super::existing::IndexFinder;
use super::file_systems::{FileSystem, FileSystems};
use super::source_file::SourceFiles;
use udpd_base::codec::Recipe;
use udpd_base::format::Boundary;
use udpd_base::ledger::FileLedger;
use udpd_base::logging::{LogLimiter, repeats};
use udpd_base::os::threads;
use udpd_base::seams::clock;

/// How many sources may wait for the keeper after they have finished a file. A source beyond that waits until its next
/// file is finished, or for the search of all indexes.
const FINISHED_MAX: usize = 16_384;

/// How many indexes are read before the keeper handles other requests.
const READ_AT_ONCE: usize = 64;

/// The finished files of all sources of one consumer. Both consumer and keeper change them.
#[derive(Debug, Clone)]
pub(super) struct SourceRetention {
    treatment: Treatment,
    limiters: RetentionLimiters,
    files_lock: Arc<Mutex<()>>,
    finished: Arc<Mutex<FinishedSources>>,
}

/// The sources that have finished a file, from the consumer to the keeper.
#[derive(Debug, Default)]
struct FinishedSources {
    names: Vec<FileName>,
    /// There were more, so all indexes have to be searched.
    has_overflowed: bool,
}

impl SourceRetention {
    pub(super) fn new(settings: &FileSettings) -> Self {
        let treatment = Treatment::of(settings);
        Self { treatment, limiters: Arc::default(), files_lock: Arc::default(), finished: Arc::default() }
    }

    /// Held by the consumer while it opens or finishes a file, and by the keeper while it removes a compressed file or
    /// changes an index.
    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        threads::lock(&self.files_lock)
    }

    /// Those of one source. Its index is read on demand, because ten thousand would take much memory.
    pub(super) fn of(&self, name: &FileName) -> FileRetention {
        let mut retention = FileRetention::new(name, self.treatment).limited_by(&self.limiters);
        retention.read();
        retention
    }

    /// The keeper is to remove old files of this name, and to compress others. Returns whether it has to be woken.
    pub(super) fn add_finished(&self, name: FileName) -> bool {
        if self.treatment.is_none() {
            return false;
        }
        let mut finished = threads::lock(&self.finished);
        match finished.names.len() < FINISHED_MAX {
            true => finished.names.push(name),
            false => finished.has_overflowed = true,
        }
        true
    }

    fn take_finished(&self) -> FinishedSources {
        std::mem::take(&mut threads::lock(&self.finished))
    }
}

/// The files by source of one consumer, as the keeper sees them.
#[derive(Debug)]
pub(super) struct KeptSourceFiles {
    retention: SourceRetention,
    file_systems: Arc<FileSystems>,
    /// Limits the lines about failed syncs.
    sync_errors: LogLimiter,
    ledger: Arc<FileLedger>,
    mailbox: Arc<Mailbox>,
    /// The number of the last request to reopen, and of the last one that the consumer has done.
    reopen_asked: u64,
    reopen_done: u64,
    /// How many files were closed and how many were not, by the reports that are in no answer yet.
    reopened: (usize, usize),
    queue: Option<SourceQueue>,
    uploads: Option<SourceQueue>,
}

impl KeptSourceFiles {
    pub(super) fn new(
        files: &SourceFiles,
        settings: &FileSettings,
        ledger: Arc<FileLedger>,
        mailbox: Arc<Mailbox>,
    ) -> Self {
        let finder = || IndexFinder::new(files.paths(), settings.rotate.every, settings.time.zone());
        let treatment = files.retention.treatment;
        let queue_of = |step| SourceQueue::new(step, files.boundary, finder());
        let queue = treatment.recipe.map(|recipe| queue_of(Step::Compress(recipe)));
        let uploads = treatment.upload.map(|_| queue_of(Step::Upload));
        Self {
            retention: files.retention.clone(),
            file_systems: Arc::clone(&files.file_systems),
            sync_errors: LogLimiter::default(),
            ledger,
            mailbox,
            reopen_asked: 0,
            reopen_done: 0,
            reopened: (0, 0),
            queue,
            uploads,
        }
    }

    fn sync(&self, written: u64) {
        let begun = clock::wall();
        let (file_systems, are_all) = self.file_systems.all();
        // All bytes written so far are on these file systems.
        let sync = |file_system: FileSystem| {
            rustix::fs::syncfs(&file_system.opened).err().map(|error| (file_system, io::Error::from(error)))
        };
        let failures: Vec<_> = file_systems.into_iter().filter_map(sync).collect();
        if !failures.is_empty() {
            self.log_sync_error(&failures);
            self.ledger.note_sync_failure();
            self.ledger.note_doubtful(written);
        } else if are_all {
            self.ledger.note_synced(written, begun);
        }
    }

    /// A failing disk fails at every sync, which may be each second, so the lines are limited.
    fn log_sync_error(&self, failures: &[(FileSystem, io::Error)]) {
        let Some(silent) = self.sync_errors.pass(clock::now()) else { return };
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
}

impl KeptFiles for KeptSourceFiles {
    fn handle(&mut self, request: KeeperRequest) {
        match request {
            KeeperRequest::Sync(at) => self.sync(at.written),
            KeeperRequest::Reopened { number, closed, unmoved } => {
                self.reopen_done = number;
                self.reopened = (self.reopened.0 + closed, self.reopened.1 + unmoved);
            }
            KeeperRequest::Close(_) => self.work(),
            _ => {}
        }
    }

    /// Removes old files of the sources that have finished one, and queues the others.
    fn work(&mut self) {
        let FinishedSources { names, has_overflowed } = self.retention.take_finished();
        for name in names {
            self.retention.of(&name).clear(&[], &self.ledger);
            self.queue.iter_mut().chain(&mut self.uploads).for_each(|queue| queue.add(name.clone()));
        }
        if has_overflowed {
            self.queue.iter_mut().chain(&mut self.uploads).for_each(SourceQueue::search_again);
        }
        if let Some(uploads) = &self.uploads {
            self.ledger.note_not_uploaded(uploads.names.len() as u64);
        }
    }

    fn reopen(&mut self, _: &mut Reopened) -> u64 {
        self.reopen_asked += 1;
        self.mailbox.reopen(self.reopen_asked);
        self.reopen_asked
    }

    fn finish_reopening(&mut self, number: u64, outcome: &mut Reopened) -> bool {
        let is_done = self.reopen_done >= number;
        if is_done {
            let (closed, unmoved) = std::mem::take(&mut self.reopened);
            outcome.closed += closed;
            outcome.unmoved += unmoved;
        }
        is_done
    }

    fn compresses(&self) -> bool {
        self.queue.is_some()
    }

    fn offer(&mut self, now: Instant) -> Option<CompressOffer> {
        let queue = self.queue.as_mut()?;
        let file = queue.offer(&self.retention, &self.ledger, now)?;
        let files_lock = Some(Arc::clone(&self.retention.files_lock));
        let recipe = self.retention.treatment.recipe?;
        Some(CompressOffer { file, recipe, boundary: queue.boundary, files_lock })
    }

    fn offers_at(&self, now: Instant) -> Option<Instant> {
        self.queue.as_ref()?.queue.checks_at(now)
    }

    fn take_report(&mut self, report: CompressReport) {
        let Some(queue) = &mut self.queue else { return };
        if let (Some(name), Some(uploads)) =
            (queue.take_report(&self.retention, &self.ledger, report), &mut self.uploads)
        {
            uploads.add(name);
        }
    }

    fn offer_upload(&mut self, now: Instant) -> Option<UploadOffer> {
        let queue = self.uploads.as_mut()?;
        let file = queue.offer(&self.retention, &self.ledger, now)?;
        let files_lock = Some(&*self.retention.files_lock);
        UploadOffer::of(&file, queue.boundary, files_lock, &mut queue.queue, &self.ledger)
    }

    fn uploads_at(&self, now: Instant) -> Option<Instant> {
        self.uploads.as_ref()?.queue.checks_at(now)
    }

    fn take_upload_report(&mut self, report: UploadReport) {
        let Some(queue) = &mut self.uploads else { return };
        let Some(name) = queue.names.front() else { return };
        let _lock = self.retention.lock();
        upload::settle(&report, &mut queue.queue, &mut self.retention.of(name), &self.ledger);
        if report.outcome == UploadOutcome::Returned {
            queue.names.rotate_left(1);
        }
    }
}

/// What a thread does to a finished file.
#[derive(Debug, Clone, Copy)]
enum Step {
    Compress(Recipe),
    Upload,
}

/// Which finished files to compress, or to upload.
#[derive(Debug)]
struct SourceQueue {
    step: Step,
    queue: JobQueue,
    boundary: Boundary,
    finder: IndexFinder,
    /// Search the indexes from this number on.
    scans_from: Option<usize>,
    /// The first is that of the file at the thread that does it, if there is one.
    names: VecDeque<FileName>,
    /// How many of them this round has yet to look at.
    unseen: usize,
    /// Names were added since the round began.
    has_more: bool,
    clock: WallClock,
}

impl SourceQueue {
    fn new(step: Step, boundary: Boundary, finder: IndexFinder) -> Self {
        Self {
            step,
            queue: JobQueue::new(),
            boundary,
            finder,
            scans_from: Some(0),
            names: VecDeque::new(),
            unseen: 0,
            has_more: false,
            clock: WallClock::default(),
        }
    }

    /// A source has finished a file.
    fn add(&mut self, name: FileName) {
        // A pause may have come from the consumer having the file open.
        self.queue.retry_files(|path| name.before_finishing(path).is_some());
        match self.names.len() < FINISHED_MAX {
            true => self.names.push_back(name),
            false => self.search_again(),
        }
        self.has_more = true;
        self.queue.note_finished();
    }

    fn search_again(&mut self) {
        self.scans_from = self.scans_from.or(Some(0));
    }

    /// The next file, unless there is one at the thread.
    fn offer(&mut self, retention: &SourceRetention, ledger: &FileLedger, now: Instant) -> Option<WaitingFile> {
        if !self.queue.wants(now) {
            return None;
        }
        if self.names.is_empty()
            && let Some(from) = self.scans_from.take()
        {
            self.names.extend(self.finder.names(from, FINISHED_MAX));
            self.scans_from = (self.names.len() == FINISHED_MAX).then_some(from + FINISHED_MAX);
        }
        if self.unseen == 0 {
            self.unseen = self.names.len();
            self.has_more = false;
        }
        let chosen = self.choose(retention, ledger, now);
        let sources = self.names.len() as u64;
        match self.step {
            Step::Compress(_) => ledger.note_uncompressed(sources),
            Step::Upload => ledger.note_not_uploaded(sources),
        }
        chosen
    }

    fn choose(&mut self, retention: &SourceRetention, ledger: &FileLedger, now: Instant) -> Option<WaitingFile> {
        let seconds = self.clock.seconds();
        for _ in 0..READ_AT_ONCE {
            let Some(name) = self.names.front().filter(|_| self.unseen > 0) else { break };
            self.unseen -= 1;
            let _lock = retention.lock();
            let mut finished = retention.of(name);
            let candidates = match self.step {
                Step::Compress(_) => finished.candidates(&[], seconds),
                Step::Upload => finished.waiting_for_upload(&[], seconds),
            };
            let are_any = !candidates.is_empty();
            if let Some(file) = self.queue.choose(candidates, now) {
                let path = file.path.clone();
                let named = match self.step {
                    Step::Compress(recipe) => finished.with_free_name(file, recipe.method, seconds),
                    Step::Upload => Ok(file),
                };
                match named {
                    Ok(file) => {
                        // Its name stays the first, because it may have more files.
                        self.unseen += 1;
                        self.queue.note_asked();
                        return Some(file);
                    }
                    Err(error) => self.refuse(&path, &CompressError::from(error), ledger),
                }
                return None;
            }
            // A name whose files are all paused waits behind the others.
            let name = self.names.pop_front().filter(|_| are_any);
            self.names.extend(name);
        }
        // There may be more in this round, or in indexes that did not fit into the queue.
        if self.unseen > 0 || self.has_more || self.names.is_empty() && self.scans_from.is_some() {
            self.queue.note_finished();
        } else {
            self.queue.choose(Vec::new(), now);
        }
        None
    }

    /// Takes the outcome of the last compression. Returns which source has a compressed file more. The lock is not held
    /// while the disk is waited for.
    fn take_report(
        &mut self,
        retention: &SourceRetention,
        ledger: &FileLedger,
        CompressReport { file, outcome, .. }: CompressReport,
    ) -> Option<FileName> {
        let name = self.names.front()?;
        let outcome = outcome.and_then(|made| {
            let lock = retention.lock();
            list(&mut retention.of(name), &file.path, &made)?;
            drop(lock);
            take_place(&made)?;
            let _lock = retention.lock();
            Ok(remove_plain(&file.path, &made))
        });
        match outcome {
            Ok(sizes) => {
                self.queue.note_compressed(sizes, ledger);
                self.names.front().cloned()
            }
            Err(refusal) => {
                self.refuse(&file.path, &refusal, ledger);
                None
            }
        }
    }

    fn refuse(&mut self, path: &Path, refusal: &CompressError, ledger: &FileLedger) {
        self.queue.note_refused(path, refusal, clock::now(), ledger);
        self.names.rotate_left(usize::from(!self.names.is_empty()));
    }
}
