//! Tests of the verdict, on unpacked machines: what differs, what is unknown, and that neither is called as planned.

use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use crate::ethtool::FlowHash;
use crate::host::{BusyPoll, WHILE_PAUSED, while_pausing};
use crate::irqbalance::{Irqbalance, Presence};
use crate::plan::{Amount, Request};
use crate::testing::Machine;
use crate::testing::rig::Rig;

fn compare_polled(machine: &Machine, request: &Request, rivals: &Rivals, polls: &[BusyPoll]) -> Comparison {
    machine.with_steering_polled(request, polls, |steering| {
        let (host, plan) = steering.plan(&["eth0".to_owned()]).expect("a plan");
        steering.compare(&host, &plan, rivals)
    })
}

fn compare(machine: &Machine, request: &Request) -> Comparison {
    compare_polled(machine, request, &Rivals::default(), &[])
}

/// The only drift there is, where nothing is unknown.
#[track_caller]
fn only_drift(comparison: &Comparison) -> &Drift {
    assert_eq!((comparison.verdict(), comparison.unknown.as_slice()), (Verdict::Differs, [].as_slice()));
    let [drift] = comparison.drifts.as_slice() else { panic!("{:?}", comparison.drifts) };
    drift
}

/// What is unknown, one line each, where nothing differs.
#[track_caller]
fn unknown(comparison: &Comparison) -> Vec<String> {
    assert_eq!((comparison.verdict(), comparison.drifts.as_slice()), (Verdict::Unknown, [].as_slice()));
    assert!(comparison.unknown.iter().all(|unknown| !unknown.cure.is_empty()));
    comparison.unknown.iter().map(|unknown| unknown.to_string()).collect()
}

/// A machine that is as planned, which each test then spoils in one way.
fn as_planned() -> Machine {
    let machine = Machine::named("virtio-multi");
    assert_eq!(compare(&machine, &Request::default()), Comparison::default());
    machine
}

#[test]
fn a_moved_interrupt_is_told_with_its_queue_what_was_found_and_what_is_wanted() {
    let machine = as_planned();
    machine.write("proc/irq/29/smp_affinity_list", "0");
    let rivals = Rivals { irqbalance: Presence::Runs(Irqbalance::new(77)), ..Rivals::default() };
    let comparison = compare_polled(&machine, &Request::default(), &rivals, &[]);
    let drift = only_drift(&comparison);
    assert_eq!((drift.queue, drift.is_set_by_apply()), (Some(2), true));
    let text = drift.to_string();
    assert!(
        text.starts_with("eth0: queue 2: interrupt 29 virtio0-input.2 is 0, wanted 2; irqbalance runs (process 77)"),
        "{text}"
    );
}

#[test]
fn a_card_that_is_down_is_never_as_planned() {
    let machine = as_planned();
    machine.write("sys/class/net/eth0/flags", "0x1002");
    let found = unknown(&compare(&machine, &Request::default()));
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("eth0: the link: the interface is down"), "{found:?}");
}

#[test]
fn an_interrupt_of_unknown_number_is_never_as_planned() {
    let machine = Machine::named("unknown-driver");
    let comparison = compare(&machine, &Request::default());
    let found = unknown(&comparison);
    assert_eq!(comparison.unknown.iter().map(|unknown| unknown.queue).collect::<Vec<_>>(), [Some(0), Some(1)]);
    assert!(found[0].contains("how the driver newnic names its interrupts is unknown"), "{found:?}");
}

#[test]
fn a_driver_that_answers_nothing_is_never_as_planned() {
    for errno in [libc::EIO, libc::ETIMEDOUT] {
        let machine = as_planned();
        *machine.ethtool.silent.borrow_mut() = Some(errno);
        let found = unknown(&compare(&machine, &Request::default()));
        let named = |what: &str| found.iter().any(|text| text.starts_with(&format!("eth0: {what}: cannot read it: ")));
        for what in ["the driver", "the number of queues", "the length of the ring", "the indirection table"] {
            assert!(named(what), "{what}: {found:?}");
        }
        assert!(named("the hash of UDP over IPv4") && named("the hash of UDP over IPv6"), "{found:?}");
    }
}

