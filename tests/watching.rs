//! What an operator sees of a running daemon beside the counters: how long datagrams stayed, and who sends most.

use std::cell::Cell;
use std::net::UdpSocket;

use serde_json::Value;

use crate::util::*;

#[test]
fn the_first_datagram_already_has_a_residence_time_and_a_sender() {
    let address = free_address();
    let daemon = Setup::at(address).keys("lanes = 1").file("archive", "in.log").null("nothing").start();
    let residences =
        |ledger: &Value| -> Vec<Value> { sinks(ledger).iter().map(|sink| sink["residence"].clone()).collect() };
    let before = daemon.stats_when("it answers", |_| true);
    assert_eq!(residences(&before), [Value::Null, Value::Null], "nothing is measured yet, and null is not 0");
    let sender = socket();
    sender.send_to(b"one", address).expect("loopback takes it");
    let ledger = daemon.stats_when("both sinks have measured it", |ledger| {
        residences(ledger).iter().all(|residence| residence["count"] == 1)
    });
    for residence in residences(&ledger) {
        let quantiles = ["p50_seconds", "p99_seconds", "p999_seconds"].map(|key| residence[key].as_f64());
        assert!(quantiles[0] > Some(0.0) && quantiles.iter().all(|other| other == &quantiles[0]), "{residence}");
    }
    let senders = list(&lanes(&ledger)[0], "senders");
    assert_eq!(senders.len(), 1, "{senders:?}");
    assert_eq!((&senders[0]["address"], count(&senders[0], "datagrams")), (&"127.0.0.1".into(), 1));
    assert_eq!(count(&senders[0], "port"), u64::from(address_of(&sender).port()));

    // Another one that sends more than it: named as soon as its batches are among the samples.
    let busy = UdpSocket::bind("127.0.0.2:0").expect("a free port");
    let sent = Cell::new(1);
    daemon.stats_when("the busy one is named first", |ledger| {
        for _ in 0..200 {
            busy.send_to(b"more", address).expect("loopback takes it");
        }
        sent.set(sent.get() + 200);
        list(&lanes(ledger)[0], "senders")
            .first()
            .is_some_and(|sender| sender["address"] == "127.0.0.2" && sender["share"].as_f64() > Some(0.5))
    });
    daemon.stats_when("all are read", |ledger| arrived(ledger) == sent.get());
    daemon.end(sent.get());
}
