//! Runs threads one at a time. At each seam the seed picks which one goes on, so a run of many threads is the same
//! each time; the clock stands still while any of them can go on, and then jumps to the next deadline.
//!
//! A thread that waits asks its question again whenever another one has done something. When every thread waits and
//! none has a deadline, no thread will ever go on: the run fails and says who waits. All threads of a run that has
//! failed unwind, so that the next run finds their addresses and files free.
//!
//! Where a driver asks for it ([`OneCore`]), all threads of a run are on one core, because to wake a thread on another
//! core takes longer than most turns. Runs beside one another have a core each.

use std::any::Any;
use std::cell::RefCell;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant, SystemTime};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use seeds::Chance;

use super::simulated::{self, Entered, Simulated, SimulatedClock};
use crate::seams::disk::DiskCall;

/// A run with more turns has a thread that never comes to its end.
const TURNS_MAX: u64 = 2_000_000;

/// The most that a turn takes.
const TURN_NS_MAX: u64 = 20_000;

/// One at a time.
#[derive(Debug)]
pub struct Scheduler {
    state: Mutex<State>,
    clock: SimulatedClock,
    /// What decides about the disk.
    disk: Arc<dyn Simulated>,
}

#[derive(Debug)]
struct State {
    chance: Chance,
    /// A thread that can go on does so this many times of 16: some runs change often, and some seldom.
    stays: u64,
    threads: Vec<Scheduled>,
    running: usize,
    /// Grows when a thread has done something for which others may wait.
    changes: u64,
    turns: u64,
    /// Of a thread that has ended, until the next one has seen it gone.
    ending: Option<i32>,
    failure: Option<String>,
}

#[derive(Debug)]
struct Scheduled {
    name: String,
    id: Option<ThreadId>,
    goes_on: Arc<Condvar>,
    waiting: Option<Waiting>,
    has_token: bool,
    is_done: bool,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    deadline: Option<Instant>,
    /// The changes that it has seen.
    seen: u64,
}

/// What the threads of a run that has failed unwind with.
struct Unwound;

/// The calling thread.
const SELF: Pid = Pid::from_raw(0);

static DRIVERS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The number of the calling thread among those that have driven a run.
    static DRIVER: usize = DRIVERS.fetch_add(1, Ordering::Relaxed);
    static CURRENT: RefCell<Option<(Arc<Scheduler>, usize)>> = const { RefCell::new(None) };
}

/// The scheduler of the calling thread.
pub fn current() -> Option<Arc<Scheduler>> {
    CURRENT.with_borrow(|current| current.as_ref().map(|(scheduler, _)| Arc::clone(scheduler)))
}

fn own_place() -> usize {
    CURRENT.with_borrow(|current| current.as_ref().map_or(0, |(_, place)| *place))
}

/// Keeps the calling thread and those that it starts on one core, until this is dropped.
#[derive(Debug)]
pub struct OneCore(Option<CpuSet>);

impl OneCore {
    /// The next one for each thread that asks.
    pub fn take() -> Self {
        Self(stay_on_one_core())
    }
}

impl Drop for OneCore {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            let _ = sched_setaffinity(SELF, &before);
        }
    }
}

/// Returns where the calling thread was before.
fn stay_on_one_core() -> Option<CpuSet> {
    let before = sched_getaffinity(SELF).ok()?;
    let cores: Vec<usize> = (0..CpuSet::count()).filter(|core| before.is_set(*core).unwrap_or(false)).collect();
    let mut one = CpuSet::new();
    one.set(cores[DRIVER.with(|driver| driver % cores.len())]).ok()?;
    sched_setaffinity(SELF, &one).ok().map(|()| before)
}

/// The calling thread is scheduled until this is dropped.
#[derive(Debug)]
pub struct Inside {
    scheduler: Arc<Scheduler>,
    _simulated: Entered,
}

