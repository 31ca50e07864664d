//! The keeper: the thread that begins, finishes and syncs the files of a sink, removes old ones, and repairs broken
//! ones. A disk may delay all of that, and no consumer waits for it: each goes on writing to the file it has, and finds
//! the next one in its mailbox when it is ready.
//!
//! One thread serves all files of all consumers of a sink. A slow disk under one file delays the work for the others,
//! and nothing else.
//!
//! The thread sleeps until a request comes or another process moves or removes a file. Only while a file cannot be
//! begun does it wake by itself, to retry. It ends with the last consumer.

use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded, unbounded};

use super::compress::{CompressJob, CompressJobs, CompressReport, Compressor};
use super::handle::LogHandle;
use super::inotify_watch::InotifyWatch;
use super::mailbox::{KeeperHandle, KeeperInbox, KeeperRequest, Mailbox, REQUESTS_MAX};
use super::retention::WaitingFile;
use super::upload::{UploadJob, UploadJobs, UploadOffer, UploadReport, UploadService};
use udpd_base::codec::Recipe;
use udpd_base::format::Boundary;
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads;
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::seams::clock;
use udpd_base::sink::OpenContext;

pub use super::mailbox::{FileReopener, Reopened};

/// How often a file that cannot be written is tried again.
const RETRY: Duration = Duration::from_millis(250);

/// The pause before the next look for files to compress or upload while the pipeline does not receive yet.
const NOT_IN_FORCE: Duration = Duration::from_secs(1);

/// How many requests to reopen may wait.
const REOPENERS_MAX: usize = 4;

/// What the keeper cares for on behalf of one consumer: a file and its successors, or the files by source.
pub(super) trait KeptFiles: Send {
    fn handle(&mut self, request: KeeperRequest);

    /// Does what is asked for by other ways than a request.
    fn work(&mut self) {}

    /// Reopens what was moved or removed, as far as the keeper can. Returns the number that
    /// [`KeptFiles::finish_reopening`] needs.
    fn reopen(&mut self, outcome: &mut Reopened) -> u64;

    /// Whether the consumer has closed what was replaced. Each count is added to one outcome only.
    fn finish_reopening(&mut self, number: u64, outcome: &mut Reopened) -> bool;

    /// Whether finished files are compressed.
    fn compresses(&self) -> bool;

    /// The next file to compress, unless one is being compressed.
    fn offer(&mut self, now: Instant) -> Option<CompressOffer>;

    /// When to ask for the next file to compress, if nothing else happens.
    fn offers_at(&self, now: Instant) -> Option<Instant>;

    /// Takes the outcome of the last compression.
    fn take_report(&mut self, report: CompressReport);

    /// The next file to upload, unless one is being uploaded.
    fn offer_upload(&mut self, now: Instant) -> Option<UploadOffer>;

    /// When to ask for the next file to upload, if nothing else happens.
    fn uploads_at(&self, now: Instant) -> Option<Instant>;

    /// Takes the outcome of the last upload.
    fn take_upload_report(&mut self, report: UploadReport);

    /// The file to watch by inotify, and its number.
    fn watched(&self) -> Option<(u64, &LogHandle)> {
        None
    }

    /// The watched file may have been moved or removed.
    fn note_change(&mut self) {}

    /// When to replace a file that was moved.
    fn checks_at(&self) -> Option<Instant> {
        None
    }

    /// Replaces the file if it was moved.
    fn replace_if_moved(&mut self) {}

    /// Whether there is something to retry.
    fn is_failing(&self) -> bool {
        false
    }

    /// Retries what failed.
    fn try_again(&mut self) {}

    /// The consumer has ended without a close request.
    fn close_abandoned(&mut self) {}
}

pub(super) struct CompressOffer {
    pub(super) file: WaitingFile,
    pub(super) recipe: Recipe,
    pub(super) boundary: Boundary,
    pub(super) files_lock: Option<Arc<Mutex<()>>>,
}

