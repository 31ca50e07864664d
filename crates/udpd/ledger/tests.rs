//! The tables against what is made from them: each counter gets a number of its own and is found by it again.

use std::fmt::Write as _;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::snapshot::{
    BeforeSnapshot, DestinationSnapshot, FilesSnapshot, LaneSnapshot, ListenerSnapshot, SinkSnapshot, UpstreamSnapshot,
};
use super::tables::{FileTally, KERNEL_DROPPED, ListenerDropped, SinkDropped, UpstreamTally};
use super::*;

/// A table as it stands in the ledger; what is not there is 0.
fn table<T: Table + DeserializeOwned>(json: Value) -> T {
    serde_json::from_value(json).expect("a table")
}

fn sink(name: &str, delivered: u64, queue_full: u64, sink_error: u64) -> SinkSnapshot {
    SinkSnapshot {
        name: name.into(),
        inline: false,
        offered: 1_233_551,
        counts: table(
            json!({ "delivered": delivered, "dropped": { "queue_full": queue_full, "sink_error": sink_error } }),
        ),
        in_flight: 1_233_551 - delivered - queue_full - sink_error,
        queue_depth: 3,
        queue_capacity: 256,
        residence: None,
        files: None,
        destinations: Vec::new(),
        removed: false,
    }
}

/// A ledger with a number in every place, whose sums agree.
pub(crate) fn example() -> Snapshot {
    let lane = |lane, cpu, node, received, kernel_dropped, calls| LaneSnapshot {
        lane,
        address: "0.0.0.0:514".into(),
        cpu,
        node,
        queue: None,
        engine: "recvmmsg".into(),
        arrived: Some(received + kernel_dropped),
        kernel_dropped: Some(kernel_dropped),
        denied_in_kernel: None,
        wrong_cpu: None,
        planned_cpus: Vec::new(),
        arrived_on: None,
        arrived_by_queue: None,
        counts: LaneTally { received, calls, ..LaneTally::default() },
        receive_buffer_bytes: 8_388_608,
        receive_buffer_used_bytes: 1_280,
        xdp: None,
        senders: Vec::new(),
        removed: false,
    };
    let dropped = json!({ "truncated": 5, "denied": 4, "rate_limited": 3, "no_batch": 2, "unsplit": 1, "unread": 1 });
    let beside = LaneTally { bytes: 98_685_360, truncated: 5, dropped: table(dropped), ..LaneTally::default() };
    let lanes = vec![lane(0, Some(0), Some(0), 1_000_000, 1_000, 50_000), lane(1, Some(12), None, 233_567, 100, 0)];
    let listener = ListenerSnapshot {
        name: "syslog".into(),
        address: "0.0.0.0:514".into(),
        arrived: Some(1_234_667),
        kernel_dropped: Some(1_100),
        kernel_dropped_between: Some(0),
        kernel_dropped_unit: "datagrams".into(),
        gro: "off".into(),
        counts: LaneTally::sum(lanes.iter().map(|lane| lane.counts).chain([beside])),
        wrong_cpu: None,
        upstream: None,
        shared_with: Some(Vec::new()),
        residual: Some(0),
        sinks: vec![sink("archive", 1_233_000, 400, 0), sink("relay", 1_200_000, 33_500, 51)],
        lanes,
        removed: false,
    };
    let before = BeforeSnapshot {
        pid: 4_711,
        ended: true,
        lost_datagrams_at_most: Some(0),
        lost_bytes_at_most: Some(0),
        in_flight: Some(0),
        kernel_dropped: Some(0),
        dropped: Some(0),
    };
    Snapshot {
        version: "0.1.0".into(),
        uptime_seconds: 12.5,
        before: Some(before),
        listeners: vec![listener],
        host: crate::host::Reading::default(),
        log_lines_lost: 6,
        last_reload: None,
    }
}

/// Some datagrams that never came.
pub(crate) fn upstream() -> UpstreamSnapshot {
    UpstreamSnapshot {
        unit: "datagrams".into(),
        missing: Some(33),
        missing_at_least: 33,
        missing_at_most: 33,
        counts: UpstreamTally { streams: 2, late: 4, ..UpstreamTally::default() },
        unseen: 0,
        unnumbered: 7,
    }
}

