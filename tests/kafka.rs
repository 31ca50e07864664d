//! The Kafka sink at the end of a whole pipeline, with real datagrams (cargo feature `kafka`).
//!
//! What needs a broker needs one that can be stopped and started: `tests/rigs/kafka_broker.sh` brings it and says where
//! it is. Without it those tests say that they did not run. A binary of its own, because the allocator that counts is
//! that of the whole process; for the same reason one test runs at a time.

mod util;

#[path = "kafka/broker.rs"]
mod broker;
#[path = "kafka/log_lines.rs"]
mod log_lines;
#[path = "kafka/pipeline.rs"]
mod pipeline;
#[cfg(feature = "kafka-tls")]
#[path = "kafka/secured.rs"]
mod secured;
#[path = "kafka/spill.rs"]
mod spill;
#[path = "kafka/topic.rs"]
mod topic;

use std::alloc::System;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::mocking::MockCluster;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use broker::Broker;
use pipeline::{Running, settings, unused_address};
use util::*;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    log_lines::listen();
    guard
}

/// The broker of the rig, which runs, for the one test that runs now.
fn running_broker() -> Option<(Broker, MutexGuard<'static, ()>)> {
    let (alone, broker) = (alone(), Broker::of_the_rig()?);
    broker.start();
    Some((broker, alone))
}

/// Each sender has addresses, hence keys, hence partitions, of its own.
const SENDERS: u8 = 4;

/// How many datagrams go past the restarts.
fn datagrams() -> u64 {
    std::env::var("UDPD_KAFKA_DATAGRAMS")
        .map_or(200_000, |text| text.parse().expect("UDPD_KAFKA_DATAGRAMS is a number"))
}

#[test]
fn a_broker_that_is_restarted_twice_in_mid_stream_gets_everything_delivered_exactly_once_and_in_order() {
    let Some((broker, _alone)) = running_broker() else { return };
    let running = Running::start_with_null(&settings(broker.address(), "restarted", &[]));
    past_two_restarts(&broker, running, "restarted", datagrams());
}

/// Sends so many datagrams at least past a restart in order and one by kill -9, and compares the ledger with the topic.
fn past_two_restarts(broker: &Broker, running: Running, topic: &str, total: u64) {
    // No faster than that the queue lasts through a restart, whatever is asked of a long run.
    let rate = 6_000.max(total / 60) / u64::from(SENDERS);
    let (share, both_are_over) = (total / u64::from(SENDERS), Arc::new(AtomicBool::new(false)));
    let senders: Vec<_> = (1..=SENDERS)
        .map(|sender| {
            let (address, over) = (running.address(), Arc::clone(&both_are_over));
            // A second of datagrams at a time, each from an address of its own, for as long as the restarts take.
            std::thread::spawn(move || {
                let mut sent = 0;
                for round in 0_u16.. {
                    let [high, low] = round.to_be_bytes();
                    let from = Some(IpAddr::V4(Ipv4Addr::new(127, high, low, sender)));
                    let second = Load { from, flows: 2, burst: 8, ..Load::new(address, Amount::Count(rate)) };
                    sent += Load { rate_per_second: rate, ..second }.send().sent;
                    if sent >= share && over.load(Ordering::Relaxed) {
                        break;
                    }
                }
                sent
            })
        })
        .collect();
    running.wait("the first sixth", |sink| count(sink, "delivered") >= total / 6);
    broker.stop();
    broker.start();
    running.wait("half of it", |sink| count(sink, "delivered") >= total / 2);
    broker.kill();
    broker.start();
    both_are_over.store(true, Ordering::Relaxed);
    let sent: u64 = senders.into_iter().map(|sender| sender.join().expect("sent")).sum();
    running.wait("the last acknowledgement", |sink| count(sink, "in_flight") == 0 && count(sink, "offered") > 0);
    let ledger = running.stop();

    assert_closed(&ledger, sent);
    let sink = sink(&ledger);
    assert_eq!(dropped(sink, "sink_error"), 0, "nothing is given up within five minutes: {sink:#}");
    let delivered = count(sink, "delivered");
    assert!(delivered >= total / 5 * 4, "most of it went through the topic: {sink:#}");
    log::info!("of {sent} datagrams past two restarts {delivered} are acknowledged: {}", sink["dropped"]);
    assert_eq!(log_lines::count("WARN sink stream: no broker of "), 2, "each outage is one warning");
    assert_eq!(log_lines::count("INFO sink stream: a broker of "), 2, "and its end is one line");
    assert!(log_lines::all() <= 20, "a few lines besides");
    topic::read(broker.address(), topic).assert_exactly_once_in_order(delivered);
}

