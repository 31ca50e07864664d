//! Makes a host what a plan wants.
//!
//! Applying goes in two steps. Queues, rings, table and hash come first, because drivers ask for new interrupts when
//! they change; then the host is read and planned anew, and interrupts are set for the queues that there are now.
//! Before the first change everything that any change could disturb is saved, and before the second step the settings
//! that the first step brought. A setting whose value is not known is not changed. A setting that is right already is
//! not written, so applying twice writes nothing the second time.

use crate::change::{ApplyError, ApplyFailure, Change, Refused};
use crate::corelist::format_core_list;
use crate::device::format_mask;
use crate::ethtool::Family;
use crate::host::{ReadError, Reader};
use crate::identity::Identity;
use crate::journal::{LockedJournal, Saved};
use crate::model::{Host, Interface, Known};
use crate::plan::{InterfacePlan, Plan, Request, Target, Wanted};
use crate::rules::{Added, NO_RULE, off_with_rules, setting_of_rule};
use crate::setting::{Setting, SettingError, is_same, on_off, show_channels, show_coalescing, show_table};

/// Plans, applies, compares and restores the settings of a host.
#[derive(Debug, Clone, Copy)]
pub struct Steering<'a> {
    /// Reads and writes the host's settings.
    pub reader: Reader<'a>,
    /// The cores that interrupts and receivers may use.
    pub allowed: &'a [usize],
    /// What is asked of the plan.
    pub request: &'a Request,
    /// Changes whose driver took another value than it was told, as [`Steering::apply`] returned them: while it has
    /// that value, the setting is as planned and is not written again.
    pub rounded: &'a [Change],
}