/// Calls `visit` with the declarations of each table and with the places where its counters are in a ledger.
fn each_table(mut visit: impl FnMut(&'static [Counter], &[&str])) {
    visit(LaneTally::COUNTERS, &["/listeners/0", "/listeners/0/lanes/0"]);
    visit(ListenerDropped::COUNTERS, &["/listeners/0/dropped", "/listeners/0/lanes/0/dropped"]);
    visit(UpstreamTally::COUNTERS, &["/listeners/0/upstream"]);
    visit(Tally::COUNTERS, &["/listeners/0/sinks/0"]);
    visit(SinkDropped::COUNTERS, &["/listeners/0/sinks/0/dropped"]);
    visit(FileTally::COUNTERS, &["/listeners/0/sinks/0/files"]);
    visit(DestinationTally::COUNTERS, &["/listeners/0/sinks/0/destinations/0"]);
}

/// A ledger of one lane and one sink in which each counter has a number of its own, and these.
pub(crate) fn numbered() -> (Snapshot, Vec<(&'static Counter, u64)>) {
    let mut snapshot = example();
    let listener = &mut snapshot.listeners[0];
    listener.lanes.truncate(1);
    listener.sinks.truncate(1);
    listener.upstream = Some(upstream());
    listener.sinks[0].files = Some(FilesSnapshot::default());
    listener.sinks[0].destinations =
        vec![DestinationSnapshot { address: "10.0.0.9:514".into(), counts: DestinationTally::default() }];
    let mut json = serde_json::to_value(snapshot).expect("JSON");
    let mut numbers = Vec::new();
    each_table(|counters, places| {
        for counter in counters {
            let number = 7_000_001 + numbers.len() as u64;
            numbers.push((counter, number));
            for place in places {
                let table = json.pointer_mut(place).and_then(Value::as_object_mut).expect(place);
                let before = table.insert(counter.name.to_owned(), number.into());
                assert!(before.is_some(), "the ledger has no {} at {place}", counter.name);
            }
        }
    });
    let snapshot: Snapshot = serde_json::from_value(json.clone()).expect("a ledger");
    assert_eq!(serde_json::to_value(&snapshot).expect("JSON"), json, "each counter has its key");
    (snapshot, numbers)
}

/// What a counting thread would have counted: a number of its own for each counter.
fn counted<T: Table + Serialize + DeserializeOwned>() -> T {
    let numbers = (1..).zip(T::COUNTERS).map(|(number, counter)| (counter.name.to_owned(), Value::from(number)));
    table(Value::Object(numbers.collect()))
}

fn assert_whole<T: Table + Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>() {
    let counted = counted::<T>();
    let published = Published::default();
    published.publish(&counted);
    assert_eq!(published.read(), counted, "each counter is read from where it was published");
    let doubled = T::sum([published.read(), counted]);
    for ((counter, value), number) in doubled.values().zip(1..) {
        assert_eq!(value, 2 * number, "{} is summed with itself", counter.name);
    }
    let last = T::COUNTERS.len() as u64;
    assert_eq!(doubled.total(), last * (last + 1), "the total has every counter of the table once");
}

#[test]
fn what_is_published_is_read_and_summed_counter_by_counter() {
    assert_whole::<LaneTally>();
    assert_whole::<ListenerDropped>();
    assert_whole::<Tally>();
    assert_whole::<SinkDropped>();
    assert_whole::<FileTally>();
    assert_whole::<DestinationTally>();
    assert_whole::<UpstreamTally>();
}

#[test]
fn a_lane_is_read_with_what_others_count_for_it() {
    let socket = Arc::new(mmsg::Socket::new(mmsg::Family::V4).expect("a socket"));
    let lane = LaneLedger::new(socket, 3);
    let mut tally = LaneTally { dropped: counted(), ..counted() };
    (tally.offered[0], tally.offered[SINKS_PER_LISTENER_MAX - 1]) = (9, 10);
    lane.publish(&tally);
    assert_eq!(lane.read(), tally);
    lane.count_unread(40);
    tally.received += 40;
    tally.dropped.unread += 40;
    assert_eq!(lane.read(), tally);
}

#[test]
fn a_ledger_of_another_version_is_read_as_far_as_it_goes() {
    let mut json = serde_json::to_value(example()).expect("JSON");
    let listener = json["listeners"][0].as_object_mut().expect("an object");
    listener.insert("from_the_future".to_owned(), json!(7));
    listener.remove("receive_errors");
    listener["dropped"] = json!({ "denied": 4, "misspelt": 9 });
    listener["lanes"][0].as_object_mut().expect("an object").remove("dropped");
    let mut expected = example();
    expected.listeners[0].counts.dropped = ListenerDropped { denied: 4, ..ListenerDropped::default() };
    assert_eq!(serde_json::from_value::<Snapshot>(json).expect("a ledger"), expected);
}

#[test]
fn every_counter_says_what_it_is_and_no_two_share_a_metric() {
    let mut metrics = std::collections::BTreeSet::new();
    each_table(|counters, places| {
        for counter in counters {
            let name = format!("{} at {}", counter.name, places[0]);
            assert!(counter.help.ends_with('.') && !counter.unit.is_empty(), "{name}");
            assert_eq!(counter.layer.is_empty(), counter.cure.is_empty(), "{name}: a drop has a cure");
            let labels = if counter.layer.is_empty() { String::new() } else { counter.layer.to_owned() + counter.name };
            assert!(
                counter.metric.starts_with("udpd_") && metrics.insert(counter.metric.to_owned() + &labels),
                "{name}"
            );
        }
    });
}

/// The tables as a page for people.
fn page() -> String {
    let mut page = String::new();
    let mut drops = vec![&KERNEL_DROPPED];
    each_table(|counters, places| {
        if !counters[0].layer.is_empty() {
            drops.extend(counters);
            return;
        }
        let place = places[0].trim_start_matches('/').replace("/0", "[]").replace('/', ".");
        let _ = writeln!(page, "\n## In `{place}`\n\n| key | unit | metric | what it counts |\n|---|---|---|---|");
        for Counter { name, unit, metric, help, .. } in counters {
            let _ = writeln!(page, "| `{name}` | {unit} | `{metric}` | {help} |");
        }
    });
    page += "\n## What was dropped\n\n| layer | reason | why | what helps |\n|---|---|---|---|\n";
    for Counter { name, layer, help, cure, .. } in drops {
        let _ = writeln!(page, "| {layer} | `{name}` | {help} | {cure} |");
    }
    page + &page_of_the_host()
}

/// The kernel's own counters, with what contains what.
fn page_of_the_host() -> String {
    use crate::host::{self, Table, tables};
    let mut page = "\n## In `host`\n\nWhat is *lost* in the third column is in `host.lost` unless another counter\n\
                    contains it. Everything but UDP and sockets counts all protocols.\n"
        .to_owned();
    let of: [(&str, &[host::Counter]); 9] = [
        ("nic.INTERFACE", tables::Link::COUNTERS),
        ("nic.INTERFACE.queues.NUMBER", tables::Queue::COUNTERS),
        ("softnet.CPU", tables::Softnet::COUNTERS),
        ("conntrack", tables::Conntrack::COUNTERS),
        ("ip` and `host.ip6", tables::Ip::COUNTERS),
        ("udp` and `host.udp6", tables::Udp::COUNTERS),
        ("memory", tables::Memory::COUNTERS),
        ("sockets[]", tables::SocketCounts::COUNTERS),
        ("socket_drops", tables::SocketDrops::COUNTERS),
    ];
    for (place, counters) in of {
        let _ = writeln!(
            page,
            "\n### `host.{place}`\n\n| key | the kernel's name | unit | contained in | what it counts |\n\
             |---|---|---|---|---|"
        );
        for host::Counter { name, source, unit, is_loss, contained_in, help, .. } in counters {
            let containers: Vec<String> = contained_in.iter().map(|container| format!("`{container}`")).collect();
            let (unit, lost) = (unit.name(), if *is_loss { ", lost" } else { "" });
            let _ = writeln!(page, "| `{name}` | {source} | {unit}{lost} | {} | {help} |", containers.join(", "));
        }
    }
    page
}

/// `UDPD_WRITE_DOCS=1 cargo test --lib ledger` writes the page anew.
#[test]
fn the_page_of_counters_is_that_of_the_tables() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/ledger.md");
    let text = std::fs::read_to_string(path).expect("docs/ledger.md");
    let head = text.split("\n## ").next().unwrap_or_default();
    let expected = format!("{}\n{}", head.trim_end(), page());
    if std::env::var_os("UDPD_WRITE_DOCS").is_some() {
        std::fs::write(path, &expected).expect("docs/ledger.md is written");
    } else {
        assert!(text == expected, "docs/ledger.md is out of date: UDPD_WRITE_DOCS=1 cargo test --lib ledger");
    }
}
