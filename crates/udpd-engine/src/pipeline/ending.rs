//! What is left of a pipeline when its heir receives: consumers that finish, consumers that have yet to go over, and
//! the books, which are closed when there are none of either.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::books::Books;
use super::chronicle::Chronicle;
use super::entry::{Ended, has_ended};
use super::kept::TAKES_A_RESTART;
use super::relief::Relief;
use super::writes::{Finishing, Writes};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::threads;
use udpd_base::os::threads::ThreadHandle;

/// How often sinks that stay are looked at while somebody waits for them.
const STAY_POLL: Duration = Duration::from_micros(200);

/// A pipeline that hands on nothing for so long while a reload waits for it hangs.
const PROGRESS_LOOK: Duration = Duration::from_millis(100);

/// A pipeline that has yet to finish may keep its memory for so many heirs beside it. Then it is given up.
const HEIRS_MAX: usize = 2;

/// So many consumers may hang in a call that nothing ends, a write to a disk that stands still, after they were given
/// up. Each of them keeps the memory of a pipeline.
const HANGING_MAX: usize = 16;

/// A pipeline whose heir receives, and which has yet to hand on what it holds.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) books: Arc<Books>,
    /// Of sinks that the heir does not go on with.
    pub(super) consumers: Vec<LastConsumer>,
    pub(super) followers: Vec<JoinHandle<()>>,
    /// Of consumers that go on in the heir when they are done here.
    pub(super) staying: Vec<Staying>,
    pub(super) receivers_ended_well: bool,
    /// How many heirs have come since, with the one that took its place.
    pub(super) heirs: usize,
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
    pub(super) known: ThreadHandle,
    /// Where it still finds what it was to go on with in a later pipeline.
    pub(super) relief: Arc<Relief>,
    pub(super) thread: JoinHandle<()>,
}

/// A consumer that goes over to a later pipeline.
#[derive(Debug, Clone)]
pub(super) struct Staying {
    /// The name of its sink.
    pub(super) sink: String,
    pub(super) relief: Arc<Relief>,
    pub(super) ended: Ended,
    pub(super) known: ThreadHandle,
}

impl Staying {
    /// Whether it has yet to go over.
    fn is_due(&self) -> bool {
        self.relief.is_due() && !has_ended(&self.ended)
    }
}

impl LastConsumer {
    fn is_finishing(&self) -> bool {
        !self.thread.is_finished()
    }
}

impl Ending {
    /// The threads that end with it.
    pub(super) fn threads(&self) -> impl Iterator<Item = &JoinHandle<()>> {
        self.consumers.iter().map(|consumer| &consumer.thread).chain(&self.followers)
    }

    /// A consumer that has gone over is none of its any more, and one of a later pipeline.
    pub(super) fn forget_those_gone_over(&mut self) {
        self.staying.retain(Staying::is_due);
    }

    /// Whether some sink that stays has yet to go over to the heir.
    pub(super) fn has_staying_sinks(&self) -> bool {
        self.staying.iter().any(Staying::is_due)
    }

    /// The sinks that have yet to hand on what they took here.
    pub(super) fn sinks(&self) -> impl Iterator<Item = &str> {
        let staying = self.staying.iter().filter(|staying| staying.is_due()).map(|staying| &*staying.sink);
        let finishing = self.consumers.iter().filter(|last| last.is_finishing()).map(|last| &*last.sink);
        staying.chain(finishing)
    }

    /// The consumers that have yet to finish.
    pub(super) fn finishing(&self) -> impl Iterator<Item = Finishing> {
        let finishing = self.consumers.iter().filter(|last| last.is_finishing());
        finishing.map(|last| Finishing {
            sink: last.sink.clone(),
            writes: last.writes.clone(),
            is_given_up: last.known.is_given_up(),
        })
    }

    /// Whether it keeps its memory for a consumer that was not given up.
    fn is_unfinished(&self) -> bool {
        let staying = self.staying.iter().filter(|staying| staying.is_due()).map(|staying| &staying.known);
        let finishing = self.consumers.iter().filter(|last| last.is_finishing()).map(|last| &last.known);
        staying.chain(finishing).any(|known| !known.is_given_up())
    }

