//! Files by source: every line in the file of its sender, however many there are, whoever moves or breaks a file, and
//! whenever the daemon is killed.
//!
//! Loopback has sixteen million addresses that anybody may send from, so each sender here is one of those.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;

use nix::sys::signal::Signal;
use serde_json::Value;
use udpd_base::format::boundary::Boundary;

use crate::util::bed::{Bed, Load, with};
use crate::util::daemon::{Daemon, Ended, free_address, udpd};
use crate::util::ledger::{assert_closed, count};

/// A listener whose sink has these keys besides.
pub(crate) fn by_source(address: SocketAddr, keys: &str) -> String {
    format!(
        r#"
        [[listener]]
        name = "in"
        address = "{address}"
        receive_buffer = "64MiB"
        sinks = ["archive"]
        [sink.archive]
        type = "file"
        when_full = "block"
        {keys}
        "#
    )
}

pub(crate) const PATH: &str = "path = \"@DIR@/log/{source}.log\"\n";

/// The address of a sender.
pub(crate) fn sender(number: usize) -> Ipv4Addr {
    let [_, high, middle, low] = u32::try_from(number).expect("few").to_be_bytes();
    Ipv4Addr::new(127, 1 + high, middle, low)
}

/// Sends from one sender.
pub(crate) fn send(from: Ipv4Addr, to: SocketAddr, payload: &[u8]) {
    UdpSocket::bind((from, 0)).expect("bound").send_to(payload, to).expect("sent");
}

/// Each of so many senders sends one line of a round, and everything has been received when this returns.
pub(crate) fn send_round(daemon: &Daemon, to: SocketAddr, senders: usize, round: usize) {
    for number in 0..senders {
        send(sender(number), to, format!("round {round} of {number}").as_bytes());
        if number % 500 == 499 {
            let sent = (round * senders + number + 1) as u64;
            daemon.stats_when("what was sent is received", |ledger| received(ledger) == sent);
        }
    }
}

fn received(ledger: &Value) -> u64 {
    count(&ledger["listeners"][0], "received")
}

pub(crate) fn sink(ledger: &Value) -> &Value {
    &ledger["listeners"][0]["sinks"][0]
}

pub(crate) fn wait_for_delivered(daemon: &Daemon, datagrams: u64) {
    daemon.stats_when("all is delivered", |ledger| count(sink(ledger), "delivered") == datagrams);
}

/// The files in the directory of the logs, by their names.
pub(crate) fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(directory.join("log")).expect("readable").flatten();
    let named = entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()));
    named.map(|(name, path)| (name, std::fs::read(path).expect("readable"))).collect()
}

/// Every line of so many rounds is in the file of its sender, in order, and there is nothing else.
fn assert_own_lines(ended: &Ended, senders: usize, rounds: usize) {
    let files = files(ended.directory.path());
    assert_eq!(files.len(), senders, "one file for each sender");
    for number in 0..senders {
        let expected: String = (0..rounds).map(|round| format!("round {round} of {number}\n")).collect();
        let found = String::from_utf8_lossy(&files[&format!("{}.log", sender(number))]).into_owned();
        assert_eq!(found, expected, "sender {number}");
    }
}

#[test]
fn a_thousand_senders_have_every_line_in_their_own_files_of_which_a_hundred_are_open() {
    let (senders, rounds) = (1000, 3);
    let address = free_address();
    let daemon = Daemon::with_config(&by_source(address, &format!("{PATH}open_files = 100\n")));
    for round in 0..rounds {
        send_round(&daemon, address, senders, round);
        wait_for_delivered(&daemon, ((round + 1) * senders) as u64);
        let open = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("it runs").flatten();
        let logs = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        let logs = logs.filter(|path| path.extension().is_some_and(|extension| extension == "log")).count();
        assert_eq!(logs, 100, "as many as are allowed");
    }
    let ended = daemon.terminate();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_closed(&ended.ledger, (rounds * senders) as u64);
    assert_own_lines(&ended, senders, rounds);
    let of_files = &sink(&ended.ledger)["files"];
    assert_eq!((count(of_files, "sources"), count(of_files, "overflow")), (1000, 0));
    assert_eq!(count(of_files, "unsynced_bytes"), 0, "the end is a sync: {of_files:#}");
}

