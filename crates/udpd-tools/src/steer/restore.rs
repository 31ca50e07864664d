//! `udpd steer restore`: puts everything back as it was saved, and says what could not be.

use std::io::Write;

use steer::{Journal, RestoreOptions, Restored, Steering};

use super::journal::{PATIENCE, not_kept, wait_for};
use super::task::Task;
use super::{irqbalance, report};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::console;

pub(super) fn restore(
    steering: &Steering<'_>,
    journal: &Journal,
    task: &Task<'_>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let locked = journal.lock_if_any("udpd steer restore", PATIENCE, |holder| wait_for(holder, task, out));
    let restored = match locked.map_err(|error| not_kept(&error))? {
        None => Restored::default(),
        Some(mut journal) => {
            let mut said = Ok(());
            let wish =
                RestoreOptions { interfaces: &task.interfaces, forget: task.forget, unban: &mut irqbalance::let_have };
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
        report::print(out, &report::restored(&restored))?;
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
