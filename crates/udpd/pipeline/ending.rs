//! What is left of a pipeline when its heir receives: consumers that finish, consumers that have yet to go over, and
//! the books, which are closed when there are none of either.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::books::Books;
use super::chronicle::Chronicle;
use super::relief::Relief;

/// A pipeline whose heir receives, and which has yet to hand on what it holds.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) books: Arc<Books>,
    pub(super) threads: Vec<JoinHandle<()>>,
    /// Of consumers that go on in the heir when they are done here.
    pub(super) staying: Vec<Arc<Relief>>,
    pub(super) receivers_ended_well: bool,
}

impl Ending {
    /// Whether some sink that stays has yet to go over to the heir.
    pub(super) fn has_staying_sinks(&self) -> bool {
        self.staying.iter().any(|relief| relief.is_due())
    }

    /// Whether everything is handed on.
    pub(super) fn is_over(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished) && !self.has_staying_sinks()
    }

    /// Closes its books.
    pub(super) fn close(self, chronicle: &Chronicle) {
        let stay = !self.has_staying_sinks();
        let mut threads = self.threads.into_iter();
        let all_ended_well = threads.all(has_ended_well) && self.receivers_ended_well && stay;
        chronicle.close(&self.books, all_ended_well);
    }
}

/// Whether a thread is over, and not by a panic.
pub(super) fn has_ended_well(thread: JoinHandle<()>) -> bool {
    thread.is_finished() && thread.join().is_ok()
}