#[test]
fn ten_thousand_senders_at_once_have_a_file_each() {
    let (senders, rounds) = (10_000, 2);
    let address = free_address();
    let daemon = Daemon::with_config(&by_source(address, PATH));
    (0..rounds).for_each(|round| send_round(&daemon, address, senders, round));
    wait_for_delivered(&daemon, (rounds * senders) as u64);
    let ended = daemon.terminate();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_closed(&ended.ledger, (rounds * senders) as u64);
    assert_own_lines(&ended, senders, rounds);
}

#[test]
fn senders_beyond_the_most_that_may_have_files_share_one_and_are_counted() {
    let address = free_address();
    let daemon = Daemon::with_config(&by_source(address, &format!("{PATH}sources_max = 10\n")));
    send_round(&daemon, address, 500, 0);
    wait_for_delivered(&daemon, 500);
    send_round(&daemon, address, 10, 50);
    wait_for_delivered(&daemon, 510);
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, 510);
    let files = files(ended.directory.path());
    assert_eq!(files.len(), 11, "{:?}", files.keys());
    for number in 0..10 {
        let expected = format!("round 0 of {number}\nround 50 of {number}\n");
        assert_eq!(files[&format!("{}.log", sender(number))], expected.as_bytes());
    }
    let expected: String = (10..500).map(|number| format!("round 0 of {number}\n")).collect();
    assert_eq!(String::from_utf8_lossy(&files["overflow.log"]), expected);
    let of_files = &sink(&ended.ledger)["files"];
    assert_eq!((count(of_files, "sources"), count(of_files, "overflow")), (10, 490));
    assert_eq!(ended.stderr.matches("sources_max").count(), 2, "one warning, with its cure: {}", ended.stderr);
}

#[test]
fn senders_with_files_of_before_count_among_those_that_may_have_files_after_a_restart() {
    let keys = |address| by_source(address, &format!("{PATH}sources_max = 10\n"));
    let address = free_address();
    let daemon = Daemon::with_config(&keys(address));
    send_round(&daemon, address, 6, 0);
    wait_for_delivered(&daemon, 6);
    let first = daemon.terminate();
    let directory = first.directory.path();
    let again = |senders: std::ops::Range<usize>, files_then: usize, overflow: u64| {
        let address = free_address();
        let text = keys(address).replace("@DIR@", &directory.display().to_string());
        let daemon = Daemon::with_config(&text);
        let sent = senders.len() as u64;
        senders.for_each(|number| send(sender(number), address, b"again"));
        wait_for_delivered(&daemon, sent);
        let ended = daemon.terminate();
        assert_closed(&ended.ledger, sent);
        assert_eq!(files(directory).len(), files_then);
        assert_eq!(count(&sink(&ended.ledger)["files"], "overflow"), overflow);
    };
    // Four more have files, and 490 go to that of those that are too many; then no other has one.
    again(500..994, 11, 490);
    again(2000..2100, 11, 100);
    again(0..6, 11, 0);
    // Where the operator has removed some, there is room for as many.
    (0..3)
        .for_each(|number| std::fs::remove_file(directory.join(format!("log/{}.log", sender(number)))).expect("ours"));
    again(3000..3100, 11, 97);
}