/// The files of one consumer and the channels on which it waits.
struct KeptEntry {
    files: Box<dyn KeptFiles>,
    mailbox: Arc<Mailbox>,
    begun: Sender<()>,
    /// Declared after the files, so that it is dropped after they are closed. That ends the wait of the consumer.
    _alive: Sender<Infallible>,
}

/// A request to reopen that has no answer yet, because a consumer still writes to a moved file.
struct PendingReopen {
    answer: Sender<Reopened>,
    outcome: Reopened,
    /// By entry, the number to wait for; `None` when that is done.
    numbers: Vec<Option<u64>>,
}

/// The keeper of the files of a sink, before it is started.
pub struct FileKeeper {
    context: OpenContext,
    entries: Vec<Option<KeptEntry>>,
    inbox: Arc<KeeperInbox>,
    requests: Receiver<(usize, KeeperRequest)>,
    reopeners: Receiver<Sender<Reopened>>,
    reports: Receiver<CompressReport>,
    upload_reports: Receiver<UploadReport>,
    /// What uploads finished files, and for which sink.
    uploads: Option<(Arc<dyn UploadService>, String)>,
    watch: InotifyWatch,
}

impl std::fmt::Debug for FileKeeper {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("FileKeeper").field("entries", &self.entries.len()).finish_non_exhaustive()
    }
}

impl FileKeeper {
    /// A keeper of at most so many files.
    pub fn new(files_max: usize, context: OpenContext) -> io::Result<Self> {
        let (watch, waker) = InotifyWatch::new()?;
        let (requests, requested) = bounded(REQUESTS_MAX * files_max);
        let (reopeners, asked) = bounded(REOPENERS_MAX);
        // Each path has at most one file at the compressor.
        let (reports, reported) = unbounded();
        let (upload_reports, reported_uploads) = unbounded();
        let inbox = Arc::new(KeeperInbox { requests, reopeners, reports, upload_reports, waker });
        Ok(Self {
            context,
            entries: Vec::new(),
            inbox,
            requests: requested,
            reopeners: asked,
            reports: reported,
            upload_reports: reported_uploads,
            uploads: None,
            watch,
        })
    }

    /// Finished files of this sink are uploaded.
    pub(super) fn upload_by(&mut self, service: &Arc<dyn UploadService>, sink: &str) {
        self.uploads = Some((Arc::clone(service), sink.to_owned()));
    }

    pub(super) fn context(&self) -> &OpenContext {
        &self.context
    }

    pub(super) fn add(&mut self, files: impl KeptFiles + 'static, mailbox: Arc<Mailbox>) -> KeeperHandle {
        let ((begun, first), (alive, done)) = (bounded(1), bounded(0));
        let number = self.entries.len();
        let (files, own_mailbox) = (Box::new(files), Arc::clone(&mailbox));
        self.entries.push(Some(KeptEntry { files, mailbox: own_mailbox, begun, _alive: alive }));
        KeeperHandle { mailbox, number, inbox: Arc::clone(&self.inbox), begun: first, done }
    }

    /// Starts the thread, and those that compress and upload if a file needs them, on these cores if any are given.
    pub fn start(
        self,
        registry: &ThreadRegistry,
        compressor: &Compressor,
        cores: &[usize],
    ) -> io::Result<FileReopener> {
        let compresses = self.entries.iter().flatten().any(|entry| entry.files.compresses());
        let jobs = compresses.then(|| compressor.engage(registry, cores)).transpose()?;
        let uploads = self.uploads.as_ref().map(|(service, sink)| service.start(registry, sink, cores)).transpose();
        let uploads = uploads.map_err(|failure| io::Error::other(failure.message))?;
        let reopener = FileReopener(Arc::downgrade(&self.inbox));
        let work = KeeperThread { uploads, ..self.into_thread(jobs) };
        registry.spawn("udpd-keeper", ThreadRole::FileKeeper, move || work.run())?;
        Ok(reopener)
    }

