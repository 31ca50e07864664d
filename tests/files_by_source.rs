//! Files by source: every line in the file of its sender, however many there are, whatever moves or breaks a file, and
//! whenever the daemon is killed; and what the log says of files that cannot be opened, finished or reopened.
//!
//! Every process may send from any of the sixteen million addresses of loopback, so each sender here is one of those.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;
use udpd_base::format::Boundary;

use crate::util::pipeline::{Bed, assert_numbers};
use crate::util::*;

/// A sink with a file for each source and these keys.
fn by_source(keys: &str) -> Setup {
    let setup = Setup::new().keys("receive_buffer = '64MiB'").file("archive", "log/{source}.log");
    setup.keys("when_full = 'block'").keys(keys)
}

/// The address of a sender.
fn sender(number: usize) -> Ipv4Addr {
    let [_, high, middle, low] = u32::try_from(number).expect("few").to_be_bytes();
    Ipv4Addr::new(127, 1 + high, middle, low)
}

/// The name of its file.
fn log_of(number: usize) -> String {
    format!("{}.log", sender(number))
}

/// Sends one line from a sender.
fn send_from(number: usize, to: SocketAddr, payload: &[u8]) {
    send_by(&socket_at((sender(number), 0)), to, payload, 1);
}

/// Each of so many senders sends one line of a round. So few are on their way at a time that nothing overruns.
fn send_round(daemon: &Daemon, senders: usize, round: usize) {
    for number in 0..senders {
        send_from(number, daemon.address(), format!("round {round} of {number}").as_bytes());
        if number % 500 == 499 {
            daemon.until_received((round * senders + number + 1) as u64);
        }
    }
}

/// The files in the directory of the logs, by their names.
fn logs(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    files(&directory.join("log"), "")
}

/// What the ledger counts of the files.
fn of_files(ledger: &Value, key: &str) -> u64 {
    count(&sink(ledger)["files"], key)
}

/// Has each of so many senders send so many rounds, ends the daemon, and checks that every line is in the file of its
/// sender, in order, and that there is nothing else. `look` sees the daemon after each round.
fn assert_own_lines(daemon: Daemon, senders: usize, rounds: usize, look: impl Fn(&Daemon)) -> Ended {
    for round in 0..rounds {
        send_round(&daemon, senders, round);
        daemon.until_delivered(((round + 1) * senders) as u64);
        look(&daemon);
    }
    let ended = daemon.end((rounds * senders) as u64);
    let files = logs(&ended.directory);
    assert_eq!(files.len(), senders, "one file for each sender");
    for number in 0..senders {
        let expected: String = (0..rounds).map(|round| format!("round {round} of {number}\n")).collect();
        assert_eq!(String::from_utf8_lossy(&files[&log_of(number)]), expected, "sender {number}");
    }
    ended
}

/// How many files with this ending the daemon has open.
fn open_with(daemon: &Daemon, ending: &str) -> usize {
    daemon.open_files().iter().filter(|path| path.extension().is_some_and(|own| own == ending)).count()
}

#[test]
fn a_thousand_senders_have_every_line_in_their_own_files_of_which_a_hundred_are_open() {
    let as_many_as_allowed = |daemon: &Daemon| assert_eq!(open_with(daemon, "log"), 100);
    let ended = assert_own_lines(by_source("open_files = 100").start(), 1000, 3, as_many_as_allowed);
    let counts = ["sources", "overflow", "unsynced_bytes"].map(|key| of_files(&ended.ledger, key));
    assert_eq!(counts, [1000, 0, 0], "the end is a sync");
}

#[test]
fn ten_thousand_senders_at_once_have_a_file_each() {
    assert_own_lines(by_source("").start(), 10_000, 1, |_| ());
}

#[test]
fn senders_beyond_the_most_that_may_have_files_share_one_and_are_counted() {
    let daemon = by_source("sources_max = 10").start();
    send_round(&daemon, 500, 0);
    daemon.until_delivered(500);
    send_round(&daemon, 10, 50);
    daemon.until_delivered(510);
    let ended = daemon.end(510);
    let files = logs(&ended.directory);
    assert_eq!(files.len(), 11, "{:?}", files.keys());
    for number in 0..10 {
        let expected = format!("round 0 of {number}\nround 50 of {number}\n");
        assert_eq!(files[&log_of(number)], expected.as_bytes());
    }
    let expected: String = (10..500).map(|number| format!("round 0 of {number}\n")).collect();
    assert_eq!(String::from_utf8_lossy(&files["overflow.log"]), expected);
    assert_eq!(["sources", "overflow"].map(|key| of_files(&ended.ledger, key)), [10, 490]);
    // One warning, with its cure.
    ended.assert_logged("sources_max", 2);
}

