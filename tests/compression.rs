//! Finished files are compressed while records come: each record is in one file, in one form, whenever the daemon is
//! killed and whichever host sends.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;
use udpd_base::codec::{Method, unpacked};

use crate::util::source::files_below;
use crate::util::*;

/// A listener whose sink has these keys besides.
fn config(address: SocketAddr, keys: &str) -> Setup {
    Setup::at(address).keys("receive_buffer = '64MiB'").sink("archive", "file", format!("when_full = 'block'\n{keys}"))
}

fn of_files(ledger: &Value) -> &Value {
    &sink(ledger)["files"]
}

/// Nothing waits to be compressed.
fn is_done(ledger: &Value) -> bool {
    let files = of_files(ledger);
    count(files, "uncompressed") == 0 && count(files, "compressed") == count(files, "finished")
}

/// All files below the directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files = files_below(directory);
    files.sort();
    files
}

fn name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).expect("UTF-8")
}

/// What is in the logs below the directory, unpacked, by path.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let logs = files(directory).into_iter().filter(|path| !name(path).starts_with('.'));
    let read = |path: PathBuf| {
        let mut bytes = Vec::new();
        let file = File::open(&path).expect("there");
        unpacked(file)
            .and_then(|mut file| file.read_to_end(&mut bytes))
            .unwrap_or_else(|error| panic!("{path:?}: {error}"));
        (path, bytes)
    };
    logs.map(read).collect()
}

fn is_compressed(path: &Path) -> bool {
    Method::of_name(name(path)).is_some()
}

/// The methods that this build has.
fn methods() -> impl Iterator<Item = &'static str> {
    Method::ALL.into_iter().filter(|method| method.available().is_ok()).map(Method::name)
}

#[test]
fn files_are_compressed_while_others_are_written_and_every_record_is_in_exactly_one() {
    for method in methods() {
        let address = free_address();
        let path = "path = '@DIR@/log/all.log'\nrotate.bytes = '128KiB'";
        let keys = format!("{path}\ncompress = '{method}'\ncompress_level = 1");
        let daemon = config(address, &keys).start();
        let report = Load::new(address, Amount::Seconds(2.0)).rate(100_000 / SCALE).bytes(300).send();
        let sent = report.sent;
        daemon.stats_when("all is compressed", |ledger| delivered(ledger) == sent && is_done(ledger));
        let ended = daemon.end(sent);
        ended.assert_logged("cannot compress", 0);
        let counts = of_files(&ended.ledger);
        let (from, to) = (count(counts, "compressed_from_bytes"), count(counts, "compressed_to_bytes"));
        assert!(count(counts, "compressed") > 2 && to < from / 10, "{method}: {counts:#}");
        assert_eq!(count(counts, "compress_failures"), 0);
        let contents = contents(&ended.path("log"));
        let plain: Vec<&str> = contents.keys().filter(|path| !is_compressed(path)).map(|path| name(path)).collect();
        let waiting = count(counts, "finished") - count(counts, "compressed");
        assert_eq!((plain[0], plain.len() as u64), ("all.log", 1 + waiting), "{method}: {plain:?}");
        assert_eq!(contents.values().map(Vec::len).sum::<usize>() as u64, count(counts, "written_bytes"));
        report.assert_each_once(&contents.into_values().flatten().collect::<Vec<u8>>());
    }
}

/// Senders with a file each.
const SOURCES: u64 = 20;

#[test]
fn the_files_of_every_source_are_compressed_also_those_that_a_run_before_has_left() {
    let directory = tempfile::tempdir().expect("a directory");
    let shown = directory.path().display();
    let address = free_address();
    let path = format!("path = '{shown}/{{source}}/%H%M%S.log'\nopen_files = 10\nsync = 'rotate'\n");
    let send = |round: usize| {
        for number in 0..SOURCES {
            let sender = socket_at((Ipv4Addr::new(127, 0, 1, number as u8), 0));
            send_by(&sender, address, format!("round {round} of {number}").as_bytes(), 1);
        }
    };
    // A first run lists them, and is killed before it has finished all.
    let daemon = config(address, &format!("{path}keep = {{ files = 1000 }}")).start();
    send(0);
    daemon.stats_when("they are written", |ledger| {
        count(of_files(ledger), "written_bytes") > 0 && delivered(ledger) == SOURCES
    });
    daemon.end_by(Signal::SIGKILL);
    let daemon = config(address, &format!("{path}compress = 'gzip'")).start();
    send(1);
    daemon.stats_when("both rounds are", |ledger| {
        let (compressed, waiting) = (count(of_files(ledger), "compressed"), count(of_files(ledger), "uncompressed"));
        delivered(ledger) == SOURCES && compressed >= 2 * SOURCES && waiting == 0
    });
    daemon.end(SOURCES);
    let contents = contents(directory.path());
    assert!(contents.keys().all(|path| is_compressed(path)), "{:?}", contents.keys());
    for number in 0..SOURCES {
        let folder = directory.path().join(format!("127.0.1.{number}"));
        let of_source = contents.iter().filter(|(path, _)| path.starts_with(&folder)).flat_map(|(_, text)| text);
        let text = String::from_utf8(of_source.copied().collect()).expect("text");
        let expected: String = (0..2).map(|round| format!("round {round} of {number}\n")).collect();
        assert_eq!(text, expected);
    }
}

