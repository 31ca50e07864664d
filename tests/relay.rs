//! Datagrams sent on: what the destinations get, and what a dead or a stopped one costs the others.

use std::net::{SocketAddr, UdpSocket};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::delivery::{SCALE, assert_each_once};
use crate::util::daemon::{Daemon, free_address, udpd};
use crate::util::ledger::{assert_closed, count, list};
use crate::util::load::{Amount, Load};

/// A daemon that writes what it gets to a file.
fn collector(address: SocketAddr) -> Daemon {
    Daemon::with_config(&format!(
        r#"
        [[listener]]
        name = "in"
        address = "{address}"
        receive_buffer = "64MiB"
        sinks = ["archive"]
        [sink.archive]
        type = "file"
        path = "@DIR@/archive"
        rotate = {{ bytes = 0, every = "0s" }}
        when_full = "block"
        "#
    ))
}

fn delivered(ledger: &Value, sink: &str) -> u64 {
    let sinks = list(&ledger["listeners"][0], "sinks");
    count(sinks.iter().find(|one| one["name"] == sink).expect("the sink"), "delivered")
}

#[test]
fn of_three_destinations_a_dead_and_a_stopped_one_cost_the_third_nothing() {
    let [listening, third, stopped] = [free_address(), free_address(), free_address()];
    // Bound once and left: nobody listens there any more.
    let dead = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
    let collector = collector(third);
    let sleeper = Daemon::with_arguments(&["--listen", &stopped.to_string(), "--to", "null:"]);
    sleeper.signal(Signal::SIGSTOP);
    let relay = Daemon::with_config(&format!(
        r#"
        [[listener]]
        name = "in"
        address = "{listening}"
        receive_buffer = "64MiB"
        sinks = ["relay"]
        [sink.relay]
        type = "udp"
        destinations = ["{dead}", "{stopped}", "{third}"]
        when_full = "block"
        "#
    ));
    let mut load = Load::new(listening, Amount::Seconds(2.0));
    load.rate_per_second = 100_000 / SCALE;
    let report = load.send();
    let sent = report.sent;
    let name = format!("relay@{third}");
    let ledger = relay.stats_when("all are sent on", |ledger| {
        list(&ledger["listeners"][0], "sinks").iter().all(|sink| {
            count(sink, "delivered") + count(&sink["dropped"], "sink_error") == sent && count(sink, "in_flight") == 0
        })
    });
    assert_eq!(delivered(&ledger, &name), sent, "{ledger:#}");
    collector.stats_when("all have arrived", |ledger| delivered(ledger, "archive") == sent);
    let ended = relay.terminate();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_closed(&ended.ledger, sent);
    let refusing = &list(&ended.ledger["listeners"][0], "sinks")[0]["destinations"][0];
    assert!(count(refusing, "icmp_errors") > 0, "{refusing:#}");
    assert_eq!(ended.stderr.matches("answers with an error").count(), 1, "said once: {}", ended.stderr);
    let ended = collector.terminate();
    assert_closed(&ended.ledger, sent);
    let text = std::fs::read(ended.directory.path().join("archive")).expect("the file");
    assert_each_once(&text, &report);
    sleeper.signal(Signal::SIGCONT);
    sleeper.terminate();
}

#[test]
fn by_source_every_datagram_of_a_sender_reaches_the_same_destination() {
    let listening = free_address();
    let receivers = [UdpSocket::bind("127.0.0.1:0").expect("a port"), UdpSocket::bind("127.0.0.1:0").expect("a port")];
    let destinations: Vec<String> =
        receivers.iter().map(|receiver| format!("\"{}\"", receiver.local_addr().expect("bound"))).collect();
    let relay = Daemon::with_config(&format!(
        r#"
        [[listener]]
        name = "in"
        address = "{listening}"
        sinks = ["relay"]
        [sink.relay]
        type = "udp"
        destinations = [{}]
        distribute = "by_source"
        "#,
        destinations.join(", ")
    ));
    let (senders, each) = (20_u8, 10_u8);
    for number in 0..each {
        for sender in 0..senders {
            let socket =
                UdpSocket::bind(("127.0.0.1".replace(".1", &format!(".{}", sender + 1)), 0)).expect("loopback");
            socket.send_to(&[sender, number], listening).expect("sent");
        }
    }
    let sent = u64::from(senders) * u64::from(each);
    relay.stats_when("all are sent on", |ledger| delivered(ledger, "relay") == sent);
    let ended = relay.terminate();
    assert_closed(&ended.ledger, sent);
    let mut found = vec![Vec::new(); usize::from(senders)];
    for (place, receiver) in receivers.iter().enumerate() {
        receiver.set_nonblocking(true).expect("nonblocking");
        let mut buffer = [0; 16];
        while let Ok(length) = receiver.recv(&mut buffer) {
            assert_eq!(length, 2);
            found[usize::from(buffer[0])].push((place, buffer[1]));
        }
    }
    for of_sender in &found {
        let place = of_sender[0].0;
        let expected: Vec<(usize, u8)> = (0..each).map(|number| (place, number)).collect();
        assert_eq!(of_sender, &expected, "one destination, in order");
    }
    let used: Vec<bool> = (0..2).map(|place| found.iter().any(|of_sender| of_sender[0].0 == place)).collect();
    assert_eq!(used, [true, true], "both are used");
    let sums = list(&list(&ended.ledger["listeners"][0], "sinks")[0], "destinations");
    assert_eq!(sums.iter().map(|sum| count(sum, "sent")).sum::<u64>(), sent);
}