#[test]
fn a_broker_that_is_down_at_the_start_and_comes_later_gets_everything() {
    let Some((broker, _alone)) = running_broker() else { return };
    broker.stop();
    let topic = "late";
    let running = Running::start_with_null(&settings(broker.address(), topic, &[]));
    let sent = running.load(20_000).send().sent;
    running.wait("all of it to wait", |sink| count(sink, "in_flight") == sent);
    running.wait("the warning", |_| log_lines::count("WARN sink stream: no broker of ") == 1);
    broker.start();
    running.wait("the last acknowledgement", |sink| count(sink, "delivered") == sent);
    let ledger = running.stop();
    assert_eq!(log_lines::count("INFO sink stream: a broker of "), 1);
    assert_closed(&ledger, sent);
    topic::read(broker.address(), topic).assert_exactly_once_in_order(sent);
}

#[test]
fn a_broker_that_is_killed_and_stays_away_gets_what_waited_on_the_disk_exactly_once_and_in_order() {
    let Some((broker, _alone)) = running_broker() else { return };
    let (topic, total, spill) = ("spilled", datagrams() / 5, tempfile::tempdir().expect("a directory"));
    let (brokers, path) = (broker.address(), spill.path().display());
    let keys = format!("brokers = '{brokers}'\ntopic = '{topic}'\nspill = {{ path = '{path}', bytes = '1GiB' }}");
    let running = Running::start(&keys);
    let load = Load { rate_per_second: total / 10, ..Load::new(running.address(), Amount::Count(total)) }.spawn();
    running.wait("the first tenth", |sink| count(sink, "delivered") > total / 10);
    broker.kill();
    running.wait("a third to wait on the disk", |sink| count(sink, "spilled") > total / 3);
    broker.start();
    let sent = load.join().expect("sent").sent;
    running.wait("the last acknowledgement", |sink| count(sink, "delivered") == sent);
    let ledger = running.stop();
    assert_closed(&ledger, sent);
    let sink = sink(&ledger);
    assert_eq!((count(sink, "spilled"), count(sink, "spill_repeats_at_most")), (0, 0));
    topic::read(broker.address(), topic).assert_exactly_once_in_order(sent);
}

#[test]
fn what_waits_for_a_broker_at_the_end_is_delivered_before_it() {
    let Some((broker, _alone)) = running_broker() else { return };
    let topic = "flushed";
    // Without a flush these would wait for a minute.
    let running = Running::start_with_null(&settings(broker.address(), topic, &[("linger.ms", "60000")]));
    let sent = running.load(5_000).send().sent;
    running.wait("all of it to wait", |sink| count(sink, "in_flight") == sent);
    let ledger = running.stop();
    assert_closed(&ledger, sent);
    assert_eq!(delivered(&ledger), sent);
    topic::read(broker.address(), topic).assert_exactly_once_in_order(sent);
}

#[test]
fn where_no_broker_ever_comes_all_is_failed_the_end_is_bounded_and_the_other_sink_gets_everything() {
    let _alone = alone();
    let running = Running::start_with_null(&settings(&unused_address(), "never", &[]));
    let sent = running.load(5_000).send().sent;
    running.wait("all of it to wait", |sink| count(sink, "in_flight") == sent);
    let ledger = running.stop();
    assert_closed(&ledger, sent);
    let sinks = sinks(&ledger);
    assert_eq!(count(&sinks[0], "delivered"), 0);
    assert_eq!(count(&sinks[0]["dropped"], "sink_error"), sent);
    assert_eq!(count(&sinks[1], "delivered"), sent, "the null sink beside it");
}

