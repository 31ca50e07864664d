//! docs/ledger.md against the exposition: every metric that is exported stands there, with its labels and with what its
//! HELP says. The tables of counters in it are made elsewhere; the table of all other metrics is held here.

use std::collections::BTreeMap;
use std::path::Path;

use super::rules_tests::everything;
use super::*;
use udpd_base::ledger::testing::numbered;

/// The help and the labels of each metric, in the order of the exposition.
fn exported() -> Vec<(String, String, Vec<String>)> {
    let text = exposition(&everything());
    let mut metrics: Vec<(String, String, Vec<String>)> = Vec::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').expect("a help text");
            metrics.push((name.to_owned(), help.to_owned(), Vec::new()));
        } else if !line.starts_with('#') {
            let labels = line.split(['{', ',']).skip(1).filter_map(|part| part.split_once("=\"")).map(|(name, _)| name);
            let labels = labels.filter(|name| *name != "le").map(str::to_owned).collect();
            metrics.last_mut().expect("declared before").2 = labels;
        }
    }
    metrics
}

/// A text of the page without its marks.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        plain += before;
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    (plain + rest).replace(['`', '['], "")
}

#[test]
fn the_page_of_counters_has_every_metric_with_its_labels_and_its_help() {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("docs/ledger.md");
    let page = std::fs::read_to_string(path).expect("docs/ledger.md");
    let counters: Vec<&str> = numbered().1.iter().map(|(counter, _)| counter.metric).collect();
    let head = page.split("\n## ").next().expect("a head");
    let rows = head.lines().filter_map(|line| line.strip_prefix("| `udpd_"));
    let mut told: BTreeMap<String, String> = rows
        .map(|row| {
            let (name, rest) = row.split_once('`').expect("the end of a name");
            (format!("udpd_{name}"), plain(rest))
        })
        .collect();
    for (name, help, labels) in exported() {
        assert!(page.contains(&format!("`{name}`")), "docs/ledger.md says nothing of {name}");
        if counters.contains(&name.as_str()) {
            continue;
        }
        let expected = format!(" | {} | {help} |", labels.join(", ")).replace("|  |", "| |");
        assert_eq!(told.remove(&name), Some(expected), "{name} in docs/ledger.md");
    }
    assert!(told.is_empty(), "nobody exports {told:?}");
}
