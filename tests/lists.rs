//! Files of networks as an operator meets them: a million lines at a start and at a reload, inside of the sandbox, and
//! a file that is gone or wrong, which changes nothing.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use crate::util::*;

/// A daemon with a file of networks that it denies, and that file.
fn listening(list: &str) -> (Daemon, PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("deny");
    fs::write(&file, list).expect("the list");
    let keys = format!("lanes = 2\ndeny_files = ['{}']", file.display());
    (Setup::new().keys(keys).null("out").start(), file, folder)
}

/// Replaces a file as a careful program does.
fn replace(file: &Path, text: &str) {
    let new = file.with_extension("new");
    fs::write(&new, text).expect("the new list");
    fs::rename(&new, file).expect("in its place");
}

fn send_from(to: SocketAddr, last: u8, times: u64) {
    send_by(&socket_at((Ipv4Addr::new(127, 0, 0, last), 0)), to, b"x", times);
}

/// When so many have been received, how many of them were denied.
fn denied(daemon: &Daemon, received: u64) -> u64 {
    dropped(listener(&daemon.until_received(received)), "denied")
}

/// Networks from which nothing is sent here.
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
    let (daemon, list, _folder) = listening("127.0.0.2 # one\n");
    send_from(daemon.address(), 1, 10);
    send_from(daemon.address(), 2, 10);
    assert_eq!(denied(&daemon, 20), 10);
    replace(&list, "127.0.0.3/32\r\n");
    daemon.command("reload").succeeds(&[]);
    send_from(daemon.address(), 2, 10);
    send_from(daemon.address(), 3, 5);
    assert_eq!(denied(&daemon, 35), 15);
    daemon.command("reload").succeeds(&["nothing"]);
    daemon.end(35);
}

#[test]
fn a_list_that_is_gone_or_wrong_refuses_a_start_and_a_reload_and_the_one_that_runs_stays() {
    let good = "127.0.0.2\n";
    let (daemon, list, _folder) = listening(good);
    for (text, words) in [
        (Some("127.0.0.2\nnonsense\n127.0.0.2/8\n"), ["deny:2:1: listener.deny_files:", "deny:3:1:"]),
        (None, ["udpd.toml:", "deny\" cannot be read: No such file or directory"]),
    ] {
        match text {
            Some(text) => replace(&list, text),
            None => fs::remove_file(&list).expect("the list"),
        }
        daemon.command("reload").ends(78, &words);
        daemon.by_file("check", &[]).ends(78, &words);
    }
    // Clients that only ask need no list.
    daemon.by_file("stats", &[]).succeeds(&[]);
    send_from(daemon.address(), 2, 7);
    assert_eq!(denied(&daemon, 7), 7);
    fs::write(&list, good).expect("the list");
    daemon.command("reload").succeeds(&["nothing"]);
    daemon.end(7);
}

#[test]
fn a_million_networks_are_read_at_the_start_and_by_a_reload_and_are_in_the_plan() {
    let text = many(1_000_000);
    let (daemon, list, _folder) = listening(&text);
    let plan = daemon.by_file("check", &["--json"]).json();
    assert_eq!(count(&plan["lists"][0], "networks"), 1_000_000);
    let bytes = count(&plan, "list_bytes");
    assert_eq!(bytes, count(&plan["lists"][0], "bytes"));
    assert!((4_000_000..9_000_000).contains(&bytes), "{bytes}");
    send_from(daemon.address(), 2, 5);
    assert_eq!(denied(&daemon, 5), 0);
    replace(&list, &(text + "127.0.0.2\n"));
    daemon.command("reload").succeeds(&[]);
    send_from(daemon.address(), 2, 5);
    assert_eq!(denied(&daemon, 10), 5);
    daemon.end(10);
}
