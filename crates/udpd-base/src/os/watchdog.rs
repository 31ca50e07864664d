//! The watchdog: tells the service manager that every thread is well, and is silent while one hangs, so that the
//! manager restarts the daemon (`WatchdogSec=`).
//!
//! A thread is well when its heartbeat has moved since the look before, or when it blocks: it waits for work, for a
//! disk or for a peer. A disk that freezes for an hour is not our hang, and a restart would only lose what waits for
//! it. Where /proc can be read, the kernel is asked for what the heartbeat does not show. A thread that a debugger has
//! stopped stands blocked and takes no work when it comes: it is not well. One that the kernel keeps in a sleep that no
//! signal ends, for a page that a slow disk has yet to bring, is well, because no restart could end that.
//!
//! The heartbeat of every thread is read at each look, which is cheap. To ask the kernel costs ten microseconds a
//! thread, and a daemon with a port for each customer has a thousand that block. So of many that block some are asked
//! at each look, in turn, and all of them within half of the manager's limit.
//!
//! The looks are made by a thread of their own. So the main thread is looked at like any other, and may block like any
//! other. A look wakes this one thread once a second, or four times within a limit shorter than four seconds; three
//! looks in vain are not yet a restart, so a thread that the scheduler has left out for a moment does no harm.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::exit::Failure;
use crate::os::notify::Notifier;
use crate::os::role::ThreadRole;
use crate::os::threads;
use crate::os::threads::{ThreadRegistry, ThreadStatus};

/// The longest time between two looks. It bounds how long after a hang the last sign of life may be.
const INTERVAL_MAX: Duration = Duration::from_secs(1);

/// How many looks there are at least within the manager's limit.
const LOOKS_PER_LIMIT: u32 = 4;

/// After so many looks in vain the thread is named: before the manager acts, and not for a stumble.
const LOOKS_UNTIL_SAID: u32 = 2;

/// Of the threads that block, so many are asked for at each look at least.
const ASKED_MIN: usize = 64;

/// The looks, for as long as this lives; none where the service manager does not ask for them.
#[derive(Debug)]
pub struct Watchdog {
    looker: Option<Sender<()>>,
}

impl Watchdog {
    /// Starts the thread that will look, if the service manager asks for signs of life.
    pub fn start(registry: &ThreadRegistry, notifier: &Arc<Notifier>) -> Result<Self, Failure> {
        let variable = |name| std::env::var(name).ok();
        let asked =
            limit(variable("WATCHDOG_USEC").as_deref(), variable("WATCHDOG_PID").as_deref(), std::process::id());
        let limit = asked.unwrap_or_else(|why| {
            log::warn!("{why}; udpd sends no signs of life");
            None
        });
        let Some(limit) = limit else { return Ok(Self { looker: None }) };
        let (looker, orders) = bounded(1);
        let state = Looker {
            registry: registry.clone(),
            notifier: Arc::clone(notifier),
            limit,
            seen: PreviousLooks::default(),
            looks_in_vain: 0,
        };
        registry
            .spawn("udpd-watchdog", ThreadRole::Watchdog, move || state.run(&orders))
            .map_err(|error| threads::start_failure("udpd-watchdog", &error))?;
        Ok(Self { looker: Some(looker) })
    }

    /// From now on threads have to be well. What a start takes has a limit of its own.
    pub fn begin(&self) {
        if let Some(looker) = &self.looker {
            // The thread takes this one message; should it have panicked its alarm says so.
            let _ = looker.send(());
        }
    }
}

/// Within which time the manager wants a sign of life; `None` when it wants none, or from another process.
fn limit(microseconds: Option<&str>, process: Option<&str>, own_process: u32) -> Result<Option<Duration>, String> {
    let Some(microseconds) = microseconds.filter(|text| !text.is_empty()) else { return Ok(None) };
    if process.is_some_and(|process| !process.is_empty() && process.parse::<u32>() != Ok(own_process)) {
        return Ok(None);
    }
    match microseconds.parse::<u64>() {
        // The manager's word for "never".
        Ok(u64::MAX) => Ok(None),
        Ok(microseconds) if microseconds > 0 => Ok(Some(Duration::from_micros(microseconds))),
        _ => Err(format!("WATCHDOG_USEC={microseconds} is not a number of microseconds above 0")),
    }
}

