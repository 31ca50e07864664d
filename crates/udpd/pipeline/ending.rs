//! What is left of a pipeline when its heir receives: consumers that finish, consumers that have yet to go over, and
//! the books, which are closed when there are none of either.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::books::Books;
use super::chronicle::Chronicle;
use super::entry::Ended;
use super::kept::TAKES_A_RESTART;
use super::relief::Relief;
use super::writes::{Finishing, Writes};
use crate::exit::{ExitCode, Failure};
use crate::os::crew;

/// How often sinks that stay are looked at while somebody waits for them.
const STAY_POLL: Duration = Duration::from_micros(200);

/// So many pipelines that have yet to finish, and keep their memory, may be beside the one that receives when another
/// is made.
const UNFINISHED_MAX: usize = 2;

/// A pipeline whose heir receives, and which has yet to hand on what it holds.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) books: Arc<Books>,
    /// Of sinks that the heir does not go on with.
    pub(super) consumers: Vec<LastConsumer>,
    pub(super) followers: Vec<JoinHandle<()>>,
    /// Of consumers that go on in the heir when they are done here.
    pub(super) staying: Vec<Arc<Relief>>,
    pub(super) receivers_ended_well: bool,
}

/// A consumer that finishes and ends.
#[derive(Debug)]
pub(super) struct LastConsumer {
    /// The name of its sink.
    pub(super) sink: String,
    /// What its sink writes.
    pub(super) writes: Writes,
    /// Disconnected when its sink is closed.
    pub(super) ended: Ended,
    pub(super) thread: JoinHandle<()>,
}

impl Ending {
    /// The threads that end with it.
    pub(super) fn threads(&self) -> impl Iterator<Item = &JoinHandle<()>> {
        self.consumers.iter().map(|consumer| &consumer.thread).chain(&self.followers)
    }

    /// Whether some sink that stays has yet to go over to the heir.
    pub(super) fn has_staying_sinks(&self) -> bool {
        self.staying.iter().any(|relief| relief.is_due())
    }

    /// The consumers that have yet to finish.
    pub(super) fn finishing(&self) -> impl Iterator<Item = Finishing> {
        let consumers = self.consumers.iter().filter(|consumer| !consumer.thread.is_finished());
        consumers.map(|LastConsumer { sink, writes, ended, .. }| Finishing {
            sink: sink.clone(),
            writes: writes.clone(),
            ended: ended.clone(),
        })
    }

    pub(super) fn is_finishing(&self) -> bool {
        self.finishing().next().is_some()
    }

    /// Whether everything is handed on.
    pub(super) fn is_over(&self) -> bool {
        self.threads().all(JoinHandle::is_finished) && !self.has_staying_sinks()
    }

    /// Closes its books.
    pub(super) fn close(self, chronicle: &Chronicle) {
        let stay = !self.has_staying_sinks();
        let mut threads = self.consumers.into_iter().map(|consumer| consumer.thread).chain(self.followers);
        let all_ended_well = threads.all(has_ended_well) && self.receivers_ended_well && stay;
        chronicle.close(&self.books, all_ended_well);
    }
}

/// Whether so many pipelines that have yet to finish keep too much memory for another.
pub(super) fn are_too_many(unfinished: usize) -> bool {
    unfinished >= UNFINISHED_MAX
}

/// Waits until these have gone over.
pub(super) fn wait_for(staying: &[Arc<Relief>], limit: Duration) -> Result<(), Failure> {
    let deadline = Instant::now() + limit;
    let are_due = || staying.iter().any(|relief| relief.is_due());
    while are_due() && Instant::now() < deadline {
        crew::at_rest(|| std::thread::sleep(STAY_POLL));
    }
    if !are_due() {
        return Ok(());
    }
    let message = format!(
        "a sink has not handed on yet what it took before the last reload, because its disk or its peer takes \
         nothing; try again later{TAKES_A_RESTART}"
    );
    Err(Failure::new(ExitCode::Failure, message))
}

/// Whether a thread is over, and not by a panic.
pub(super) fn has_ended_well(thread: JoinHandle<()>) -> bool {
    thread.is_finished() && thread.join().is_ok()
}
