//! `udpd bench recv`: receives what `udpd bench send` sends with the real pipeline, and classifies each datagram. Here
//! is the command line and the report: a table of seconds, what was lost and where, how long it took, and bursts.

mod flows;
mod run;
mod tracker;

use std::io::{self, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::PossibleValuesParser;
use serde_json::json;

use self::run::{FLOWS_MAX, RecvProgress, RecvReport, RecvSecond, RecvTask, run};
use self::tracker::{Percentiles, bars_text};
use crate::chart::{self, ChartWords};
use crate::machine::MachineFacts;
use crate::output::{Output, OutputOptions, percent, progress, seconds, usage};
use crate::pacer;
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::logging::{self, LogFormat};
use udpd_base::os::console::stop_on_signal;
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::text::advice::ValueAdvice;
use udpd_base::text::tables::{TextTable, grouped};
use udpd_base::text::units;
use udpd_engine::config::{ENGINES, EngineKind};
use udpd_engine::pipeline::Lane;

/// How long the last log lines may take.
const LOG_LIMIT: Duration = Duration::from_millis(200);

/// The most flows: every number there is.
const FLOWS_LIMIT: u64 = 1 << 24;

#[derive(Debug, clap::Args)]
pub struct RecvArguments {
    /// Listen here
    #[arg(long, value_name = "ADDR")]
    listen: String,
    /// Join this multicast group; several times for several
    #[arg(long, value_name = "GROUP", value_parser = group)]
    group: Vec<IpAddr>,
    /// Where to join them [default: the interface of the route]
    #[arg(long, value_name = "IF", requires = "group")]
    interface: Option<String>,
    /// How many lanes [default: as many as `lanes = "auto"` gives]
    #[arg(long, value_name = "N")]
    lanes: Option<usize>,
    /// How to receive
    #[arg(long, default_value = "auto", value_parser = engines())]
    engine: String,
    /// Take trains of equal datagrams in one buffer (UDP_GRO)
    #[arg(long, value_enum, default_value = "off")]
    gro: Switch,
    /// Handle datagrams on the receivers' own threads, as a sink with `inline = true` does
    #[arg(long)]
    inline: bool,
    /// Let datagrams gather this long after a short batch, such as 1ms
    #[arg(long, value_name = "D", default_value = "0ms")]
    gather: String,
    /// The longest payload to check in full
    #[arg(long, value_name = "SIZE", default_value = "2KiB")]
    max_length: String,
    /// End after this many seconds [default: when interrupted]
    #[arg(long, value_name = "S")]
    seconds: Option<String>,
    /// End after this many datagrams, or a second of silence once some have come
    #[arg(long, value_name = "N")]
    expect: Option<String>,
    /// Exit with 3 when more than this is lost, such as 0.5%
    #[arg(long, value_name = "LIMIT%")]
    loss: Option<String>,
    /// How many flows to follow, such as 1M: 8 KiB each up to 16,384, beyond that 128 MiB and 70 bytes each [default:
    /// 1024]
    #[arg(long, value_name = "N")]
    flows: Option<String>,
    #[command(flatten)]
    output: OutputOptions,
    /// Draw the arrivals of each millisecond into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

fn engines() -> PossibleValuesParser {
    // It listens on an address, and knows no interface.
    let of_sockets = ENGINES.iter().filter(|(_, engine)| *engine != Some(EngineKind::AfXdp));
    PossibleValuesParser::new(of_sockets.map(|(name, _)| name))
}

fn group(text: &str) -> Result<IpAddr, String> {
    let group = text.parse().ok().filter(IpAddr::is_multicast);
    group.ok_or_else(|| "it is no multicast group; write 239.1.1.1, for example".to_owned())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

impl RecvArguments {
    pub fn task(&self) -> Result<RecvTask, Failure> {
        let max_length = units::parse_size(&self.max_length).map_err(|advice| usage("--max-length", &advice))?;
        let max_length_bytes = usize::try_from(max_length).ok().filter(|bytes| (1..=65_535).contains(bytes));
        let expect = self.expect.as_deref().map(pacer::parse_count).transpose();
        Ok(RecvTask {
            groups: self.group.clone(),
            interface: self.interface.clone(),
            lanes: self.lanes,
            engine: ENGINES.iter().find(|(name, _)| *name == self.engine).and_then(|(_, engine)| *engine),
            gro: self.gro == Switch::On,
            inline: self.inline,
            gather: units::parse_duration(&self.gather).map_err(|advice| usage("--gather", &advice))?,
            max_length_bytes: max_length_bytes.ok_or_else(|| {
                let what = format!("{:?} is outside 1 to 65535 bytes", self.max_length);
                usage("--max-length", &ValueAdvice::new(what, "leave it out for 2KiB"))
            })?,
            duration: self.seconds.as_deref().map(|text| seconds("--seconds", text)).transpose()?,
            expect: expect.map_err(|advice| usage("--expect", &advice))?,
            flows_max: self.flows_max()?,
            listen: self.listen.clone(),
        })
    }

    fn flows_max(&self) -> Result<usize, Failure> {
        let Some(text) = &self.flows else { return Ok(FLOWS_MAX) };
        let flows = pacer::parse_count(text).ok().filter(|flows| *flows <= FLOWS_LIMIT);
        flows.and_then(|flows| usize::try_from(flows).ok()).ok_or_else(|| {
            let what = format!("{text:?} is outside 1 to {FLOWS_LIMIT}");
            usage("--flows", &ValueAdvice::new(what, format!("leave it out for {FLOWS_MAX}, or write one such as 1M")))
        })
    }

    fn loss_limit(&self) -> Result<Option<f64>, Failure> {
        self.loss.as_deref().map(|text| percent("--loss", text)).transpose()
    }
}

/// Receives until the end that is asked for, prints the report, and fails when too much was lost.
pub fn execute(arguments: &RecvArguments, out: &mut dyn Write) -> Result<(), Failure> {
    let (task, limit) = (arguments.task()?, arguments.loss_limit()?);
    let stop = stop_on_signal(|| ())?;
    let logger = logging::start(log::LevelFilter::Warn, LogFormat::Text, io::stderr(), &ThreadRegistry::new().0)?;
    let outcome = receive(arguments, &task, limit, &stop, out);
    logger.finish(LOG_LIMIT);
    outcome
}

fn receive(
    arguments: &RecvArguments,
    task: &RecvTask,
    limit: Option<f64>,
    stop: &AtomicBool,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let output = Output::of(&arguments.output, arguments.svg.as_ref(), Duration::ZERO)?;
    let mut tell = |told: RecvProgress<'_>| match told {
        // Scripts wait for this line, so it comes also where stderr is no terminal.
        RecvProgress::Ready(lanes) => drop(writeln!(io::stderr(), "{}", ready(lanes))),
        RecvProgress::Second(second) => progress(|| second_line(second) + "\n"),
    };
    let report = run(task, stop, &mut tell)?;
    let engine = task.engine.map_or("auto".to_owned(), |engine| engine.to_string());
    let asked = json!({
        "listen": task.listen, "lanes": task.lanes, "engine": engine, "gro": task.gro, "inline": task.inline,
        "gather_us": task.gather.as_micros() as u64, "max_length": task.max_length_bytes,
        "seconds": task.duration.map(|duration| duration.as_secs_f64()), "expect": task.expect,
        "flows_max": task.flows_max,
    });
    output.print(out, json!({ "asked": asked }), &report, || text(&report))?;
    output.write(|| seconds_table(&report).csv(), || chart(&output.machine, &report))?;
    limit.map_or(Ok(()), |limit| judge(&report, limit))
}

/// Whether the loss is within the limit. A run in which nothing came has not passed anything.
fn judge(report: &RecvReport, limit: f64) -> Result<(), Failure> {
    let RecvReport { counts, lost, loss_percent, .. } = report;
    if counts.received == 0 {
        let text = "received nothing, so there is no loss to judge; start the receiver first, then udpd bench send \
                    --to its address";
        return Err(Failure::new(ExitCode::Loss, text));
    }
    if *loss_percent > limit {
        let all = lost + counts.received;
        let text = format!(
            "lost {loss_percent:.4} % ({lost} of {all} datagrams), more than --loss {limit}%; the layers above say \
             where"
        );
        return Err(Failure::new(ExitCode::Loss, text));
    }
    Ok(())
}

/// Only this many flows are printed one by one.
const FLOWS_SHOWN: usize = 32;

/// The line that says that a sender may begin.
fn ready(lanes: &[Lane]) -> String {
    let address = lanes.first().map_or_else(String::new, |lane| lane.address.to_string());
    let buffer: usize = lanes.iter().filter_map(|lane| Some(lane.buffer?.granted_bytes)).sum();
    let noun = if lanes.len() == 1 { "lane" } else { "lanes" };
    format!("receiving on {address}, {} {noun}, {buffer} bytes of receive buffer", lanes.len())
}

/// The line of a second while it runs.
fn second_line(second: &RecvSecond) -> String {
    let RecvSecond { second: number, counts, lost, residence, .. } = second;
    let p99 = residence.as_ref().map_or_else(|| "-".to_owned(), |part| format!("{:.0} us", part.p99_us));
    format!("{number:>4} s: received {}, lost {lost}, residence p99 {p99}", grouped(counts.received))
}

fn seconds_table(report: &RecvReport) -> TextTable {
    let mut table = TextTable::new([
        "second",
        "received",
        "lost",
        "duplicated",
        "reordered",
        "corrupted",
        "one_way_p50_us",
        "one_way_p99_us",
        "residence_p50_us",
        "residence_p99_us",
    ]);
    for second in &report.each_second {
        let RecvSecond { counts, one_way, residence, .. } = second;
        let us = |part: &Option<Percentiles>, field: fn(&Percentiles) -> f64| {
            part.as_ref().map_or_else(String::new, |part| format!("{:.1}", field(part)))
        };
        table.row([
            second.second.to_string(),
            counts.received.to_string(),
            second.lost.to_string(),
            counts.duplicated.to_string(),
            counts.reordered.to_string(),
            counts.corrupted.to_string(),
            us(one_way, |part| part.p50_us),
            us(one_way, |part| part.p99_us),
            us(residence, |part| part.p50_us),
            us(residence, |part| part.p99_us),
        ]);
    }
    table
}

fn text(report: &RecvReport) -> String {
    let mut text = seconds_table(report).text();
    text += &totals(report);
    text += &format!("\nlost, by layer\n{}", layers(report).text());
    let flows = flows(report);
    if !flows.is_empty() {
        text += &format!("\n{}", flows.text());
    }
    if report.flow_count > FLOWS_SHOWN {
        text += &format!(
            "and {} more flows, see --json; all were followed over their last {} sequences, in {} MiB\n",
            grouped((report.flow_count - FLOWS_SHOWN) as u64),
            grouped(report.flow_window),
            report.flow_memory_bytes.div_ceil(1 << 20),
        );
    }
    text += &format!("\n{}", latencies(report).text());
    text += &arrivals(report);
    text += &notes(report);
    text
}

fn totals(report: &RecvReport) -> String {
    let RecvReport { counts, lost, loss_percent, seconds, used, .. } = report;
    let each_ns = |ns: u64| ns as f64 / counts.arrived.max(1) as f64;
    let machine = used.machine_ns.map_or_else(|| "-".to_owned(), |ns| format!("{:.0}", each_ns(ns)));
    format!(
        "\n\
         received {} datagrams in {seconds:.3} s, lost {} ({loss_percent:.4} %), duplicated {}, reordered {}, late \
         {}, corrupted {}\n\
         CPU ns a datagram: receivers {:.0}, consumer {:.0}, this process {:.0}, the machine {machine}\n",
        grouped(counts.received),
        grouped(*lost),
        grouped(counts.duplicated),
        grouped(counts.reordered),
        grouped(counts.late),
        grouped(counts.corrupted),
        each_ns(used.threads_ns("rx")),
        each_ns(used.threads_ns("sink")),
        each_ns(used.process_ns),
    )
}

fn layers(report: &RecvReport) -> TextTable {
    let layers = &report.layers;
    let mut table = TextTable::new(["layer", "lost"]);
    for lane in &layers.kernel {
        let cpu = lane.cpu.map_or_else(String::new, |cpu| format!(" (core {cpu})"));
        let unit =
            if layers.kernel_unit == "datagrams" { String::new() } else { format!(", in {}", layers.kernel_unit) };
        table.row([
            format!("receive buffer of lane {}{cpu}{unit}", lane.lane),
            lane.dropped.map_or_else(|| "unknown".to_owned(), grouped),
        ]);
    }
    for (name, count) in [
        ("no empty batch", layers.no_batch),
        ("trains that could not be split", layers.unsplit),
        ("channel to the consumer", layers.queue_full),
        ("corrupted", layers.corrupted),
    ] {
        table.row([name.to_owned(), grouped(count)]);
    }
    let elsewhere = layers.elsewhere.map_or_else(|| "unknown".to_owned(), |count| count.to_string());
    table.row(["before the socket".to_owned(), elsewhere]);
    table
}

fn flows(report: &RecvReport) -> TextTable {
    let mut table = TextTable::new(["flow", "received", "lost", "duplicated", "reordered", "late"]);
    for flow in report.flows.iter().take(FLOWS_SHOWN) {
        table.row([
            format!("{:04x}/{}", flow.run, flow.flow),
            grouped(flow.received),
            grouped(flow.lost()),
            grouped(flow.duplicated),
            grouped(flow.reordered),
            grouped(flow.late),
        ]);
    }
    table
}

fn latencies(report: &RecvReport) -> TextTable {
    let mut table = TextTable::new(["us", "p50", "p90", "p99", "p99.9", "p99.99", "max", "timed", "behind"]);
    let parts = [
        ("sender to kernel", &report.network),
        ("residence: kernel to consumer", &report.residence),
        ("one way: sender to consumer", &report.one_way),
    ];
    for (name, part) in parts {
        let Some(part) = part else { continue };
        let us = [part.p50_us, part.p90_us, part.p99_us, part.p99_9_us, part.p99_99_us, part.max_us];
        let cells = us.iter().map(|us| format!("{us:.1}")).chain([grouped(part.count), grouped(part.behind)]);
        table.row(std::iter::once(name.to_owned()).chain(cells));
    }
    table
}

fn arrivals(report: &RecvReport) -> String {
    let arrivals = &report.arrivals;
    format!(
        "\n\
         arrivals per millisecond: {:.1} on average; at most {} in 1 ms, {} in 10 ms, {} in 100 ms\n\
         {:>15}  {:>9}\n\
         {}",
        arrivals.mean,
        grouped(arrivals.peak_1ms),
        grouped(arrivals.peak_10ms),
        grouped(arrivals.peak_100ms),
        "arrivals",
        "ms",
        bars_text(&arrivals.histogram),
    )
}

/// What limits the meaning of the figures.
fn notes(report: &RecvReport) -> String {
    let counts = &report.counts;
    let joined = report.flows.iter().filter(|flow| flow.first_expected > 0).count() as u64;
    [
        (counts.short, "below 16 bytes: counted; only --expect shows a loss or a repeat among them"),
        (counts.foreign, "not sent by udpd bench send"),
        (counts.truncated, "longer than --max-length: only their heads were checked"),
        (counts.untracked, "of flows beyond --flows: counted in no other figure"),
        (counts.other_clock, "sent by another clock: their one-way times include the difference of the clocks"),
        (joined, "flows had begun long before: counted from their first datagram here; start the receiver first"),
        (report.layers.after_the_end.unwrap_or(0), "arrived after the end, and are not lost"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("note: {} {what}\n", grouped(count)))
    .collect()
}

fn chart(machine: &MachineFacts, report: &RecvReport) -> String {
    let unknown = "unknown";
    let title = format!(
        "{} datagrams received, {} lost: arrivals per millisecond",
        grouped(report.counts.received),
        grouped(report.lost)
    );
    let subtitle = format!(
        "kernel {}, {}, {} cores; bars: the busiest millisecond at that point; line: the mean",
        machine.kernel.as_deref().unwrap_or(unknown),
        machine.cpu.as_deref().unwrap_or(unknown),
        machine.core_count
    );
    chart::timeline(ChartWords { title: &title, subtitle: &subtitle, unit: "per ms" }, &report.timeline, 1.0)
}
