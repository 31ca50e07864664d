//! Files of networks as an operator meets them: a million lines at a start and at a reload, inside of the sandbox, and
//! a file that is gone or wrong, which leaves everybody in and out as before.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::util::daemon::{Daemon, free_address, udpd};
use crate::util::ledger::{assert_closed, count};

fn configuration(address: SocketAddr) -> String {
    format!(
        "[[listener]]\nname = \"in\"\naddress = \"{address}\"\nlanes = 2\ndeny_files = [\"@DIR@/lists/deny\"]\n\
         sinks = [\"out\"]\n[sink.out]\ntype = \"null\"\n"
    )
}

/// A daemon on this address, and the file of its list.
fn listening(address: SocketAddr, list: &str) -> Daemon {
    let folder = tempfile::tempdir().expect("a folder").keep();
    let file = folder.join("deny");
    fs::write(&file, list).expect("the list");
    let text = configuration(address).replace("@DIR@/lists", folder.to_str().expect("UTF-8"));
    Daemon::with_config(&text)
}

/// Where the list of a daemon is.
fn list_of(daemon: &Daemon) -> std::path::PathBuf {
    let text = fs::read_to_string(daemon.directory().join("udpd.toml")).expect("the configuration");
    let (_, behind) = text.split_once("deny_files = [\"").expect("the key");
    behind.split_once('"').expect("a path").0.into()
}

/// As who takes care replaces a file.
fn replace(file: &Path, text: &str) {
    let new = file.with_extension("new");
    fs::write(&new, text).expect("the new list");
    fs::rename(&new, file).expect("in its place");
}

fn reload(daemon: &Daemon) -> Output {
    udpd(&["reload", "--socket", daemon.control_socket().to_str().expect("UTF-8")])
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn send(to: SocketAddr, from: [u8; 4], count: usize) {
    let sender = UdpSocket::bind((Ipv4Addr::from(from), 0)).expect("all of 127.0.0.0/8 is here");
    for _ in 0..count {
        sender.send_to(b"x", to).expect("loopback takes it");
    }
}

/// When so many have been received, how many of them were denied.
fn denied(daemon: &Daemon, received: u64) -> u64 {
    let stats = daemon.stats_when("all are received", |stats| count(&stats["listeners"][0], "received") == received);
    count(&stats["listeners"][0]["dropped"], "denied")
}

/// Networks that nobody sends from here.
fn many(count: u32) -> String {
    let mut text = String::new();
    for number in 0..count {
        let network = Ipv4Addr::from_bits(0x8000_0000 + (number << 10));
        writeln!(text, "{network}/{}", 24 + number % 9).expect("a text grows");
    }
    text
}

#[test]
fn a_list_that_changes_is_in_force_after_a_reload_and_nothing_is_lost() {
    let address = free_address();
    let daemon = listening(address, "127.0.0.2 # one\n");
    send(address, [127, 0, 0, 1], 10);
    send(address, [127, 0, 0, 2], 10);
    assert_eq!(denied(&daemon, 20), 10);
    let list = list_of(&daemon);
    replace(&list, "127.0.0.3/32\r\n");
    let done = reload(&daemon);
    assert!(done.status.success(), "{}", said(&done));
    send(address, [127, 0, 0, 2], 10);
    send(address, [127, 0, 0, 3], 5);
    assert_eq!(denied(&daemon, 35), 15);
    let again = reload(&daemon);
    assert!(again.status.success() && said(&again).contains("nothing"), "{}", said(&again));
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, 35);
    assert_eq!(ended.ledger["listeners"][0]["residual"], Value::from(0));
    let _ = fs::remove_dir_all(list.parent().expect("a folder"));
}

#[test]
fn a_list_that_is_gone_or_wrong_refuses_a_start_and_a_reload_and_the_one_that_runs_stays() {
    let address = free_address();
    let daemon = listening(address, "127.0.0.2\n");
    let list = list_of(&daemon);
    let good = fs::read_to_string(&list).expect("the list");
    let configuration = daemon.directory().join("udpd.toml");
    let check = || udpd(&["check", "-c", configuration.to_str().expect("UTF-8")]);
    for (text, words) in [
        (Some("127.0.0.2\nnobody\n127.0.0.2/8\n"), vec!["deny:2:1: listener.deny_files:", "deny:3:1:"]),
        (None, vec!["udpd.toml:", "deny\" cannot be read: No such file or directory"]),
    ] {
        match text {
            Some(text) => replace(&list, text),
            None => fs::remove_file(&list).expect("the list"),
        }
        for refused in [reload(&daemon), check()] {
            assert_eq!(refused.status.code(), Some(78), "{}", said(&refused));
            words.iter().for_each(|words| assert!(said(&refused).contains(words), "{words}: {}", said(&refused)));
        }
    }
    let stats = udpd(&["stats", "-c", configuration.to_str().expect("UTF-8")]);
    assert!(stats.status.success(), "who only asks needs no list: {}", said(&stats));
    send(address, [127, 0, 0, 2], 7);
    assert_eq!(denied(&daemon, 7), 7);
    fs::write(&list, good).expect("the list");
    let done = reload(&daemon);
    assert!(done.status.success() && said(&done).contains("nothing"), "{}", said(&done));
    assert_closed(&daemon.terminate().ledger, 7);
    let _ = fs::remove_dir_all(list.parent().expect("a folder"));
}

#[test]
fn a_million_networks_are_read_at_the_start_and_by_a_reload_and_are_in_the_plan() {
    let address = free_address();
    let text = many(1_000_000);
    let daemon = listening(address, &text);
    let list = list_of(&daemon);
    let configuration = daemon.directory().join("udpd.toml");
    let plan = udpd(&["check", "--json", "-c", configuration.to_str().expect("UTF-8")]);
    let plan: Value = serde_json::from_slice(&plan.stdout).expect("JSON");
    assert_eq!(count(&plan["lists"][0], "networks"), 1_000_000);
    let bytes = count(&plan, "list_bytes");
    assert_eq!(bytes, count(&plan["lists"][0], "bytes"));
    assert!((4_000_000..9_000_000).contains(&bytes), "{bytes}");
    send(address, [127, 0, 0, 2], 5);
    assert_eq!(denied(&daemon, 5), 0);
    replace(&list, &(text + "127.0.0.2\n"));
    let done = reload(&daemon);
    assert!(done.status.success(), "{}", said(&done));
    send(address, [127, 0, 0, 2], 5);
    assert_eq!(denied(&daemon, 10), 5);
    assert_closed(&daemon.terminate().ledger, 10);
    let _ = fs::remove_dir_all(list.parent().expect("a folder"));
}