impl Steering<'_> {
    /// Reads the host and plans for it.
    pub fn plan(&self, interfaces: &[String]) -> Result<(Host, Plan), ApplyError> {
        // An interface that is named twice is planned once.
        let mut once: Vec<String> = Vec::new();
        for interface in interfaces {
            if !once.contains(interface) {
                once.push(interface.clone());
            }
        }
        let mut host = self.reader.read(&once)?;
        if !self.request.dedicated.is_empty() {
            self.reader.read_sorting(&mut host);
        }
        let plan = Plan::new(&host, self.allowed, self.request)?;
        Ok((host, plan))
    }

    /// What the plan would change of the host as it is now, without the interrupts of queues that do not exist yet.
    pub fn changes(&self, host: &Host, plan: &Plan) -> Result<Vec<Change>, ApplyError> {
        let mut changes = Vec::new();
        for (interface, part) in host.interfaces.iter().zip(&plan.interfaces) {
            changes.extend(self.changes_of(interface, part)?);
        }
        Ok(changes)
    }

    /// Applies the plan, and calls `progress` after each change. Returns what was changed; so does the failure.
    pub fn apply(
        &self,
        interfaces: &[String],
        journal: &mut LockedJournal,
        mut progress: impl FnMut(&Change),
    ) -> Result<Vec<Change>, ApplyFailure> {
        let mut done = Vec::new();
        match self.apply_in_two_steps(interfaces, journal, &mut done, &mut progress) {
            Ok(()) => Ok(done),
            Err(cause) => Err(ApplyFailure { cause, done }),
        }
    }

    fn apply_in_two_steps(
        &self,
        interfaces: &[String],
        journal: &mut LockedJournal,
        done: &mut Vec<Change>,
        progress: &mut dyn FnMut(&Change),
    ) -> Result<(), ApplyError> {
        let (host, plan) = self.plan(interfaces)?;
        let first = self.changes(&host, &plan)?;
        let stale = self.stale_rules(&host, &plan, journal)?;
        self.check_rights(stale.iter().chain(&first))?;
        if first.is_empty() && stale.is_empty() {
            return Ok(());
        }
        self.save(&host, &first, journal)?;
        for change in stale {
            done.push(self.apply_change(&host, change, journal, progress)?);
        }
        let is_late = |change: &Change| change.setting > Setting::FlowHash(Family::V6);
        let mut refused = Refused::default();
        for change in first.into_iter().filter(|change| !is_late(change)) {
            if !refused.is_pointless(&change, done) {
                done.extend(refused.made_or_refused(self.apply_change(&host, change, journal, progress))?);
            }
        }
        let (host, plan) = self.plan(interfaces)?;
        let is_due = |change: &Change| is_late(change) || refused.may_be_set_again(change, done);
        let late: Vec<Change> = self.changes(&host, &plan)?.into_iter().filter(is_due).collect();
        self.save(&host, &late, journal)?;
        for change in late {
            done.extend(refused.made_or_refused(self.apply_change(&host, change, journal, progress))?);
        }
        refused.outcome()
    }

    /// Notes that irqbalance is asked to leave these interrupts of an interface alone, before it is asked. Returns
    /// those that were not noted yet.
    pub fn save_ban(
        &self,
        interface: &Interface,
        interrupts: &[u32],
        journal: &mut LockedJournal,
    ) -> Result<Vec<u32>, ApplyError> {
        let (mut saved, _) = self.saved_or_snapshot(interface, journal)?;
        let new: Vec<u32> = interrupts.iter().copied().filter(|number| !saved.banned.contains(number)).collect();
        saved.banned.extend(&new);
        journal.save(&saved)?;
        Ok(new)
    }

    /// Takes back what [`Steering::save_ban`] noted, for irqbalance refused: otherwise a restore would have it balance
    /// what an administrator bans later.
    pub fn forget_ban(
        &self,
        interface: &Interface,
        interrupts: &[u32],
        journal: &mut LockedJournal,
    ) -> Result<(), ApplyError> {
        let (mut saved, _) = self.saved_or_snapshot(interface, journal)?;
        saved.banned.retain(|number| !interrupts.contains(number));
        Ok(journal.save(&saved)?)
    }

    /// Saves what these changes could disturb.
    fn save(&self, host: &Host, changes: &[Change], journal: &mut LockedJournal) -> Result<(), ApplyError> {
        for interface in &host.interfaces {
            let changes: Vec<&Change> = changes.iter().filter(|change| change.interface == interface.name).collect();
            if changes.is_empty() {
                continue;
            }
            let (before, is_new) = self.saved_or_snapshot(interface, journal)?;
            let mut saved = before.clone();
            for change in changes {
                if !saved.covers(&change.setting) {
                    let list = if is_new { &mut saved.values } else { &mut saved.later };
                    list.push((change.setting.clone(), change.from.clone()));
                }
            }
            if is_new || saved != before {
                journal.save(&saved)?;
            }
        }
        Ok(())
    }

    /// What is saved for an interface, or what is to be saved; true when it is not saved yet.
    fn saved_or_snapshot(&self, interface: &Interface, journal: &LockedJournal) -> Result<(Saved, bool), ApplyError> {
        Ok(match self.find_saved(interface, journal)? {
            Some(saved) => (saved, false),
            None => (self.snapshot(interface, self.identity(interface)?)?, true),
        })
    }

    /// What is saved for an interface.
    fn find_saved(&self, interface: &Interface, journal: &LockedJournal) -> Result<Option<Saved>, ApplyError> {
        Ok(journal.find(&self.identity(interface)?)?)
    }

    fn identity(&self, interface: &Interface) -> Result<Identity, ApplyError> {
        let unclear = |cause: String| ApplyError::Unclear { interface: interface.name.clone(), cause };
        let identity = self.reader.identity(&interface.name).map_err(|error| unclear(error.to_string()))?;
        if identity.index != interface.index {
            return Err(unclear(format!("its number was {} and is {}", interface.index, identity.index)));
        }
        Ok(identity)
    }

    fn changes_of(&self, interface: &Interface, part: &InterfacePlan) -> Result<Vec<Change>, ApplyError> {
        let mut changes = Vec::new();
        for wanted in &part.wanted {
            let Some((setting, to)) = setting_of(interface, &wanted.target) else { continue };
            let Some(from) = self.read(&interface.name, &setting)? else { continue };
            if is_same(&setting, &from, &to) || self.is_rounded(&interface.name, &setting, &from, &to) {
                continue;
            }
            changes.push(self.planned(&interface.name, &setting, from, to, wanted));
        }
        Ok(changes)
    }

    /// The change that makes a setting what the plan wants.
    pub(crate) fn planned(
        &self,
        interface: &str,
        setting: &Setting,
        from: String,
        to: String,
        wanted: &Wanted,
    ) -> Change {
        let command = self.reader.command(interface, setting, &to);
        let disruption = wanted.disruption.clone();
        Change { disruption, ..Change::planned(interface, setting, from, to, wanted.why.clone(), command) }
    }

    /// Whether the driver made this value of that one before.
    pub(crate) fn is_rounded(&self, interface: &str, setting: &Setting, from: &str, to: &str) -> bool {
        let is_it = |change: &&Change| (change.interface.as_str(), &change.setting) == (interface, setting);
        self.rounded
            .iter()
            .filter(is_it)
            .any(|change| change.to == to && change.now.as_ref().is_some_and(|now| is_same(setting, from, now)))
    }

    /// What a setting is; `None` where there is no such setting.
    fn read(&self, interface: &str, setting: &Setting) -> Result<Option<String>, ApplyError> {
        match self.reader.get(interface, setting) {
            Ok(value) => Ok(Some(value)),
            // A queue that a plan asks for is not there before the driver has been told of it.
            Err(SettingError::NotSupported | SettingError::Gone(_)) => Ok(None),
            Err(cause) => {
                let (interface, setting) = (interface.to_owned(), setting.clone());
                Err(ApplyError::Unreadable { interface, setting, cause })
            }
        }
    }

    /// Finds out what is missing before anything is changed.
    fn check_rights<'c>(&self, changes: impl Iterator<Item = &'c Change> + Clone) -> Result<(), ApplyError> {
        let asks_for_it = |change: &&Change| !matches!(change.setting, Setting::Interrupt { .. });
        if let Some(change) = changes.clone().find(asks_for_it)
            && !has_net_admin(&self.reader)
        {
            let what = format!("cannot set {} of {} without CAP_NET_ADMIN", change.setting, change.interface);
            return Err(ApplyError::Permission(what));
        }
        for change in changes {
            // Any other error may be gone when the setting is written: interrupts go with the old queues of a driver.
            if let Err(SettingError::Permission(what)) = self.reader.check_writable(&change.interface, &change.setting)
            {
                return Err(ApplyError::Permission(what));
            }
        }
        Ok(())
    }

    /// Reads everything that any change could disturb. What the driver did not tell when the host was read is left out:
    /// no plan asks for it, and a driver that never tells it must not keep the rest from being set.
    fn snapshot(&self, interface: &Interface, identity: Identity) -> Result<Saved, ApplyError> {
        let told = [
            (Setting::Channels, interface.channels.get().is_some()),
            (Setting::Rings, interface.rings.get().is_some()),
            (Setting::Coalescing, interface.coalescing.get().is_some()),
            (Setting::Ntuple, interface.sorting.get().is_some()),
            (Setting::Indirection, interface.rss.get().is_some()),
            (Setting::HashKey, interface.rss.get().is_some()),
            (Setting::FlowHash(Family::V4), interface.flow_hash_v4.get().is_some()),
            (Setting::FlowHash(Family::V6), interface.flow_hash_v6.get().is_some()),
        ];
        let mut settings: Vec<Setting> =
            told.into_iter().filter(|(_, told)| *told).map(|(setting, _)| setting).collect();
        let read = |error: std::io::Error| ApplyError::Read(ReadError::Tree(error));
        // A change of the queues can disturb any of them.
        let interrupts = self.reader.all_interrupts(&interface.name).map_err(read)?;
        settings.extend(interrupts.into_iter().map(|(number, name)| Setting::Interrupt { number, name }));
        settings.extend(interface.queues.iter().map(|queue| Setting::Rps(queue.index)));
        settings.extend(self.reader.send_queues(&interface.name).map_err(read)?.into_iter().map(Setting::Xps));
        let mut values = Vec::new();
        for setting in settings {
            if let Some(value) = self.read(&interface.name, &setting)? {
                values.push((setting, value));
            }
        }
        Ok(Saved { identity, banned: Vec::new(), values, later: Vec::new() })
    }

    fn apply_change(
        &self,
        host: &Host,
        change: Change,
        journal: &mut LockedJournal,
        progress: &mut dyn FnMut(&Change),
    ) -> Result<Change, ApplyError> {
        let interface = self.still_there(host, &change)?;
        let outcome = match change.setting {
            Setting::Rule { .. } if change.to == NO_RULE => self.remove_rule(interface, &change.setting, journal),
            Setting::Rule { .. } => self.add_rule(interface, &change, journal),
            _ => self.reader.set(&change.interface, &change.setting, &change.to),
        };
        match outcome {
            Ok(now) => {
                let change = Change { now: Some(now), ..change };
                progress(&change);
                Ok(change)
            }
            Err(cause) => Err(ApplyError::Setting { change: Box::new(change), cause }),
        }
    }

    /// The interface of a change, when it is still the one that was planned for. Otherwise applying ends,
    /// because its settings would be written to another card.
    fn still_there<'h>(&self, host: &'h Host, change: &Change) -> Result<&'h Interface, ApplyError> {
        let planned = host.interfaces.iter().find(|interface| interface.name == change.interface);
        planned.filter(|planned| self.reader.is_still(&planned.name, planned.index)).ok_or_else(|| {
            let cause = "the one that was planned for is gone or has another name by now".to_owned();
            ApplyError::Unclear { interface: change.interface.clone(), cause }
        })
    }
}

