//! The exposition, read back line by line the way a scraper reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::*;
use hostloss::Losses;
use hostloss::tables::{LinkCounters, Udp};
use udpd_base::ledger::counter_list::{DestinationTally, FileTally};
use udpd_base::ledger::snapshot::{DestinationSnapshot, FilesSnapshot};
use udpd_base::ledger::testing::{example, numbered};
use udpd_base::ledger::{ResidenceTally, SenderSnapshot};

/// What rises and falls; everything else is a counter.
const GAUGES: [&str; 28] = [
    "udpd_sink_not_uploaded_files",
    "udpd_sink_connections",
    "udpd_sink_on_the_way_datagrams",
    "udpd_host_state",
    "udpd_host_unseen_losses",
    "udpd_build_info",
    "udpd_uptime_seconds",
    "udpd_ledger_residual_datagrams",
    "udpd_foreign_sockets",
    "udpd_socket_receive_buffer_used_bytes",
    "udpd_socket_receive_buffer_max_bytes",
    "udpd_queue_depth",
    "udpd_queue_capacity",
    "udpd_sink_sources",
    "udpd_sink_uncompressed_files",
    "udpd_sink_spilled_datagrams",
    "udpd_sink_unsynced_bytes",
    "udpd_upstream_missing",
    "udpd_before_lost_datagrams_at_most",
    "udpd_before_lost_bytes_at_most",
    "udpd_before_kernel_dropped",
    "udpd_before_dropped",
    "udpd_dropped_between_processes",
    "udpd_upstream_missing_at_least",
    "udpd_upstream_missing_at_most",
    "udpd_upstream_streams",
    "udpd_upstream_losing_streams",
    "udpd_upstream_silent_streams",
];

/// The labels of a counter's metric, which dashboards and alerts name.
fn labels_of(counter: &LedgerCounter) -> &'static [&'static str] {
    match (counter.metric, counter.layer) {
        ("udpd_received_datagrams_total" | "udpd_receive_calls_total" | "udpd_receive_errors_total", _) => {
            &["lane", "listener"]
        }
        (_, "kernel" | "listener") => &["layer", "listener", "reason"],
        (_, "sink") => &["layer", "listener", "reason", "sink"],
        (
            "udpd_sink_delivered_datagrams_total"
            | "udpd_sink_spilled_datagrams"
            | "udpd_sink_spilled_before_datagrams_total"
            | "udpd_sink_templates_forgotten_total"
            | "udpd_sink_spill_repeats_at_most_datagrams_total"
            | "udpd_sink_stream_repeats_at_most_datagrams_total",
            _,
        ) => &["listener", "sink"],
        (metric, _) if metric.starts_with("udpd_upstream_") => &["listener", "unit"],
        (metric, _) if metric.starts_with("udpd_sink_") => &["sink"],
        (metric, _) if metric.starts_with("udpd_relay_") => &["destination", "sink"],
        _ => &["listener"],
    }
}

#[derive(Debug)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// Reads `name{label="value",...} number`, undoing the escapes.
fn parse_sample(line: &str) -> Sample {
    let name_length = line.find(['{', ' ']).unwrap();
    let (name, mut rest) = line.split_at(name_length);
    let mut labels = BTreeMap::new();
    while let Some(label_onwards) = rest.strip_prefix(['{', ',']) {
        let (label, value_onwards) = label_onwards.split_once("=\"").unwrap();
        let mut value = String::new();
        let mut characters = value_onwards.char_indices();
        let end = loop {
            match characters.next().unwrap() {
                (position, '"') => break position,
                (_, '\\') => value.push(match characters.next().unwrap().1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, other) => value.push(other),
            }
        };
        assert!(labels.insert(label.to_string(), value).is_none(), "{line} has {label} twice");
        rest = &value_onwards[end + 1..];
    }
    let value = rest.strip_prefix('}').unwrap_or(rest).strip_prefix(' ').unwrap().parse().unwrap();
    Sample { name: name.into(), labels, value }
}

