//! The report of `udpd bench recv` for people: a table of seconds, what was lost and where, how long it took, and
//! bursts.

use super::latency::Percentiles;
use super::report::{Report, Second};
use super::timeline;
use crate::chart;
use crate::chart::Words;
use crate::machine::Machine;
use udpd_base::text::tables::{TextTable, grouped};
use udpd_engine::pipeline::Lane;

/// More flows than this are summed up.
const FLOWS_SHOWN: usize = 32;

/// The line that says that a sender may begin.
pub(super) fn ready(lanes: &[Lane]) -> String {
    let address = lanes.first().map_or_else(String::new, |lane| lane.address.to_string());
    let buffer: usize = lanes.iter().filter_map(|lane| Some(lane.buffer?.granted_bytes)).sum();
    let noun = if lanes.len() == 1 { "lane" } else { "lanes" };
    format!("receiving on {address}, {} {noun}, {buffer} bytes of receive buffer", lanes.len())
}

/// The line of a second while it runs.
pub(super) fn progress(second: &Second) -> String {
    let Second { second: number, counts, lost, residence, .. } = second;
    let p99 = residence.as_ref().map_or_else(|| "-".to_owned(), |part| format!("{:.0} us", part.p99_us));
    format!("{number:>4} s: received {}, lost {lost}, residence p99 {p99}", grouped(counts.received))
}

pub(super) fn seconds_table(report: &Report) -> TextTable {
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
        let Second { counts, one_way, residence, .. } = second;
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

pub(super) fn text(warnings: &[String], report: &Report) -> String {
    let mut text: String = warnings.iter().map(|warning| format!("warning: {warning}\n")).collect();
    text += &seconds_table(report).text();
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

fn totals(report: &Report) -> String {
    let Report { counts, lost, loss_percent, seconds, used, .. } = report;
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

fn layers(report: &Report) -> TextTable {
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

fn flows(report: &Report) -> TextTable {
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

fn latencies(report: &Report) -> TextTable {
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

fn arrivals(report: &Report) -> String {
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
        timeline::bars_text(&arrivals.histogram),
    )
}

/// What a reader of the figures must know.
fn notes(report: &Report) -> String {
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

pub(super) fn chart(machine: &Machine, report: &Report) -> String {
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
    chart::timeline(Words { title: &title, subtitle: &subtitle, unit: "per ms" }, &report.timeline, 1.0)
}
