//! `udpd steer`: from the NIC's queue to the socket, looked at, planned, applied and taken back. The work is the crate
//! `steer`'s; here it is given the configuration, the running kernel, and a way to say what it did.

mod report;
mod verdict;

use std::io::Write;
use std::path::{Path, PathBuf};

use steer::{ApplyError, Export, Irqbalance, Journal, Presence, Rivals, Steering};

use crate::config::Steer;
use crate::exit::{ExitCode, Failure};
use crate::os::console;
use crate::plan::advice;
use crate::plan::interfaces::Kernel;

/// What was before the first apply, until it is restored; goes with a reboot, as the settings do.
pub const STATE_FOLDER: &str = "/run/udpd/steer";

/// Less than "as planned": what a plan cannot set may differ, and what nobody can read is unknown.
const NOTHING_TO_CHANGE: &str = "nothing to change: all that the plan sets is so already";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Compare the host with the plan.
    Status,
    /// Show the plan and what it would change.
    Plan,
    /// Print the plan as a file for others to set it.
    Export(Export),
    Apply,
    Restore,
}

/// How it was asked for.
#[derive(Debug)]
pub struct Task<'a> {
    pub action: Action,
    /// The interfaces; those of the configuration when none is named.
    pub interfaces: Vec<String>,
    pub wish: &'a Steer,
    pub state_folder: PathBuf,
    pub json: bool,
}

pub fn execute(task: &Task<'_>, out: &mut dyn Write) -> Result<(), Failure> {
    let kernel = Kernel::open()?;
    let steering = kernel.steering(&task.wish.request);
    let journal = Journal::in_folder(&task.state_folder);
    let interfaces = match &task.interfaces {
        named if !named.is_empty() => named.clone(),
        _ if !task.wish.interfaces.is_empty() || task.action == Action::Restore => task.wish.interfaces.clone(),
        _ => {
            let physical = steering.reader.physical_interfaces();
            let physical = physical.map_or_else(|error| format!("unknown: {error}"), |names| names.join(", "));
            let message = format!(
                "no interface: name one on the command line or in [steer] interfaces; those with a device are \
                 {physical}"
            );
            return Err(Failure::new(ExitCode::Usage, message));
        }
    };
    match task.action {
        Action::Plan => plan(&steering, &interfaces, task, out),
        Action::Export(form) => export(&steering, &interfaces, form, task, out),
        Action::Status => status(&steering, &interfaces, task, out),
        Action::Apply => apply(&steering, &interfaces, &journal, task, out),
        Action::Restore => restore(&steering, &task.interfaces, &journal, task.json, out),
    }
}

fn plan(steering: &Steering<'_>, interfaces: &[String], task: &Task<'_>, out: &mut dyn Write) -> Result<(), Failure> {
    let (host, plan) = steering.plan(interfaces).map_err(|error| task.failure(error))?;
    let plan = advice::name_keys(plan);
    let changes = steering.changes(&host, &plan).map_err(|error| task.failure(error))?;
    let comparison = steering.compare(&host, &plan, &Rivals::find(Path::new("/")));
    let ban = task.wish.ban_irqbalance;
    if task.json {
        return print_json(out, &report::plan(&plan, &changes, &comparison, ban));
    }
    let mut text = plan.to_string();
    text.push_str(&report::list(&changes, NOTHING_TO_CHANGE, "would change"));
    text.push_str(&verdict::besides(&comparison, ban));
    console::print(out, &text)
}

fn export(
    steering: &Steering<'_>,
    interfaces: &[String],
    form: Export,
    task: &Task<'_>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let (host, plan) = steering.plan(interfaces).map_err(|error| task.failure(error))?;
    let text = steering.export(&host, &plan, form);
    console::print(out, &text.map_err(|error| Failure::new(ExitCode::Failure, error.to_string()))?)
}

fn status(steering: &Steering<'_>, interfaces: &[String], task: &Task<'_>, out: &mut dyn Write) -> Result<(), Failure> {
    let (host, plan) = steering.plan(interfaces).map_err(|error| task.failure(error))?;
    let (plan, ban) = (advice::name_keys(plan), task.wish.ban_irqbalance);
    let comparison = steering.compare(&host, &plan, &Rivals::find(Path::new("/")));
    if task.json {
        print_json(out, &report::status(&host, &plan, &comparison, ban))?;
    } else {
        let text = report::queues(&host, &plan) + &verdict::text(&comparison, ban);
        console::print(out, &text)?;
    }
    verdict::outcome(&comparison, interfaces)
}