/// A thread that is not well.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hang {
    thread: ThreadStatus,
    is_stopped: bool,
}

impl fmt::Display for Hang {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.is_stopped { "was stopped from outside" } else { "hangs: it neither works nor waits" };
        write!(formatter, "{} {how}", self.thread)
    }
}

/// The state of the thread that looks.
struct Looker {
    registry: ThreadRegistry,
    notifier: Arc<Notifier>,
    limit: Duration,
    seen: PreviousLooks,
    looks_in_vain: u32,
}

/// What the looks before have seen.
#[derive(Debug, Default)]
struct PreviousLooks {
    /// Every thread with its heartbeat, in the order of the registry.
    heartbeat: Vec<(i32, u64)>,
    /// Whose turn it is to be asked for.
    turn: usize,
    /// Who was not well.
    suspect: Option<i32>,
}

impl Looker {
    fn run(mut self, orders: &Receiver<()>) {
        let interval = interval(self.limit);
        if threads::blocking(|| orders.recv()).is_err() {
            return;
        }
        self.look();
        while let Err(RecvTimeoutError::Timeout) = threads::blocking(|| orders.recv_timeout(interval)) {
            self.look();
        }
    }

    fn look(&mut self) {
        let Some(hang) = self.seen.judge(self.registry.statuses(), looks_in_half(self.limit), state) else {
            if self.looks_in_vain >= LOOKS_UNTIL_SAID {
                log::warn!("watchdog: every thread works or waits again");
            }
            self.looks_in_vain = 0;
            return self.notifier.watchdog();
        };
        self.looks_in_vain = self.looks_in_vain.saturating_add(1);
        if self.looks_in_vain == LOOKS_UNTIL_SAID {
            log::error!(
                "watchdog: {hang}; unless it goes on, the service manager restarts udpd within {} s; please report \
                 it with the output of `gdb -p {} -batch -ex 'thread apply all backtrace'`",
                self.limit.as_secs_f64(),
                std::process::id()
            );
        }
        // Again at each look: the status line is also written by others, and this is the last that is seen of a
        // restart.
        if self.looks_in_vain >= LOOKS_UNTIL_SAID {
            self.notifier.status(&hang.to_string());
        }
    }
}

/// The time between two looks.
fn interval(limit: Duration) -> Duration {
    (limit / LOOKS_PER_LIMIT).min(INTERVAL_MAX)
}

/// How many looks there are within half of the limit.
fn looks_in_half(limit: Duration) -> usize {
    usize::try_from(limit.as_micros() / interval(limit).as_micros().max(1) / 2).unwrap_or(usize::MAX).max(1)
}

impl PreviousLooks {
    /// The first thread that is not well, if there is one. Of those that block so many are asked for that so many
    /// `looks` ask for all. `state` is what the kernel says of a thread.
    fn judge(
        &mut self,
        registry: Vec<ThreadStatus>,
        looks: usize,
        state: impl Fn(i32) -> Option<char>,
    ) -> Option<Hang> {
        // One without a number has not had its first moment yet.
        let heartbeat = registry
            .iter()
            .filter(|thread| thread.thread_id != 0)
            .map(|thread| (thread.thread_id, thread.heartbeat))
            .collect();
        let before = std::mem::replace(&mut self.heartbeat, heartbeat);
        let asked = registry.len().div_ceil(looks).max(ASKED_MIN);
        // There may be fewer threads than at the look before.
        let first = self.turn % registry.len().max(1);
        self.turn = first + asked;
        let has_turn = |place: usize| (place + registry.len() - first) % registry.len() < asked;
        let has_not_moved = |place: usize, thread: &ThreadStatus| {
            // As a rule it has its place of before.
            let there = before.get(place).filter(|(id, _)| *id == thread.thread_id);
            let known = there.or_else(|| before.iter().find(|(id, _)| *id == thread.thread_id));
            known.is_some_and(|(_, heartbeat)| *heartbeat == thread.heartbeat)
        };
        let in_question = |(place, thread): &(usize, &ThreadStatus)| {
            (!thread.is_blocking() || has_turn(*place) || self.suspect == Some(thread.thread_id))
                && has_not_moved(*place, thread)
        };
        let hang = registry.iter().enumerate().filter(in_question).find_map(|(_, thread)| {
            let (is_well, is_stopped) = match state(thread.thread_id) {
                Some('T' | 't') => (false, true),
                Some('D') => (true, false),
                _ => (thread.is_blocking(), false),
            };
            (!is_well).then(|| Hang { thread: thread.clone(), is_stopped })
        });
        self.suspect = hang.as_ref().map(|hang| hang.thread.thread_id);
        hang
    }
}

