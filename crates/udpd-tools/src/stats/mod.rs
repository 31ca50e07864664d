//! `udpd stats`: one reading of the ledger of the running daemon, for people or as JSON.
//!
//! The table shows each sum of the ledger next to its terms, so that a loss can be followed from the listener to the
//! layer and the reason without a calculator. Below it stands what the host as a whole lost since the daemon started:
//! each loss once, with its cause in the kernel's own words, and what cannot be seen.

pub mod fleet;

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::io::Write;
use std::time::UNIX_EPOCH;

use hostloss::{HostReading, KernelTable as _, Loss, Losses, tables};
use serde::Serialize;

use udpd_base::exit::{ExitCode, Failure};
use udpd_base::ledger::counter_list::FileTally;
use udpd_base::ledger::snapshot::{
    LaneSnapshot, ListenerSnapshot, ListenerStreams, SharerSnapshot, SinkSnapshot, Snapshot, StreamSnapshot, Takes,
    UpstreamSnapshot,
};
use udpd_base::ledger::{CounterTable as _, LedgerCounter, SideCounts};
use udpd_base::os::console;
use udpd_base::seams::clock;
use udpd_base::text::tables::{TextTable, grouped, or_dash};
use udpd_base::text::units::print_seconds;
use udpd_endpoint::control::Connection;
use udpd_engine::plan::memory::Bytes;

/// How many of the busiest senders of a lane are printed.
const SENDERS_PRINTED: usize = 3;

/// How many of the streams that lost most.
const STREAMS_PRINTED: usize = 8;

/// Asks the daemon that has been reached, and writes what it says.
///
/// A reader that closes the pipe early, as `head` does, has what it wanted and is not an error.
pub fn execute(daemon: Connection, json: bool, streams: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let text = if streams {
        let all = daemon.streams()?;
        if json { to_json(&all)? } else { render_streams(&all) }
    } else {
        let snapshot = daemon.stats()?;
        if json { to_json(&snapshot)? } else { render(&snapshot) }
    };
    console::print(out, &text)
}

fn to_json(what: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string(what)
        .map_err(|error| Failure::new(ExitCode::Failure, format!("cannot write the ledger as JSON: {error}")))?;
    Ok(text + "\n")
}

/// All streams that the daemon remembers, those first that lost most.
fn render_streams(all: &[ListenerStreams]) -> String {
    let mut text = String::new();
    if all.is_empty() {
        text.push_str("no listener has a sequence, so no streams are followed; see docs/upstream.md\n");
    }
    for ListenerStreams { listener, streams } in all {
        let _ = writeln!(text, "listener {listener}: {} streams", grouped(streams.len() as u64));
        let mut streams: Vec<_> = streams.iter().collect();
        streams.sort_by_key(|stream| (Reverse(stream.missing_at_most), stream.source, stream.port));
        push_table(&mut text, streams.into_iter().map(stream).collect());
    }
    text
}