#[test]
fn whichever_question_to_the_driver_fails_it_is_never_as_planned() {
    let request = Request { ring: Amount::Max, ..Request::default() };
    let machine = Rig::ixgbe();
    machine.apply(&request).expect("applied");
    assert_eq!(compare(&machine, &request), Comparison::default());
    let mut failed = 0;
    for readings in 0..40 {
        machine.allow_readings(Some(readings));
        let verdict = compare(&machine, &request).verdict();
        let has_failed = machine.ethtool.readings_left.borrow_mut().take().is_none();
        assert_eq!(verdict, if has_failed { Verdict::Unknown } else { Verdict::AsPlanned }, "after {readings}");
        failed += usize::from(has_failed);
    }
    assert!(failed >= 8, "six questions for the host, and those for what is compared: {failed}");
}

#[test]
fn what_is_asked_for_and_cannot_be_had_is_never_as_planned() {
    let hash = Request { flow_hash_udp: Some(FlowHash::ADDRESSES_AND_PORTS), ..Request::default() };
    let machine = as_planned();
    machine.change_device(|device| (device.hash_v4, device.hash_v6) = (None, None));
    let found = unknown(&compare(&machine, &hash));
    let why = "the request asks for \"sdfn\" and the driver does not support it";
    assert_eq!(found.len(), 2);
    assert!(found[0].starts_with(&format!("eth0: the hash of UDP over IPv4: {why}")), "{found:?}");

    machine.change_device(|device| (device.hash_v4, device.rss) = (Some(FlowHash(0)), None));
    let found = unknown(&compare(&machine, &hash));
    assert!(found[0].contains("the device hashes nothing, because its host gave it no RSS"), "{found:?}");

    machine.change_device(|device| (device.rings, device.channels) = (None, None));
    let amounts = Request { rx_queues: Amount::Max, ring: Amount::Number(512), ..Request::default() };
    let found = unknown(&compare(&machine, &amounts));
    assert!(found[0].contains("the number of queues: the request asks for the maximum and the driver"), "{found:?}");
    assert!(found[1].contains("the length of the ring: the request asks for 512 and the driver"), "{found:?}");
    assert_eq!(compare(&machine, &Request::default()), Comparison::default(), "it is not asked for");
}

#[test]
fn rps_that_hands_datagrams_on_is_the_cause_that_is_named() {
    let machine = as_planned();
    machine.write("sys/class/net/eth0/queues/rx-1/rps_cpus", "0000000c");
    let comparison = compare(&machine, &Request::default());
    let drift = only_drift(&comparison);
    let text = drift.to_string();
    assert_eq!((drift.queue, drift.is_set_by_apply()), (Some(1), true));
    assert!(
        text.starts_with("eth0: queue 1: rps 1 is 0000000c, wanted 00000000; RPS hands its datagrams on"),
        "{text}"
    );
    assert!(drift.change.command.ends_with("/sys/class/net/eth0/queues/rx-1/rps_cpus"), "{}", drift.change.command);
    fs::remove_file(machine.sys().join("class/net/eth0/queues/rx-1/rps_cpus")).expect("removed");
    assert_eq!(compare(&machine, &Request::default()), Comparison::default(), "a kernel without RPS does not do it");
}

#[test]
fn a_kernel_thread_that_polls_elsewhere_is_the_cause_that_is_named() {
    let machine = Machine::named("threaded-napi");
    let comparison = compare(&machine, &Request::default());
    assert_eq!(comparison.verdict(), Verdict::Differs);
    let threads: Vec<&Drift> =
        comparison.drifts.iter().filter(|drift| drift.change.setting == Setting::Threaded).collect();
    assert!(!threads.is_empty(), "{:?}", comparison.drifts);
    let text = threads[0].to_string();
    assert!(text.contains("threaded-napi is 1, wanted 0; threaded NAPI: the kernel thread 900"), "{text}");
    assert!(threads[0].change.command.starts_with("echo 0 > ") && !threads[0].is_set_by_apply());
}

#[test]
fn a_kernel_thread_that_cannot_be_seen_is_never_as_planned() {
    let machine = as_planned();
    machine.write("sys/class/net/eth0/threaded", "1");
    let found = unknown(&compare(&machine, &Request::default()));
    assert_eq!(found.len(), 4);
    assert!(found[0].contains("it is unknown which one polls this queue"), "{found:?}");
    assert!(found[0].contains("`echo 0 > /sys/class/net/eth0/threaded`"), "{found:?}");
}

