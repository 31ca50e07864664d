//! `udpd steer`: from the NIC's queue to the socket, looked at, planned, applied and taken back. The work is the crate
//! `steer`'s; here it is given the configuration, the running kernel, and a way to say what it did.

mod keeper;
mod report;
mod seats;
mod verdict;
mod watch;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use steer::plan::Request;
use steer::{
    ApplyError, Drift, Export, Irqbalance, IrqbalanceError, Journal, JournalError, LockedJournal, Presence,
    RestoreWish, Restored, Rivals, Steering,
};

use self::keeper::{Host, Keeper};
use self::seats::{Seated, planned, request_for};
use crate::config::{Config, Steer};
use crate::exit::{ExitCode, Failure};
use crate::os::console;
use crate::os::notify::Notifier;
use crate::plan::advice;
use crate::plan::interfaces::Kernel;

/// What was before the first apply, until it is restored; goes with a reboot, as the settings do.
/// It is root's and no service's: what the service user may write, root must not believe.
pub const STATE_FOLDER: &str = "/run/udpd-steer";

/// How long another `apply` or `restore` may take before it is named and waited for no longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Less than "as planned": what a plan cannot set may differ, and what nobody can read is unknown.
const NOTHING_TO_CHANGE: &str = "nothing to change: all that the plan sets is so already";

/// A service that is on everywhere must not fail where nothing is to be steered.
const NOTHING_TO_DO: &str = "nothing to do: [steer] interfaces names none\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Compare the host with the plan.
    Status,
    /// Show the plan and what it would change.
    Plan,
    /// Print the plan as a file for others to set it.
    Export(Export),
    Apply,
    /// Apply the plan and keep it so.
    Watch,
    Restore,
}

/// How it was asked for.
#[derive(Debug)]
pub struct Task<'a> {
    pub action: Action,
    /// The interfaces; those of the configuration when none is named.
    pub interfaces: Vec<String>,
    pub wish: &'a Steer,
    /// The configuration of the daemon, where there is one.
    pub config: Option<&'a Config>,
    /// It comes from a file that was named, so a list without an interface means that there is nothing to do.
    pub from_file: bool,
    pub state_folder: PathBuf,
    /// What cannot be restored of the named interfaces is forgotten.
    pub forget: bool,
    pub json: bool,
}

pub fn execute(task: &Task<'_>, out: &mut dyn Write) -> Result<(), Failure> {
    let kernel = Kernel::open().map_err(|failure| task.unread(failure))?;
    let journal = Journal::in_folder(&task.state_folder);
    let interfaces = match &task.interfaces {
        named if !named.is_empty() => named.clone(),
        _ if !task.wish.interfaces.is_empty() || task.action == Action::Restore => task.wish.interfaces.clone(),
        _ if task.from_file && matches!(task.action, Action::Apply | Action::Watch) => Vec::new(),
        _ => {
            let physical = kernel.reader().physical_interfaces();
            let physical = physical.map_or_else(|error| format!("unknown: {error}"), |names| names.join(", "));
            let message = format!(
                "no interface: name one on the command line or in [steer] interfaces; those with a device are \
                 {physical}"
            );
            return Err(Failure::new(ExitCode::Usage, message));
        }
    };
    match task.action {
        Action::Restore => return restore(&kernel.steering(&task.wish.request), &journal, task, out),
        Action::Apply if interfaces.is_empty() => return console::print(out, NOTHING_TO_DO),
        Action::Watch if interfaces.is_empty() => {
            Notifier::from_environment().ready("nothing to do");
            return console::print(out, NOTHING_TO_DO);
        }
        // It asks the daemons at each look.
        Action::Watch => {
            let keeper = Keeper::new(&interfaces, task.wish.ban_irqbalance);
            return watch::execute(keeper, &mut Running::new(task, out));
        }
        _ => {}
    }
    let seated = Seated::ask(task.wish, task.config, &interfaces)?;
    let steering = kernel.steering(&seated.request);
    match task.action {
        Action::Plan => plan(&steering, &interfaces, &seated, task, out),
        Action::Export(form) => export(&steering, &interfaces, form, task, out),
        Action::Status => status(&steering, &interfaces, &seated, task, out),
        Action::Apply | Action::Watch | Action::Restore => {
            seated.must_be_known()?;
            if !task.json {
                console::print(out, &seated.notes(&interfaces))?;
            }
            let request = task.part_for(&steering, &interfaces)?;
            apply(&kernel.steering(&request), &interfaces, &journal, task, out)
        }
    }
}

fn plan(
    steering: &Steering<'_>,
    interfaces: &[String],
    seated: &Seated,
    task: &Task<'_>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let (host, plan) = planned(steering, interfaces, task.wish).map_err(|error| task.failure(error))?;
    let plan = advice::name_keys(plan);
    let changes = steering.changes(&host, &plan).map_err(|error| task.failure(error))?;
    let comparison = steering.compare(&host, &plan, &Rivals::find(Path::new("/")));
    let ban = task.wish.ban_irqbalance;
    if task.json {
        let mut shown = report::plan(&plan, &changes, &comparison, ban);
        shown["daemons"] = seated.json();
        return print_json(out, &shown);
    }
    let mut text = plan.to_string() + &seated.notes(interfaces);
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
    let (host, plan) = planned(steering, interfaces, task.wish).map_err(|error| task.failure(error))?;
    let text = steering.export(&host, &plan, form);
    console::print(out, &text.map_err(|error| Failure::new(ExitCode::Failure, error.to_string()))?)
}

