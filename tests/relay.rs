//! Datagrams sent on: what the destinations get, and what a dead or a stopped one costs the others.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::util::*;

/// A daemon that writes what it gets to a file.
fn collector(address: SocketAddr) -> Daemon {
    let setup = Setup::at(address).keys("receive_buffer = '64MiB'").file("archive", "archive");
    setup.keys("when_full = 'block'").start()
}

/// What the ledger says of each destination of the relay.
fn destinations(ledger: &Value) -> &[Value] {
    list(sink(ledger), "destinations")
}

#[test]
fn of_three_destinations_a_dead_and_a_stopped_one_cost_the_third_nothing() {
    let third = free_address();
    // Bound once and left: no socket is bound there any more.
    let dead = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
    let collector = collector(third);
    let sleeper = Daemon::listening(&["--to", "null:"]);
    sleeper.signal(Signal::SIGSTOP);
    let setup = Setup::new().keys("receive_buffer = '64MiB'");
    let relay = setup.relay("relay", &[dead, sleeper.address(), third]).keys("when_full = 'block'").start();
    let report = Load::new(relay.address(), Amount::Seconds(2.0)).rate(100_000 / SCALE).send();
    let sent = report.sent;
    let ledger = relay.until_settled(sent);
    assert_eq!(count(sink_named(&ledger, &format!("relay@{third}")), "delivered"), sent, "{ledger:#}");
    collector.until_delivered(sent);
    let ended = relay.end(sent);
    let refusing = &destinations(&ended.ledger)[0];
    assert!(count(refusing, "icmp_errors") > 0, "{refusing:#}");
    ended.assert_logged("answers with an error", 1);
    report.assert_each_once(&collector.end(sent).read("archive"));
    sleeper.signal(Signal::SIGCONT);
    sleeper.terminate();
}

#[test]
fn by_source_every_datagram_of_a_sender_reaches_the_same_destination() {
    let receivers = [socket(), socket()];
    let setup = Setup::new().relay("relay", &receivers.each_ref().map(address_of));
    let relay = setup.keys("distribute = 'by_source'").start();
    let (senders, each) = (20_u8, 10_u8);
    for number in 0..each {
        for sender in 0..senders {
            let socket = socket_at((Ipv4Addr::new(127, 0, 0, sender + 1), 0));
            send_by(&socket, relay.address(), &[sender, number], 1);
        }
    }
    let sent = u64::from(senders) * u64::from(each);
    relay.until_delivered(sent);
    let ended = relay.end(sent);
    let mut found = vec![Vec::new(); usize::from(senders)];
    for (place, receiver) in receivers.iter().enumerate() {
        for datagram in receiver.take_all() {
            let [sender, number] = datagram[..] else { panic!("{datagram:?}") };
            found[usize::from(sender)].push((place, number));
        }
    }
    for of_sender in &found {
        let place = of_sender[0].0;
        let expected: Vec<(usize, u8)> = (0..each).map(|number| (place, number)).collect();
        assert_eq!(of_sender, &expected, "one destination, in order");
    }
    let used: Vec<bool> = (0..2).map(|place| found.iter().any(|of_sender| of_sender[0].0 == place)).collect();
    assert_eq!(used, [true, true], "both are used");
    assert_eq!(destinations(&ended.ledger).iter().map(|sum| count(sum, "sent")).sum::<u64>(), sent);
}

#[test]
fn by_source_a_destination_more_moves_only_the_sources_that_it_gets() {
    let receivers = [socket(), socket(), socket()];
    let addresses = receivers.each_ref().map(address_of);
    // Whose each sender is, where these destinations are written in this order.
    let owners = |order: &[usize]| -> Vec<usize> {
        let relay = Setup::new().relay("relay", &order.iter().map(|&place| addresses[place]).collect::<Vec<_>>());
        let relay = relay.keys("distribute = 'by_source'").start();
        let senders = 100_u8;
        for sender in 0..senders {
            send_by(&socket_at((Ipv4Addr::new(127, 0, 0, sender + 1), 0)), relay.address(), &[sender], 1);
        }
        relay.until_delivered(u64::from(senders));
        relay.end(u64::from(senders));
        let mut owners = vec![usize::MAX; usize::from(senders)];
        for (place, receiver) in receivers.iter().enumerate() {
            receiver.take_all().iter().for_each(|datagram| owners[usize::from(datagram[0])] = place);
        }
        owners
    };
    let (two, three) = (owners(&[0, 1]), owners(&[2, 1, 0]));
    assert_eq!(two, owners(&[1, 0]), "the order does not matter");
    assert!(two.iter().zip(&three).all(|(before, after)| before == after || *after == 2), "{two:?} {three:?}");
    assert!([0, 1, 2].iter().all(|place| three.contains(place)) && !two.contains(&usize::MAX), "{three:?}");
}

/// A datagram of NetFlow 9 with this number, with a template or with a record.
fn netflow9(number: u32, has_template: bool) -> Vec<u8> {
    let set: &[u16] = if has_template { &[0, 12, 256, 1, 8, 4] } else { &[256, 8, 7, 7] };
    let numbers = [70_000, 1_700_000_000, number, 5].map(u32::to_be_bytes).concat();
    [[9, 1].map(u16::to_be_bytes).concat(), numbers, set.iter().flat_map(|set| set.to_be_bytes()).collect()].concat()
}

