//! The tables against what is made from them: each counter gets a number of its own and is found by it again.

use std::fmt::Write as _;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::counter_list::{FileTally, KERNEL_DROPPED, ListenerDropped, SinkDropped, UpstreamTally};
use super::testing::{each_table, example, table};
use super::*;

/// What a counting thread would have counted: a number of its own for each counter.
fn counted<T: CounterTable + Serialize + DeserializeOwned>() -> T {
    let numbers = (1..).zip(T::COUNTERS).map(|(number, counter)| (counter.name.to_owned(), Value::from(number)));
    table(Value::Object(numbers.collect()))
}

fn assert_whole<T: CounterTable + Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>() {
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
    assert_whole::<SinkTally>();
    assert_whole::<SinkDropped>();
    assert_whole::<FileTally>();
    assert_whole::<DestinationTally>();
    assert_whole::<UpstreamTally>();
}

#[test]
fn what_several_counters_are_together_is_their_sum() {
    let (of_listener, of_sink) = (
        ListenerDropped {
            denied: 1_000,
            proxy_missing: 5,
            proxy_malformed: 7,
            proxy_untrusted: 11,
            ..Default::default()
        },
        SinkDropped { queue_full: 1_000, sink_error: 5, too_large: 7, against_policy: 11, ..Default::default() },
    );
    assert_eq!((of_listener.of_proxies(), of_sink.by_destination()), (23, 23));
    let words: Vec<String> = SinkDropped::COUNTERS.iter().map(LedgerCounter::words).collect();
    assert_eq!(words[..2], ["queue full", "sink error"]);
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
        for LedgerCounter { name, unit, metric, help, .. } in counters {
            let _ = writeln!(page, "| `{name}` | {unit} | `{metric}` | {help} |");
        }
    });
    page += "\n## What was dropped\n\n| layer | reason | why | what helps |\n|---|---|---|---|\n";
    for LedgerCounter { name, layer, help, cure, .. } in drops {
        let _ = writeln!(page, "| {layer} | `{name}` | {help} | {cure} |");
    }
    page + &page_of_the_host()
}

/// The kernel's own counters, with what contains what.
fn page_of_the_host() -> String {
    use hostloss::{KernelTable, tables};
    let mut page = "\n## In `host`\n\nWhat is *lost* in the third column is in `host.lost` unless another counter\n\
                    contains it. Everything but UDP and sockets counts all protocols.\n"
        .to_owned();
    let of: [(&str, &[hostloss::KernelCounter]); 9] = [
        ("nic.INTERFACE", tables::LinkCounters::COUNTERS),
        ("nic.INTERFACE.queues.NUMBER", tables::QueueCounters::COUNTERS),
        ("softnet.CPU", tables::Softnet::COUNTERS),
        ("conntrack", tables::Conntrack::COUNTERS),
        ("ip` and `host.ip6", tables::Ip::COUNTERS),
        ("udp` and `host.udp6", tables::Udp::COUNTERS),
        ("memory", tables::UdpMemory::COUNTERS),
        ("sockets[]", tables::SocketCounts::COUNTERS),
        ("socket_drops", tables::SocketDrops::COUNTERS),
    ];
    for (place, counters) in of {
        let _ = writeln!(
            page,
            "\n### `host.{place}`\n\n| key | the kernel's name | unit | contained in | what it counts |\n\
             |---|---|---|---|---|"
        );
        for hostloss::KernelCounter { name, source, unit, is_loss, contained_in, help, .. } in counters {
            let containers: Vec<String> = contained_in.iter().map(|container| format!("`{container}`")).collect();
            let (unit, lost) = (unit.name(), if *is_loss { ", lost" } else { "" });
            let _ = writeln!(page, "| `{name}` | {source} | {unit}{lost} | {} | {help} |", containers.join(", "));
        }
    }
    page
}

/// `UDPD_WRITE_DOCS=1 cargo test -p udpd-base ledger` writes the page anew.
#[test]
fn the_page_of_counters_is_that_of_the_tables() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ledger.md");
    let text = std::fs::read_to_string(path).expect("docs/ledger.md");
    let head = text.split("\n## ").next().unwrap_or_default();
    let expected = format!("{}\n{}", head.trim_end(), page());
    if std::env::var_os("UDPD_WRITE_DOCS").is_some() {
        std::fs::write(path, &expected).expect("docs/ledger.md is written");
    } else {
        assert!(text == expected, "docs/ledger.md is out of date: UDPD_WRITE_DOCS=1 cargo test -p udpd-base ledger");
    }
}
