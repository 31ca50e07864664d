//! Simulations that run from a seed. A test names what it simulates; this crate gives it chance, runs it for many
//! seeds, and when one fails finds the fewest steps that still fail and prints the command that replays them.
//!
//! ```
//! seeds::Simulation::new("a_sum_grows", 100, 50).check(|run| {
//!     let mut sum = 0u64;
//!     while let Some(mut chance) = run.step() {
//!         sum += chance.below(10);
//!         assert!(sum <= 10 * run.steps_done());
//!     }
//!     sum.to_string()
//! });
//! ```
//!
//! What a simulation returns are its books: two runs of one seed must return the same, byte for byte. Each step has
//! chance of its own, made from the seed and the step's number, so the steps that stay do the same when others are left
//! out.
//!
//! | variable | what it does |
//! |---|---|
//! | `UDPD_SEEDS=N` | runs N seeds instead of the test's own number |
//! | `UDPD_SEEDS_FROM=N` | begins with seed N |
//! | `UDPD_SEEDS_FOR=S` | goes on with further seeds for S seconds |
//! | `UDPD_SEEDS_AT_ONCE=N` | runs N seeds at a time instead of one a core |
//! | `UDPD_CORPUS=none` | leaves out what a test has found before, to see whether the seeds find it again |
//! | `UDPD_SHRINK=N` | runs a failing seed at most N times in the search for fewer steps |
//! | `UDPD_SEED="42 17 !3 !9"` | runs seed 42 for 17 steps without the steps 3 and 9, and prints its trace |
#![forbid(unsafe_code)]

mod chance;
mod replay;

use std::cell::Cell;
use std::fmt::Write as _;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::thread::{self, available_parallelism};
use std::time::{Duration, Instant};
use std::{env, fmt};

pub use chance::Chance;
pub use replay::Replay;

/// Every so many seeds one runs twice, and its books are compared.
const TWICE_EVERY: u64 = 16;

/// How often a failing seed is run again in the search for fewer steps.
const SHRINK_RUNS_MAX: u64 = 2_000;

/// A simulation, and how often and how long it runs.
#[derive(Debug, Clone, Copy)]
pub struct Simulation<'a> {
    test: &'a str,
    seeds: u64,
    steps: u64,
    corpus: &'a str,
    is_alone: bool,
}

/// One run of a simulation.
#[derive(Debug)]
pub struct Run {
    replay: Replay,
    next: u64,
    done: u64,
    setup: Chance,
    chance: Chance,
    trace: Option<String>,
}

impl Run {
    fn new(replay: &Replay, traced: bool) -> Self {
        let (setup, chance) = (Chance::new(replay.seed), Chance::new(0));
        Self { replay: replay.clone(), next: 0, done: 0, setup, chance, trace: traced.then(String::new) }
    }

    /// Chance for what is decided before the first step.
    pub fn setup(&mut self) -> &mut Chance {
        &mut self.setup
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.replay.seed
    }

    /// Begins the next step: the chance of that step, or `None` after the last one.
    pub fn step(&mut self) -> Option<Chance> {
        while self.replay.skips(self.next) {
            self.next += 1;
        }
        if self.next >= self.replay.steps {
            return None;
        }
        self.chance = Chance::of_step(self.replay.seed, self.next);
        self.next += 1;
        self.done += 1;
        Some(self.chance.clone())
    }

    /// How many steps were begun.
    pub fn steps_done(&self) -> u64 {
        self.done
    }

    /// Notes what a step does; shown when a seed is replayed or has failed.
    pub fn trace(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            let _ = writeln!(trace, "  {:>5}  {}", self.next.saturating_sub(1), what());
        }
    }
}

impl<'a> Simulation<'a> {
    /// The simulation of the test with this name: so many seeds, of so many steps each.
    pub const fn new(test: &'a str, seeds: u64, steps: u64) -> Self {
        Self { test, seeds, steps, corpus: "", is_alone: false }
    }

