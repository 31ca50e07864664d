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
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded, unbounded};

use super::compress::{CompressJob, CompressJobs, CompressReport, Compressor, JobOwner, ReportReceiver};
use super::inotify_watch::{InotifyWatch, KeeperWaker};
use super::mailbox::{KeeperRequest, Mailbox, WritePosition};
use super::rotating_file::RotatingFile;
use super::sources::{SourceCompressQueue, SourceFilesHandle, SourceFilesWorker};
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads;
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::sink::OpenContext;

/// How often a file that cannot be written is tried again.
const RETRY: Duration = Duration::from_millis(250);

/// The most requests of one consumer that can be pending: each kind once, and once more for the file in its mailbox.
const ORDERS_MAX: usize = 9;

/// How many requests to reopen may wait.
pub(super) const REQUESTS_MAX: usize = 4;

/// Where consumers, reopeners and the compressor reach the keeper. The thread ends when the last consumer drops it.
#[derive(Debug)]
pub(super) struct KeeperInbox {
    pub(super) orders: Sender<(usize, KeeperRequest)>,
    pub(super) requests: Sender<Sender<Reopened>>,
    pub(super) reports: Sender<CompressReport>,
    /// Declared after the senders, so that the last wake comes when they are gone.
    pub(super) waker: KeeperWaker,
}

impl KeeperInbox {
    pub(super) fn wake(&self) {
        self.waker.wake();
    }
}

impl ReportReceiver for KeeperInbox {
    /// Drops the report when the keeper has ended.
    fn report(&self, report: CompressReport) {
        let _ = self.reports.send(report);
        self.waker.wake();
    }
}

/// The outcome of a request to reopen the files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reopened {
    /// How many files were begun in place of moved or removed ones, which are closed.
    pub begun: usize,
    /// How many files by source were closed because they had been moved or removed; the next datagram of each source
    /// begins another one.
    pub left: usize,
    /// How many stay in use because they are still in their place.
    pub stayed: usize,
    /// Why the others could not be begun.
    pub refused: Vec<String>,
}

/// Asks the keeper to reopen the files of its sink.
#[derive(Debug, Clone)]
pub struct Reopener(Weak<KeeperInbox>);

impl Reopener {
    pub(super) fn new(inbox: &Arc<KeeperInbox>) -> Self {
        Self(Arc::downgrade(inbox))
    }

    /// The answer comes when the old files are closed, or never if the sink has ended.
    pub fn ask(&self) -> Option<Receiver<Reopened>> {
        let inbox = self.0.upgrade()?;
        let (answer, answered) = bounded(1);
        inbox.requests.send(answer).ok()?;
        inbox.waker.wake();
        Some(answered)
    }
}

/// The consumer's side of the keeper, for one file.
#[derive(Debug)]
pub(super) struct KeeperHandle {
    pub(super) mailbox: Arc<Mailbox>,
    file: usize,
    inbox: Arc<KeeperInbox>,
    /// Receives a message when the late open of the first file has succeeded or failed.
    begun: Receiver<()>,
    /// Disconnected when all requests are done.
    done: Receiver<Infallible>,
}

/// A file and the channels on which its consumer waits.
struct KeptFile {
    file: RotatingFile,
    begun: Sender<()>,
    /// Declared after the file, so that it is dropped after that is closed.
    _alive: Sender<Infallible>,
}

impl KeeperHandle {
    /// Sends a request. The channel holds as many as can be pending, so this does not wait.
    pub(super) fn order(&self, order: KeeperRequest) {
        let _ = self.inbox.orders.send((self.file, order));
        self.inbox.waker.wake();
    }

    /// Has the first file opened, and waits until that has succeeded or failed.
    pub(super) fn begin(&self) {
        self.order(KeeperRequest::Begin);
        let _ = threads::blocking(|| self.begun.recv());
    }

    /// Waits until all requests are done.
    pub(super) fn close(self, at: WritePosition) {
        self.order(KeeperRequest::Close(at));
        // Nothing is ever sent: the wait ends when the keeper drops the other end.
        let _ = threads::blocking(|| self.done.recv());
    }
}

/// A request to reopen that has no answer yet, because a consumer still writes to a moved file.
struct PendingReopen {
    answer: Sender<Reopened>,
    outcome: Reopened,
    /// By file, the generation before which all must be closed.
    generations: Vec<u64>,
    /// By consumer of files by source, the number of the request there, until it is answered.
    reopen_requests: Vec<Option<u64>>,
}

