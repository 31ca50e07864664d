//! Rules by which a device sorts, as settings: found by what they compare, added, and removed again.
//!
//! Several programs may add rules to the table of a device. A rule is ours only if the table had none for the same
//! datagrams before, and the journal has the place of ours. A rule at another place, or one that compares anything
//! else, is never touched.

use std::net::IpAddr;

use crate::ethtool::{Family, Rule, command};
use crate::host::Reader;
use crate::setting::{Setting, SettingError};

/// There is no such rule.
pub(crate) const NO_RULE: &str = "none";

/// What the journal says of a rule that was not there: "none; added queue 7", and " at 1021" once its place is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Added {
    pub(crate) queue: u32,
    pub(crate) place: Option<u32>,
}

impl Added {
    /// Where the rule that was added is among these. What is at another place or sends elsewhere is not it.
    fn find(self, rules: &[(u32, Rule)]) -> Option<u32> {
        let is_it =
            |(place, rule): &&(u32, Rule)| rule.queue == self.queue && self.place.is_none_or(|ours| ours == *place);
        rules.iter().find(is_it).map(|(place, _)| *place)
    }

    pub(crate) fn show(self) -> String {
        format!("{NO_RULE}; added {}", self.show_rule())
    }

    /// The rule as it is in the device.
    pub(crate) fn show_rule(self) -> String {
        let place = self.place.map_or(String::new(), |place| format!(" at {place}"));
        format!("queue {}{place}", self.queue)
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix(NO_RULE)?.strip_prefix("; added ")?;
        let queue = queue_of(text)?;
        let place = text.split_once(" at ").map(|(_, place)| place.parse()).transpose().ok()?;
        Some(Self { queue, place })
    }
}

/// The text in the journal for sorting that was off although others had rules: some drivers keep rules while it is off.
pub(crate) fn off_with_rules(count: usize) -> String {
    format!("off; rules of others {count}")
}

/// How many rules others had when sorting was off; 0 where the journal does not say.
pub(crate) fn rules_while_off(saved: &str) -> usize {
    saved.strip_prefix("off; rules of others ").and_then(|count| count.parse().ok()).unwrap_or_default()
}

/// What a setting was, without what the journal says besides.
pub(crate) fn value_saved<'s>(setting: &Setting, saved: &'s str) -> &'s str {
    match setting {
        Setting::Rule { .. } | Setting::Ntuple => saved.split(';').next().unwrap_or_default(),
        _ => saved,
    }
}

/// The queue of "queue 7" or "queue 7 at 1021".
fn queue_of(value: &str) -> Option<u32> {
    value.strip_prefix("queue ")?.split(' ').next()?.parse().ok()
}

/// The rule of a setting with its value.
fn rule_of(setting: &Setting, queue: u32) -> Option<Rule> {
    let Setting::Rule { family, destination, port } = setting else { return None };
    Some(Rule { family: *family, destination: *destination, port: *port, queue })
}

/// The setting of a rule, and its value.
pub(crate) fn setting_of_rule(rule: &Rule) -> (Setting, String) {
    let (family, destination, port): (Family, Option<IpAddr>, u16) = (rule.family, rule.destination, rule.port);
    (Setting::Rule { family, destination, port }, format!("queue {}", rule.queue))
}

