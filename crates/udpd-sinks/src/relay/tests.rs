//! What arrives at real destinations on loopback.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use super::*;
use udpd_base::exit::ExitCode;
use udpd_base::ledger::{DestinationTally, SinkTally};
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::sink::testing::{Received, scenes};

fn receiver() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    socket
}

type OpenedRelay = (RelaySink, Vec<Arc<DestinationLedger>>);

fn mode(distribute: Distribute, keep_source: KeepSource) -> RelayMode<'static> {
    RelayMode {
        distribute,
        weights: &[],
        probe_every: Duration::from_secs(10),
        keep_source,
        never_waits: false,
        spills: false,
        templates: 0,
    }
}

fn open(destinations: &[SocketAddr], routes: &[SourceRoute], mode: RelayMode<'_>) -> Result<OpenedRelay, RelayError> {
    let destinations: Vec<PeerAddress> = destinations.iter().copied().map(PeerAddress::from).collect();
    open_peers(&destinations, routes, mode)
}

fn open_peers(peers: &[PeerAddress], routes: &[SourceRoute], mode: RelayMode<'_>) -> Result<OpenedRelay, RelayError> {
    let (registry, _events) = ThreadRegistry::new();
    let lookup = Lookup { registry: &registry, every: Duration::from_secs(60), sink: "relay", bound: &[] };
    RelaySink::open(peers, routes, mode, lookup, &scenes(1))
}

/// A relay that chooses its destination by the source.
fn relay(destinations: &[SocketAddr], keep_source: KeepSource) -> OpenedRelay {
    open(destinations, &[], mode(Distribute::BySource, keep_source)).expect("opened")
}

fn address(socket: &UdpSocket) -> SocketAddr {
    socket.local_addr().expect("bound")
}

/// Hands over a batch and returns what became of it.
fn accept(sink: &mut RelaySink, received: &Received, datagrams: usize) -> SinkTally {
    let mut tallies = Tallies::from([SinkTally { pending: datagrams as u64, ..SinkTally::default() }]);
    sink.accept(&received.batch, &mut tallies);
    sink.flush(&mut tallies);
    tallies[0]
}

fn snapshot(ledgers: &[Arc<DestinationLedger>]) -> Vec<DestinationTally> {
    DestinationLedger::sum(ledgers.iter().map(Arc::as_ref)).into_iter().map(|sum| sum.counts).collect()
}

/// Payloads of these lengths, each unlike the others.
fn payloads(lengths: impl IntoIterator<Item = usize>) -> Vec<Vec<u8>> {
    lengths
        .into_iter()
        .enumerate()
        .map(|(number, length)| (0..length).map(|at| (at + number) as u8).collect())
        .collect()
}

#[test]
fn payloads_of_every_length_arrive_in_order_whether_they_travel_together_or_not() {
    let destination = receiver();
    let (mut sink, ledgers) = relay(&[address(&destination)], KeepSource::No);
    let lengths = [0, 1, 1, 1, 0, 512, 512, 512, 100, 512, 1_472, 9_000, 9_000, 65_507, 65_507, 3, 3, 2];
    let sent = payloads(lengths);
    let mut total = 0;
    let mut buffer = vec![0; 65_536];
    for chunk in sent.chunks(6) {
        let slices: Vec<&[u8]> = chunk.iter().map(Vec::as_slice).collect();
        let tally = accept(&mut sink, &Received::over_loopback(&slices), chunk.len());
        assert_eq!((tally.delivered, tally.dropped.sink_error, tally.pending), (chunk.len() as u64, 0, 0));
        total += chunk.len() as u64;
        for payload in chunk {
            let length = destination.recv(&mut buffer).expect("it arrives");
            assert_eq!(buffer[..length], payload[..], "{} bytes", payload.len());
        }
    }
    assert_eq!((snapshot(&ledgers)[0].sent, snapshot(&ledgers)[0].failed), (total, 0));
}

#[test]
fn more_than_the_queue_holds_goes_out_in_several_calls() {
    let destination = receiver();
    let (mut sink, _) = relay(&[address(&destination)], KeepSource::No);
    // Each is longer than the one before, so none travels with another.
    let sent = payloads(1..=200);
    let slices: Vec<&[u8]> = sent.iter().map(Vec::as_slice).collect();
    let tally = accept(&mut sink, &Received::over_loopback(&slices), sent.len());
    assert_eq!((tally.delivered, tally.dropped.sink_error, tally.pending), (200, 0, 0));
    let mut buffer = [0; 300];
    for payload in &sent {
        let length = destination.recv(&mut buffer).expect("it arrives");
        assert_eq!(buffer[..length], payload[..]);
    }
}