    fn into_thread(self, jobs: Option<Arc<CompressJobs>>) -> KeeperThread {
        let Self { context, entries, inbox, requests, reopeners, reports, upload_reports, watch, .. } = self;
        KeeperThread {
            entries,
            requests,
            reopeners,
            reports,
            upload_reports,
            uploads: None,
            jobs,
            inbox: Arc::downgrade(&inbox),
            is_in_force: context.is_in_force,
            watch,
            pending: Vec::new(),
            retry_at: clock::now(),
        }
    }
}

struct KeeperThread {
    entries: Vec<Option<KeptEntry>>,
    requests: Receiver<(usize, KeeperRequest)>,
    reopeners: Receiver<Sender<Reopened>>,
    reports: Receiver<CompressReport>,
    upload_reports: Receiver<UploadReport>,
    /// Where finished files are uploaded.
    uploads: Option<UploadJobs>,
    /// The queue of the compressor.
    jobs: Option<Arc<CompressJobs>>,
    /// For the reports of the compressor.
    inbox: Weak<KeeperInbox>,
    /// Set when the pipeline of the sink receives.
    is_in_force: Arc<AtomicBool>,
    watch: InotifyWatch,
    pending: Vec<PendingReopen>,
    /// No failed file is retried before this.
    retry_at: Instant,
}

impl KeeperThread {
    fn run(mut self) {
        // The keeper waits for disks here, which may take long without the thread being stuck.
        while threads::blocking(|| {
            let wake = self.wakes_at();
            let changed = self.watch.wait(wake);
            self.work(changed)
        }) {}
        self.files().for_each(|files| files.close_abandoned());
    }

    /// When there is something to do, if no request comes and no file changes.
    fn wakes_at(&mut self) -> Option<Instant> {
        let is_failing = self.files().any(|files| files.is_failing());
        let retry = is_failing.then_some(self.retry_at);
        let check = self.files().filter_map(|files| files.checks_at()).min();
        [check, retry, self.offers_at()].into_iter().flatten().min()
    }

    /// Does what there is to do, with these files moved or removed; returns false when no consumer is left.
    fn work(&mut self, changed: Vec<usize>) -> bool {
        for number in changed {
            if let Some(entry) = self.entry(number) {
                entry.files.note_change();
            }
        }
        let is_wanted = self.take_requests();
        self.files().for_each(|files| files.work());
        self.take_reports();
        self.offer();
        self.try_again();
        self.follow();
        self.answer();
        is_wanted
    }

    fn files(&mut self) -> impl Iterator<Item = &mut Box<dyn KeptFiles>> {
        self.entries.iter_mut().flatten().map(|entry| &mut entry.files)
    }

    fn entry(&mut self, number: usize) -> Option<&mut KeptEntry> {
        self.entries.get_mut(number)?.as_mut()
    }

    /// Handles the requests; returns false when no consumer is left.
    fn take_requests(&mut self) -> bool {
        let is_wanted = loop {
            match self.requests.try_recv() {
                Ok((number, request)) => self.handle(number, request),
                Err(TryRecvError::Empty) => break true,
                Err(TryRecvError::Disconnected) => break false,
            }
        };
        while let Ok(answer) = self.reopeners.try_recv() {
            let mut outcome = Reopened::default();
            let numbers = self.entries.iter_mut().map(|entry| Some(entry.as_mut()?.files.reopen(&mut outcome)));
            let numbers = numbers.collect();
            self.pending.push(PendingReopen { answer, outcome, numbers });
        }
        is_wanted
    }

    fn handle(&mut self, number: usize, request: KeeperRequest) {
        let Some(entry) = self.entry(number) else { return };
        entry.files.handle(request);
        match request {
            // The consumer may have ended its wait.
            KeeperRequest::Begin => drop(entry.begun.try_send(())),
            KeeperRequest::Sync(_) => entry.mailbox.is_syncing.store(false, Ordering::Release),
            KeeperRequest::Look => entry.mailbox.is_looking.store(false, Ordering::Release),
            KeeperRequest::Close(_) => {
                self.watch.follow(number, None);
                self.entries[number] = None;
            }
            _ => {}
        }
    }