#[test]
fn an_interrupt_that_moves_at_this_moment_is_as_planned() {
    let machine = as_planned();
    machine.write("proc/irq/29/smp_affinity_list", "0");
    let path = machine.proc().join("irq/29/smp_affinity_list");
    while_pausing(move |pauses| {
        if pauses == 4 {
            fs::write(&path, "2\n").expect("a file");
        }
    });
    assert_eq!(compare(&machine, &Request::default()), Comparison::default());
    assert_eq!(WHILE_PAUSED.take().0, 5);
}

#[test]
fn an_interrupt_that_fires_and_stays_elsewhere_differs_and_one_that_has_not_fired_yet_does_not() {
    let machine = as_planned();
    machine.write("proc/irq/29/effective_affinity_list", "0");
    fs::remove_file(machine.sys().join("kernel/irq/29/per_cpu_count")).expect("removed");
    let found = unknown(&compare(&machine, &Request::default()));
    assert!(found[0].contains("its affinity says 2, it fires on 0, and whether it moves is unknown"), "{found:?}");

    machine.write("sys/kernel/irq/29/per_cpu_count", "5,0,0,0");
    assert_eq!(compare(&machine, &Request::default()), Comparison::default(), "it moves when it fires");

    let count = machine.sys().join("kernel/irq/29/per_cpu_count");
    let fire = move |pauses: usize| fs::write(&count, format!("{},0,0,0\n", 6 + pauses)).expect("a file");
    while_pausing(fire);
    let comparison = compare(&machine, &Request::default());
    WHILE_PAUSED.take();
    let drift = only_drift(&comparison);
    let text = drift.to_string();
    assert!(text.contains("is 0 (its affinity says 2), wanted 2; it has fired since and did not move"), "{text}");

    let effective = machine.proc().join("irq/29/effective_affinity_list");
    while_pausing(move |_| fs::write(&effective, "2\n").expect("a file"));
    assert_eq!(compare(&machine, &Request::default()), Comparison::default(), "it has moved");
    WHILE_PAUSED.take();
}

#[test]
fn busy_polling_is_never_as_planned() {
    let machine = as_planned();
    let poll = |core| [BusyPoll { interface: "eth0".to_owned(), queue: 1, core }];
    let request = Request::default();
    let found = unknown(&compare_polled(&machine, &request, &Rivals::default(), &poll(3)));
    assert!(found[0].contains("queue 1: where its datagrams are processed: a program polls the queue"), "{found:?}");
    assert_eq!(compare_polled(&machine, &request, &Rivals::default(), &poll(1)), Comparison::default());

    machine.write("proc/sys/net/core/busy_read", "50");
    machine.write("proc/sys/net/core/busy_poll", "0");
    let found = unknown(&compare(&machine, &request));
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("net.core.busy_read is 50") && found[0].contains("sysctl -w"), "{found:?}");
}

#[test]
fn what_became_unreadable_is_unknown_and_a_difference_beside_it_weighs_more() {
    let machine = as_planned();
    let request = Request::default();
    machine.with_steering(&request, |steering| {
        let (host, plan) = steering.plan(&["eth0".to_owned()]).expect("a plan");
        fs::remove_file(machine.proc().join("irq/29/smp_affinity_list")).expect("removed");
        let comparison = steering.compare(&host, &plan, &Rivals::default());
        let found = unknown(&comparison);
        assert!(found[0].starts_with("eth0: queue 2: interrupt 29 virtio0-input.2: cannot read "), "{found:?}");
        machine.write("proc/irq/27/smp_affinity_list", "0");
        let comparison = steering.compare(&host, &plan, &Rivals::default());
        assert_eq!((comparison.verdict(), comparison.unknown.len()), (Verdict::Differs, 1));
    });
}

/// Every file below a folder.
fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let kind = entry.file_type().expect("a kind");
        if kind.is_dir() {
            files_below(&entry.path(), found);
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
}

