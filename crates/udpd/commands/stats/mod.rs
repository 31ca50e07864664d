//! `udpd stats`: one reading of the ledger of the running daemon, for people or as JSON.
//!
//! The table shows each sum of the ledger next to its terms, so that a loss can be followed from the listener to the
//! layer and the reason without a calculator.

use std::fmt::Write as _;
use std::io::Write;

use crate::endpoint::control::Connection;
use crate::exit::{ExitCode, Failure};
use crate::ledger::Snapshot;
use crate::ledger::snapshot::{LaneSnapshot, ListenerSnapshot, SharerSnapshot, SinkSnapshot, Takes};
use crate::os::console;

/// Asks the daemon that has been reached, and writes what it says.
///
/// A reader that closes the pipe early, as `head` does, has what it wanted and is not an error.
pub fn execute(daemon: Connection, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let snapshot = daemon.stats()?;
    let text = if json {
        let text = serde_json::to_string(&snapshot)
            .map_err(|error| Failure::new(ExitCode::Failure, format!("cannot write the ledger as JSON: {error}")))?;
        text + "\n"
    } else {
        render(&snapshot)
    };
    console::print(out, &text)
}

/// The ledger as text.
pub fn render(snapshot: &Snapshot) -> String {
    let mut text = format!("udpd {}, up {}\n", snapshot.version, duration(snapshot.uptime_seconds));
    if snapshot.log_lines_lost > 0 {
        let _ = writeln!(text, "log lines lost: {}", count(snapshot.log_lines_lost));
    }
    for listener in &snapshot.listeners {
        let _ = writeln!(text, "\nlistener {} on {}", listener.name, listener.address);
        push_sharers(&mut text, listener.shared_with.as_deref());
        push_table(&mut text, &sums(listener), "<><");
        text.push('\n');
        push_table(&mut text, &sinks(&listener.sinks), "<>>>>>>");
        text.push('\n');
        push_table(&mut text, &lanes(&listener.lanes), "<>>>>>>>>><<");
    }
    text
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
fn sums(listener: &ListenerSnapshot) -> Vec<Vec<String>> {
    let dropped = &listener.dropped;
    let reasons = [
        ("truncated", dropped.truncated),
        ("denied", dropped.denied),
        ("rate limited", dropped.rate_limited),
        ("no batch", dropped.no_batch),
        ("unsplit", dropped.unsplit),
        ("unread", dropped.unread),
    ];
    let dropped_total: u64 = reasons.iter().map(|(_, datagrams)| datagrams).sum();
    let by_reason: Vec<String> =
        reasons.iter().map(|(reason, datagrams)| format!("{reason} {}", count(*datagrams))).collect();
    let mut rows = vec![
        row(["arrived", &known(listener.arrived), "datagrams"]),
        row(["kernel dropped", &known(listener.kernel_dropped), &listener.kernel_dropped_unit]),
        row(["received", &count(listener.received), &received_note(listener)]),
        row(["dropped", &count(dropped_total), &by_reason.join(", ")]),
    ];
    if let Some(wrong) = listener.wrong_cpu {
        rows.push(row(["on the wrong core", &count(wrong), &listener.kernel_dropped_unit]));
    }
    let (residual, verdict) = match listener.residual {
        None => ("-".to_owned(), "unknown, because a term is unknown"),
        Some(0) => ("0".to_owned(), "the sums agree"),
        Some(residual) => {
            let sign = if residual < 0 { "-" } else { "" };
            (format!("{sign}{}", count(residual.unsigned_abs())), "the sums disagree: please report it")
        }
    };
    rows.push(row(["residual", &residual, verdict]));
    rows
}

fn received_note(listener: &ListenerSnapshot) -> String {
    format!("{} bytes, {} longer than max_length", count(listener.bytes), count(listener.truncated))
}

fn sinks(sinks: &[SinkSnapshot]) -> Vec<Vec<String>> {
    let mut rows =
        vec![row(["sink", "offered", "delivered", "queue full", "sink error", "in flight", "queued batches"])];
    rows.extend(sinks.iter().map(|sink| {
        row([
            &sink.name,
            &count(sink.offered),
            &count(sink.delivered),
            &count(sink.dropped.queue_full),
            &count(sink.dropped.sink_error),
            &count(sink.in_flight),
            &format!("{} of {}", count(sink.queue_depth), count(sink.queue_capacity)),
        ])
    }));
    rows
}

fn lanes(lanes: &[LaneSnapshot]) -> Vec<Vec<String>> {
    let mut rows = vec![row([
        "lane",
        "cpu",
        "node",
        "queue",
        "received",
        "kernel dropped",
        "wrong core",
        "datagrams per call",
        "buffer used",
        "buffer max",
        "engine",
        "address",
    ])];
    let number = |number: Option<usize>| number.map_or("-".to_string(), |number| number.to_string());
    rows.extend(lanes.iter().map(|lane| {
        row([
            &lane.lane.to_string(),
            &number(lane.cpu),
            &number(lane.node),
            &number(lane.queue),
            &count(lane.received),
            &known(lane.kernel_dropped),
            &lane.wrong_cpu.map_or("-".to_string(), count),
            &per_call(lane.received, lane.calls),
            &count(lane.receive_buffer_used_bytes),
            &count(lane.receive_buffer_bytes),
            &lane.engine,
            &lane.address,
        ])
    }));
    rows
}

fn per_call(received: u64, calls: u64) -> String {
    if calls == 0 { "-".into() } else { format!("{:.1}", received as f64 / calls as f64) }
}

fn row<const COLUMNS: usize>(cells: [&str; COLUMNS]) -> Vec<String> {
    cells.map(String::from).to_vec()
}

/// Writes rows indented and aligned: `alignment` has a `<` for each column of text and a `>` for each column of
/// numbers.
fn push_table(text: &mut String, rows: &[Vec<String>], alignment: &str) {
    let width = |column: usize| rows.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..alignment.len()).map(width).collect();
    for cells in rows {
        let mut line = String::new();
        for ((cell, width), side) in cells.iter().zip(&widths).zip(alignment.chars()) {
            let _ = if side == '<' { write!(line, "  {cell:<width$}") } else { write!(line, "  {cell:>width$}") };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

/// A number, or that nobody knows it.
fn known(number: Option<u64>) -> String {
    number.map_or("-".to_owned(), count)
}

/// A number with a comma between thousands.
fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
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
        _ => format!("{} d {} h", count(seconds / 86_400), seconds / 3600 % 24),
    }
}

#[cfg(test)]
pub(crate) mod tests;