fn parse(text: &str) -> Vec<Sample> {
    let mut samples = Vec::new();
    let mut declared = BTreeSet::new();
    let mut present = String::new();
    let mut seen = BTreeSet::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            present = help.split_once(' ').expect("a help text").0.to_string();
            assert!(declared.insert(present.clone()), "{present} is declared twice");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(name, present);
            let expected = match name {
                "udpd_residence_seconds" => "histogram",
                name if GAUGES.contains(&name) => "gauge",
                _ => "counter",
            };
            assert_eq!(kind, expected, "{line}");
        } else {
            let sample = parse_sample(line);
            let part = sample.name.strip_prefix(&present);
            let is_of_histogram = matches!(part, Some("_bucket" | "_sum" | "_count"));
            let is_own = part == Some("") || present == "udpd_residence_seconds" && is_of_histogram;
            assert!(is_own, "{line} stands under the declaration of {present}");
            assert!(seen.insert((sample.name.clone(), sample.labels.clone())), "{line} stands there twice");
            samples.push(sample);
        }
    }
    samples
}

fn sum(samples: &[Sample], name: &str, labels: &[(&str, &str)]) -> f64 {
    let chosen = |sample: &&Sample| {
        sample.name == name
            && labels.iter().all(|(label, value)| sample.labels.get(*label).is_some_and(|found| found == value))
    };
    let values: Vec<f64> = samples.iter().filter(chosen).map(|sample| sample.value).collect();
    assert!(!values.is_empty(), "no sample of {name} with {labels:?}");
    values.iter().sum()
}

#[test]
fn the_sums_are_those_of_the_snapshot() {
    let snapshot = example();
    let samples = parse(&exposition(&snapshot));
    for listener in &snapshot.listeners {
        let of_listener = [("listener", listener.name.as_str())];
        let total = |name| sum(&samples, name, &of_listener);
        let dropped = |layer| {
            sum(&samples, "udpd_dropped_datagrams_total", &[("listener", listener.name.as_str()), ("layer", layer)])
        };
        assert_eq!(total("udpd_received_datagrams_total"), listener.counts.received as f64);
        assert_eq!(total("udpd_ledger_residual_datagrams"), listener.residual.unwrap() as f64);
        assert_eq!(dropped("kernel"), listener.kernel_dropped.unwrap() as f64);
        assert_eq!(dropped("listener"), listener.counts.dropped.total() as f64);
        let sinks = &listener.sinks;
        let sink_drops: u64 = sinks.iter().map(|sink| sink.counts.dropped.total()).sum();
        assert_eq!(dropped("sink"), sink_drops as f64);
        let buffers: u64 = listener.lanes.iter().map(|lane| lane.receive_buffer_bytes).sum();
        assert_eq!(total("udpd_socket_receive_buffer_max_bytes"), buffers as f64);
        let used: u64 = listener.lanes.iter().map(|lane| lane.receive_buffer_used_bytes).sum();
        assert_eq!(total("udpd_socket_receive_buffer_used_bytes"), used as f64);
        for sink in sinks {
            let of_sink = [of_listener[0], ("sink", sink.name.as_str())];
            assert_eq!(sum(&samples, "udpd_sink_delivered_datagrams_total", &of_sink), sink.counts.delivered as f64);
            assert_eq!(sum(&samples, "udpd_queue_depth", &of_sink), sink.queue_depth as f64);
            assert_eq!(sum(&samples, "udpd_queue_capacity", &of_sink), sink.queue_capacity as f64);
        }
    }
    assert_eq!(sum(&samples, "udpd_build_info", &[("version", &snapshot.version)]), 1.0);
    assert_eq!(sum(&samples, "udpd_uptime_seconds", &[]), snapshot.uptime_seconds);
    assert_eq!(sum(&samples, "udpd_log_lines_lost_total", &[]), snapshot.log_lines_lost as f64);
}

#[test]
fn every_counter_has_its_metric_with_its_labels() {
    let (snapshot, numbers) = numbered();
    let samples = parse(&exposition(&snapshot));
    for (counter, number) in numbers {
        let of_drop = [("layer", counter.layer), ("reason", counter.name)];
        let labels = if counter.layer.is_empty() { &[][..] } else { &of_drop };
        assert_eq!(sum(&samples, counter.metric, labels), number as f64, "{counter:?}");
        let sample = samples.iter().find(|sample| sample.value == number as f64).expect("just summed");
        assert!(sample.labels.keys().eq(labels_of(counter)), "{sample:?}");
    }
}

