//! What a sink with a spill keeps while brokers and topics change under it, against the broker of the rig: each
//! datagram is in the topic once and in its sender's order, or a broker has refused it alone. The topic is read for
//! it.

use std::net::{IpAddr, Ipv4Addr};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::broker::Broker;
use crate::pipeline::{Running, settings};
use crate::util::*;
use crate::{datagrams, log_lines, running_broker, topic};

/// The limit that is set on a topic, and the length of datagrams that are too long for it. Many small ones exceed it.
const LIMIT: usize = 20_000;
const TOO_LONG: usize = 25_000;

/// Keys of a sink with a spill, which makes no topic and soon takes one for absent.
fn keys(broker: &Broker, topic: &str, spill: &tempfile::TempDir) -> String {
    let (brokers, path) = (broker.address(), spill.path().display());
    format!(
        "brokers = '{brokers}'\ntopic = '{topic}'\nspill = {{ path = '{path}', bytes = '1GiB' }}\n\
         properties = {{ 'allow.auto.create.topics' = false, 'topic.metadata.propagation.max.ms' = 1000 }}"
    )
}

/// The address of a sender, which is its key.
fn address(sender: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 9, 0, sender))
}

/// Sends so many datagrams of this length, from one sender with two ports.
fn load(running: &Running, sender: u8, (datagrams, a_second): (u64, u64), payload_bytes: usize) -> JoinHandle<u64> {
    let load = Load {
        from: Some(address(sender)),
        flows: 2,
        rate_per_second: a_second,
        payload_bytes,
        ..Load::new(running.address(), Amount::Count(datagrams))
    };
    std::thread::spawn(move || load.send().sent)
}

#[test]
fn through_restarts_an_absent_topic_and_a_lowered_limit_each_is_in_the_topic_once_and_in_order_or_refused_alone() {
    let Some((broker, _alone)) = running_broker() else { return };
    let is_long = std::env::var_os("LONG").is_some();
    let (total, restarts, absent) = match is_long {
        true => (datagrams() / 10, 5, Duration::from_secs(60)),
        false => (12_000, 1, Duration::ZERO),
    };
    let (topic, spill) = ("kept", tempfile::tempdir().expect("a directory"));
    let running = Running::start(&keys(&broker, topic, &spill));
    let (share, begun) = (total / 4, Instant::now());
    // For as long as all of it lasts.
    let seconds = if is_long { 150 } else { 12 };
    let loads: Vec<_> = (1..=3).map(|sender| load(&running, sender, (share, share / seconds), 107)).collect();
    let waiting_too_long = load(&running, 4, (20, 0), TOO_LONG);
    running.wait("the absence of the topic", |sink| {
        log_lines::count("topic kept takes nothing now: ") == 1
            && count(sink, "spilled") > 20
            && begun.elapsed() >= absent
    });
    broker.make_topic(topic, 4);
    running.wait("what waited for it", |sink| count(sink, "delivered") > share / 4);
    for restart in 0..restarts {
        let delivered = running.look(|sink| count(sink, "delivered"));
        if restart % 2 == 0 {
            broker.kill()
        } else {
            broker.stop()
        }
        running.wait("some to wait on the disk", |sink| count(sink, "spilled") > 100);
        broker.start();
        running.wait("some to get through", |sink| count(sink, "delivered") > delivered + 100);
    }
    let taken_too_long = waiting_too_long.join().expect("sent");
    running.wait("the end of what waits", |sink| count(sink, "spilled") == 0);
    broker.configure(topic, &format!("max.message.bytes={LIMIT}"));
    let before = running.look(|sink| count(sink, "delivered"));
    let bulk = load(&running, 5, (share, 0), 107);
    let refused = load(&running, 6, (20, 0), TOO_LONG).join().expect("sent");
    running.wait("what is refused alone", |sink| dropped(sink, "too_large") == refused);
    let small: Vec<u64> = loads.into_iter().chain([bulk]).map(|load| load.join().expect("sent")).collect();
    let sent = small.iter().sum::<u64>() + taken_too_long + refused;
    running.wait("the last acknowledgement", |sink| {
        count(sink, "spilled") == 0 && count(sink, "in_flight") == 0 && count(sink, "offered") == sent
    });
    let ledger = running.stop();
    assert_closed(&ledger, sent);
    let sink = sink(&ledger);
    assert_eq!(count(sink, "delivered"), sent - refused, "{sink:#}");
    assert_eq!((dropped(sink, "too_large"), dropped(sink, "sink_error")), (refused, 0), "{sink:#}");
    assert!(before < sent - refused, "the limit was lowered while something came");
    let read = topic::read(broker.address(), topic);
    read.assert_exactly_once_in_order(sent - refused);
    for (sender, sent) in [1, 2, 3, 5].into_iter().zip(small) {
        assert_eq!(read.count_of(address(sender)), sent, "all of {}", address(sender));
    }
    assert_eq!((read.count_of(address(4)), read.count_of(address(6))), (taken_too_long, 0));
}

