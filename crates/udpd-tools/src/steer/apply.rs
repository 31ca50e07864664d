//! `udpd steer apply` makes the host what the plan wants, keeps irqbalance off, and says what was not taken; `restore`
//! puts everything back as it was saved. What irqbalance is asked is noted in the journal before, so a restore takes it
//! back even after a crash.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::Duration;

use steer::model::Queue;
use steer::{
    ApplyError, Change, Irqbalance, IrqbalanceError, Journal, JournalError, LockedJournal, Presence, RestoreOptions,
    Restored, Steering,
};

use super::report::{self, NOTHING_TO_CHANGE, all_of, not_as_wanted};
use super::task::{SteerTask, code_of};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::console;

/// What an apply has changed, and what failed.
pub(super) struct Applied {
    pub done: Vec<Change>,
    pub failure: Result<(), Failure>,
}

impl Applied {
    /// The values that a driver changed.
    pub(super) fn rounded(&self) -> impl Iterator<Item = &Change> {
        self.done.iter().filter(|change| !change.is_as_wanted())
    }

    /// How the command ends: all of it has to be as it was wanted.
    pub(super) fn outcome(self) -> Result<(), Failure> {
        let rounded: Vec<Failure> = self.rounded().map(not_as_wanted).collect();
        let all = all_of(self.failure.err().into_iter().chain(rounded));
        // The rest is set, whatever this is.
        all.map_err(|failure| Failure { code: ExitCode::Partial, ..failure })
    }
}

/// Applies the plan and tells of each change. An error where nothing can be said to be as planned afterwards.
pub(super) fn apply(
    steering: &Steering<'_>,
    interfaces: &[String],
    journal: &Journal,
    task: &SteerTask<'_>,
    out: &mut dyn Write,
) -> Result<Applied, Failure> {
    let locked = journal.lock("udpd steer apply", PATIENCE, |holder| wait_for(holder, task, out));
    let mut journal = locked.map_err(|error| not_kept(&error))?;
    let mut said = Ok(());
    let outcome = steering.apply(interfaces, &mut journal, |change| {
        if !task.json && said.is_ok() {
            said = console::print(out, &report::line(change));
        }
    });
    let (done, refused) = match outcome {
        Ok(done) => (done, None),
        Err(failure) => {
            let told = task.apply_failure(&failure);
            // Everything else of the plan is set, and is to be kept from irqbalance all the same.
            if !matches!(failure.cause, ApplyError::Refused(_)) {
                if task.json {
                    report::print(out, &report::changes_json(&failure.done))?;
                }
                return Err(told);
            }
            (failure.done, Some(told))
        }
    };
    let banned = keep_off(steering, interfaces, &mut journal, task, out);
    said?;
    if task.json {
        report::print(out, &report::changes_json(&done))?;
    } else if done.is_empty() && refused.is_none() {
        console::print(out, &format!("{NOTHING_TO_CHANGE}\n"))?;
    }
    Ok(Applied { done, failure: all_of(refused.into_iter().chain(banned.err())) })
}

pub(super) fn restore(
    steering: &Steering<'_>,
    journal: &Journal,
    task: &SteerTask<'_>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let locked = journal.lock_if_any("udpd steer restore", PATIENCE, |holder| wait_for(holder, task, out));
    let restored = match locked.map_err(|error| not_kept(&error))? {
        None => Restored::default(),
        Some(mut journal) => {
            let mut said = Ok(());
            let wish = RestoreOptions { interfaces: &task.interfaces, forget: task.forget, unban: &mut let_have };
            let restored = steering.restore(wish, &mut journal, |change| {
                if !task.json && said.is_ok() {
                    said = console::print(out, &report::line(change));
                }
            });
            said?;
            restored.map_err(|error| not_kept(&error))?
        }
    };
    if task.json {
        report::print(out, &report::restored_json(&restored))?;
    } else {
        let notes: String = restored.notes.iter().map(|note| format!("note: {note}\n")).collect();
        console::print(out, &notes)?;
        if restored == Restored::default() {
            console::print(out, "everything is as saved: changed nothing\n")?;
        }
    }
    match restored.failures.as_slice() {
        [] => Ok(()),
        failures => {
            let failures = failures.join("\n  ");
            let cure = "run `udpd steer restore` again when the cause is gone; `udpd steer restore IFACE --forget` \
                        gives up what cannot be restored of IFACE";
            Err(Failure::new(ExitCode::Failure, format!("{failures}\n  {cure}")))
        }
    }
}

