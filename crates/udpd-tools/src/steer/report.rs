//! `udpd steer plan` and `status`, which change nothing: a host and its plan, what that would change, how the two
//! compare. In lines and as JSON, and the plan as a file for others to set it. The JSON is what scripts rely on: keys
//! are only ever added.

use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};
use steer::model::{Host, Interface, Known};
use steer::plan::{InterfacePlan, Plan};
use steer::{Change, Comparison, Drift, Export, Restored, Rivals, Steering, Unknown, Verdict, format_core_list};

use super::seats::{Seated, planned};
use super::task::SteerTask;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::console;
use udpd_engine::plan::advice;

/// Less than "as planned": what a plan cannot set may differ, and what cannot be read is unknown.
pub(super) const NOTHING_TO_CHANGE: &str = "nothing to change: all that the plan sets is so already";

/// A host beside its plan, whose notes name the keys behind them.
struct PlannedHost {
    host: Host,
    plan: Plan,
    comparison: Comparison,
}

fn look(steering: &Steering<'_>, interfaces: &[String], task: &SteerTask<'_>) -> Result<PlannedHost, Failure> {
    let (host, plan) = planned(steering, interfaces, task.wish).map_err(|error| task.failure(&error))?;
    let plan = advice::name_keys(plan);
    let comparison = steering.compare(&host, &plan, &Rivals::find(Path::new("/")));
    Ok(PlannedHost { host, plan, comparison })
}

pub(super) fn plan(
    steering: &Steering<'_>,
    interfaces: &[String],
    seated: &Seated,
    task: &SteerTask<'_>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let PlannedHost { host, plan, comparison } = look(steering, interfaces, task)?;
    let changes = steering.changes(&host, &plan).map_err(|error| task.failure(&error))?;
    let ban = task.wish.ban_irqbalance;
    if task.json {
        let mut shown = plan_json(&plan, &changes, &comparison, ban);
        shown["daemons"] = seated.json();
        return print(out, &shown);
    }
    let mut text = plan.to_string() + &seated.notes(interfaces);
    text.push_str(&list(&changes, NOTHING_TO_CHANGE, "would change"));
    text.push_str(&besides(&comparison, ban));
    console::print(out, &text)
}

pub(super) fn status(
    steering: &Steering<'_>,
    interfaces: &[String],
    seated: &Seated,
    task: &SteerTask<'_>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let PlannedHost { host, plan, mut comparison } = look(steering, interfaces, task)?;
    comparison.unknown.extend(seated.unknown(interfaces));
    let ban = task.wish.ban_irqbalance;
    if task.json {
        let mut shown = status_json(&host, &plan, &comparison, ban);
        shown["daemons"] = seated.json();
        print(out, &shown)?;
    } else {
        let text = queues(&host, &plan) + &seated.told(interfaces) + &verdict_text(&comparison, ban);
        console::print(out, &text)?;
    }
    outcome(&comparison, interfaces)
}

pub(super) fn export(
    steering: &Steering<'_>,
    interfaces: &[String],
    form: Export,
    task: &SteerTask<'_>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let (host, plan) = planned(steering, interfaces, task.wish).map_err(|error| task.failure(&error))?;
    let text = steering.export(&host, &plan, form);
    console::print(out, &text.map_err(|error| Failure::new(ExitCode::Failure, error.to_string()))?)
}

/// What differs and what is unknown; or the sentence that neither is.
fn verdict_text(comparison: &Comparison, ban_irqbalance: bool) -> String {
    match comparison.verdict() {
        Verdict::AsPlanned => "everything is as planned\n".to_owned(),
        _ => lines(&comparison.drifts.iter().collect::<Vec<_>>(), &comparison.unknown, ban_irqbalance),
    }
}

/// What applying a plan would not put right.
fn besides(comparison: &Comparison, ban_irqbalance: bool) -> String {
    let drifts: Vec<&Drift> = comparison.drifts.iter().filter(|drift| !drift.is_set_by_apply()).collect();
    match lines(&drifts, &comparison.unknown, ban_irqbalance) {
        lines if lines.is_empty() => lines,
        lines => format!("what `apply` does not put right:\n{lines}"),
    }
}

