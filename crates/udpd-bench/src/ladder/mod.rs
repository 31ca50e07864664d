//! `udpd bench ladder`: receiving a million datagrams a second as measured steps, on this machine. Here is the command
//! line, and the report as a table, as CSV and as a chart.

mod advice;
mod measure;
mod step;
mod trial;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use serde_json::json;

use self::advice::LadderAdvice;
use self::measure::{LadderReport, LadderTask, StepRow, run};
use self::step::{LadderStep, TestPath};
use crate::chart::{self, ChartBar, ChartWords};
use crate::machine::MachineFacts;
use crate::output::{Output, OutputOptions, progress, seconds, usage};
use crate::{cable, pacer};
use udpd_base::exit::Failure;
use udpd_base::os::console::stop_on_signal;
use udpd_base::text::advice::ValueAdvice;
use udpd_base::text::tables::{TextTable, grouped, or_dash};

/// How long to watch how busy the machine is before anything is measured.
const LOOK: Duration = Duration::from_millis(300);

/// Datagrams in a train of a sender on loopback, if their size allows it.
const TRAIN: usize = 20;

const ROUNDS_MAX: usize = 100;

#[derive(Debug, clap::Parser)]
pub struct LadderArguments {
    /// Datagrams a second in every step [default: 1M, or what the sender can keep]
    #[arg(long, value_name = "N")]
    rate: Option<String>,
    /// How long to measure each step in each round, in seconds
    #[arg(long, value_name = "S", default_value = "0.7")]
    seconds: String,
    /// How often to measure each step
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Payload bytes, 32 to 65507
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    size: usize,
    /// Datagrams that the sender hands over as one train for the kernel to cut, 1 to 128 [default: 20; on a cable 1]
    #[arg(long, value_name = "N")]
    gso: Option<usize>,
    #[command(flatten)]
    cable: cable::CableOptions,
    /// Only these steps, such as recvmmsg,gather
    #[arg(long, value_name = "STEP,...", value_delimiter = ',')]
    steps: Vec<String>,
    /// Then repeat the last step over payloads from 32 to 65,507 bytes
    #[arg(long)]
    sizes: bool,
    /// Then repeat the last step with receiver and interrupt near and far
    #[arg(long)]
    placements: bool,
    #[command(flatten)]
    output: OutputOptions,
    /// Draw what a datagram costs in each step into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl LadderArguments {
    pub fn task(&self) -> Result<LadderTask, Failure> {
        let refuse = |option: &str, what: String, cure: &str| Err(usage(option, &ValueAdvice::new(what, cure)));
        let rate = self.rate.as_deref().map(pacer::parse_number).transpose();
        if !(1..=ROUNDS_MAX).contains(&self.rounds) {
            return refuse("--rounds", format!("{} is outside 1 to {ROUNDS_MAX}", self.rounds), "3 is the default");
        }
        if !(32..=65_507).contains(&self.size) {
            return refuse("--size", format!("{} is outside 32 to 65507 bytes", self.size), "64 is the default");
        }
        let is_cable = self.cable.is_wanted();
        let longest = if is_cable { 1 } else { (65_507 / self.size).clamp(1, 128) };
        let train = self.gso.unwrap_or(TRAIN.min(longest));
        if train == 0 || train > longest {
            let place = if is_cable { " over a cable" } else { "" };
            let what = format!("a train of {train} datagrams of {} bytes cannot be sent{place}", self.size);
            return refuse("--gso", what, &format!("write 1 to {longest}"));
        }
        if is_cable && self.sizes {
            let what = "frames on a cable end at its MTU".to_owned();
            return refuse("--sizes", what, "leave it out, and measure with several --size; or leave out --interface");
        }
        let step = |name: &String| {
            LadderStep::all().find(|step| step.name() == name).ok_or_else(|| {
                let names = LadderStep::all().map(LadderStep::name).collect::<Vec<_>>().join(",");
                usage(
                    "--steps",
                    &ValueAdvice::new(format!("there is no step {name:?}"), format!("write some of {names}")),
                )
            })
        };
        let steps: Vec<LadderStep> = self.steps.iter().map(step).collect::<Result<_, _>>()?;
        // Without --steps, those that loopback cannot have are left out.
        let all = LadderStep::all().filter(|step| is_cable || !step.wants_cable());
        Ok(LadderTask {
            steps: if steps.is_empty() { all.collect() } else { steps },
            rounds: self.rounds,
            duration: seconds("--seconds", &self.seconds)?,
            rate: rate.map_err(|advice| usage("--rate", &advice))?,
            size: self.size,
            train,
            sizes: self.sizes,
            placements: self.placements,
            ground: TestPath::of(self.cable.cable()?),
        })
    }
}

/// What `udpd bench` does without a subcommand.
impl Default for LadderArguments {
    fn default() -> Self {
        Self::parse_from(["ladder"])
    }
}

pub fn execute(arguments: &LadderArguments, out: &mut dyn Write) -> Result<(), Failure> {
    let task = arguments.task()?;
    let output = Output::of(&arguments.output, arguments.svg.as_ref(), LOOK)?;
    let stop = stop_on_signal(|| ())?;
    let outcome = run(&task, &stop, &mut |done, all, name| progress(|| format!("\r{done:>3} of {all}  {name:<24}")));
    progress(|| format!("\r{:40}\r", ""));
    let report = outcome?;
    output.write(|| csv(&report), || svg(&task, &report, &output.machine))?;
    let asked = json!({
        "steps": task.steps, "rounds": task.rounds, "seconds": task.duration.as_secs_f64(), "rate": task.rate,
        "size": task.size, "gso": task.train, "sizes": task.sizes, "placements": task.placements,
        "ground": task.ground.what(),
    });
    output.print(out, json!({ "asked": asked }), &report, || text(&task, &report, &output.machine))
}

