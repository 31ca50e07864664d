//! A log that others use, too: it is moved, locked, read and limited, and every datagram is in one file.

use nix::sys::signal::Signal;

use crate::util::*;

/// A listener with one file sink that has these keys.
fn one_file(keys: &str) -> Setup {
    Setup::new().keys("receive_buffer = '64MiB'").file("archive", "in.log").keys("when_full = 'block'").keys(keys)
}

#[test]
fn a_log_that_is_moved_again_and_again_loses_nothing_whether_udpd_is_told_or_not() {
    for is_told in [false, true] {
        let daemon = one_file("").start();
        let load = Load::new(daemon.address(), Amount::Seconds(1.0)).rate(60_000 / SCALE).spawn();
        let log = daemon.directory().join("in.log");
        let mut moves = 0;
        while !load.is_finished() {
            if std::fs::metadata(&log).is_ok_and(|found| found.len() > 0) {
                std::fs::rename(&log, log.with_extension(format!("log.{moves}"))).expect("moved");
                moves += 1;
                if is_told {
                    daemon.signal(Signal::SIGHUP);
                }
            }
            std::thread::yield_now();
        }
        let report = load.join().expect("the load ends");
        assert!(moves > 0, "it was never moved");
        daemon.until_delivered(report.sent);
        let ended = daemon.end(report.sent);
        report.assert_each_once(&contents(&ended.directory, "in.log"));
        assert_eq!(dropped(ended.sink(), "sink_error"), 0);
        assert!(!is_told || ended.times("SIGHUP: new files begun: ") > 0, "{}", ended.stderr);
    }
}

#[test]
fn an_idle_daemon_goes_over_to_a_new_file_too_and_closes_the_old_one() {
    let daemon = one_file("").start();
    let (log, moved) = (daemon.directory().join("in.log"), daemon.directory().join("in.log.1"));
    assert!(daemon.open_files().contains(&log));
    std::fs::rename(&log, &moved).expect("moved");
    daemon.signal(Signal::SIGHUP);
    // Nothing is sent that could wake a thread.
    until("the old file to be closed", || {
        let open = daemon.open_files();
        open.contains(&log) && !open.contains(&moved)
    });
    daemon.end(0).assert_logged("SIGHUP: new files begun: 1", 1);
}

#[test]
fn a_reader_that_locks_a_log_stops_no_start_and_a_writer_does() {
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("in.log");
    std::fs::write(&log, "").expect("written");
    let reader = std::fs::File::open(&log).expect("there");
    reader.lock_shared().expect("locked");
    let to = format!("file:{}", log.display());
    let first = Daemon::listening(&["--to", &to]);
    let second = udpd(&["run", "--listen", &free_address().to_string(), "--to", &to]);
    second.ends(74, &["is a second udpd running?"]);
    first.end(0);
}

#[test]
fn a_log_with_a_second_name_is_refused_with_74_and_left_as_it_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let (log, other) = (directory.path().join("in.log"), directory.path().join("precious"));
    std::fs::write(&other, "precious, and without an end").expect("written");
    std::fs::hard_link(&other, &log).expect("linked");
    let to = format!("file:{}", log.display());
    udpd(&["run", "--listen", &free_address().to_string(), "--to", &to]).ends(74, &["hard links"]);
    assert_eq!(std::fs::read(&other).expect("there"), b"precious, and without an end");
}

#[test]
fn at_the_limit_on_the_size_of_files_a_log_is_finished_or_its_datagrams_are_counted() {
    const LIMIT: u64 = 100_000;
    let limited = ["prlimit", &format!("--fsize={LIMIT}")];
    let rotated = "rotate = { bytes = '1GiB', every = '0s' }";
    for (rotate, is_all_delivered) in [("rotate = { bytes = 0, every = '0s' }", false), (rotated, true)] {
        let daemon = one_file(rotate).start_by(&limited);
        // So slowly that the next file is there long before it is full.
        let sent = daemon.load(1_000).bytes(329).rate(2_000).send().sent;
        daemon.until_settled(sent);
        let ended = daemon.end(sent);
        let delivered = delivered(&ended.ledger);
        let lines = contents(&ended.directory, "in.log").iter().filter(|&&byte| byte == b'\n').count();
        assert_eq!(lines as u64, delivered);
        assert!(ended.read("in.log").len() as u64 <= LIMIT);
        let finished = count(&ended.sink()["files"], "finished");
        assert_eq!((finished > 0, delivered > 2 * LIMIT / 330), (is_all_delivered, is_all_delivered));
        // The cures, and what it cost.
        for words in ["ulimit -f", "LimitFSIZE=", "datagrams ("] {
            assert!(ended.times(words) > 0, "{words}: {}", ended.stderr);
        }
    }
}
