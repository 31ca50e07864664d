//! A log that others use, too: it is moved, locked, read, limited, and gone over from on request, and every datagram is
//! in one file.

use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;

use crate::delivery::{SCALE, assert_each_once};
use crate::util::daemon::{Daemon, free_address, udpd};
use crate::util::ledger::{assert_closed, count};
use crate::util::load::{Amount, Load};
use crate::util::patience::until;

/// A listener with one file sink, whose other keys are `more`.
fn one_file(address: std::net::SocketAddr, more: &str) -> String {
    format!(
        r#"
        [[listener]]
        name = "in"
        address = "{address}"
        receive_buffer = "64MiB"
        sinks = ["archive"]
        [sink.archive]
        type = "file"
        path = "@DIR@/in.log"
        when_full = "block"
        {more}
        "#
    )
}

const NEVER: &str = r#"rotate = { bytes = 0, every = "0s" }"#;

/// All that is in the log and in the files that are named after it.
fn all_text(directory: &Path) -> Vec<u8> {
    let entries = std::fs::read_dir(directory).expect("readable").flatten();
    let logs = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("in.log"));
    logs.flat_map(|entry| std::fs::read(entry.path()).expect("readable")).collect()
}

/// The files that a process has open, by their names now.
fn open_files(pid: u32) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").flatten();
    entries.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect()
}

#[test]
fn a_log_that_is_moved_again_and_again_loses_nothing_whether_anybody_says_so_or_not() {
    for says_so in [false, true] {
        let address = free_address();
        let daemon = Daemon::with_config(&one_file(address, NEVER));
        let mut load = Load::new(address, Amount::Seconds(3.0));
        load.rate_per_second = 60_000 / SCALE;
        let log = daemon.directory().join("in.log");
        let load = load.spawn();
        let mut moves = 0;
        while !load.is_finished() {
            if std::fs::metadata(&log).is_ok_and(|found| found.len() > 0) {
                std::fs::rename(&log, log.with_extension(format!("log.{moves}"))).expect("moved");
                moves += 1;
                if says_so {
                    daemon.signal(Signal::SIGHUP);
                }
            }
            std::thread::yield_now();
        }
        let report = load.join().expect("the load ends");
        assert!(moves > 0, "it was never moved");
        let sent = report.sent;
        daemon
            .stats_when("all are delivered", |ledger| count(&ledger["listeners"][0]["sinks"][0], "delivered") == sent);
        let ended = daemon.terminate();
        assert_closed(&ended.ledger, sent);
        assert_each_once(&all_text(ended.directory.path()), &report);
        assert_eq!(count(&ended.ledger["listeners"][0]["sinks"][0]["dropped"], "sink_error"), 0);
        assert!(!says_so || ended.stderr.contains("SIGHUP: new files begun: "), "{}", ended.stderr);
    }
}

#[test]
fn an_idle_daemon_goes_over_to_a_new_file_too_and_closes_the_old_one() {
    let address = free_address();
    let daemon = Daemon::with_config(&one_file(address, NEVER));
    let (log, moved) = (daemon.directory().join("in.log"), daemon.directory().join("in.log.1"));
    assert!(open_files(daemon.pid()).contains(&log));
    std::fs::rename(&log, &moved).expect("moved");
    daemon.signal(Signal::SIGHUP);
    // Nothing is sent that could wake anybody.
    until("the old file to be closed", || {
        let open = open_files(daemon.pid());
        open.contains(&log) && !open.contains(&moved)
    });
    assert!(daemon.terminate().stderr.contains("SIGHUP: new files begun: 1"));
}

#[test]
fn who_reads_a_log_under_a_lock_stops_no_start_and_who_writes_it_does() {
    let address = free_address();
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("in.log");
    std::fs::write(&log, "").expect("written");
    let reader = std::fs::File::open(&log).expect("there");
    reader.lock_shared().expect("locked");
    let to = format!("file:{}", log.display());
    let first = Daemon::with_arguments(&["--listen", &address.to_string(), "--to", &to]);
    let second = udpd(&["run", "--listen", &free_address().to_string(), "--to", &to]);
    let stderr = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(74), "{stderr}");
    assert!(stderr.contains("is a second udpd running?"), "{stderr}");
    assert!(first.terminate().status.success());
}

#[test]
fn a_log_with_a_second_name_is_refused_with_74_and_left_as_it_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let (log, other) = (directory.path().join("in.log"), directory.path().join("precious"));
    std::fs::write(&other, "precious, and without an end").expect("written");
    std::fs::hard_link(&other, &log).expect("linked");
    let to = format!("file:{}", log.display());
    let refused = udpd(&["run", "--listen", &free_address().to_string(), "--to", &to]);
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(74), "{stderr}");
    assert!(stderr.contains("hard links"), "{stderr}");
    assert_eq!(std::fs::read(&other).expect("there"), b"precious, and without an end");
}

#[test]
fn at_the_limit_on_the_size_of_files_a_log_is_finished_or_its_datagrams_are_counted() {
    const LIMIT: u64 = 100_000;
    let limited = ["prlimit", &format!("--fsize={LIMIT}")];
    for (rotate, is_all_delivered) in [(NEVER, false), (r#"rotate = { bytes = "1GiB", every = "0s" }"#, true)] {
        let address = free_address();
        let daemon = Daemon::with_config_under(&limited, &one_file(address, rotate));
        let mut load = Load::new(address, Amount::Count(10_000));
        load.rate_per_second = 20_000 / SCALE;
        let sent = load.send().sent;
        daemon.stats_when("all are decided", |ledger| {
            let sink = &ledger["listeners"][0]["sinks"][0];
            count(sink, "delivered") + count(&sink["dropped"], "sink_error") == sent
        });
        let ended = daemon.terminate();
        assert!(ended.status.success(), "{}", ended.stderr);
        assert_closed(&ended.ledger, sent);
        let delivered = count(&ended.ledger["listeners"][0]["sinks"][0], "delivered");
        let lines = all_text(ended.directory.path()).iter().filter(|&&byte| byte == b'\n').count();
        assert_eq!(lines as u64, delivered);
        assert!(ended.stderr.contains("ulimit -f") && ended.stderr.contains("LimitFSIZE="), "{}", ended.stderr);
        let written = std::fs::metadata(ended.directory.path().join("in.log")).expect("there").len();
        assert!(written <= LIMIT);
        let finished = count(&ended.ledger["listeners"][0]["sinks"][0]["files"], "finished");
        assert_eq!((finished > 0, delivered > 2 * LIMIT / 33), (is_all_delivered, is_all_delivered));
        assert!(ended.stderr.contains("datagrams ("), "what it cost is said: {}", ended.stderr);
    }
}