#[test]
fn datagrams_on_the_wrong_core_are_shown_only_where_a_plan_says_which_is_right() {
    let mut snapshot = example();
    assert!(!exposition(&snapshot).contains("wrong_cpu"));
    snapshot.listeners[0].lanes[1].wrong_cpu = Some(7);
    let samples = parse(&exposition(&snapshot));
    let labels = [("listener", "syslog"), ("lane", "1")];
    assert_eq!(sum(&samples, "udpd_wrong_cpu_datagrams_total", &labels), 7.0);
    assert_eq!(samples.iter().filter(|sample| sample.name == "udpd_wrong_cpu_datagrams_total").count(), 1);
}

#[test]
fn a_name_cannot_end_its_label() {
    let mut snapshot = example();
    let name = "a\\b\"} 1\nudpd_forged 2";
    snapshot.listeners[0].name = name.into();
    let samples = parse(&exposition(&snapshot));
    assert!(samples.iter().all(|sample| sample.name != "udpd_forged"));
    assert_eq!(
        sum(&samples, "udpd_received_bytes_total", &[("listener", name)]),
        snapshot.listeners[0].counts.bytes as f64
    );
}

#[test]
fn what_a_sink_counts_for_all_its_listeners_stands_there_once() {
    let mut snapshot = example();
    let mut second = snapshot.listeners[0].clone();
    second.name = "second".into();
    snapshot.listeners.push(second);
    for listener in &mut snapshot.listeners {
        let sink = &mut listener.sinks[0];
        sink.files = Some(FilesSnapshot {
            counts: FileTally { unsynced_bytes: 7, doubtful_bytes: 8, sync_failures: 9, ..FileTally::default() },
            synced_at: None,
        });
        let [one, other] = [("10.0.0.9:514", 5), ("[fd00::9]:514", 6)].map(|(address, sent)| DestinationSnapshot {
            address: address.into(),
            counts: DestinationTally { sent, icmp_errors: 1, ..DestinationTally::default() },
        });
        sink.destinations = vec![one, other];
    }
    let samples = parse(&exposition(&snapshot));
    let name = snapshot.listeners[0].sinks[0].name.clone();
    let of_sink = [("sink", name.as_str())];
    assert_eq!(sum(&samples, "udpd_sink_unsynced_bytes", &of_sink), 7.0);
    assert_eq!(sum(&samples, "udpd_sink_doubtful_bytes_total", &of_sink), 8.0);
    assert_eq!(sum(&samples, "udpd_sink_sync_failures_total", &of_sink), 9.0);
    let of_destination = [of_sink[0], ("destination", "[fd00::9]:514")];
    assert_eq!(sum(&samples, "udpd_relay_sent_datagrams_total", &of_destination), 6.0);
    assert_eq!(sum(&samples, "udpd_relay_icmp_errors_total", &of_sink), 2.0);
}

#[test]
fn the_residence_of_a_sink_is_a_histogram_that_never_falls_and_ends_with_all() {
    let mut snapshot = example();
    let mut tally = ResidenceTally::default();
    for (micros, datagrams) in [(90, 985), (900, 10), (40_000, 4), (701_000_000, 1)] {
        tally.observe(Duration::from_micros(micros), datagrams);
    }
    snapshot.listeners[0].sinks[0].residence = tally.read();
    let samples = parse(&exposition(&snapshot));
    let of_sink = [("sink", "archive")];
    let buckets: Vec<&Sample> =
        samples.iter().filter(|sample| sample.name == "udpd_residence_seconds_bucket").collect();
    assert!(buckets.is_sorted_by_key(|sample| sample.value));
    assert!(buckets.iter().all(|sample| sample.labels.keys().eq(["le", "sink"])));
    let within = |le| sum(&samples, "udpd_residence_seconds_bucket", &[of_sink[0], ("le", le)]);
    let seen = ["0.00005", "0.0001", "0.001", "0.05", "500", "+Inf"].map(within);
    assert_eq!(seen, [0.0, 985.0, 995.0, 999.0, 999.0, 1000.0]);
    assert_eq!(sum(&samples, "udpd_residence_seconds_count", &of_sink), 1000.0);
    assert_eq!(sum(&samples, "udpd_residence_seconds_sum", &of_sink), tally.read().unwrap().sum_seconds);
    let absent = samples.iter().find(|sample| sample.labels.get("sink").is_some_and(|sink| sink == "relay"));
    assert!(absent.is_some_and(|sample| !sample.name.starts_with("udpd_residence")), "nothing was measured there");
}

