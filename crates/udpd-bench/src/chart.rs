//! Charts as SVG, written by hand: a few shapes need no library, and the file has to be small enough for a report.
//!
//! Two kinds: bars side by side for steps that are compared, and a band over time for arrivals. Colours and sizes are
//! attributes and not styles, so that every viewer shows the same.

use std::fmt::Write as _;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 56.0;
const PLOT_WIDTH: f64 = WIDTH - LEFT - RIGHT;
const PLOT_HEIGHT: f64 = HEIGHT - TOP - BOTTOM;

/// Bars and bands; lines over them; everything else.
const FILL: &str = "#4c78a8";
const LINE: &str = "#e45756";
const INK: &str = "#333333";
const GRID: &str = "#dddddd";

/// How many values a band shows: one a pixel.
const COLUMNS: usize = PLOT_WIDTH as usize;

/// About how many lines an axis has.
const TICKS: f64 = 6.0;

#[derive(Debug, Clone, Copy)]
pub(crate) struct ChartWords<'a> {
    pub title: &'a str,
    /// Below it: machine, date, conditions.
    pub subtitle: &'a str,
    /// What the height means, with its unit.
    pub unit: &'a str,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ChartBar {
    pub name: String,
    /// Its height; `None` where it could not be measured.
    pub value: Option<f64>,
}

/// Bars side by side, each with its value on top.
pub(crate) fn bars(words: ChartWords<'_>, bars: &[ChartBar]) -> String {
    let highest = bars.iter().filter_map(|bar| bar.value).fold(0.0, f64::max);
    let mut svg = Svg::new(words, highest);
    let step = PLOT_WIDTH / bars.len().max(1) as f64;
    for (place, bar) in bars.iter().enumerate() {
        let (left, middle) = (LEFT + step * place as f64, LEFT + step * (place as f64 + 0.5));
        if let Some(value) = bar.value {
            let top = svg.y(value);
            svg.rectangle([left + step * 0.15, top, step * 0.7, HEIGHT - BOTTOM - top], FILL);
            svg.text([middle, top - 5.0], "middle", 11, &short(value));
        } else {
            svg.text([middle, HEIGHT - BOTTOM - 5.0], "middle", 11, "not measured");
        }
        svg.text([middle, HEIGHT - BOTTOM + 18.0], "middle", 11, &bar.name);
    }
    svg.finish()
}

/// Counts of equal intervals of `interval_ms` over time: where several fall on a pixel, the highest of them, and as a
/// line their mean.
pub(crate) fn timeline(words: ChartWords<'_>, counts: &[u32], interval_ms: f64) -> String {
    let highest = counts.iter().copied().max().unwrap_or(0);
    let mut svg = Svg::new(words, f64::from(highest));
    let columns = COLUMNS.min(counts.len());
    let width = PLOT_WIDTH / columns.max(1) as f64;
    let mut line = Vec::with_capacity(columns);
    for column in 0..columns {
        let part = &counts[column * counts.len() / columns..(column + 1) * counts.len() / columns];
        let most = f64::from(part.iter().copied().max().unwrap_or(0));
        let mean = part.iter().map(|&count| f64::from(count)).sum::<f64>() / part.len().max(1) as f64;
        let (left, top) = (LEFT + width * column as f64, svg.y(most));
        if most > 0.0 {
            svg.rectangle([left, top, width, HEIGHT - BOTTOM - top], FILL);
        }
        line.push((left + width / 2.0, svg.y(mean)));
    }
    svg.line(&line, LINE);
    let seconds = counts.len() as f64 * interval_ms / 1000.0;
    for tick in ticks(seconds) {
        let x = LEFT + PLOT_WIDTH * tick / seconds.max(f64::MIN_POSITIVE);
        svg.text([x, HEIGHT - BOTTOM + 18.0], "middle", 11, &short(tick));
    }
    svg.text([LEFT + PLOT_WIDTH / 2.0, HEIGHT - 12.0], "middle", 12, "seconds since the first arrival");
    svg.finish()
}

#[derive(Debug)]
struct Svg {
    text: String,
    highest: f64,
}

impl Svg {
    /// Title, axis and grid, for values from 0 to `highest`.
    fn new(words: ChartWords<'_>, highest: f64) -> Self {
        let steps = ticks(highest);
        // The axis ends with a line.
        let step = steps.get(1).copied().unwrap_or(1.0);
        let mut svg = Self { text: String::new(), highest: ((highest / step).ceil() * step).max(step) };
        svg.push(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
             height=\"{HEIGHT}\" font-family=\"sans-serif\">"
        ));
        svg.rectangle([0.0, 0.0, WIDTH, HEIGHT], "#ffffff");
        svg.text([LEFT, 26.0], "start", 17, words.title);
        svg.text([LEFT, 44.0], "start", 11, words.subtitle);
        svg.text([LEFT, TOP - 6.0], "end", 11, words.unit);
        for tick in ticks(svg.highest) {
            let y = svg.y(tick);
            svg.push(format_args!(
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"{GRID}\"/>",
                WIDTH - RIGHT
            ));
            svg.text([LEFT - 6.0, y + 4.0], "end", 11, &short(tick));
        }
        svg
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - PLOT_HEIGHT * value / self.highest
    }

    fn push(&mut self, line: std::fmt::Arguments<'_>) {
        // A String takes everything.
        let _ = writeln!(self.text, "{line}");
    }

    fn rectangle(&mut self, [x, y, width, height]: [f64; 4], fill: &str) {
        self.push(format_args!(
            "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\" fill=\"{fill}\"/>"
        ));
    }

    fn line(&mut self, points: &[(f64, f64)], stroke: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.push(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{stroke}\" stroke-width=\"1.5\"/>",
            points.join(" ")
        ));
    }

    fn text(&mut self, [x, y]: [f64; 2], anchor: &str, size: u32, text: &str) {
        self.push(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\" fill=\"{INK}\">{}</text>",
            escaped(text)
        ));
    }

    fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }
}

/// Round numbers from 0 to `highest`: steps of 1, 2 or 5 times a power of ten.
fn ticks(highest: f64) -> Vec<f64> {
    if highest <= 0.0 || !highest.is_finite() {
        return vec![0.0];
    }
    let power = 10_f64.powf((highest / TICKS).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| highest / step <= TICKS);
    let step = step.unwrap_or(highest);
    // A little more than the whole, so that rounding does not lose the last.
    (0..=(highest / step * 1.000_001) as u64).map(|number| number as f64 * step).collect()
}

/// A number with three significant digits, and k or M.
fn short(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        large if large >= 1e6 => (value / 1e6, "M"),
        large if large >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        small if small >= 100.0 => 0,
        small if small >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{scaled:.digits$}");
    let text = if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{suffix}")
}

/// Text for XML: markup is escaped, and what XML cannot hold becomes the replacement character.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '"' => safe.push_str("&quot;"),
            '\t' | '\n' | ' '..='\u{fffd}' | '\u{10000}'.. => safe.push(character),
            _ => safe.push('\u{fffd}'),
        }
    }
    safe
}

#[cfg(test)]
#[path = "chart_tests.rs"]
mod tests;
