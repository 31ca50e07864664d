//! The picture: a model and a view as lines of exactly the size of a terminal. Nothing here does anything else.
//!
//! Top down: the whole screen, the overview of all lanes and sinks (each in a row of the way of a datagram, from left
//! to right), one lane zoomed in (each stage in words, its history, its sinks and its busiest senders), and at the end
//! numbers, bars and curves in as few columns as they need.

use super::model::{LaneRow, ListenerRow, Model, RateAndTotal, RateHistory, SinkRow, sum};
use super::screen::{ScreenLine, TextStyle, printable};
use super::view::{Extent, View};
use udpd_base::ledger::snapshot::{SinkCondition, StreamSnapshot};
use udpd_base::ledger::{ConnectionSnapshot, ConnectionState, RefusalSnapshot, ResidenceSnapshot};
use udpd_base::seams::clock;
use udpd_base::text::tables::grouped;
use udpd_base::text::units::print_seconds;
use udpd_engine::plan::memory::Bytes;

/// A warning beside the numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Notice {
    None,
    /// The daemon has not answered for so long.
    Silent {
        seconds: u64,
        why: String,
    },
}

/// For so long after a restart the screen says that there was one.
const RESTART_SAID_SECONDS: f64 = 30.0;

const HELP: [&str; 19] = [
    "Left to right is the way of a datagram: the receive queue of the card, the",
    "core, the socket with its receive buffer, the lane, and behind > the channel",
    "(the sink's queue) and the sink. Rates are of the last interval.",
    "",
    "  up, down, j, k   choose a lane        home, end, g, G   the first, the last",
    "    and page up, page down; zoomed in they scroll, and tab, shift-tab choose",
    "  enter, right     zoom into it         esc, left         back",
    "  s                sort by loss (the worst first), lane, received, buffer",
    "  space, p         freeze the picture; readings go on behind it",
    "  ?, h             this page            q, ctrl-c         quit",
    "",
    "  BUFFER    how full the receive buffer of the socket is",
    "  LOST/S    left of >: at the socket and in the lane; right of it: at the sink",
    "  CHANNEL   how much of what may wait for the sink does",
    "  P99       99 of 100 datagrams were delivered within this time after their",
    "            receive call, sampled",
    "  ?         not known, which is not 0        5+   at least 5",
    "",
    "Any key closes this page.",
];

pub(super) fn screen(model: &Model, view: &View, notice: &Notice, (width, height): (usize, usize)) -> Vec<ScreenLine> {
    let mut lines = vec![title(model, view, width)];
    lines.extend(said(model, notice, width));
    let room = height.saturating_sub(lines.len() + 1);
    let mut place = String::new();
    let body = if view.has_help {
        HELP.iter().map(|line| ScreenLine::of(TextStyle::Plain, *line)).collect()
    } else if let Some(mut from_near) = from_near(model, view, width) {
        let all = from_near.len();
        let above = view.scrolled.min(all.saturating_sub(room));
        if room > 0 && all > room {
            place = format!("lines {}-{} of {all}  ", above + 1, above + room);
        }
        from_near.split_off(above)
    } else if model.is_empty() {
        Vec::new()
    } else {
        overview_lines(model, view, width, room)
    };
    lines.extend(body.into_iter().take(room));
    lines.resize(height.saturating_sub(1), ScreenLine::default());
    lines.push(footer(view, &place, width));
    lines.truncate(height);
    lines
}

/// All lines of the lane that is zoomed in.
fn from_near(model: &Model, view: &View, width: usize) -> Option<Vec<ScreenLine>> {
    let chosen = view.chosen(model).filter(|_| view.is_zoomed && !model.is_empty())?;
    Some(lane_lines(model, chosen, width))
}

/// How much of the zoomed-in lane a screen of this size shows.
pub(super) fn extent(model: &Model, view: &View, notice: &Notice, (width, height): (usize, usize)) -> Extent {
    let shown = height.saturating_sub(2 + said(model, notice, width).len());
    let all = from_near(model, view, width).map_or(0, |lines| lines.len());
    Extent { hidden: all.saturating_sub(shown), shown }
}

/// One report for a pipe: everything, and nothing that only a person at a terminal needs.
pub(super) fn report(model: &Model, width: usize) -> String {
    let view = View::default();
    let mut lines = vec![title(model, &view, width)];
    lines.extend(layers(model, width));
    lines.push(ScreenLine::default());
    lines.extend(table(model, &view, width).into_iter().map(|row| row.line));
    lines.iter().map(|line| line.text().trim_end().to_owned() + "\n").collect()
}

