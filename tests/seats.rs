//! The seats of a daemon's lanes: told on its control socket, taken by `udpd steer` as they are, and left alone by the
//! next daemon.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use serde_json::{Value, json};

use crate::util::daemon::{Daemon, free_address, udpd};
use crate::util::ledger::list;

#[allow(clippy::print_stderr)]
fn skipped(why: &str) {
    eprintln!("NOT CHECKED: {why}");
}

/// A listener with these lines on a port of its own, and a sink that counts.
fn config(daemon: &str, listener: &str, steer: &str) -> String {
    let address = free_address();
    format!(
        "[daemon]\n{daemon}\n[[listener]]\nname = \"in\"\naddress = \"{address}\"\nsinks = [\"out\"]\n{listener}\n\
         [sink.out]\ntype = \"null\"\n[steer]\n{steer}\n"
    )
}

/// What a daemon answers to `seats`.
fn seats(socket: &Path) -> Value {
    let mut stream = UnixStream::connect(socket).expect("a control socket");
    stream.write_all(b"seats\n").expect("asked");
    stream.shutdown(Shutdown::Write).expect("shut");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    serde_json::from_str(&answer).expect("JSON")
}

/// An interface of this machine with a device behind it.
fn card() -> Option<String> {
    let entries = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().join("device").exists())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let first = names.into_iter().next();
    if first.is_none() {
        skipped("the plan of a card: this machine has none");
    }
    first
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn a_daemon_tells_where_its_lanes_sit_in_keys_that_stay() {
    let daemon = Daemon::with_config(&config("", "interface = \"lo\"\nlanes = 2\nspread = \"queue\"", ""));
    let told = seats(&daemon.control_socket());
    assert_eq!(keys(&told), ["interfaces", "lanes", "network_namespace", "pid", "version"], "{told:#}");
    assert_eq!(told["pid"], json!(daemon.pid()));
    let [lo] = list(&told, "interfaces") else { panic!("{told:#}") };
    assert_eq!(keys(lo), ["index", "is_steered", "lanes", "name", "queues", "seats"]);
    assert_eq!((&lo["name"], &lo["is_steered"], &lo["index"]), (&json!("lo"), &json!(false), &json!(1)));
    let ledger = daemon.stats();
    for (seat, lane) in list(lo, "lanes").iter().zip(list(&ledger["listeners"][0], "lanes")) {
        assert_eq!(keys(seat), ["arrival_cpus", "cpu", "lane", "listener", "node", "queues"]);
        assert_eq!((&seat["cpu"], &seat["lane"]), (&lane["cpu"], &lane["lane"]), "{seat:#}");
        assert_eq!(seat["arrival_cpus"], json!([]), "nobody steers loopback: {seat:#}");
        assert_eq!((&lane["planned_cpus"], &lane["wrong_cpu"]), (&json!([]), &Value::Null), "{lane:#}");
    }
    assert_eq!(list(lo, "lanes")[0]["queues"], json!([0]), "loopback has one receive queue");
    let ended = daemon.terminate();
    assert!(!ended.stderr.contains(" instead of "), "{}", ended.stderr);
}

#[test]
fn more_lanes_than_receive_queues_start_by_core_on_cores_of_their_own() {
    let cores = core_affinity::get_core_ids().expect("the cores of this process").len();
    let lines = format!("interface = \"lo\"\nlanes = {cores}\nspread = \"cpu\"");
    let daemon = Daemon::with_config(&config("", &lines, ""));
    let told = seats(&daemon.control_socket());
    let mut own: Vec<u64> =
        list(&told["interfaces"][0], "lanes").iter().map(|lane| lane["cpu"].as_u64().expect("a core")).collect();
    own.sort_unstable();
    own.dedup();
    assert_eq!(own.len(), cores, "{told:#}");
    daemon.terminate();
}

#[test]
fn a_command_takes_the_seats_of_the_running_daemon_as_they_are() {
    let Some(card) = card() else { return };
    let steer = format!("interfaces = [\"{card}\"]");
    let daemon = Daemon::with_config(&config("", "", &steer));
    let told = seats(&daemon.control_socket());
    let [interface] = list(&told, "interfaces") else { panic!("{told:#}") };
    let file = daemon.directory().join("udpd.toml");
    let file = file.to_str().expect("temporary paths are UTF-8");
    for arguments in [&["-c", file][..], &[card.as_str(), "-c", file]] {
        let output = udpd(&[&["steer", "plan", "--json"], arguments].concat());
        let plan: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        let asked = list(&plan["daemons"], "asked");
        assert!(asked.iter().any(|asked| asked["pid"] == json!(daemon.pid())), "{plan:#}");
        for (seat, told) in list(&plan["interfaces"][0], "seats").iter().zip(list(interface, "seats")) {
            for key in ["queue", "interrupt_cpu", "receiver_cpu", "node"] {
                assert_eq!(seat[key], told[key], "{key}: {plan:#} {told:#}");
            }
        }
        assert_eq!(list(&plan["interfaces"][0], "seats").len(), interface["queues"].as_u64().expect("queues") as usize);
    }
    let shown = udpd(&["steer", "plan", "-c", file]);
    let said = format!("note: the receivers of {card} are where the running udpd has them (process ");
    assert!(String::from_utf8_lossy(&shown.stdout).contains(&said), "{shown:?}");
    daemon.terminate();
}

#[test]
fn a_foreign_socket_that_is_called_like_ours_holds_up_no_command_and_hears_nothing() {
    let Some(card) = card() else { return };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let listener = UnixListener::bind(directory.path().join("udpd-foreign.sock")).expect("a socket");
    let output = udpd(&["steer", "plan", "--json", &card]);
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let foreign = directory.path().to_str().expect("temporary paths are UTF-8");
    assert!(!plan["daemons"].to_string().contains(foreign), "{plan:#}");
    listener.set_nonblocking(true).expect("nonblocking");
    let (mut client, _) = listener.accept().expect("it was looked at");
    let mut heard = String::new();
    client.read_to_string(&mut heard).expect("its end");
    assert_eq!(heard, "", "nobody was asked before the kernel had said who it is");
}

/// Makes a network namespace with a loopback that is up and a /run of its own, and goes on there with what follows: the
/// daemons of other tests are not seen in it.
const ALONE: [&str; 6] =
    ["--net", "--mount", "sh", "-c", "mount -t tmpfs none /run && ip link set lo up && exec \"$@\"", "sh"];

#[test]
fn a_second_daemon_takes_cores_that_the_first_one_left() {
    if !nix::unistd::geteuid().is_root() {
        return skipped("two daemons that see nobody else: that takes root");
    }
    if core_affinity::get_core_ids().expect("the cores of this process").len() < 2 {
        return skipped("a core for each of two daemons: this machine has one");
    }
    let text = || config("control_socket = \"@DIR@/udpd.sock\"", "lanes = 1", "");
    let first = Daemon::with_config_by("unshare", &ALONE, &text());
    let pid = first.pid().to_string();
    let second = Daemon::with_config_by("nsenter", &["--target", &pid, "--net", "--mount"], &text());
    let core = |daemon: &Daemon| seats(&daemon.directory().join("udpd.sock"))["lanes"][0]["cpu"].clone();
    let (one, other) = (core(&first), core(&second));
    assert!(one.is_u64() && other.is_u64() && one != other, "{one} {other}");
    drop((first, second));
}
