//! Whether a host still is as planned, and who or what has changed it otherwise.
//!
//! Steering is undone silently: irqbalance moves an interrupt minutes later, a driver forgets every affinity when its
//! queues change, a link flap resets a ring. So the comparison names the setting, the value found, the value wanted,
//! and the rival, as far as the host shows one. What could not be read is named too, and never called "as planned".

use std::fmt;

use crate::apply::{Steering, setting_of};
use crate::change::Change;
use crate::corelist::format_core_list;
use crate::device::parse_mask;
use crate::doubts::{Unknown, doubts};
use crate::host::Reader;
use crate::interrupts::Roots;
use crate::model::{Host, Interface, Queue, WorkBy};
use crate::patience::{LOOKS, pause};
use crate::plan::{InterfacePlan, Plan, Target, Wanted};
use crate::rivals::{Rival, Rivals};
use crate::setting::{Setting, SettingError};
use crate::settings::is_same;

/// One setting that is not as planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drift {
    /// The setting, what it is (`from`), what it should be (`to`), and the command that sets it.
    pub change: Change,
    /// The number of the queue, when the setting belongs to one.
    pub queue: Option<usize>,
    /// Who is likely to have changed it.
    pub rival: Option<Rival>,
}

impl fmt::Display for Drift {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Change { interface, setting, from, to, .. } = &self.change;
        let queue = self.queue.map_or(String::new(), |queue| format!(" queue {queue}:"));
        write!(formatter, "{interface}:{queue} {setting} is {from}, wanted {to}")?;
        if let Some(rival) = &self.rival {
            write!(formatter, "; {rival}")?;
        }
        Ok(())
    }
}

impl Drift {
    /// False where the plan has no such setting, so that applying it again does not help: its command does.
    pub fn is_set_by_apply(&self) -> bool {
        !matches!(self.rival, Some(Rival::Thread { .. } | Rival::Controller))
    }
}

/// How a host compares with its plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Everything that is not as planned.
    pub drifts: Vec<Drift>,
    /// Everything of which nobody can say whether it is as planned, or that was asked for and cannot be had.
    pub unknown: Vec<Unknown>,
}

/// What a comparison comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Everything was read and is as planned.
    AsPlanned,
    /// Something differs, whatever else could not be read.
    Differs,
    /// Nothing that was read differs, but something could not be read or cannot be had.
    Unknown,
}

impl Comparison {
    /// A difference weighs more than something unknown: it is certain, and it has a cure.
    pub fn verdict(&self) -> Verdict {
        match (self.drifts.as_slice(), self.unknown.as_slice()) {
            ([], []) => Verdict::AsPlanned,
            ([], _) => Verdict::Unknown,
            _ => Verdict::Differs,
        }
    }
}

/// So often an interrupt has to fire after it was looked at until it counts as one that does not move.
const FIRINGS: u64 = 3;