fn title(model: &Model, view: &View, width: usize) -> ScreenLine {
    let mut left = "udpd".to_owned();
    if !model.is_empty() {
        let lanes = model.lanes.len();
        let noun = if lanes == 1 { "lane" } else { "lanes" };
        left = format!("udpd {}  up {}  {lanes} {noun}", printable(&model.version), uptime(model.uptime_seconds));
    }
    let mut right = String::new();
    if view.is_frozen {
        right.push_str("FROZEN  ");
    }
    right.push_str(&format!("sorted by {}", view.order.words()));
    let gap = width.saturating_sub(left.len() + right.len());
    ScreenLine::of(TextStyle::Reverse, fit(&format!("{left}{}{right}", " ".repeat(gap.max(1))), width))
}

/// Warnings below the title.
fn said(model: &Model, notice: &Notice, width: usize) -> Vec<ScreenLine> {
    let mut lines = Vec::new();
    if let Notice::Silent { seconds, why } = notice {
        let since = if model.is_empty() { "" } else { " The numbers below are the last ones." };
        let text = format!("NO ANSWER for {seconds} s. Waiting for a daemon.{since} {}", printable(why));
        lines.extend(wrapped(&text, width).into_iter().map(|line| ScreenLine::of(TextStyle::Bad, line)));
    }
    if model.restarts > 0 && model.uptime_seconds < RESTART_SAID_SECONDS {
        let text = format!("The daemon was restarted {:.0} s ago: its counters began anew.", model.uptime_seconds);
        lines.extend(wrapped(&text, width).into_iter().map(|line| ScreenLine::of(TextStyle::Strong, line)));
    }
    if let Some(why) = &model.unready {
        let text = format!("NOT READY: {}", printable(why));
        lines.extend(wrapped(&text, width).into_iter().map(|line| ScreenLine::of(TextStyle::Strong, line)));
    }
    lines
}

/// Which part of a long text is shown, and the keys.
fn footer(view: &View, place: &str, width: usize) -> ScreenLine {
    let keys = match (view.is_zoomed, view.is_frozen) {
        _ if view.has_help => "any key: back",
        (true, _) => "q quit  ? help  esc back  up/down scroll  tab other lane  space freeze",
        (false, true) => "q quit  ? help  space go on  up/down choose  enter zoom  s sort",
        (false, false) => "q quit  ? help  enter zoom  up/down choose  s sort  space freeze",
    };
    ScreenLine::of(TextStyle::Faint, fit(&format!("{place}{keys}"), width))
}

fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().filter(|line| line.is_empty() || line.len() + 1 + word.len() <= width);
        match last {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) => line.extend([" ", word]),
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

