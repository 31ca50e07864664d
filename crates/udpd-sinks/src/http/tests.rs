//! The sink against servers on loopback. No ledger is believed: servers say what they got.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::mpsc;

use super::connection::testing::{Reply, SeenRequest, TestServer, to, token};
use super::*;
use udpd_base::capture::Capture;
use udpd_base::ledger::{ConnectionState, CounterTable as _, PeerLedger, SinkTally, Tallies};
use udpd_base::sink::Sink;
use udpd_base::sink::testing::{Received, opened, opened_with_ledgers};

/// Small batches, soon.
fn of(server: &TestServer) -> HttpSettings {
    let batch = BatchLimits { datagrams: 3, every: Duration::from_millis(10), ..BatchLimits::default() };
    HttpSettings { batch, ..to(&server.url()) }
}

fn give(sink: &mut dyn Sink, payloads: &[&[u8]], tallies: &mut Tallies) {
    let batch = Received::over_loopback(payloads).batch;
    tallies[0].taken += payloads.len() as u64;
    tallies[0].pending += payloads.len() as u64;
    sink.accept(&batch, tallies);
}

fn until(sink: &mut dyn Sink, tallies: &mut Tallies, what: &str, mut holds: impl FnMut(&SinkTally) -> bool) {
    let limit = std::time::Instant::now() + Duration::from_secs(60);
    while !holds(&tallies[0]) {
        assert!(std::time::Instant::now() < limit, "{what}: {:?}", tallies[0]);
        sink.flush(tallies);
        std::thread::yield_now();
    }
}

/// A field of all records that a server has got.
fn field(name: &str, seen: &[SeenRequest]) -> Vec<String> {
    let lines = seen.iter().flat_map(|request| request.text().lines());
    let record = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("JSON");
    lines.map(|line| record(line)[name].as_str().expect("text").to_owned()).collect()
}

#[test]
fn what_the_server_has_taken_is_delivered_and_what_it_refuses_for_good_is_counted_and_kept() {
    let server = TestServer::start(vec![Reply::taken(), Reply::Answer(400, "", "too odd".to_owned()), Reply::taken()]);
    let directory = tempfile::tempdir().expect("a directory");
    let refused = directory.path().join("refused.pcapng");
    let settings = HttpSettings { refused: Some(refused.clone()), ..of(&server) };
    let (mut sink, mut tallies) = (opened(&settings), Tallies::new(0..1));
    give(&mut *sink, &[b"1", b"2", b"3", b"4", b"5\n", b"\xff6", b"7"], &mut tallies);
    until(&mut *sink, &mut tallies, "all are decided", |tally| tally.pending == 0);
    assert_eq!((tallies[0].delivered, tallies[0].dropped.refused, tallies[0].dropped.total()), (4, 3, 3));
    sink.finish(&mut tallies, &mut |_| {});
    drop(sink);
    let (seen, connections) = server.end();
    assert_eq!(connections, 1);
    assert_eq!(seen.iter().map(|request| request.text().lines().count()).collect::<Vec<_>>(), [3, 3, 1]);
    let mut capture = Capture::open(File::open(&refused).expect("it is there")).expect("a capture");
    let mut kept = Vec::new();
    while let Some(captured) = capture.next_datagram().expect("it is whole") {
        kept.push(captured.payload.to_vec());
    }
    assert_eq!(kept, [&b"4"[..], b"5\n", b"\xff6"]);
}

#[test]
fn while_the_server_is_away_nothing_is_lost_and_at_the_end_what_it_has_not_answered_has_failed() {
    let server = TestServer::start(vec![Reply::status(503), Reply::taken(), Reply::status(503)]);
    let OpenedSink { mut sink, peers, .. } = opened_with_ledgers(&of(&server));
    let mut tallies = Tallies::new(0..1);
    let seen = || PeerLedger::sum(peers.iter().map(AsRef::as_ref)).connections.remove(0);
    assert_eq!((seen().peer, seen().state), (server.address.to_string(), ConnectionState::New));
    give(&mut *sink, &[b"1", b"2", b"3"], &mut tallies);
    until(&mut *sink, &mut tallies, "it is told", |_| seen().state == ConnectionState::Down);
    assert_eq!((seen().on_the_way, tallies[0].pending), (3, 3));
    until(&mut *sink, &mut tallies, "it is sent again", |tally| tally.delivered == 3);
    assert_eq!((seen().state, seen().on_the_way), (ConnectionState::Up, 0));
    assert_eq!(seen().error.as_deref(), Some("takes no batch for now: it answered 503"));
    give(&mut *sink, &[b"4"], &mut tallies);
    while server.seen().len() < 3 {
        sink.flush(&mut tallies);
        std::thread::yield_now();
    }
    sink.finish(&mut tallies, &mut |_| {});
    assert_eq!((tallies[0].pending, tallies[0].delivered, tallies[0].dropped.sink_error), (0, 3, 1));
    drop(sink);
    assert_eq!(field("payload", &server.end().0), ["1", "2", "3", "1", "2", "3", "4"]);
}

