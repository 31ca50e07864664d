//! A port for each customer: hundreds of listeners in one process, each with books of its own.

use std::net::{SocketAddr, UdpSocket};

use crate::util::daemon::{Daemon, free_address};
use crate::util::ledger::{assert_closed, count, list};

/// So many that what grows with their square is felt in a debug build.
const LISTENERS: usize = 300;

/// Listeners on these addresses that share one sink.
fn configuration(addresses: &[SocketAddr]) -> String {
    let listener = |(number, address): (usize, &SocketAddr)| {
        format!("[[listener]]\nname = \"customer{number}\"\naddress = \"{address}\"\nsinks = [\"all\"]\n")
    };
    let listeners: String = addresses.iter().enumerate().map(listener).collect();
    listeners + "[sink.all]\ntype = \"file\"\npath = \"@DIR@/all.log\"\n"
}

#[test]
fn each_of_hundreds_of_listeners_gets_what_its_client_sends_and_has_books_of_its_own() {
    let addresses: Vec<SocketAddr> = (0..LISTENERS).map(|_| free_address()).collect();
    let daemon = Daemon::with_config(&configuration(&addresses));
    for (number, address) in addresses.iter().enumerate() {
        let client = UdpSocket::bind("127.0.0.1:0").expect("a client");
        client.send_to(format!("from {number}").as_bytes(), address).expect("loopback takes it");
    }
    let delivered = |ledger: &serde_json::Value| {
        list(ledger, "listeners").iter().all(|listener| count(&list(listener, "sinks")[0], "delivered") == 1)
    };
    let ledger = daemon.stats_when("every listener has delivered one datagram", delivered);
    assert_closed(&ledger, LISTENERS as u64);
    let ended = daemon.terminate();
    assert!(ended.status.success(), "udpd ended with {}: {}", ended.status, ended.stderr);
    assert_closed(&ended.ledger, LISTENERS as u64);
    for listener in list(&ended.ledger, "listeners") {
        assert_eq!(count(listener, "received"), 1, "{listener:#}");
    }
    let written = std::fs::read_to_string(ended.directory.path().join("all.log")).expect("the file of the sink");
    let mut lines: Vec<&str> = written.lines().collect();
    lines.sort_unstable();
    let mut expected: Vec<String> = (0..LISTENERS).map(|number| format!("from {number}")).collect();
    expected.sort_unstable();
    assert_eq!(lines, expected);
}

#[test]
fn of_several_listeners_that_cannot_have_their_address_the_first_is_named_and_none_is_left() {
    let addresses: Vec<SocketAddr> = (0..20).map(|_| free_address()).collect();
    let taken: Vec<UdpSocket> =
        [7, 12].iter().map(|&number: &usize| UdpSocket::bind(addresses[number]).expect("free a moment ago")).collect();
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("udpd.toml");
    let head = format!(
        "[daemon]\ncontrol_socket = \"{0}/control.sock\"\nmetrics_address = \"\"\n",
        directory.path().display()
    );
    let text = head + &configuration(&addresses).replace("@DIR@", &directory.path().display().to_string());
    std::fs::write(&file, text).expect("a configuration");
    let output = crate::util::daemon::udpd(&["run", "-c", file.to_str().expect("UTF-8")]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(said.contains(&format!("cannot bind {}", addresses[7])), "{said}");
    drop(taken);
    addresses.iter().for_each(|address| drop(UdpSocket::bind(address).expect("nobody holds it any more")));
}
