//! That the load generator can be believed: every claim about loss rests on it.

use std::collections::HashSet;

use crate::util::*;

/// Takes everything the load sends, on a socket that nothing can overflow while it is being read.
fn receive_all(change: impl FnOnce(&mut Load)) -> (LoadReport, Vec<Vec<u8>>) {
    let socket = socket();
    let mut load = Load::new(address_of(&socket), Amount::Count(200));
    change(&mut load);
    let report = load.send();
    let mut buffer = vec![0_u8; 65_536];
    let datagrams = (0..report.sent)
        .map(|number| {
            let length =
                socket.recv(&mut buffer).unwrap_or_else(|error| panic!("datagram {number} is missing: {error}"));
            buffer[..length].to_vec()
        })
        .collect();
    (report, datagrams)
}

#[test]
fn every_datagram_arrives_with_its_own_flow_and_number() {
    let (report, datagrams) = receive_all(|load| load.flows = 3);
    let seen: HashSet<(usize, u64)> = datagrams
        .iter()
        .map(|datagram| read_text_header(std::str::from_utf8(datagram).expect("text")).expect("a header"))
        .collect();
    let sent: HashSet<(usize, u64)> = report
        .per_flow
        .iter()
        .enumerate()
        .flat_map(|(flow, count)| (0..*count).map(move |number| (flow, number)))
        .collect();
    assert_eq!(report.sent, 200);
    assert_eq!(seen, sent);
    assert!(datagrams.iter().all(|datagram| datagram.len() == 32));
}

#[test]
fn a_train_arrives_as_the_datagrams_it_was_made_of() {
    let (_, plain) = receive_all(|load| load.amount = Amount::Count(101));
    let (report, trains) = receive_all(|load| {
        load.amount = Amount::Count(101);
        load.segment = Some(20);
        load.flows = 1;
    });
    assert_eq!((report.sent, plain.len(), trains.len()), (101, 101, 101));
    let numbers: Vec<u64> = trains
        .iter()
        .map(|datagram| read_text_header(std::str::from_utf8(datagram).expect("text")).expect("a header").1)
        .collect();
    assert_eq!(numbers, (0..101).collect::<Vec<u64>>());
}

#[test]
fn a_rate_for_some_seconds_is_an_exact_count() {
    let (report, _) = receive_all(|load| {
        load.rate_per_second = 1_000;
        load.amount = Amount::Seconds(0.15);
    });
    assert_eq!(report.sent, 150);
    // The last burst of 32 is due after 128 datagrams' time; being early would be a schedule that is not kept.
    assert!(report.seconds >= 0.128, "150 datagrams at 1,000/s took {} s", report.seconds);
}

#[test]
fn a_port_without_a_listener_is_not_an_end() {
    let report = Load::new(free_address(), Amount::Count(500)).send();
    assert_eq!(report.sent, 500);
}
