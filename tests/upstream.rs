//! What never reached this host, as a reader of the ledger sees it: a sender that leaves numbers out, and a daemon that
//! must say exactly how many, whatever it drops itself.

use std::net::{SocketAddr, UdpSocket};

use mmsg::proxy::Prefix;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::util::*;

/// A daemon with one listener, whose datagrams have eight bytes of number behind four others.
fn following(address: SocketAddr, keys: &str) -> Daemon {
    Setup::at(address).keys(format!("sequence = {{ offset = 4, bytes = 8 }}\n{keys}")).null("out").start()
}

fn send(socket: &UdpSocket, to: SocketAddr, number: u64, length: usize) {
    let mut payload = vec![0; length];
    payload[4..12].copy_from_slice(&number.to_be_bytes());
    assert_eq!(socket.send_to(&payload, to).expect("loopback takes it"), length);
}

fn upstream(ledger: &Value) -> &Value {
    &listener(ledger)["upstream"]
}

fn sender(from: &str) -> UdpSocket {
    UdpSocket::bind((from, 0)).expect("a free port")
}

#[test]
fn what_is_missing_is_exact_for_each_engine_and_counted_before_anything_is_dropped_for_a_reason() {
    for keys in two_engines().into_iter().chain(["gro = 'on'"]) {
        let address = free_address();
        let keys = format!(
            "{keys}\nreceive_buffer = '64MiB'\nmax_length = 200\non_truncate = 'drop'\ndeny = ['127.0.0.2/32']"
        );
        let daemon = following(address, &keys);
        let (allowed, denied) = (sender("127.0.0.1"), sender("127.0.0.2"));
        let mut sent = 0;
        for number in (0..2000).filter(|number| number % 10 != 5) {
            // Every third is too long to be kept.
            send(&allowed, address, number, if number % 3 == 0 { 300 } else { 40 });
            send(&denied, address, number, 40);
            sent += 2;
            if sent % 100 == 0 {
                // Nothing may be dropped here, however slow the machine is.
                daemon.until_received(sent);
            }
        }
        send(&allowed, address, 0, 4 + 8);
        daemon.until_received(sent + 1);
        let ended = daemon.end(sent + 1);
        let upstream = upstream(&ended.ledger);
        let expected = json!({
            "unit": "datagrams", "missing": 400, "missing_at_least": 400, "missing_at_most": 400, "late": 0,
            "duplicate": 0, "reordered": 0, "restarts": 0, "forgotten": 0, "streams": 2, "losing": 0, "silent": 0, "silences": 0, "unseen": 0,
            "unnumbered": 0,
        });
        // The last one is as far back as is not remembered.
        let mut shown = upstream.clone();
        assert_eq!(count(&shown, "late") + count(&shown, "duplicate"), 1, "{keys}: {upstream:#}");
        (shown["late"], shown["duplicate"]) = (json!(0), json!(0));
        let worst = shown.as_object_mut().and_then(|keys| keys.remove("worst")).expect("the worst streams");
        for (place, sender) in [&allowed, &denied].into_iter().enumerate() {
            let port = sender.local_addr().expect("bound").port();
            let own = worst.as_array().expect("streams").iter().find(|one| one["port"] == json!(port));
            assert_eq!(own.expect("both")["missing"], json!(200), "{place}, {keys}: {worst:#}");
        }
        assert_eq!(shown, expected, "{keys}");
    }
}

#[test]
fn what_came_without_a_header_of_its_proxy_is_not_charged_to_the_network() {
    let address = free_address();
    let daemon = following(address, "proxy_protocol = 'v2'\nproxy_from = ['127.0.0.1/32']");
    let proxy = sender("127.0.0.1");
    let header = Prefix::new("192.0.2.7:999".parse().expect("an address"), address);
    for number in 0..100_u64 {
        let payload = [&[0; 4][..], &number.to_be_bytes()].concat();
        let header = if number == 50 { &[][..] } else { header.as_bytes() };
        proxy.send_to(&[header, &payload].concat(), address).expect("loopback takes it");
    }
    daemon.until_received(100);
    let ended = daemon.end(100);
    assert_eq!(count(&ended.listener()["dropped"], "proxy_missing"), 1);
    let upstream = upstream(&ended.ledger);
    let bounds = ["missing_at_least", "missing_at_most", "streams"].map(|key| count(upstream, key));
    assert_eq!((bounds, &upstream["missing"]), ([0, 1, 1], &Value::Null), "{upstream:#}");
}

#[test]
fn what_the_kernel_dropped_here_is_not_charged_to_the_network() {
    for engine in two_engines() {
        let address = free_address();
        let daemon = following(address, &format!("{engine}\nreceive_buffer = '64KiB'"));
        let socket = sender("127.0.0.1");
        let mut sent = 0;
        for round in 0..5 {
            // Nothing is read, and the buffer overflows. Meanwhile every tenth number is lost on the way.
            daemon.signal(Signal::SIGSTOP);
            for number in (1000 * round..1000 * (round + 1)).filter(|number| number % 10 != 5) {
                send(&socket, address, number, 40);
                sent += 1;
            }
            daemon.signal(Signal::SIGCONT);
            daemon.until_settled(sent);
        }
        // What comes after the last drop shows its gap.
        send(&socket, address, 5000, 40);
        let ended = daemon.end_after(sent + 1);
        let listener = ended.listener();
        assert!(count(listener, "kernel_dropped") > 100, "the buffer was too large: {listener:#}");
        assert_eq!(upstream(&ended.ledger)["missing"], json!(500), "{engine}: {listener:#}");
    }
}

#[test]
fn without_a_sequence_there_is_nothing_to_say() {
    let daemon = Setup::new().null("out").start();
    assert_eq!(upstream(&daemon.end(0).ledger), &Value::Null);
}