fn lines(drifts: &[&Drift], unknown: &[Unknown], ban_irqbalance: bool) -> String {
    let mut text = String::new();
    for drift in drifts {
        let (told, command) = (advice::of_drift(drift, ban_irqbalance), &drift.change.command);
        text.push_str(&format!("{told}\n    to set it: {command}\n"));
    }
    for Unknown { interface, queue, what, why, cure } in unknown {
        let queue = queue.map_or(String::new(), |queue| format!(" queue {queue}:"));
        text.push_str(&format!("{interface}:{queue} {what} is unknown or cannot be had: {why}\n    {cure}\n"));
    }
    text
}

fn outcome(comparison: &Comparison, interfaces: &[String]) -> Result<(), Failure> {
    match comparison.verdict() {
        Verdict::AsPlanned => Ok(()),
        Verdict::Differs => Err(Failure::new(ExitCode::Failure, differs(comparison, interfaces))),
        Verdict::Unknown => {
            let count = comparison.unknown.len();
            let message = format!(
                "whether everything is as planned is unknown: {count} could not be read or cannot be had; the cure \
                 stands beneath each"
            );
            Err(Failure::new(ExitCode::Unknown, message))
        }
    }
}

/// How many settings differ, and what sets them.
fn differs(comparison: &Comparison, interfaces: &[String]) -> String {
    let total = comparison.drifts.len();
    let set = comparison.drifts.iter().filter(|drift| drift.is_set_by_apply()).count();
    let settings = if total == 1 { "1 setting is".to_owned() } else { format!("{total} settings are") };
    let names = interfaces.join(" ");
    let cure = match set {
        0 => format!("the command beneath {} sets it", if total == 1 { "it" } else { "each" }),
        1 if total == 1 => format!("`udpd steer apply {names}` sets it"),
        set if set == total => format!("`udpd steer apply {names}` sets them"),
        set => format!("`udpd steer apply {names}` sets {set}, the commands beneath the others set those"),
    };
    let unknown = match comparison.unknown.len() {
        0 => String::new(),
        count => format!("; {count} more could not be read or cannot be had"),
    };
    format!("{settings} not as planned; {cure}{unknown}")
}

/// The driver took another value than the one it was given.
pub(super) fn not_as_wanted(change: &Change) -> Failure {
    let message = format!(
        "set {} of {} to {}, but the driver took {}; write that value, or \"keep\"",
        change.setting,
        change.interface,
        change.to,
        change.now.as_deref().unwrap_or("nothing")
    );
    Failure::new(ExitCode::Failure, message)
}

/// One failure that says what each of them says, with the code of the first.
pub(super) fn all_of(failures: impl Iterator<Item = Failure>) -> Result<(), Failure> {
    let join = |one: Failure, other: Failure| Failure::new(one.code, format!("{one}\n  {other}"));
    failures.reduce(join).map_or(Ok(()), Err)
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::AsPlanned => "as_planned",
        Verdict::Differs => "differs",
        Verdict::Unknown => "unknown",
    }
}

fn drift_json(drift: &Drift, ban_irqbalance: bool) -> Value {
    json!({ "interface": drift.change.interface, "queue": drift.queue, "setting": drift.change.setting.to_string(),
            "found": drift.change.from, "wanted": drift.change.to,
            "rival": drift.rival.as_ref().map(|rival| advice::of_rival(rival, ban_irqbalance)),
            "command": drift.change.command })
}

fn unknown_json(unknown: &Unknown) -> Value {
    json!({ "interface": unknown.interface, "queue": unknown.queue, "what": unknown.what, "why": unknown.why,
            "cure": unknown.cure })
}

pub(super) fn line(change: &Change) -> String {
    let Change { interface, setting, from, to, now, why, disruption, command } = change;
    let cost = disruption.as_deref().map_or(String::new(), |cost| format!(" [{cost}]"));
    let surprise = match now {
        Some(now) if !change.is_as_wanted() => format!(" (but the driver took {now})"),
        _ => String::new(),
    };
    format!("{command}\n    # {interface}: {setting} {from} -> {to}{surprise}: {why}{cost}\n")
}

/// All changes under a title, or the sentence that there are none.
fn list(changes: &[Change], none: &str, title: &str) -> String {
    if changes.is_empty() {
        return format!("{none}\n");
    }
    changes.iter().fold(format!("{title}:\n"), |text, change| text + &line(change))
}

