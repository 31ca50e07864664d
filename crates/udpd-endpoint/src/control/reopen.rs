//! Requests to go over to new files, one at a time and never on the thread that answers the others.
//!
//! Closing old files can take as long as a disk takes. Who asks while that is under way may have moved a file only a
//! moment ago, so it needs a round of its own; all who ask meanwhile share the next one. The thread lives for as long
//! as there is something to do.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::answer::{agreement, failed, refusal};
use crate::exchange::{Asker, Reply, Ticket};
use udpd_base::exit::Failure;
use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads;
use udpd_base::os::threads::ThreadRegistry;

/// How many may wait for the next round: fewer than are served at once, so that somebody can still ask for the ledger.
const WAITING_MAX: usize = 16;

/// Does it; says what was done, or why not.
type Work = dyn Fn() -> Result<String, Failure> + Send + Sync;

/// Takes the requests.
pub(super) struct Reopener {
    registry: ThreadRegistry,
    thread: &'static str,
    work: Arc<Work>,
    queue: Arc<Mutex<Queue>>,
}

#[derive(Debug, Default)]
struct Queue {
    is_running: bool,
    waiting: Vec<Ticket>,
}

impl Reopener {
    /// Does the work on a thread of this name.
    pub(super) fn new(
        registry: &ThreadRegistry,
        thread: &'static str,
        work: impl Fn() -> Result<String, Failure> + Send + Sync + 'static,
    ) -> Self {
        Self { registry: registry.clone(), thread, work: Arc::new(work), queue: Arc::default() }
    }

    /// Answers when the files have been reopened after this moment.
    pub(super) fn ask(&self, asker: &Asker<'_>) -> Reply {
        let mut queue = lock(&self.queue);
        if queue.waiting.len() >= WAITING_MAX {
            let what = format!("{WAITING_MAX} requests already wait for the one that runs; try again later");
            return Reply::Now(refusal(&what));
        }
        if !queue.is_running {
            let (own, work, thread) = (Arc::clone(&self.queue), Arc::clone(&self.work), self.thread);
            // The thread waits for the lock that is held here.
            if let Err(error) = self.registry.spawn(thread, ThreadRole::ShortLived, move || run(&own, &*work)) {
                let cure = "raise the limit on threads (ulimit -u, TasksMax=)";
                return Reply::Now(refusal(&format!("cannot start the thread {thread}: {error}; {cure}")));
            }
            queue.is_running = true;
        }
        queue.waiting.push(asker.ticket());
        Reply::Later
    }
}

fn run(queue: &Mutex<Queue>, work: &Work) {
    loop {
        let waiting = {
            let mut queue = lock(queue);
            queue.is_running = !queue.waiting.is_empty();
            std::mem::take(&mut queue.waiting)
        };
        if waiting.is_empty() {
            return;
        }
        let answer = match threads::blocking(work) {
            Ok(what) => agreement(&what),
            Err(failure) => failed(&failure),
        };
        for ticket in waiting {
            ticket.answer(answer.clone());
        }
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Reopener {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Reopener").field("queue", &self.queue).finish_non_exhaustive()
    }
}