impl Scheduler {
    /// The calling thread becomes the first one of a run. Calls of the disk are decided by `disk`.
    pub fn enter(mut chance: Chance, disk: Arc<dyn Simulated>) -> Inside {
        let stays = chance.below(16);
        let state =
            State { chance, stays, threads: Vec::new(), running: 0, changes: 0, turns: 0, ending: None, failure: None };
        let scheduler = Arc::new(Self { state: Mutex::new(state), clock: SimulatedClock::default(), disk });
        let place = scheduler.add("the driver");
        scheduler.lock().threads[place].id = Some(thread::current().id());
        scheduler.begin(place)
    }

    fn begin(self: &Arc<Self>, place: usize) -> Inside {
        CURRENT.set(Some((Arc::clone(self), place)));
        Inside { scheduler: Arc::clone(self), _simulated: simulated::enter(Arc::clone(self) as Arc<dyn Simulated>) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, name: &str) -> usize {
        let mut state = self.lock();
        state.threads.push(Scheduled {
            name: name.to_owned(),
            id: None,
            goes_on: Arc::default(),
            waiting: None,
            has_token: false,
            is_done: false,
        });
        state.threads.len() - 1
    }

    /// How many turns there were, and how many threads: a part of the books of a run.
    pub fn turns(&self) -> (u64, usize) {
        let state = self.lock();
        (state.turns, state.threads.len())
    }

    /// How much time has passed in the run.
    pub fn passed(&self) -> Duration {
        self.clock.passed()
    }

    /// Starts a thread of the same run.
    pub fn spawn<T: Send + 'static>(
        own: &Arc<Self>,
        builder: thread::Builder,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let place = own.add("a thread");
        let scheduler = Arc::clone(own);
        let spawned = builder.spawn(move || {
            let _inside = scheduler.begin(place);
            scheduler.await_turn(scheduler.lock(), place);
            let outcome = panic::catch_unwind(AssertUnwindSafe(body));
            outcome.unwrap_or_else(|panic| {
                scheduler.note_panic(place, &*panic);
                panic::resume_unwind(panic)
            })
        });
        match &spawned {
            Ok(handle) => {
                let mut state = own.lock();
                state.threads[place].id = Some(handle.thread().id());
                state.threads[place].name = handle.thread().name().unwrap_or("a thread").to_owned();
            }
            Err(_) => own.lock().threads[place].is_done = true,
        }
        own.turn();
        spawned
    }

    fn note_panic(&self, place: usize, panic: &(dyn Any + Send)) {
        if panic.is::<Unwound>() {
            return;
        }
        let what = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        let mut state = self.lock();
        let text = format!("{} panics: {}", state.threads[place].name, what.unwrap_or("without words"));
        state.failure.get_or_insert(text);
        Self::let_all_go(&state);
    }

    fn let_all_go(state: &State) {
        state.threads.iter().for_each(|thread| thread.goes_on.notify_all());
    }

    /// Another thread may go on.
    pub fn turn(&self) {
        let place = own_place();
        let mut state = self.lock();
        state.changes += 1;
        self.pass_on(state, place);
    }

    /// Waits until `ready` returns something, or the deadline has passed.
    pub fn wait<T>(&self, deadline: Option<Instant>, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
        let place = own_place();
        self.turn();
        loop {
            let seen = self.lock().changes;
            let found = ready();
            let is_over = deadline.is_some_and(|deadline| deadline <= self.clock.now());
            if found.is_some() || is_over || self.lock().failure.is_some() {
                self.lock().changes += 1;
                return found;
            }
            let mut state = self.lock();
            state.threads[place].waiting = Some(Waiting { deadline, seen });
            self.pass_on(state, place);
        }
    }

    /// Takes the token of the calling thread, see [`Self::give_token`].
    pub fn take_token(&self) -> Option<()> {
        let place = own_place();
        std::mem::take(&mut self.lock().threads[place].has_token).then_some(())
    }