    fn try_again(&mut self) {
        let now = clock::now();
        self.files()
            .filter(|files| files.checks_at().is_some_and(|at| at <= now))
            .for_each(|files| files.replace_if_moved());
        if self.retry_at <= now && self.files().any(|files| files.is_failing()) {
            self.files().filter(|files| files.is_failing()).for_each(|files| files.try_again());
            self.retry_at = clock::now() + RETRY;
        }
    }

    /// Watches the newest file of each path. A file that was moved before its watch began is found by a check.
    fn follow(&mut self) {
        for (number, entry) in self.entries.iter_mut().enumerate() {
            if let Some(entry) = entry
                && self.watch.follow(number, entry.files.watched())
            {
                entry.files.note_change();
            }
        }
    }

    /// Answers the reopen requests whose old files are all closed.
    fn answer(&mut self) {
        let entries = &mut self.entries;
        self.pending.retain_mut(|PendingReopen { answer, outcome, numbers }| {
            for (entry, number) in entries.iter_mut().zip(numbers.iter_mut()) {
                // A consumer that has ended has closed everything.
                let Some(entry) = entry else {
                    *number = None;
                    continue;
                };
                number.take_if(|number| entry.files.finish_reopening(*number, outcome));
            }
            let is_done = numbers.iter().all(Option::is_none);
            if is_done {
                // The asker may have given up.
                let _ = answer.try_send(std::mem::take(outcome));
            }
            !is_done
        });
    }

    /// Offers the compressor, and the thread that uploads, the next file of each path that has none there.
    fn offer(&mut self) {
        if !self.is_in_force.load(Ordering::Acquire) {
            return;
        }
        let now = clock::now();
        for (owner, entry) in self.entries.iter_mut().enumerate() {
            let Some(entry) = entry else { continue };
            if let Some(jobs) = &self.jobs
                && let Some(CompressOffer { file, recipe, boundary, files_lock }) = entry.files.offer(now)
            {
                let receiver = self.inbox.clone();
                jobs.bring(CompressJob { file, recipe, boundary, owner, files_lock, receiver });
            }
            if let Some(uploads) = &self.uploads
                && let Some(UploadOffer { path, stamp, ledger }) = entry.files.offer_upload(now)
            {
                let receiver = self.inbox.clone();
                // A thread that has panicked ends the daemon.
                let _ = uploads.jobs.send(UploadJob { path, stamp, ledger, owner, receiver });
            }
        }
    }

    /// When to offer the next file, if nothing else happens.
    fn offers_at(&mut self) -> Option<Instant> {
        let (compresses, uploads) = (self.jobs.is_some(), self.uploads.is_some());
        if !compresses && !uploads {
            return None;
        }
        let now = clock::now();
        if !self.is_in_force.load(Ordering::Acquire) {
            return Some(now + NOT_IN_FORCE);
        }
        let of = |files: &mut Box<dyn KeptFiles>| {
            [files.offers_at(now).filter(|_| compresses), files.uploads_at(now).filter(|_| uploads)]
        };
        self.files().flat_map(of).flatten().min()
    }

    /// Takes the reports of the threads that compress and upload. Dropping the report of an owner that has ended
    /// removes its temporary file.
    fn take_reports(&mut self) {
        while let Ok(report) = self.reports.try_recv() {
            if let Some(entry) = self.entry(report.owner) {
                entry.files.take_report(report);
            }
        }
        while let Ok(report) = self.upload_reports.try_recv() {
            if let Some(entry) = self.entry(report.owner) {
                entry.files.take_upload_report(report);
            }
        }
    }
}

#[cfg(test)]
#[path = "simulation_tests.rs"]
mod simulation_tests;
#[cfg(test)]
#[path = "sources/simulation_tests.rs"]
mod sources_simulation_tests;
