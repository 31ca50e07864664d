//! The seats of a daemon's lanes: told on its control socket, taken by `udpd steer` as they are, and left alone by the
//! next daemon.

use std::io::Read;
use std::os::unix::net::UnixListener;

use serde_json::{Value, json};

use crate::util::ask::ask;
use crate::util::*;

/// A listener with these lines on a port of its own, and a sink that counts.
fn config(daemon: &str, listener: &str, steer: &str) -> Setup {
    Setup::new().daemon(daemon).keys(listener).null("out").more(format!("[steer]\n{steer}"))
}

/// What `udpd steer plan` prints as JSON.
fn plan(arguments: &[&str]) -> Value {
    let output = udpd(&[&["steer", "plan", "--json"], arguments].concat());
    serde_json::from_str(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
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
        not_checked("the plan of a card: this machine has none");
    }
    first
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn a_daemon_tells_where_its_lanes_sit_in_keys_that_stay() {
    let daemon = config("", "interface = 'lo'\nlanes = 2\nspread = 'queue'", "").start();
    let told = ask(&daemon.control_socket(), "seats");
    assert_eq!(keys(&told), ["interfaces", "lanes", "network_namespace", "pid", "version"], "{told:#}");
    assert_eq!(told["pid"], json!(daemon.pid()));
    let [lo] = list(&told, "interfaces") else { panic!("{told:#}") };
    assert_eq!(keys(lo), ["index", "is_steered", "lanes", "name", "queues", "seats"]);
    assert_eq!((&lo["name"], &lo["is_steered"], &lo["index"]), (&json!("lo"), &json!(false), &json!(1)));
    let ledger = daemon.stats();
    for (seat, lane) in list(lo, "lanes").iter().zip(lanes(&ledger)) {
        assert_eq!(keys(seat), ["arrival_cpus", "cpu", "lane", "listener", "node", "queues"]);
        assert_eq!((&seat["cpu"], &seat["lane"]), (&lane["cpu"], &lane["lane"]), "{seat:#}");
        assert_eq!(seat["arrival_cpus"], json!([]), "loopback is not steered: {seat:#}");
        assert_eq!((&lane["planned_cpus"], &lane["wrong_cpu"]), (&json!([]), &Value::Null), "{lane:#}");
    }
    assert_eq!(list(lo, "lanes")[0]["queues"], json!([0]), "loopback has one receive queue");
    daemon.end(0).assert_logged(" instead of ", 0);
}

#[test]
fn more_lanes_than_receive_queues_start_by_core_on_cores_of_their_own() {
    let cores = core_affinity::get_core_ids().expect("the cores of this process").len();
    let daemon = config("", &format!("interface = 'lo'\nlanes = {cores}\nspread = 'cpu'"), "").start();
    let told = ask(&daemon.control_socket(), "seats");
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
    let daemon = config("", "", &format!("interfaces = ['{card}']")).start();
    let told = ask(&daemon.control_socket(), "seats");
    let [interface] = list(&told, "interfaces") else { panic!("{told:#}") };
    let file = daemon.configuration();
    let file = file.to_str().expect("temporary paths are UTF-8");
    for arguments in [&["-c", file][..], &[card.as_str(), "-c", file]] {
        let plan = plan(arguments);
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
    assert!(shown.stdout.contains(&said), "{shown:?}");
    daemon.terminate();
}

#[test]
fn a_foreign_socket_that_is_called_like_ours_holds_up_no_command_and_hears_nothing() {
    let Some(card) = card() else { return };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let listener = UnixListener::bind(directory.path().join("udpd-foreign.sock")).expect("a socket");
    let plan = plan(&[&card]);
    let foreign = directory.path().to_str().expect("temporary paths are UTF-8");
    assert!(!plan["daemons"].to_string().contains(foreign), "{plan:#}");
    listener.set_nonblocking(true).expect("nonblocking");
    let (mut client, _) = listener.accept().expect("it was looked at");
    let mut heard = String::new();
    client.read_to_string(&mut heard).expect("its end");
    assert_eq!(heard, "", "it was not asked before the kernel had said who it is");
}

/// Makes a network namespace with a loopback that is up and a /run of its own, and goes on there with what follows: the
/// daemons of other tests are not seen in it.
const ALONE: [&str; 7] =
    ["unshare", "--net", "--mount", "sh", "-c", "mount -t tmpfs none /run && ip link set lo up && exec \"$@\"", "sh"];

#[test]
fn a_second_daemon_takes_cores_that_the_first_one_left() {
    if !is_root() {
        return not_checked("two daemons that see no other: it takes root");
    }
    if core_affinity::get_core_ids().expect("the cores of this process").len() < 2 {
        return not_checked("a core for each of two daemons: this machine has one");
    }
    let setup = || config("control_socket = '@DIR@/udpd.sock'", "lanes = 1", "");
    let first = setup().start_by(&ALONE);
    let pid = first.pid().to_string();
    let second = setup().start_by(&["nsenter", "--target", &pid, "--net", "--mount"]);
    let core = |daemon: &Daemon| ask(&daemon.directory().join("udpd.sock"), "seats")["lanes"][0]["cpu"].clone();
    let (one, other) = (core(&first), core(&second));
    assert!(one.is_u64() && other.is_u64() && one != other, "{one} {other}");
    drop((first, second));
}
