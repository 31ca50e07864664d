//! Whether every thread still runs on the cores that it was put on.
//!
//! When a core goes off the kernel moves the threads that were pinned to it anywhere, isolated cores included, and
//! forgets what they were pinned to: after the core is back they stay loose for ever. So the main thread looks once a
//! second. While a core is off its threads are kept to the cores of their node that udpd may use and the scheduler
//! does not leave alone; when it is back they are pinned again. What an operator does to a thread (`taskset`, a cpuset)
//! is named once and left alone.
//!
//! Which of the two it was is seen even if the core was off for a moment only: the kernel makes the folder
//! `topology` of a core anew each time that it comes up.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;

use steer::{Topology, format_core_list};

use udpd_engine::pipeline::Pinned;

/// The host as this file needs it, so that a test can take a core off it.
pub trait CoreHost {
    fn online(&self) -> io::Result<Vec<usize>>;
    /// Another number each time that a core has come up; `None` where that cannot be read.
    fn life(&self, core: usize) -> Option<u64>;
    fn cores_of(&self, thread: i32) -> io::Result<Vec<usize>>;
    /// Keeps a thread to these cores.
    fn confine(&self, thread: i32, cores: &[usize]) -> io::Result<()>;
}

#[derive(Debug)]
pub struct ThisHost;

const CORES: &str = "/sys/devices/system/cpu";

impl CoreHost for ThisHost {
    fn online(&self) -> io::Result<Vec<usize>> {
        steer::parse_core_list(&fs::read_to_string(format!("{CORES}/online"))?).map_err(io::Error::other)
    }

    fn life(&self, core: usize) -> Option<u64> {
        fs::metadata(format!("{CORES}/cpu{core}/topology")).ok().map(|folder| folder.ino())
    }

    fn cores_of(&self, thread: i32) -> io::Result<Vec<usize>> {
        steer::cores_of_thread(thread)
    }

