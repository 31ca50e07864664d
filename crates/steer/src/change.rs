//! A change and its outcome: what was set, what was put back, and why either failed.

use std::fmt;

use crate::ethtool::Family;
use crate::host::ReadError;
use crate::journal::JournalError;
use crate::plan::PlanError;
use crate::setting::is_same;
use crate::setting::{Setting, SettingError};

/// One setting that was changed, or is about to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The name of the interface.
    pub interface: String,
    /// What of it is changed.
    pub setting: Setting,
    /// Its value before.
    pub from: String,
    /// The value that is wanted.
    pub to: String,
    /// Its value, read back after writing; `None` before that.
    pub now: Option<String>,
    /// Why it is wanted, in one sentence.
    pub why: String,
    /// What the change costs on this driver.
    pub disruption: Option<String>,
    /// What an administrator would type for it.
    pub command: String,
}

impl Change {
    /// A change that is not made yet.
    pub(crate) fn planned(
        interface: &str,
        setting: &Setting,
        from: String,
        to: String,
        why: String,
        command: String,
    ) -> Self {
        let (interface, setting) = (interface.to_owned(), setting.clone());
        Self { interface, setting, from, to, now: None, why, disruption: None, command }
    }

    /// False when the driver took something else than it was told.
    pub fn is_as_wanted(&self) -> bool {
        self.now.as_ref().is_none_or(|now| is_same(&self.setting, now, &self.to))
    }
}

/// What was restored and what could not be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restored {
    /// What was put back.
    pub changes: Vec<Change>,
    /// What could not be, and why. It stays saved.
    pub failures: Vec<String>,
    /// What cannot be put back because it is gone, and what was forgotten as it was asked for.
    pub notes: Vec<String>,
}

/// Why there is no plan, or why something could not be read, saved or set.
#[derive(Debug)]
#[non_exhaustive]
pub enum ApplyError {
    /// The host could not be read.
    Read(ReadError),
    /// There is no plan for it.
    Plan(PlanError),
    /// A right is missing.
    Permission(String),
    /// What was could not be saved.
    Journal(JournalError),
    /// It is unclear which interface it is.
    Unclear {
        /// The name of the interface.
        interface: String,
        /// Why it is unclear.
        cause: String,
    },
    /// A setting could not be read, so it is unknown what would change and what to go back to.
    Unreadable {
        /// The name of the interface.
        interface: String,
        /// What of it could not be read.
        setting: Setting,
        /// Why it could not be read.
        cause: SettingError,
    },
    /// Drivers refused settings that they have; everything else of the plan is set.
    Refused(Vec<(Change, SettingError)>),
    /// A setting was refused.
    Setting {
        /// What was attempted.
        change: Box<Change>,
        /// Why it failed.
        cause: SettingError,
    },
}

impl fmt::Display for ApplyError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(error) => error.fmt(formatter),
            Self::Plan(error) => error.fmt(formatter),
            Self::Permission(what) => formatter.write_str(what),
            Self::Journal(cause) => write!(formatter, "cannot save what was before: {cause}"),
            Self::Unclear { interface, cause } => {
                write!(formatter, "cannot tell which interface {interface} is: {cause}")
            }
            Self::Unreadable { interface, setting, cause } => {
                write!(formatter, "cannot read {setting} of {interface}: {cause}")
            }
            Self::Refused(refused) => {
                for (number, (Change { interface, setting, to, .. }, cause)) in refused.iter().enumerate() {
                    let before = if number == 0 { "" } else { "; " };
                    write!(formatter, "{before}cannot set {setting} of {interface} to {to}: {cause}")?;
                }
                Ok(())
            }
            Self::Setting { change, cause } => {
                let Change { interface, setting, from, to, .. } = &**change;
                write!(formatter, "cannot set {setting} of {interface} from {from} to {to}: {cause}")
            }
        }
    }
}

impl std::error::Error for ApplyError {}

/// A plan that was not applied, or not wholly.
#[derive(Debug)]
pub struct ApplyFailure {
    /// What kept it from being applied.
    pub cause: ApplyError,
    /// What was changed all the same. What it was before is saved, and [`Steering::restore`](crate::Steering::restore)
    /// puts it back.
    pub done: Vec<Change>,
}

impl ApplyFailure {
    /// What was changed, as a clause that fits behind the cause.
    pub fn so_far(&self) -> String {
        let rest =
            if matches!(self.cause, ApplyError::Refused(_)) { "everything else of the plan is set; " } else { "" };
        match self.done.len() {
            0 if rest.is_empty() => "nothing was changed".to_owned(),
            0 => format!("{rest}nothing had to be changed for that"),
            1 => format!("{rest}1 setting was changed; what it was before is saved and can be restored"),
            many => format!("{rest}{many} settings were changed; what they were before is saved and can be restored"),
        }
    }
}

impl fmt::Display for ApplyFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}; {}", self.cause, self.so_far())
    }
}

impl std::error::Error for ApplyFailure {}

impl From<ApplyError> for SettingError {
    fn from(error: ApplyError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<ReadError> for ApplyError {
    fn from(error: ReadError) -> Self {
        Self::Read(error)
    }
}

impl From<JournalError> for ApplyError {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

impl From<PlanError> for ApplyError {
    fn from(error: PlanError) -> Self {
        Self::Plan(error)
    }
}

/// Changes that a driver refused although it has the setting. That cannot be known before, and the rest of the plan is
/// good without them: so the rest is made, and they are reported at the end.
#[derive(Default)]
pub(crate) struct Refused(Vec<(Change, SettingError)>);

impl Refused {
    /// What was made; `None` where the rest goes on without it.
    pub(crate) fn made_or_refused(
        &mut self,
        outcome: Result<Change, ApplyError>,
    ) -> Result<Option<Change>, ApplyError> {
        match outcome {
            Ok(change) => Ok(Some(change)),
            Err(ApplyError::Setting { change, cause })
                if is_optional(&change.setting)
                    && matches!(cause, SettingError::NotSupported | SettingError::Failed(_)) =>
            {
                self.0.push((*change, cause));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// A table that leaves queues out is of no use where every rule that would send something there was refused.
    pub(crate) fn is_pointless(&self, change: &Change, done: &[Change]) -> bool {
        let is_rule = |other: &Change| matches!(other.setting, Setting::Rule { .. });
        let is_here = |other: &Change| other.interface == change.interface;
        let was_refused = self.0.iter().any(|(other, _)| is_here(other) && is_rule(other));
        let was_made = done.iter().any(|other| is_here(other) && is_rule(other));
        change.setting == Setting::Indirection && was_refused && !was_made
    }

    /// Some drivers forget rules, coalescing and what is hashed when their queues change, and make a table of their
    /// own: what was not refused is set once more.
    pub(crate) fn may_be_set_again(&self, change: &Change, done: &[Change]) -> bool {
        let is_it = |other: &Change| (&other.interface, &other.setting) == (&change.interface, &change.setting);
        let is_forgotten = change.setting > Setting::Rings && change.setting <= Setting::FlowHash(Family::V6);
        is_forgotten && !self.0.iter().any(|(other, _)| is_it(other)) && !self.is_pointless(change, done)
    }

    pub(crate) fn outcome(self) -> Result<(), ApplyError> {
        if self.0.is_empty() { Ok(()) } else { Err(ApplyError::Refused(self.0)) }
    }
}

/// The settings without which the rest of a plan is still good.
fn is_optional(setting: &Setting) -> bool {
    matches!(setting, Setting::Coalescing | Setting::Ntuple | Setting::Rule { .. })
}