    /// Runs also these, one a line as `UDPD_SEED` has them, with what they once found behind a `#`.
    #[must_use]
    pub const fn with_corpus(self, corpus: &'a str) -> Self {
        Self { corpus, ..self }
    }

    /// Runs one seed at a time: its runs share something of the process or of the host.
    #[must_use]
    pub const fn one_at_a_time(self) -> Self {
        Self { is_alone: true, ..self }
    }

    /// Runs the corpus and the seeds, one a core at a time.
    ///
    /// # Panics
    /// When a run fails, or two runs of one seed differ.
    pub fn check<B: AsRef<[u8]> + PartialEq + fmt::Debug>(&self, simulate: impl Fn(&mut Run) -> B + Sync) {
        if let Some(replay) = env::var("UDPD_SEED").ok().filter(|seed| !seed.is_empty()) {
            let replay = Replay::parse(&replay, self.steps).expect("UDPD_SEED is a seed, as in \"42 17 !3 !9\"");
            let mut run = Run::new(&replay, true);
            let outcome = caught(|| simulate(&mut run));
            println_trace(&run);
            if let Err(why) = outcome {
                panic!("seed {replay} fails: {why}");
            }
            return;
        }
        let is_left_out = env::var("UDPD_CORPUS").is_ok_and(|wanted| wanted == "none");
        let corpus = if is_left_out { "" } else { self.corpus };
        for line in corpus.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
            if !line.is_empty() {
                self.run(&Replay::parse(line, self.steps).expect("a corpus has a seed a line"), true, &simulate);
            }
        }
        let (from, begun) = (number("UDPD_SEEDS_FROM").unwrap_or(0), Instant::now());
        let length = number("UDPD_SEEDS_FOR").map(Duration::from_secs);
        let seeds = number("UDPD_SEEDS").unwrap_or(if length.is_some() { u64::MAX - from } else { self.seeds });
        let (next, has_failed, failure) = (AtomicU64::new(from), AtomicBool::new(false), Mutex::new(None));
        let work = || {
            while !has_failed.load(Ordering::Relaxed) && length.is_none_or(|length| begun.elapsed() < length) {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed - from >= seeds {
                    break;
                }
                let run = || self.run(&Replay::whole(seed, self.steps), seed % TWICE_EVERY == 0, &simulate);
                if let Err(why) = caught(run) {
                    has_failed.store(true, Ordering::Relaxed);
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
                }
            }
        };
        let cores = || available_parallelism().map_or(1, |cores| cores.get() as u64);
        let workers = if self.is_alone { 1 } else { number("UDPD_SEEDS_AT_ONCE").unwrap_or_else(cores) };
        thread::scope(|scope| (0..workers.min(seeds)).for_each(|_| drop(scope.spawn(work))));
        if let Some(why) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            panic!("{why}");
        }
        println_done(self.test, from, next.into_inner().min(from.saturating_add(seeds)) - from, begun.elapsed());
    }

    fn run<B: AsRef<[u8]> + PartialEq + fmt::Debug>(
        &self,
        replay: &Replay,
        twice: bool,
        simulate: &impl Fn(&mut Run) -> B,
    ) {
        let books = |replay: &Replay| caught(|| simulate(&mut Run::new(replay, false)));
        match books(replay) {
            Err(_) => self.fail(&self.shrunk(replay, simulate), simulate),
            Ok(first) if twice => match books(replay) {
                Ok(second) if first == second => {}
                second => panic!("{} differs from run to run of seed {replay}: {first:?} and {second:?}", self.test),
            },
            Ok(_) => {}
        }
    }

    /// The fewest steps found that still fail.
    fn shrunk<B>(&self, replay: &Replay, simulate: &impl Fn(&mut Run) -> B) -> Replay {
        let mut run = Run::new(replay, false);
        if caught(|| simulate(&mut run)).is_ok() {
            return replay.clone();
        }
        // What is after the step that failed plays no part.
        let mut best = Replay { steps: run.next, ..replay.clone() };
        let (mut length, mut runs) = ((best.steps / 2).max(1), 0);
        let runs_max = number("UDPD_SHRINK").unwrap_or(SHRINK_RUNS_MAX);
        while length > 0 {
            let mut begin = 0;
            while begin < best.steps && runs < runs_max {
                let tried = best.without(begin..(begin + length).min(best.steps));
                let mut run = Run::new(&tried, false);
                runs += 1;
                if tried != best && caught(|| simulate(&mut run)).is_err() {
                    best = Replay { steps: run.next, ..tried };
                }
                begin += length;
            }
            length /= 2;
        }
        best
    }

    fn fail<B>(&self, replay: &Replay, simulate: &impl Fn(&mut Run) -> B) -> ! {
        let mut run = Run::new(replay, true);
        let why = caught(|| simulate(&mut run)).err().unwrap_or_else(|| "it passed when it ran again".to_owned());
        println_trace(&run);
        panic!(
            "{} fails: {why}\nrun it again:  UDPD_SEED=\"{replay}\" cargo test --workspace {} -- --nocapture",
            self.test, self.test
        );
    }
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok()?.parse().ok()
}