fn status(
    steering: &Steering<'_>,
    interfaces: &[String],
    seated: &Seated,
    task: &Task<'_>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let (host, plan) = planned(steering, interfaces, task.wish).map_err(|error| task.failure(error))?;
    let (plan, ban) = (advice::name_keys(plan), task.wish.ban_irqbalance);
    let mut comparison = steering.compare(&host, &plan, &Rivals::find(Path::new("/")));
    comparison.unknown.extend(seated.unknown(interfaces));
    if task.json {
        let mut shown = report::status(&host, &plan, &comparison, ban);
        shown["daemons"] = seated.json();
        print_json(out, &shown)?;
    } else {
        let text = report::queues(&host, &plan) + &seated.told(interfaces) + &verdict::text(&comparison, ban);
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
    let locked = journal.lock("udpd steer apply", PATIENCE, |holder| wait_for(holder, task, out));
    let mut journal = locked.map_err(|error| not_kept(&error))?;
    let mut said = Ok(());
    let outcome = steering.apply(interfaces, &mut journal, |change| {
        if !task.json && said.is_ok() {
            said = console::print(out, &report::line(change));
        }
    });
    let (changes, refused) = match outcome {
        Ok(changes) => (Some(changes), None),
        // Everything else of the plan is set, and is to be kept from irqbalance all the same.
        Err(error @ ApplyError::Refused(_)) => (None, Some(task.failure(error))),
        Err(error) => return Err(task.failure(error)),
    };
    let banned = keep_irqbalance_off(steering, interfaces, &mut journal, task, out);
    said?;
    if let Some(changes) = &changes {
        if task.json {
            print_json(out, &report::changes(changes))?;
        } else if changes.is_empty() {
            console::print(out, &format!("{NOTHING_TO_CHANGE}\n"))?;
        }
    }
    let rounded = changes.iter().flatten().find(|change| !change.is_as_wanted()).map(verdict::not_as_wanted);
    verdict::all_of(refused.into_iter().chain(rounded).chain(banned.err()))
}

/// Has irqbalance leave the planned interrupts alone, or says that it will not.
fn keep_irqbalance_off(
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
    let (host, _) = steering.plan(interfaces).map_err(|error| task.failure(error))?;
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
            let number = |queue: &steer::model::Queue| queue.interrupt.get().map(|interrupt| interrupt.number);
            let numbers: Vec<u32> = interface.queues.iter().filter_map(number).collect();
            // Saved before it is asked, so that a restore undoes it even after a crash, and undoes nothing of others.
            let new = irqbalance.balances(&numbers).map_err(|error| refused(&error))?;
            if !new.is_empty() {
                let new = steering.save_ban(interface, &new, journal).map_err(|error| task.failure(error))?;
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
            steering.forget_ban(interface, &refused, journal).map_err(|error| task.failure(error))?;
        }
    }
    banned
}

fn refused(error: &IrqbalanceError) -> Failure {
    Failure::new(ExitCode::Failure, error.to_string())
}

/// The running kernel. It is opened anew at each look: cores come and go.
struct Running<'a> {
    task: &'a Task<'a>,
    out: &'a mut dyn Write,
    /// The irqbalance that was asked last.
    asked: Option<u32>,
    /// What the daemons told, for as long as one of them is silent.
    request: Option<Request>,
    /// What was said of those that are silent.
    silent: Vec<String>,
}

impl<'a> Running<'a> {
    fn new(task: &'a Task<'a>, out: &'a mut dyn Write) -> Self {
        Self { task, out, asked: None, request: None, silent: Vec::new() }
    }

    /// Asks the daemons, once a look.
    fn ask(&mut self, interfaces: &[String]) -> Result<Request, Failure> {
        let seated = Seated::ask(self.task.wish, self.task.config, interfaces)?;
        if self.silent != seated.silent() {
            self.silent = seated.silent().to_vec();
            self.silent.iter().for_each(|clause| log::warn!("{clause}"));
        }
        let request = seated.or_before(self.request.take())?;
        self.request = Some(request.clone());
        Ok(request)
    }
}