impl Steering<'_> {
    /// Compares a host, as it was read, with its plan. Whatever cannot be read is a part of the answer.
    pub fn compare(&self, host: &Host, plan: &Plan, rivals: &Rivals) -> Comparison {
        let mut comparison = Comparison::default();
        for (interface, part) in with_plans(host, plan) {
            comparison.unknown.extend(doubts(interface, part, self.request));
            comparison.unknown.extend(self.polled_by_anybody(interface));
            for wanted in &part.wanted {
                self.compare_setting(interface, wanted, rivals, &mut comparison);
            }
            for queue in &interface.queues {
                comparison.drifts.extend(self.overridden(interface, part, queue));
            }
        }
        self.look_again(&mut comparison);
        self.look_where_they_fire(host, plan, &mut comparison);
        comparison
    }

    /// The setting that lets every program poll, which none of them needs a right for.
    fn polled_by_anybody(&self, interface: &Interface) -> Vec<Unknown> {
        let unknown = |why: String, cure: String| {
            let (interface, what) = (interface.name.clone(), "where its datagrams are processed".to_owned());
            Unknown { interface, queue: None, what, why, cure }
        };
        match self.reader.busy_polling() {
            Ok(found) => {
                let told = found.into_iter().map(|(name, microseconds)| {
                    let why = format!(
                        "net.core.{name} is {microseconds}: a program that waits for datagrams processes them on its \
                         own core, whatever the interrupt does"
                    );
                    unknown(why, format!("turn it off (`sysctl -w net.core.{name}=0`)"))
                });
                told.collect()
            }
            Err(error) => vec![unknown(error.to_string(), "ask again when the cause is gone".to_owned())],
        }
    }

    fn compare_setting(&self, interface: &Interface, wanted: &Wanted, rivals: &Rivals, comparison: &mut Comparison) {
        let Some((setting, to)) = setting_of(interface, &wanted.target) else { return };
        let queue = match wanted.target {
            Target::Interrupt { queue, .. } | Target::Rps { queue, .. } | Target::Xps { queue, .. } => Some(queue),
            _ => None,
        };
        let name = &interface.name;
        let unknown = |why: String, cure: &str| {
            let (interface, what, cure) = (name.clone(), setting.to_string(), cure.to_owned());
            Unknown { interface, queue, what, why, cure }
        };
        match self.reader.get(name, &setting) {
            Ok(from) if is_same(&setting, &from, &to) || self.is_rounded(name, &setting, &from, &to) => {}
            Ok(from) => {
                let command = self.reader.command(name, &setting, &to);
                let (why, disruption) = (wanted.why.clone(), wanted.disruption.clone());
                let rival = rps_found(&setting, &from).or_else(|| rivals.of(&setting));
                let change = Change { interface: name.clone(), setting, from, to, now: None, why, disruption, command };
                comparison.drifts.push(Drift { change, queue, rival });
            }
            // A kernel without RPS has it off, and so has a queue that is not there.
            Err(SettingError::NotSupported | SettingError::Gone(_)) if wanted.target.is_rps_off() => {}
            Err(SettingError::NotSupported) => {
                let why = format!("the plan wants {to}, and neither the host nor the driver has it");
                comparison.unknown.push(unknown(why, "keep it as it is"));
            }
            Err(error) => comparison.unknown.push(unknown(error.to_string(), "ask again when the cause is gone")),
        }
    }

    /// An interrupt that moves at this moment shows where it was: it differs only if it still does a little later.
    fn look_again(&self, comparison: &mut Comparison) {
        for _ in 1..LOOKS {
            let moves = |drift: &Drift| matches!(drift.change.setting, Setting::Interrupt { .. });
            if !comparison.drifts.iter().any(moves) {
                return;
            }
            pause();
            comparison.drifts.retain_mut(|drift| {
                let Change { interface, setting, from, to, .. } = &mut drift.change;
                if let (Setting::Interrupt { .. }, Ok(now)) = (&*setting, self.reader.get(interface, setting)) {
                    *from = now;
                }
                !is_same(setting, from, to)
            });
        }
    }

    /// Interrupts whose affinity is as planned and that fire elsewhere all the same. One that has not fired since is
    /// none of them: it moves when it does.
    fn look_where_they_fire(&self, host: &Host, plan: &Plan, comparison: &mut Comparison) {
        let mut suspects: Vec<Suspect> = Vec::new();
        for (interface, part) in with_plans(host, plan) {
            for wanted in &part.wanted {
                let Some(suspect) = Suspect::new(interface, wanted) else { continue };
                let is_known =
                    |drift: &Drift| drift.queue == Some(suspect.queue) && drift.change.interface == suspect.interface;
                if !comparison.drifts.iter().any(is_known) {
                    suspects.push(suspect);
                }
            }
        }
        let roots = Roots { sys: self.reader.sys_root, proc: self.reader.proc_root };
        for look in 0..LOOKS {
            if suspects.is_empty() {
                return;
            }
            if look > 0 {
                pause();
            }
            suspects.retain_mut(|suspect| match suspect.look(&roots) {
                Ok(Fires::Elsewhere) => {
                    comparison.drifts.push(suspect.drift(&self.reader));
                    false
                }
                Ok(Fires::Perhaps) => true,
                Ok(Fires::AsPlanned) => false,
                Err(error) => {
                    comparison.unknown.push(suspect.unknown(error.to_string()));
                    false
                }
            });
        }
    }

    /// A kernel thread that processes the datagrams of a queue elsewhere, although the interrupt is where the plan
    /// wants it.
    fn overridden(&self, interface: &Interface, part: &InterfacePlan, queue: &Queue) -> Option<Drift> {
        let seat = part.seats.iter().find(|seat| seat.queue == queue.index)?;
        let planned = seat.cores_of_queue();
        let work = queue.work.get()?;
        let WorkBy::Thread(pid) = work.by else { return None };
        if planned.is_empty() || work.cores == planned {
            return None;
        }
        let (setting, from, to) = (Setting::Threaded, "1".to_owned(), "0".to_owned());
        let why = format!("the datagrams should be processed on core {}", format_core_list(planned));
        let command = self.reader.command(&interface.name, &setting, &to);
        let interface = interface.name.clone();
        let change = Change { interface, setting, from, to, now: None, why, disruption: None, command };
        Some(Drift { change, queue: Some(queue.index), rival: Some(Rival::Thread { pid, cores: work.cores.clone() }) })
    }
}

