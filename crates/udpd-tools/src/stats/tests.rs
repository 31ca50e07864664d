//! The table against a fixed ledger, and the command against daemons that are there or not.

use std::io;
use std::path::{Path, PathBuf};

use super::*;
use udpd_base::ledger::SenderSnapshot;
use udpd_base::ledger::counter_list::FileTally;
use udpd_base::ledger::snapshot::FilesSnapshot;
use udpd_base::ledger::testing::{example, numbered, stream, upstream};
use udpd_base::os::threads::ThreadRegistry;
use udpd_endpoint::control::{BoundControlSocket, ControlServer, Seats};

#[test]
fn the_example_agrees_with_itself() {
    let listener = &example().listeners[0];
    let (received, dropped) = (listener.counts.received, listener.counts.dropped.total());
    assert_eq!(listener.arrived, listener.kernel_dropped.map(|dropped| received + dropped));
    assert_eq!(received, listener.lanes.iter().map(|lane| lane.counts.received).sum::<u64>());
    assert!(listener.sinks.iter().all(|sink| received == sink.offered + dropped));
}

#[test]
fn the_table_shows_every_sum_beside_its_terms() {
    // At the dots stand the counters that are declared beside these.
    let expected = [
        "udpd 0.1.0, up 12.5 s",
        "log lines lost: 6",
        "",
        "listener syslog on 0.0.0.0:514",
        "  arrived         1,234,667  datagrams",
        "  kernel dropped      1,100  datagrams",
        "  received        1,233,567  bytes 98,685,360, truncated 5, calls 50,000, receive errors 0…",
        "  dropped                16  truncated 5, denied 4, rate limited 3, no batch 2, unsplit 1, unread 1…",
        "  residual                0  the sums agree",
        "",
        "  sink       offered  delivered  queue full  sink error…  in flight        queued",
        "  archive  1,233,551  1,233,000         400           0…        151  3 B of 256 B",
        "  relay    1,233,551  1,200,000      33,500          51…          0  3 B of 256 B",
        "",
        "  lane  cpu  node  queue   received  kernel dropped  wrong core  datagrams per call  buffer used  buffer max    engine      address",
        "  0       0     0      -  1,000,000           1,000           -                20.0        1,280   8,388,608  recvmmsg  0.0.0.0:514",
        "  1      12     -      -    233,567             100           -                   -        1,280   8,388,608  recvmmsg  0.0.0.0:514",
        "",
    ];
    let text = render(&example());
    assert_eq!(text.matches('\n').count() + 1, expected.len(), "{text}");
    for (line, expected) in text.split('\n').zip(expected) {
        let (start, end) = expected.split_once('…').unwrap_or((expected, ""));
        let is_right = line == expected || expected.contains('…') && line.starts_with(start) && line.ends_with(end);
        assert!(is_right, "{line:?} is not {expected:?}");
    }
}

#[test]
fn what_never_reached_this_host_stands_first_and_has_bounds_where_nobody_knows_more() {
    let mut snapshot = example();
    snapshot.listeners[0].upstream = Some(upstream());
    let text = render(&snapshot);
    let lines: Vec<&str> = text.lines().skip(4).take(3).collect();
    assert_eq!(lines[0], "  sent              1,234,700  arrived, and missing upstream");
    assert!(lines[1].starts_with("  missing upstream         33  datagrams; late 4, "), "{text}");
    assert!(lines[1].ends_with("streams 2, losing 0, silent 0, silences 0, unnumbered 7"), "{text}");
    let streams = ListenerStreams { listener: "netflow".into(), streams: vec![stream()] };
    for text in [text.as_str(), &render_streams(&[streams])] {
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        let named = rows.iter().find(|row| row.first() == Some(&"192.0.2.1")).expect("the worst stream");
        assert_eq!(named[1..8], ["2055", "192.0.2.9:9995", "256", "1,200", "30", "2", "datagrams"], "{text}");
        assert_eq!(named.last(), Some(&"losing"), "{text}");
    }
    assert!(lines[2].starts_with("  arrived           1,234,667  "), "{text}");
    let bounded = UpstreamSnapshot { unit: "flows".into(), missing: None, missing_at_least: 5, ..upstream() };
    snapshot.listeners[0].upstream = Some(bounded);
    let text = render(&snapshot);
    assert!(!text.contains("  sent "), "flows are no datagrams: {text}");
    assert!(text.contains("  missing upstream          -  flows, at least 5, at most 33; late 4, "), "{text}");
}

