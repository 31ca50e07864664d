//! Adds rules to the table of a device, and takes ours out again.
//!
//! Which rules are ours stands in the journal alone: before a rule is added it says so, with the place where the rule
//! will be when we choose that, and after it was added with the place where it is. So after a crash at any moment the
//! journal names every rule of ours, and nobody else's.

use crate::apply::Steering;
use crate::change::{ApplyError, Change};
use crate::journal::LockedJournal;
use crate::model::{Host, Interface, Known};
use crate::plan::{Plan, Target};
use crate::setting::{Setting, SettingError};
use crate::sorting::{Added, NO_RULE, off_with_rules, setting_of_rule};

impl Steering<'_> {
    /// Rules of ours that the plan no longer wants. They go first, because the kernel takes away no queue that a rule
    /// names.
    pub(crate) fn stale_rules(
        &self,
        host: &Host,
        plan: &Plan,
        journal: &LockedJournal,
    ) -> Result<Vec<Change>, ApplyError> {
        let mut changes = Vec::new();
        for (interface, part) in host.interfaces.iter().zip(&plan.interfaces) {
            if self.is_unknown_what_is_wanted(interface) {
                continue;
            }
            let wanted: Vec<(Setting, String)> = (part.wanted.iter())
                .filter_map(|wanted| if let Target::Rule(rule) = &wanted.target { Some(rule) } else { None })
                .map(setting_of_rule)
                .collect();
            let Some(saved) = self.found(interface, journal)? else { continue };
            for (setting, value) in saved.values.iter().chain(&saved.later) {
                let Some(added) = Added::parse(value) else { continue };
                if wanted.contains(&(setting.clone(), format!("queue {}", added.queue))) {
                    continue;
                }
                changes.push(Change {
                    interface: interface.name.clone(),
                    setting: setting.clone(),
                    from: format!("queue {}", added.queue),
                    to: NO_RULE.to_owned(),
                    now: None,
                    why: "the plan keeps that queue for it no longer".to_owned(),
                    disruption: None,
                    command: self.reader.command(&interface.name, setting, value),
                });
            }
        }
        Ok(changes)
    }

    /// A driver that is just resetting does not answer, and a plan without its answer has no rules, wanted as they are.
    fn is_unknown_what_is_wanted(&self, interface: &Interface) -> bool {
        let is_wished = (self.request.dedicated.iter())
            .any(|wish| wish.interface.as_ref().is_none_or(|name| *name == interface.name));
        let is_unknown = matches!(interface.sorting, Known::Unknown(_)) || matches!(interface.rss, Known::Unknown(_));
        is_wished && is_unknown
    }

    pub(crate) fn unmake_rule(
        &self,
        host: &Host,
        change: Change,
        journal: &mut LockedJournal,
        progress: &mut dyn FnMut(&Change),
    ) -> Result<Change, ApplyError> {
        let interface = self.still_there(host, &change)?;
        let mut remove = || {
            let ours = self.added(interface, &change.setting, journal)?;
            let saved = ours.map_or_else(|| NO_RULE.to_owned(), Added::show);
            let now = self.reader.remove_rule(&interface.name, &change.setting, &saved)?;
            self.note(interface, &change.setting, NO_RULE, journal)?;
            Ok(now)
        };
        match remove() {
            Ok(now) => {
                let change = Change { now: Some(now), ..change };
                progress(&change);
                Ok(change)
            }
            Err(cause) => Err(ApplyError::Setting { change: Box::new(change), cause }),
        }
    }

    pub(crate) fn add_rule(
        &self,
        interface: &Interface,
        change: &Change,
        journal: &mut LockedJournal,
    ) -> Result<String, SettingError> {
        self.count_rules_of_others(interface, journal)?;
        let ours = self.added(interface, &change.setting, journal)?;
        let keep = |added: Option<Added>| {
            let value = added.map_or_else(|| NO_RULE.to_owned(), Added::show);
            self.note(interface, &change.setting, &value, journal)
        };
        self.reader.add_rule(&interface.name, &change.setting, &change.to, ours, keep)
    }

    /// Notes how many rules there were before the first of ours, where sorting was off.
    fn count_rules_of_others(&self, interface: &Interface, journal: &mut LockedJournal) -> Result<(), SettingError> {
        let saved = self.found(interface, journal).map_err(|error| SettingError::Failed(error.to_string()))?;
        let was_off = (Setting::Ntuple, "off".to_owned());
        if saved.is_some_and(|saved| saved.values.iter().chain(&saved.later).any(|value| *value == was_off)) {
            let count = self.reader.ethtool.rules(&interface.name)?.taken.len();
            self.note(interface, &Setting::Ntuple, &off_with_rules(count), journal)?;
        }
        Ok(())
    }

    /// What the journal says of a rule of ours.
    fn added(
        &self,
        interface: &Interface,
        setting: &Setting,
        journal: &LockedJournal,
    ) -> Result<Option<Added>, SettingError> {
        let found = self.found(interface, journal).map_err(|error| SettingError::Failed(error.to_string()))?;
        let Some(saved) = found else { return Ok(None) };
        let of_setting = saved.values.iter().chain(&saved.later).find(|(other, _)| other == setting);
        Ok(of_setting.and_then(|(_, value)| Added::parse(value)))
    }

    /// Writes into the journal what belongs to a rule now.
    fn note(
        &self,
        interface: &Interface,
        setting: &Setting,
        value: &str,
        journal: &mut LockedJournal,
    ) -> Result<(), SettingError> {
        let fail = |error: String| SettingError::Failed(format!("it cannot be saved that this rule is ours: {error}"));
        let found = self.found(interface, journal).map_err(|error| fail(error.to_string()))?;
        let mut saved = found.ok_or_else(|| fail("nothing is saved of the interface".to_owned()))?;
        for (_, old) in saved.values.iter_mut().chain(&mut saved.later).filter(|(other, _)| other == setting) {
            value.clone_into(old);
        }
        journal.save(&saved).map_err(|error| fail(error.to_string()))
    }
}

#[cfg(test)]
#[path = "apply_rules_tests.rs"]
mod tests;
