//! Plans, changes and drifts as lines and as JSON. The JSON is what scripts rely on: keys are only ever added.

use std::io::Write;

use serde_json::{Value, json};
use steer::model::{Host, Interface, Known};
use steer::plan::{InterfacePlan, Plan};
use steer::{Change, Comparison, Drift, Restored, format_core_list};

use super::verdict;
use udpd_base::exit::Failure;
use udpd_base::os::console;

/// One change, as it is made: what an administrator would type, and why.
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
pub(super) fn list(changes: &[Change], none: &str, title: &str) -> String {
    if changes.is_empty() {
        return format!("{none}\n");
    }
    changes.iter().fold(format!("{title}:\n"), |text, change| text + &line(change))
}

/// Where each queue is processed now, beside where the plan wants it.
pub(super) fn queues(host: &Host, plan: &Plan) -> String {
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
pub(super) fn plan(plan: &Plan, changes: &[Change], comparison: &Comparison, ban_irqbalance: bool) -> Value {
    let besides = comparison.drifts.iter().filter(|drift| !drift.is_set_by_apply());
    json!({ "interfaces": plan.interfaces.iter().map(interface).collect::<Vec<_>>(),
            "changes": self::changes(changes),
            "besides": besides.map(|drift| verdict::drift(drift, ban_irqbalance)).collect::<Vec<_>>(),
            "unknown": comparison.unknown.iter().map(verdict::unknown).collect::<Vec<_>>() })
}

/// The plan, what is found, what differs and what is unknown.
pub(super) fn status(host: &Host, plan: &Plan, comparison: &Comparison, ban_irqbalance: bool) -> Value {
    let drift = |drift: &Drift| verdict::drift(drift, ban_irqbalance);
    json!({ "interfaces": plan.interfaces.iter().map(interface).collect::<Vec<_>>(),
            "found": host.interfaces.iter().map(found).collect::<Vec<_>>(),
            "drifts": comparison.drifts.iter().map(drift).collect::<Vec<_>>(),
            "verdict": verdict::word(comparison.verdict()),
            "unknown": comparison.unknown.iter().map(verdict::unknown).collect::<Vec<_>>() })
}

pub(super) fn changes(changes: &[Change]) -> Value {
    let change = |change: &Change| {
        json!({ "interface": change.interface, "setting": change.setting.to_string(), "from": change.from,
                "to": change.to, "now": change.now, "why": change.why, "disruption": change.disruption,
                "command": change.command })
    };
    changes.iter().map(change).collect()
}

/// What was put back, and what could not be.
pub(super) fn restored(restored: &Restored) -> Value {
    json!({ "changes": changes(&restored.changes), "failures": restored.failures, "notes": restored.notes })
}

pub(super) fn print(out: &mut dyn Write, value: &Value) -> Result<(), Failure> {
    console::print(out, &(serde_json::to_string_pretty(value).unwrap_or_default() + "\n"))
}

fn interface(part: &InterfacePlan) -> Value {
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

fn found(interface: &Interface) -> Value {
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