#[test]
fn a_relay_to_its_own_listener_never_starts() {
    let address = free_address();
    let arguments = ["run", "--listen", &address.to_string(), "--to", &format!("udp:{address}")];
    let output = udpd(&arguments);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("would come back forever"));
}

#[test]
fn with_failover_a_dead_destination_costs_what_was_under_way_and_gets_all_back_when_it_lives() {
    let [listening, first, second] = [free_address(), free_address(), free_address()];
    let relay = Daemon::with_config(&format!(
        r#"
        [[listener]]
        name = "in"
        address = "{listening}"
        sinks = ["relay"]
        [sink.relay]
        type = "udp"
        destinations = ["{first}", "{second}"]
        distribute = "failover"
        probe_every = "1s"
        "#
    ));
    let standby = UdpSocket::bind(second).expect("a free port");
    let primary = UdpSocket::bind(first).expect("a free port");
    let client = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let mut sent = 0;
    let send = |sent: &mut u64| {
        client.send_to(sent.to_string().as_bytes(), listening).expect("loopback takes it");
        *sent += 1;
        relay.stats_when("it is decided", |ledger| {
            let sink = &ledger["listeners"][0]["sinks"][0];
            count(sink, "delivered") + count(&sink["dropped"], "sink_error") == *sent
        })
    };
    for _ in 0..10 {
        send(&mut sent);
    }
    let heard = |socket: &UdpSocket| {
        socket.set_nonblocking(true).expect("an option");
        let mut buffer = [0; 32];
        std::iter::from_fn(|| socket.recv(&mut buffer).ok()).count() as u64
    };
    assert_eq!((heard(&primary), heard(&standby)), (10, 0));
    drop(primary);
    for _ in 0..10 {
        send(&mut sent);
    }
    assert_eq!(heard(&standby), 9, "one was under way when nobody listened any more");
    let primary = UdpSocket::bind(first).expect("the port again");
    let (mut at_first, mut at_second) = (0, 0);
    while at_first < 10 {
        send(&mut sent);
        (at_first, at_second) = (at_first + heard(&primary), at_second + heard(&standby));
    }
    let ended = relay.terminate();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_closed(&ended.ledger, sent);
    let lost = sent - 10 - 9 - (at_first + at_second + heard(&primary) + heard(&standby));
    let counts = list(&list(&ended.ledger["listeners"][0], "sinks")[0], "destinations");
    let answers = count(&counts[0], "icmp_errors");
    assert!(lost >= 1 && lost == answers, "{lost} are lost, and each was answered with an error: {counts:#?}");
    let said = ["because those before it do not work", "again, the first of its destinations"];
    assert_eq!(said.map(|words| ended.stderr.matches(words).count()), [1, 1], "{}", ended.stderr);
}

#[test]
fn where_no_destination_works_the_log_says_it_once_however_many_datagrams_come() {
    let [listening, first, second] = [free_address(), free_address(), free_address()];
    let relay = Daemon::with_config(&format!(
        r#"
        [[listener]]
        name = "in"
        address = "{listening}"
        sinks = ["relay"]
        [sink.relay]
        type = "udp"
        destinations = ["{first}", "{second}"]
        distribute = "failover"
        "#
    ));
    let client = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for sent in 1..=30 {
        client.send_to(b"lost", listening).expect("loopback takes it");
        relay.stats_when("it is decided", |ledger| {
            let sink = &ledger["listeners"][0]["sinks"][0];
            count(sink, "delivered") + count(&sink["dropped"], "sink_error") == sent
        });
    }
    let ended = relay.terminate();
    assert_closed(&ended.ledger, 30);
    let said = ["because those before it do not work", "none of its destinations works", "again, the first of its"];
    assert_eq!(said.map(|words| ended.stderr.matches(words).count()), [1, 1, 0], "{}", ended.stderr);
}

#[test]
fn two_daemons_that_relay_to_each_other_say_so_once_with_the_cure() {
    let addresses = [free_address(), free_address()];
    let daemons = [(0, 1), (1, 0)].map(|(own, other)| {
        Daemon::with_config(&format!(
            "[[listener]]\nname = \"in\"\naddress = \"{}\"\nsinks = [\"relay\"]\n\
             [sink.relay]\ntype = \"udp\"\ndestinations = [\"{}\"]\n",
            addresses[own], addresses[other]
        ))
    });
    let sender = UdpSocket::bind("127.0.0.1:0").expect("a port");
    for number in 0..50 {
        let payload = format!("the datagram with the number {number}");
        sender.send_to(payload.as_bytes(), addresses[0]).expect("loopback takes it");
    }
    // Each look is a second after the last one; of so many, one in some hundred is looked at.
    let begun = daemons[0].stats()["uptime_seconds"].as_f64().expect("a number");
    daemons[0].stats_when("it goes round and was looked at", |stats| {
        let is_many = count(&stats["listeners"][0], "received") > 200_000;
        is_many && stats["uptime_seconds"].as_f64().is_some_and(|now| now > begun + 4.0)
    });
    for daemon in daemons {
        let stderr = daemon.terminate().stderr;
        assert_eq!(stderr.matches("came before, word for word, most of them from 127.0.0.1").count(), 1, "{stderr}");
        assert!(stderr.contains("deny = [\"127.0.0.1\"]"), "{stderr}");
    }
}