/// The files by source of one consumer.
struct KeptSourceFiles {
    worker: Arc<SourceFilesWorker>,
    /// The finished ones that wait to be compressed.
    queue: Option<SourceCompressQueue>,
    /// Dropped when everything is done, which ends the consumer's wait.
    _alive: Sender<Infallible>,
}

/// The keeper of the files of a sink, before it is started.
pub struct FileKeeper {
    context: OpenContext,
    files: Vec<Option<KeptFile>>,
    sources: Vec<Option<KeptSourceFiles>>,
    inbox: Arc<KeeperInbox>,
    orders: Receiver<(usize, KeeperRequest)>,
    requests: Receiver<Sender<Reopened>>,
    reports: Receiver<CompressReport>,
    watch: InotifyWatch,
    waiting: Vec<PendingReopen>,
    /// Some of its files are to be compressed.
    compresses: bool,
}

impl std::fmt::Debug for FileKeeper {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("FileKeeper").field("files", &self.files.len()).finish_non_exhaustive()
    }
}

impl FileKeeper {
    /// A keeper of at most so many files.
    pub fn new(files_max: usize, context: OpenContext) -> io::Result<Self> {
        let (watch, waker) = InotifyWatch::new()?;
        let (orders, ordered) = bounded(ORDERS_MAX * files_max);
        let (requests, requested) = bounded(REQUESTS_MAX);
        // Each path has at most one file at the compressor.
        let (reports, reported) = unbounded();
        let inbox = Arc::new(KeeperInbox { orders, requests, reports, waker });
        Ok(Self {
            context,
            files: Vec::new(),
            sources: Vec::new(),
            inbox,
            orders: ordered,
            requests: requested,
            reports: reported,
            watch,
            waiting: Vec::new(),
            compresses: false,
        })
    }

    pub(super) fn context(&self) -> &OpenContext {
        &self.context
    }

    /// Adds a file.
    pub(super) fn take(&mut self, file: RotatingFile, mailbox: Arc<Mailbox>) -> KeeperHandle {
        self.compresses |= file.compresses();
        let ((begun, first), (alive, done)) = (bounded(1), bounded(0));
        self.files.push(Some(KeptFile { file, begun, _alive: alive }));
        KeeperHandle { mailbox, file: self.files.len() - 1, inbox: Arc::clone(&self.inbox), begun: first, done }
    }

    /// Adds the files by source of one consumer.
    pub(super) fn add_sources(
        &mut self,
        worker: SourceFilesWorker,
        queue: Option<SourceCompressQueue>,
    ) -> SourceFilesHandle {
        self.compresses |= queue.is_some();
        let (worker, (alive, done)) = (Arc::new(worker), bounded(0));
        self.sources.push(Some(KeptSourceFiles { worker: Arc::clone(&worker), queue, _alive: alive }));
        SourceFilesHandle::new(worker, Arc::clone(&self.inbox), done)
    }

    /// Starts the thread, and the compressor if a file needs it, on these cores if any are given.
    pub fn start(self, registry: &ThreadRegistry, compressor: &Compressor, cores: &[usize]) -> io::Result<Reopener> {
        let jobs = self.compresses.then(|| compressor.engage(registry, cores)).transpose()?;
        let Self { context, files, sources, inbox, orders, requests, reports, watch, waiting, .. } = self;
        let reopener = Reopener::new(&inbox);
        let own_inbox = Arc::downgrade(&inbox);
        drop(inbox);
        let retry_at = Instant::now();
        let (inbox, is_in_force) = (own_inbox, context.is_in_force);
        let work = KeeperThread {
            files,
            sources,
            orders,
            requests,
            reports,
            jobs,
            inbox,
            is_in_force,
            watch,
            waiting,
            retry_at,
        };
        registry.spawn("udpd-keeper", ThreadRole::FileKeeper, move || work.run())?;
        Ok(reopener)
    }
}

/// The state of the thread.
struct KeeperThread {
    files: Vec<Option<KeptFile>>,
    sources: Vec<Option<KeptSourceFiles>>,
    orders: Receiver<(usize, KeeperRequest)>,
    requests: Receiver<Sender<Reopened>>,
    reports: Receiver<CompressReport>,
    /// The queue of the compressor.
    jobs: Option<Arc<CompressJobs>>,
    /// For the reports of the compressor.
    inbox: Weak<KeeperInbox>,
    /// Set when the pipeline of the sink receives.
    is_in_force: Arc<AtomicBool>,
    watch: InotifyWatch,
    waiting: Vec<PendingReopen>,
    /// No failed file is retried before this.
    retry_at: Instant,
}