/// In the two largest units.
fn uptime(seconds: f64) -> String {
    let seconds = seconds as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// The steps of a curve. They are in every font for terminals; a terminal that has none of them shows a box each.
const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A number with three digits and a unit, in at most five columns.
fn short(number: Option<f64>) -> String {
    let Some(number) = number else { return "?".to_owned() };
    let (mut number, mut unit) = (number, "");
    for larger in ["k", "M", "G", "T"] {
        if number < 999.5 {
            break;
        }
        (number, unit) = (number / 1000.0, larger);
    }
    let digits = match number {
        _ if unit.is_empty() && (number >= 9.95 || (number - number.round()).abs() < 0.05) => 0,
        ..9.995 if !unit.is_empty() => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{number:.digits$}{unit}")
}

/// The rate of a flow, marked where it is only known to be at least that.
fn rate(flow: RateAndTotal) -> String {
    let text = short(flow.rate);
    if flow.rate.is_some() { at_least(flow, text) } else { text }
}

fn total(flow: RateAndTotal) -> String {
    flow.total.map_or_else(|| "not known".to_owned(), |total| at_least(flow, grouped(total)))
}

fn at_least(flow: RateAndTotal, text: String) -> String {
    if flow.is_partial { format!("{text}+") } else { text }
}

fn percent(part: Option<f64>) -> String {
    part.map_or_else(|| "?".to_owned(), |part| format!("{:.0}%", 100.0 * part))
}

/// A part of a whole as a bar of this many columns, and as a percentage behind it.
fn bar(part: Option<f64>, columns: usize) -> String {
    let full = part.map_or(0, |part| (part.clamp(0.0, 1.0) * columns as f64).ceil() as usize);
    format!("[{}{}] {:>4}", "#".repeat(full), " ".repeat(columns - full), percent(part))
}

/// How full the channel of a sink is, as a bar or in seven columns as a number.
fn channel(sink: &SinkRow, bar_columns: Option<usize>) -> String {
    match (sink.is_inline, bar_columns) {
        (true, columns) => format!("{:>1$}", "inline", columns.unwrap_or(0) + 7),
        (false, Some(columns)) => bar(sink.channel, columns),
        (false, None) => format!("{:>7}", percent(sink.channel)),
    }
}

/// A quantile of the residence time, or a dash where nothing was measured.
fn quantile(residence: Option<&ResidenceSnapshot>, of: impl Fn(&ResidenceSnapshot) -> Option<f64>) -> String {
    match residence {
        None => "-".to_owned(),
        // Longer than the last bucket of the ledger.
        Some(residence) => of(residence).map_or_else(|| ">700 s".to_owned(), print_seconds),
    }
}

/// Rates as a curve that ends at the right; a gap where there was no reading. Its top is the highest of them.
fn history(rates: impl ExactSizeIterator<Item = Option<f64>>, columns: usize) -> String {
    let mut curve = " ".repeat(columns.saturating_sub(rates.len()));
    let rates: Vec<Option<f64>> = rates.collect();
    let top = rates.iter().flatten().copied().fold(0.0, f64::max);
    curve.extend(rates.into_iter().map(|rate| match rate {
        None => ' ',
        Some(rate) if rate <= 0.0 => STEPS[0],
        Some(rate) => STEPS[((rate / top * 7.0).round() as usize).clamp(1, 7)],
    }));
    curve
}

/// A rate, its history and its sum, on one line.
fn trend(name: &str, flow: RateAndTotal, past: &RateHistory, width: usize, is_loss: bool) -> ScreenLine {
    let mark = if is_loss && flow.rate.is_some_and(|rate| rate > 0.0) { TextStyle::Bad } else { TextStyle::Plain };
    let head = format!("{name:<9}{:>8}/s ", rate(flow));
    let tail = match flow.total {
        Some(total) if width < 60 => format!(" {:>6}", at_least(flow, short(Some(total as f64)))),
        Some(total) => format!(" {:>15} in all", at_least(flow, grouped(total))),
        None => String::new(),
    };
    let room = width.saturating_sub(head.len() + tail.len()).min(60);
    let mut line = ScreenLine::of(mark, head);
    line.push(mark, history(past.last(room), room));
    line.push(TextStyle::Plain, tail);
    line
}

fn fit(text: &str, columns: usize) -> String {
    let cut: String = text.chars().take(columns).collect();
    format!("{cut:<columns$}")
}

/// The columns of a bar.
const LANE_BAR: usize = 20;

/// Everything about the lane at this place of the model.
fn lane_lines(model: &Model, place: usize, width: usize) -> Vec<ScreenLine> {
    let lane = &model.lanes[place];
    let listener = &model.listeners[lane.listener];
    let (name, address, engine) =
        (printable(&listener.name), printable(&lane.found.address), printable(&lane.found.engine));
    let mut lines =
        vec![ScreenLine::of(TextStyle::Strong, format!("lane {} of {name}  {address}  {engine}", lane.lane))];
    lines.extend(stages(model, place));
    lines.push(ScreenLine::default());
    if let Some(past) = model.histories(place) {
        lines.push(trend("received", lane.received, &past.received, width, false));
        lines.push(trend("lost", lane.lost(), &past.lost, width, true));
        lines.push(ScreenLine::default());
    }
    let [lost, delivered, p50, p99, p999] = ["lost/s", "deliv/s", "p50", "p99", "p99.9"];
    let heading = format!("{:<11} {:<27} {lost:>6}{delivered:>8} {p50:>7} {p99:>7} {p999:>9}", "sink", "channel");
    lines.push(ScreenLine::of(TextStyle::Strong, heading));
    let bad = |line| ScreenLine::of(TextStyle::Bad, line);
    for sink in &listener.sinks {
        let residence = sink.residence.as_ref();
        let mark = if sink.lost.rate.is_some_and(|rate| rate > 0.0) { TextStyle::Bad } else { TextStyle::Plain };
        lines.push(ScreenLine::of(
            mark,
            format!(
                "{} {} {:>6}{:>8} {:>7} {:>7} {:>9}",
                fit(&printable(&sink.name), 11),
                channel(sink, Some(LANE_BAR)),
                short(sink.lost.rate),
                short(sink.delivered.rate),
                quantile(residence, |residence| residence.p50_seconds),
                quantile(residence, |residence| residence.p99_seconds),
                quantile(residence, |residence| residence.p999_seconds),
            ),
        ));
        if let Some(state) = sink.state.as_ref().filter(|state| state.name != SinkCondition::Up) {
            let lasts = uptime((clock::seconds_since_1970() - state.since).max(0.0));
            let why = state.error.as_deref().map_or(String::new(), |error| format!(": {}", printable(error)));
            lines.extend(wrapped(&format!("{} for {lasts}{why}", state.name.name()), width).into_iter().map(bad));
        }
        lines.extend(peers(sink, width));
    }
    lines.push(ScreenLine::default());
    lines.extend(senders(model, place));
    lines
}

/// The connections of a sink, and what its servers refuse.
fn peers(sink: &SinkRow, width: usize) -> Vec<ScreenLine> {
    let line = |style: TextStyle, text: &str| -> Vec<ScreenLine> {
        wrapped(text, width).into_iter().map(|line| ScreenLine::of(style, line)).collect()
    };
    let connection = |connection: &ConnectionSnapshot| {
        let (peer, sent) = (printable(&connection.peer), grouped(connection.on_the_way));
        let is_down = connection.state == ConnectionState::Down;
        let why = connection.error.as_deref().filter(|_| is_down);
        let why = why.map_or(String::new(), |error| format!(": {}", printable(error)));
        let style = if is_down { TextStyle::Bad } else { TextStyle::Plain };
        line(style, &format!("{peer} is {}, {sent} datagrams on the way{why}", connection.state.name()))
    };
    let refusal = |refusal: &RefusalSnapshot| {
        line(TextStyle::Plain, &format!("refused: {} ({})", grouped(refusal.datagrams), printable(&refusal.reason)))
    };
    let refusals = sink.peers.refusals.iter().flat_map(refusal);
    sink.peers.connections.iter().flat_map(connection).chain(refusals).collect()
}

/// From the receive queue to the receiver.
fn stages(model: &Model, place: usize) -> Vec<ScreenLine> {
    let lane = &model.lanes[place];
    let found = &lane.found;
    let known = |number: Option<usize>| number.map_or_else(|| "not known".to_owned(), |number| number.to_string());
    let planned = match found.planned_cpus.as_slice() {
        [] => "where its datagrams should arrive is not planned".to_owned(),
        cores => format!("its datagrams should arrive on {}", steer::format_core_list(cores)),
    };
    let wrong = match found.wrong_cpu {
        None => String::new(),
        Some(wrong) => format!(", {} did not", grouped(wrong)),
    };
    let bytes = |count: u64| Bytes(usize::try_from(count).unwrap_or(usize::MAX)).to_string();
    let per_call = lane.received.rate.zip(lane.calls.rate).filter(|(_, calls)| *calls > 0.0);
    let per_call = per_call.map_or_else(|| "-".to_owned(), |(received, calls)| format!("{:.1}", received / calls));
    let lost = |flow: RateAndTotal| format!("{}/s lost, {} in all", rate(flow), total(flow));
    let stage = |name: &str, text: String, is_bad: bool| {
        let mut line = ScreenLine::of(TextStyle::Plain, format!("  {name:<15}"));
        line.push(if is_bad { TextStyle::Bad } else { TextStyle::Plain }, text);
        line
    };
    let is_losing = |flow: RateAndTotal| flow.rate.is_some_and(|rate| rate > 0.0);
    vec![
        stage("receive queue", known(found.queue), false),
        stage("core", format!("{}, memory node {}; {planned}{wrong}", known(found.cpu), known(found.node)), false),
        stage(
            "receive buffer",
            format!(
                "{} of {}; {}",
                bar(lane.buffer, LANE_BAR / 2),
                bytes(found.receive_buffer_bytes),
                lost(lane.socket_lost)
            ),
            is_losing(lane.socket_lost),
        ),
        stage("receiver", format!("{per_call} datagrams a call; {}", lost(lane.refused)), is_losing(lane.refused)),
    ]
}

fn senders(model: &Model, place: usize) -> Vec<ScreenLine> {
    let lane = &model.lanes[place];
    let mut lines =
        vec![ScreenLine::of(TextStyle::Strong, "busiest senders of late                  port     rate   share")];
    if lane.senders().is_empty() {
        lines.push(ScreenLine::of(TextStyle::Plain, "none"));
    }
    for sender in lane.senders() {
        let port = sender.port.map_or_else(|| "several".to_owned(), |port| port.to_string());
        // Of what the lane receives now.
        let rate = short(lane.received.rate.map(|rate| rate * sender.share));
        let share = bar(Some(sender.share), 10);
        let address = sender.address.to_string();
        lines.push(ScreenLine::of(TextStyle::Plain, format!("{address:<39}{port:>8}{rate:>7}/s {share}")));
    }
    lines
}

/// From this width on there is room for bars and for more of the residence time.
const WIDE: usize = 138;

/// Below this width lanes and sinks stand below each other.
const NARROW: usize = 80;

/// The columns of a bar.
const BAR: usize = 10;

/// How many streams of a listener have a line.
const STREAMS: usize = 3;

/// A line of the table, and which lane it is.
struct TableRow {
    line: ScreenLine,
    lane: Option<usize>,
}

/// What fits into so many rows.
fn overview_lines(model: &Model, view: &View, width: usize, room: usize) -> Vec<ScreenLine> {
    let past = &model.whole;
    let lost = sum([model.layers.socket, model.layers.listener, model.layers.sink].into_iter());
    let mut lines = vec![
        trend("received", model.received, &past.received, width, false),
        trend("lost", lost, &past.lost, width, true),
    ];
    // A low terminal has the lanes rather than their sums.
    if room >= 16 {
        lines.push(ScreenLine::default());
        lines.extend(layers(model, width));
        lines.push(ScreenLine::default());
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
        if is_chosen { ScreenLine::of(TextStyle::Reverse, fit(&row.line.text(), width)) } else { row.line }
    }));
    lines
}

