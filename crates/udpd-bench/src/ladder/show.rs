//! The ladder as a table, as CSV and as a chart.

use super::advice::Advice;
use super::measure::{Report, Task};
use super::row::Row;
use crate::chart;
use crate::chart::{Bar, Words};
use crate::machine::Machine;
use udpd_base::text::tables::{TextTable, grouped, or_dash};

/// Everything, for a terminal.
pub(super) fn text(task: &Task, report: &Report, machine: &Machine, warnings: &[String]) -> String {
    let mut text: String = warnings.iter().map(|warning| format!("warning: {warning}\n")).collect();
    text += &format!("{}\n{}\n\n", conditions(task, report), on(machine));
    text += &steps(report).text();
    text += &obstacles(report.steps.iter().map(|row| (row.step.name(), row)));
    text += &match report.noise {
        Some(noise) => format!("\nnoise: a step differs from itself by {:.0} %\n", noise * 100.0),
        None => "\nnoise: unknown; measure the steps pinned and again with --rounds 2 or more\n".to_owned(),
    };
    if !report.sizes.is_empty() {
        text += &format!("\nthe last step over payload sizes\n\n{}", sizes(report).text());
    }
    if let Some(line) = report.line {
        text += &format!(
            "\n{:.0} ns for each datagram and {:.0} ns for each 1,024 bytes (a straight line explains {:.0} %)\n",
            line.ns_per_datagram,
            line.ns_per_kib,
            line.fit * 100.0
        );
    }
    if !report.placements.is_empty() {
        text += &format!(
            "\nthe last step with sender (and so the interrupt) and receiver on\n\n{}",
            placements(report).text()
        );
        text += &obstacles(report.placements.iter().map(|placement| (placement.distance.name(), &placement.row)));
    }
    if report.interrupted {
        text += "\ninterrupted: the table has what was measured until then; there is no advice\n";
    } else {
        text += &advice(report);
    }
    text
}

fn conditions(task: &Task, report: &Report) -> String {
    let receivers = steer::format_core_list(&report.receiver_cores);
    format!(
        "{} datagrams of {} bytes a second over {}, in trains of {}; {} x {} s\n\
         sender on core {}, receivers on {}; the sender alone reaches {} a second",
        grouped(report.rate),
        task.size,
        task.ground.what(),
        task.train,
        task.rounds,
        task.duration.as_secs_f64(),
        report.sender_core,
        receivers,
        grouped(report.senders_limit as u64),
    )
}

fn on(machine: &Machine) -> String {
    let known = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".to_owned());
    let virtualised = if machine.virtualised { ", virtualised" } else { "" };
    format!(
        "Linux {}, {}, {} cores{virtualised}, governor {}, {} mitigations at work",
        known(&machine.kernel),
        known(&machine.cpu),
        machine.core_count,
        known(&machine.governor),
        machine.mitigations.values().filter(|state| state.starts_with("Mitigation")).count(),
    )
}

const HEADINGS: [&str; 9] =
    ["step", "offered/s", "received", "lost", "in buffers", "receiver ns", "machine ns", "per call", "imbalance"];

/// The figures of a row, after its name.
fn figures(row: &Row) -> [String; 8] {
    let ns = |value: Option<f64>| or_dash(value.map(|ns| ns.round() as u64));
    let decimal = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"));
    if row.obstacle.is_some() {
        return std::array::from_fn(|_| "-".to_owned());
    }
    [
        grouped(row.offered_per_second.round() as u64),
        grouped(row.received),
        format!("{:.2} %", row.loss_percent()),
        grouped(row.lost.receive_buffer),
        ns(row.receiver_ns),
        ns(row.machine_ns),
        decimal(row.datagrams_per_call),
        decimal(row.imbalance),
    ]
}

fn steps(report: &Report) -> TextTable {
    let mut table = TextTable::new(HEADINGS);
    for row in &report.steps {
        table.row(std::iter::once(row.step.name().to_owned()).chain(figures(row)));
    }
    table
}