/// What was before the first apply, until it is restored; goes with a reboot, as the settings do. It is root's and no
/// service's: what the service user may write, root must not believe.
pub const STATE_FOLDER: &str = "/run/udpd-steer";

/// How long another `apply` or `restore` may take before it is named and waited for no longer.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn wait_for(holder: &str, task: &SteerTask<'_>, out: &mut dyn Write) {
    if !task.json {
        // It waits also where this line cannot be printed.
        let _ = console::print(out, &format!("waiting for {holder}\n"));
    }
}

/// The failure of a journal that cannot be written or read.
pub(super) fn not_kept(error: &JournalError) -> Failure {
    let cure = match error {
        JournalError::Io { cause, .. } if cause.kind() == ErrorKind::PermissionDenied => "; root is needed",
        JournalError::Io { .. } => "",
        JournalError::Busy(_) => "; run it again when that process has ended",
        _ => "; look who made it, remove it and run it again",
    };
    Failure::new(code_of(error), format!("{error}{cure}"))
}

/// Asks irqbalance to leave the planned interrupts alone, or says that it will move them.
pub(super) fn keep_off(
    steering: &Steering<'_>,
    interfaces: &[String],
    journal: &mut LockedJournal,
    task: &SteerTask<'_>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let irqbalance = match Irqbalance::find(Path::new("/")) {
        Presence::Runs(irqbalance) => irqbalance,
        Presence::Absent => return Ok(()),
        Presence::Unknown(why) if task.wish.ban_irqbalance => {
            // What the plan sets is set; `status` ends with 4 until this is known.
            let warning = format!(
                "warning: cannot ask irqbalance to leave the interrupts alone: whether it runs is unknown: {why}\n"
            );
            return if task.json { Ok(()) } else { console::print(out, &warning) };
        }
        Presence::Unknown(_) => return Ok(()),
    };
    let (host, _) = steering.plan(interfaces).map_err(|error| task.failure(&error))?;
    if !task.wish.ban_irqbalance {
        let warning = format!(
            "note: irqbalance runs (process {}) and will move these interrupts again: set irqbalance = \"ban\" in \
             [steer]\n",
            irqbalance.pid()
        );
        return if task.json { Ok(()) } else { console::print(out, &warning) };
    }
    let (mut all, mut noted) = (Vec::new(), Vec::new());
    let mut ban = || {
        for interface in &host.interfaces {
            let number = |queue: &Queue| queue.interrupt.get().map(|interrupt| interrupt.number);
            let numbers: Vec<u32> = interface.queues.iter().filter_map(number).collect();
            // Saved before it is asked, so that a restore undoes it even after a crash, and undoes nothing of others.
            let new = irqbalance.balances(&numbers).map_err(|error| refused(&error))?;
            if !new.is_empty() {
                let new = steering.save_ban(interface, &new, journal).map_err(|error| task.failure(&error))?;
                noted.push((interface, new));
            }
            all.extend(numbers);
        }
        irqbalance.ban(&all).map(drop).map_err(|error| refused(&error))
    };
    let banned = ban();
    if banned.is_err() {
        for (interface, new) in noted {
            // One that did the half of it is still to be told at the restore.
            let refused = irqbalance.balances(&new).unwrap_or(new);
            steering.forget_ban(interface, &refused, journal).map_err(|error| task.failure(&error))?;
        }
    }
    banned
}

fn refused(error: &IrqbalanceError) -> Failure {
    Failure::new(ExitCode::Failure, error.to_string())
}

/// Gives interrupts back to irqbalance. One that was restarted has forgotten the ban.
pub(super) fn let_have(interrupts: &[u32]) -> Result<(), String> {
    match Irqbalance::find(Path::new("/")) {
        Presence::Runs(irqbalance) => irqbalance.unban(interrupts).map(drop).map_err(|error| error.to_string()),
        Presence::Absent => Ok(()),
        Presence::Unknown(why) => Err(format!(
            "cannot let irqbalance have the interrupts {interrupts:?} again: whether it runs is unknown: {why}"
        )),
    }
}