#[test]
fn over_a_reload_a_sink_that_stays_keeps_what_is_not_acknowledged_and_one_that_changes_waits_for_it() {
    let _alone = alone();
    let cluster = MockCluster::new(1).expect("a mock cluster");
    cluster.create_topic("reloaded", 1, 1).expect("a topic");
    // Until a flush, these wait for a minute.
    let slow = settings(&cluster.bootstrap_servers(), "reloaded", &[("linger.ms", "60000")]);
    let quick = settings(&cluster.bootstrap_servers(), "reloaded", &[("linger.ms", "1")]);
    let running = Running::start_with_null(&slow);
    let send = |running: &Running, datagrams| {
        let load = running.load(datagrams);
        load.send().sent
    };
    let mut sent = send(&running, 200);
    running.wait("all of it to wait", |sink| count(sink, "in_flight") == sent);
    let running = running.reload(&slow, 2);
    let counts = |sink: &serde_json::Value| ["in_flight", "delivered"].map(|key| count(sink, key));
    running.wait("the same in the new ledger", |sink| counts(sink) == [sent, 0]);
    sent += send(&running, 100);
    running.wait("more of it to wait", |sink| count(sink, "in_flight") == sent);
    let running = running.reload(&quick, 2);
    running.wait("what the old client had", |sink| count(sink, "delivered") == sent);
    sent += send(&running, 50);
    running.wait("what the new client has", |sink| count(sink, "delivered") == sent);
    assert_eq!(log_lines::count("acknowledged"), 0);
    assert_closed(&running.stop(), sent);
}

#[test]
fn what_no_broker_acknowledges_after_a_reload_has_changed_the_sink_is_named_and_counted() {
    let _alone = alone();
    let unused = unused_address();
    let running = Running::start_with_null(&settings(&unused, "never", &[]));
    let sent = running.load(40).send().sent;
    running.wait("all of it to wait", |sink| count(sink, "in_flight") == sent);
    let running = running.reload(&settings(&unused, "other", &[]), 1);
    running.wait("its end", |sink| dropped(sink, "sink_error") == sent);
    assert_eq!(log_lines::count(&format!("no broker acknowledged {sent} datagrams")), 1);
    assert_closed(&running.stop(), sent);
}

#[test]
fn a_full_queue_costs_only_its_own_sink_and_the_ledger_closes_over_a_consumer_that_waits_for_room() {
    let _alone = alone();
    let settings = settings(&unused_address(), "full", &[("queue.buffering.max.messages", "100")]);
    let running = Running::start_with_null(&format!("{settings}\nqueue_bytes = '256KiB'"));
    let sent = Load { rate_per_second: 20_000, ..Load::new(running.address(), Amount::Count(40_000)) }.send().sent;
    running.wait("a full channel", |sink| dropped(sink, "queue_full") > 0);
    let ledger = running.stop();
    assert_closed(&ledger, sent);
    let sinks = sinks(&ledger);
    assert_eq!(count(&sinks[0], "delivered"), 0);
    assert!(count(&sinks[0]["dropped"], "sink_error") >= 100, "what the library held: {sinks:#?}");
    assert_eq!(count(&sinks[1], "delivered"), sent, "the null sink beside it");
}

#[test]
fn the_example_for_telemetry_brings_what_its_rate_limit_lets_through_to_its_topic() {
    let _alone = alone();
    let cluster = MockCluster::new(1).expect("a mock cluster");
    cluster.create_topic("telemetry", 4, 1).expect("a topic");
    let address = free_address();
    let everywhere = format!("[::]:{}", address.port());
    let broker = cluster.bootstrap_servers();
    // As the reader of topics expects a listener to be called.
    let name = ("name = \"telemetry\"", "name = \"in\"");
    let changes = [name, ("[::]:5683", everywhere.as_str()), ("10.0.0.5:9092", broker.as_str())];
    let daemon = Daemon::with_config(&example("telemetry.toml", &changes));
    let from = |last| Load {
        from: Some(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last))),
        ..Load::new(address, Amount::Count(500))
    };
    let sent: u64 = (1..=SENDERS).map(|sender| from(sender).send().sent).sum();
    daemon.stats_when("all is acknowledged", |stats| delivered(stats) == sent);
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, sent);
    topic::read(&broker, "telemetry").assert_exactly_once_in_order(sent);
}

