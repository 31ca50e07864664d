//! Files by source in trouble: what the log says of files that cannot be opened, finished or reopened, how often, and
//! that the books close meanwhile.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;

use crate::files_by_source::{PATH, by_source, files, send, send_round, sender, sink, wait_for_delivered};
use crate::util::daemon::{Daemon, free_address, udpd};
use crate::util::ledger::{assert_closed, count};
use crate::util::patience::until;
use crate::util::succession::Succession;

/// Sets how many descriptors a daemon may have.
fn limit_descriptors(pid: u32, descriptors: usize) {
    let (pid, limit) = (format!("--pid={pid}"), format!("--nofile={descriptors}:"));
    let limited = Command::new("prlimit").args([pid, limit]).status();
    assert!(limited.expect("prlimit is in util-linux, as kill is").success());
}

fn descriptors(daemon: &Daemon) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("it runs").count()
}

/// Waits until so many lines are in the files, which takes no descriptor of the daemon.
fn wait_for_lines(directory: &Path, lines: usize) {
    let found = || files(directory).values().flatten().filter(|byte| **byte == b'\n').count();
    until("all is written", || found() == lines);
}

#[test]
fn a_lack_of_descriptors_is_said_once_and_costs_no_datagram_while_others_can_be_closed() {
    let address = free_address();
    let daemon = Daemon::with_config(&by_source(address, PATH));
    send_round(&daemon, address, 1, 0);
    wait_for_delivered(&daemon, 1);
    limit_descriptors(daemon.pid(), descriptors(&daemon) + 20);
    for round in 1..4 {
        (0..100).for_each(|number| send(sender(number), address, format!("round {round} of {number}").as_bytes()));
        wait_for_lines(daemon.directory(), 1 + 100 * round);
    }
    limit_descriptors(daemon.pid(), 1000);
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, 301);
    assert_eq!(count(sink(&ended.ledger), "delivered"), 301);
    let lines: Vec<&str> = ended.stderr.lines().filter(|line| line.contains("Too many open files")).collect();
    assert_eq!(lines.len(), 1, "{}", ended.stderr);
    assert!(lines[0].contains("cannot open one more file") && lines[0].contains("LimitNOFILE="), "{}", lines[0]);
}

#[test]
fn where_no_descriptor_can_be_had_at_all_the_datagrams_count_as_sink_error_and_the_line_has_the_cure() {
    let address = free_address();
    let mut succession = Succession::new();
    let mut daemon = succession.start(&by_source(address, PATH));
    limit_descriptors(daemon.pid(), 3);
    send(sender(0), address, b"lost");
    let line = daemon.await_line("cannot write to");
    assert!(line.contains("LimitNOFILE="), "{line}");
    limit_descriptors(daemon.pid(), 1000);
    send(sender(0), address, b"written");
    daemon.await_line("is written again; 1 datagrams");
    let ended = daemon.end_by(Signal::SIGTERM);
    assert_closed(&ended.ledger, 2);
    assert_eq!(count(&sink(&ended.ledger)["dropped"], "sink_error"), 1);
}

#[test]
fn reopening_leaves_and_counts_the_files_that_are_closed_for_the_moment_as_well() {
    let address = free_address();
    let daemon = Daemon::with_config(&by_source(address, &format!("{PATH}open_files = 5\n")));
    let socket = daemon.control_socket().display().to_string();
    let reopen = || String::from_utf8_lossy(&udpd(&["reopen", "--socket", &socket]).stdout).into_owned();
    assert_eq!(reopen(), "no sink has begun a file yet\n");
    send_round(&daemon, address, 20, 0);
    wait_for_delivered(&daemon, 20);
    assert_eq!(reopen(), "not moved, so still written: 20\n");
    let path = |number| daemon.directory().join("log").join(format!("{}.log", sender(number)));
    for number in 0..18 {
        std::fs::rename(path(number), path(number).with_extension("moved")).expect("moved");
    }
    // As logrotate does with `create`.
    std::fs::write(path(0), "").expect("made");
    let expected = "moved files left: 18, and the next datagram of each source begins its new one; \
                    not moved, so still written: 2\n";
    assert_eq!(reopen(), expected);
    assert_eq!(reopen(), "not moved, so still written: 2\n");
    send_round(&daemon, address, 20, 1);
    wait_for_delivered(&daemon, 40);
    assert_eq!(reopen(), "not moved, so still written: 20\n");
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, 40);
    let files = files(ended.directory.path());
    for number in 0..18 {
        assert_eq!(files[&format!("{}.moved", sender(number))], format!("round 0 of {number}\n").as_bytes());
        assert_eq!(files[&format!("{}.log", sender(number))], format!("round 1 of {number}\n").as_bytes());
    }
}

