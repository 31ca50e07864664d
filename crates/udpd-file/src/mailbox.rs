//! The messages between a consumer and the keeper of its files: requests one way, updates the other.
//!
//! Neither side waits for the other, so a message may name a file that the other side has closed already. Therefore
//! each file has a number, its generation, and each request names the one that the consumer writes to; the keeper
//! ignores a request about another. The mailbox holds one update, and a new one is merged into it, so none is lost.
//!
//! The protocol is the same for a file and for the files by source of a consumer. Those have no generations, because
//! their consumer begins and finishes them itself: they only sync, reopen and close.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::SystemTime;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::compress::{CompressReport, ReportReceiver};
use super::handle::LogHandle;
use super::inotify_watch::KeeperWaker;
use super::upload::UploadReport;
use udpd_base::handover::Caller;
use udpd_base::os::threads;
use udpd_base::os::threads::lock;
use udpd_base::seams::waits;

/// The most requests of one consumer that can be pending: each kind once, and once more for the file in its mailbox.
pub(super) const REQUESTS_MAX: usize = 10;

/// The file that the consumer writes to, and its total of bytes written so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WritePosition {
    pub(super) generation: u64,
    pub(super) written: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum KeeperRequest {
    /// Open the first file: the previous sink writes there no longer.
    Begin,
    Sync(WritePosition),
    /// Finish the file, which is full, and begin another.
    FinishFull(u64),
    /// The same at the time of [`FileUpdate::ends`] named.
    FinishDue(u64),
    /// Check whether the path still leads to the newest file.
    Look,
    /// The consumer writes no more to the files before this one.
    ClosedBefore(WritePosition),
    /// The consumer of files by source has closed the moved ones, as [`FileUpdate::reopen`] asked.
    Reopened {
        number: u64,
        closed: usize,
        unmoved: usize,
    },
    /// The consumer writes no more. The last request.
    Close(WritePosition),
    /// A write to this file has failed, and the consumer writes no more to it.
    Broken {
        at: WritePosition,
        errno: i32,
        /// The length of the file up to its last whole record.
        whole_bytes: u64,
    },
}

/// The file that the consumer writes to from now on.
#[derive(Debug)]
pub(super) struct NewFile {
    pub(super) handle: LogHandle,
    pub(super) length: u64,
}

#[derive(Debug, Default)]
pub(super) struct FileUpdate {
    /// The consumer must stop writing to all files before this one.
    pub(super) stop_before: u64,
    /// The file of the generation `stop_before`; `None` when there is no file now.
    pub(super) begun: Option<NewFile>,
    /// When to ask for the next file, if that has changed.
    pub(super) ends: Option<Option<SystemTime>>,
    /// The consumer of files by source must close those that were moved, and report that with this number.
    pub(super) reopen: Option<u64>,
}

/// The updates for one consumer, and which of its requests are pending.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    /// Whether there is an update. A consumer that sees none takes no lock.
    is_ready: AtomicBool,
    update: Mutex<Option<FileUpdate>>,
    /// A sync is pending, so another need not be requested.
    pub(super) is_syncing: AtomicBool,
    /// The same for a check of the path.
    pub(super) is_looking: AtomicBool,
    /// Wakes the consumer, so that it changes files at once and not at the next datagram.
    consumer: Caller,
}

impl Mailbox {
    /// An empty mailbox of this consumer.
    pub(super) fn new(consumer: Caller) -> Self {
        Self { consumer, ..Self::default() }
    }

    pub(super) fn take(&self) -> Option<FileUpdate> {
        if !self.is_ready.load(Ordering::Acquire) {
            return None;
        }
        let mut update = lock(&self.update);
        self.is_ready.store(false, Ordering::Relaxed);
        update.take()
    }

    /// Tells the consumer to write to this file.
    pub(super) fn begin(&self, generation: u64, begun: NewFile, ends: Option<SystemTime>) {
        self.add(|update| {
            (update.stop_before, update.begun, update.ends) = (generation, Some(begun), Some(ends));
        });
    }

    /// Tells the consumer to write to no file before this one, which does not exist yet.
    pub(super) fn stop(&self, before: u64) {
        self.add(|update| (update.stop_before, update.begun, update.ends) = (before, None, None));
    }

    /// Tells the consumer to keep its file, and when to ask again.
    pub(super) fn go_on(&self, ends: Option<SystemTime>) {
        self.add(|update| update.ends = Some(ends));
    }