#[test]
fn senders_with_files_of_before_count_among_those_that_may_have_files_after_a_restart() {
    let daemon = by_source("sources_max = 10").start();
    send_round(&daemon, 6, 0);
    daemon.until_delivered(6);
    let first = daemon.end(6);
    let again = |senders: std::ops::Range<usize>, overflow: u64| {
        let daemon = by_source("sources_max = 10").in_directory(&first.directory).start();
        let sent = senders.len() as u64;
        senders.for_each(|number| send_from(number, daemon.address(), b"again"));
        daemon.until_delivered(sent);
        let ended = daemon.end(sent);
        assert_eq!((logs(&first.directory).len(), of_files(&ended.ledger, "overflow")), (11, overflow));
    };
    // Four more have files, and 490 go to that of those that are too many; then no other has one.
    again(500..994, 490);
    again(2000..2100, 100);
    again(0..6, 0);
    // Where the operator has removed some, there is room for as many.
    (0..3).for_each(|number| std::fs::remove_file(first.path("log").join(log_of(number))).expect("ours"));
    again(3000..3100, 97);
}

#[test]
fn after_a_kill_every_file_parses_and_a_torn_record_is_set_aside() {
    for (format, boundary) in [("lines", Boundary::Newline), ("jsonl", Boundary::Newline), ("pcapng", Boundary::Block)]
    {
        let setup = by_source(&format!("format = '{format}'\nopen_files = 10\nsync = 'never'"));
        let daemon = setup.start();
        send_round(&daemon, 100, 0);
        daemon.until_delivered(100);
        send_round(&daemon, 100, 1);
        let ended = daemon.end_by(Signal::SIGKILL);
        let killed = logs(&ended.directory);
        assert_eq!(killed.len(), 100, "{format}");
        for (name, content) in &killed {
            assert_eq!(boundary.whole(content).bytes, content.len(), "{format}: {name}");
        }
        // As if the kill had come in the middle of a write.
        let torn = ended.path("log/127.1.0.7.log");
        let whole = std::fs::read(&torn).expect("there");
        std::fs::write(&torn, [&whole[..], &whole[..5.min(whole.len())]].concat()).expect("written");
        let again = setup.in_directory(&ended.directory).start();
        send_round(&again, 100, 0);
        again.until_delivered(100);
        again.end(100);
        let repaired = logs(&ended.directory);
        assert_eq!(repaired.len(), 101, "{format}: one has something beside it");
        for (name, content) in repaired.iter().filter(|(name, _)| name.ends_with(".log")) {
            assert_eq!(boundary.whole(content).bytes, content.len(), "{format}: {name}");
            assert_eq!(content[..killed[name].len()], killed[name], "{format}: what was whole stays");
            assert!(content.len() > killed[name].len(), "{format}: it goes on");
        }
        assert_eq!(repaired["127.1.0.7.log.torn"], whole[..5]);
    }
}

#[test]
fn each_source_has_its_own_rotation_and_keeps_its_own_finished_files() {
    let keys = "rotate = { bytes = '64KiB', every = '0s' }\nkeep = { files = 1, bytes = 0 }\nopen_files = 2";
    let daemon = by_source(keys).start();
    let mut sent = 0;
    for round in 0..3 {
        for number in 0..5 {
            for line in 0..100 {
                let payload = format!("{round} {line:03} {}", "x".repeat(1000));
                send_from(number, daemon.address(), payload.as_bytes());
                sent += 1;
            }
        }
        daemon.until_delivered(sent);
    }
    daemon.stats_when("the oldest are removed", |ledger| of_files(ledger, "removed") == 10);
    let ended = daemon.end(sent);
    assert_eq!(of_files(&ended.ledger, "finished"), 15);
    for number in 0..5 {
        let finished = files(&ended.path("log"), &format!("{}.", log_of(number)));
        let [text] = finished.values().collect::<Vec<_>>()[..] else { panic!("{:?}", finished.keys()) };
        let lines = String::from_utf8_lossy(text).lines().filter(|line| line.starts_with("2 ")).count();
        assert_eq!(lines, 100, "the newest is kept, and whole");
    }
}