#[test]
fn every_counter_stands_in_the_table_by_its_name() {
    let (snapshot, numbers) = numbered();
    let text = render(&snapshot);
    for (counter, number) in numbers {
        let (name, number) = (counter.words(), grouped(number));
        assert!(text.contains(&name) && text.contains(&number), "{name}, which is {number}: {text}");
    }
}

#[test]
fn a_residual_and_datagrams_on_the_wrong_core_stand_out() {
    let mut snapshot = example();
    snapshot.listeners[0].residual = Some(-12_345);
    snapshot.listeners[0].wrong_cpu = Some(77);
    let text = render(&snapshot);
    assert!(text.contains("-12,345  the sums disagree"), "{text}");
    assert!(text.lines().any(|line| line.contains("on the wrong core") && line.contains("77")), "{text}");
    snapshot.listeners[0].lanes[1].wrong_cpu = Some(76_543);
    let text = render(&snapshot);
    assert!(text.lines().any(|line| line.starts_with("  1 ") && line.contains(" 76,543 ")), "{text}");
}

#[test]
fn residence_and_senders_stand_below_their_sink_and_lane() {
    let mut snapshot = example();
    let listener = &mut snapshot.listeners[0];
    let residence = serde_json::json!({
        "count": 1_000, "sum_seconds": 1.0, "p50_seconds": 0.00015, "p99_seconds": 0.002, "p999_seconds": null,
        "buckets": []
    });
    listener.sinks[0].residence = Some(serde_json::from_value(residence).unwrap());
    let sender =
        |port, share| SenderSnapshot { address: "10.0.0.1".parse().unwrap(), port, share, datagrams: 1, error: 0 };
    listener.lanes[1].senders = vec![sender(Some(514), 0.5), sender(None, 0.25), sender(None, 0.1), sender(None, 0.1)];
    let text = render(&snapshot);
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    let has = |line: &str| lines.contains(&line.split(' ').collect());
    assert!(has("residence of sampled p50 p99 p99.9"), "{text}");
    assert!(has("archive 1,000 150 us 2 ms more than 700 s"), "{text}");
    assert!(has("1 10.0.0.1 514 50.0 %") && has("1 10.0.0.1 several 25.0 %"), "{text}");
    assert_eq!(text.matches("10.0.0.1").count(), SENDERS_PRINTED);
}

#[test]
fn connections_and_refusals_stand_below_their_sink() {
    let mut snapshot = example();
    snapshot.listeners[0].sinks[0].peers = udpd_base::ledger::testing::peers();
    let text = render(&snapshot);
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    let begins = |line: &str| lines.iter().any(|words| words.join(" ").starts_with(line));
    assert!(begins("connection of peer state since on the way last error"), "{text}");
    assert!(begins("archive 10.0.0.7:8123 up") && begins("archive 10.0.0.8:8123 down"), "{text}");
    assert!(text.contains("ago: it answered 503") && text.contains("3,000"), "{text}");
    assert!(begins("refused by reason datagrams") && begins("archive code 27 3"), "{text}");
}

#[test]
fn compression_uploads_and_files_by_source_have_columns_where_a_sink_counts_them() {
    let mut snapshot = example();
    let files = |compressed, overflow, upload_failures| {
        let mut files = FilesSnapshot { counts: FileTally::default(), synced_at: None };
        (files.counts.compressed, files.counts.overflow) = (compressed, overflow);
        files.counts.upload_failures = upload_failures;
        Some(files)
    };
    let mut headings = |compressed, overflow, upload_failures| {
        snapshot.listeners[0].sinks[0].files = files(0, 0, 0);
        snapshot.listeners[0].sinks[1].files = files(compressed, overflow, upload_failures);
        let text = render(&snapshot);
        let heading = text.lines().find(|line| line.contains("files of")).expect("a table of files");
        assert!(heading.contains("written bytes") && heading.contains("removed"), "{text}");
        let has = |words| heading.contains(words);
        (has("compress failures"), has("sources  overflow"), has("not uploaded") && has("removed unsent"))
    };
    assert_eq!(headings(0, 0, 0), (false, false, false));
    assert_eq!(headings(7, 0, 0), (true, false, false));
    assert_eq!(headings(0, 7, 0), (false, true, false));
    assert_eq!(headings(0, 0, 7), (false, false, true));
}