/// What each layer lost, in the order in which a datagram passes them.
fn layers(model: &Model, width: usize) -> Vec<ScreenLine> {
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
    let mut names = ScreenLine::of(TextStyle::Strong, if width < NARROW { "LOST" } else { "LOST      " });
    let mut rates = ScreenLine::of(TextStyle::Plain, if width < NARROW { "/s  " } else { "a second  " });
    let mut totals = ScreenLine::of(TextStyle::Plain, if width < NARROW { "all " } else { "in all    " });
    for (name, flow) in flows {
        let mark = if flow.rate.is_some_and(|rate| rate > 0.0) { TextStyle::Bad } else { TextStyle::Plain };
        names.push(TextStyle::Strong, format!("{name:>columns$.columns$}"));
        rates.push(mark, not_known(flow.rate.map(|_| rate(flow))));
        let total = |total| if width < NARROW { short(Some(total as f64)) } else { grouped(total) };
        totals.push(TextStyle::Plain, not_known(flow.total.map(|sum| at_least(flow, total(sum)))));
    }
    vec![names, rates, totals]
}

/// The heading, and below it each listener with its lanes at the left and its sinks at the right.
fn table(model: &Model, view: &View, width: usize) -> Vec<TableRow> {
    let (is_wide, is_narrow) = (width >= WIDE, width < NARROW);
    let other = |line: ScreenLine| TableRow { line, lane: None };
    let mut heading = lane_headings(is_wide);
    if !is_narrow {
        heading.extend([" > ", &sink_headings(is_wide)]);
    }
    let mut rows = vec![other(ScreenLine::of(TextStyle::Strong, heading))];
    let lanes = view.lanes(model);
    for place in view.listeners(model) {
        let listener = &model.listeners[place];
        let sinks = view.sinks(&listener.sinks);
        rows.push(other(listener_line(listener)));
        let own: Vec<usize> = lanes.iter().copied().filter(|&lane| model.lanes[lane].listener == place).collect();
        if is_narrow {
            rows.extend(
                own.iter().map(|&lane| TableRow { line: lane_cells(&model.lanes[lane], false), lane: Some(lane) }),
            );
            rows.extend(sinks.into_iter().map(|sink| {
                let mut line = ScreenLine::of(TextStyle::Plain, "> ");
                sink_cells(&mut line, sink, false);
                other(line)
            }));
            rows.extend(worst_streams(listener).map(other));
            continue;
        }
        for row in 0..own.len().max(sinks.len()) {
            let lane = own.get(row).copied();
            let blank = || ScreenLine::of(TextStyle::Plain, " ".repeat(lane_headings(is_wide).len()));
            let mut line = lane.map_or_else(blank, |lane| lane_cells(&model.lanes[lane], is_wide));
            if let Some(sink) = sinks.get(row) {
                line.push(TextStyle::Plain, " > ");
                sink_cells(&mut line, sink, is_wide);
            }
            rows.push(TableRow { line, lane });
        }
        rows.extend(worst_streams(listener).map(other));
    }
    rows
}

