//! True senders behind a relay: with `keep_source = "proxy"` one udpd puts a header before each datagram, and another
//! takes it off and knows who sent it. Whose header it cannot read, or does not believe, it drops and counts.

use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};

use mmsg::proxy::Prefix;
use serde_json::Value;

use crate::util::*;

/// Takes headers from 127.0.0.1 and no other host, and writes records with the senders.
fn collector(address: SocketAddr, keys: &str) -> Daemon {
    Setup::at(address)
        .keys(format!("proxy_protocol = 'v2'\nproxy_from = ['127.0.0.1/32']\nreceive_buffer = '64MiB'\n{keys}"))
        .file("archive", "archive")
        .keys("format = 'jsonl'\nrotate = { bytes = 0, every = '0s' }\nwhen_full = 'block'")
        .start()
}

/// Sends what it gets to another with headers before it.
fn relay(listening: SocketAddr, to: SocketAddr) -> Daemon {
    let setup = Setup::at(listening).keys("receive_buffer = '64MiB'").relay("relay", &[to]);
    setup.keys("keep_source = 'proxy'\nwhen_full = 'block'").start()
}

fn dropped_for(ended: &Ended, reason: &str) -> u64 {
    dropped(ended.listener(), reason)
}

/// How many records there are of each address, and the payloads in order of each sender.
fn by_sender(ended: &Ended) -> BTreeMap<SocketAddr, Vec<String>> {
    let text = ended.text("archive");
    let mut senders: BTreeMap<SocketAddr, Vec<String>> = BTreeMap::new();
    for line in text.lines() {
        let record: Value = serde_json::from_str(line).expect("a record");
        let source = record["source"].as_str().expect("a source").parse().expect("an address");
        senders.entry(source).or_default().push(record["payload"].as_str().unwrap_or("not a text").to_owned());
    }
    senders
}

/// Checks that every flow arrived whole, in order and from one sender with this address.
fn assert_whole(senders: &BTreeMap<SocketAddr, Vec<String>>, from: &str, report: &LoadReport) {
    let mut own: Vec<&Vec<String>> =
        senders.iter().filter(|(sender, _)| sender.ip().to_string() == from).map(|(_, payloads)| payloads).collect();
    own.sort();
    assert_eq!(own.len(), report.per_flow.len(), "{from}: a sender for each flow");
    for (flow, (payloads, &sent)) in own.into_iter().zip(&report.per_flow).enumerate() {
        assert_eq!(payloads.len() as u64, sent, "{from}, flow {flow}");
        for (number, payload) in payloads.iter().enumerate() {
            assert!(payload.starts_with(&format!("f{flow:02} s{number:010} ")), "{from}, flow {flow}: {payload}");
        }
    }
}

fn load(to: SocketAddr, from: Option<&str>, segment: Option<u16>) -> LoadReport {
    let mut load = Load::new(to, Amount::Count(1_000)).rate(20_000).flows(4);
    (load.from, load.segment) = (from.map(|from| from.parse().expect("an address")), segment);
    load.send()
}

#[test]
fn what_is_relayed_with_headers_arrives_from_its_true_senders_on_every_engine() {
    let keys = engines().into_iter().map(str::to_owned).chain(["gro = 'on'".to_owned()]);
    for keys in keys {
        let [outer, inner] = [free_address(), free_address()];
        let collector = collector(inner, &format!("{keys}\ndeny = ['127.0.0.4/32']"));
        // On a socket of both families, so that senders of both come through one relay.
        let relay = relay(SocketAddr::from((Ipv6Addr::UNSPECIFIED, outer.port())), inner);
        let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, outer.port()));
        let two = load(outer, Some("127.0.0.2"), None);
        let three = load(outer, Some("127.0.0.3"), Some(10));
        let denied = load(outer, Some("127.0.0.4"), None);
        let six = load(v6, None, Some(10));
        let sent = two.sent + three.sent + denied.sent + six.sent;
        let relayed = relay.end_after(sent);
        assert_eq!(delivered(&relayed.ledger), sent);
        let ended = collector.end_after(sent);
        assert_eq!(dropped_for(&ended, "denied"), denied.sent, "by its true sender; {keys}");
        let senders = by_sender(&ended);
        assert_whole(&senders, "127.0.0.2", &two);
        assert_whole(&senders, "127.0.0.3", &three);
        assert_whole(&senders, "::1", &six);
        assert_eq!(senders.len(), 12, "and no other; {keys}");
    }
}

