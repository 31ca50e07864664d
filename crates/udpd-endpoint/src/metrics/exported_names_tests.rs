//! The dashboard, the rules and docs/ledger.md against the exposition: every metric that they name is exported, and the
//! page has every metric with its labels and its HELP. The tables of counters in it are made elsewhere; the table of
//! all other metrics is held here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use super::*;
use hostloss::Losses;
use udpd_base::ledger::snapshot::ReadinessSnapshot;
use udpd_base::ledger::testing::numbered;
use udpd_base::ledger::{ResidenceTally, Snapshot};

const FILES: [&str; 3] =
    ["config/grafana/udpd.json", "config/prometheus/udpd.rules.yml", "config/prometheus/udpd.rules.test.yml"];

/// A ledger in which everything is there that can be absent.
fn everything() -> Snapshot {
    let (mut snapshot, _) = numbered();
    snapshot.listeners[0].lanes[0].wrong_cpu = Some(1);
    let mut residence = ResidenceTally::default();
    residence.observe(Duration::from_millis(1), 1);
    snapshot.listeners[0].sinks[0].residence = residence.read();
    snapshot.host.udp.no_ports = Some(1);
    snapshot.host.memory.udp_pages = Some(1);
    snapshot.host.softnet.entry(0).or_default().processed = Some(1);
    snapshot.host.lost = Losses::of(&snapshot.host);
    let (reason, text) = ("ready".into(), "udpd is ready".into());
    snapshot.readiness = Some(ReadinessSnapshot { ready: true, reason, text, since: 0.0 });
    snapshot
}

/// A file of the repository.
fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path)).unwrap()
}

/// The names of all metrics, with those of the parts of histograms.
fn exported() -> BTreeSet<String> {
    let text = exposition(&everything());
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples.map(|line| line.split(['{', ' ']).next().unwrap_or_default().to_owned()).collect()
}

/// Every word with "udpd" in it that a query can be made of.
fn named(text: &str) -> BTreeSet<&str> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
    text.split(|letter| !is_part(letter)).filter(|word| word.starts_with("udpd_") || word.contains(":udpd_")).collect()
}

#[test]
fn every_metric_that_the_dashboard_or_a_rule_names_is_exported() {
    let exported = exported();
    let rules = read("config/prometheus/udpd.rules.yml");
    let recorded: BTreeSet<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- record: ")).collect();
    assert!(!recorded.is_empty());
    // Names of groups are no metrics.
    let groups = ["udpd_rates", "udpd_fleet", "udpd_alerts"];
    for path in FILES {
        let text = read(path);
        let names = named(&text);
        assert!(names.len() > 5, "{path} names no metrics");
        for name in names.into_iter().filter(|name| !groups.contains(name)) {
            assert!(exported.contains(name) || recorded.contains(name), "{path} names {name}, which is not exported");
        }
    }
}

/// The help and the labels of each metric, in the order of the exposition.
fn described() -> Vec<(String, String, Vec<String>)> {
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
    let page = read("docs/ledger.md");
    let counters: Vec<&str> = numbered().1.iter().map(|(counter, _)| counter.metric).collect();
    let head = page.split("\n## ").next().expect("a head");
    let rows = head.lines().filter_map(|line| line.strip_prefix("| `udpd_"));
    let mut told: BTreeMap<String, String> = rows
        .map(|row| {
            let (name, rest) = row.split_once('`').expect("the end of a name");
            (format!("udpd_{name}"), plain(rest))
        })
        .collect();
    for (name, help, labels) in described() {
        assert!(page.contains(&format!("`{name}`")), "docs/ledger.md says nothing of {name}");
        if counters.contains(&name.as_str()) {
            continue;
        }
        let expected = format!(" | {} | {help} |", labels.join(", ")).replace("|  |", "| |");
        assert_eq!(told.remove(&name), Some(expected), "{name} in docs/ledger.md");
    }
    assert!(told.is_empty(), "{told:?} is not exported");
}