fn sizes(report: &Report) -> TextTable {
    let mut table = TextTable::new(["bytes"].into_iter().chain(HEADINGS.into_iter().skip(1)));
    for size in &report.sizes {
        table.row(std::iter::once(grouped(size.bytes as u64)).chain(figures(&size.row)));
    }
    table
}

fn placements(report: &Report) -> TextTable {
    let mut table = TextTable::new(["placement"].into_iter().chain(HEADINGS.into_iter().skip(1)));
    for placement in &report.placements {
        let name = match placement.cores {
            Some((sender, receiver)) => format!("{} ({sender}, {receiver})", placement.distance.name()),
            None => placement.distance.name().to_owned(),
        };
        table.row(std::iter::once(name).chain(figures(&placement.row)));
    }
    table
}

fn obstacles<'a>(rows: impl Iterator<Item = (&'a str, &'a Row)>) -> String {
    rows.filter_map(|(name, row)| Some(format!("not measured: {name}: {}\n", row.obstacle.as_ref()?))).collect()
}

fn advice(report: &Report) -> String {
    if report.advice.is_empty() {
        return match report.noise {
            Some(_) => "\nnothing here beats the defaults by clearly more than the noise\n".to_owned(),
            None => "\nno advice: the noise is unknown\n".to_owned(),
        };
    }
    let (kernel, keys): (Vec<&Advice>, Vec<&Advice>) = report.advice.iter().partition(|one| one.key.contains('.'));
    let mut text = "\nwhat to set on this machine\n".to_owned();
    if !keys.is_empty() {
        text += "\n[[listener]]\n";
        let width = keys.iter().map(|one| one.key.len() + one.value.len()).max().unwrap_or(0) + 3;
        for Advice { key, value, why } in keys {
            let line = format!("{key} = {value}");
            text += &format!("{line:width$}  # {why}\n");
        }
    }
    for Advice { key, value, why } in kernel {
        text += &format!("\nsysctl -w {key}={value}  # {why}\n");
    }
    text
}

/// Steps, sizes and placements below each other, with what a spreadsheet would want to plot.
pub(super) fn csv(report: &Report) -> String {
    let mut table = TextTable::new([
        "part",
        "name",
        "offered_per_second",
        "offered",
        "received",
        "lost_in_buffers",
        "lost_before",
        "calls",
        "receiver_ns",
        "machine_ns",
        "imbalance",
        "obstacle",
    ]);
    let mut add = |part: &str, name: String, row: &Row| {
        let decimal = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.3}"));
        table.row([
            part.to_owned(),
            name,
            format!("{:.0}", row.offered_per_second),
            row.offered.to_string(),
            row.received.to_string(),
            row.lost.receive_buffer.to_string(),
            row.lost.before_the_socket.to_string(),
            row.calls.to_string(),
            decimal(row.receiver_ns),
            decimal(row.machine_ns),
            decimal(row.imbalance),
            row.obstacle.clone().unwrap_or_default(),
        ]);
    };
    for row in &report.steps {
        add("step", row.step.name().to_owned(), row);
    }
    for size in &report.sizes {
        add("size", size.bytes.to_string(), &size.row);
    }
    for placement in &report.placements {
        add("placement", placement.distance.name().to_owned(), &placement.row);
    }
    table.csv()
}

/// What a datagram costs in each step, as bars.
pub(super) fn svg(task: &Task, report: &Report, machine: &Machine) -> String {
    let bars: Vec<Bar> = report
        .steps
        .iter()
        .map(|row| {
            let lost = if row.lost.total() > 0 { format!(" (-{:.1} %)", row.loss_percent()) } else { String::new() };
            Bar { name: format!("{}{lost}", row.step.name()), value: row.receiver_ns }
        })
        .collect();
    let title =
        format!("CPU of the receivers for each datagram: {} of {} bytes a second", grouped(report.rate), task.size);
    let subtitle =
        format!("{}; {}, trains of {}, medians of {} rounds", on(machine), task.ground.what(), task.train, task.rounds);
    chart::bars(Words { title: &title, subtitle: &subtitle, unit: "ns" }, &bars)
}
