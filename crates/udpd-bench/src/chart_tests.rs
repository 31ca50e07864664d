//! Charts are well-formed XML whatever is written on them, and show what was counted.

use super::*;

const WORDS: ChartWords<'_> = ChartWords { title: "a <b> & \"c\" \u{1}", subtitle: "sub", unit: "per ms" };

/// The names of all elements in order; panics where the text is not well-formed. Knows as much of XML as charts use.
fn elements(svg: &str) -> Vec<String> {
    let (mut open, mut names, mut rest) = (Vec::new(), Vec::new(), svg);
    while let Some(start) = rest.find('<') {
        assert_text(&rest[..start]);
        let end = start + rest[start..].find('>').expect("a tag ends");
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "elements end in the order of their beginning");
            continue;
        }
        let inside = tag.strip_suffix('/').unwrap_or(tag);
        let (name, attributes) = inside.split_once(' ').unwrap_or((inside, ""));
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase()), "{tag}");
        assert_attributes(attributes);
        names.push(name.to_owned());
        if !tag.ends_with('/') {
            open.push(name.to_owned());
        }
        assert!(!open.is_empty(), "one element holds all others");
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "everything that begins ends");
    names
}

fn assert_attributes(attributes: &str) {
    let pieces: Vec<&str> = attributes.split('"').collect();
    assert_eq!(pieces.len() % 2, 1, "quotes come in pairs: {attributes}");
    for pair in pieces.chunks_exact(2) {
        assert!(pair[0].trim_start().strip_suffix('=').is_some_and(|name| !name.contains(' ')), "{attributes}");
        assert!(!pair[1].contains(['<', '&']) && !pair[1].contains("NaN") && !pair[1].contains("inf"), "{}", pair[1]);
    }
}

fn assert_text(text: &str) {
    assert!(!text.contains(|character: char| character.is_control() && character != '\n'), "{text:?}");
    for reference in text.split('&').skip(1) {
        assert!(["lt;", "gt;", "amp;", "quot;"].iter().any(|known| reference.starts_with(known)), "{text}");
    }
}

fn count(svg: &str, name: &str) -> usize {
    elements(svg).iter().filter(|found| *found == name).count()
}

#[test]
fn a_timeline_has_a_bar_for_each_interval_with_arrivals_and_one_line() {
    let svg = timeline(WORDS, &[3, 0, 5, 1], 1.0);
    assert_eq!((count(&svg, "rect"), count(&svg, "polyline")), (1 + 3, 1), "and the background");
    assert!(svg.contains("a &lt;b&gt; &amp; &quot;c&quot; \u{fffd}"), "{svg}");
}

#[test]
fn a_burst_in_a_long_run_keeps_its_height_on_the_chart() {
    let mut counts = vec![1_u32; 100_000];
    counts[54_321] = 1_000;
    let svg = timeline(WORDS, &counts, 1.0);
    let full = format!("height=\"{PLOT_HEIGHT:.2}\"");
    assert_eq!(svg.matches(&full).count(), 1, "one bar of full height");
    assert_eq!(count(&svg, "rect"), 1 + COLUMNS);
}

#[test]
fn a_step_that_could_not_be_measured_has_a_place_and_no_bar() {
    let bar = |name: &str, value| ChartBar { name: name.to_owned(), value };
    let svg = bars(WORDS, &[bar("recv", Some(350_000.0)), bar("io_uring & co", None)]);
    assert_eq!(count(&svg, "rect"), 1 + 1);
    assert!(svg.contains(">not measured<") && svg.contains(">350k<") && svg.contains("io_uring &amp; co"));
}

#[test]
fn charts_of_nothing_are_charts() {
    assert_eq!(count(&timeline(WORDS, &[], 1.0), "rect"), 1);
    assert_eq!(count(&timeline(WORDS, &[0, 0], 1.0), "rect"), 1);
    assert_eq!(count(&bars(WORDS, &[]), "rect"), 1);
}

#[test]
fn axes_have_round_numbers() {
    assert_eq!(ticks(10.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
    assert_eq!(ticks(0.0), [0.0]);
    assert_eq!(ticks(123_456.0).last(), Some(&100_000.0));
    let shown = [0.0, 2.5, 12.25, 350.0, 9_999.0, 12_000.0, 1_500_000.0].map(short);
    assert_eq!(shown, ["0", "2.5", "12.2", "350", "9999", "12k", "1.5M"]);
}