fn apply(
    steering: &Steering<'_>,
    interfaces: &[String],
    journal: &Journal,
    task: &Task<'_>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let mut said = Ok(());
    let changes = steering
        .apply(interfaces, journal, |change| {
            if !task.json && said.is_ok() {
                said = console::print(out, &report::line(change));
            }
        })
        .map_err(|error| task.failure(error))?;
    said?;
    let banned = keep_irqbalance_off(steering, interfaces, task, out);
    if task.json {
        print_json(out, &report::changes(&changes))?;
    } else if changes.is_empty() {
        console::print(out, &format!("{NOTHING_TO_CHANGE}\n"))?;
    }
    if let Some(change) = changes.iter().find(|change| !change.is_as_wanted()) {
        let message = format!(
            "set {} of {} to {}, but the driver took {}; write that value, or \"keep\"",
            change.setting,
            change.interface,
            change.to,
            change.now.as_deref().unwrap_or("nothing")
        );
        return Err(Failure::new(ExitCode::Failure, message));
    }
    banned
}

/// Has irqbalance leave the planned interrupts alone, or says that it will not.
fn keep_irqbalance_off(
    steering: &Steering<'_>,
    interfaces: &[String],
    task: &Task<'_>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let irqbalance = match Irqbalance::find(Path::new("/")) {
        Presence::Runs(irqbalance) => irqbalance,
        Presence::Absent => return Ok(()),
        Presence::Unknown(why) if task.wish.ban_irqbalance => {
            let message =
                format!("cannot ask irqbalance to leave the interrupts alone: whether it runs is unknown: {why}");
            return Err(Failure::new(ExitCode::Failure, message));
        }
        Presence::Unknown(_) => return Ok(()),
    };
    let (host, _) = steering.plan(interfaces).map_err(|error| task.failure(error))?;
    let queues = host.interfaces.iter().flat_map(|interface| &interface.queues);
    let numbers: Vec<u32> = queues.filter_map(|queue| Some(queue.interrupt.get()?.number)).collect();
    if !task.wish.ban_irqbalance {
        let warning = format!(
            "note: irqbalance runs (process {}) and will move these interrupts again: set irqbalance = \"ban\" in \
             [steer]\n",
            irqbalance.pid()
        );
        return if task.json { Ok(()) } else { console::print(out, &warning) };
    }
    irqbalance.ban(&numbers).map(drop).map_err(|error| Failure::new(ExitCode::Failure, error.to_string()))
}

fn restore(
    steering: &Steering<'_>,
    interfaces: &[String],
    journal: &Journal,
    json: bool,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let mut said = Ok(());
    let restored = steering
        .restore(interfaces, journal, |change| {
            if !json && said.is_ok() {
                said = console::print(out, &report::line(change));
            }
        })
        .map_err(|error| {
            Failure::new(ExitCode::Failure, format!("cannot read {}: {error}", journal.folder().display()))
        })?;
    said?;
    if json {
        print_json(out, &report::restored(&restored))?;
    } else if restored.changes.is_empty() && restored.failures.is_empty() {
        console::print(out, "everything is as saved: changed nothing\n")?;
    }
    match restored.failures.as_slice() {
        [] => Ok(()),
        failures => {
            let failures = failures.join("\n  ");
            let cure = "what was saved stays; run `udpd steer restore` again when the cause is gone";
            let message = format!("{failures}\n  {cure}");
            Err(Failure::new(ExitCode::Failure, message))
        }
    }
}

fn print_json(out: &mut dyn Write, value: &serde_json::Value) -> Result<(), Failure> {
    console::print(out, &(serde_json::to_string_pretty(value).unwrap_or_default() + "\n"))
}

impl Task<'_> {
    fn failure(&self, error: ApplyError) -> Failure {
        let code = match &error {
            ApplyError::Read(steer::ReadError::NoInterface { .. }) => ExitCode::Unavailable,
            ApplyError::Read(_) if self.action == Action::Status => ExitCode::Unknown,
            ApplyError::Plan(_) => ExitCode::Configuration,
            ApplyError::Permission(_) => ExitCode::Permission,
            ApplyError::Setting { cause: steer::SettingError::Permission(_), .. } => ExitCode::Permission,
            ApplyError::Journal(error) if error.kind() == std::io::ErrorKind::PermissionDenied => ExitCode::Permission,
            ApplyError::Journal(_) => ExitCode::Disk,
            _ => ExitCode::Failure,
        };
        Failure::new(code, advice::of_error(&error, !self.interfaces.is_empty()))
    }
}