fn text(task: &LadderTask, report: &LadderReport, machine: &MachineFacts) -> String {
    let mut text = format!("{}\n{}\n\n", conditions(task, report), on(machine));
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

fn conditions(task: &LadderTask, report: &LadderReport) -> String {
    let receivers = steer::format_core_list(&report.receiver_cores);
    format!(
        "{}\n\
         datagrams of {} bytes over {}, in trains of {}; {} x {} s\n\
         sender on core {}, receivers on {}; the sender alone reaches {} a second",
        sent_and_received(report),
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

/// What the steps sent and received, and whether more was asked for than the sender could make.
fn sent_and_received(report: &LadderReport) -> String {
    let measured: Vec<&StepRow> = report.steps.iter().filter(|row| row.obstacle.is_none()).collect();
    let range = |figure: fn(&StepRow) -> f64| {
        let figures = measured.iter().map(|row| figure(row).round() as u64);
        match (figures.clone().min(), figures.max()) {
            (Some(least), Some(most)) if least < most => format!("{} to {}", grouped(least), grouped(most)),
            (_, most) => grouped(most.unwrap_or(0)),
        }
    };
    let (sent, received) = (range(|row| row.offered_per_second), range(StepRow::received_per_second));
    let short = measured.iter().filter(|row| row.offered_per_second < KEPT * report.rate as f64).count();
    let what = format!("sent {sent} a second, received {received}");
    match short {
        0 => what,
        _ => format!(
            "{what}\n{} a second were asked for: the sender was the limit in {short} of {} steps, and they say nothing \
             of a higher rate",
            grouped(report.rate),
            measured.len()
        ),
    }
}

/// A sender that made this share of what was asked for was not the limit.
const KEPT: f64 = 0.98;

fn on(machine: &MachineFacts) -> String {
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
    ["step", "sent/s", "received/s", "lost", "in buffers", "receiver ns", "machine ns", "per call", "imbalance"];

/// The figures of a row, after its name.
fn figures(row: &StepRow) -> [String; 8] {
    let ns = |value: Option<f64>| or_dash(value.map(|ns| ns.round() as u64));
    let decimal = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"));
    if row.obstacle.is_some() {
        return std::array::from_fn(|_| "-".to_owned());
    }
    [
        grouped(row.offered_per_second.round() as u64),
        grouped(row.received_per_second().round() as u64),
        format!("{:.2} %", row.loss_percent()),
        format!("{:.2} %", row.in_buffers_percent()),
        ns(row.receiver_ns),
        ns(row.machine_ns),
        decimal(row.datagrams_per_call),
        decimal(row.imbalance),
    ]
}

fn steps(report: &LadderReport) -> TextTable {
    let mut table = TextTable::new(HEADINGS);
    for row in &report.steps {
        table.row(std::iter::once(row.step.name().to_owned()).chain(figures(row)));
    }
    table
}

fn sizes(report: &LadderReport) -> TextTable {
    let mut table = TextTable::new(["bytes"].into_iter().chain(HEADINGS.into_iter().skip(1)));
    for size in &report.sizes {
        table.row(std::iter::once(grouped(size.bytes as u64)).chain(figures(&size.row)));
    }
    table
}

fn placements(report: &LadderReport) -> TextTable {
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

fn obstacles<'a>(rows: impl Iterator<Item = (&'a str, &'a StepRow)>) -> String {
    rows.filter_map(|(name, row)| Some(format!("not measured: {name}: {}\n", row.obstacle.as_ref()?))).collect()
}

fn advice(report: &LadderReport) -> String {
    if report.advice.is_empty() {
        return match report.noise {
            Some(_) => "\nnothing here beats the defaults by clearly more than the noise\n".to_owned(),
            None => "\nno advice: the noise is unknown\n".to_owned(),
        };
    }
    let (kernel, keys): (Vec<&LadderAdvice>, Vec<&LadderAdvice>) =
        report.advice.iter().partition(|one| one.key.contains('.'));
    let mut text = "\nwhat to set on this machine\n".to_owned();
    if !keys.is_empty() {
        text += "\n[[listener]]\n";
        let width = keys.iter().map(|one| one.key.len() + one.value.len()).max().unwrap_or(0) + 3;
        for LadderAdvice { key, value, why } in keys {
            let line = format!("{key} = {value}");
            text += &format!("{line:width$}  # {why}\n");
        }
    }
    for LadderAdvice { key, value, why } in kernel {
        text += &format!("\nsysctl -w {key}={value}  # {why}\n");
    }
    text
}

/// Steps, sizes and placements below each other, with what a spreadsheet would want to plot.
fn csv(report: &LadderReport) -> String {
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
    let mut add = |part: &str, name: String, row: &StepRow| {
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

fn svg(task: &LadderTask, report: &LadderReport, machine: &MachineFacts) -> String {
    let bars: Vec<ChartBar> = report
        .steps
        .iter()
        .map(|row| {
            let lost = if row.lost.total() > 0 { format!(" (-{:.1} %)", row.loss_percent()) } else { String::new() };
            ChartBar { name: format!("{}{lost}", row.step.name()), value: row.receiver_ns }
        })
        .collect();
    let title =
        format!("CPU of the receivers for each datagram: {} of {} bytes a second", grouped(report.rate), task.size);
    let subtitle =
        format!("{}; {}, trains of {}, medians of {} rounds", on(machine), task.ground.what(), task.train, task.rounds);
    chart::bars(ChartWords { title: &title, subtitle: &subtitle, unit: "ns" }, &bars)
}