/// The streams that lost most on their way to this host, a line each.
fn worst_streams(listener: &ListenerRow) -> impl Iterator<Item = ScreenLine> {
    listener.worst.iter().take(STREAMS).map(|stream| {
        let StreamSnapshot { source, port, domain, unit, .. } = stream;
        let (least, most) = (grouped(stream.missing_at_least), grouped(stream.missing_at_most));
        let missing = if stream.missing.is_some() { most } else { format!("{least} to {most}") };
        let (style, state) = match (stream.losing, stream.silent) {
            (_, true) => (TextStyle::Bad, ", silent"),
            (true, false) => (TextStyle::Bad, ", losing"),
            (false, false) => (TextStyle::Plain, ""),
        };
        let (domain, arrived) = (printable(domain), grouped(stream.arrived));
        let line = format!("upstream {source} {port} {domain}: {missing} {unit} missing, {arrived} came{state}");
        ScreenLine::of(style, line)
    })
}

fn listener_line(listener: &ListenerRow) -> ScreenLine {
    let mut line = ScreenLine::of(TextStyle::Strong, printable(&listener.name));
    line.push(TextStyle::Plain, format!("  {}", printable(&listener.address)));
    match listener.residual {
        Some(0) => {}
        Some(residual) => line.push(TextStyle::Bad, format!("  RESIDUAL {residual}")),
        None => line.push(TextStyle::Plain, "  residual not known"),
    }
    line
}

