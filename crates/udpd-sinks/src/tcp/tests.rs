//! The sink against peers on loopback that come, go and read nothing. No ledger is believed: peers say what they got.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};

use super::window::SendWindow;
use super::*;
use udpd_base::format::Encoder;
use udpd_base::ledger::{CounterTable as _, SinkTally, Tallies};
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::sink::Sink;
use udpd_base::sink::testing::{Received, scenes};
use udpd_spill::spilling::Spilling;

/// A sink that writes to these addresses.
pub(super) fn sink(settings: &TcpSettings) -> TcpSink {
    let (registry, _events) = ThreadRegistry::new();
    let lookup = Lookup { registry: &registry, every: settings.resolve_every, sink: "s", bound: &[] };
    TcpSink::open(settings, lookup, Encoder::new(settings.stream_format(), scenes(1), |_| true)).expect("it opens")
}

pub(super) fn to(addresses: &[SocketAddr]) -> TcpSettings {
    let destinations = addresses.iter().map(|address| (*address).into()).collect();
    TcpSettings { destinations, ..TcpSettings::defaults() }
}

pub(super) fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

/// Numbered payloads of so many bytes.
pub(super) fn numbered(numbers: std::ops::Range<usize>, bytes: usize) -> Vec<Vec<u8>> {
    numbers.map(|number| format!("{number:0bytes$}").into_bytes()).collect()
}

pub(super) fn give(sink: &mut TcpSink, payloads: &[Vec<u8>], tallies: &mut Tallies) {
    for part in payloads.chunks(200) {
        let batch = Received::over_loopback(&part.iter().map(Vec::as_slice).collect::<Vec<_>>()).batch;
        tallies[0].pending += part.len() as u64;
        sink.accept(&batch, tallies);
    }
}

/// Calls the sink as its consumer does until this holds.
pub(super) fn until(sink: &mut TcpSink, tallies: &mut Tallies, what: &str, mut holds: impl FnMut(&SinkTally) -> bool) {
    let limit = std::time::Instant::now() + Duration::from_secs(60);
    while !holds(&tallies[0]) {
        assert!(std::time::Instant::now() < limit, "{what}: {:?}", tallies[0]);
        Sink::when_due(sink, tallies);
        std::thread::yield_now();
    }
}

/// The numbers of the lines that a peer gets until the connection ends.
pub(super) fn lines(stream: impl Read) -> Vec<usize> {
    let whole = |line: std::io::Result<String>| line.ok()?.parse().ok();
    BufReader::new(stream).lines().map_while(whole).collect()
}

#[test]
fn a_stream_has_one_record_for_each_datagram_in_either_framing() {
    let payloads = [&b"one"[..], b"a\nb", b"", b"0123456789"].map(<[u8]>::to_vec);
    for (framing, expected) in [
        (TcpFraming::Newline, &b"one\na\\nb\n\n0123456789\n"[..]),
        (TcpFraming::OctetCounting, &b"3 one3 a\nb0 10 0123456789"[..]),
    ] {
        let (listener, address) = listener();
        let mut sink = sink(&TcpSettings { framing, ..to(&[address]) });
        let mut tallies = Tallies::new(0..1);
        give(&mut sink, &payloads, &mut tallies);
        until(&mut sink, &mut tallies, "all are acknowledged", |tally| tally.delivered == 4);
        assert_eq!((tallies[0].pending, tallies[0].dropped.total()), (0, 0));
        let (mut peer, _) = listener.accept().expect("a connection");
        drop(sink);
        let mut read = Vec::new();
        peer.read_to_end(&mut read).expect("the end of the stream");
        assert_eq!(read, expected);
    }
}

#[test]
fn what_a_peer_had_not_acknowledged_when_its_connection_broke_is_sent_again_and_counted() {
    const COUNT: usize = 4000;
    let (listener, address) = listener();
    let mut sink = sink(&to(&[address]));
    let mut tallies = Tallies::new(0..1);
    // The peer reads nothing, so the kernel acknowledges what fits its buffer. The window has room for all.
    give(&mut sink, &numbered(0..COUNT / 2, 500), &mut tallies);
    until(&mut sink, &mut tallies, "a first part is acknowledged", |tally| tally.delivered > 0);
    give(&mut sink, &numbered(COUNT / 2..COUNT, 500), &mut tallies);
    let (peer, _) = listener.accept().expect("a connection");
    let mut before = 0;
    until(&mut sink, &mut tallies, "no more is acknowledged", |tally| {
        std::thread::sleep(Duration::from_millis(20));
        std::mem::replace(&mut before, tally.delivered) == tally.delivered
    });
    assert!(tallies[0].pending > 0, "its buffers are too large for this test: {:?}", tallies[0]);
    let acknowledged = tallies[0].delivered as usize;
    // With unread bytes the kernel resets the connection.
    drop(peer);
    let reader = std::thread::spawn(move || lines(listener.accept().expect("another connection").0));
    until(&mut sink, &mut tallies, "the rest is acknowledged", |tally| tally.pending == 0);
    drop(sink);
    let again = reader.join().expect("no panic");
    assert_eq!(again, (acknowledged..COUNT).collect::<Vec<_>>(), "from the first that was not acknowledged");
    let SinkTally { delivered, dropped, stream_repeats_at_most, .. } = tallies[0];
    assert_eq!((delivered, dropped.total()), (COUNT as u64, 0));
    assert!((1..=(COUNT - acknowledged) as u64).contains(&stream_repeats_at_most), "{stream_repeats_at_most}");
}