#[test]
fn a_destination_without_a_listener_is_sent_to_and_its_answers_are_counted() {
    let gone = receiver();
    let refusing = address(&gone);
    drop(gone);
    let (mut sink, ledgers) = relay(&[refusing], KeepSource::No);
    for _ in 0..10 {
        let tally = accept(&mut sink, &Received::over_loopback(&[b"x"]), 1);
        assert_eq!(tally.pending, 0);
        assert_eq!(tally.delivered + tally.dropped.sink_error, 1);
    }
    let count = &snapshot(&ledgers)[0];
    assert_eq!(count.sent + count.failed, 10, "{count:?}");
    // The send of each datagram but the first returns the answer to the one before.
    assert_eq!((count.sent, count.icmp_errors), (10, 9), "{count:?}");
}

#[test]
fn by_source_each_sender_has_one_destination_and_a_dead_one_costs_the_others_nothing() {
    let alive = [receiver(), receiver()];
    let dead = address(&receiver());
    let destinations = [address(&alive[0]), dead, address(&alive[1])];
    let (mut sink, ledgers) = relay(&destinations, KeepSource::No);
    let chosen = crate::weights::shares(&destinations.map(PeerAddress::from), &[])
        .place_of("127.0.0.1".parse().expect("an address"));
    for number in 0..20_u8 {
        assert_eq!(accept(&mut sink, &Received::over_loopback(&[&[number]]), 1).pending, 0);
    }
    for (index, count) in snapshot(&ledgers).iter().enumerate() {
        assert_eq!(count.sent, if index == chosen { 20 } else { 0 }, "{count:?}");
    }
}

#[test]
fn with_the_right_the_source_is_kept_and_without_it_the_error_says_why() {
    let destination = receiver();
    let (mut sink, ledgers) = match open(&[address(&destination)], &[], mode(Distribute::BySource, KeepSource::Address))
    {
        Ok(opened) => opened,
        Err(error) => {
            let failure = error.of_sink("relay");
            assert_eq!(failure.code, ExitCode::Permission, "{failure}");
            let _ = io::Write::write_all(&mut io::stderr(), b"SKIPPED: keep_source needs CAP_NET_RAW\n");
            return;
        }
    };
    let sent = payloads([0, 1, 512, 512, 65_000]);
    let slices: Vec<&[u8]> = sent.iter().map(Vec::as_slice).collect();
    let received = Received::over_loopback(&slices);
    let tally = accept(&mut sink, &received, sent.len());
    assert_eq!((tally.delivered, tally.dropped.sink_error, tally.pending), (5, 0, 0));
    let mut buffer = vec![0; 65_536];
    for payload in &sent {
        let (length, source) = destination.recv_from(&mut buffer).expect("it arrives");
        assert_eq!((source, &buffer[..length]), (received.source, &payload[..]));
    }
    let cut = Received::into_slots(&[&[7; 100]], 10);
    assert_eq!(accept(&mut sink, &cut, 1).dropped.sink_error, 1, "a part is not sent on");
    assert_eq!((snapshot(&ledgers)[0].sent, snapshot(&ledgers)[0].failed), (5, 1));
}

#[test]
fn each_datagram_begins_with_a_header_of_its_own_whether_they_travel_together_or_not() {
    let destination = receiver();
    let (mut sink, ledgers) = relay(&[address(&destination)], KeepSource::Header);
    let sent = payloads([0, 0, 1, 512, 512, 512, 9_000, 65_400, 3]);
    let slices: Vec<&[u8]> = sent.iter().map(Vec::as_slice).collect();
    let received = Received::over_loopback(&slices);
    let to = SocketAddr::new("127.0.0.1".parse().expect("an address"), 514);
    let header = mmsg::proxy::Prefix::new(received.source, to);
    let tally = accept(&mut sink, &received, sent.len());
    assert_eq!((tally.delivered, tally.dropped.sink_error, tally.pending), (9, 0, 0));
    let mut buffer = vec![0; 65_536];
    for payload in &sent {
        let length = destination.recv(&mut buffer).expect("it arrives");
        assert_eq!(buffer[..length], [header.as_bytes(), payload].concat());
    }
    // With its header it is longer than any datagram.
    let long = payloads([65_500]);
    assert_eq!(accept(&mut sink, &Received::over_loopback(&[&long[0]]), 1).dropped.sink_error, 1);
    let counts = &snapshot(&ledgers)[0];
    assert_eq!((counts.sent, counts.failed, counts.too_long), (9, 1, 1));
}