#[test]
fn files_whose_time_is_over_are_finished_also_where_nothing_comes_any_more() {
    let daemon = by_source("rotate = { bytes = 0, every = '1s' }\nopen_files = 10").start();
    send_round(&daemon, 500, 0);
    daemon.stats_when("every file is finished", |ledger| of_files(ledger, "finished") == 500);
    let files = logs(&daemon.end(500).directory);
    assert_eq!(files.len(), 500);
    assert!(files.keys().all(|name| name.ends_with('Z')), "{:?}", files.keys());
}

#[test]
fn a_source_whose_file_cannot_be_written_costs_its_own_datagrams_until_it_can() {
    let daemon = by_source("").start();
    let in_the_way = daemon.directory().join("log").join(log_of(3));
    std::fs::create_dir(&in_the_way).expect("made");
    send_round(&daemon, 10, 0);
    daemon.until_delivered(9);
    std::fs::remove_dir(&in_the_way).expect("removed");
    send_round(&daemon, 10, 1);
    daemon.until_delivered(19);
    let ended = daemon.end(20);
    assert_eq!(dropped(ended.sink(), "sink_error"), 1);
    let files = logs(&ended.directory);
    assert_eq!(files[&log_of(3)], b"round 1 of 3\n");
    assert_eq!(files[&log_of(4)], b"round 0 of 4\nround 1 of 4\n");
    ended.assert_logged("is written again; 1 datagrams", 1);
}

#[test]
fn reopening_closes_and_counts_the_files_that_are_closed_for_the_moment_as_well() {
    let daemon = by_source("open_files = 5").start();
    let reopen = || daemon.command("reopen").succeeds(&[]).stdout;
    assert_eq!(reopen(), "no sink has begun a file yet\n");
    send_round(&daemon, 20, 0);
    daemon.until_delivered(20);
    assert_eq!(reopen(), "not moved, so still written: 20\n");
    for path in (0..18).map(|number| daemon.directory().join("log").join(log_of(number))) {
        std::fs::rename(&path, path.with_extension("moved")).expect("moved");
    }
    // As logrotate does with `create`.
    std::fs::write(daemon.directory().join("log").join(log_of(0)), "").expect("made");
    let expected = "moved files left: 18, and the next datagram of each source begins its new one; \
                    not moved, so still written: 2\n";
    assert_eq!(reopen(), expected);
    assert_eq!(open_with(&daemon, "moved"), 0, "all are closed");
    assert_eq!(reopen(), "not moved, so still written: 2\n");
    send_round(&daemon, 20, 1);
    daemon.until_delivered(40);
    assert_eq!(reopen(), "not moved, so still written: 20\n");
    let files = logs(&daemon.end(40).directory);
    for number in 0..18 {
        assert_eq!(files[&format!("{}.moved", sender(number))], format!("round 0 of {number}\n").as_bytes());
        assert_eq!(files[&log_of(number)], format!("round 1 of {number}\n").as_bytes());
    }
}

#[test]
fn other_settings_of_files_by_source_are_in_force_without_a_loss_and_without_a_second_writer() {
    let setup = |bed: Option<&Bed>, lanes: usize, keys: &str| {
        let setup = bed.map_or_else(Setup::new, |bed| Setup::at(bed.address)).keys(format!("lanes = {lanes}"));
        setup.file("archive", "{source}.log").keys(keys)
    };
    let mut bed = Bed::start(&setup(None, 2, ""));
    let load = bed.load();
    for (lanes, keys) in [(1, "sync = 'never'"), (2, "open_files = 7"), (1, ""), (2, "buffer_bytes = '1MiB'")] {
        load.wait_for(1_000);
        let next = setup(Some(&bed), lanes, keys);
        bed = bed.reload(&next);
    }
    load.wait_for(1_000);
    let sent = load.end();
    let (ledger, directory) = bed.stop_after(sent);
    assert_closed(&ledger, sent);
    assert_numbers(&directory.path().join("127.0.0.1.log"), sent);
}

