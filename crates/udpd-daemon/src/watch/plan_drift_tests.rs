//! What the watch says, and how often: the hosts are made up here, because no test can take a core off its machine.

use std::slice;

use steer::ethtool::Channels;
use steer::model::{Kind, Known, Queue};
use steer::plan::{QueueSeat, Wanted};
use steer::{Change, Rival, Setting};

use super::*;

fn planned(queues: usize) -> InterfacePlan {
    let seat = |queue: usize| QueueSeat {
        queue,
        receiver: queue,
        interrupt_core: Some(2 * queue),
        receiver_core: 2 * queue + 1,
        receiver_cores: vec![2 * queue + 1],
        rps_cores: Vec::new(),
        node: Some(0),
        why: String::new(),
    };
    InterfacePlan {
        name: "eth0".to_owned(),
        driver: "?".to_owned(),
        node: Some(0),
        seats: (0..queues).map(seat).collect(),
        spare_seats: Vec::new(),
        dedicated: Vec::new(),
        wanted: Vec::new(),
        notes: Vec::new(),
        busiest_share_thousandths: 0,
    }
}

fn channels(combined: u32, combined_max: u32) -> Channels {
    Channels { rx: 0, tx: 0, other: 0, combined, rx_max: 4, tx_max: 4, other_max: 0, combined_max }
}

fn interface(queues: usize, channels: Known<Channels>) -> Interface {
    let queue = |index: usize| Queue {
        index,
        interrupt: Known::NotSupported,
        napi: None,
        rps_cores: Vec::new(),
        work: Known::NotSupported,
    };
    let driver: Known<String> = Known::NotSupported;
    Interface {
        name: "eth0".to_owned(),
        index: 7,
        kind: Kind::Physical,
        members: Vec::new(),
        is_up: true,
        driver,
        node: Some(0),
        queues: (0..queues).map(queue).collect(),
        channels,
        rings: Known::NotSupported,
        rss: Known::NotSupported,
        flow_hash_v4: Known::NotSupported,
        flow_hash_v6: Known::NotSupported,
        coalescing: Known::NotSupported,
        sorting: Known::NotSupported,
        send_queues: Vec::new(),
    }
}

fn topology(online: &[usize]) -> Topology {
    Topology { online: online.to_vec(), ..Topology::default() }
}

const ALL: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

fn lines(findings: &[DriftFinding]) -> Vec<&str> {
    findings.iter().map(|finding| finding.line.as_str()).collect()
}

#[test]
fn another_number_of_queues_is_named_with_its_cause_and_the_way_back() {
    let found = shape(&planned(4), &interface(2, Known::Is(channels(2, 4))), &topology(&ALL), &Rivals::default(), None);
    let cause = "a program ran ethtool -L, or the driver was reset";
    let expected = format!(
        "eth0 has 2 queues and the lanes were planned for 4: {cause}; restart udpd or put it back with \
         `ethtool -L eth0 combined 4`"
    );
    assert_eq!(lines(&found), [expected]);
    let link_files = vec![("/etc/systemd/network/1.link".to_owned(), "RxChannels=4".to_owned())];
    let rivals = Rivals { link_files, ..Rivals::default() };
    let found = shape(&planned(1), &interface(4, Known::Is(channels(0, 0))), &topology(&ALL), &rivals, None);
    let expected = "eth0 has 4 queues and the lanes were planned for 1: /etc/systemd/network/1.link sets it when the \
                    interface appears (RxChannels=4); restart udpd or put it back with `ethtool -L eth0 rx 1`";
    assert_eq!(lines(&found), [expected]);
    let found = shape(&planned(2), &interface(1, Known::NotSupported), &topology(&ALL), &Rivals::default(), None);
    assert!(found[0].line.ends_with("restart udpd"), "a driver without channels: {found:?}");
}

#[test]
fn a_number_of_queues_that_the_configuration_asks_for_is_a_setting_like_others() {
    let wanted = Wanted { target: Target::Channels(channels(4, 4)), why: String::new(), disruption: None };
    let part = InterfacePlan { wanted: vec![wanted], ..planned(4) };
    let found = shape(&part, &interface(2, Known::Is(channels(2, 4))), &topology(&ALL), &Rivals::default(), None);
    assert_eq!(lines(&found), [""; 0]);
}