/// The setting behind a target, and its value as a text. `None` for an interrupt or a queue that is not there (yet).
pub(crate) fn setting_of(interface: &Interface, target: &Target) -> Option<(Setting, String)> {
    Some(match target {
        Target::Channels(channels) => (Setting::Channels, show_channels(channels)),
        Target::Ring(rings) => (Setting::Rings, format!("{} {}", rings.rx, rings.tx)),
        Target::Coalescing(coalescing) => (Setting::Coalescing, show_coalescing(coalescing)),
        Target::Ntuple(on) => (Setting::Ntuple, on_off(*on).to_owned()),
        Target::Rule(rule) => setting_of_rule(rule),
        Target::Indirection(table) => (Setting::Indirection, show_table(table)),
        Target::FlowHash(family, hash) => (Setting::FlowHash(*family), hash.letters()),
        Target::Interrupt { queue, cores } => {
            let interrupt = interface.queues.get(*queue)?.interrupt.get()?;
            let setting = Setting::Interrupt { number: interrupt.number, name: interrupt.name.clone() };
            (setting, format_core_list(cores))
        }
        Target::Rps { queue, cores } => {
            interface.queues.get(*queue)?;
            (Setting::Rps(*queue), format_mask(cores))
        }
        Target::Xps { queue, cores } => (Setting::Xps(*queue), format_mask(cores)),
    })
}

