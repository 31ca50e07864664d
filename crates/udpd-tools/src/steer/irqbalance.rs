//! irqbalance, which is asked to leave the planned interrupts alone, and to have them again. What it is asked is noted
//! in the journal before, so a restore takes it back even after a crash.

use std::io::Write;
use std::path::Path;

use steer::model::Queue;
use steer::{Irqbalance, IrqbalanceError, LockedJournal, Presence, Steering};

use super::task::Task;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::console;

/// Has irqbalance leave the planned interrupts alone, or says that it will not.
pub(super) fn keep_off(
    steering: &Steering<'_>,
    interfaces: &[String],
    journal: &mut LockedJournal,
    task: &Task<'_>,
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

/// Lets irqbalance have what was kept from it. One that has ended has forgotten it by itself.
pub(super) fn let_have(interrupts: &[u32]) -> Result<(), String> {
    match Irqbalance::find(Path::new("/")) {
        Presence::Runs(irqbalance) => irqbalance.unban(interrupts).map(drop).map_err(|error| error.to_string()),
        Presence::Absent => Ok(()),
        Presence::Unknown(why) => Err(format!(
            "cannot let irqbalance have the interrupts {interrupts:?} again: whether it runs is unknown: {why}"
        )),
    }
}