/// What the kernel says of a thread of this process; `None` where that cannot be read.
pub fn state(thread_id: i32) -> Option<char> {
    // Number, name and state are at the beginning, and one call reads them.
    let mut stat = [0; 256];
    let length =
        File::open(format!("/proc/self/task/{thread_id}/stat")).and_then(|mut file| file.read(&mut stat)).ok()?;
    state_in(&String::from_utf8_lossy(&stat[..length]))
}

/// The state stands behind the name, which is in brackets and may have brackets in it.
pub fn state_in(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    fn thread(thread_id: i32, heartbeat: u64) -> ThreadStatus {
        ThreadStatus { name: format!("thread{thread_id}").into(), thread_id, heartbeat }
    }

    /// Who was found hanging at each look at threads with these heartbeat, where 8 sleeps in the kernel and 9 is
    /// stopped.
    fn judged(looks: &[&[(i32, u64)]]) -> Vec<Option<i32>> {
        let mut seen = PreviousLooks::default();
        let mut look = |found: &[(i32, u64)]| {
            let registry = found.iter().map(|&(thread_id, heartbeat)| thread(thread_id, heartbeat)).collect();
            let state =
                |thread_id| [(8, 'D'), (9, 't')].into_iter().find_map(|(id, state)| (id == thread_id).then_some(state));
            seen.judge(registry, 5, state).map(|hang| hang.thread.thread_id)
        };
        looks.iter().map(|found| look(found)).collect()
    }

    #[test]
    fn a_thread_that_works_or_blocks_is_well_however_long() {
        assert_eq!(judged(&[&[(1, 0), (2, 7)], &[(1, 2), (2, 7)], &[(1, 3), (2, 7)], &[(1, 3), (2, 7)]]), [None; 4]);
    }

    #[test]
    fn a_thread_that_neither_works_nor_blocks_hangs_until_it_goes_on() {
        assert_eq!(judged(&[&[(1, 7), (2, 4)], &[(1, 7), (2, 4)], &[(1, 7), (2, 6)]]), [None, Some(2), None]);
    }

    #[test]
    fn a_thread_that_is_stopped_while_it_blocks_hangs_and_one_that_has_just_moved_does_not() {
        assert_eq!(judged(&[&[(9, 7)], &[(9, 9)], &[(9, 9)]]), [None, None, Some(9)]);
    }

    #[test]
    fn of_a_thousand_that_block_each_is_asked_for_within_half_of_the_limit_and_a_stopped_one_until_it_goes_on() {
        let looks = looks_in_half(Duration::from_secs(10));
        assert_eq!((looks, looks_in_half(Duration::from_secs(2))), (5, 2));
        let asked = std::cell::RefCell::new(Vec::new());
        let mut seen = PreviousLooks::default();
        let mut look = |stopped: Option<i32>| {
            asked.borrow_mut().clear();
            let state = |thread_id| {
                asked.borrow_mut().push(thread_id);
                Some(if stopped == Some(thread_id) { 't' } else { 'S' })
            };
            let registry = (1..=1000).map(|thread_id| thread(thread_id, 7)).collect();
            let found = seen.judge(registry, looks, state).map(|hang| hang.thread.thread_id);
            (found, asked.borrow().clone())
        };
        assert_eq!(look(None), (None, Vec::new()), "nothing is known of the look before");
        let mut all: Vec<i32> = (0..looks).flat_map(|_| look(None).1).collect();
        all.sort_unstable();
        assert_eq!(all, (1..=1000).collect::<Vec<_>>(), "each once");
        let found: Vec<Option<i32>> = (0..looks).map(|_| look(Some(500)).0).collect();
        let first = found.iter().position(Option::is_some).expect("found within half of the limit");
        assert!(found[first..].iter().all(|found| *found == Some(500)), "{found:?}");
        assert_eq!(look(None).0, None);
    }

    #[test]
    fn a_thread_that_the_kernel_keeps_from_working_is_well() {
        assert_eq!(judged(&[&[(8, 4)], &[(8, 4)]]), [None, None]);
    }

    #[test]
    fn threads_that_begin_or_end_between_two_looks_are_well() {
        assert_eq!(judged(&[&[(0, 0), (1, 4)], &[(0, 0), (2, 4)], &[(3, 4)]]), [None; 3]);
    }

    #[test]
    fn the_state_of_a_thread_is_read_whatever_its_name() {
        for (stat, expected) in [
            ("7 (rx0-syslog) S 1 7", Some('S')),
            ("7 (rx0-syslog) t 1 7", Some('t')),
            ("7 (rx0) T 1) D 1 7", Some('D')),
            ("7 (rx0) D 1) T 1 7", Some('T')),
            ("7 (rx0", None),
            ("", None),
        ] {
            assert_eq!(state_in(stat), expected, "{stat}");
        }
        assert_eq!(state(nix::unistd::gettid().as_raw()), Some('R'), "this thread runs");
        assert_eq!(state(i32::MAX), None);
    }

    #[test]
    fn a_limit_that_is_meant_for_this_process_is_taken() {
        let seconds = |count| Ok(Some(Duration::from_secs(count)));
        assert_eq!(limit(Some("10000000"), Some("7"), 7), seconds(10));
        assert_eq!(limit(Some("2000000"), None, 7), seconds(2));
        for (microseconds, process) in [(None, None), (None, Some("7")), (Some(""), None), (Some("2000000"), Some("8"))]
        {
            assert_eq!(limit(microseconds, process, 7), Ok(None), "{microseconds:?} {process:?}");
        }
        assert_eq!(limit(Some("18446744073709551615"), None, 7), Ok(None));
        for wrong in ["0", "2s", "-1"] {
            assert!(limit(Some(wrong), None, 7).is_err_and(|why| why.contains(wrong)), "{wrong}");
        }
    }

    #[test]
    fn the_manager_hears_nothing_but_the_name_while_a_thread_hangs() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let next = || {
            let mut bytes = [0; 1024];
            let length = manager.recv(&mut bytes).unwrap();
            String::from_utf8(bytes[..length].to_vec()).unwrap()
        };
        let (registry, _events) = ThreadRegistry::new();
        let (go_on, going_on) = bounded::<()>(0);
        let (begun, beginning) = bounded::<()>(0);
        let body = move || {
            threads::blocking(|| going_on.recv().unwrap());
            begun.send(()).unwrap();
            going_on.recv().unwrap();
            threads::step();
            begun.send(()).unwrap();
            going_on.recv().unwrap();
        };
        let hanging = registry.spawn("sink0-archive", ThreadRole::Unconfined, body).unwrap();
        let notifier = Arc::new(Notifier::to(path.as_os_str()));
        let limit = Duration::from_secs(2);
        let mut looker = Looker { registry, notifier, limit, seen: PreviousLooks::default(), looks_in_vain: 0 };
        while !looker.registry.statuses()[0].is_blocking() {
            std::thread::yield_now();
        }
        (0..3).for_each(|_| looker.look());
        assert_eq!([next(), next(), next()], ["WATCHDOG=1\n"; 3], "it blocks");
        go_on.send(()).unwrap();
        beginning.recv().unwrap();
        (0..3).for_each(|_| looker.look());
        assert_eq!(next(), "WATCHDOG=1\n", "it has just moved");
        assert!(next().starts_with("STATUS=sink0-archive (thread "), "the second look in vain names it");
        go_on.send(()).unwrap();
        beginning.recv().unwrap();
        looker.look();
        assert_eq!(next(), "WATCHDOG=1\n", "it goes on");
        go_on.send(()).unwrap();
        hanging.join().unwrap();
    }
}