/// `CAP_NET_ADMIN` among the effective capabilities of this process, as procfs shows them.
fn has_net_admin(reader: &Reader<'_>) -> bool {
    const NET_ADMIN: u32 = 12; // CAP_NET_ADMIN
    let status = std::fs::read_to_string(reader.proc_root.join("self/status")).unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    // Where procfs does not tell, the driver will.
    effective.is_none_or(|mask| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & (1 << NET_ADMIN) != 0))
}

// Rules of ours in the table of a device. Only the journal says which rules are ours: before a rule is added it says
// so, with the place where the rule will be when we choose that, and after it was added with the place where it is. So
// after a crash at any moment the journal names every rule of ours, and no other.

impl Steering<'_> {
    /// Rules of ours that the plan no longer wants. They go first, because the kernel takes away no queue that a rule
    /// names.
    fn stale_rules(&self, host: &Host, plan: &Plan, journal: &LockedJournal) -> Result<Vec<Change>, ApplyError> {
        let mut changes = Vec::new();
        for (interface, part) in host.interfaces.iter().zip(&plan.interfaces) {
            if self.is_unknown_what_is_wanted(interface) {
                continue;
            }
            let wanted: Vec<(Setting, String)> = (part.wanted.iter())
                .filter_map(|wanted| if let Target::Rule(rule) = &wanted.target { Some(rule) } else { None })
                .map(setting_of_rule)
                .collect();
            let Some(saved) = self.find_saved(interface, journal)? else { continue };
            for (setting, value) in saved.all() {
                let Some(added) = Added::parse(value) else { continue };
                if wanted.contains(&(setting.clone(), format!("queue {}", added.queue))) {
                    continue;
                }
                let command = self.reader.command(&interface.name, setting, value);
                let (from, why) = (format!("queue {}", added.queue), "the plan keeps that queue for it no longer");
                let (to, why) = (NO_RULE.to_owned(), why.to_owned());
                changes.push(Change::planned(&interface.name, setting, from, to, why, command));
            }
        }
        Ok(changes)
    }

    /// True when rules are asked for and the driver does not answer, as one that is resetting: then the plan has no
    /// rules, although they are wanted.
    fn is_unknown_what_is_wanted(&self, interface: &Interface) -> bool {
        let is_asked = self.request.dedicated.iter().any(|asked| asked.is_for(&interface.name));
        let is_unknown = matches!(interface.sorting, Known::Unknown(_)) || matches!(interface.rss, Known::Unknown(_));
        is_asked && is_unknown
    }

    fn remove_rule(
        &self,
        interface: &Interface,
        setting: &Setting,
        journal: &mut LockedJournal,
    ) -> Result<String, SettingError> {
        let ours = self.rule_in_journal(interface, setting, journal)?;
        let saved = ours.map_or_else(|| NO_RULE.to_owned(), Added::show);
        let now = self.reader.remove_rule(&interface.name, setting, &saved)?;
        self.write_to_journal(interface, setting, NO_RULE, journal)?;
        Ok(now)
    }

    fn add_rule(
        &self,
        interface: &Interface,
        change: &Change,
        journal: &mut LockedJournal,
    ) -> Result<String, SettingError> {
        self.count_rules_of_others(interface, journal)?;
        let ours = self.rule_in_journal(interface, &change.setting, journal)?;
        let note = |added: Option<Added>| {
            let value = added.map_or_else(|| NO_RULE.to_owned(), Added::show);
            self.write_to_journal(interface, &change.setting, &value, journal)
        };
        self.reader.add_rule(&interface.name, &change.setting, &change.to, ours, note)
    }

    /// Notes how many rules there were before the first of ours, where sorting was off.
    fn count_rules_of_others(&self, interface: &Interface, journal: &mut LockedJournal) -> Result<(), SettingError> {
        let was_off = (Setting::Ntuple, "off".to_owned());
        if self.find_saved(interface, journal)?.is_some_and(|saved| saved.all().any(|value| *value == was_off)) {
            let count = self.reader.ethtool.rules(&interface.name)?.taken.len();
            self.write_to_journal(interface, &Setting::Ntuple, &off_with_rules(count), journal)?;
        }
        Ok(())
    }

    /// What the journal says of a rule of ours.
    fn rule_in_journal(
        &self,
        interface: &Interface,
        setting: &Setting,
        journal: &LockedJournal,
    ) -> Result<Option<Added>, SettingError> {
        let Some(saved) = self.find_saved(interface, journal)? else { return Ok(None) };
        let of_setting = saved.all().find(|(other, _)| other == setting);
        Ok(of_setting.and_then(|(_, value)| Added::parse(value)))
    }

    /// Writes into the journal what is known of a rule of ours now.
    fn write_to_journal(
        &self,
        interface: &Interface,
        setting: &Setting,
        value: &str,
        journal: &mut LockedJournal,
    ) -> Result<(), SettingError> {
        let fail = |error: String| SettingError::Failed(format!("it cannot be saved that this rule is ours: {error}"));
        let found = self.find_saved(interface, journal).map_err(|error| fail(error.to_string()))?;
        let mut saved = found.ok_or_else(|| fail("nothing is saved of the interface".to_owned()))?;
        for (_, old) in saved.values.iter_mut().chain(&mut saved.later).filter(|(other, _)| other == setting) {
            value.clone_into(old);
        }
        journal.save(&saved).map_err(|error| fail(error.to_string()))
    }
}

#[cfg(test)]
#[path = "apply_tests.rs"]
mod tests;