#[test]
fn a_file_that_can_never_be_finished_is_written_on_and_said_once() {
    let address = free_address();
    // Its own name is as long as a name may be nearly; with the moment of its end it is longer.
    let path = format!("path = \"@DIR@/log/{{source}}{}\"\n", "x".repeat(240));
    let keys = format!("{path}rotate = {{ bytes = \"64KiB\", every = \"0s\" }}\n");
    let daemon = Daemon::with_config(&by_source(address, &keys));
    for round in 0..4 {
        (0..70).for_each(|_| send(sender(0), address, &[b'x'; 1000]));
        wait_for_delivered(&daemon, 70 * (round + 1));
    }
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, 280);
    assert_eq!(count(sink(&ended.ledger), "delivered"), 280);
    let said = |text: &str| ended.stderr.lines().filter(|line| line.contains(text)).count();
    assert_eq!((said("File name too long"), said("cannot finish")), (1, 1), "{}", ended.stderr);
    assert_eq!(said("written again"), 0, "{}", ended.stderr);
}

#[test]
fn lists_of_finished_files_that_cannot_be_read_are_said_once_for_all_sources() {
    let address = free_address();
    let keys = format!("{PATH}rotate = {{ bytes = \"64KiB\", every = \"0s\" }}\nkeep.files = 1\n");
    let daemon = Daemon::with_config(&by_source(address, &keys));
    for number in 0..3 {
        (0..70).for_each(|_| send(sender(number), address, &[b'x'; 1000]));
    }
    daemon.stats_when("each has finished one", |ledger| count(&sink(ledger)["files"], "finished") == 3);
    let directory = daemon.terminate().directory;
    let entries = std::fs::read_dir(directory.path().join("log")).expect("readable").flatten();
    let lists: Vec<_> = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with('.')).collect();
    assert_eq!(lists.len(), 3, "{lists:?}");
    for list in lists {
        std::fs::remove_file(list.path()).expect("removed");
        std::fs::create_dir(list.path()).expect("made");
    }
    let again =
        Daemon::with_config(&by_source(address, &keys).replace("@DIR@", &directory.path().display().to_string()));
    send_round(&again, address, 3, 0);
    wait_for_delivered(&again, 3);
    let ended = again.terminate();
    assert_closed(&ended.ledger, 3);
    let said = ended.stderr.lines().filter(|line| line.contains("cannot read the list")).count();
    assert_eq!(said, 1, "{}", ended.stderr);
}

#[test]
fn a_sync_reaches_every_file_system_on_which_a_source_has_its_file() {
    let calls = tempfile::NamedTempFile::new().expect("a file");
    let Ok(there) = tempfile::tempdir_in("/dev/shm") else {
        return not_checked("syncs of several file systems: there is no /dev/shm");
    };
    let device = |path: &Path| path.metadata().expect("there").dev();
    let tracer = ["strace", "-D", "-f", "-y", "-e", "trace=syncfs", "-o", calls.path().to_str().expect("UTF-8")];
    let traces = Command::new(tracer[0]).args(&tracer[1..]).arg("true").status().is_ok_and(|status| status.success());
    if !traces || device(calls.path()) == device(there.path()) {
        return not_checked("syncs of several file systems: there is no strace, or only one file system");
    }
    let address = free_address();
    // The sandbox would hold the daemon to what lies below its path.
    let text = format!("[daemon]\nsandbox = \"off\"\n{}", by_source(address, "path = \"@DIR@/log/{source}/log\"\n"));
    let daemon = Daemon::with_config_under(&tracer, &text);
    let own = daemon.directory().join("log").join(sender(1).to_string());
    std::os::unix::fs::symlink(there.path(), own).expect("a link");
    (0..2).for_each(|number| send(sender(number), address, b"line"));
    wait_for_delivered(&daemon, 2);
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, 2);
    assert_eq!(count(&sink(&ended.ledger)["files"], "unsynced_bytes"), 0);
    assert_eq!(std::fs::read(there.path().join("log")).expect("written"), b"line\n");
    let said = std::fs::read_to_string(calls.path()).expect("what was called");
    let synced = |path: &Path| said.lines().any(|line| line.contains(&format!("<{}", path.display())));
    assert!(synced(ended.directory.path()) && synced(there.path()), "{said}");
}

#[allow(clippy::print_stderr)]
fn not_checked(what: &str) {
    eprintln!("NOT CHECKED: {what}");
}