/// Where each queue is processed now, beside where the plan wants it.
fn queues(host: &Host, plan: &Plan) -> String {
    let mut text = String::new();
    for (interface, part) in host.interfaces.iter().zip(&plan.interfaces) {
        let state = if interface.is_up { "up" } else { "down" };
        text.push_str(&format!("{}: driver {}, {state}, queues {}\n", part.name, part.driver, interface.queues.len()));
        text.push_str("  queue  interrupt  fires on  wanted  receiver\n");
        for queue in &interface.queues {
            let (number, fires) = match &queue.interrupt {
                Known::Is(interrupt) => (interrupt.number.to_string(), format_core_list(&interrupt.effective)),
                Known::NotSupported | Known::Unknown(_) => ("-".to_owned(), "-".to_owned()),
            };
            let seat = part.seats.iter().find(|seat| seat.queue == queue.index);
            let core = |core: Option<usize>| core.map_or("-".to_owned(), |core| core.to_string());
            text.push_str(&format!(
                "  {:>5}  {number:>9}  {fires:>8}  {:>6}  {:>8}\n",
                queue.index,
                core(seat.and_then(|seat| seat.interrupt_core)),
                core(seat.map(|seat| seat.receiver_core)),
            ));
        }
    }
    text
}

/// The plan, what it would change, and what it cannot.
fn plan_json(plan: &Plan, changes: &[Change], comparison: &Comparison, ban_irqbalance: bool) -> Value {
    let besides = comparison.drifts.iter().filter(|drift| !drift.is_set_by_apply());
    json!({ "interfaces": plan.interfaces.iter().map(interface_json).collect::<Vec<_>>(),
            "changes": changes_json(changes),
            "besides": besides.map(|drift| drift_json(drift, ban_irqbalance)).collect::<Vec<_>>(),
            "unknown": comparison.unknown.iter().map(unknown_json).collect::<Vec<_>>() })
}

/// The plan, what is found, what differs and what is unknown.
fn status_json(host: &Host, plan: &Plan, comparison: &Comparison, ban_irqbalance: bool) -> Value {
    let drift = |drift: &Drift| drift_json(drift, ban_irqbalance);
    json!({ "interfaces": plan.interfaces.iter().map(interface_json).collect::<Vec<_>>(),
            "found": host.interfaces.iter().map(found_json).collect::<Vec<_>>(),
            "drifts": comparison.drifts.iter().map(drift).collect::<Vec<_>>(),
            "verdict": word(comparison.verdict()),
            "unknown": comparison.unknown.iter().map(unknown_json).collect::<Vec<_>>() })
}

pub(super) fn changes_json(changes: &[Change]) -> Value {
    let change = |change: &Change| {
        json!({ "interface": change.interface, "setting": change.setting.to_string(), "from": change.from,
                "to": change.to, "now": change.now, "why": change.why, "disruption": change.disruption,
                "command": change.command })
    };
    changes.iter().map(change).collect()
}

/// What was put back, and what could not be.
pub(super) fn restored_json(restored: &Restored) -> Value {
    json!({ "changes": changes_json(&restored.changes), "failures": restored.failures, "notes": restored.notes })
}

pub(super) fn print(out: &mut dyn Write, value: &Value) -> Result<(), Failure> {
    console::print(out, &(serde_json::to_string_pretty(value).unwrap_or_default() + "\n"))
}

fn interface_json(part: &InterfacePlan) -> Value {
    let seat = |seat: &steer::plan::QueueSeat| {
        json!({ "queue": seat.queue, "interrupt_cpu": seat.interrupt_core, "receiver_cpu": seat.receiver_core,
                "node": seat.node, "why": seat.why })
    };
    let wanted = |wanted: &steer::plan::Wanted| {
        let setting = wanted.target.to_string();
        json!({ "setting": setting, "why": wanted.why, "disruption": wanted.disruption })
    };
    let notes: Vec<&str> = part.notes.iter().map(|note| note.text.as_str()).collect();
    json!({ "name": part.name, "driver": part.driver, "node": part.node,
            "seats": part.seats.iter().map(seat).collect::<Vec<_>>(),
            "wanted": part.wanted.iter().map(wanted).collect::<Vec<_>>(), "notes": notes,
            "busiest_lane_share": f64::from(part.busiest_share_thousandths) / 1000.0 })
}