    /// Tells the consumer to close the files that were moved.
    pub(super) fn reopen(&self, number: u64) {
        self.add(|update| update.reopen = Some(number));
    }

    fn add(&self, change: impl FnOnce(&mut FileUpdate)) {
        let mut update = lock(&self.update);
        change(update.get_or_insert_default());
        self.is_ready.store(true, Ordering::Release);
        drop(update);
        self.consumer.call();
    }
}

/// The outcome of a request to reopen the files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reopened {
    /// How many files were begun in place of moved or removed ones, which are closed.
    pub begun: usize,
    /// How many files by source were closed because they had been moved or removed; the next datagram of each source
    /// begins another one.
    pub closed: usize,
    /// How many stay in use because they are still in their place.
    pub unmoved: usize,
    /// Why the others could not be begun.
    pub refused: Vec<String>,
}

/// Where consumers, reopeners and the threads that compress and upload reach the keeper. Its thread ends when the last
/// consumer drops it.
#[derive(Debug)]
pub(super) struct KeeperInbox {
    pub(super) requests: Sender<(usize, KeeperRequest)>,
    pub(super) reopeners: Sender<Sender<Reopened>>,
    pub(super) reports: Sender<CompressReport>,
    pub(super) upload_reports: Sender<UploadReport>,
    /// Declared after the senders, so that the last wake comes when they are gone.
    pub(super) waker: KeeperWaker,
}

impl ReportReceiver for KeeperInbox {
    /// Drops the report when the keeper has ended.
    fn report(&self, report: CompressReport) {
        let _ = self.reports.send(report);
        self.waker.wake();
    }

    fn report_upload(&self, report: UploadReport) {
        let _ = self.upload_reports.send(report);
        self.waker.wake();
    }
}

/// Asks the keeper to reopen the files of its sink.
#[derive(Debug, Clone)]
pub struct FileReopener(pub(super) Weak<KeeperInbox>);

impl FileReopener {
    /// The answer comes when the old files are closed, or never if the sink has ended.
    pub fn ask(&self) -> Option<Receiver<Reopened>> {
        let inbox = self.0.upgrade()?;
        let (answer, answered) = bounded(1);
        inbox.reopeners.send(answer).ok()?;
        inbox.waker.wake();
        Some(answered)
    }
}

/// The consumer's side of the keeper.
#[derive(Debug)]
pub(super) struct KeeperHandle {
    pub(super) mailbox: Arc<Mailbox>,
    /// The number of its files at the keeper.
    pub(super) number: usize,
    pub(super) inbox: Arc<KeeperInbox>,
    /// Receives a message when the late open of the first file has succeeded or failed.
    pub(super) begun: Receiver<()>,
    /// Disconnected when all requests are done.
    pub(super) done: Receiver<Infallible>,
}

impl KeeperHandle {
    /// Sends a request. The channel holds as many as can be pending, so this does not wait.
    pub(super) fn request(&self, request: KeeperRequest) {
        let _ = self.inbox.requests.send((self.number, request));
        self.wake();
    }

    pub(super) fn wake(&self) {
        self.inbox.waker.wake();
    }

    /// Requests a sync; returns false while the previous one is pending.
    pub(super) fn sync(&self, at: WritePosition) -> bool {
        let is_free = !self.mailbox.is_syncing.swap(true, Ordering::AcqRel);
        if is_free {
            self.request(KeeperRequest::Sync(at));
        }
        is_free
    }

    /// Has the first file opened, and waits until that has succeeded or failed.
    pub(super) fn begin(&self) {
        self.request(KeeperRequest::Begin);
        let _ = threads::blocking(|| waits::recv(&self.begun));
    }

    /// Waits until all requests are done, the last of them a sync if one is asked for.
    pub(super) fn close(self, at: WritePosition, syncs: bool) {
        self.ask_to_close(at, syncs);
        self.await_end();
    }

    /// Makes the last requests.
    pub(super) fn ask_to_close(&self, at: WritePosition, syncs: bool) {
        if syncs {
            self.request(KeeperRequest::Sync(at));
        }
        self.request(KeeperRequest::Close(at));
    }

    /// Waits until they are done.
    pub(super) fn await_end(&self) {
        // Nothing is ever sent: the wait ends when the keeper drops the other end.
        let _ = threads::blocking(|| waits::recv(&self.done));
    }
}