#[test]
fn when_the_first_destination_does_not_work_the_next_one_gets_everything() {
    let second = receiver();
    let gone = receiver();
    let first = address(&gone);
    drop(gone);
    let destinations = [first, address(&second)];
    let (mut sink, ledgers) = open(&destinations, &[], mode(Distribute::Failover, KeepSource::No)).expect("opened");
    for number in 0..20_u8 {
        assert_eq!(accept(&mut sink, &Received::over_loopback(&[&[number]]), 1).delivered, 1);
    }
    let counts = snapshot(&ledgers);
    // The answer to the first comes before the second is sent.
    assert_eq!((counts[0].sent, counts[0].icmp_errors, counts[1].sent), (1, 1, 19), "{counts:?}");
    let mut buffer = [0; 10];
    for number in 1..20_u8 {
        assert_eq!(second.recv(&mut buffer).map(|length| buffer[..length] == [number]).ok(), Some(true));
    }
}

#[test]
fn a_destination_that_has_failed_is_tried_by_a_datagram_of_its_own_sources_and_not_by_time() {
    let receivers = [receiver(), receiver()];
    let [other, standby] = receivers.each_ref().map(address);
    let dead = address(&receiver());
    let route =
        SourceRoute { source: "127.0.0.9/32".parse().expect("a network"), to: vec![dead.into(), standby.into()] };
    let mode = RelayMode { probe_every: Duration::ZERO, ..mode(Distribute::Failover, KeepSource::No) };
    let (mut sink, ledgers) = open(&[other], &[route], mode).expect("opened");
    assert_eq!(accept(&mut sink, &Received::from("127.0.0.9", &[b"lost"]), 1).delivered, 1);
    for _ in 0..5 {
        assert_eq!(accept(&mut sink, &Received::over_loopback(&[b"of another"]), 1).delivered, 1);
    }
    assert_eq!(accept(&mut sink, &Received::from("127.0.0.9", &[b"a try", b"safe"]), 2).delivered, 2);
    let sent: Vec<u64> = snapshot(&ledgers).iter().map(|count| count.sent).collect();
    assert_eq!(sent, [5, 2, 1], "to the other, the dead and the standby");
}

#[test]
fn the_route_to_a_name_is_found_when_its_consumer_begins_and_not_waited_for_before() {
    let destination = UdpSocket::bind("[::]:0").or_else(|_| UdpSocket::bind("127.0.0.1:0")).expect("a free port");
    let peers = [PeerAddress::Host { name: "localhost".to_owned(), port: address(&destination).port() }];
    let mode = mode(Distribute::All, KeepSource::No);
    let (mut sink, ledgers) = open_peers(&peers, &[], mode).expect("opened");
    assert_eq!(accept(&mut sink, &Received::over_loopback(&[b"too early"]), 1).dropped.sink_error, 1);
    Sink::begin(&mut sink);
    assert_eq!(accept(&mut sink, &Received::over_loopback(&[b"delivered"]), 1).delivered, 1);
    assert_eq!((snapshot(&ledgers)[0].sent, snapshot(&ledgers)[0].failed), (1, 1));
}

#[test]
fn a_source_goes_where_the_longest_of_its_networks_leads_and_all_others_to_the_destinations() {
    let receivers = [receiver(), receiver(), receiver()];
    let [other, wide, narrow] = receivers.each_ref().map(address);
    let route =
        |source: &str, to: SocketAddr| SourceRoute { source: source.parse().expect("a network"), to: vec![to.into()] };
    for (networks, expected) in [
        (["127.0.0.0/8", "127.0.0.0/16"], narrow),
        (["127.0.0.0/16", "127.0.0.0/8"], wide),
        (["127.0.0.0/8", "10.0.0.0/8"], wide),
        (["::/0", "10.0.0.0/8"], other),
    ] {
        let routes = [route(networks[0], wide), route(networks[1], narrow)];
        let opened = open(&[other], &routes, mode(Distribute::All, KeepSource::No));
        let (mut sink, ledgers) = opened.expect("opened");
        assert_eq!(accept(&mut sink, &Received::over_loopback(&[b"one", b"two"]), 2).delivered, 2);
        let sent: Vec<u64> = snapshot(&ledgers).iter().map(|count| count.sent).collect();
        assert_eq!(sent, [other, wide, narrow].map(|to| if to == expected { 2 } else { 0 }), "{networks:?}");
    }
}