impl KeeperThread {
    fn run(mut self) {
        let mut is_wanted = true;
        while is_wanted {
            let is_failing = self.files().any(|(_, file)| file.is_failing());
            let retry = is_failing.then_some(self.retry_at);
            let wake = self.files().filter_map(|(_, file)| file.checks_at()).chain(retry).min();
            let wake = [wake, self.offers_at()].into_iter().flatten().min();
            // The keeper waits for disks here, which may take long without the thread being stuck.
            threads::blocking(|| {
                for file in self.watch.wait(wake) {
                    self.file(file).map(RotatingFile::note_change);
                }
                is_wanted = self.take_orders();
                self.serve_source_workers();
                self.take_reports();
                self.offer();
                self.try_again();
                self.follow();
                self.answer();
            });
        }
        for kept in self.files.iter_mut().flatten() {
            // Its consumer has ended without a close request.
            kept.file.close_abandoned();
        }
    }

    fn files(&mut self) -> impl Iterator<Item = (usize, &mut RotatingFile)> {
        self.files.iter_mut().enumerate().filter_map(|(index, kept)| Some((index, &mut kept.as_mut()?.file)))
    }

    fn file(&mut self, index: usize) -> Option<&mut RotatingFile> {
        self.files.get_mut(index)?.as_mut().map(|kept| &mut kept.file)
    }

    /// Handles the requests; returns false when no consumer is left.
    fn take_orders(&mut self) -> bool {
        let is_wanted = loop {
            match self.orders.try_recv() {
                Ok((index, order)) => self.handle(index, order),
                Err(TryRecvError::Empty) => break true,
                Err(TryRecvError::Disconnected) => break false,
            }
        };
        while let Ok(answer) = self.requests.try_recv() {
            self.reopen(answer);
        }
        is_wanted
    }

    /// Handles the requests of the consumers of files by source, and drops those that have ended.
    fn serve_source_workers(&mut self) {
        for kept in &mut self.sources {
            // This ends the wait of its consumer.
            kept.take_if(|KeptSourceFiles { worker, queue, .. }| {
                !worker.serve(&mut |name| queue.iter_mut().for_each(|queue| queue.add(name.clone())))
            });
        }
    }

    fn handle(&mut self, index: usize, order: KeeperRequest) {
        let Some(KeptFile { file, begun, .. }) = self.files.get_mut(index).and_then(Option::as_mut) else { return };
        match order {
            KeeperRequest::Begin => {
                file.open_first_late();
                let _ = begun.try_send(());
            }
            KeeperRequest::Sync(at) => {
                file.sync(at);
                file.mailbox().is_syncing.store(false, Ordering::Release);
            }
            KeeperRequest::FinishFull(generation) => file.change(generation, true),
            KeeperRequest::FinishDue(generation) => file.change(generation, false),
            KeeperRequest::Look => {
                file.note_change();
                file.mailbox().is_looking.store(false, Ordering::Release);
            }
            KeeperRequest::Left(WritePosition { generation, written }) => file.note_closed(generation, written),
            KeeperRequest::Broken { at, errno, whole_bytes } => file.break_off(at, errno, whole_bytes),
            KeeperRequest::Close(WritePosition { written, .. }) => {
                file.close(written);
                self.watch.follow(index, None);
                // This ends the wait of the consumer.
                self.files[index] = None;
            }
        }
    }

    fn try_again(&mut self) {
        let now = Instant::now();
        self.files()
            .filter(|(_, file)| file.checks_at().is_some_and(|at| at <= now))
            .for_each(|(_, file)| file.replace_if_moved());
        if self.retry_at <= now && self.files().any(|(_, file)| file.is_failing()) {
            self.files().filter(|(_, file)| file.is_failing()).for_each(|(_, file)| file.try_again());
            self.retry_at = Instant::now() + RETRY;
        }
    }

    /// Watches the newest file of each path. A file that was moved before its watch began is found by a check.
    fn follow(&mut self) {
        let files = self.files.iter_mut().enumerate();
        let files = files.filter_map(|(index, kept)| Some((index, &mut kept.as_mut()?.file)));
        for (index, file) in files {
            if self.watch.follow(index, file.newest()) {
                file.note_change();
            }
        }
    }