#[test]
fn the_connections_and_refusals_of_a_sink_stand_there_once_whatever_listeners_it_has() {
    let mut snapshot = example();
    let peers = udpd_base::ledger::testing::peers();
    snapshot.listeners[0].sinks[0].peers = peers;
    let mut second = snapshot.listeners[0].clone();
    second.name = "second".into();
    snapshot.listeners.push(second);
    let samples = parse(&exposition(&snapshot));
    let value = |name: &str, label: (&str, &str)| sum(&samples, name, &[("sink", "archive"), label]);
    let states = ["new", "up", "down"].map(|state| value("udpd_sink_connections", ("state", state)));
    assert_eq!(states, [0.0, 1.0, 1.0]);
    assert_eq!(sum(&samples, "udpd_sink_on_the_way_datagrams", &[]), 3007.0);
    let refused = ["400", "code 27"].map(|reason| value("udpd_sink_refused_datagrams_total", ("reason", reason)));
    assert_eq!(refused, [12.0, 3.0]);
}

#[test]
fn no_sender_is_ever_in_a_metric() {
    let mut snapshot = example();
    let address = "203.0.113.77".parse().unwrap();
    snapshot.listeners[0].lanes[0].senders =
        vec![SenderSnapshot { address, port: Some(60_123), share: 1.0, datagrams: 1, error: 0 }];
    let text = exposition(&snapshot);
    assert!(!text.contains("203.0.113.77") && !text.contains("60123"), "{text}");
}

#[test]
fn the_sum_of_what_was_lost_is_that_of_the_layers_and_what_is_unknown_has_no_sample() {
    let mut snapshot = example();
    let host = &mut snapshot.host;
    let link =
        LinkCounters { rx_dropped: Some(4), rx_crc_errors: Some(2), rx_errors: Some(3), ..LinkCounters::default() };
    *host = HostReading::default();
    host.nic.insert("eth0".to_owned(), InterfaceReading { index: 2, link, ..InterfaceReading::default() });
    host.udp = Udp { in_errors: Some(9), rcvbuf_errors: Some(9), ..Udp::default() };
    host.lost = Losses::of(host);
    assert_eq!(host.lost.total, 16);
    let samples = parse(&exposition(&snapshot));
    assert_eq!(sum(&samples, "udpd_host_lost_total", &[]), 16.0);
    assert_eq!(sum(&samples, "udpd_host_events_total", &[]), f64::from(4 + 2 + 3 + 9 + 9));
    assert!(!samples.iter().any(|sample| sample.labels.values().any(|value| value == "mem_errors")));
}

#[test]
fn a_host_with_a_thousand_interfaces_shows_those_that_were_there_first() {
    let mut snapshot = example();
    snapshot.host = HostReading::default();
    for index in 1..=1000_u32 {
        let link = LinkCounters { rx_dropped: Some(1), ..LinkCounters::default() };
        let interface = InterfaceReading { index, link, ..InterfaceReading::default() };
        snapshot.host.nic.insert(format!("veth{index}"), interface);
    }
    let samples = parse(&exposition(&snapshot));
    assert_eq!(sum(&samples, "udpd_host_lost_total", &[]), INTERFACES_MAX as f64);
    let is_shown = |name: &str| samples.iter().any(|sample| sample.labels.values().any(|value| value == name));
    assert!(is_shown("veth1") && !is_shown("veth33"));
}
