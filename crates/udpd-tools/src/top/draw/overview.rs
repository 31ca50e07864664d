//! All lanes and sinks, each lane and sink in a row of the way of a datagram from left to right.

use super::super::frame::{Line, Mark, printable};
use super::super::model::{LaneRow, ListenerRow, Model, SinkRow, sum};
use super::super::view::View;
use super::cells::{at_least, bar, channel, fit, percent, quantile, rate, short, trend};
use udpd_base::text::tables::grouped;

/// From this width on there is room for bars and for more of the residence time.
const WIDE: usize = 138;

/// Below this width lanes and sinks stand below each other.
const NARROW: usize = 80;

/// The columns of a bar.
const BAR: usize = 10;

/// A line of the table, and which lane it is.
pub(super) struct Row {
    pub line: Line,
    lane: Option<usize>,
}

/// What fits into so many rows.
pub(super) fn lines(model: &Model, view: &View, width: usize, room: usize) -> Vec<Line> {
    let past = &model.whole;
    let lost = sum([model.layers.socket, model.layers.listener, model.layers.sink].into_iter());
    let mut lines = vec![
        trend("received", model.received, &past.received, width, false),
        trend("lost", lost, &past.lost, width, true),
    ];
    // A low terminal has the lanes rather than their sums.
    if room >= 16 {
        lines.push(Line::default());
        lines.extend(layers(model, width));
        lines.push(Line::default());
    }
    let mut rows = table(model, view, width);
    let heading = rows.remove(0).line;
    lines.push(heading);
    let shown = room.saturating_sub(lines.len()).max(1);
    let chosen = view.chosen(model);
    let place = rows.iter().position(|row| row.lane.is_some() && row.lane == chosen).unwrap_or(0);
    // As far down as the chosen lane needs, and no further.
    let first = (place + 2).saturating_sub(shown).min(rows.len().saturating_sub(shown));
    lines.extend(rows.into_iter().skip(first).take(shown).map(|row| {
        let is_chosen = row.lane.is_some() && row.lane == chosen;
        if is_chosen { Line::of(Mark::Reverse, fit(&row.line.text(), width)) } else { row.line }
    }));
    lines
}

/// What each layer lost, in the order in which a datagram passes them.
pub(super) fn layers(model: &Model, width: usize) -> Vec<Line> {
    let flows = [
        ("nic", model.layers.nic),
        ("softnet", model.layers.softnet),
        ("socket", model.layers.socket),
        ("listener", model.layers.listener),
        ("sink", model.layers.sink),
    ];
    let columns = if width < NARROW { 7 } else { 12 };
    let not_known = |text: Option<String>| {
        let text = text.unwrap_or_else(|| if width < NARROW { "?".to_owned() } else { "not known".to_owned() });
        format!("{text:>columns$}")
    };
    let mut names = Line::of(Mark::Strong, if width < NARROW { "LOST" } else { "LOST      " });
    let mut rates = Line::of(Mark::Plain, if width < NARROW { "/s  " } else { "a second  " });
    let mut totals = Line::of(Mark::Plain, if width < NARROW { "all " } else { "in all    " });
    for (name, flow) in flows {
        let mark = if flow.rate.is_some_and(|rate| rate > 0.0) { Mark::Bad } else { Mark::Plain };
        names.push(Mark::Strong, format!("{name:>columns$.columns$}"));
        rates.push(mark, not_known(flow.rate.map(|_| rate(flow))));
        let total = |total| if width < NARROW { short(Some(total as f64)) } else { grouped(total) };
        totals.push(Mark::Plain, not_known(flow.total.map(|sum| at_least(flow, total(sum)))));
    }
    vec![names, rates, totals]
}