#[test]
fn after_a_kill_every_file_parses_and_a_torn_record_is_set_aside() {
    for (format, boundary) in [("lines", Boundary::Newline), ("jsonl", Boundary::Newline), ("pcapng", Boundary::Block)]
    {
        let keys = format!("{PATH}format = \"{format}\"\nopen_files = 10\nsync = \"never\"\n");
        let address = free_address();
        let daemon = Daemon::with_config(&by_source(address, &keys));
        send_round(&daemon, address, 100, 0);
        wait_for_delivered(&daemon, 100);
        send_round(&daemon, address, 100, 1);
        let ended = daemon.end_by(Signal::SIGKILL);
        let killed = files(ended.directory.path());
        assert_eq!(killed.len(), 100, "{format}");
        for (name, content) in &killed {
            assert_eq!(boundary.whole(content).bytes, content.len(), "{format}: {name}");
        }
        // As if the kill had come in the middle of a write.
        let torn = ended.directory.path().join("log/127.1.0.7.log");
        let whole = std::fs::read(&torn).expect("there");
        std::fs::write(&torn, [&whole[..], &whole[..5.min(whole.len())]].concat()).expect("written");
        let directory = ended.directory.path().display().to_string();
        let again = Daemon::with_config(&by_source(address, &keys).replace("@DIR@", &directory));
        send_round(&again, address, 100, 0);
        wait_for_delivered(&again, 100);
        assert!(again.terminate().status.success());
        let repaired = files(ended.directory.path());
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
    let address = free_address();
    let keys = "rotate = { bytes = \"64KiB\", every = \"0s\" }\nkeep = { files = 1, bytes = 0 }\nopen_files = 2\n";
    let daemon = Daemon::with_config(&by_source(address, &format!("{PATH}{keys}")));
    let mut sent = 0;
    for round in 0..3 {
        for number in 0..5 {
            for line in 0..100 {
                send(sender(number), address, format!("{round} {line:03} {}", "x".repeat(1000)).as_bytes());
                sent += 1;
            }
        }
        wait_for_delivered(&daemon, sent);
    }
    daemon.stats_when("the oldest are removed", |ledger| count(&sink(ledger)["files"], "removed") == 10);
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, sent);
    assert_eq!(count(&sink(&ended.ledger)["files"], "finished"), 15);
    let files = files(ended.directory.path());
    for number in 0..5 {
        let own = format!("{}.log.", sender(number));
        let finished: Vec<&Vec<u8>> =
            files.iter().filter(|(name, _)| name.starts_with(&own)).map(|(_, it)| it).collect();
        assert_eq!(finished.len(), 1, "{:?}", files.keys());
        let text = String::from_utf8_lossy(finished[0]);
        assert_eq!(text.lines().filter(|line| line.starts_with("2 ")).count(), 100, "the newest is kept, and whole");
    }
}

#[test]
fn files_whose_time_is_over_are_finished_also_where_nothing_comes_any_more() {
    let address = free_address();
    let keys = "rotate = { bytes = 0, every = \"1s\" }\nopen_files = 10\n";
    let daemon = Daemon::with_config(&by_source(address, &format!("{PATH}{keys}")));
    send_round(&daemon, address, 500, 0);
    daemon.stats_when("every file is finished", |ledger| count(&sink(ledger)["files"], "finished") == 500);
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, 500);
    let files = files(ended.directory.path());
    assert_eq!(files.len(), 500);
    assert!(files.keys().all(|name| name.ends_with('Z')), "{:?}", files.keys());
}

#[test]
fn a_source_whose_file_cannot_be_written_costs_its_own_datagrams_until_it_can() {
    let address = free_address();
    let daemon = Daemon::with_config(&by_source(address, PATH));
    let in_the_way = daemon.directory().join("log").join(format!("{}.log", sender(3)));
    std::fs::create_dir(&in_the_way).expect("made");
    send_round(&daemon, address, 10, 0);
    wait_for_delivered(&daemon, 9);
    std::fs::remove_dir(&in_the_way).expect("removed");
    send_round(&daemon, address, 10, 1);
    wait_for_delivered(&daemon, 19);
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, 20);
    assert_eq!(count(&sink(&ended.ledger)["dropped"], "sink_error"), 1);
    let files = files(ended.directory.path());
    assert_eq!(files[&format!("{}.log", sender(3))], b"round 1 of 3\n");
    assert_eq!(files[&format!("{}.log", sender(4))], b"round 0 of 4\nround 1 of 4\n");
    assert!(ended.stderr.contains("is written again; 1 datagrams"), "{}", ended.stderr);
}

#[test]
fn a_file_that_somebody_moves_is_left_to_them_when_reopening_is_done() {
    let address = free_address();
    let daemon = Daemon::with_config(&by_source(address, &format!("{PATH}open_files = 5\n")));
    send_round(&daemon, address, 10, 0);
    wait_for_delivered(&daemon, 10);
    let log = daemon.directory().join("log");
    for number in 0..10 {
        let path = log.join(format!("{}.log", sender(number)));
        std::fs::rename(&path, path.with_extension("moved")).expect("moved");
    }
    let socket = daemon.control_socket().display().to_string();
    let reopened = udpd(&["reopen", "--socket", &socket]);
    assert!(reopened.status.success(), "{}", String::from_utf8_lossy(&reopened.stderr));
    let open = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("it runs").flatten();
    let moved = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    assert_eq!(moved.filter(|path| path.extension().is_some_and(|it| it == "moved")).count(), 0, "all are closed");
    send_round(&daemon, address, 10, 1);
    wait_for_delivered(&daemon, 20);
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, 20);
    let files = files(ended.directory.path());
    for number in 0..10 {
        assert_eq!(files[&format!("{}.moved", sender(number))], format!("round 0 of {number}\n").as_bytes());
        assert_eq!(files[&format!("{}.log", sender(number))], format!("round 1 of {number}\n").as_bytes());
    }
}

