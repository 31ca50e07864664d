//! `udpd bench send` as it is typed, and its report as it is printed.

use std::io::{self, IsTerminal, Write};
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::load::{FLOWS_MAX, Load};
use super::report::{Report, Second};
use super::run::run;
use crate::commands::bench::machine::Machine;
use crate::commands::bench::options::{printed_json, seconds, usage};
use crate::commands::bench::pacer::Amount;
use crate::commands::bench::rate::{self, Rate};
use crate::commands::bench::sizes::Sizes;

use crate::exit::Failure;
use crate::os::console;
use crate::os::interrupt::stop_on_signal;
use crate::os::lookup;
use crate::text::advice::Advice;
use crate::text::tables::{Table, grouped, or_dash};
use crate::text::units;

/// How long is sent when nobody says for how long: a sender that was forgotten floods nobody for a night.
const UNASKED: Duration = Duration::from_secs(60);

/// The options of `udpd bench send`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Where to send; a name is looked up once
    #[arg(long, value_name = "HOST:PORT")]
    to: String,
    /// Datagrams a second: 5000, 10k, 1.5M, a ramp such as 10k..1M, or max
    #[arg(long, value_name = "RATE", default_value = "1k")]
    rate: String,
    /// Stop after this many seconds [default: 60, without --count]
    #[arg(long, value_name = "S", conflicts_with = "count")]
    seconds: Option<String>,
    /// Stop after this many datagrams
    #[arg(long, value_name = "N")]
    count: Option<String>,
    /// Payload bytes: one size, an even range such as 64:1400, or imix (18, 548 and 1472, 7 to 4 to 1)
    #[arg(long, value_name = "SIZE", default_value = "64")]
    size: String,
    /// Flows, each from a source port of its own
    #[arg(long, value_name = "F", default_value_t = 16)]
    flows: usize,
    /// Local addresses to send from, in turn
    #[arg(long, value_name = "ADDR,...", value_delimiter = ',')]
    sources: Vec<String>,
    /// Hand the kernel trains of this many datagrams to cut (UDP_SEGMENT)
    #[arg(long, value_name = "N")]
    gso: Option<NonZeroUsize>,
    /// Sender threads, which share the flows and the rate
    #[arg(long, value_name = "T", default_value_t = 1)]
    threads: usize,
    /// Send this many at once, or smooth: each when it is due
    #[arg(long, value_name = "N|smooth", default_value = "smooth")]
    burst: String,
    /// Pin the threads to these cores, in turn
    #[arg(long, value_name = "LIST")]
    cpu: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub fn load(&self) -> Result<Load, Failure> {
        let to = lookup::destination("--to", &self.to)?.address;
        let rate = Rate::parse(&self.rate).map_err(|advice| usage("--rate", &advice))?;
        let amount = match (&self.seconds, &self.count) {
            (Some(text), _) => Amount::Seconds(seconds("--seconds", text)?),
            (None, Some(text)) => Amount::Count(rate::parse_count(text).map_err(|advice| usage("--count", &advice))?),
            // A ramp has no end of its own to go to.
            (None, None) if matches!(rate, Rate::Ramp(..)) => Amount::UntilStopped,
            (None, None) => Amount::Seconds(UNASKED),
        };
        let source = |text: &String| {
            text.parse::<IpAddr>().map_err(|_| {
                let what = format!("{text:?} is not an IP address");
                usage(
                    "--sources",
                    &Advice::new(what, "write addresses of this host without ports, such as 127.0.0.2,127.0.0.3"),
                )
            })
        };
        let load = Load {
            sizes: Sizes::parse(&self.size).map_err(|advice| usage("--size", &advice))?,
            flows: self.flows.min(FLOWS_MAX + 1),
            sources: self.sources.iter().map(source).collect::<Result<_, _>>()?,
            gso: self.gso,
            threads: self.threads,
            burst: self.burst()?,
            cpus: self
                .cpu
                .as_deref()
                .map_or(Ok(Vec::new()), |list| units::parse_cpus(list).map_err(|advice| usage("--cpu", &advice)))?,
            ..Load::new(to, rate, amount)
        };
        load.check()?;
        Ok(load)
    }

    fn burst(&self) -> Result<Option<NonZeroUsize>, Failure> {
        match self.burst.as_str() {
            "smooth" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                let what = format!("{text:?} is not a number of datagrams");
                usage("--burst", &Advice::new(what, "write one such as 32, or smooth"))
            }),
        }
    }
}

