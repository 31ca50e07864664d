//! What lies between a consumer and the keeper of its file: requests one way, notes the other.
//!
//! Neither waits for the other, so each may speak of a file that the other has left already. Therefore every file has a
//! number, its generation, and every request names the one that the consumer writes to: a request about another is
//! about nothing any more. The note has one place, and what is added to it is added to what lies there: nothing that
//! was left is overwritten.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use super::handle::Handle;
use udpd_base::handover::Caller;

/// The file that the consumer writes to, and how many bytes it has written in all by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct At {
    pub(super) generation: u64,
    pub(super) written: u64,
}

/// What the consumer asks for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Order {
    /// Begin the first file: nobody else writes there any more.
    Begin,
    /// Force the file to the disk.
    Sync(At),
    /// Finish the file and begin another: it is long enough.
    FinishFull(u64),
    /// The moment has come that [`Note::ends`] named.
    FinishDue(u64),
    /// See whether the path still leads to the newest file.
    Look,
    /// Nothing more is written to any file before this one.
    Left(At),
    /// Nothing more is written to any file. The last request.
    Close(At),
    /// A write to this file has failed and nothing more is written to it.
    Broken {
        at: At,
        errno: i32,
        /// How long the file is up to the end of its last whole record.
        whole_bytes: u64,
    },
}

/// The file to write to from now on.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) handle: Handle,
    pub(super) length: u64,
}

/// What the keeper tells the consumer.
#[derive(Debug, Default)]
pub(super) struct Note {
    /// All files before this one must not be written any more.
    pub(super) stop_before: u64,
    /// The file of the generation `stop_before`; `None` with a stop: there is none now.
    pub(super) begun: Option<Begun>,
    /// When to ask for the next file, if that has changed.
    pub(super) ends: Option<Option<SystemTime>>,
}

/// Where keeper and consumer leave things for each other.
#[derive(Debug, Default)]
pub(super) struct Desk {
    /// Whether there is a note, so that a consumer that finds none takes no lock.
    is_ready: AtomicBool,
    note: Mutex<Option<Note>>,
    /// A sync is under way, and another need not be asked for.
    pub(super) is_syncing: AtomicBool,
    /// The same for a look.
    pub(super) is_looking: AtomicBool,
    /// Wakes a consumer that has nothing else to do: a file is left when it is to be left, not when the next datagram
    /// comes.
    consumer: Caller,
}

impl Desk {
    /// An empty one, for this consumer.
    pub(super) fn new(consumer: Caller) -> Self {
        Self { consumer, ..Self::default() }
    }

    /// What lies there, if anything does.
    pub(super) fn take(&self) -> Option<Note> {
        if !self.is_ready.load(Ordering::Acquire) {
            return None;
        }
        let mut note = self.note.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_ready.store(false, Ordering::Relaxed);
        note.take()
    }

    /// The consumer is to go on with this file.
    pub(super) fn begin(&self, generation: u64, begun: Begun, ends: Option<SystemTime>) {
        self.add(|note| *note = Note { stop_before: generation, begun: Some(begun), ends: Some(ends) });
    }

    /// The consumer is to write to no file before this one, which is not there yet.
    pub(super) fn stop(&self, before: u64) {
        self.add(|note| *note = Note { stop_before: before, begun: None, ends: None });
    }

    /// The consumer is to go on as it does, and to ask again then.
    pub(super) fn go_on(&self, ends: Option<SystemTime>) {
        self.add(|note| note.ends = Some(ends));
    }

    fn add(&self, change: impl FnOnce(&mut Note)) {
        let mut note = self.note.lock().unwrap_or_else(PoisonError::into_inner);
        change(note.get_or_insert_default());
        self.is_ready.store(true, Ordering::Release);
        drop(note);
        self.consumer.call();
    }
}
