//! The books of a daemon, across the pipelines that it had one after the other: the one that runs, those that still
//! hand on what they hold, and one sum of all that have ended, so that many reloads take no more room than one.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::books::{Books, Drops, Look, Progress};
use udpd_base::ledger::snapshot::{BeforeSnapshot, ListenerSnapshot, ReloadSnapshot};
use udpd_base::ledger::{CounterTable as _, Snapshot};

/// For everybody who wants to read the ledger.
#[derive(Debug)]
pub struct Chronicle {
    volumes: Mutex<Volumes>,
    /// Held by a consumer while what its sink holds goes from one book to the next.
    transfer: Arc<Mutex<()>>,
}

#[derive(Debug)]
struct Volumes {
    current: Arc<Books>,
    /// Of pipelines with threads that have yet to end, the oldest first.
    ending: Vec<Arc<Books>>,
    /// The sum of those before.
    ended: Option<Snapshot>,
    /// Of listeners that an earlier process had, and this one never.
    closed: Vec<ListenerSnapshot>,
    last_reload: Option<ReloadSnapshot>,
    before: Option<BeforeSnapshot>,
}

impl Volumes {
    /// What the kernel has dropped and what the process itself has, of all but the pipeline that runs.
    fn earlier(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        let ending = self.ending.iter().map(|books| books.look()).map(|look| (look.kernel_dropped, look.dropped));
        let ended = self.ended.iter().flat_map(|ended| &ended.listeners).chain(&self.closed);
        ending.chain(ended.map(|listener| {
            let at_sinks: u64 = listener.sinks.iter().map(|sink| sink.counts.dropped.total()).sum();
            let between = listener.kernel_dropped_between.unwrap_or(0);
            (listener.kernel_dropped.map(|dropped| dropped + between), listener.counts.dropped.total() + at_sinks)
        }))
    }
}

impl Chronicle {
    pub(super) fn new(current: Arc<Books>) -> Self {
        let (ending, closed) = (Vec::new(), Vec::new());
        let volumes = Volumes { current, ending, ended: None, closed, last_reload: None, before: None };
        Self { volumes: Mutex::new(volumes), transfer: Arc::default() }
    }

    /// Looks at the kernel's counts of drops, which wrap, and at nothing else: to be called once a second.
    pub fn observe_kernel(&self) {
        self.current().observe_kernel();
    }

    /// Reads what the kernel and the cards count: to be called once a second. A driver may take its time.
    pub fn look_at_host(&self) {
        self.current().look_at_host();
    }

    /// The core that a lane's receiver runs on, which is null where that is none in particular, without the rest of a
    /// reading; `None` where there is no such lane.
    pub fn core_of(&self, listener: &str, lane: usize) -> Option<Option<usize>> {
        self.current().core_of(listener, lane)
    }

    /// How far it has counted by the last look. What the kernel drops from then on is for the next process to find.
    pub fn look(&self) -> Look {
        let volumes = self.volumes();
        let mut look = volumes.current.look();
        for (kernel_dropped, dropped) in volumes.earlier() {
            look.kernel_dropped = look.kernel_dropped.zip(kernel_dropped).map(|(own, earlier)| own + earlier);
            look.dropped += dropped;
        }
        look
    }

    /// How many drops at each socket are in these books, as of the last look.
    pub fn drops_counted(&self) -> Drops {
        self.current().drops_counted()
    }

    /// How many datagrams have been offered to sinks and are not decided there at most, once for each sink.
    pub fn under_way(&self) -> u64 {
        let volumes = self.volumes();
        volumes.ending.iter().chain([&volumes.current]).map(|books| books.under_way()).sum()
    }

    /// How far each consumer of each sink has come, in all of them together.
    pub fn progress(&self) -> BTreeMap<(String, usize), Progress> {
        let volumes = self.volumes();
        let mut found = BTreeMap::new();
        volumes.ending.iter().chain([&volumes.current]).for_each(|books| books.add_progress(&mut found));
        found
    }

    /// Writes down what is known of the process before.
    pub fn note_process_before(&self, before: BeforeSnapshot) {
        self.volumes().before = Some(before);
    }

    /// Writes down what was found in the sockets of a listener that an earlier process had and this one has not.
    pub(super) fn note_closed(&self, listener: ListenerSnapshot) {
        self.volumes().closed.push(listener);
    }

    /// One reading, of all of them.
    pub fn snapshot(&self) -> Snapshot {
        self.sum_with(|current| current.snapshot())
    }

    /// The last one, when every thread has ended or is given up.
    pub(super) fn final_snapshot(&self, all_ended_well: bool) -> Snapshot {
        self.sum_with(|current| {
            if current.host.has_begun() {
                current.look_at_host();
            }
            current.final_snapshot(all_ended_well)
        })
    }

    fn sum_with(&self, read: impl FnOnce(&Books) -> Snapshot) -> Snapshot {
        let volumes = self.volumes();
        let _transfer = self.transfer.lock().unwrap_or_else(PoisonError::into_inner);
        // The oldest first: what has been handed over to a later pipeline was offered in an earlier one.
        let ending: Vec<Snapshot> = volumes.ending.iter().map(|books| books.snapshot()).collect();
        let mut sum = read(&volumes.current);
        ending.into_iter().chain(volumes.ended.clone()).for_each(|earlier| sum.add_earlier(earlier));
        volumes.closed.iter().for_each(|listener| sum.add_earlier_listener(listener.clone()));
        sum.before = volumes.before;
        sum.last_reload.clone_from(&volumes.last_reload);
        sum
    }

    /// Writes down what became of a reload.
    pub fn note_reload(&self, outcome: ReloadSnapshot) {
        self.volumes().last_reload = Some(outcome);
    }

    /// From now on `next` are the books of the pipeline that runs, and what the sinks that stay write and where they
    /// send to stands there. A reading sees both or neither.
    pub(super) fn turn_over(&self, next: Arc<Books>, staying: &[usize]) {
        let mut volumes = self.volumes();
        staying.iter().for_each(|&sink| volumes.current.sinks[sink].is_handed_on.store(true, Ordering::Relaxed));
        let before = std::mem::replace(&mut volumes.current, next);
        volumes.ending.push(before);
    }

    /// Every thread of these books has ended.
    pub(super) fn close(&self, books: &Arc<Books>, all_ended_well: bool) {
        let mut volumes = self.volumes();
        let Some(place) = volumes.ending.iter().position(|ending| Arc::ptr_eq(ending, books)) else { return };
        let books = volumes.ending.remove(place);
        let mut last = books.final_snapshot(all_ended_well);
        if let Some(ended) = volumes.ended.take() {
            last.add_earlier(ended);
        }
        volumes.ended = Some(last);
    }

    pub(super) fn transfer(&self) -> Arc<Mutex<()>> {
        Arc::clone(&self.transfer)
    }

    fn current(&self) -> Arc<Books> {
        Arc::clone(&self.volumes().current)
    }

    fn volumes(&self) -> MutexGuard<'_, Volumes> {
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
