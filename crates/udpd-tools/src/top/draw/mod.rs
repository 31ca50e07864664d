//! The picture: a model and a view as lines of exactly the size of a terminal. Nothing here does anything else.

mod cells;
mod lane;
mod overview;

use cells::fit;

use super::frame::{Line, Mark, printable};
use super::model::Model;
use super::view::{Extent, View};

/// What is to be said beside the numbers.
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
    "  s                sort the lanes: number, received, lost, buffer",
    "  space, p         freeze the picture; readings go on behind it",
    "  ?, h             this page            q, ctrl-c         quit",
    "",
    "  BUFFER    how full the receive buffer of the socket is",
    "  LOST/S    left of >: at the socket and in the lane; right of it: at the sink",
    "  CHANNEL   how much of what may wait for the sink does",
    "  P99       99 of 100 datagrams were delivered within this time after their",
    "            receive call, sampled",
    "  ?         nobody knows; it is not 0        5+   at least 5",
    "",
    "Any key closes this page.",
];

/// The whole screen.
pub(super) fn screen(model: &Model, view: &View, notice: &Notice, (width, height): (usize, usize)) -> Vec<Line> {
    let mut lines = vec![title(model, view, width)];
    lines.extend(said(model, notice, width));
    let room = height.saturating_sub(lines.len() + 1);
    let mut place = String::new();
    let body = if view.has_help {
        HELP.iter().map(|line| Line::of(Mark::Plain, *line)).collect()
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
        overview::lines(model, view, width, room)
    };
    lines.extend(body.into_iter().take(room));
    lines.resize(height.saturating_sub(1), Line::default());
    lines.push(footer(view, &place, width));
    lines.truncate(height);
    lines
}

/// The lane that is looked at from near, whole.
fn from_near(model: &Model, view: &View, width: usize) -> Option<Vec<Line>> {
    let chosen = view.chosen(model).filter(|_| view.is_zoomed && !model.is_empty())?;
    Some(lane::lines(model, chosen, width))
}

/// How much of the lane from near a screen of this size shows.
pub(super) fn extent(model: &Model, view: &View, notice: &Notice, (width, height): (usize, usize)) -> Extent {
    let shown = height.saturating_sub(2 + said(model, notice, width).len());
    let all = from_near(model, view, width).map_or(0, |lines| lines.len());
    Extent { hidden: all.saturating_sub(shown), shown }
}

/// One report for whoever reads a pipe: everything, and nothing that only a person at a terminal needs.
pub(super) fn report(model: &Model, width: usize) -> String {
    let view = View::default();
    let mut lines = vec![title(model, &view, width)];
    lines.extend(overview::layers(model, width));
    lines.push(Line::default());
    lines.extend(overview::table(model, &view, width).into_iter().map(|row| row.line));
    lines.iter().map(|line| line.text().trim_end().to_owned() + "\n").collect()
}

fn title(model: &Model, view: &View, width: usize) -> Line {
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
    Line::of(Mark::Reverse, fit(&format!("{left}{}{right}", " ".repeat(gap.max(1))), width))
}

/// Whatever must not be overlooked.
fn said(model: &Model, notice: &Notice, width: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    if let Notice::Silent { seconds, why } = notice {
        let since = if model.is_empty() { "" } else { " The numbers below are the last ones." };
        let text = format!("NO ANSWER for {seconds} s. Waiting for a daemon.{since} {}", printable(why));
        lines.extend(wrapped(&text, width).into_iter().map(|line| Line::of(Mark::Bad, line)));
    }
    if model.restarts > 0 && model.uptime_seconds < RESTART_SAID_SECONDS {
        let text = format!("The daemon was restarted {:.0} s ago: its counters began anew.", model.uptime_seconds);
        lines.extend(wrapped(&text, width).into_iter().map(|line| Line::of(Mark::Strong, line)));
    }
    lines
}

/// The keys, behind which part of a long text is shown.
fn footer(view: &View, place: &str, width: usize) -> Line {
    let keys = match (view.is_zoomed, view.is_frozen) {
        _ if view.has_help => "any key: back",
        (true, _) => "q quit  ? help  esc back  up/down scroll  tab other lane  space freeze",
        (false, true) => "q quit  ? help  space go on  up/down choose  enter zoom  s sort",
        (false, false) => "q quit  ? help  enter zoom  up/down choose  s sort  space freeze",
    };
    Line::of(Mark::Faint, fit(&format!("{place}{keys}"), width))
}

/// Words on lines of this width.
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

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