impl Reader<'_> {
    /// The rules for the datagrams of a setting, by place.
    fn rules_about(&self, interface: &str, setting: &Setting) -> Result<Vec<(u32, Rule)>, SettingError> {
        let rules = self.ethtool.rules(interface)?.taken.into_iter();
        let about = |rule: &Rule| rule_of(setting, 0).is_some_and(|ours| ours.is_about_the_same(rule));
        Ok(rules.filter_map(|(place, rule)| Some((place, rule.filter(about)?))).collect())
    }

    /// Where these datagrams are sent: by the rule at the lowest place, which devices obey first.
    pub(crate) fn rule(&self, interface: &str, setting: &Setting) -> Result<String, SettingError> {
        let rules = self.rules_about(interface, setting)?;
        let shown = |(place, rule): &(u32, Rule)| Added { queue: rule.queue, place: Some(*place) }.show_rule();
        Ok(rules.first().map_or(NO_RULE.to_owned(), shown))
    }

    /// Adds a rule, and calls `note` with where it will be before and where it is after. A rule of ours that sends the
    /// same datagrams elsewhere is replaced; a rule of others is not. `note` is also called when none is ours any more.
    pub(crate) fn add_rule(
        &self,
        interface: &str,
        setting: &Setting,
        value: &str,
        ours: Option<Added>,
        mut note: impl FnMut(Option<Added>) -> Result<(), SettingError>,
    ) -> Result<String, SettingError> {
        let rule = queue_of(value).and_then(|queue| rule_of(setting, queue));
        let rule = rule.ok_or_else(|| SettingError::Failed(format!("{value:?} is not a value of {setting}")))?;
        let others = self.rules_about(interface, setting)?;
        let old = ours.and_then(|ours| ours.find(&others));
        if let Some((place, other)) = others.iter().find(|(place, _)| Some(*place) != old) {
            return Err(SettingError::Failed(format!(
                "the rule at place {place} sends them to queue {} already, and it is not ours; `{}` removes it",
                other.queue,
                command::delete_rule(interface, *place)
            )));
        }
        if let Some(place) = old {
            self.ethtool.delete_rule(interface, place)?;
            note(None)?;
        }
        let rules = self.ethtool.rules(interface)?;
        let place = if rules.driver_chooses { None } else { rules.last_free_place() };
        if place.is_none() && !rules.driver_chooses {
            return Err(SettingError::Failed(format!("all {} places for rules are taken", rules.taken.len())));
        }
        note(Some(Added { queue: rule.queue, place }))?;
        let place = match self.ethtool.insert_rule(interface, &rule, place) {
            Ok(place) => place,
            Err(error) => {
                // An equal rule that another program adds there later is not ours.
                note(None)?;
                return Err(error.into());
            }
        };
        let added = Added { queue: rule.queue, place: Some(place) };
        note(Some(added))?;
        if added.find(&self.rules_about(interface, setting)?).is_none() {
            // It could not be found again. As long as it is there, the journal names it.
            self.ethtool.delete_rule(interface, place)?;
            note(None)?;
            return Err(SettingError::Failed("the driver shows the rule as another one".to_owned()));
        }
        self.rule(interface, setting)
    }

    /// The rule that we added, with its place; `None` when it is gone.
    pub(crate) fn added_rule(
        &self,
        interface: &str,
        setting: &Setting,
        ours: Added,
    ) -> Result<Option<Added>, SettingError> {
        let place = ours.find(&self.rules_about(interface, setting)?);
        Ok(place.map(|place| Added { place: Some(place), ..ours }))
    }

    /// Removes the rule that we added, and returns [`NO_RULE`]: the other rules are not ours.
    pub(crate) fn remove_rule(&self, interface: &str, setting: &Setting, saved: &str) -> Result<String, SettingError> {
        let Some(ours) = Added::parse(saved) else { return Ok(saved.to_owned()) };
        if let Some(place) = ours.find(&self.rules_about(interface, setting)?) {
            self.ethtool.delete_rule(interface, place)?;
        }
        Ok(NO_RULE.to_owned())
    }

    /// The command that adds a rule or removes ours by hand.
    pub(crate) fn rule_command(&self, interface: &str, setting: &Setting, value: &str) -> Option<String> {
        if let Some(rule) = queue_of(value).and_then(|queue| rule_of(setting, queue)) {
            return Some(command::insert_rule(interface, &rule));
        }
        let place = Added::parse(value).and_then(|added| added.place);
        let place = place.or_else(|| Some(self.rules_about(interface, setting).ok()?.first()?.0))?;
        Some(command::delete_rule(interface, place))
    }
}
