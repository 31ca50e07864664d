//! Whether a host still is as planned, and who or what has changed it otherwise.
//!
//! Steering is undone silently: irqbalance moves an interrupt minutes later, a driver forgets every affinity when its
//! queues change, a link flap resets a ring. So the comparison names the setting, the value found, the value wanted,
//! and the rival, as far as the host shows one. What could not be read is named too, and never called "as planned".

use std::fmt;

use crate::apply::{Steering, setting_of};
use crate::change::{Change, is_same};
use crate::corelist::format_core_list;
use crate::device::format_mask;
use crate::doubts::{Unknown, doubts};
use crate::model::{Host, Interface, Queue};
use crate::plan::{InterfacePlan, Plan, Target, Wanted};
use crate::rivals::{Rival, Rivals};
use crate::settings::{Setting, SettingError};

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
        !matches!(self.rival, Some(Rival::Rps { .. } | Rival::Thread { .. } | Rival::Controller))
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

impl Steering<'_> {
    /// Compares a host, as it was read, with its plan. Whatever cannot be read is a part of the answer.
    pub fn compare(&self, host: &Host, plan: &Plan, rivals: &Rivals) -> Comparison {
        let mut comparison = Comparison::default();
        for (interface, part) in host.interfaces.iter().zip(&plan.interfaces) {
            comparison.unknown.extend(doubts(interface, part, self.request));
            for wanted in &part.wanted {
                self.compare_setting(interface, wanted, rivals, &mut comparison);
            }
            for queue in &interface.queues {
                comparison.drifts.extend(self.overridden(interface, part, queue));
            }
        }
        comparison
    }

    fn compare_setting(&self, interface: &Interface, wanted: &Wanted, rivals: &Rivals, comparison: &mut Comparison) {
        let Some((setting, to)) = setting_of(interface, &wanted.target) else { return };
        let queue = match wanted.target {
            Target::Interrupt { queue, .. } | Target::Rps { queue, .. } => Some(queue),
            _ => None,
        };
        let name = &interface.name;
        let unknown = |why: String, cure: &str| {
            let (interface, what, cure) = (name.clone(), setting.to_string(), cure.to_owned());
            Unknown { interface, queue, what, why, cure }
        };
        match self.reader.get(name, &setting) {
            Ok(from) if is_same(&setting, &from, &to) => {}
            Ok(from) => {
                let command = self.reader.command(name, &setting, &to);
                let (why, disruption) = (wanted.why.clone(), wanted.disruption.clone());
                let rival = rivals.of(&setting);
                let change = Change { interface: name.clone(), setting, from, to, now: None, why, disruption, command };
                comparison.drifts.push(Drift { change, queue, rival });
            }
            Err(SettingError::NotSupported) => {
                let why = format!("the plan wants {to}, and neither the host nor the driver has it");
                comparison.unknown.push(unknown(why, "keep it as it is"));
            }
            Err(error) => comparison.unknown.push(unknown(error.to_string(), "ask again when the cause is gone")),
        }
    }

    /// Who takes the datagrams of a queue elsewhere although its interrupt is where the plan wants it.
    fn overridden(&self, interface: &Interface, part: &InterfacePlan, queue: &Queue) -> Option<Drift> {
        let seat = part.seats.iter().find(|seat| seat.queue == queue.index)?;
        let planned = seat.cores_of_queue();
        let is_planned =
            part.wanted.iter().any(|it| matches!(it.target, Target::Rps { queue: other, .. } if other == queue.index));
        let is_elsewhere = |cores: &[usize]| !cores.is_empty() && !planned.is_empty() && cores != planned;
        let (setting, from, why, rival) = if !is_planned && is_elsewhere(&queue.rps_cores) {
            let why = format!("the datagrams should be processed on core {}", format_core_list(planned));
            let cores = queue.rps_cores.clone();
            (Setting::Rps(queue.index), format_mask(&cores), why, Rival::Rps { cores })
        } else {
            return None;
        };
        let to = "0".to_owned();
        let command = self.reader.command(&interface.name, &setting, &to);
        let (interface, disruption) = (interface.name.clone(), None);
        let change = Change { interface, setting, from, to, now: None, why, disruption, command };
        Some(Drift { change, queue: Some(queue.index), rival: Some(rival) })
    }
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