#[test]
fn one_allocation_per_message_which_the_binding_forces() {
    let _alone = alone();
    let cluster = MockCluster::new(1).expect("a mock cluster");
    cluster.create_topic("counted", 1, 1).expect("a topic");
    let running = Running::start_with_null(&settings(&cluster.bootstrap_servers(), "counted", &[]));
    let warm = running.load(10_000);
    let counted = Load { amount: Amount::Count(50_000), ..warm.clone() };
    let mut sent = warm.send().sent;
    running.wait("the first deliveries", |sink| count(sink, "delivered") == sent);
    let looks = running.looks();
    let region = Region::new(ALLOCATOR);
    let during = counted.send().sent;
    sent += during;
    // One look at the ledger allocates; the sender allocates for a start.
    running.wait_with_few_looks(Duration::from_millis(250), |sink| count(sink, "delivered") == sent);
    let allocations = region.change().allocations as u64;
    let looks = running.looks() - looks;
    assert_closed(&running.stop(), sent);
    // Besides one for the topic's name, each report of many messages and each look costs a few.
    let allowance = during / 5 + 500 * looks;
    assert!(allocations <= during + allowance, "{allocations} allocations for {during} messages and {looks} looks");
    assert!(allocations >= during, "the binding allocates no more for the topic's name: the promise can be better");
}

#[test]
fn a_wrong_kafka_sink_is_refused_by_check_before_anything_is_bound() {
    let right = "brokers = \"one:9092\"\ntopic = \"t\"";
    for (keys, words) in [
        ("brokers = \"one:99999\"\ntopic = \"t\"".to_owned(), ":11:11: sink.k.brokers: \"one:99999\""),
        ("brokers = \"one:9092\"\ntopic = \"a b\"".to_owned(), ":12:9: sink.k.topic: \"a b\""),
        (
            format!("{right}\nproperties = {{ \"linger.ms\" = \"soon\" }}"),
            ":13:16: sink.k.properties.linger.ms: \"soon\"",
        ),
        (format!("{right}\nacks = \"1\"\nproperties = {{ \"enable.idempotence\" = true }}"), "idempotence"),
        (
            format!("{right}\n[sink.k.properties]\n\"reconnect.backoff.ms\" = 9000"),
            ":14:1: sink.k.properties.reconnect.backoff.ms: \"9000\": librdkafka refuses it: ",
        ),
        (format!("{right}\nsasl = \"PLAIN\""), ":13:8: sink.k.sasl: \"PLAIN\": needs username and password_file"),
        (
            format!("{right}\nsasl = \"PLAIN\"\nusername = \"u\"\npassword_file = \"/nonexistent\""),
            ":15:17: sink.k.password_file: \"/nonexistent\": cannot read it: No such file",
        ),
    ] {
        let refused = Setup::new().sink("k", "kafka", keys).check().ends(78, &["udpd.toml:"]);
        assert!(refused.stderr.contains(words), "{words}: {refused:?}");
    }
}

#[test]
fn a_search_over_a_kafka_sink_does_not_reach_its_brokers() {
    let _alone = alone();
    let broker = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    broker.set_nonblocking(true).expect("set");
    let broker_address = broker.local_addr().expect("bound");
    let properties = [("linger.ms", "1"), ("client.rack", "here")];
    let setup = Setup::new().sink("stream", "kafka", settings(&broker_address.to_string(), "syslog", &properties));
    let by = [UDPD, "bench"];
    let whole = setup.udpd_by(&by, "max", &["--rate", "1k..2k", "--seconds", "0.2", "--json"]).json();
    for trial in list(&whole["report"], "trials") {
        assert_eq!(count(trial, "delivered"), count(trial, "sent"), "the mock acknowledges everything: {trial:#}");
    }
    let changed = whole["report"]["changed"].to_string();
    assert!(changed.contains("mock of a cluster") && changed.contains("without client.rack"), "{changed}");
    assert_eq!(broker.accept().map(drop).map_err(|error| error.kind()), Err(std::io::ErrorKind::WouldBlock));
}
