//! Which lane a datagram goes to, and on which core it came. On loopback the softirq runs on the sender's core, so a
//! pinned sender decides where its datagrams arrive.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::util::daemon::{Daemon, Ended, free_address, udpd};
use crate::util::ledger::{assert_closed, count, list};
use crate::util::load::{Amount, Load};

/// The first words of the warning of a daemon that may not count by core.
const NO_EVIDENCE: &str = "cannot count on which cores datagrams arrive";

/// A listener with these lines, and a sink that counts.
fn config(address: SocketAddr, lines: &str, steer: &str) -> String {
    format!(
        r#"
        [[listener]]
        name = "in"
        address = "{address}"
        sinks = ["out"]
        {lines}
        [sink.out]
        type = "null"
        [steer]
        {steer}
        "#
    )
}

/// Sends from one core; returns when the kernel has taken everything.
fn send_from(core: usize, to: SocketAddr, datagrams: u64) {
    let mut load = Load::new(to, Amount::Count(datagrams));
    load.cpu = Some(core);
    load.rate_per_second = 100_000;
    assert_eq!(load.send().sent, datagrams);
}

/// Two cores that this process may use, or `None` with the reason said.
fn two_cores() -> Option<[usize; 2]> {
    let cores: Vec<usize> =
        core_affinity::get_core_ids().expect("the cores of this process").into_iter().map(|core| core.id).collect();
    let pair = cores.first_chunk().copied();
    if pair.is_none() {
        skipped("a sender on each of two cores needs two cores");
    }
    pair
}

#[allow(clippy::print_stderr)]
fn skipped(why: &str) {
    eprintln!("NOT CHECKED: {why}");
}

/// Whether this process may count by core, asked of the kernel and not of the daemon.
fn may_count() -> bool {
    let may = mmsg::CoreCounter::new().is_ok();
    if !may {
        skipped("wrong_cpu with a number in it needs CAP_BPF or kernel.unprivileged_bpf_disabled = 0");
    }
    may
}

fn lanes(ledger: &Value) -> &[Value] {
    list(&ledger["listeners"][0], "lanes")
}

fn arrived(daemon: &Daemon, datagrams: u64) -> Value {
    daemon.stats_when("everything has arrived", |ledger| count(&ledger["listeners"][0], "received") == datagrams)
}

fn times(ended: &Ended, words: &str) -> usize {
    ended.stderr.matches(words).count()
}

/// Sends from one core and then from the other, and looks where it went.
fn by_core(daemon: Daemon, address: SocketAddr, cores: [usize; 2], counted: bool) -> Ended {
    let mut sent = 0;
    for core in cores {
        let before = daemon.stats();
        send_from(core, address, 2000);
        sent += 2000;
        let after = arrived(&daemon, sent);
        for (before, after) in lanes(&before).iter().zip(lanes(&after)) {
            let is_its_own = list(after, "planned_cpus").contains(&json!(core));
            let got = count(after, "received") - count(before, "received");
            assert_eq!(got, if is_its_own { 2000 } else { 0 }, "sent on core {core}: {after:#}");
            assert_eq!(after["wrong_cpu"], if counted { json!(0) } else { Value::Null }, "{after:#}");
        }
    }
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, sent);
    assert_eq!(ended.ledger["listeners"][0]["wrong_cpu"], if counted { json!(0) } else { Value::Null });
    assert_eq!(times(&ended, NO_EVIDENCE), usize::from(!counted), "{}", ended.stderr);
    ended
}

#[test]
fn by_core_every_datagram_goes_to_the_lane_that_the_table_names() {
    let Some(cores) = two_cores() else { return };
    let address = free_address();
    let cpus = format!("cpus = \"{},{}\"", cores[0], cores[1]);
    let daemon = Daemon::with_config(&config(address, "lanes = 2\nspread = \"cpu\"", &cpus));
    let ended = by_core(daemon, address, cores, may_count());
    for lane in lanes(&ended.ledger) {
        assert_eq!(lane["planned_cpus"], json!([lane["cpu"]]), "a lane is fed by the core of its receiver: {lane:#}");
    }
}

#[test]
fn without_the_right_to_count_the_lanes_are_right_all_the_same_and_it_is_said_once() {
    let Some(cores) = two_cores() else { return };
    let address = free_address();
    let cpus = format!("cpus = \"{},{}\"", cores[0], cores[1]);
    let text = config(address, "lanes = 2\nspread = \"cpu\"", &cpus);
    if std::fs::read_to_string("/proc/sys/kernel/unprivileged_bpf_disabled").is_ok_and(|text| text.trim() == "0") {
        return skipped("a daemon that may not count by core: everybody may on this host");
    }
    by_core(Daemon::with_config_and_without_bpf(&text), address, cores, false);
}