#[test]
fn without_a_peer_the_window_keeps_what_it_has_room_for_and_the_rest_is_counted() {
    let (listener, address) = listener();
    drop(listener);
    let mut sink = sink(&to(&[address]));
    let mut tallies = Tallies::new(0..1);
    const COUNT: usize = 3000;
    give(&mut sink, &numbered(0..COUNT, 1000), &mut tallies);
    let SinkTally { pending, dropped, delivered, .. } = tallies[0];
    assert_eq!((pending + dropped.sink_error, delivered), (COUNT as u64, 0));
    assert!(dropped.sink_error > 0 && pending > 2000, "{pending} in 2 MiB");
    let listener = TcpListener::bind(address).expect("the port is free");
    let reader = std::thread::spawn(move || lines(listener.accept().expect("a connection").0));
    until(&mut sink, &mut tallies, "what waited is acknowledged", |tally| tally.pending == 0);
    drop(sink);
    assert_eq!(reader.join().expect("no panic"), (0..pending as usize).collect::<Vec<_>>());
    assert_eq!((tallies[0].delivered, tallies[0].stream_repeats_at_most), (pending, 0));
}

#[test]
fn another_destination_takes_over_and_the_first_has_it_back_and_none_comes_twice() {
    let ((first, first_address), (second, second_address)) = (listener(), listener());
    drop(first);
    let settings = to(&[first_address, second_address]);
    let probe_every = Duration::from_millis(20);
    let mut sink = sink(&TcpSettings { distribute: Distribute::Failover, probe_every, ..settings });
    let mut tallies = Tallies::new(0..1);
    give(&mut sink, &numbered(0..100, 20), &mut tallies);
    until(&mut sink, &mut tallies, "the second has it", |tally| tally.delivered == 100);
    let of_second = std::thread::spawn(move || lines(second.accept().expect("a connection").0));
    let first = TcpListener::bind(first_address).expect("the port is free");
    first.set_nonblocking(true).expect("set");
    let mut back = None;
    let mut next = 100;
    while back.is_none() {
        give(&mut sink, &numbered(next..next + 10, 20), &mut tallies);
        next += 10;
        Sink::when_due(&mut sink, &mut tallies);
        std::thread::yield_now();
        back = first.accept().ok();
    }
    let (stream, _) = back.expect("a connection");
    stream.set_nonblocking(false).expect("set");
    let of_first = std::thread::spawn(move || lines(stream));
    give(&mut sink, &numbered(next..next + 100, 20), &mut tallies);
    let all = next + 100;
    until(&mut sink, &mut tallies, "all are acknowledged", |tally| tally.pending == 0);
    until(&mut sink, &mut tallies, "it has gone over", |_| of_second.is_finished());
    drop(sink);
    let (early, late) = (of_second.join().expect("no panic"), of_first.join().expect("no panic"));
    assert_eq!([early, late.clone()].concat(), (0..all).collect::<Vec<_>>());
    assert!(!late.is_empty() && tallies[0].stream_repeats_at_most == 0);
}

#[test]
fn a_source_has_one_destination_and_one_that_is_gone_does_not_hold_up_the_other() {
    let ((gone, gone_address), (there, there_address)) = (listener(), listener());
    drop(gone);
    let settings = to(&[gone_address, there_address]);
    let shares = crate::weights::shares(&settings.destinations, &[]);
    let mut sink = sink(&TcpSettings { distribute: Distribute::BySource, ..settings });
    let (mut tallies, mut counts) = (Tallies::new(0..1), [0, 0]);
    for sender in 2..42 {
        let address = format!("127.0.0.{sender}");
        let ip = address.parse().expect("an address");
        counts[shares.place_of(ip)] += 100;
        let payloads = numbered(sender * 100..sender * 100 + 100, 8);
        let batch = Received::from(&address, &payloads.iter().map(Vec::as_slice).collect::<Vec<_>>()).batch;
        tallies[0].pending += 100;
        sink.accept(&batch, &mut tallies);
    }
    assert!(counts[0] > 0 && counts[1] > 0);
    until(&mut sink, &mut tallies, "its own are acknowledged", |tally| tally.delivered == counts[1]);
    let reader = std::thread::spawn(move || lines(there.accept().expect("a connection").0));
    Sink::finish(&mut sink, &mut tallies, &mut |_| ());
    drop(sink);
    assert_eq!((tallies[0].delivered, tallies[0].dropped.sink_error), (counts[1], counts[0]));
    assert_eq!(reader.join().expect("no panic").len() as u64, counts[1]);
}