#[allow(clippy::print_stdout)]
fn println_trace(run: &Run) {
    println!("seed {}:\n{}", run.replay, run.trace.as_deref().unwrap_or_default());
}

#[allow(clippy::print_stdout)]
fn println_done(test: &str, from: u64, seeds: u64, took: Duration) {
    println!("{test}: {seeds} seeds from {from} on in {:.1} s", took.as_secs_f64());
}

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs it, and returns why it has panicked, if it has. What it panics with is not printed.
pub fn caught<T>(body: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !IS_QUIET.get() {
                usual(panic);
            }
        }));
    });
    let before = IS_QUIET.replace(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(body));
    IS_QUIET.set(before);
    outcome.map_err(|why| match (why.downcast_ref::<String>(), why.downcast_ref::<&str>()) {
        (Some(text), _) => text.clone(),
        (_, Some(text)) => (*text).to_owned(),
        _ => "a panic without words".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(of: impl FnOnce()) -> String {
        caught(of).expect_err("it fails")
    }

    #[test]
    fn a_failing_seed_is_shrunk_to_the_steps_that_matter_and_its_command_replays_it() {
        let simulate = |run: &mut Run| {
            let (mut pushed, mut popped) = (0, 0);
            while let Some(mut chance) = run.step() {
                match chance.below(10) {
                    0 => pushed += 1,
                    1 => popped += 1,
                    _ => {}
                }
                assert!(pushed < 2 || popped < 1, "{pushed} pushed and {popped} popped");
            }
            String::new()
        };
        let said = failure(|| Simulation::new("sample", 1, 200).check(simulate));
        let command = said.split("UDPD_SEED=\"").nth(1).expect("a command").split('"').next().expect("its end");
        let replay = Replay::parse(command, 200).expect("it is read again");
        let mut run = Run::new(&replay, false);
        assert!(caught(|| simulate(&mut run)).is_err());
        assert_eq!(run.steps_done(), 3, "two pushes and a pop: {command}");
    }

    #[test]
    fn a_corpus_is_run_and_a_run_that_differs_from_itself_is_an_error() {
        let simulation = Simulation::new("sample", 0, 5).with_corpus("7 3 !1 # a bug\n\n");
        let said = failure(|| simulation.check(|run| -> String { panic!("seed {}", run.seed()) }));
        assert!(said.contains("sample fails: seed 7"), "{said}");
        let turn = AtomicU64::new(0);
        let said = failure(|| {
            Simulation::new("sample", 1, 5).check(|_| turn.fetch_add(1, Ordering::Relaxed).to_string());
        });
        assert!(said.contains("differs from run to run of seed 0"), "{said}");
    }
}