#[test]
fn other_settings_of_files_by_source_are_in_force_without_a_loss_and_without_a_second_writer() {
    let text = |keys: &str, lines: &str| {
        let text = with(keys, "\"stays\"", "").replace("stays.log", "{source}.log");
        text.replace("type = \"file\"", &format!("type = \"file\"\n{lines}"))
    };
    let mut bed = Bed::start(&text("lanes = 2", ""));
    let load = Load::begin(bed.address(), bed.pipeline.books());
    for (round, lines) in ["sync = \"never\"", "open_files = 7", "", "buffer_bytes = \"1MiB\""].into_iter().enumerate()
    {
        load.wait_for(1_000);
        bed = bed.reload(&text(&format!("lanes = {}", 1 + round % 2), lines));
    }
    load.wait_for(1_000);
    let sent = load.end();
    let (ledger, directory) = bed.stop();
    let own = crate::util::bed::sink(&ledger, "in", "stays");
    assert_eq!((own.offered, own.counts.delivered, own.in_flight), (sent, sent, 0), "{own:?}");
    crate::util::bed::assert_each_once(&directory.path().join("127.0.0.1.log"), sent);
}

#[test]
fn a_prefix_says_when_and_who_and_what_is_left_is_the_line() {
    let address = free_address();
    let keys = "path = \"@DIR@/log/{source/16},{source_port},{destination}\"\nprefix = \"time source\"\n";
    let daemon = Daemon::with_config(&by_source(address, keys));
    let socket = UdpSocket::bind((sender(513), 0)).expect("bound");
    socket.send_to(b"forged 2026\nline ", address).expect("sent");
    wait_for_delivered(&daemon, 1);
    let ended = daemon.terminate();
    let files = files(ended.directory.path());
    let source = socket.local_addr().expect("bound");
    let content = &files[&format!("127.1.0.0_16,{},127.0.0.1", source.port())];
    let text = String::from_utf8_lossy(content);
    let parts: Vec<&str> = text.splitn(3, ' ').collect();
    assert!(parts[0].ends_with('Z') && parts[0].len() == 30, "{text}");
    assert_eq!(parts[1], source.to_string());
    assert_eq!(parts[2], "forged 2026\\nline \n");
}

#[test]
fn check_prints_the_memory_and_refuses_two_writers_and_keys_that_say_nothing() {
    let address = free_address();
    let check = |keys: &str| {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("udpd.toml");
        let text = by_source(address, keys).replace("@DIR@", &directory.path().display().to_string());
        std::fs::write(&file, text).expect("written");
        let output = udpd(&["check", "-c", file.to_str().expect("UTF-8")]);
        let text = [&output.stdout[..], &output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let memory = |text: &str| {
        let words: Vec<&str> = text.split("up to ").nth(1).expect("a sum").split(' ').take(4).collect();
        (words[0].parse::<f64>().expect("a number"), words[1..4].join(" "))
    };
    let (code, text) = check(PATH);
    assert_eq!(code, Some(0), "{text}");
    let (mebibytes, unit) = memory(&text);
    assert!((20.0..40.0).contains(&mebibytes) && unit.starts_with("MiB in sinks"), "{text}");
    let more = memory(&check(&format!("{PATH}buffer_bytes = \"64MiB\"\n")).1).0 - mebibytes;
    assert!((60.0 - 12.0..60.5 + 12.0).contains(&more), "48 MiB of records, and their books: {more}");
    let (code, text) = check(&format!("{PATH}consumers = 2\n"));
    assert_eq!(code, Some(78), "{text}");
    assert!(text.contains("2 consumers would write the same file; put {consumer} or {lane} into the path"), "{text}");
    let (code, text) = check("path = \"@DIR@/{source}-{consumer}.log\"\nconsumers = 2\n");
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = check("path = \"@DIR@/x.log\"\nopen_files = 10\n");
    assert_eq!(code, Some(78), "{text}");
    assert!(text.contains("path has no {source}"), "{text}");
    let (code, text) = check("path = \"@DIR@/{source/33}.log\"\n");
    assert_eq!(code, Some(78), "{text}");
    assert!(text.contains("{source/33} is no prefix"), "{text}");
}