/// What is kept of numbered lines: how often each is there.
fn numbers(directory: &Path) -> BTreeMap<u64, u32> {
    let mut seen = BTreeMap::new();
    let logs = contents(directory).into_iter().filter(|(path, _)| !name(path).ends_with(".torn"));
    for line in logs.flat_map(|(_, bytes)| bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect::<Vec<_>>()) {
        if let Some(number) = line.get(..8) {
            let number = std::str::from_utf8(number).expect("text").parse().expect("a number");
            *seen.entry(number).or_default() += 1;
        }
    }
    seen
}

/// Lets a daemon be killed when it makes this call for the n-th time, and has the next one go on.
fn killed_at(call: &str, time: u32) {
    let directory = tempfile::tempdir().expect("a directory");
    let address = free_address();
    let path = format!("path = '{}/log'\nrotate.bytes = '64KiB'\nkeep.files = 100", directory.path().display());
    let setup = config(address, &format!("{path}\nsync = '1ms'\ncompress = 'gzip'"));
    let (trace, inject) = (format!("trace={call}"), format!("inject={call}:signal=KILL:when={time}"));
    let tracer = ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject];
    let sender = socket();
    let send = |from: u64| {
        for number in from..from + 400 {
            send_by(&sender, address, format!("{number:08} {}", "x".repeat(400)).as_bytes(), 1);
        }
    };
    // Without a control socket the first file that is removed is one that has been compressed.
    let daemon = setup.clone().daemon("control_socket = ''").start_by(&tracer);
    send(0);
    let ended = daemon.wait_for_end();
    assert_eq!(ended.status.signal(), Some(9), "{call} {time}: {}", ended.stderr);
    assert!(ended.elapsed < PATIENCE, "{call} {time}: it came to no such call");
    let daemon = setup.start();
    send(400);
    daemon.stats_when("all is compressed", |ledger| delivered(ledger) == 400 && is_done_after_another(ledger));
    daemon.end(400);
    let (left, seen) = (files(directory.path()), numbers(directory.path()));
    let plain = left.iter().filter(|path| name(path) != ".log.udpd-index" && !is_compressed(path));
    assert!(plain.map(|path| name(path)).all(|name| name.starts_with("log")), "{call} {time}: {left:?}");
    assert!(seen.values().all(|&times| times == 1), "{call} {time}: some are twice in {left:?}");
    let first = seen.range(..400).count() as u64;
    assert!(seen.range(..400).map(|(number, _)| *number).eq(0..first), "{call} {time}: {left:?}");
    assert_eq!(seen.range(400..).count(), 400, "{call} {time}: {left:?}");
}

#[test]
fn a_kill_at_any_step_of_a_compression_leaves_every_record_once() {
    if Command::new("strace").arg("-V").output().is_err() {
        return not_checked("no strace to kill a daemon at a call with");
    }
    // A file that is finished gets its name by the same call as its compressed form.
    let steps = [("utimensat", 1), ("renameat2", 1), ("renameat2", 2), ("/^unlink", 1)];
    std::thread::scope(|scope| steps.map(|(call, time)| drop(scope.spawn(move || killed_at(call, time)))));
}

/// Nothing waits, of whichever run.
fn is_done_after_another(ledger: &Value) -> bool {
    let files = of_files(ledger);
    count(files, "uncompressed") == 0 && count(files, "compressed") >= count(files, "finished")
}

#[test]
fn a_compressed_capture_is_sent_as_it_came() {
    for method in methods() {
        let address = free_address();
        let path = "path = '@DIR@/log/%H%M%S.pcapng'\nformat = 'pcapng'";
        let keys = format!("{path}\ncompress = '{method}'\nsync = 'rotate'");
        let daemon = config(address, &keys).start();
        let sender = socket();
        for number in 0..100 {
            send_by(&sender, address, format!("payload {number}").as_bytes(), 1);
        }
        daemon.stats_when("all is compressed", |ledger| {
            delivered(ledger) == 100 && count(of_files(ledger), "compressed") > 0 && is_done(ledger)
        });
        let ended = daemon.terminate();
        let captures = files(&ended.path("log"));
        let receiver = socket();
        let to = address_of(&receiver).to_string();
        let mut sent = 0;
        for capture in captures.iter().filter(|path| is_compressed(path)) {
            let report = udpd(&["replay", "--fast", "--json", "--to", &to, capture.to_str().expect("UTF-8")]).json();
            for _ in 0..count(&report, "sent") {
                let mut payload = [0; 100];
                let length = receiver.recv(&mut payload).expect("received");
                assert_eq!(payload[..length], *format!("payload {sent}").as_bytes());
                sent += 1;
            }
        }
        assert_eq!(sent, 100);
        // What is cut off is said to be damaged.
        let cut = ended.path("cut");
        let bytes = std::fs::read(captures.iter().find(|path| is_compressed(path)).expect("one")).expect("readable");
        std::fs::write(&cut, &bytes[..bytes.len() - 3]).expect("written");
        let replay = udpd(&["replay", "--fast", "--to", &to, cut.to_str().expect("UTF-8")]);
        assert!(!replay.is_success() && replay.stderr.contains("damaged"), "{method}: {replay:?}");
    }
}