    /// Wakes a thread that waits for its token.
    pub fn give_token(&self, thread: ThreadId) {
        if let Some(thread) = self.lock().threads.iter_mut().find(|own| own.id == Some(thread)) {
            thread.has_token = true;
        }
        self.turn();
    }

    /// Picks the thread that goes on, and waits until it is the calling one's turn again.
    fn pass_on(&self, mut state: MutexGuard<'_, State>, place: usize) {
        if state.failure.is_none() {
            self.pick(&mut state);
        }
        self.await_turn(state, place);
    }

    fn await_turn(&self, mut state: MutexGuard<'_, State>, place: usize) {
        let goes_on = Arc::clone(&state.threads[place].goes_on);
        while state.running != place && state.failure.is_none() {
            state = goes_on.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.threads[place].waiting = None;
        let (ending, failure) = (state.ending.take(), state.failure.clone());
        drop(state);
        if let Some(thread) = ending {
            // Others ask by `JoinHandle::is_finished`, which is true a moment after the body has returned.
            while fs::metadata(Path::new("/proc/self/task").join(thread.to_string())).is_ok() {
                thread::yield_now();
            }
        }
        match failure {
            Some(failure) if place == 0 && !thread::panicking() => panic!("{failure}"),
            Some(_) if !thread::panicking() => panic::resume_unwind(Box::new(Unwound)),
            _ => {}
        }
    }

    fn pick(&self, state: &mut State) {
        state.turns += 1;
        let passes = state.chance.below(TURN_NS_MAX);
        self.clock.advance(Duration::from_nanos(passes));
        if state.turns > TURNS_MAX {
            state.failure.get_or_insert_with(|| "the run does not come to its end".to_owned());
        }
        let mut next = self.can_go_on(state);
        if next.is_empty() {
            let deadlines = state.threads.iter().filter(|thread| !thread.is_done);
            match deadlines.filter_map(|thread| thread.waiting?.deadline).min() {
                Some(deadline) => {
                    self.clock.advance(deadline.saturating_duration_since(self.clock.now()));
                    next = self.can_go_on(state);
                }
                None => {
                    let text = who_waits(state);
                    state.failure.get_or_insert(text);
                }
            }
        }
        if state.failure.is_some() || next.is_empty() {
            return Self::let_all_go(state);
        }
        state.running = match state.running {
            own if next.contains(&own) && state.chance.happens(state.stays, 16) => own,
            _ => *state.chance.pick(&next),
        };
        state.threads[state.running].goes_on.notify_all();
    }

    fn can_go_on(&self, state: &State) -> Vec<usize> {
        let now = self.clock.now();
        let can = |thread: &Scheduled| {
            let is_ready = |waiting: Waiting| {
                waiting.seen < state.changes || waiting.deadline.is_some_and(|deadline| deadline <= now)
            };
            !thread.is_done && thread.waiting.is_none_or(is_ready)
        };
        state.threads.iter().enumerate().filter(|(_, thread)| can(thread)).map(|(place, _)| place).collect()
    }
}

fn who_waits(state: &State) -> String {
    let mut text = "every thread waits and none will ever go on:".to_owned();
    for thread in state.threads.iter().filter(|thread| !thread.is_done) {
        let _ = write!(text, " {};", thread.name);
    }
    text
}

impl Drop for Inside {
    #[allow(clippy::disallowed_methods)]
    fn drop(&mut self) {
        let place = own_place();
        CURRENT.set(None);
        let mut state = self.scheduler.lock();
        state.threads[place].is_done = true;
        state.changes += 1;
        if place > 0 {
            state.ending = Some(nix::unistd::gettid().as_raw());
            self.scheduler.pick(&mut state);
        } else if state.failure.is_none() && thread::panicking() {
            state.failure = Some("the driver has failed".to_owned());
            Scheduler::let_all_go(&state);
        }
        drop(state);
        // Threads that hang outside of every seam are left behind.
        for _ in 0..2_000 {
            if place > 0 || self.scheduler.lock().threads.iter().all(|thread| thread.is_done) {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Simulated for Scheduler {
    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn wall(&self) -> SystemTime {
        self.clock.wall()
    }

    fn sleep(&self, length: Duration) {
        self.wait::<()>(Some(self.clock.now() + length), || None);
    }

    fn before(&self, call: &DiskCall<'_>) -> io::Result<()> {
        self.turn();
        self.disk.before(call)
    }

    fn after(&self, call: &DiskCall<'_>) {
        self.disk.after(call);
    }

    fn write(&self, file: &fs::File, bytes: &[u8], at: Option<u64>) -> (usize, io::Result<()>) {
        self.disk.write(file, bytes, at)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::seams::{clock, waits};

    /// The disk of the system.
    #[derive(Debug)]
    struct AsItIs;

    impl Simulated for AsItIs {}

    fn run(seed: u64, body: impl FnOnce()) -> (u64, usize) {
        let inside = Scheduler::enter(Chance::new(seed), Arc::new(AsItIs));
        body();
        inside.scheduler.turns()
    }

    fn spawned(body: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
        waits::spawn(thread::Builder::new(), body).expect("a thread")
    }

    fn ended(handle: &JoinHandle<()>) {
        waits::until(None, || handle.is_finished().then_some(()), || None);
    }

    #[test]
    fn the_same_seed_gives_the_same_order_and_another_seed_another() {
        let order = |seed: u64| {
            let said = Arc::new(Mutex::new(String::new()));
            run(seed, || {
                let handles = ["a", "b", "c"].map(|name| {
                    let said = Arc::clone(&said);
                    spawned(move || {
                        for _ in 0..10 {
                            waits::lock(&said).push_str(name);
                            clock::sleep(Duration::from_micros(10));
                        }
                    })
                });
                handles.iter().for_each(ended);
            });
            Arc::into_inner(said).expect("all have ended").into_inner().expect("no panic")
        };
        assert_eq!((0..20).map(order).collect::<Vec<_>>(), (0..20).map(order).collect::<Vec<_>>());
        assert_ne!(order(1), order(2));
    }

    #[test]
    fn an_hour_of_waiting_takes_no_time_and_what_was_sent_is_received() {
        run(3, || {
            let (sender, receiver) = crossbeam_channel::bounded(1);
            let begun = clock::now();
            let own = spawned(move || {
                clock::sleep(Duration::from_secs(3600));
                sender.send(7).expect("it is received");
            });
            assert!(waits::recv_timeout(&receiver, Duration::from_secs(1)).is_err());
            assert_eq!(waits::recv(&receiver), Ok(7));
            assert!(clock::since(begun) >= Duration::from_secs(3600));
            ended(&own);
        });
    }

    #[test]
    fn threads_that_wait_for_one_another_for_ever_are_named() {
        let failed = panic::catch_unwind(|| {
            run(4, || {
                let (_sender, receiver) = crossbeam_channel::bounded::<()>(1);
                let _ = waits::recv(&receiver);
            })
        });
        let said = *failed.expect_err("it never goes on").downcast::<String>().expect("words");
        assert!(said.contains("every thread waits") && said.contains("the driver"), "{said}");
    }

    #[test]
    fn a_token_that_was_given_before_is_not_lost() {
        for seed in 0..50 {
            run(seed, || {
                let woken = Arc::new(AtomicU64::new(0));
                let own = Arc::clone(&woken);
                let sleeper = spawned(move || {
                    for _ in 0..3 {
                        waits::park(None);
                        own.fetch_add(1, Ordering::Relaxed);
                    }
                });
                for count in 1..=3 {
                    waits::unpark(sleeper.thread());
                    waits::until(None, || (woken.load(Ordering::Relaxed) == count).then_some(()), || None);
                }
                ended(&sleeper);
            });
        }
    }
}