#[test]
fn a_header_that_is_missing_or_malformed_or_of_a_stranger_is_dropped_and_counted_and_a_stranger_without_is_taken() {
    let address = free_address();
    let daemon = collector(address, "");
    let from = |ip: &str| UdpSocket::bind((ip, 0)).expect("a socket");
    let (proxy, stranger) = (from("127.0.0.1"), from("127.0.0.9"));
    let header = Prefix::new("192.0.2.7:999".parse().expect("valid"), address);
    let behind = |payload: &str| [header.as_bytes(), payload.as_bytes()].concat();
    let mut damaged = behind("damaged");
    damaged[12] = 0x31;
    // By the proxy itself, such as a probe.
    let mut own = behind("own");
    own[12] = 0x20;
    let nested = [header.as_bytes(), &behind("nested")].concat();
    for (sender, bytes) in [
        (&proxy, behind("true")),
        (&proxy, b"missing".to_vec()),
        (&proxy, Vec::new()),
        (&proxy, damaged),
        (&proxy, header.as_bytes()[..20].to_vec()),
        (&proxy, own),
        (&proxy, behind("")),
        (&stranger, b"stranger".to_vec()),
        (&stranger, behind("forged")),
        (&stranger, header.as_bytes()[..20].to_vec()),
        (&proxy, nested),
    ] {
        sender.send_to(&bytes, address).expect("loopback takes it");
    }
    let ended = daemon.end_after(11);
    let reasons = ["proxy_missing", "proxy_malformed", "proxy_untrusted"].map(|reason| dropped_for(&ended, reason));
    assert_eq!(reasons, [2, 2, 2], "{:#}", ended.ledger);
    let senders = by_sender(&ended);
    let of = |sender: SocketAddr| senders.get(&sender).cloned().unwrap_or_default();
    let heard = of("192.0.2.7:999".parse().expect("valid"));
    assert_eq!((heard.len(), &heard[..2]), (3, &["true".to_owned(), String::new()][..]));
    assert_eq!(heard[2], "not a text", "one header is taken off, not two");
    assert_eq!(of(address_of(&proxy)), ["own"]);
    assert_eq!(of(address_of(&stranger)), ["stranger"]);
    assert_eq!(senders.len(), 3);
}

#[test]
fn a_header_before_the_first_datagram_of_a_flow_names_the_sender_of_all_also_after_a_reload() {
    for keys in engines() {
        let address = free_address();
        let setup = |lanes: u8| {
            let proxies = "proxy_protocol = 'v2-first'\nproxy_from = ['127.0.0.1/32']\ndeny = ['192.0.2.66/32']";
            let listener = Setup::at(address).keys(format!("{proxies}\nlanes = {lanes}\n{keys}"));
            listener.file("archive", "archive").keys("format = 'jsonl'\nrotate = { bytes = 0, every = '0s' }")
        };
        let daemon = setup(1).start();
        // Each client behind the balancer has a port of the balancer.
        let clients: Vec<SocketAddr> = (60..80).map(|host| SocketAddr::from(([192, 0, 2, host], 999))).collect();
        let ports: Vec<UdpSocket> = clients.iter().map(|_| socket()).collect();
        for (client, port) in clients.iter().zip(&ports) {
            let first = [Prefix::new(*client, address).as_bytes(), b"first"].concat();
            send_by(port, address, &first, 1);
            send_by(port, address, b"second", 1);
        }
        daemon.until_received(40);
        daemon.reload(&setup(3)).succeeds(&[]);
        ports.iter().for_each(|port| send_by(port, address, b"third", 1));
        // A port of the balancer that no header has named yet.
        send_by(&socket(), address, b"unknown", 1);
        let ended = daemon.end_after(61);
        let counts = ["proxy_missing", "denied"].map(|reason| dropped_for(&ended, reason));
        assert_eq!(counts, [1, 3], "policies see the clients; {keys}");
        let mut senders = by_sender(&ended);
        for client in clients.iter().filter(|client| !client.ip().to_string().ends_with(".66")) {
            assert_eq!(senders.remove(client).unwrap_or_default(), ["first", "second", "third"], "{client}; {keys}");
        }
        assert!(senders.is_empty(), "{senders:?}");
    }
}

#[test]
fn true_senders_have_a_share_each_and_a_relay_sends_on_who_they_are() {
    let [first, second, third] = [free_address(), free_address(), free_address()];
    let last = collector(third, "");
    let middle = Setup::at(second)
        .keys("proxy_protocol = 'v2'\nproxy_from = ['127.0.0.0/8']\nrate_limit = { per_source = 1, burst = 10 }")
        .sink("relay", "udp", format!("destinations = ['{third}']\nkeep_source = 'proxy'"))
        .start();
    let outer = relay(first, second);
    let send = |from: &str, count: u64| {
        let socket = UdpSocket::bind((from, 0)).expect("a socket");
        for number in 0..count {
            socket.send_to(format!("{number}").as_bytes(), first).expect("loopback takes it");
        }
        address_of(&socket)
    };
    let (quiet, loud) = (send("127.0.0.5", 5), send("127.0.0.6", 100));
    outer.end_after(105);
    let limited = middle.end_after(105);
    let passed = 105 - dropped_for(&limited, "rate_limited");
    let ended = last.end_after(passed);
    let senders = by_sender(&ended);
    assert_eq!(senders[&quiet].len(), 5, "the share of another costs it nothing");
    assert_eq!(senders[&loud].len() as u64, passed - 5);
    assert_eq!(senders.len(), 2, "the first sender through two relays");
}