pub fn render(snapshot: &Snapshot) -> String {
    let mut text = format!("udpd {}, up {}\n", snapshot.version, duration(snapshot.uptime_seconds));
    if snapshot.log_lines_lost > 0 {
        let _ = writeln!(text, "log lines lost: {}", grouped(snapshot.log_lines_lost));
    }
    if let Some(before) = snapshot.before.filter(|before| !before.ended) {
        let known = |count: Option<u64>| count.map_or("an unknown number".to_owned(), grouped);
        let most = before
            .lost_datagrams_at_most
            .map_or("an unknown number of".to_owned(), |most| format!("at most {}", grouped(most)));
        let _ = writeln!(text, "the process before (pid {}) was killed: it lost {most} datagrams", before.pid);
        let (by_kernel, by_itself) = (known(before.kernel_dropped), known(before.dropped));
        let _ = writeln!(text, "  until then the kernel had dropped {by_kernel} and it had dropped {by_itself} itself");
    }
    if let Some(readiness) = snapshot.readiness.as_ref().filter(|readiness| !readiness.ready) {
        let _ = writeln!(text, "not ready: {}: {}", readiness.reason, readiness.text);
    }
    if let Some(drain) = &snapshot.drain {
        let ago = |at: f64| duration((clock::seconds_since_1970() - at).max(0.0));
        let last = drain.last_arrived.map_or_else(|| "none".to_owned(), |at| format!("the last one {} ago", ago(at)));
        let (began, arrived) = (ago(drain.since), grouped(drain.arrived));
        let _ = writeln!(text, "draining since {began} ago: {arrived} datagrams have arrived since then, {last}");
    }
    for listener in &snapshot.listeners {
        let _ = writeln!(text, "\nlistener {} on {}", listener.name, listener.address);
        push_sharers(&mut text, listener.shared_with.as_deref());
        push_sums(&mut text, listener);
        let counted = |group: &&str| listener.sinks.iter().flat_map(|own| of_group(own, group)).any(|(_, n)| n > 0);
        let hidden: Vec<&str> = RARE.into_iter().filter(|group| !counted(group)).collect();
        push_table(&mut text, listener.sinks.iter().map(|own| sink(own, &hidden)).collect());
        push_table(&mut text, listener.sinks.iter().filter_map(residence).collect());
        push_table(&mut text, files(&listener.sinks));
        push_table(&mut text, listener.sinks.iter().flat_map(destinations).collect());
        push_table(&mut text, listener.sinks.iter().flat_map(connections).collect());
        push_table(&mut text, listener.sinks.iter().flat_map(refusals).collect());
        let worst = listener.upstream.iter().flat_map(|upstream| &upstream.worst).take(STREAMS_PRINTED);
        push_table(&mut text, worst.map(stream).collect());
        push_table(&mut text, listener.lanes.iter().map(lane).collect());
        push_table(&mut text, listener.lanes.iter().filter_map(queue).collect());
        push_table(&mut text, listener.lanes.iter().flat_map(senders).collect());
    }
    for (name, sides) in snapshot.feeds().into_iter().filter(|(_, sides)| sides.len() > 1) {
        let _ = writeln!(text, "\nfeed {name}: what each of its sides brought");
        push_table(&mut text, sides.iter().map(side).collect());
    }
    text + &render_host(&snapshot.host)
}

/// Who else is on the port of a listener, and what that costs it.
fn push_sharers(text: &mut String, sharers: Option<&[SharerSnapshot]>) {
    let Some(sharers) = sharers else {
        text.push_str("  shared with: unknown\n");
        return;
    };
    for sharer in sharers {
        let who = match (&sharer.command, sharer.pid) {
            (Some(command), Some(pid)) => format!("{command} (pid {pid})"),
            (None, Some(pid)) => format!("pid {pid}"),
            (_, None) => format!("a process of uid {}", sharer.uid),
        };
        let takes = match sharer.takes {
            Takes::Share => "a share of the datagrams",
            Takes::Part => "what fits that address",
            Takes::Nothing => "nothing of this listener's",
        };
        let (sockets, address) = (sharer.sockets, &sharer.address);
        let noun = if sockets == 1 { "socket" } else { "sockets" };
        let _ = writeln!(text, "  shared with {who}: {sockets} {noun} on {address}, taking {takes}");
    }
}

/// What arrived at a listener and where it went before the sinks.
fn push_sums(text: &mut String, listener: &ListenerSnapshot) {
    let counts = &listener.counts;
    let unit = &listener.kernel_dropped_unit;
    let beside = counts.values().filter(|(counter, _)| counter.name != "received");
    let mut rows = vec![
        ("arrived", or_dash(listener.arrived), "datagrams".to_owned()),
        ("kernel dropped", or_dash(listener.kernel_dropped), unit.clone()),
        ("received", grouped(counts.received), terms(beside)),
        ("dropped", grouped(counts.dropped.total()), reasons(listener)),
    ];
    if let Some(upstream) = &listener.upstream {
        push_upstream(&mut rows, upstream, listener.arrived);
    }
    let between = listener.kernel_dropped_between.filter(|between| *between > 0);
    let while_nobody =
        |between| ("dropped between processes", grouped(between), format!("{unit}, while no process looked"));
    rows.extend(between.map(while_nobody));
    rows.extend(listener.wrong_cpu.map(|wrong| ("on the wrong core", grouped(wrong), unit.clone())));
    let (residual, verdict) = match listener.residual {
        None => ("-".to_owned(), "unknown, because a term is unknown"),
        Some(0) => ("0".to_owned(), "the sums agree"),
        Some(residual) => {
            let sign = if residual < 0 { "-" } else { "" };
            (
                format!("{sign}{}", grouped(residual.unsigned_abs())),
                "the sums disagree, which is a bug of udpd: please report it",
            )
        }
    };
    rows.push(("residual", residual, verdict.to_owned()));
    let name_width = rows.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
    let width = rows.iter().map(|(_, number, _)| number.len()).max().unwrap_or(0);
    for (name, number, note) in rows {
        let _ = writeln!(text, "  {name:<name_width$}  {number:>width$}  {note}");
    }
}