/// Each interface with its own part of the plan, in whatever order that is.
fn with_plans<'a>(host: &'a Host, plan: &'a Plan) -> impl Iterator<Item = (&'a Interface, &'a InterfacePlan)> {
    let part = |interface: &Interface| plan.interfaces.iter().find(|part| part.name == interface.name);
    host.interfaces.iter().filter_map(move |interface| Some((interface, part(interface)?)))
}

/// RPS itself, where it was found on: nobody else has to be looked for.
fn rps_found(setting: &Setting, found: &str) -> Option<Rival> {
    let Setting::Rps(_) = setting else { return None };
    parse_mask(found).filter(|cores| !cores.is_empty()).map(|cores| Rival::Rps { cores })
}

/// An interrupt that is told to fire on some cores and that fires on others, as far as was seen.
struct Suspect {
    interface: String,
    queue: usize,
    number: u32,
    name: String,
    wanted: Vec<usize>,
    why: String,
    effective: Vec<usize>,
    /// How often it had fired at the first look.
    fired: Option<u64>,
}

enum Fires {
    AsPlanned,
    /// It has not fired often enough to say.
    Perhaps,
    Elsewhere,
}

impl Suspect {
    fn new(interface: &Interface, wanted: &Wanted) -> Option<Self> {
        let Target::Interrupt { queue, cores } = &wanted.target else { return None };
        let interrupt = interface.queues.get(*queue)?.interrupt.get()?;
        let fires_there = interrupt.effective.iter().all(|core| cores.contains(core));
        (!fires_there).then(|| Self {
            interface: interface.name.clone(),
            queue: *queue,
            number: interrupt.number,
            name: interrupt.name.clone(),
            wanted: cores.clone(),
            why: wanted.why.clone(),
            effective: interrupt.effective.clone(),
            fired: None,
        })
    }

    /// The count is read first: if it has grown, the interrupt has fired before the affinity was read.
    fn look(&mut self, roots: &Roots<'_>) -> std::io::Result<Fires> {
        let fired = roots.fired(self.number);
        self.effective = roots.effective(self.number)?;
        if self.effective.iter().all(|core| self.wanted.contains(core)) {
            return Ok(Fires::AsPlanned);
        }
        let fired = fired?;
        let first = *self.fired.get_or_insert(fired);
        Ok(if fired >= first + FIRINGS { Fires::Elsewhere } else { Fires::Perhaps })
    }

    fn setting(&self) -> Setting {
        Setting::Interrupt { number: self.number, name: self.name.clone() }
    }

    fn drift(&self, reader: &Reader<'_>) -> Drift {
        let (setting, to) = (self.setting(), format_core_list(&self.wanted));
        let command = reader.command(&self.interface, &setting, &to);
        let from = format!("{} (its affinity says {to})", format_core_list(&self.effective));
        let (interface, why) = (self.interface.clone(), self.why.clone());
        let change = Change { interface, setting, from, to, now: None, why, disruption: None, command };
        Drift { change, queue: Some(self.queue), rival: Some(Rival::Controller) }
    }

    fn unknown(&self, why: String) -> Unknown {
        let (fires, wanted) = (format_core_list(&self.effective), format_core_list(&self.wanted));
        let why = format!("its affinity says {wanted}, it fires on {fires}, and whether it moves is unknown: {why}");
        let (interface, what) = (self.interface.clone(), self.setting().to_string());
        Unknown {
            interface,
            queue: Some(self.queue),
            what,
            why,
            cure: "ask again when datagrams have arrived".to_owned(),
        }
    }
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