#[test]
fn a_prefix_says_when_and_from_where_and_what_is_left_is_the_line() {
    let setup = Setup::new().file("archive", "log/{source/16},{source_port},{destination}");
    let daemon = setup.keys("prefix = 'time source'").start();
    let socket = socket_at((sender(513), 0));
    send_by(&socket, daemon.address(), b"forged 2026\nline ", 1);
    daemon.until_delivered(1);
    let files = logs(&daemon.end(1).directory);
    let source = address_of(&socket);
    let text = String::from_utf8_lossy(&files[&format!("127.1.0.0_16,{},127.0.0.1", source.port())]);
    let parts: Vec<&str> = text.splitn(3, ' ').collect();
    assert!(parts[0].ends_with('Z') && parts[0].len() == 30, "{text}");
    assert_eq!(parts[1..], [source.to_string().as_str(), "forged 2026\\nline \n"]);
}

#[test]
fn check_prints_the_memory_and_refuses_two_writers_and_keys_that_say_nothing() {
    let memory = |setup: Setup| {
        let text = setup.check().succeeds(&["MiB in sinks"]).stdout;
        let number = text.split("up to ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a sum");
        number.parse::<f64>().expect("a number")
    };
    let mebibytes = memory(by_source(""));
    assert!((20.0..40.0).contains(&mebibytes), "{mebibytes}");
    let more = memory(by_source("buffer_bytes = '64MiB'")) - mebibytes;
    assert!((60.0 - 12.0..60.5 + 12.0).contains(&more), "48 MiB of records, and what counts them: {more}");
    by_source("consumers = 2")
        .check()
        .ends(78, &["2 consumers would write the same file; put {consumer} or {lane} into the path"]);
    Setup::new().file("archive", "{source}-{consumer}.log").keys("consumers = 2").check().succeeds(&[]);
    Setup::new().file("archive", "x.log").keys("open_files = 10").check().ends(78, &["path has no {source}"]);
    Setup::new().file("archive", "{source/33}.log").check().ends(78, &["{source/33} is no prefix"]);
}

/// Sets how many descriptors a process may have.
fn limit_descriptors(pid: u32, descriptors: usize) {
    let (pid, limit) = (format!("--pid={pid}"), format!("--nofile={descriptors}:"));
    Outcome::of(Command::new("prlimit").args([pid, limit])).succeeds(&[]);
}

/// Waits until so many lines are in the files, which takes no descriptor of the daemon.
fn wait_for_lines(directory: &Path, lines: usize) {
    until("all is written", || logs(directory).values().flatten().filter(|byte| **byte == b'\n').count() == lines);
}

#[test]
fn a_lack_of_descriptors_is_said_once_and_costs_no_datagram_while_others_can_be_closed() {
    let daemon = by_source("").start();
    send_round(&daemon, 1, 0);
    daemon.until_delivered(1);
    limit_descriptors(daemon.pid(), daemon.open_files().len() + 20);
    for round in 1..4 {
        send_round(&daemon, 100, round);
        wait_for_lines(daemon.directory(), 1 + 100 * round);
    }
    limit_descriptors(daemon.pid(), 1000);
    let ended = daemon.end(301);
    assert_eq!(delivered(&ended.ledger), 301);
    let [line] = ended.lines("Too many open files")[..] else { panic!("{}", ended.stderr) };
    assert!(line.contains("cannot open one more file") && line.contains("LimitNOFILE="), "{line}");
}

#[test]
fn where_no_descriptor_can_be_had_at_all_the_datagrams_count_as_sink_error_and_the_line_has_the_cure() {
    let (mut site, setup) = (Site::new(), by_source(""));
    let mut daemon = site.start(&setup);
    limit_descriptors(daemon.pid(), 3);
    send_from(0, setup.address, b"lost");
    let line = daemon.await_line("cannot write to");
    assert!(line.contains("LimitNOFILE="), "{line}");
    limit_descriptors(daemon.pid(), 1000);
    send_from(0, setup.address, b"written");
    daemon.await_line("is written again; 1 datagrams");
    let ended = daemon.terminate().closed(2);
    assert_eq!(dropped(ended.sink(), "sink_error"), 1);
}