/// The heading, and below it each listener with its lanes at the left and its sinks at the right.
pub(super) fn table(model: &Model, view: &View, width: usize) -> Vec<Row> {
    let (is_wide, is_narrow) = (width >= WIDE, width < NARROW);
    let other = |line: Line| Row { line, lane: None };
    let mut heading = lane_headings(is_wide);
    if !is_narrow {
        heading.extend([" > ", &sink_headings(is_wide)]);
    }
    let mut rows = vec![other(Line::of(Mark::Strong, heading))];
    let lanes = view.lanes(model);
    for (place, listener) in model.listeners.iter().enumerate() {
        rows.push(other(listener_line(listener)));
        let own: Vec<usize> = lanes.iter().copied().filter(|&lane| model.lanes[lane].listener == place).collect();
        if is_narrow {
            rows.extend(own.iter().map(|&lane| Row { line: lane_cells(&model.lanes[lane], false), lane: Some(lane) }));
            rows.extend(listener.sinks.iter().map(|sink| {
                let mut line = Line::of(Mark::Plain, "> ");
                sink_cells(&mut line, sink, false);
                other(line)
            }));
            continue;
        }
        for row in 0..own.len().max(listener.sinks.len()) {
            let lane = own.get(row).copied();
            let blank = || Line::of(Mark::Plain, " ".repeat(lane_headings(is_wide).len()));
            let mut line = lane.map_or_else(blank, |lane| lane_cells(&model.lanes[lane], is_wide));
            if let Some(sink) = listener.sinks.get(row) {
                line.push(Mark::Plain, " > ");
                sink_cells(&mut line, sink, is_wide);
            }
            rows.push(Row { line, lane });
        }
    }
    rows
}

fn listener_line(listener: &ListenerRow) -> Line {
    let mut line = Line::of(Mark::Strong, printable(&listener.name));
    line.push(Mark::Plain, format!("  {}", printable(&listener.address)));
    match listener.residual {
        Some(0) => {}
        Some(residual) => line.push(Mark::Bad, format!("  RESIDUAL {residual}")),
        None => line.push(Mark::Plain, "  residual not known"),
    }
    line
}

fn lane_headings(is_wide: bool) -> String {
    let buffer = if is_wide { BAR + 8 } else { 7 };
    format!("{:>5}{:>4}{:>buffer$}{:>7}{:>5}{:>8}", "QUEUE", "CPU", "BUFFER", "LOST/S", "LANE", "RECV/S")
}

fn lane_cells(lane: &LaneRow, is_wide: bool) -> Line {
    let number = |number: Option<usize>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
    let mut line = Line::of(Mark::Plain, format!("{:>5}{:>4}", number(lane.found.queue), number(lane.found.cpu)));
    let full = |part: Option<f64>| if part.is_some_and(|part| part > 0.75) { Mark::Bad } else { Mark::Plain };
    let buffer = if is_wide { format!(" {}", bar(lane.buffer, BAR)) } else { percent(lane.buffer) };
    line.push(full(lane.buffer), if is_wide { buffer } else { format!("{buffer:>7}") });
    let lost = lane.lost();
    line.push(of_loss(lost.rate), format!("{:>7}", rate(lost)));
    line.push(Mark::Plain, format!("{:>5}{:>8}", lane.lane, short(lane.received.rate)));
    line
}

fn sink_headings(is_wide: bool) -> String {
    if is_wide {
        let channel = BAR + 7;
        let head = format!("{:>channel$}{:>7} {:<20}", "CHANNEL", "LOST/S", "SINK");
        return format!("{head}{:>8}{:>9}{:>9}{:>9}", "DELIV/S", "P50", "P99", "P99.9");
    }
    format!("{:>7}{:>7} {:<11}{:>7}{:>8}", "CHANNEL", "LOST/S", "SINK", "DELIV/S", "P99")
}

/// From the channel on.
pub(super) fn sink_cells(line: &mut Line, sink: &SinkRow, is_wide: bool) {
    let full = if sink.channel.is_some_and(|part| part > 0.75) { Mark::Bad } else { Mark::Plain };
    line.push(full, channel(sink, is_wide.then_some(BAR)));
    line.push(of_loss(sink.lost.rate), format!("{:>7}", short(sink.lost.rate)));
    let name = fit(&printable(&sink.name), if is_wide { 20 } else { 11 });
    let residence = sink.residence.as_ref();
    let p99 = quantile(residence, |residence| residence.p99_seconds);
    let sent = short(sink.delivered.rate);
    line.push(
        Mark::Plain,
        if is_wide {
            let p50 = quantile(residence, |residence| residence.p50_seconds);
            let p999 = quantile(residence, |residence| residence.p999_seconds);
            format!(" {name}{sent:>8}{p50:>9}{p99:>9}{p999:>9}")
        } else {
            format!(" {name}{sent:>7}{p99:>8}")
        },
    );
}

fn of_loss(rate: Option<f64>) -> Mark {
    if rate.is_some_and(|rate| rate > 0.0) { Mark::Bad } else { Mark::Plain }
}