/// Why datagrams were dropped; of the many reasons only those that there were.
fn reasons(listener: &ListenerSnapshot) -> String {
    let text = terms(listener.counts.dropped.values().filter(|(_, value)| *value > 0));
    if text.is_empty() { "datagrams".to_owned() } else { text }
}

/// What never reached this host: first, and what was sent before that where it can be said.
fn push_upstream(rows: &mut Vec<(&str, String, String)>, upstream: &UpstreamSnapshot, arrived: Option<u64>) {
    let unit = &upstream.unit;
    let (least, most) = (grouped(upstream.missing_at_least), grouped(upstream.missing_at_most));
    let bounds = match upstream.missing {
        Some(_) => unit.clone(),
        None => format!("{unit}, at least {least}, at most {most}"),
    };
    let others = [("unseen", upstream.unseen), ("unnumbered", upstream.unnumbered)];
    let others = others.iter().filter(|(_, count)| *count > 0);
    let others: String = others.map(|(name, count)| format!(", {name} {}", grouped(*count))).collect();
    let note = format!("{bounds}; {}{others}", terms(upstream.counts.values()));
    rows.insert(0, ("missing upstream", or_dash(upstream.missing), note));
    if unit == "datagrams" {
        let sent = arrived.zip(upstream.missing).map(|(arrived, missing)| arrived + missing);
        rows.insert(0, ("sent", or_dash(sent), "arrived, and missing upstream".to_owned()));
    }
}

