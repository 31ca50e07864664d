//! Puts the settings of a host back to what they were before it was steered.
//!
//! A file stays as long as it may be needed: while it cannot be told whether its interface is still there, and while
//! any setting in it could not be put back. Nothing is written before it is certain that the interface is the one that
//! was saved. A file that is unusable does not keep the others from being restored.
//!
//! A setting of a queue or an interrupt that is gone for good is reported and is no failure, because there is nothing
//! left to put it back to.

use crate::apply::Steering;
use crate::change::{Change, Restored};
use crate::device::Device;
use crate::ethtool::Coalescing;
use crate::identity::Whereabouts;
use crate::journal::{Entry, JournalError, LockedJournal, Saved};
use crate::rules::{Added, rules_while_off, value_saved};
use crate::setting::{Setting, SettingError, is_same, parse_coalescing, parse_table};

/// Which interfaces to restore, and how.
pub struct RestoreOptions<'a> {
    /// The interfaces, by their names then or now; all of them when none is named.
    pub interfaces: &'a [String],
    /// Removes the file also where something could not be put back.
    pub forget: bool,
    /// Lets irqbalance have these interrupts again.
    pub unban: &'a mut dyn FnMut(&[u32]) -> Result<(), String>,
}

impl std::fmt::Debug for RestoreOptions<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = formatter.debug_struct("RestoreOptions");
        text.field("interfaces", &self.interfaces).field("forget", &self.forget).finish_non_exhaustive()
    }
}

/// What could not be put back of one interface, and what need not be.
#[derive(Default)]
struct Outcome {
    failures: Vec<String>,
    notes: Vec<String>,
}

