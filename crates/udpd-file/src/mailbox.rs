//! The messages between a consumer and the keeper of its file: requests one way, updates the other.
//!
//! Neither side waits for the other, so a message may name a file that the other side has closed already. Therefore
//! each file has a number, its generation, and each request names the one that the consumer writes to; the keeper
//! ignores a request about another. The mailbox holds one update, and a new one is merged into it, so none is lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use super::handle::LogHandle;
use udpd_base::handover::Caller;

/// The file that the consumer writes to, and its total of bytes written so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WritePosition {
    pub(super) generation: u64,
    pub(super) written: u64,
}

/// A request of the consumer.
#[derive(Debug, Clone, Copy)]
pub(super) enum KeeperRequest {
    /// Open the first file: the previous sink writes there no longer.
    Begin,
    /// Sync the file.
    Sync(WritePosition),
    /// Finish the file, which is full, and begin another.
    FinishFull(u64),
    /// The same at the time of [`FileUpdate::ends`] named.
    FinishDue(u64),
    /// Check whether the path still leads to the newest file.
    Look,
    /// The consumer writes no more to the files before this one.
    Left(WritePosition),
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

/// An update for the consumer.
#[derive(Debug, Default)]
pub(super) struct FileUpdate {
    /// The consumer must stop writing to all files before this one.
    pub(super) stop_before: u64,
    /// The file of the generation `stop_before`; `None` when there is no file now.
    pub(super) begun: Option<NewFile>,
    /// When to ask for the next file, if that has changed.
    pub(super) ends: Option<Option<SystemTime>>,
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

    /// Takes the update, if there is one.
    pub(super) fn take(&self) -> Option<FileUpdate> {
        if !self.is_ready.load(Ordering::Acquire) {
            return None;
        }
        let mut update = self.update.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_ready.store(false, Ordering::Relaxed);
        update.take()
    }

    /// Tells the consumer to write to this file.
    pub(super) fn begin(&self, generation: u64, begun: NewFile, ends: Option<SystemTime>) {
        self.add(|update| *update = FileUpdate { stop_before: generation, begun: Some(begun), ends: Some(ends) });
    }

    /// Tells the consumer to write to no file before this one, which does not exist yet.
    pub(super) fn stop(&self, before: u64) {
        self.add(|update| *update = FileUpdate { stop_before: before, begun: None, ends: None });
    }

    /// Tells the consumer to keep its file, and when to ask again.
    pub(super) fn go_on(&self, ends: Option<SystemTime>) {
        self.add(|update| update.ends = Some(ends));
    }

    fn add(&self, change: impl FnOnce(&mut FileUpdate)) {
        let mut update = self.update.lock().unwrap_or_else(PoisonError::into_inner);
        change(update.get_or_insert_default());
        self.is_ready.store(true, Ordering::Release);
        drop(update);
        self.consumer.call();
    }
}