#[test]
fn a_file_that_can_never_be_finished_is_written_on_and_said_once() {
    // Its own name is as long as a name may be nearly; with the moment of its end it is longer.
    let setup = Setup::new().file("archive", &format!("log/{{source}}{}", "x".repeat(240)));
    let daemon = setup.keys("rotate = { bytes = '64KiB', every = '0s' }").start();
    for round in 0..4 {
        (0..70).for_each(|_| send_from(0, daemon.address(), &[b'x'; 1000]));
        daemon.until_delivered(70 * (round + 1));
    }
    let ended = daemon.end(280);
    assert_eq!(delivered(&ended.ledger), 280);
    let said = ["File name too long", "cannot finish", "written again"].map(|words| ended.lines(words).len());
    assert_eq!(said, [1, 1, 0], "{}", ended.stderr);
}

#[test]
fn lists_of_finished_files_that_cannot_be_read_are_said_once_for_all_sources() {
    let setup = by_source("rotate = { bytes = '64KiB', every = '0s' }\nkeep.files = 1");
    let daemon = setup.start();
    for number in 0..3 {
        (0..70).for_each(|_| send_from(number, daemon.address(), &[b'x'; 1000]));
    }
    daemon.stats_when("each has finished one", |ledger| of_files(ledger, "finished") == 3);
    let first = daemon.terminate();
    let lists = files(&first.path("log"), ".");
    assert_eq!(lists.len(), 3, "{:?}", lists.keys());
    for list in lists.keys() {
        let path = first.path("log").join(list);
        std::fs::remove_file(&path).expect("removed");
        std::fs::create_dir(&path).expect("made");
    }
    let again = setup.in_directory(&first.directory).start();
    send_round(&again, 3, 0);
    again.until_delivered(3);
    assert_eq!(again.end(3).lines("cannot read the list").len(), 1);
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
    // The sandbox would hold the daemon to what lies below its path.
    let daemon = Setup::new().daemon("sandbox = 'off'").file("archive", "log/{source}/log").start_by(&tracer);
    let own = daemon.directory().join("log").join(sender(1).to_string());
    std::os::unix::fs::symlink(there.path(), own).expect("a link");
    (0..2).for_each(|number| send_from(number, daemon.address(), b"line"));
    daemon.until_delivered(2);
    let ended = daemon.end(2);
    assert_eq!(of_files(&ended.ledger, "unsynced_bytes"), 0);
    assert_eq!(std::fs::read(there.path().join("log")).expect("written"), b"line\n");
    let said = std::fs::read_to_string(calls.path()).expect("what was called");
    let synced = |path: &Path| said.lines().any(|line| line.contains(&format!("<{}", path.display())));
    assert!(synced(&ended.directory) && synced(there.path()), "{said}");
}

/// The names are those of /etc/hosts: every host calls its own address localhost, and no resolver is asked for that.
#[test]
fn a_sender_with_a_name_that_leads_back_has_the_file_of_its_name_and_each_line_is_in_one_file() {
    if std::fs::read_to_string("/etc/hosts")
        .is_ok_and(|hosts| !hosts.lines().any(|line| line.split_whitespace().take(2).eq(["127.0.0.1", "localhost"])))
    {
        return not_checked("files by name: /etc/hosts does not call 127.0.0.1 localhost");
    }
    let daemon = Setup::new().file("archive", "log/{host}.log").start();
    let own = socket_at((Ipv4Addr::LOCALHOST, 0));
    let mut sent = 0;
    let has_name = || logs(daemon.directory()).contains_key("localhost.log");
    while !has_name() {
        send_by(&own, daemon.address(), format!("line {sent}").as_bytes(), 1);
        sent += 1;
        daemon.until_delivered(sent);
    }
    let files = logs(&daemon.end(sent).directory);
    let mut lines: Vec<String> = Vec::new();
    for (name, text) in &files {
        assert!(["localhost.log", "127.0.0.1.log"].contains(&name.as_str()), "{name}");
        lines.extend(String::from_utf8_lossy(text).lines().map(str::to_owned));
    }
    // The address comes first in the order of names, and its lines came before.
    assert_eq!(lines, (0..sent).map(|number| format!("line {number}")).collect::<Vec<_>>());
}
