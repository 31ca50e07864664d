//! A port for each customer: hundreds of listeners in one process, each with a ledger of its own.

use std::net::{SocketAddr, UdpSocket};

use crate::util::*;

/// So many that what grows with their square is felt in a debug build.
const LISTENERS: u64 = 300;

/// Listeners on these addresses that share one sink.
fn sharing_one(addresses: &[SocketAddr]) -> Setup {
    let setup = Setup::at(addresses[0]).file("all", "all.log");
    let others = addresses.iter().enumerate().skip(1);
    others.fold(setup, |setup, (number, address)| setup.also(&format!("customer{number}"), address, &["all"]))
}

#[test]
fn each_of_hundreds_of_listeners_gets_what_its_client_sends_and_has_a_ledger_of_its_own() {
    let addresses: Vec<SocketAddr> = (0..LISTENERS).map(|_| free_address()).collect();
    let daemon = sharing_one(&addresses).start();
    for (number, address) in addresses.iter().enumerate() {
        send(*address, format!("from {number}").as_bytes(), 1);
    }
    let ledger = daemon.stats_when("every listener has delivered one datagram", |ledger| {
        list(ledger, "listeners").iter().all(|listener| count(&list(listener, "sinks")[0], "delivered") == 1)
    });
    assert_closed(&ledger, LISTENERS);
    let ended = daemon.end(LISTENERS);
    for listener in list(&ended.ledger, "listeners") {
        assert_eq!(count(listener, "received"), 1, "{listener:#}");
    }
    let written = ended.text("all.log");
    let mut lines: Vec<&str> = written.lines().collect();
    lines.sort_unstable();
    let mut expected: Vec<String> = (0..LISTENERS).map(|number| format!("from {number}")).collect();
    expected.sort_unstable();
    assert_eq!(lines, expected);
}

#[test]
fn of_several_listeners_that_cannot_have_their_address_the_first_is_named_and_none_is_left() {
    let addresses: Vec<SocketAddr> = (0..20).map(|_| free_address()).collect();
    let taken = [7, 12].map(|number: usize| socket_at(addresses[number]));
    sharing_one(&addresses).udpd("run", &[]).ends(69, &[&format!("cannot bind {}", addresses[7])]);
    drop(taken);
    addresses.iter().for_each(|address| drop(UdpSocket::bind(address).expect("it is free again")));
}
