//! What `udpd steer apply --watch` does at each look: whether to set again what is not as planned, or to leave it.
//!
//! A program that undoes a setting for a reason of its own would undo it for ever, and two programs that set the same
//! thing every second are of no use. So a setting that was undone three times, each time within a minute, is named once
//! with its rival and then tried only every ten minutes. A card that goes down and up by itself is no rival: what it
//! forgot is set again however often; so is what a driver forgets when its queues are changed. But link flaps that our
//! own apply causes would never end, so for a while after it they do not reset the count. Decisions are made here
//! without any kernel; `watch` has it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use log::Level;
use steer::{Drift, LinkChange, LinkEvent, Setting};

use udpd_base::exit::{ExitCode, Failure};
use udpd_engine::plan::advice;

/// A setting that stays for so long is not contested.
const CALM: Duration = Duration::from_secs(60);
/// How often it may be undone within that time.
const UNDONE_MAX: u32 = 3;
/// How long it is then left alone.
const REST: Duration = Duration::from_secs(600);
/// How long after our own change a card may go down and up because of it.
const ECHO: Duration = Duration::from_secs(10);
/// How long after it the kernel may report the change itself.
const ECHO_OF_SETTING: Duration = Duration::from_millis(500);
/// How long to wait after a failure: twice as long after each, up to the longest.
const RETRY: Duration = Duration::from_secs(5);
const RETRY_MAX: Duration = Duration::from_secs(300);
/// How many settings are named one by one when they are set again.
const NAMED_MAX: usize = 8;

/// What is looked at and set: the running kernel, or a test.
pub(super) trait KeeperHost {
    fn now(&self) -> Instant;
    /// Whether there is an interface of this name.
    fn is_there(&self, interface: &str) -> bool;
    /// Everything that is not as planned and that applying the plan would set.
    fn drifts(&mut self, interfaces: &[String]) -> Result<Vec<Drift>, Failure>;
    /// The irqbalance that has not been asked yet to leave the interrupts alone, where it shall be.
    fn unasked_irqbalance(&mut self) -> Option<u32>;
    fn apply(&mut self, interfaces: &[String]) -> Result<(), Failure>;
}

/// A line for the log.
pub(super) type Line = (Level, String);

/// Remembers what was set, who undid it and what was said.
#[derive(Debug)]
pub(super) struct Keeper {
    interfaces: Vec<String>,
    ban_irqbalance: bool,
    /// Those that were not there at the last look; `None` before the first.
    absent: Option<BTreeSet<String>>,
    settings: BTreeMap<String, SettingRecord>,
    /// When the plan was last applied.
    applied: Option<Instant>,
    /// When a card last went down or came up by itself, and when another program last changed its channels or rings.
    restarted: BTreeMap<String, Instant>,
    reshaped: BTreeMap<String, Instant>,
    /// What was heard since the last look.
    heard: BTreeSet<String>,
    failure: Option<Failed>,
    /// What the last apply was to set.
    attempted: BTreeSet<String>,
    /// How often the plan was applied after the first look.
    times: u64,
}

#[derive(Debug)]
struct SettingRecord {
    set: Instant,
    to: String,
    /// How often it was undone, each time soon after it had been set.
    undone: u32,
    /// That it was undone is counted, and it has not been set since.
    is_counted: bool,
    rests_until: Option<Instant>,
}

impl SettingRecord {
    fn new(set: Instant) -> Self {
        Self { set, to: String::new(), undone: 0, is_counted: false, rests_until: None }
    }
}

#[derive(Debug)]
struct Failed {
    message: String,
    keys: BTreeSet<String>,
    retry: Instant,
    delay: Duration,
}

impl Keeper {
    pub(super) fn new(interfaces: &[String], ban_irqbalance: bool) -> Self {
        Self {
            interfaces: interfaces.to_vec(),
            ban_irqbalance,
            absent: None,
            settings: BTreeMap::new(),
            applied: None,
            restarted: BTreeMap::new(),
            reshaped: BTreeMap::new(),
            heard: BTreeSet::new(),
            failure: None,
            attempted: BTreeSet::new(),
            times: 0,
        }
    }