impl Steering<'_> {
    /// Puts back everything that is saved for these interfaces. What is put back wholly is forgotten.
    pub fn restore(
        &self,
        mut options: RestoreOptions<'_>,
        journal: &mut LockedJournal,
        mut progress: impl FnMut(&Change),
    ) -> Result<Restored, JournalError> {
        let mut restored = Restored::default();
        let mut report = |change: Change| {
            progress(&change);
            restored.changes.push(change);
        };
        for entry in journal.entries()? {
            let place = entry.saved.as_ref().ok().map(|saved| self.reader.whereabouts(&saved.identity));
            let now = place.as_ref().and_then(|place| match place {
                Whereabouts::Here(name) => Some(name),
                Whereabouts::Gone | Whereabouts::Unclear(_) => None,
            });
            let is_meant = |name: &String| *name == entry.interface || Some(name) == now;
            if !options.interfaces.is_empty() && !options.interfaces.iter().any(is_meant) {
                continue;
            }
            let Outcome { failures, notes } = self.restore_entry(&entry, place.as_ref(), &mut options, &mut report);
            restored.notes.extend(notes);
            let path = entry.path.display();
            if failures.is_empty() {
                journal.remove(&entry)?;
            } else if options.forget {
                journal.remove(&entry)?;
                restored.notes.extend(failures.iter().map(|failure| format!("{failure}; {path} is forgotten")));
            } else {
                restored.failures.extend(failures.iter().map(|failure| format!("{failure}; {path} stays")));
            }
        }
        Ok(restored)
    }

    fn restore_entry(
        &self,
        entry: &Entry,
        place: Option<&Whereabouts>,
        options: &mut RestoreOptions<'_>,
        report: &mut dyn FnMut(Change),
    ) -> Outcome {
        let refuse = |failure: String| Outcome { failures: vec![failure], notes: Vec::new() };
        let (saved, mut outcome) = match (&entry.saved, place) {
            (Ok(saved), Some(Whereabouts::Here(now))) => (saved, self.restore_one(now.as_str(), saved, report)),
            (Ok(saved), Some(Whereabouts::Gone)) => {
                let name = &entry.interface;
                let what = format!("{name} ({}) is gone, and its settings went with it", saved.identity);
                (saved, refuse(what))
            }
            (Ok(_), Some(Whereabouts::Unclear(why))) => return refuse(why.clone()),
            (Ok(_), None) => return refuse(format!("cannot tell whether {} is still there", entry.interface)),
            (Err(error), _) => return refuse(error.to_string()),
        };
        // irqbalance gets its interrupts back only when none of our changes is left, or when the rest is forgotten.
        if !saved.banned.is_empty() && (outcome.failures.is_empty() || options.forget) {
            let unbanned = (options.unban)(&saved.banned);
            outcome.failures.extend(unbanned.err());
        }
        outcome
    }

    fn restore_one(&self, interface: &str, saved: &Saved, report: &mut dyn FnMut(Change)) -> Outcome {
        let mut outcome = Outcome::default();
        // Masks and interrupts belong to queues, so the first of both lists come first.
        let later = saved.later.iter().map(|value| (value, true));
        let mut values: Vec<_> = saved.values.iter().map(|value| (value, false)).chain(later).collect();
        // And the kernel takes away no queue that a rule names.
        values.sort_by_key(|((setting, _), _)| (!matches!(setting, Setting::Rule { .. }), setting));
        for ((setting, value), is_later) in values {
            if !self.reader.is_still(interface, saved.identity.index) {
                let what = format!("{interface} is no longer the interface {} that it was", saved.identity.index);
                outcome.failures.push(format!("cannot put {setting} back to {value}: {what}"));
                break;
            }
            let restored = self.restore_setting(interface, setting, value, report);
            let value = value_saved(setting, value);
            match restored {
                Ok(()) => {}
                Err(SettingError::Gone(_)) if is_later && self.is_gone_for_good(interface, saved) => {}
                Err(SettingError::Gone(what)) if self.is_gone_for_good(interface, saved) => {
                    outcome.notes.push(format!("{setting} of {interface} was {value}, and is left as it is: {what}"));
                }
                Err(error) => {
                    outcome.failures.push(format!("cannot put {setting} of {interface} back to {value}: {error}"));
                }
            }
        }
        outcome
    }

    /// A queue or an interrupt that is missing is gone for good when the interface has as many queues again as it had,
    /// and is up: one that is down may have given its interrupts back for now.
    fn is_gone_for_good(&self, interface: &str, saved: &Saved) -> bool {
        let has_its_queues = saved
            .values
            .iter()
            .filter(|(setting, _)| *setting == Setting::Channels)
            .all(|(setting, value)| self.reader.get(interface, setting).is_ok_and(|now| now == *value));
        let device = Device::find(self.reader.sys_root, interface).ok().flatten();
        has_its_queues && device.is_some_and(|device| device.is_up().unwrap_or_default())
    }

    fn restore_setting(
        &self,
        interface: &str,
        setting: &Setting,
        saved: &str,
        report: &mut dyn FnMut(Change),
    ) -> Result<(), SettingError> {
        let value = value_saved(setting, saved);
        let (from, by_hand) = match setting {
            Setting::Rule { .. } => {
                let Some(ours) = Added::parse(saved) else { return Ok(()) };
                // There was no rule before, so one that is gone needs nothing.
                let Some(ours) = self.reader.added_rule(interface, setting, ours)? else { return Ok(()) };
                (ours.show_rule(), ours.show())
            }
            _ => (self.reader.get(interface, setting)?, value.to_owned()),
        };
        if from == value || (*setting == Setting::Coalescing && is_same(setting, &from, value)) {
            return Ok(());
        }
        let now = self.put_back(interface, setting, saved)?;
        let command = self.reader.command(interface, setting, &by_hand);
        let (to, why) = (value.to_owned(), "as it was before".to_owned());
        let change = Change { now: Some(now), ..Change::planned(interface, setting, from, to, why, command) };
        let set_instead = change.now.clone().filter(|_| !change.is_as_wanted());
        report(change);
        set_instead.map_or(Ok(()), |value| Err(SettingError::Failed(format!("the driver set {value} instead"))))
    }

    /// Sets it to what it was, and returns what it is afterwards.
    ///
    /// A table is first put to the driver's default, which is what it was if none had been set. A table that is set
    /// stays set: the kernel then refuses to take away a queue that it names, and new queues get no share of it. Some
    /// drivers keep a default that names queues which are gone, and the kernel takes no such table from a program; then
    /// the default is what there is.
    fn put_back(&self, interface: &str, setting: &Setting, saved: &str) -> Result<String, SettingError> {
        let value = value_saved(setting, saved);
        match setting {
            Setting::Rule { .. } => return self.reader.remove_rule(interface, setting, saved),
            Setting::Ntuple if value == "off" => self.check_no_new_rules(interface, rules_while_off(saved))?,
            // Numbers that a driver adapts by itself are refused while it does.
            Setting::Coalescing => {
                if let Some(before) = parse_coalescing(value).filter(|before| before.adaptive_rx) {
                    let fixed = Coalescing { adaptive_rx: false, ..before };
                    self.reader.ethtool.set_coalescing(interface, &fixed)?;
                }
            }
            _ => {}
        }
        if *setting == Setting::Indirection && self.reader.ethtool.set_indirection(interface, None).is_ok() {
            let now = self.reader.get(interface, setting)?;
            if now == value {
                return Ok(now);
            }
            let queues = self.reader.ethtool.channels(interface)?.receiving();
            let highest = parse_table(value).and_then(|table| table.into_iter().max());
            if let Some(queue) = highest.filter(|&highest| highest >= queues) {
                let what = format!("it names queue {queue}, and there are {queues}: the driver's own table is set");
                return Err(SettingError::Gone(what));
            }
        }
        self.reader.set(interface, setting, value)
    }

    /// Drivers that stop sorting drop every rule, and those that are left are not ours. Where there were rules although
    /// sorting was off, the driver does without it.
    fn check_no_new_rules(&self, interface: &str, before: usize) -> Result<(), SettingError> {
        let new = self.reader.ethtool.rules(interface)?.taken.len().saturating_sub(before);
        let (rules, them) = match new {
            0 => return Ok(()),
            1 => ("1 rule".to_owned(), "it"),
            _ => (format!("{new} rules"), "them"),
        };
        let what = format!("{rules} that others added since would go with it: remove {them} first");
        Err(SettingError::Failed(format!("{what} (`ethtool -n {interface}` lists all rules)")))
    }
}

#[cfg(test)]
#[path = "restore_tests.rs"]
mod tests;
