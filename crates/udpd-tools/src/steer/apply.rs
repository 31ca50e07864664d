//! `udpd steer apply`: makes the host what the plan wants, keeps irqbalance off, and says what was not taken.

use std::io::Write;

use steer::{ApplyError, Change, Journal, Steering};

use super::journal::{PATIENCE, not_kept, wait_for};
use super::look::NOTHING_TO_CHANGE;
use super::task::Task;
use super::{irqbalance, report, verdict};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::console;

/// What an apply has made, and what it could not make.
pub(super) struct Applied {
    pub done: Vec<Change>,
    pub failure: Result<(), Failure>,
}

impl Applied {
    /// What a driver made something else of.
    pub(super) fn rounded(&self) -> impl Iterator<Item = &Change> {
        self.done.iter().filter(|change| !change.is_as_wanted())
    }

    /// How the command ends: all of it has to be as it was wanted.
    pub(super) fn outcome(self) -> Result<(), Failure> {
        let rounded: Vec<Failure> = self.rounded().map(verdict::not_as_wanted).collect();
        let all = verdict::all_of(self.failure.err().into_iter().chain(rounded));
        // The rest is set, whatever this is.
        all.map_err(|failure| Failure { code: ExitCode::Partial, ..failure })
    }
}

/// Applies the plan and tells of each change. An error where nothing can be said to be as planned afterwards.
pub(super) fn apply(
    steering: &Steering<'_>,
    interfaces: &[String],
    journal: &Journal,
    task: &Task<'_>,
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
                    report::print(out, &report::changes(&failure.done))?;
                }
                return Err(told);
            }
            (failure.done, Some(told))
        }
    };
    let banned = irqbalance::keep_off(steering, interfaces, &mut journal, task, out);
    said?;
    if task.json {
        report::print(out, &report::changes(&done))?;
    } else if done.is_empty() && refused.is_none() {
        console::print(out, &format!("{NOTHING_TO_CHANGE}\n"))?;
    }
    Ok(Applied { done, failure: verdict::all_of(refused.into_iter().chain(banned.err())) })
}