    /// Nobody waits for its consumers any more.
    pub(super) fn give_up(&self) {
        self.consumers.iter().for_each(|last| last.known.give_up());
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

/// The pipeline that the next reload gives up, unless it has finished by then.
#[derive(Debug)]
pub(super) struct Oldest {
    books: Arc<Books>,
    finishing: Vec<Ended>,
    staying: Vec<Staying>,
}

impl Oldest {
    pub(super) fn of(before: &[Ending]) -> Option<Self> {
        let oldest = before.iter().find(|ending| ending.heirs >= HEIRS_MAX && ending.is_unfinished())?;
        let finishing = oldest.consumers.iter().map(|last| last.ended.clone()).collect();
        Some(Self { books: Arc::clone(&oldest.books), finishing, staying: oldest.staying.clone() })
    }

    /// Waits until it has finished, for as long as what it still hands on becomes less: what is slow does not hang.
    pub(super) fn wait_while_it_goes_on(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let has_finished = || self.finishing.iter().all(has_ended) && !self.staying.iter().any(Staying::is_due);
        let mut decided = None;
        while decided != Some(self.books.decided()) && Instant::now() < deadline {
            decided = Some(self.books.decided());
            let look = Instant::now() + PROGRESS_LOOK;
            while !has_finished() && Instant::now() < look {
                threads::blocking(|| std::thread::sleep(STAY_POLL));
            }
        }
    }
}

/// Gives up those that have not finished for too long: what waits there counts as failed, and a consumer that waits for
/// its peer ends. One that hangs inside a call keeps what it has in hand, which is in flight
/// until that call returns. Returns the sinks.
pub(super) fn give_up_old(before: &[Ending]) -> BTreeSet<String> {
    let mut sinks = BTreeSet::new();
    for oldest in before.iter().filter(|ending| ending.heirs > HEIRS_MAX && ending.is_unfinished()) {
        sinks.extend(oldest.sinks().map(str::to_owned));
        let staying: Vec<&Staying> = oldest.staying.iter().filter(|staying| staying.is_due()).collect();
        for ending in before {
            let is_its_own = |last: &LastConsumer| {
                std::ptr::eq(ending, oldest) || staying.iter().any(|own| Arc::ptr_eq(&own.relief, &last.relief))
            };
            for last in ending.consumers.iter().filter(|last| last.is_finishing() && is_its_own(last)) {
                last.known.give_up();
                drop(last.relief.take());
                ending.books.give_up_waiting(&last.sink);
            }
        }
        for staying in staying {
            staying.known.give_up();
            oldest.books.give_up_waiting(&staying.sink);
        }
    }
    sinks
}

/// Refuses where too many consumers hang that were given up.
pub(super) fn refuse_hanging(finishing: &[Finishing]) -> Result<(), Failure> {
    let hanging = || finishing.iter().filter(|finishing| finishing.is_given_up);
    if hanging().count() < HANGING_MAX {
        return Ok(());
    }
    let sinks: BTreeSet<&str> = hanging().map(|finishing| finishing.sink.as_str()).collect();
    let message = format!(
        "{} consumers that earlier reloads took away hang in a call to a disk that does not answer, and keep their \
         memory (sinks: {}); see to that disk and try again{TAKES_A_RESTART}",
        hanging().count(),
        sinks.into_iter().collect::<Vec<_>>().join(", ")
    );
    Err(Failure::new(ExitCode::Failure, message))
}

/// Waits until these have gone over, and no longer than that.
pub(super) fn wait_for(staying: &[Staying], limit: Duration) {
    let deadline = Instant::now() + limit;
    while staying.iter().any(Staying::is_due) && Instant::now() < deadline {
        threads::blocking(|| std::thread::sleep(STAY_POLL));
    }
}

/// Whether a thread is over, and not by a panic.
pub(super) fn has_ended_well(thread: JoinHandle<()>) -> bool {
    thread.is_finished() && thread.join().is_ok()
}