    /// Takes a notification; true when it is a reason to look.
    pub(super) fn hear(&mut self, event: &LinkEvent, now: Instant) -> bool {
        let LinkEvent::Changed { interface, what, .. } = event else { return true };
        if !self.interfaces.contains(interface) {
            return false;
        }
        let is_state = matches!(what, LinkChange::State | LinkChange::Gone);
        let echo = if is_state { ECHO } else { ECHO_OF_SETTING };
        let is_echo = self.applied.is_some_and(|applied| now.saturating_duration_since(applied) < echo);
        if !is_echo {
            self.heard.insert(event.to_string());
            if is_state {
                self.restarted.insert(interface.clone(), now);
            } else if matches!(what, LinkChange::Channels | LinkChange::Rings) {
                self.reshaped.insert(interface.clone(), now);
            }
            // What failed may succeed on a card that has changed.
            if let Some(failure) = &mut self.failure {
                failure.retry = now;
            }
        }
        true
    }

    /// Looks, and sets again what is to be set again. An error only at the first look, where the operator still reads
    /// it, and only one that waiting does not cure: to end and be restarted at once would apply again without any
    /// delay, and each time a card may be reset.
    pub(super) fn look(&mut self, host: &mut impl KeeperHost) -> Result<Vec<Line>, Failure> {
        let is_first = self.absent.is_none();
        let mut lines = Vec::new();
        let there = self.present(host, &mut lines);
        if let Err(failure) = self.keep(host, &there, is_first, &mut lines) {
            let is_lasting = matches!(failure.code, ExitCode::Usage | ExitCode::Permission | ExitCode::Configuration);
            if is_first && is_lasting {
                return Err(failure);
            }
            lines.extend(self.fail(failure, host.now()));
        }
        self.heard.clear();
        Ok(lines)
    }

    /// One line for `systemctl status`.
    pub(super) fn status(&self) -> String {
        let is_absent = |name: &&String| self.absent.as_ref().is_some_and(|absent| absent.contains(*name));
        let (absent, there): (Vec<&String>, Vec<&String>) = self.interfaces.iter().partition(is_absent);
        let list = |names: &[&String]| names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
        let mut parts = Vec::new();
        if !there.is_empty() {
            parts.push(format!("keeps {} as planned", list(&there)));
        }
        if !absent.is_empty() {
            parts.push(format!("waits for {}", list(&absent)));
        }
        if self.times > 0 {
            parts.push(format!("set again so far: {}", self.times));
        }
        if let Some(failure) = &self.failure {
            parts.push(format!("failed: {}", failure.message));
        }
        parts.join("; ")
    }

    /// The interfaces that are there; says which have come or gone.
    fn present(&mut self, host: &impl KeeperHost, lines: &mut Vec<Line>) -> Vec<String> {
        let (there, absent): (Vec<String>, Vec<String>) =
            self.interfaces.iter().cloned().partition(|name| host.is_there(name));
        let absent: BTreeSet<String> = absent.into_iter().collect();
        match &self.absent {
            None => lines.extend(absent.iter().map(|name| (Level::Warn, format!("{name} is not there: waits for it")))),
            Some(before) => {
                let gone = absent.difference(before);
                lines.extend(gone.map(|name| (Level::Warn, format!("{name} is gone: waits for it to come back"))));
                lines.extend(before.difference(&absent).map(|name| (Level::Info, format!("{name} is there"))));
            }
        }
        // A device that comes back begins with its driver's settings, which undoes none of ours.
        for name in self.absent.iter().flatten().filter(|name| !absent.contains(*name)) {
            self.settings.retain(|key, _| key.split(' ').next() != Some(name));
        }
        self.absent = Some(absent);
        there
    }

    fn keep(
        &mut self,
        host: &mut impl KeeperHost,
        there: &[String],
        is_first: bool,
        lines: &mut Vec<Line>,
    ) -> Result<(), Failure> {
        if there.is_empty() {
            return Ok(());
        }
        let (now, drifts) = (host.now(), host.drifts(there)?);
        let mut due = Vec::new();
        for drift in &drifts {
            if self.is_due(drift, now, lines) {
                due.push(drift);
            }
        }
        let irqbalance = host.unasked_irqbalance();
        if due.is_empty() && irqbalance.is_none() {
            self.failure = None;
            return Ok(());
        }
        // What has failed must not keep from being set what differs only since then.
        let keys: BTreeSet<String> = due.iter().map(|drift| key(drift)).collect();
        let failed = self.failure.as_ref().filter(|failure| keys.is_subset(&failure.keys));
        if failed.is_some_and(|failure| now < failure.retry) {
            return Ok(());
        }
        if !is_first && failed.is_none() {
            self.say_again(&due, irqbalance, lines);
        }
        self.attempted = keys;
        let outcome = host.apply(there);
        let now = host.now();
        // What fails has changed something all the same, and its echo is no reason to try at once.
        self.applied = Some(now);
        outcome?;
        self.failure = None;
        self.times += u64::from(!is_first);
        for drift in &drifts {
            // It was applied as a whole, what rests with it.
            let kept = self.settings.entry(key(drift)).or_insert_with(|| SettingRecord::new(now));
            (kept.set, kept.is_counted) = (now, false);
            kept.to.clone_from(&drift.change.to);
        }
        Ok(())
    }

