//! `udpd steer plan` and `status`, which change nothing: a host and its plan, what that would change, how the two
//! compare. And the plan as a file for others to set it.

use std::io::Write;
use std::path::Path;

use steer::model::Host;
use steer::plan::Plan;
use steer::{Comparison, Export, Rivals, Steering};

use super::seats::{Seated, planned};
use super::task::Task;
use super::{report, verdict};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::console;
use udpd_engine::plan::advice;

/// Less than "as planned": what a plan cannot set may differ, and what nobody can read is unknown.
pub(super) const NOTHING_TO_CHANGE: &str = "nothing to change: all that the plan sets is so already";

/// A host beside its plan, whose notes name the keys behind them.
struct Look {
    host: Host,
    plan: Plan,
    comparison: Comparison,
}

fn look(steering: &Steering<'_>, interfaces: &[String], task: &Task<'_>) -> Result<Look, Failure> {
    let (host, plan) = planned(steering, interfaces, task.wish).map_err(|error| task.failure(&error))?;
    let plan = advice::name_keys(plan);
    let comparison = steering.compare(&host, &plan, &Rivals::find(Path::new("/")));
    Ok(Look { host, plan, comparison })
}

pub(super) fn plan(
    steering: &Steering<'_>,
    interfaces: &[String],
    seated: &Seated,
    task: &Task<'_>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let Look { host, plan, comparison } = look(steering, interfaces, task)?;
    let changes = steering.changes(&host, &plan).map_err(|error| task.failure(&error))?;
    let ban = task.wish.ban_irqbalance;
    if task.json {
        let mut shown = report::plan(&plan, &changes, &comparison, ban);
        shown["daemons"] = seated.json();
        return report::print(out, &shown);
    }
    let mut text = plan.to_string() + &seated.notes(interfaces);
    text.push_str(&report::list(&changes, NOTHING_TO_CHANGE, "would change"));
    text.push_str(&verdict::besides(&comparison, ban));
    console::print(out, &text)
}

pub(super) fn status(
    steering: &Steering<'_>,
    interfaces: &[String],
    seated: &Seated,
    task: &Task<'_>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let Look { host, plan, mut comparison } = look(steering, interfaces, task)?;
    comparison.unknown.extend(seated.unknown(interfaces));
    let ban = task.wish.ban_irqbalance;
    if task.json {
        let mut shown = report::status(&host, &plan, &comparison, ban);
        shown["daemons"] = seated.json();
        report::print(out, &shown)?;
    } else {
        let text = report::queues(&host, &plan) + &seated.told(interfaces) + &verdict::text(&comparison, ban);
        console::print(out, &text)?;
    }
    verdict::outcome(&comparison, interfaces)
}

pub(super) fn export(
    steering: &Steering<'_>,
    interfaces: &[String],
    form: Export,
    task: &Task<'_>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let (host, plan) = planned(steering, interfaces, task.wish).map_err(|error| task.failure(&error))?;
    let text = steering.export(&host, &plan, form);
    console::print(out, &text.map_err(|error| Failure::new(ExitCode::Failure, error.to_string()))?)
}