#[test]
fn what_arrives_on_a_core_outside_of_the_plan_is_counted_exactly_and_said_once() {
    let Some([other, own]) = two_cores() else { return };
    if !may_count() {
        return;
    }
    let address = free_address();
    let daemon = Daemon::with_config(&config(address, "spread = \"cpu\"", &format!("cpus = \"{own}\"")));
    send_from(other, address, 300);
    send_from(own, address, 200);
    let ledger = arrived(&daemon, 500);
    let lane = &lanes(&ledger)[0];
    assert_eq!(lane["arrived_on"], json!({ other.to_string(): 300, own.to_string(): 200 }), "{lane:#}");
    assert_eq!((count(lane, "wrong_cpu"), count(&ledger["listeners"][0], "wrong_cpu")), (300, 300));
    let socket = daemon.control_socket();
    let shown = udpd(&["stats", "--socket", socket.to_str().expect("temporary paths are UTF-8")]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("on the wrong core  300  datagrams"), "{shown:?}");
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, 500);
    assert_eq!(count(&ended.ledger["listeners"][0], "wrong_cpu"), 300);
    let said = format!(" datagrams arrived on core {other} instead of {own}; ");
    assert_eq!((times(&ended, &said), times(&ended, " instead of ")), (1, 1), "{}", ended.stderr);
}

/// The number of the thread of a daemon with this name.
fn thread_of(daemon: &Daemon, name: &str) -> i32 {
    let folder = format!("/proc/{}/task", daemon.pid());
    let threads = std::fs::read_dir(folder).expect("a running daemon").map(|entry| entry.expect("a thread").path());
    let is_it = |path: &std::path::PathBuf| {
        std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    };
    let path = threads.into_iter().find(is_it).expect("a thread of this name");
    path.file_name().and_then(|number| number.to_str()).and_then(|number| number.parse().ok()).expect("a number")
}

#[test]
fn a_receiver_that_somebody_moves_is_named_once_and_left_alone_and_the_ledger_has_its_core() {
    let Some([own, other]) = two_cores() else { return };
    let address = free_address();
    let daemon = Daemon::with_config(&config(address, "lanes = 1", &format!("cpus = \"{own}\"")));
    let cpu = |ledger: &Value| lanes(ledger)[0]["cpu"].clone();
    assert_eq!(cpu(&daemon.stats()), json!(own));
    let receiver = thread_of(&daemon, "rx0-in");
    steer::confine_thread(receiver, &[other]).expect("the tests may use both cores");
    daemon.stats_when("the ledger has the core", |ledger| cpu(ledger) == json!(other));
    steer::confine_thread(receiver, &[own, other]).expect("as before");
    daemon.stats_when("the ledger has no core", |ledger| cpu(ledger) == Value::Null);
    assert_eq!(steer::cores_of_thread(receiver).expect("it lives"), [own, other], "it is left there");
    steer::confine_thread(receiver, &[own]).expect("as before");
    daemon.stats_when("the ledger has its core", |ledger| cpu(ledger) == json!(own));
    let ended = daemon.terminate();
    let moved = format!("its receiver was moved from core {own} to core {other} by somebody else");
    assert_eq!((times(&ended, &moved), times(&ended, " by somebody else")), (1, 2), "{}", ended.stderr);
    assert_eq!(times(&ended, &format!("its receiver is on core {own} again")), 1, "{}", ended.stderr);
}

#[test]
fn at_random_one_sender_reaches_both_lanes_and_everything_is_delivered() {
    let address = free_address();
    let daemon = Daemon::with_config(&config(address, "lanes = 2\nspread = \"random\"", ""));
    let mut load = Load::new(address, Amount::Count(2000));
    (load.flows, load.rate_per_second) = (1, 100_000);
    let sent = load.send().sent;
    let ledger = arrived(&daemon, sent);
    for lane in lanes(&ledger) {
        // 1000 expected, standard deviation 22.4: outside of this only once in 10^18 runs.
        assert!((800..1200).contains(&count(lane, "received")), "{ledger:#}");
        assert_eq!(lane["wrong_cpu"], Value::Null, "nobody says where they should arrive: {lane:#}");
    }
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, sent);
    assert_eq!(count(&ended.ledger["listeners"][0]["sinks"][0], "delivered"), sent);
}

