//! Numbers, bars and curves in as few columns as they need.

use super::super::frame::{Line, Mark};
use super::super::model::{Flow, History, SinkRow};
use udpd_base::ledger::ResidenceSnapshot;
use udpd_base::text::tables::grouped;
use udpd_base::text::units::print_seconds;

/// The steps of a curve. They are in every font for terminals; a terminal that has none of them shows a box each.
const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A number with three digits and a unit, in at most five columns.
pub(super) fn short(number: Option<f64>) -> String {
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
pub(super) fn rate(flow: Flow) -> String {
    let text = short(flow.rate);
    if flow.rate.is_some() { at_least(flow, text) } else { text }
}

/// The sum of a flow, in full.
pub(super) fn total(flow: Flow) -> String {
    flow.total.map_or_else(|| "not known".to_owned(), |total| at_least(flow, grouped(total)))
}

pub(super) fn at_least(flow: Flow, text: String) -> String {
    if flow.is_partial { format!("{text}+") } else { text }
}

/// A part of a whole as a percentage.
pub(super) fn percent(part: Option<f64>) -> String {
    part.map_or_else(|| "?".to_owned(), |part| format!("{:.0}%", 100.0 * part))
}

/// A part of a whole as a bar of this many columns, and as a percentage behind it.
pub(super) fn bar(part: Option<f64>, columns: usize) -> String {
    let full = part.map_or(0, |part| (part.clamp(0.0, 1.0) * columns as f64).ceil() as usize);
    format!("[{}{}] {:>4}", "#".repeat(full), " ".repeat(columns - full), percent(part))
}

/// How full the channel of a sink is, as a bar or in seven columns as a number.
pub(super) fn channel(sink: &SinkRow, bar_columns: Option<usize>) -> String {
    match (sink.is_inline, bar_columns) {
        (true, columns) => format!("{:>1$}", "inline", columns.unwrap_or(0) + 7),
        (false, Some(columns)) => bar(sink.channel, columns),
        (false, None) => format!("{:>7}", percent(sink.channel)),
    }
}

/// The time within which a part was through, or a dash where nothing was measured.
pub(super) fn quantile(
    residence: Option<&ResidenceSnapshot>,
    of: impl Fn(&ResidenceSnapshot) -> Option<f64>,
) -> String {
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
pub(super) fn trend(name: &str, flow: Flow, past: &History, width: usize, is_loss: bool) -> Line {
    let mark = if is_loss && flow.rate.is_some_and(|rate| rate > 0.0) { Mark::Bad } else { Mark::Plain };
    let head = format!("{name:<9}{:>8}/s ", rate(flow));
    let tail = match flow.total {
        Some(total) if width < 60 => format!(" {:>6}", at_least(flow, short(Some(total as f64)))),
        Some(total) => format!(" {:>15} in all", at_least(flow, grouped(total))),
        None => String::new(),
    };
    let room = width.saturating_sub(head.len() + tail.len()).min(60);
    let mut line = Line::of(mark, head);
    line.push(mark, history(past.last(room), room));
    line.push(Mark::Plain, tail);
    line
}

/// A text in exactly so many columns.
pub(super) fn fit(text: &str, columns: usize) -> String {
    let cut: String = text.chars().take(columns).collect();
    format!("{cut:<columns$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_five_columns_at_most() {
        let numbers = [0.0, 0.34, 7.0, 9.96, 812.4, 999.6, 1_234.0, 12_345.0, 123_456.0, 999_600.0, 1.5e6, 2e10];
        let shown = numbers.map(|number| short(Some(number)));
        assert_eq!(shown.join(" "), "0 0.3 7 10 812 1.00k 1.23k 12.3k 123k 1.00M 1.50M 20.0G");
        assert!(shown.iter().all(|text| text.len() <= 5));
        assert_eq!(short(None), "?");
    }

    #[test]
    fn what_stayed_longer_than_any_bucket_is_no_dash() {
        let slow = ResidenceSnapshot { count: 2, p50_seconds: Some(0.5), ..ResidenceSnapshot::default() };
        assert_eq!(quantile(Some(&slow), |residence| residence.p50_seconds), "500 ms");
        assert_eq!(quantile(Some(&slow), |residence| residence.p99_seconds), ">700 s");
        assert_eq!(quantile(None, |residence| residence.p99_seconds), "-");
    }

    #[test]
    fn a_bar_shows_the_least_as_something_and_the_most_as_full() {
        let shown = [None, Some(0.0), Some(0.001), Some(0.5), Some(1.0), Some(1.3)].map(|part| bar(part, 4));
        assert_eq!(shown, ["[    ]    ?", "[    ]   0%", "[#   ]   0%", "[##  ]  50%", "[####] 100%", "[####] 130%"]);
    }

    #[test]
    fn a_curve_has_gaps_where_nothing_was_read_and_never_hides_a_loss() {
        let rates = [Some(0.0), None, Some(0.001), Some(50.0), Some(100.0)];
        assert_eq!(history(rates.into_iter(), 7), "  ▁ ▂▅█");
        assert_eq!(history([].into_iter(), 3), "   ");
    }
}