fn found_json(interface: &Interface) -> Value {
    let queue = |queue: &steer::model::Queue| {
        let interrupt = queue.interrupt.get();
        let sends = interface.send_queues.iter().find(|send| send.index == queue.index);
        let xps_cores = sends.and_then(|send| send.cores.clone()).unwrap_or_default();
        json!({ "queue": queue.index, "interrupt": interrupt.map(|interrupt| interrupt.number),
                "interrupt_name": interrupt.map(|interrupt| interrupt.name.clone()),
                "fires_on": interrupt.map(|interrupt| interrupt.effective.clone()),
                "processed_on": queue.work.get().map(|work| work.cores.clone()),
                "processed_by": queue.work.get().map(|work| format!("{:?}", work.by)),
                "rps_cpus": queue.rps_cores, "xps_cpus": xps_cores, "napi": queue.napi })
    };
    json!({ "name": interface.name, "up": interface.is_up, "node": interface.node,
            "queues": interface.queues.iter().map(queue).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use steer::{Rival, Setting};

    use super::*;

    fn a_drift(rival: Option<Rival>) -> Drift {
        let change = Change {
            interface: "eth0".to_owned(),
            setting: Setting::Rps(1),
            from: "c".to_owned(),
            to: "0".to_owned(),
            now: None,
            why: String::new(),
            disruption: None,
            command: "echo 0 > rps_cpus".to_owned(),
        };
        Drift { change, queue: Some(1), rival }
    }

    fn an_unknown() -> Unknown {
        let [interface, what, why, cure] =
            ["eth0", "the link", "the interface is down", "bring it up"].map(str::to_owned);
        Unknown { interface, queue: None, what, why, cure }
    }

    fn judged(drifts: Vec<Drift>, unknown: Vec<Unknown>) -> (u8, String, &'static str) {
        let comparison = Comparison { drifts, unknown };
        let code = match outcome(&comparison, &["eth0".to_owned()]) {
            Ok(()) => 0,
            Err(failure) => failure.code as u8,
        };
        (code, verdict_text(&comparison, false), word(comparison.verdict()))
    }

    #[test]
    fn as_planned_is_said_only_where_nothing_differs_and_nothing_is_unknown() {
        assert_eq!(judged(Vec::new(), Vec::new()), (0, "everything is as planned\n".to_owned(), "as_planned"));
        let (code, text, word) = judged(Vec::new(), vec![an_unknown()]);
        assert_eq!((code, word), (4, "unknown"));
        let told = "eth0: the link is unknown or cannot be had: the interface is down\n    bring it up\n";
        assert_eq!(text, told);
        let (code, text, word) = judged(vec![a_drift(None)], vec![an_unknown()]);
        assert_eq!((code, word), (1, "differs"), "what is certain weighs more");
        assert!(text.ends_with(told) && !text.contains("as planned"), "{text}");
    }

    #[test]
    fn apply_is_named_only_for_what_it_sets() {
        let thread = || a_drift(Some(Rival::Thread { pid: 9, cores: vec![2, 3] }));
        let differs = |drifts: Vec<Drift>, unknown: Vec<Unknown>| {
            super::differs(&Comparison { drifts, unknown }, &["eth0".to_owned()])
        };
        assert_eq!(
            differs(vec![a_drift(None)], Vec::new()),
            "1 setting is not as planned; `udpd steer apply eth0` sets it"
        );
        assert_eq!(differs(vec![thread()], Vec::new()), "1 setting is not as planned; the command beneath it sets it");
        assert_eq!(
            differs(vec![a_drift(None), thread()], vec![an_unknown()]),
            "2 settings are not as planned; `udpd steer apply eth0` sets 1, the commands beneath the others set those; \
             1 more could not be read or cannot be had"
        );
    }

    #[test]
    fn a_plan_tells_what_applying_it_does_not_put_right() {
        let told = |drifts: Vec<Drift>, unknown: Vec<Unknown>| besides(&Comparison { drifts, unknown }, false);
        assert_eq!(told(vec![a_drift(None)], Vec::new()), "", "that one it does");
        let text = told(vec![a_drift(Some(Rival::Thread { pid: 9, cores: vec![2, 3] }))], vec![an_unknown()]);
        assert!(
            text.starts_with("what `apply` does not put right:\neth0: queue 1: rps 1 is c, wanted 0; threaded NAPI"),
            "{text}"
        );
        assert!(text.ends_with("bring it up\n"), "{text}");
    }

    #[test]
    fn the_json_has_a_key_for_each_part() {
        assert_eq!(
            unknown_json(&an_unknown()),
            json!({ "interface": "eth0", "queue": null, "what": "the link", "why": "the interface is down",
                    "cure": "bring it up" })
        );
        assert_eq!(drift_json(&a_drift(None), false)["queue"], 1);
    }
}