#[test]
fn with_a_spill_nothing_is_lost_while_the_peer_is_gone_or_is_started_anew() {
    const PART: usize = 1000;
    let directory = tempfile::tempdir().expect("a directory");
    let (listener, address) = listener();
    drop(listener);
    let mut sink = Spilling::of_listener(sink(&to(&[address])), (0, "in"), directory.path());
    let mut tallies = Tallies::new(0..1);
    let mut given = 0;
    let mut give = |sink: &mut Spilling<TcpSink>, tallies: &mut Tallies| {
        for part in numbered(given..given + PART, 100).chunks(50) {
            let batch = Received::over_loopback(&part.iter().map(Vec::as_slice).collect::<Vec<_>>()).batch;
            tallies[0].pending += part.len() as u64;
            sink.accept(&batch, tallies);
            sink.flush(tallies);
        }
        given += PART;
    };
    Sink::begin(&mut sink);
    let mut found = Vec::new();
    for round in 1..=3 {
        // From the second on it is given to a connection that its peer has ended, and the sink may not know it yet.
        give(&mut sink, &mut tallies);
        let listener = TcpListener::bind(address).expect("the port is free");
        let last = round * PART - 1;
        let reader = std::thread::spawn(move || {
            let lines = BufReader::new(listener.accept().expect("a connection").0).lines();
            let mut numbers: Vec<usize> = Vec::new();
            let all = lines.map(|line| line.expect("a line").parse().expect("a number"));
            for number in all {
                numbers.push(number);
                if number == last {
                    break;
                }
            }
            numbers
        });
        let limit = std::time::Instant::now() + Duration::from_secs(60);
        while !reader.is_finished() {
            assert!(std::time::Instant::now() < limit, "{:?}", tallies[0]);
            sink.when_due(&mut tallies);
            std::thread::yield_now();
        }
        found.extend(reader.join().expect("no panic"));
        assert_eq!((tallies[0].delivered, tallies[0].spilled), ((round * PART) as u64, 0));
    }
    sink.finish(&mut tallies, &mut |_| ());
    assert_eq!(tallies[0].dropped.total(), 0);
    let all: BTreeSet<usize> = found.iter().copied().collect();
    assert_eq!(all, (0..3 * PART).collect());
    assert!((found.len() - all.len()) as u64 <= tallies[0].stream_repeats_at_most);
}

#[test]
fn with_a_spill_what_is_sent_again_at_the_very_end_is_counted_too() {
    let directory = tempfile::tempdir().expect("a directory");
    let (listener, address) = listener();
    let mut sink = Spilling::of_listener(sink(&to(&[address])), (0, "in"), directory.path());
    let mut tallies = Tallies::new(0..1);
    Sink::begin(&mut sink);
    for part in numbered(0..3000, 500).chunks(50) {
        let batch = Received::over_loopback(&part.iter().map(Vec::as_slice).collect::<Vec<_>>()).batch;
        tallies[0].pending += part.len() as u64;
        sink.accept(&batch, &mut tallies);
    }
    let delivered = tallies[0].delivered as usize;
    // With unread bytes the kernel resets the connection.
    drop(listener.accept().expect("a connection"));
    let reader = std::thread::spawn(move || lines(listener.accept().expect("another connection").0));
    sink.finish(&mut tallies, &mut |_| ());
    drop(sink);
    let again = reader.join().expect("no panic");
    assert_eq!(again, (delivered - again.len()..delivered).collect::<Vec<_>>());
    let counted = tallies[0].stream_repeats_at_most as usize;
    assert!((1..=again.len()).contains(&counted), "{counted} of {}", again.len());
}

#[test]
fn a_stream_is_opened_anew_where_the_listeners_differ_that_own_what_is_not_acknowledged() {
    let own = to(&[listener().1]);
    let goes_on = |lanes, listeners| own.goes_on(&own.clone(), Differs { lanes, listeners });
    assert_eq!([goes_on(false, false), goes_on(true, false), goes_on(true, true)], [true, true, false]);
}

#[test]
fn a_window_names_each_record_once_whatever_was_written_and_acknowledged() {
    let mut window = SendWindow::new(Format::Lines, false);
    for listener in 0..4 {
        window.push(listener, |bytes, _| bytes.extend_from_slice(b"0123456789"));
    }
    window.note_written(25);
    assert_eq!((window.unwritten_bytes(), window.rest_of_begun()), (15, &b"56789"[..]));
    let mut named = Vec::new();
    window.acknowledge(10, |listener| named.push(listener));
    assert_eq!(named, [0], "15 bytes are acknowledged");
    assert_eq!(window.take_back(4), 1, "the third is begun");
    window.begin_anew(|listener| named.push(listener));
    assert_eq!((named.as_slice(), window.unwritten_bytes()), (&[0, 1, 2][..], 20));
    window.note_written(20);
    window.acknowledge(0, |listener| named.push(listener));
    assert_eq!((named.as_slice(), window.is_empty()), (&[0, 1, 2, 1, 2][..], true));
}
