//! `udpd steer`: shows, plans, applies and restores the settings between a NIC's queue and a socket. The crate `steer`
//! does the work; here it gets the configuration and the running kernel, and its results are printed.

mod apply;
mod keeper;
mod report;
mod seats;
mod task;
mod watch;

use std::io::Write;

use steer::Journal;

use self::keeper::Keeper;
use self::seats::Seated;
pub use self::seats::drifts;
use self::watch::Running;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::console;
use udpd_base::os::notify::Notifier;
use udpd_engine::plan::interfaces::Kernel;

pub use self::apply::STATE_FOLDER;
pub use self::task::{SteerAction, SteerTask};

/// A service that is on everywhere must not fail where nothing is to be steered.
const NOTHING_TO_DO: &str = "nothing to do: [steer] interfaces names none\n";

pub fn execute(task: &SteerTask<'_>, out: &mut dyn Write) -> Result<(), Failure> {
    let kernel = Kernel::open().map_err(|failure| task.unread(failure))?;
    let journal = Journal::in_folder(&task.state_folder);
    let interfaces = chosen(task, &kernel)?;
    match task.action {
        SteerAction::Restore => return apply::restore(&kernel.steering(&task.wish.request), &journal, task, out),
        SteerAction::Apply if interfaces.is_empty() => return console::print(out, NOTHING_TO_DO),
        SteerAction::Watch if interfaces.is_empty() => {
            Notifier::from_environment().ready("nothing to do");
            return console::print(out, NOTHING_TO_DO);
        }
        // It asks the daemons at each look.
        SteerAction::Watch => {
            let keeper = Keeper::new(&interfaces, task.wish.ban_irqbalance);
            return watch::execute(keeper, &mut Running::new(task, out));
        }
        _ => {}
    }
    let seated = Seated::ask(task.wish, task.config, &interfaces)?;
    let steering = kernel.steering(&seated.request);
    match task.action {
        SteerAction::Plan => report::plan(&steering, &interfaces, &seated, task, out),
        SteerAction::Export(form) => report::export(&steering, &interfaces, form, task, out),
        SteerAction::Status => report::status(&steering, &interfaces, &seated, task, out),
        SteerAction::Apply | SteerAction::Watch | SteerAction::Restore => {
            seated.must_be_known()?;
            if !task.json {
                console::print(out, &seated.notes(&interfaces))?;
            }
            let request = task.part_for(&steering, &interfaces)?;
            apply::apply(&kernel.steering(&request), &interfaces, &journal, task, out)?.outcome()
        }
    }
}

/// The interfaces that the command is about.
fn chosen(task: &SteerTask<'_>, kernel: &Kernel) -> Result<Vec<String>, Failure> {
    Ok(match &task.interfaces {
        named if !named.is_empty() => named.clone(),
        _ if !task.wish.interfaces.is_empty() || task.action == SteerAction::Restore => task.wish.interfaces.clone(),
        _ if task.from_file && matches!(task.action, SteerAction::Apply | SteerAction::Watch) => Vec::new(),
        _ => {
            let looks = matches!(task.action, SteerAction::Status | SteerAction::Plan | SteerAction::Export(_));
            let physical = match kernel.reader().physical_interfaces() {
                // To look at the only one there is changes nothing.
                Ok(only) if looks && only.len() == 1 => return Ok(only),
                physical => physical.map_or_else(|error| format!("unknown: {error}"), |names| names.join(", ")),
            };
            let message = format!(
                "no interface: name one on the command line or in [steer] interfaces; those with a device are \
                 {physical}"
            );
            return Err(Failure::new(ExitCode::Usage, message));
        }
    })
}