    fn confine(&self, thread: i32, cores: &[usize]) -> io::Result<()> {
        steer::confine_thread(thread, cores)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    pub level: log::Level,
    pub text: String,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct CoreFindings {
    pub lines: Vec<LogLine>,
    /// Lanes whose receiver has other cores than at the look before.
    pub moved: Vec<(usize, Vec<usize>)>,
}

#[derive(Debug)]
pub struct CoreWatch {
    threads: Vec<WatchedThread>,
    /// The cores that udpd may use and that the scheduler does not leave alone.
    shared: BTreeSet<usize>,
    node_of_core: BTreeMap<usize, usize>,
    /// How each planned core was when a look found it online.
    lives: BTreeMap<usize, Option<u64>>,
}

#[derive(Debug)]
struct WatchedThread {
    pinned: Pinned,
    state: ThreadPlace,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ThreadPlace {
    /// On its own cores, as far as they are online.
    Home,
    /// Its cores are off: where it was put instead, and whether that could be done.
    Away(Vec<usize>, bool),
    /// Another program has put it on these.
    Taken(Vec<usize>),
}

impl CoreWatch {
    /// For threads that have just been put on their cores. `allowed` are the cores that udpd may use.
    pub fn new(threads: Vec<Pinned>, allowed: &[usize], topology: &Topology, machine: &impl CoreHost) -> Self {
        let shared = allowed.iter().copied().filter(|core| !topology.isolated.contains(core));
        let cores: BTreeSet<usize> = threads.iter().flat_map(|pinned| pinned.cores.iter().copied()).collect();
        Self {
            threads: threads.into_iter().map(|pinned| WatchedThread { pinned, state: ThreadPlace::Home }).collect(),
            shared: shared.collect(),
            node_of_core: topology.node_of_core.clone(),
            lives: cores.into_iter().map(|core| (core, machine.life(core))).collect(),
        }
    }

    pub fn look(&mut self, machine: &impl CoreHost) -> CoreFindings {
        let mut found = CoreFindings::default();
        // /sys is unreadable: nothing can be judged in this round.
        let Ok(online) = machine.online() else { return found };
        let online: BTreeSet<usize> = online.into_iter().collect();
        let lives: BTreeMap<usize, Option<u64>> = self.lives.keys().map(|&core| (core, machine.life(core))).collect();
        let changed = lives.iter().filter(|(core, life)| self.lives.get(core) != Some(life));
        let reborn: BTreeSet<usize> = changed.map(|(core, _)| *core).collect();
        for watched in &mut self.threads {
            // A thread that has ended, or that was never put on cores, is not watched.
            let Some(thread) = watched.pinned.thread_id() else { continue };
            let Ok(now) = machine.cores_of(thread) else { continue };
            let usable: Vec<usize> =
                watched.pinned.cores.iter().copied().filter(|core| online.contains(core)).collect();
            let next = if now == usable && !usable.is_empty() {
                ThreadPlace::Home
            } else if watched.state == ThreadPlace::Taken(now.clone()) {
                continue;
            } else if usable.is_empty() {
                let shelter = shelter(&watched.pinned.cores, &online, &self.shared, &self.node_of_core);
                watched.shelter(machine, thread, &now, shelter)
            } else if matches!(watched.state, ThreadPlace::Away(..)) || usable.iter().any(|core| reborn.contains(core))
            {
                watched.bring_home(machine, thread, &now, &usable, &mut found)
            } else {
                ThreadPlace::Taken(now)
            };
            watched.pass_to(next, thread, &mut found);
        }
        self.lives = lives;
        found
    }
}

/// Where threads go whose cores are off: to the cores of their node that are online and that udpd shares with others,
/// else to those of other nodes.
fn shelter(
    own: &[usize],
    online: &BTreeSet<usize>,
    shared: &BTreeSet<usize>,
    node_of_core: &BTreeMap<usize, usize>,
) -> Vec<usize> {
    let nodes: Vec<Option<&usize>> = own.iter().map(|core| node_of_core.get(core)).collect();
    let left: Vec<usize> = shared.intersection(online).copied().collect();
    let near: Vec<usize> = left.iter().copied().filter(|core| nodes.contains(&node_of_core.get(core))).collect();
    if near.is_empty() { left } else { near }
}

impl WatchedThread {
    /// Keeps it to `shelter`; where there is none the kernel's choice stands.
    fn shelter(&self, machine: &impl CoreHost, thread: i32, now: &[usize], shelter: Vec<usize>) -> ThreadPlace {
        if shelter.is_empty() {
            return ThreadPlace::Away(now.to_vec(), true);
        }
        if now == shelter {
            return ThreadPlace::Away(shelter, true);
        }
        match machine.confine(thread, &shelter) {
            Ok(()) => ThreadPlace::Away(shelter, true),
            Err(_) => ThreadPlace::Away(now.to_vec(), false),
        }
    }

    /// Pins it again; where that cannot be done it stays where it is.
    fn bring_home(
        &self,
        machine: &impl CoreHost,
        thread: i32,
        now: &[usize],
        back: &[usize],
        found: &mut CoreFindings,
    ) -> ThreadPlace {
        let who = &self.pinned.name;
        let back = CoreNoun(back, "is", "are");
        match machine.confine(thread, &self.pinned.cores) {
            Ok(()) => {
                // It may have been off and on between two looks, and then nothing was said before.
                found.say(log::Level::Info, format!("{who} is pinned again: {back} back"));
                ThreadPlace::Home
            }
            Err(error) => {
                let stays = CoreNoun(now, "", "");
                let cure = format!("`taskset -pc {} {thread}` pins it", format_core_list(&self.pinned.cores));
                found.say(log::Level::Warn, format!("{who} stays on {stays}: {back} back, but {error}; {cure}"));
                ThreadPlace::Taken(now.to_vec())
            }
        }
    }

    /// Says what is new, once.
    fn pass_to(&mut self, next: ThreadPlace, thread: i32, found: &mut CoreFindings) {
        if next == self.state {
            return;
        }
        let Pinned { name: who, cores, lane, .. } = &self.pinned;
        let own = format_core_list(cores);
        match (&self.state, &next) {
            (ThreadPlace::Away(..), ThreadPlace::Away(..)) => {}
            (_, ThreadPlace::Away(now, is_put)) => {
                let stays = if *is_put { "runs on" } else { "runs wherever the kernel puts it, now on" };
                let first = cores.first().copied().unwrap_or_default();
                found.say(
                    log::Level::Warn,
                    format!(
                        "{who} {stays} {}: {} off; udpd pins it again when it is back (echo 1 > \
                         {CORES}/cpu{first}/online)",
                        CoreNoun(now, "", ""),
                        CoreNoun(cores, "is", "are")
                    ),
                );
            }
            // The change to this place is logged already.
            (_, ThreadPlace::Taken(_) | ThreadPlace::Home) if found.has_said(who) => {}
            (_, ThreadPlace::Taken(now)) => found.say(
                log::Level::Warn,
                format!(
                    "{who} was moved from {} to {} by another program (taskset, a cpuset); udpd leaves it there; put it \
                     back with `taskset -pc {own} {thread}`, or restart udpd",
                    CoreNoun(cores, "", ""),
                    CoreNoun(now, "", "")
                ),
            ),
            (_, ThreadPlace::Home) => {
                found.say(log::Level::Info, format!("{who} is on {} again", CoreNoun(cores, "", "")));
            }
        }
        if let Some(lane) = *lane {
            let now = match &next {
                ThreadPlace::Home => cores.clone(),
                ThreadPlace::Away(now, _) | ThreadPlace::Taken(now) => now.clone(),
            };
            found.moved.push((lane, now));
        }
        self.state = next;
    }
}

impl CoreFindings {
    fn has_said(&self, who: &str) -> bool {
        self.lines.last().is_some_and(|line| line.text.starts_with(who))
    }

    fn say(&mut self, level: log::Level, text: String) {
        self.lines.push(LogLine { level, text });
    }
}

/// "core 1", "the cores 0-3", and what is said of one or of several.
struct CoreNoun<'a>(&'a [usize], &'static str, &'static str);

impl fmt::Display for CoreNoun<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(cores, one, several) = self;
        let (noun, verb) = if cores.len() == 1 { ("core", one) } else { ("the cores", several) };
        write!(formatter, "{noun} {}", format_core_list(cores))?;
        if verb.is_empty() { Ok(()) } else { write!(formatter, " {verb}") }
    }
}

#[cfg(test)]
#[path = "thread_cores_tests.rs"]
mod tests;