fn lane_headings(is_wide: bool) -> String {
    let buffer = if is_wide { BAR + 8 } else { 7 };
    format!("{:>5}{:>4}{:>buffer$}{:>7}{:>5}{:>8}", "QUEUE", "CPU", "BUFFER", "LOST/S", "LANE", "RECV/S")
}

fn lane_cells(lane: &LaneRow, is_wide: bool) -> ScreenLine {
    let number = |number: Option<usize>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
    let mut line =
        ScreenLine::of(TextStyle::Plain, format!("{:>5}{:>4}", number(lane.found.queue), number(lane.found.cpu)));
    let full = |part: Option<f64>| if part.is_some_and(|part| part > 0.75) { TextStyle::Bad } else { TextStyle::Plain };
    let buffer = if is_wide { format!(" {}", bar(lane.buffer, BAR)) } else { percent(lane.buffer) };
    line.push(full(lane.buffer), if is_wide { buffer } else { format!("{buffer:>7}") });
    let lost = lane.lost();
    line.push(of_loss(lost.rate), format!("{:>7}", rate(lost)));
    line.push(TextStyle::Plain, format!("{:>5}{:>8}", lane.lane, short(lane.received.rate)));
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
fn sink_cells(line: &mut ScreenLine, sink: &SinkRow, is_wide: bool) {
    let full = if sink.channel.is_some_and(|part| part > 0.75) { TextStyle::Bad } else { TextStyle::Plain };
    line.push(full, channel(sink, is_wide.then_some(BAR)));
    line.push(of_loss(sink.lost.rate), format!("{:>7}", short(sink.lost.rate)));
    let name = fit(&printable(&sink.name), if is_wide { 20 } else { 11 });
    let residence = sink.residence.as_ref();
    let fault = sink.state.as_ref().filter(|state| state.name != SinkCondition::Up);
    // A sink that hands on nothing has no times.
    let p99 = match fault {
        Some(state) if state.name == SinkCondition::Down => "DOWN".to_owned(),
        _ => quantile(residence, |residence| residence.p99_seconds),
    };
    let sent = short(sink.delivered.rate);
    line.push(
        if fault.is_some() { TextStyle::Bad } else { TextStyle::Plain },
        if is_wide {
            let p50 = quantile(residence, |residence| residence.p50_seconds);
            let p999 = quantile(residence, |residence| residence.p999_seconds);
            format!(" {name}{sent:>8}{p50:>9}{p99:>9}{p999:>9}")
        } else {
            format!(" {name}{sent:>7}{p99:>8}")
        },
    );
}

fn of_loss(rate: Option<f64>) -> TextStyle {
    if rate.is_some_and(|rate| rate > 0.0) { TextStyle::Bad } else { TextStyle::Plain }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