#[test]
fn by_queue_on_a_device_that_records_none_the_kernel_chooses_and_nothing_is_lost() {
    let address = free_address();
    let lines = "interface = \"lo\"\nlanes = 2\nspread = \"queue\"";
    let daemon = Daemon::with_config(&config(address, lines, ""));
    let sent = Load::new(address, Amount::Count(2000)).send().sent;
    let ledger = arrived(&daemon, sent);
    let queues: Vec<&Value> = lanes(&ledger).iter().map(|lane| &lane["queue"]).collect();
    assert_eq!(queues, [&json!(0), &Value::Null], "loopback has one receive queue");
    let ended = daemon.terminate();
    assert_closed(&ended.ledger, sent);
    assert_eq!(times(&ended, "lane 1 has no receive queue of lo to itself"), 1, "{}", ended.stderr);
}

#[test]
fn an_interface_has_one_lane_for_each_of_its_queues_and_each_lane_shows_its_queue() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("udpd.toml");
    let text = config(free_address(), "interface = \"lo\"\nspread = \"queue\"", "");
    std::fs::write(&file, text).expect("a configuration");
    let output = udpd(&["check", "--json", "-c", file.to_str().expect("temporary paths are UTF-8")]);
    let plan: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let queues: Vec<&Value> = list(&plan, "lanes").iter().map(|lane| &lane["queue"]).collect();
    assert_eq!(queues, [&json!(0)], "{plan:#}");
}

#[test]
fn more_lanes_than_cores_cannot_be_fed_by_core_and_never_start() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("udpd.toml");
    // More than any machine has cores, and of batches so small that it is not their memory that is refused.
    let lanes = "lanes = 1024\nbatch_size = 1\nmax_length = 64\nspread = \"cpu\"";
    std::fs::write(&file, config(free_address(), lanes, "")).expect("a configuration");
    for command in ["check", "run"] {
        let output = udpd(&[command, "-c", file.to_str().expect("temporary paths are UTF-8")]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{command}: {stderr}");
        for words in ["listener in: spread = \"cpu\"", "each core feeds one lane", "lower lanes to"] {
            assert!(stderr.contains(words), "{command}: {words}: {stderr}");
        }
    }
}

#[test]
fn a_steered_interface_that_is_absent_is_left_out_with_a_warning_and_refused_by_check_alone() {
    let address = free_address();
    let text = config(address, "", "interfaces = [\"card9\"]");
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("udpd.toml");
    std::fs::write(&file, &text).expect("a configuration");
    let checked = udpd(&["check", "-c", file.to_str().expect("temporary paths are UTF-8")]);
    assert_eq!(checked.status.code(), Some(78), "{checked:?}");
    assert!(String::from_utf8_lossy(&checked.stderr).contains("this host has no interface \"card9\""), "{checked:?}");
    let daemon = Daemon::with_config(&text);
    send_from(core_affinity::get_core_ids().expect("the cores of this process")[0].id, address, 1);
    arrived(&daemon, 1);
    let ended = daemon.terminate();
    assert_eq!(times(&ended, "interface card9 is not steered"), 1, "{}", ended.stderr);
}

#[test]
fn what_cannot_be_restored_is_told_and_kept_until_it_is_given_up() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let state = folder.path().join("steer");
    let restore = |more: &[&str]| {
        let output = udpd(&[&["steer", "restore", "--state", state.to_str().expect("a path")], more].concat());
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.code(), said)
    };
    let (code, said) = restore(&[]);
    assert_eq!((code, said.as_str()), (Some(0), "everything is as saved: changed nothing\n"));
    assert!(!state.exists(), "nothing is made to look for what was never saved");

    std::fs::create_dir(&state).expect("a directory");
    std::fs::set_permissions(&state, PermissionsExt::from_mode(0o700)).expect("ours");
    let [damaged, linked] = ["eth9.9.77.saved", "eth8.8.77.saved"].map(|name| state.join(name));
    std::fs::write(&damaged, "no journal\n").expect("a file");
    std::os::unix::fs::symlink(&damaged, &linked).expect("a link");
    let (code, said) = restore(&[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("{} is damaged: nothing is restored from it", damaged.display())), "{said}");
    assert!(said.contains(&format!("{} is a symbolic link", linked.display())), "{said}");
    let (code, said) = restore(&["--forget"]);
    assert_eq!(code, Some(2), "it is not said of what: {said}");
    assert_eq!(restore(&["eth8", "--forget"]).0, Some(0));
    assert!(std::fs::symlink_metadata(&linked).is_err() && damaged.exists(), "what was not named is kept");

    std::fs::set_permissions(&state, PermissionsExt::from_mode(0o770)).expect("ours");
    let (code, said) = restore(&["eth9", "--forget"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("is writable by others than its owner (mode 770)"), "{said}");
    assert!(damaged.exists());
}
