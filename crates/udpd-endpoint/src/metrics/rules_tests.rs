//! The dashboard and the rules against the exposition: whatever they name is there.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use super::*;
use hostloss::Losses;
use udpd_base::ledger::testing::numbered;
use udpd_base::ledger::{ResidenceTally, Snapshot};

const FILES: [&str; 3] =
    ["config/grafana/udpd.json", "config/prometheus/udpd.rules.yml", "config/prometheus/udpd.rules.test.yml"];

/// A ledger in which everything is there that can be absent.
pub(super) fn everything() -> Snapshot {
    let (mut snapshot, _) = numbered();
    snapshot.listeners[0].lanes[0].wrong_cpu = Some(1);
    let mut residence = ResidenceTally::default();
    residence.observe(Duration::from_millis(1), 1);
    snapshot.listeners[0].sinks[0].residence = residence.read();
    snapshot.host.udp.no_ports = Some(1);
    snapshot.host.memory.udp_pages = Some(1);
    snapshot.host.softnet.entry(0).or_default().processed = Some(1);
    snapshot.host.lost = Losses::of(&snapshot.host);
    snapshot
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
    let read = |path: &str| {
        std::fs::read_to_string(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path)).unwrap()
    };
    let exported = exported();
    let rules = read("config/prometheus/udpd.rules.yml");
    let recorded: BTreeSet<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- record: ")).collect();
    assert!(!recorded.is_empty());
    // Names of groups are no metrics.
    let groups = ["udpd_rates", "udpd_alerts"];
    for path in FILES {
        let text = read(path);
        let names = named(&text);
        assert!(names.len() > 5, "{path} names no metrics");
        for name in names.into_iter().filter(|name| !groups.contains(name)) {
            assert!(exported.contains(name) || recorded.contains(name), "{path} names {name}, which nobody exports");
        }
    }
}