#[test]
fn a_topic_that_is_deleted_in_mid_run_and_made_again_gets_everything_that_comes_after_once_and_in_order() {
    let Some((broker, _alone)) = running_broker() else { return };
    let (topic, spill) = ("deleted", tempfile::tempdir().expect("a directory"));
    broker.make_topic(topic, 4);
    let running = Running::start(&keys(&broker, topic, &spill));
    let first = load(&running, 1, (2_000, 0), 107).join().expect("sent");
    running.wait("delivery", |sink| count(sink, "delivered") == first);
    topic::read(broker.address(), topic).assert_exactly_once_in_order(first);
    let loads: Vec<_> = (1..=3).map(|sender| load(&running, sender, (5_000, 1_200), 107)).collect();
    running.wait("more", |sink| count(sink, "delivered") > first + 500);
    broker.delete_topic(topic);
    running.wait("the absence of the topic", |sink| {
        log_lines::count("topic deleted takes nothing now: ") == 1 && count(sink, "spilled") > 100
    });
    broker.make_topic(topic, 6);
    let sent = first + loads.into_iter().map(|load| load.join().expect("sent")).sum::<u64>();
    running.wait("the last acknowledgement", |sink| count(sink, "delivered") == sent);
    assert_eq!(log_lines::count("INFO sink stream: a broker of "), 1, "that it takes datagrams again is said");
    assert_closed(&running.stop(), sent);
    // What the first topic had acknowledged is gone with it; of each sender the rest is whole.
    let read = topic::read(broker.address(), topic);
    let there = read.assert_each_flow_whole_from_some_number_on(sent - first);
    assert!(there > 5_000 && there < sent - first, "{there} of {sent}");
}

#[test]
fn what_a_topic_never_takes_for_what_it_is_is_counted_as_against_its_policy() {
    let Some((broker, _alone)) = running_broker() else { return };
    let (topic, spill) = ("strict", tempfile::tempdir().expect("a directory"));
    broker.make_topic(topic, 2);
    let running = Running::start(&(keys(&broker, topic, &spill) + "\nkey = \"none\""));
    let first = load(&running, 1, (500, 0), 107).join().expect("sent");
    running.wait("delivery", |sink| count(sink, "delivered") == first);
    // A compacted topic takes nothing without a key.
    broker.set(topic, "cleanup.policy", "compact");
    let refused = load(&running, 1, (200, 0), 107).join().expect("sent");
    running.wait("the refusals", |sink| dropped(sink, "against_policy") == refused);
    broker.set(topic, "cleanup.policy", "delete");
    let last = load(&running, 1, (500, 0), 107).join().expect("sent");
    running.wait("delivery", |sink| count(sink, "delivered") == first + last);
    assert_closed(&running.stop(), first + refused + last);
    assert_eq!(topic::read(broker.address(), topic).len(), first + last);
}

#[test]
fn without_a_spill_too_a_batch_that_is_too_large_is_sent_again_in_parts_and_only_what_is_too_large_alone_is_refused() {
    let Some((broker, _alone)) = running_broker() else { return };
    let topic = "small-batches";
    broker.make_topic(topic, 4);
    broker.set(topic, "max.message.bytes", &LIMIT.to_string());
    let running = Running::start_with_null(&settings(broker.address(), topic, &[]));
    let loads: Vec<_> = (1..=3).map(|sender| load(&running, sender, (2_000, 0), 107)).collect();
    let refused = load(&running, 4, (10, 0), TOO_LONG).join().expect("sent");
    let small: Vec<u64> = loads.into_iter().map(|load| load.join().expect("sent")).collect();
    let sent = small.iter().sum::<u64>() + refused;
    running.wait("the last answer", |sink| count(sink, "in_flight") == 0 && count(sink, "offered") == sent);
    assert_eq!(log_lines::count("because it is too large; udpd sends it again in smaller ones"), 1);
    let ledger = running.stop();
    assert_closed(&ledger, sent);
    let sink = sink(&ledger);
    assert_eq!((count(sink, "delivered"), dropped(sink, "too_large")), (sent - refused, refused), "{sink:#}");
    let read = topic::read(broker.address(), topic);
    read.assert_exactly_once(sent - refused);
    for (sender, sent) in (1..=3).zip(small) {
        assert_eq!(read.count_of(address(sender)), sent, "all of {}", address(sender));
    }
}