#[test]
fn a_core_that_went_off_is_named_with_who_sat_there() {
    let lanes = BTreeSet::from([1, 3]);
    let as_planned = |online: &[usize], lanes: Option<&BTreeSet<usize>>| {
        shape(&planned(2), &interface(2, Known::NotSupported), &topology(online), &Rivals::default(), lanes)
    };
    assert_eq!(as_planned(&ALL, Some(&lanes)), []);
    let found = as_planned(&[0, 1, 4, 5], Some(&lanes));
    let cure = |core: usize| {
        format!(
            "by the plan of eth0; bring it back (echo 1 > /sys/devices/system/cpu/cpu{core}/online), or restart udpd, \
             which plans without it"
        )
    };
    let expected = [
        format!("core 2 is off, and the interrupt of queue 1 is on it {}", cure(2)),
        format!("core 3 is off, and receiver 1 is on it {}", cure(3)),
    ];
    assert_eq!(lines(&found), expected);
    let found = as_planned(&[0, 1, 4, 5], None);
    assert_eq!(lines(&found), expected[..1], "without a lane there is no receiver");
}

fn watch(interfaces: &Interfaces) -> InterfaceWatch {
    InterfaceWatch::new(&SteerConfig::default(), interfaces)
}

fn drift(found: &str) -> Drift {
    let change = Change {
        interface: "eth0".to_owned(),
        setting: Setting::Rps(0),
        from: found.to_owned(),
        to: "0".to_owned(),
        now: None,
        why: String::new(),
        disruption: None,
        command: "echo 0 > there".to_owned(),
    };
    Drift { change, queue: Some(0), rival: None }
}

fn unread(what: &Setting) -> Unknown {
    Unknown {
        interface: "eth0".to_owned(),
        queue: Some(0),
        what: what.to_string(),
        why: "no such file".to_owned(),
        cure: "look again".to_owned(),
    }
}

/// The lines that are due after each of these looks.
fn said(looks: &[(&[Drift], &[Unknown])]) -> Vec<Vec<String>> {
    let interfaces = Interfaces::default();
    let mut watch = watch(&interfaces);
    let mut look = |(drifts, unknown): &(&[Drift], &[Unknown])| {
        let comparison = Comparison { drifts: drifts.to_vec(), unknown: unknown.to_vec() };
        let findings = watch.of_comparison(&comparison);
        watch.said.judged("eth0", findings)
    };
    looks.iter().map(&mut look).collect()
}

#[test]
fn a_drift_is_said_once_however_it_moves_on_and_again_only_after_it_was_right() {
    let lines =
        said(&[(&[drift("1")], &[]), (&[drift("1")], &[]), (&[drift("2")], &[]), (&[], &[]), (&[drift("2")], &[])]);
    let counts: Vec<usize> = lines.iter().map(Vec::len).collect();
    assert_eq!(counts, [1, 0, 0, 0, 1]);
    assert_eq!(lines[0], ["eth0: queue 0: rps 0 is 1, wanted 0; `udpd steer apply` sets it again"]);
}

#[test]
fn what_cannot_be_read_is_said_once_with_its_cause_and_puts_nothing_right() {
    let cannot = unread(&Setting::Rps(0));
    let found: [(&[Drift], &[Unknown]); 5] = [
        (&[drift("1")], &[]),
        (&[], slice::from_ref(&cannot)),
        (&[], slice::from_ref(&cannot)),
        (&[drift("1")], &[]),
        (&[], &[]),
    ];
    let lines = said(&found);
    let counts: Vec<usize> = lines.iter().map(Vec::len).collect();
    assert_eq!(counts, [1, 1, 0, 0, 0], "{lines:?}");
    assert!(lines[1][0].contains("no such file; look again"), "{lines:?}");
}

#[test]
fn a_drift_that_apply_cannot_set_names_its_own_command() {
    let overridden = Drift { rival: Some(Rival::Thread { pid: 9, cores: vec![1] }), ..drift("2") };
    let lines = said(&[(&[overridden], &[])]);
    assert!(lines[0][0].ends_with("; echo 0 > there"), "{lines:?}");
}

#[test]
fn an_interface_that_cannot_be_read_at_all_is_said_once_and_is_not_right_meanwhile() {
    let interfaces = Interfaces::default();
    let mut watch = watch(&interfaces);
    let found = || vec![DriftFinding { key: "rps 0".to_owned(), keeps: None, line: "drift".to_owned() }];
    assert_eq!(watch.said.judged("eth0", found()), ["drift"]);
    assert_eq!(watch.said.unread("eth0", "cannot".to_owned()), ["cannot"]);
    assert_eq!(watch.said.unread("eth0", "cannot".to_owned()), [""; 0]);
    assert_eq!(watch.said.judged("eth0", found()), [""; 0]);
    assert_eq!(watch.said.judged("eth1", found()), ["drift"], "each interface by itself");
    assert_eq!(watch.said.unread("eth0", "cannot".to_owned()), ["cannot"], "it could be read in between");
}

#[test]
fn the_watch_compares_with_the_seats_that_the_daemon_started_with() {
    let interfaces = Interfaces { steered: vec![planned(2)], ..Interfaces::default() };
    let watch = watch(&interfaces);
    assert_eq!(watch.request.seated, [("eth0".to_owned(), planned(2).all_seats())].into());
}