#[test]
fn times_are_short() {
    for (seconds, text) in
        [(0.04, "0.0 s"), (59.0, "59.0 s"), (61.5, "1 min 1 s"), (7_500.0, "2 h 5 min"), (360_000.0, "4 d 4 h")]
    {
        assert_eq!(duration(seconds), text);
    }
}

fn daemon(directory: &Path) -> (PathBuf, ControlServer) {
    let path = directory.join("control.sock");
    let reopen = || Ok("nothing to reopen".into());
    let server = BoundControlSocket::bind(&path)
        .unwrap()
        .serve(
            &ThreadRegistry::new().0,
            (example, Vec::new),
            reopen,
            || Ok(String::new()),
            Seats::default,
            (drop, drop),
        )
        .unwrap();
    (path, server)
}

fn reach(path: &Path) -> Connection {
    Connection::open(path).unwrap()
}

#[test]
fn the_command_writes_the_table_or_one_line_of_json() {
    let directory = tempfile::tempdir().unwrap();
    let (path, server) = daemon(directory.path());
    let mut table = Vec::new();
    execute(reach(&path), false, false, &mut table).unwrap();
    assert_eq!(String::from_utf8(table).unwrap(), render(&example()));
    let mut json = Vec::new();
    execute(reach(&path), true, false, &mut json).unwrap();
    assert_eq!(json.iter().filter(|&&byte| byte == b'\n').count(), 1);
    assert_eq!(serde_json::from_slice::<Snapshot>(&json).unwrap(), example());
    server.stop();
}

#[test]
fn a_closed_pipe_is_no_error_and_a_full_disk_is() {
    let directory = tempfile::tempdir().unwrap();
    let (path, server) = daemon(directory.path());
    let (reader, mut closed) = io::pipe().unwrap();
    drop(reader);
    execute(reach(&path), false, false, &mut closed).unwrap();
    let mut full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    assert_eq!(execute(reach(&path), false, false, &mut full).unwrap_err().code, ExitCode::Disk);
    server.stop();
}

#[test]
fn the_first_path_that_answers_is_taken() {
    let directory = tempfile::tempdir().unwrap();
    let (path, server) = daemon(directory.path());
    let first = |paths: &[PathBuf]| Connection::open_first(paths)?.stats();
    let stale = directory.path().join("stale.sock");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    let absent = directory.path().join("absent.sock");
    assert_eq!(first(&[absent.clone(), stale.clone(), path]).unwrap(), example());
    server.stop();
    let failure = first(&[absent.clone(), stale]).unwrap_err();
    assert!(failure.message.contains("stale.sock"), "{failure}");
    let failure = first(std::slice::from_ref(&absent)).unwrap_err();
    assert_eq!(failure.code, ExitCode::Unavailable);
    assert!(failure.message.contains("no udpd is running"), "{failure}");
    assert!(failure.message.contains("absent.sock"), "{failure}");
}

#[test]
fn what_a_process_before_may_have_lost_is_said_and_what_it_did_not_is_not() {
    let mut snapshot = example();
    assert!(!render(&snapshot).contains("the process before"), "it has ended by itself");
    assert!(!render(&snapshot).contains("between processes"), "nothing was");
    let before = snapshot.before.as_mut().expect("an example");
    (before.ended, before.lost_datagrams_at_most, before.kernel_dropped) = (false, Some(70_000), Some(5_000));
    snapshot.listeners[0].kernel_dropped_between = Some(12);
    let text = render(&snapshot);
    assert!(text.contains("the process before (pid 4711) was killed: it lost at most 70,000 datagrams"), "{text}");
    assert!(text.contains("until then the kernel had dropped 5,000 and it had dropped 0 itself"), "{text}");
    let before = snapshot.before.as_mut().expect("an example");
    (before.lost_datagrams_at_most, before.kernel_dropped) = (None, None);
    let text_unknown = render(&snapshot);
    assert!(text_unknown.contains("it lost an unknown number of datagrams"), "{text_unknown}");
    assert!(text_unknown.contains("the kernel had dropped an unknown number"), "{text_unknown}");
    assert!(text.lines().any(|line| line.contains("dropped between processes") && line.contains("12")), "{text}");
}
