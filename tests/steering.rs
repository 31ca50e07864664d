//! Which lane a datagram goes to, and on which core it came. On loopback the softirq runs on the sender's core, so a
//! pinned sender decides where its datagrams arrive.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::util::*;

/// The first words of the warning of a daemon that may not count by core.
const NO_EVIDENCE: &str = "cannot count on which cores datagrams arrive";

/// A listener with these lines, and a sink that counts.
fn config(address: SocketAddr, lines: &str, steer: &str) -> Setup {
    Setup::at(address).keys(lines).null("out").more(format!("[steer]\n{steer}"))
}

/// Sends from one core; returns when the kernel has taken everything.
fn send_from(core: usize, to: SocketAddr, datagrams: u64) {
    assert_eq!(Load::new(to, Amount::Count(datagrams)).on_core(core).rate(100_000).send().sent, datagrams);
}

/// Whether this process may count by core, asked of the kernel and not of the daemon.
fn may_count() -> bool {
    let may = mmsg::CoreCounter::new().is_ok();
    if !may {
        not_checked("wrong_cpu with a number in it needs CAP_BPF or kernel.unprivileged_bpf_disabled = 0");
    }
    may
}

/// Sends from one core and then from the other, and looks where it went.
fn by_core(daemon: Daemon, address: SocketAddr, cores: [usize; 2], counted: bool) -> Ended {
    let mut sent = 0;
    for core in cores {
        let before = daemon.stats();
        send_from(core, address, 2000);
        sent += 2000;
        let after = daemon.until_received(sent);
        for (before, after) in lanes(&before).iter().zip(lanes(&after)) {
            let is_its_own = list(after, "planned_cpus").contains(&json!(core));
            let got = count(after, "received") - count(before, "received");
            assert_eq!(got, if is_its_own { 2000 } else { 0 }, "sent on core {core}: {after:#}");
            assert_eq!(after["wrong_cpu"], if counted { json!(0) } else { Value::Null }, "{after:#}");
        }
    }
    let ended = daemon.end(sent);
    assert_eq!(ended.ledger["listeners"][0]["wrong_cpu"], if counted { json!(0) } else { Value::Null });
    assert_eq!(ended.times(NO_EVIDENCE), usize::from(!counted), "{}", ended.stderr);
    ended
}

#[test]
fn by_core_every_datagram_goes_to_the_lane_that_the_table_names() {
    let Some(cores) = two_cores() else { return };
    let address = free_address();
    let cpus = format!("cpus = '{},{}'", cores[0], cores[1]);
    let daemon = config(address, "lanes = 2\nspread = 'cpu'", &cpus).start();
    let ended = by_core(daemon, address, cores, may_count());
    for lane in lanes(&ended.ledger) {
        assert_eq!(lane["planned_cpus"], json!([lane["cpu"]]), "a lane is fed by the core of its receiver: {lane:#}");
    }
}

#[test]
fn without_the_right_to_count_the_lanes_are_right_all_the_same_and_it_is_said_once() {
    let Some(cores) = two_cores() else { return };
    let address = free_address();
    let cpus = format!("cpus = '{},{}'", cores[0], cores[1]);
    let text = config(address, "lanes = 2\nspread = 'cpu'", &cpus);
    if std::fs::read_to_string("/proc/sys/kernel/unprivileged_bpf_disabled").is_ok_and(|text| text.trim() == "0") {
        return not_checked("a daemon that may not count by core: every user may on this host");
    }
    by_core(text.start_without_bpf(), address, cores, false);
}

#[test]
fn what_arrives_on_a_core_outside_of_the_plan_is_counted_exactly_and_said_once() {
    let Some([other, own]) = two_cores() else { return };
    if !may_count() {
        return;
    }
    let address = free_address();
    let daemon = config(address, "spread = 'cpu'", &format!("cpus = '{own}'")).start();
    send_from(other, address, 300);
    send_from(own, address, 200);
    let ledger = daemon.until_received(500);
    let lane = &lanes(&ledger)[0];
    assert_eq!(lane["arrived_on"], json!({ other.to_string(): 300, own.to_string(): 200 }), "{lane:#}");
    assert_eq!((count(lane, "wrong_cpu"), count(listener(&ledger), "wrong_cpu")), (300, 300));
    daemon.command("stats").succeeds(&["on the wrong core  300  datagrams"]);
    let ended = daemon.end(500);
    assert_eq!(count(ended.listener(), "wrong_cpu"), 300);
    let said = format!(" datagrams arrived on core {other} instead of {own}; ");
    assert_eq!((ended.times(&said), ended.times(" instead of ")), (1, 1), "{}", ended.stderr);
}

#[test]
fn a_receiver_that_another_program_moves_is_named_once_and_left_alone_and_the_ledger_has_its_core() {
    let Some([own, other]) = two_cores() else { return };
    let address = free_address();
    let daemon = config(address, "lanes = 1", &format!("cpus = '{own}'")).start();
    let cpu = |ledger: &Value| lanes(ledger)[0]["cpu"].clone();
    assert_eq!(cpu(&daemon.stats()), json!(own));
    let named = threads(daemon.pid()).into_iter().find(|thread| thread.name() == "rx0-in");
    let receiver = named.expect("a thread of this name").id();
    steer::confine_thread(receiver, &[other]).expect("the tests may use both cores");
    daemon.stats_when("the ledger has the core", |ledger| cpu(ledger) == json!(other));
    steer::confine_thread(receiver, &[own, other]).expect("as before");
    daemon.stats_when("the ledger has no core", |ledger| cpu(ledger) == Value::Null);
    assert_eq!(steer::cores_of_thread(receiver).expect("it lives"), [own, other], "it is left there");
    steer::confine_thread(receiver, &[own]).expect("as before");
    daemon.stats_when("the ledger has its core", |ledger| cpu(ledger) == json!(own));
    let ended = daemon.terminate();
    let moved = format!("its receiver was moved from core {own} to core {other} by another program");
    assert_eq!((ended.times(&moved), ended.times(" by another program")), (1, 2), "{}", ended.stderr);
    assert_eq!(ended.times(&format!("its receiver is on core {own} again")), 1, "{}", ended.stderr);
}