    /// Whether this is to be set now.
    fn is_due(&mut self, drift: &Drift, now: Instant, lines: &mut Vec<Line>) -> bool {
        let interface = &drift.change.interface;
        // A program that changes the queues is a rival for the queues, not for what the driver then forgets.
        let is_shape = matches!(drift.change.setting, Setting::Channels | Setting::Rings);
        let reshaped = self.reshaped.get(interface).filter(|_| !is_shape);
        let forgotten = self.restarted.get(interface).max(reshaped).copied();
        let Some(kept) = self.settings.get_mut(&key(drift)) else { return true };
        // Another plan, such as after a core went offline, undoes nothing of the one before.
        if forgotten.is_some_and(|at| at > kept.set) || kept.to != drift.change.to {
            (kept.undone, kept.rests_until) = (0, None);
            return true;
        }
        let has_held = now.saturating_duration_since(kept.set) > CALM;
        match kept.rests_until {
            Some(until) if now < until => return false,
            // The rest is over, and it has not been tried since.
            Some(until) if kept.set < until => return true,
            None | Some(_) if has_held => {
                (kept.undone, kept.rests_until) = (0, None);
                return true;
            }
            // Undone again right after the try, which was said when the first rest began.
            Some(_) => {
                kept.rests_until = Some(now + REST);
                return false;
            }
            // What was to set it has failed.
            None if kept.is_counted => return true,
            None => (kept.undone, kept.is_counted) = (kept.undone + 1, true),
        }
        if kept.undone < UNDONE_MAX {
            return true;
        }
        kept.rests_until = Some(now + REST);
        let what = advice::of_drift(drift, self.ban_irqbalance);
        let (calm, rest) = (CALM.as_secs(), REST.as_secs() / 60);
        lines.push((
            Level::Warn,
            format!(
                "{what}; it was undone {UNDONE_MAX} times, each time within {calm} s: sets it again only every {rest} \
                 minutes until it holds"
            ),
        ));
        false
    }

    fn say_again(&self, due: &[&Drift], irqbalance: Option<u32>, lines: &mut Vec<Line>) {
        if !self.heard.is_empty() {
            let heard: Vec<&str> = self.heard.iter().map(String::as_str).collect();
            lines.push((Level::Info, format!("the kernel says: {}", heard.join(", "))));
        }
        for drift in due.iter().take(NAMED_MAX) {
            lines.push((Level::Warn, format!("{}; sets it again", advice::of_drift(drift, self.ban_irqbalance))));
        }
        if let Some(more) = due.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
            lines.push((Level::Warn, format!("and {more} more settings, which are set again as well")));
        }
        if let Some(pid) = irqbalance {
            lines.push((
                Level::Info,
                format!("another irqbalance runs (process {pid}): asks it to leave the interrupts alone"),
            ));
        }
    }

    /// Says a failure once, and when it is tried again.
    fn fail(&mut self, failure: Failure, now: Instant) -> Option<Line> {
        let message = failure.message;
        let before = self.failure.take();
        let delay = before.as_ref().map_or(RETRY, |before| (before.delay * 2).min(RETRY_MAX));
        let is_new = before.is_none_or(|before| before.message != message);
        let line = is_new.then(|| (Level::Error, format!("{message}; tries again")));
        self.failure = Some(Failed { message, keys: std::mem::take(&mut self.attempted), retry: now + delay, delay });
        line
    }
}

/// One setting, whatever its interrupt's number is by now.
fn key(drift: &Drift) -> String {
    let setting = drift.change.setting.to_string();
    let kind = setting.split(' ').next().unwrap_or_default();
    match drift.queue {
        Some(queue) => format!("{} {kind} {queue}", drift.change.interface),
        None => format!("{} {setting}", drift.change.interface),
    }
}

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;