/// Sends what is asked for until it is done or somebody interrupts it, and prints the report.
pub fn execute(arguments: &Arguments, out: &mut dyn Write) -> Result<(), Failure> {
    let load = arguments.load()?;
    let machine = Machine::read();
    let warnings = machine.warnings(Duration::ZERO);
    let stop = stop_on_signal(|| ())?;
    let shows_progress = io::stderr().is_terminal();
    let mut each_second = |second: &Second| {
        if shows_progress {
            // Nobody may be looking any more, and that is no reason to stop.
            let _ = writeln!(io::stderr(), "{}", progress(second));
        }
    };
    let report = run(&load, &Arc::clone(&stop), &mut each_second)?;
    let text = match arguments.json {
        true => json_text(&load, &machine, &warnings, &report)?,
        false => text(&load, &warnings, &report),
    };
    console::print(out, &text)
}

fn progress(second: &Second) -> String {
    let Second { second: number, asked, sent, refused, .. } = second;
    format!("{number:>4} s: sent {}, asked {}, refused {refused}", grouped(*sent), or_dash(*asked))
}

fn json_text(load: &Load, machine: &Machine, warnings: &[String], report: &Report) -> Result<String, Failure> {
    printed_json(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "machine": machine,
        "warnings": warnings,
        "asked": {
            "to": load.to, "rate": load.rate.to_string(), "size": load.sizes.to_string(), "flows": load.flows,
            "sources": load.sources, "gso": load.gso, "threads": load.threads, "burst": load.burst, "cpus": load.cpus,
        },
        "report": report,
    }))
}

fn text(load: &Load, warnings: &[String], report: &Report) -> String {
    let mut seconds = Table::new(["second", "asked", "sent", "refused", "calls"]);
    for second in &report.each_second {
        seconds.row([
            second.second.to_string(),
            or_dash(second.asked),
            grouped(second.sent),
            grouped(second.refused),
            grouped(second.calls),
        ]);
    }
    let mut text: String = warnings.iter().map(|warning| format!("warning: {warning}\n")).collect();
    text += &seconds.text();
    text += &format!(
        "\nsent {} datagrams to {} in {:.3} s: {} a second, {:.1} Mbit/s of payload, run {:04x}\n",
        grouped(report.sent),
        load.to,
        report.seconds,
        grouped(report.rate.round() as u64),
        report.bytes as f64 * 8.0 / report.seconds / 1e6,
        report.run,
    );
    if let (Some(asked), Some(error)) = (report.asked, report.pacing_error_percent) {
        text += &format!("asked {}, pacing error {error:.3} %", grouped(asked));
        if let Some(late) = &report.lateness {
            text += &format!(
                "; late by {:.1} us p50, {:.1} us p99, {:.1} us at most",
                late.p50_us, late.p99_us, late.max_us
            );
        }
        text.push('\n');
    }
    text += &format!(
        "{} calls, {:.1} datagrams each; {:.3} s of CPU, {:.0} ns a datagram\n",
        grouped(report.calls),
        report.sent as f64 / report.calls.max(1) as f64,
        report.cpu_seconds,
        report.cpu_seconds * 1e9 / report.sent.max(1) as f64,
    );
    text += &list("refused", "datagrams; the receiver misses their sequences", &report.refused);
    text += &list("answered", "times, about datagrams sent before", &report.answers);
    text += &list("repeated", "calls, because the kernel had no buffers", &report.repeated);
    if report.segmentation_refused {
        text += "the route cannot cut trains: the datagrams of --gso went out one by one\n";
    }
    text
}

fn list(what: &str, of: &str, counts: &std::collections::BTreeMap<String, u64>) -> String {
    counts.iter().map(|(name, count)| format!("{what}: {name}, {} {of}\n", grouped(*count))).collect()
}