    fn reopen(&mut self, answer: Sender<Reopened>) {
        let mut outcome = Reopened::default();
        for (_, file) in self.files() {
            match file.reopen() {
                Ok(true) => outcome.begun += 1,
                Ok(false) => outcome.stayed += 1,
                Err(why) => outcome.refused.push(why),
            }
        }
        let generations =
            self.files.iter().map(|kept| kept.as_ref().map_or(0, |kept| kept.file.generation())).collect();
        let reopen_requests = self.sources.iter().map(|kept| kept.as_ref().map(|kept| kept.worker.request_reopen()));
        let reopen_requests = reopen_requests.collect();
        self.waiting.push(PendingReopen { answer, outcome, generations, reopen_requests });
    }

    /// Answers the reopen requests whose old files are all closed.
    fn answer(&mut self) {
        let (files, sources) = (&self.files, &self.sources);
        self.waiting.retain_mut(|waiting| {
            for (kept, request) in sources.iter().zip(&mut waiting.reopen_requests) {
                // A consumer that has ended has closed everything.
                let Some(kept) = kept else { continue };
                if let Some(Reopened { left, stayed, .. }) = request.and_then(|number| kept.worker.answer_to(number)) {
                    waiting.outcome.left += left;
                    waiting.outcome.stayed += stayed;
                    *request = None;
                }
            }
            let waits =
                sources.iter().zip(&waiting.reopen_requests).any(|(kept, request)| kept.is_some() && request.is_some());
            let mut files = files.iter().zip(&waiting.generations);
            let is_closed =
                files.all(|(own, &generation)| !own.as_ref().is_some_and(|own| own.file.has_before(generation)));
            let is_closed = is_closed && !waits;
            if is_closed {
                // The asker may have given up.
                let _ = waiting.answer.try_send(std::mem::take(&mut waiting.outcome));
            }
            !is_closed
        });
    }
}

// Compression: which file the compressor gets next, and its reports.

impl KeeperThread {
    /// Offers the compressor the next file of each path that has none there.
    fn offer(&mut self) {
        let Some(jobs) = self.jobs.clone() else { return };
        let now = Instant::now();
        for index in 0..self.files.len() {
            let Some((file, recipe, boundary)) = self.file(index).and_then(|file| file.offer(now)) else { continue };
            let (owner, receiver) = (JobOwner::File(index), self.inbox.clone());
            jobs.bring(CompressJob { file, recipe, boundary, owner, files_lock: None, receiver });
        }
        if self.is_in_force.load(Ordering::Acquire) {
            self.offer_of_sources(&jobs, now);
        }
    }

    fn offer_of_sources(&mut self, jobs: &CompressJobs, now: Instant) {
        for (index, kept) in self.sources.iter_mut().enumerate() {
            let Some(kept) = kept else { continue };
            let Some(queue) = &mut kept.queue else { continue };
            let Some(file) = queue.offer(&kept.worker, now) else { continue };
            let (recipe, boundary) = (queue.recipe(), queue.boundary());
            let (owner, receiver, files_lock) =
                (JobOwner::Sources(index), self.inbox.clone(), Some(kept.worker.files_lock()));
            jobs.bring(CompressJob { file, recipe, boundary, owner, files_lock, receiver });
        }
    }

    /// Takes the reports of the compressor. Dropping the report of an owner that has ended removes its temporary file.
    fn take_reports(&mut self) {
        while let Ok(report) = self.reports.try_recv() {
            match report.owner {
                JobOwner::File(index) => {
                    if let Some(file) = self.file(index) {
                        file.take_report(report);
                    }
                }
                JobOwner::Sources(index) => self.take_report_of_source(index, report),
            }
        }
    }

    fn take_report_of_source(&mut self, index: usize, report: CompressReport) {
        let kept = self.sources.get_mut(index).and_then(Option::as_mut);
        if let Some(kept) = kept
            && let Some(queue) = &mut kept.queue
        {
            queue.take_report(&Arc::clone(&kept.worker), report);
        }
    }

    /// When to offer the next file, if nothing else happens.
    fn offers_at(&mut self) -> Option<Instant> {
        self.jobs.as_ref()?;
        let now = Instant::now();
        let of_rooms = self.files().filter_map(|(_, file)| file.offers_at(now)).min();
        let queue = self.sources.iter().flatten().filter_map(|kept| kept.queue.as_ref());
        let is_in_force = self.is_in_force.load(Ordering::Acquire);
        let of_sources = queue.filter_map(|queue| queue.offers_at(now, is_in_force)).min();
        [of_rooms, of_sources].into_iter().flatten().min()
    }
}