fn with_spill(settings: HttpSettings, directory: &Path) -> HttpSettings {
    HttpSettings { spill: Spill::at(directory.to_owned(), 4 << 20), ..settings }
}

#[test]
fn a_batch_that_a_killed_process_had_sent_goes_again_under_the_same_name_with_the_same_records() {
    let directory = tempfile::tempdir().expect("a directory");
    let (release, released) = mpsc::channel();
    let server = TestServer::start(vec![
        Reply::taken(),
        Reply::After(released, Box::new(Reply::taken())),
        Reply::taken(),
        Reply::taken(),
    ]);
    let settings = HttpSettings { profile: HttpProfile::Clickhouse, ..with_spill(of(&server), directory.path()) };
    let (mut sink, mut tallies) = (opened(&settings), Tallies::new(0..1));
    give(&mut *sink, &[b"1", b"2", b"3", b"4", b"5"], &mut tallies);
    until(&mut *sink, &mut tallies, "the first batch is taken", |tally| tally.delivered == 3);
    while server.seen().len() < 2 {
        sink.flush(&mut tallies);
        std::thread::yield_now();
    }
    assert_eq!((tallies[0].spilled, tallies[0].pending), (2, 0));
    // Killed: it finishes nothing.
    drop(sink);
    // The next process would make larger batches.
    let limits = BatchLimits { datagrams: 100, ..settings.batch };
    let (mut sink, mut tallies) = (opened(&HttpSettings { batch: limits, ..settings }), Tallies::new(0..1));
    give(&mut *sink, &[b"6"], &mut tallies);
    until(&mut *sink, &mut tallies, "all are taken", |tally| tally.delivered == 3);
    assert_eq!((tallies[0].spilled, tallies[0].spill_repeats_at_most), (0, 2));
    sink.finish(&mut tallies, &mut |_| {});
    drop(sink);
    drop(release);
    let (seen, _) = server.end();
    let names: Vec<_> = seen.iter().map(token).collect();
    assert_eq!((names[1] == names[2], names.iter().collect::<BTreeSet<_>>().len()), (true, 3));
    assert_eq!(field("message", &seen), ["1", "2", "3", "4", "5", "4", "5", "6"]);
}

#[test]
fn halves_of_a_batch_have_the_same_names_after_a_kill_between_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let too_large = || Reply::status(413);
    let (release, released) = mpsc::channel();
    let in_vain = Reply::After(released, Box::new(Reply::taken()));
    let replies = vec![too_large(), Reply::taken(), in_vain, too_large(), Reply::taken(), Reply::taken()];
    let server = TestServer::start(replies);
    let settings = HttpSettings { profile: HttpProfile::Clickhouse, ..with_spill(of(&server), directory.path()) };
    let (mut sink, mut tallies) = (opened(&settings), Tallies::new(0..1));
    give(&mut *sink, &[b"1", b"2", b"3"], &mut tallies);
    while server.seen().len() < 3 {
        sink.flush(&mut tallies);
        std::thread::yield_now();
    }
    assert_eq!((tallies[0].delivered, tallies[0].spilled), (0, 3), "a batch is decided as a whole");
    // Killed: it finishes nothing.
    drop(sink);
    let (mut sink, mut tallies) = (opened(&settings), Tallies::new(0..1));
    until(&mut *sink, &mut tallies, "all are taken", |tally| tally.delivered == 3);
    sink.finish(&mut tallies, &mut |_| {});
    drop(sink);
    drop(release);
    let (seen, _) = server.end();
    let names: Vec<_> = seen.iter().map(token).collect();
    assert_eq!(names[..3], names[3..], "so a server that remembers names has each half once");
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 3);
}

#[test]
fn at_the_end_what_the_server_has_not_answered_stays_in_the_spill_and_the_next_sink_sends_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = TestServer::start(vec![Reply::status(503), Reply::taken(), Reply::taken()]);
    let settings = with_spill(of(&server), directory.path());
    let (mut sink, mut tallies) = (opened(&settings), Tallies::new(0..1));
    give(&mut *sink, &[b"1", b"2", b"3", b"4"], &mut tallies);
    while server.seen().is_empty() {
        sink.flush(&mut tallies);
        std::thread::yield_now();
    }
    sink.finish(&mut tallies, &mut |_| {});
    assert_eq!((tallies[0].spilled, tallies[0].pending, tallies[0].dropped.total()), (4, 0, 0));
    drop(sink);
    let (mut sink, mut tallies) = (opened(&settings), Tallies::new(0..1));
    until(&mut *sink, &mut tallies, "all are taken", |tally| tally.delivered == 4);
    assert_eq!((tallies[0].spilled, tallies[0].spilled_again), (0, 4));
    sink.finish(&mut tallies, &mut |_| {});
    drop(sink);
    assert_eq!(field("payload", &server.end().0), ["1", "2", "3", "1", "2", "3", "4"]);
}