fn terms(values: impl Iterator<Item = (&'static LedgerCounter, u64)>) -> String {
    named(values).map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}

/// One row of a table: each cell with the heading of its column.
type Row = Vec<(String, String)>;

/// Counters as cells of a row.
fn named(values: impl Iterator<Item = (&'static LedgerCounter, u64)>) -> impl Iterator<Item = (String, String)> {
    values.map(|(counter, value)| (counter.words(), grouped(value)))
}

fn cell(heading: &str, cell: impl ToString) -> (String, String) {
    (heading.to_owned(), cell.to_string())
}

/// What only a sink with a spill counts, one that writes streams, and a relay with `templates`: columns where one has
/// counted some.
const RARE: [&str; 3] = ["spill", "stream", "templates"];

/// The counts of a sink whose names begin so.
fn of_group(sink: &SinkSnapshot, group: &str) -> impl Iterator<Item = (&'static LedgerCounter, u64)> {
    let counts = sink.counts.values().chain(sink.counts.dropped.values());
    counts.filter(move |(counter, _)| counter.name.starts_with(group))
}

fn sink(sink: &SinkSnapshot, hidden: &[&str]) -> Row {
    let mut row = vec![cell("sink", &sink.name), cell("offered", grouped(sink.offered))];
    let counts = sink.counts.values().chain(sink.counts.dropped.values());
    let is_shown = |counter: &LedgerCounter| !hidden.iter().any(|group| counter.name.starts_with(group));
    row.extend(named(counts.filter(|(counter, _)| is_shown(counter))));
    let bytes = |count: u64| Bytes(usize::try_from(count).unwrap_or(usize::MAX));
    let queued = match sink.inline {
        true => "inline".to_owned(),
        false => format!("{} of {}", bytes(sink.queue_depth), bytes(sink.queue_capacity)),
    };
    row.extend([cell("in flight", grouped(sink.in_flight)), cell("queued", queued)]);
    row
}

/// How long datagrams stayed on their way to a sink.
fn residence(sink: &SinkSnapshot) -> Option<Row> {
    let residence = sink.residence.as_ref()?;
    let quantile = |seconds: Option<f64>| seconds.map_or_else(|| "more than 700 s".to_owned(), print_seconds);
    Some(vec![
        cell("residence of", &sink.name),
        cell("sampled", grouped(residence.count)),
        cell("p50", quantile(residence.p50_seconds)),
        cell("p99", quantile(residence.p99_seconds)),
        cell("p99.9", quantile(residence.p999_seconds)),
    ])
}

/// What sinks count of their files. Compression, uploads and files by source have columns only where a sink has counted
/// some: most have none of them, and the table is wide.
fn files(sinks: &[SinkSnapshot]) -> Vec<Row> {
    let sinks: Vec<_> = sinks.iter().filter_map(|sink| Some((&sink.name, &sink.files.as_ref()?.counts))).collect();
    let group = |counter: &LedgerCounter| match counter.name {
        "sources" | "overflow" => 2,
        name if name.contains("compress") => 1,
        name if name.contains("upload") || name == "removed_unsent" => 3,
        _ => 0,
    };
    let mut is_shown = [true, false, false, false];
    for (counter, count) in sinks.iter().flat_map(|(_, counts)| counts.values()) {
        is_shown[group(counter)] |= count > 0;
    }
    let row = |(name, counts): (&String, &FileTally)| {
        let shown = counts.values().filter(|(counter, _)| is_shown[group(counter)]);
        std::iter::once(cell("files of", name)).chain(named(shown)).collect()
    };
    sinks.into_iter().map(row).collect()
}

fn destinations(sink: &SinkSnapshot) -> impl Iterator<Item = Row> {
    sink.destinations.iter().map(|destination| {
        let head = [cell("destination of", &sink.name), cell("address", &destination.address)];
        head.into_iter().chain(named(destination.counts.values())).collect()
    })
}

fn connections(sink: &SinkSnapshot) -> impl Iterator<Item = Row> {
    sink.peers.connections.iter().map(|connection| {
        let now = clock::seconds_since_1970();
        let ago = |at: f64| format!("{} ago", duration((now - at).max(0.0)));
        let since = if connection.since > 0.0 { ago(connection.since) } else { "-".to_owned() };
        let error = match (&connection.error, connection.error_at) {
            (Some(error), Some(at)) => format!("{}: {error}", ago(at)),
            _ => "-".to_owned(),
        };
        vec![
            cell("connection of", &sink.name),
            cell("peer", &connection.peer),
            cell("state", connection.state.name()),
            cell("since", since),
            cell("on the way", grouped(connection.on_the_way)),
            cell("last error", error),
        ]
    })
}

fn refusals(sink: &SinkSnapshot) -> impl Iterator<Item = Row> {
    sink.peers.refusals.iter().map(|refusal| {
        vec![
            cell("refused by", &sink.name),
            cell("reason", &refusal.reason),
            cell("datagrams", grouped(refusal.datagrams)),
        ]
    })
}

fn lane(lane: &LaneSnapshot) -> Row {
    let number = |number: Option<usize>| or_dash(number.map(|number| number as u64));
    let (received, calls) = (lane.counts.received, lane.counts.calls);
    let per_call = if calls == 0 { "-".to_owned() } else { format!("{:.1}", received as f64 / calls as f64) };
    vec![
        cell("lane", lane.lane),
        cell("cpu", number(lane.cpu)),
        cell("node", number(lane.node)),
        cell("queue", number(lane.queue)),
        cell("received", grouped(received)),
        cell("kernel dropped", or_dash(lane.kernel_dropped)),
        cell("wrong core", or_dash(lane.wrong_cpu)),
        cell("datagrams per call", per_call),
        cell("buffer used", grouped(lane.receive_buffer_used_bytes)),
        cell("buffer max", grouped(lane.receive_buffer_bytes)),
        cell("engine", &lane.engine),
        cell("address", &lane.address),
    ]
}

/// A stream, by the exporter that sends it.
fn stream(stream: &StreamSnapshot) -> Row {
    let (least, most) = (grouped(stream.missing_at_least), grouped(stream.missing_at_most));
    let missing = if stream.missing.is_some() { most } else { format!("{least} to {most}") };
    let state = match (stream.losing, stream.silent) {
        (_, true) => "silent",
        (true, false) => "losing",
        (false, false) => "-",
    };
    let now = clock::wall().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    vec![
        cell("exporter", stream.source),
        cell("port", stream.port),
        cell("to", stream.destination.map_or_else(|| "-".to_owned(), |to| to.to_string())),
        cell("domain", if stream.domain.is_empty() { "-" } else { &stream.domain }),
        cell("arrived", grouped(stream.arrived)),
        cell("missing", missing),
        cell("duplicate", grouped(stream.duplicate)),
        cell("unit", &stream.unit),
        cell("since", format!("{} ago", duration(now.saturating_sub(stream.since) as f64))),
        cell("state", state),
    ]
}

/// One side of a feed.
fn side(side: &SideCounts) -> Row {
    vec![
        cell("side", &side.listener),
        cell("address", &side.address),
        cell("first", grouped(side.first)),
        cell("after another", grouped(side.second)),
        cell("repeated", grouped(side.repeated)),
        cell("not, or not yet", grouped(side.missing)),
    ]
}

/// What a lane has instead of a socket.
fn queue(lane: &LaneSnapshot) -> Option<Row> {
    let xdp = lane.xdp.as_ref()?;
    let written_by = match xdp.zero_copy {
        Some(true) => "the device",
        Some(false) => "the kernel",
        None => "-",
    };
    Some(vec![
        cell("lane past the stack", lane.lane),
        cell("interface", &xdp.interface),
        cell("mode", &xdp.mode),
        cell("state", xdp.state.replace('_', " ")),
        cell("frames written by", written_by),
        cell("chunks", grouped(xdp.chunks)),
        cell("waiting", grouped(xdp.waiting)),
        cell("checksum left to device", grouped(xdp.checksum_left_to_device)),
    ])
}

/// Who sends most to a lane, as far as it is worth a line each.
fn senders(lane: &LaneSnapshot) -> impl Iterator<Item = Row> {
    lane.senders.iter().take(SENDERS_PRINTED).map(|sender| {
        vec![
            cell("busiest on lane", lane.lane),
            cell("sender", sender.address),
            cell("port", sender.port.map_or_else(|| "several".to_owned(), |port| port.to_string())),
            cell("share", format!("{:.1} %", 100.0 * sender.share)),
        ]
    })
}

/// Writes rows below an empty line, indented; nothing where there are none.
fn push_table(text: &mut String, rows: Vec<Row>) {
    let Some(first) = rows.first() else { return };
    let mut table = TextTable::new(first.iter().map(|(heading, _)| heading.as_str()));
    rows.into_iter().for_each(|row| table.row(row.into_iter().map(|(_, cell)| cell)));
    text.push('\n');
    for line in table.text().lines() {
        let _ = writeln!(text, "  {line}");
    }
}

/// A time in the one or two largest units that matter.
fn duration(seconds: f64) -> String {
    if seconds < 60.0 {
        return format!("{seconds:.1} s");
    }
    let seconds = seconds as u64;
    match seconds {
        0..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", grouped(seconds / 86_400), seconds / 3600 % 24),
    }
}

/// The section of the host. Empty where the daemon did not read the host, as an older udpd does not.
fn render_host(host: &HostReading) -> String {
    if host == &HostReading::default() {
        return String::new();
    }
    let Losses { lost, total, unseen, .. } = &host.lost;
    let mut text =
        "\nhost, since udpd started; packets that were not UDP are among those of layers below udp\n".to_owned();
    if lost.is_empty() {
        text.push_str("  lost  0, as far as this host can see\n");
    } else {
        let counts: Vec<String> = lost.iter().map(|loss| grouped(loss.count)).collect();
        let sum = grouped(*total);
        let width = counts.iter().map(String::len).max().unwrap_or(0).max(sum.len());
        let _ = writeln!(text, "  lost  {sum:>width$}");
        for (loss, count) in lost.iter().zip(counts) {
            let Loss { layer, counter, place, unit, .. } = loss;
            let why = counter_of(loss).map_or("", |counter| counter.help).replace('`', "");
            let _ = writeln!(
                text,
                "        {count:>width$}  {} {counter} of {place} ({}). {why}",
                layer.name(),
                unit.name()
            );
        }
    }
    for unseen in unseen {
        let _ = writeln!(text, "  not known: {}", unseen.what);
    }
    text
}

/// The declaration of the counter that a loss was counted by.
pub(crate) fn counter_of(loss: &Loss) -> Option<&'static hostloss::KernelCounter> {
    use tables::{Conntrack, Ip, LinkCounters, SocketCounts, Udp};
    let all = [LinkCounters::COUNTERS, Conntrack::COUNTERS, Ip::COUNTERS, Udp::COUNTERS, SocketCounts::COUNTERS];
    all.into_iter().flatten().find(|counter| counter.layer == loss.layer && counter.name == loss.counter)
}

#[cfg(test)]
mod tests;