#[test]
fn at_random_one_sender_reaches_both_lanes_and_everything_is_delivered() {
    let address = free_address();
    let daemon = config(address, "lanes = 2\nspread = 'random'", "").start();
    let mut load = Load::new(address, Amount::Count(2000));
    (load.flows, load.rate_per_second) = (1, 100_000);
    let sent = load.send().sent;
    let ledger = daemon.until_received(sent);
    for lane in lanes(&ledger) {
        // 1000 expected, standard deviation 22.4: outside of this only once in 10^18 runs.
        assert!((800..1200).contains(&count(lane, "received")), "{ledger:#}");
        assert_eq!(lane["wrong_cpu"], Value::Null, "no plan says where they should arrive: {lane:#}");
    }
    let ended = daemon.end(sent);
    assert_eq!(delivered(&ended.ledger), sent);
}

#[test]
fn by_queue_on_a_device_that_records_none_the_kernel_chooses_and_nothing_is_lost() {
    let address = free_address();
    let lines = "interface = 'lo'\nlanes = 2\nspread = 'queue'";
    let daemon = config(address, lines, "").start();
    let sent = Load::new(address, Amount::Count(2000)).send().sent;
    let ledger = daemon.until_received(sent);
    let queues: Vec<&Value> = lanes(&ledger).iter().map(|lane| &lane["queue"]).collect();
    assert_eq!(queues, [&json!(0), &Value::Null], "loopback has one receive queue");
    let ended = daemon.end(sent);
    assert_eq!(ended.times("lane 1 has no receive queue of lo to itself"), 1, "{}", ended.stderr);
}

#[test]
fn an_interface_has_one_lane_for_each_of_its_queues_and_each_lane_shows_its_queue() {
    let plan = config(free_address(), "interface = 'lo'\nspread = 'queue'", "").udpd("check", &["--json"]).json();
    let queues: Vec<&Value> = list(&plan, "lanes").iter().map(|lane| &lane["queue"]).collect();
    assert_eq!(queues, [&json!(0)], "{plan:#}");
}

#[test]
fn more_lanes_than_cores_cannot_be_fed_by_core_and_never_start() {
    // More than any machine has cores, and of batches so small that it is not their memory that is refused.
    let lanes = "lanes = 1024\nbatch_size = 1\nmax_length = 64\nspread = 'cpu'";
    let setup = config(free_address(), lanes, "");
    for command in ["check", "run"] {
        let words = ["listener in: spread = \"cpu\"", "each core feeds one lane", "lower lanes to"];
        setup.udpd(command, &[]).ends(78, &words);
    }
}

#[test]
fn a_steered_interface_that_is_absent_is_left_out_with_a_warning_and_refused_by_check_alone() {
    let address = free_address();
    let setup = config(address, "", "interfaces = ['card9']");
    setup.check().ends(78, &["this host has no interface \"card9\""]);
    let daemon = setup.start();
    send_from(core_affinity::get_core_ids().expect("the cores of this process")[0].id, address, 1);
    daemon.until_received(1);
    daemon.end(1).assert_logged("interface card9 is not steered", 1);
}

#[test]
fn what_cannot_be_restored_is_told_and_kept_until_it_is_given_up() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let state = folder.path().join("steer");
    let restore =
        |more: &[&str]| udpd(&[&["steer", "restore", "--state", state.to_str().expect("a path")], more].concat());
    assert_eq!(restore(&[]).succeeds(&[]).text(), "everything is as saved: changed nothing\n");
    assert!(!state.exists(), "nothing is made to look for what was never saved");

    std::fs::create_dir(&state).expect("a directory");
    std::fs::set_permissions(&state, PermissionsExt::from_mode(0o700)).expect("ours");
    let [damaged, linked] = ["eth9.9.77.saved", "eth8.8.77.saved"].map(|name| state.join(name));
    std::fs::write(&damaged, "no journal\n").expect("a file");
    std::os::unix::fs::symlink(&damaged, &linked).expect("a link");
    let is_damaged = format!("{} is damaged: nothing is restored from it", damaged.display());
    restore(&[]).ends(1, &[&is_damaged, &format!("{} is a symbolic link", linked.display())]);
    // It is not said of what.
    restore(&["--forget"]).ends(2, &[]);
    restore(&["eth8", "--forget"]).succeeds(&[]);
    assert!(std::fs::symlink_metadata(&linked).is_err() && damaged.exists(), "what was not named is kept");

    std::fs::set_permissions(&state, PermissionsExt::from_mode(0o770)).expect("ours");
    restore(&["eth9", "--forget"]).ends(1, &["is writable by others than its owner (mode 770)"]);
    assert!(damaged.exists());
}