#[test]
fn whichever_file_cannot_be_read_it_is_an_error_or_unknown_and_never_as_planned() {
    // These are not needed to say where datagrams of eth0 are processed: they are of loopback and of interrupts that
    // are not those of a receive queue, or only their being there counts.
    let not_needed = ["net/lo/", "per_cpu_count", "/uevent", "/config", "/msi_irqs/", "/ns/net"].map(str::to_owned);
    let of_others = [24, 26, 28, 30, 32].map(|number| format!("/proc/irq/{number}/"));
    let machine = as_planned();
    let mut files = Vec::new();
    files_below(machine.root.path(), &mut files);
    let (mut judged, mut as_planned) = (0, Vec::new());
    for path in files {
        let aside = path.with_extension("aside");
        fs::rename(&path, &aside).expect("renamed");
        fs::create_dir(&path).expect("a folder cannot be read like a file");
        let verdict = machine.with_steering(&Request::default(), |steering| {
            let (host, plan) = steering.plan(&["eth0".to_owned()]).ok()?;
            Some(steering.compare(&host, &plan, &Rivals::default()).verdict())
        });
        fs::remove_dir(&path).expect("removed");
        fs::rename(&aside, &path).expect("renamed");
        let name = path.display().to_string();
        if verdict == Some(Verdict::AsPlanned) {
            as_planned.push(name);
        } else {
            judged += 1;
        }
    }
    as_planned.retain(|name| !not_needed.iter().chain(&of_others).any(|part| name.contains(part)));
    assert_eq!(as_planned, Vec::<String>::new());
    assert!(judged > 30, "{judged} files are read");
}

#[test]
fn a_plan_is_compared_with_the_interface_of_its_name_in_whatever_order_they_are() {
    let machine = as_planned();
    let host = machine.read(&["eth0"]).expect("a host");
    let drifts = machine.with_steering(&Request::default(), |steering| {
        let mut plan = Plan::new(&host, &host.topology.online, &Request::default()).expect("a plan");
        let other =
            crate::plan::InterfacePlan { name: "eth9".to_owned(), wanted: Vec::new(), ..plan.interfaces[0].clone() };
        plan.interfaces.insert(0, other);
        machine.write("sys/class/net/eth0/queues/rx-2/rps_cpus", "00000003");
        steering.compare(&host, &plan, &Rivals::default()).drifts.len()
    });
    assert_eq!(drifts, 1);
}

#[test]
fn a_managed_interrupt_that_fires_elsewhere_than_a_running_receiver_expects_is_a_doubt() {
    let machine = Machine::named("managed-interrupts-igc");
    let request = Request::default();
    let plan = machine.with_steering(&request, |steering| steering.plan(&["eth0".to_owned()]).expect("a plan").1);
    let mut seats = plan.interfaces[0].all_seats();
    let managed = seats.iter().position(|seat| seat.why.contains("the kernel manages")).expect("a managed interrupt");
    let doubts = |seats: &[crate::plan::QueueSeat]| {
        let request = Request { seated: [("eth0".to_owned(), seats.to_vec())].into(), ..Request::default() };
        let unknown = compare(&machine, &request).unknown;
        unknown.into_iter().map(|unknown| (unknown.queue, unknown.what, unknown.why)).collect::<Vec<_>>()
    };
    assert_eq!(doubts(&seats), []);
    let fires = seats[managed].interrupt_core.expect("a core");
    seats[managed].interrupt_core = Some(fires + 1);
    let why = format!(
        "the kernel manages its interrupt, which fires on core {fires}, and the running receiver {} expects its \
         datagrams on core {}",
        seats[managed].receiver,
        fires + 1
    );
    assert_eq!(doubts(&seats), [(Some(managed), "where its datagrams are processed".to_owned(), why)]);
    seats[managed].rps_cores = vec![1, 2];
    assert_eq!(doubts(&seats), [], "RPS brings them where they are expected");
}

#[test]
fn a_wait_below_a_microsecond_is_told_as_it_would_be_set() {
    let machine = Machine::named("unknown-driver");
    let request = Request { coalesce: Some(std::time::Duration::from_nanos(500)), ..Request::default() };
    let unknown = compare(&machine, &request).unknown;
    let asks = |unknown: &&Unknown| unknown.why.starts_with("the request asks for 1 us");
    assert_eq!(unknown.iter().filter(asks).count(), 1, "{unknown:?}");
}