#[test]
fn after_a_reload_with_one_destination_more_the_exporters_that_it_gets_send_their_templates_first() {
    let receivers = [socket(), socket(), socket()];
    let addresses = receivers.each_ref().map(address_of);
    let address = free_address();
    let setup = |count: usize| {
        Setup::at(address).relay("relay", &addresses[..count]).keys("distribute = 'by_source'\ntemplates = 100")
    };
    let relay = setup(2).start();
    let exporters: Vec<UdpSocket> = (1..=40).map(|host| socket_at((Ipv4Addr::new(127, 0, 1, host), 0))).collect();
    let send = |number, has_template| {
        let datagram = netflow9(number, has_template);
        exporters.iter().for_each(|exporter| send_by(exporter, address, &datagram, 1));
    };
    send(1, true);
    send(2, false);
    relay.until_delivered(80);
    receivers.iter().for_each(|receiver| _ = receiver.take_all());
    relay.reload(&setup(3)).succeeds(&[]);
    send(900, false);
    send(901, false);
    relay.until_delivered(160);
    let of_third = receivers[2].take_all();
    let (template, records) = (netflow9(899, true), [netflow9(900, false), netflow9(901, false)]);
    let moved = of_third.iter().filter(|datagram| **datagram == template).count();
    assert!(moved > 0 && of_third.len() == 3 * moved, "{of_third:?}");
    for (place, datagram) in of_third.iter().enumerate().filter(|(_, datagram)| **datagram == template) {
        assert_eq!(of_third.get(place + 1), Some(&records[0]), "right before the first record: {datagram:?}");
    }
    let ended = relay.end(160);
    let sums = |what: &str| destinations(&ended.ledger).iter().map(|sum| count(sum, what)).sum::<u64>();
    assert_eq!((sums("sent"), sums("templates")), (160, 40), "{:#}", ended.ledger);
}

#[test]
fn a_relay_to_its_own_listener_never_starts() {
    let address = free_address();
    let (listen, to) = (address.to_string(), format!("udp:{address}"));
    udpd(&["run", "--listen", &listen, "--to", &to]).ends(2, &["would come back forever"]);
}

#[test]
fn with_failover_a_dead_destination_costs_what_was_under_way_and_gets_all_back_when_it_lives() {
    let [first, second] = [free_address(), free_address()];
    let setup = Setup::new().relay("relay", &[first, second]).keys("distribute = 'failover'\nprobe_every = '1s'");
    let relay = setup.start();
    let (primary, standby, client) = (socket_at(first), socket_at(second), socket());
    let mut sent = 0;
    let mut send_some = |datagrams: u64| {
        for _ in 0..datagrams {
            sent += 1;
            send_by(&client, relay.address(), sent.to_string().as_bytes(), 1);
            relay.until_settled(sent);
        }
        sent
    };
    send_some(10);
    assert_eq!((primary.count_all(), standby.count_all()), (10, 0));
    drop(primary);
    send_some(10);
    // One was under way when the socket was closed; on a slow machine others were sent to see whether it is back.
    let answered = count(&destinations(&relay.stats())[0], "icmp_errors");
    assert_eq!((answered > 0, standby.count_all()), (true, 10 - answered));
    let primary = socket_at(first);
    let (mut at_first, mut at_second, mut sent) = (0, 0, 20);
    while at_first < 10 {
        sent = send_some(1);
        (at_first, at_second) = (at_first + primary.count_all(), at_second + standby.count_all());
    }
    let ended = relay.end(sent);
    let counts = &destinations(&ended.ledger)[0];
    let answers = count(counts, "icmp_errors");
    let heard = 10 + (10 - answered) + at_first + at_second;
    assert_eq!(sent - heard, answers, "each that is lost was answered with an error: {counts:#?}");
    let said = ["because those before it do not work", "again, the first of its destinations"];
    assert_eq!(said.map(|words| ended.times(words)), [1, 1], "{}", ended.stderr);
}

#[test]
fn where_no_destination_works_the_log_says_it_once_however_many_datagrams_come() {
    let setup = Setup::new().relay("relay", &[free_address(), free_address()]).keys("distribute = 'failover'");
    let relay = setup.start();
    for sent in 1..=30 {
        send(relay.address(), b"lost", 1);
        relay.until_settled(sent);
    }
    let ended = relay.end(30);
    let said = ["because those before it do not work", "none of its destinations works", "again, the first of its"];
    assert_eq!(said.map(|words| ended.times(words)), [1, 1, 0], "{}", ended.stderr);
}

#[test]
fn two_daemons_that_relay_to_each_other_say_so_once_with_the_cure() {
    let addresses = [free_address(), free_address()];
    let setups = [(0, 1), (1, 0)].map(|(own, other)| Setup::at(addresses[own]).relay("relay", &[addresses[other]]));
    let daemons = setups.map(|setup| setup.start());
    let sender = socket();
    for number in 0..50 {
        send_by(&sender, addresses[0], format!("the datagram with the number {number}").as_bytes(), 1);
    }
    // Each look is a second after the last one; of so many, one in some hundred is looked at.
    let begun = daemons[0].stats()["uptime_seconds"].as_f64().expect("a number");
    daemons[0].stats_when("it goes round and was looked at", |stats| {
        let is_many = received(stats) > 200_000;
        is_many && stats["uptime_seconds"].as_f64().is_some_and(|now| now > begun + 4.0)
    });
    for daemon in daemons {
        let ended = daemon.terminate();
        ended.assert_logged("came before, word for word, most of them from 127.0.0.1", 1);
        ended.logged(&["deny = [\"127.0.0.1\"]"]);
    }
}