impl Host for Running<'_> {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn is_there(&self, interface: &str) -> bool {
        // One that cannot be looked for is named by whoever reads it.
        Path::new("/sys/class/net").join(interface).try_exists().unwrap_or(true)
    }

    fn drifts(&mut self, interfaces: &[String]) -> Result<Vec<Drift>, Failure> {
        let kernel = Kernel::open()?;
        let request = self.ask(interfaces)?;
        let request = self.task.part_for(&kernel.steering(&request), interfaces)?;
        let steering = kernel.steering(&request);
        let (host, plan) = steering.plan(interfaces).map_err(|error| self.task.failure(error))?;
        let comparison = steering.compare(&host, &plan, &Rivals::find(Path::new("/")));
        Ok(comparison.drifts.into_iter().filter(Drift::is_set_by_apply).collect())
    }

    fn unasked_irqbalance(&mut self) -> Option<u32> {
        match Irqbalance::find(Path::new("/")) {
            Presence::Runs(found) => {
                Some(found.pid()).filter(|pid| self.task.wish.ban_irqbalance && self.asked != Some(*pid))
            }
            Presence::Absent | Presence::Unknown(_) => None,
        }
    }

    fn apply(&mut self, interfaces: &[String]) -> Result<(), Failure> {
        let kernel = Kernel::open()?;
        // The look that found something to set has asked.
        let request = match self.request.clone() {
            Some(request) => request,
            None => self.ask(interfaces)?,
        };
        let request = self.task.part_for(&kernel.steering(&request), interfaces)?;
        let steering = kernel.steering(&request);
        apply(&steering, interfaces, &Journal::in_folder(&self.task.state_folder), self.task, self.out)?;
        if let Presence::Runs(found) = Irqbalance::find(Path::new("/")) {
            self.asked = Some(found.pid());
        }
        Ok(())
    }
}

fn restore(steering: &Steering<'_>, journal: &Journal, task: &Task<'_>, out: &mut dyn Write) -> Result<(), Failure> {
    let locked = journal.lock_if_any("udpd steer restore", PATIENCE, |holder| wait_for(holder, task, out));
    let restored = match locked.map_err(|error| not_kept(&error))? {
        None => Restored::default(),
        Some(mut journal) => {
            let mut said = Ok(());
            let wish = RestoreWish { interfaces: &task.interfaces, forget: task.forget, unban: &mut let_irqbalance };
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
        print_json(out, &report::restored(&restored))?;
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

/// Lets irqbalance have what was kept from it. One that has ended has forgotten it by itself.
fn let_irqbalance(interrupts: &[u32]) -> Result<(), String> {
    match Irqbalance::find(Path::new("/")) {
        Presence::Runs(irqbalance) => irqbalance.unban(interrupts).map(drop).map_err(|error| error.to_string()),
        Presence::Absent => Ok(()),
        Presence::Unknown(why) => Err(format!(
            "cannot let irqbalance have the interrupts {interrupts:?} again: whether it runs is unknown: {why}"
        )),
    }
}

fn wait_for(holder: &str, task: &Task<'_>, out: &mut dyn Write) {
    if !task.json {
        // Whoever does not read this waits all the same.
        let _ = console::print(out, &format!("waiting for {holder}\n"));
    }
}

fn code_of(error: &JournalError) -> ExitCode {
    match error {
        JournalError::Io { cause, .. } if cause.kind() == std::io::ErrorKind::PermissionDenied => ExitCode::Permission,
        JournalError::Io { .. } => ExitCode::Disk,
        _ => ExitCode::Failure,
    }
}

/// What was before cannot be saved or read.
fn not_kept(error: &JournalError) -> Failure {
    let cure = match error {
        JournalError::Io { cause, .. } if cause.kind() == std::io::ErrorKind::PermissionDenied => "; root is needed",
        JournalError::Io { .. } => "",
        JournalError::Busy(_) => "; run it again when that process has ended",
        _ => "; look who made it, remove it and run it again",
    };
    Failure::new(code_of(error), format!("{error}{cure}"))
}

fn print_json(out: &mut dyn Write, value: &serde_json::Value) -> Result<(), Failure> {
    console::print(out, &(serde_json::to_string_pretty(value).unwrap_or_default() + "\n"))
}

impl Task<'_> {
    /// What is asked of the plan for these interfaces alone.
    fn part_for(&self, steering: &Steering<'_>, interfaces: &[String]) -> Result<Request, Failure> {
        request_for(steering, interfaces, self.wish).map_err(|error| self.failure(error))
    }

    /// Where nothing can be read, nobody can say whether it is as planned.
    fn unread(&self, failure: Failure) -> Failure {
        let code = if self.action == Action::Status { ExitCode::Unknown } else { failure.code };
        Failure { code, ..failure }
    }

    fn failure(&self, error: ApplyError) -> Failure {
        let code = match &error {
            ApplyError::Read(steer::ReadError::NoInterface { .. }) => ExitCode::Unavailable,
            ApplyError::Read(_) if self.action == Action::Status => ExitCode::Unknown,
            ApplyError::Plan(_) => ExitCode::Configuration,
            ApplyError::Permission(_) => ExitCode::Permission,
            ApplyError::Setting { cause: steer::SettingError::Permission(_), .. } => ExitCode::Permission,
            ApplyError::Journal { cause, .. } => code_of(cause),
            _ => ExitCode::Failure,
        };
        Failure::new(code, advice::of_error(&error, !self.interfaces.is_empty()))
    }
}
