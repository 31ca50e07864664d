//! Tests of reading a host, on machines that are described in tests/trees. What is read of each is shown as a text that
//! a person has reviewed; the tests below it say what must not be got wrong.

use super::{BusyPoll, ReadError};
use std::fmt::Write as _;

use crate::corelist::format_core_list;
use crate::model::{Host, Kind, Known, Source, WorkBy};
use crate::testing::{Machine, all_machines, assert_reviewed};

/// A host as text.
fn show(host: &Host) -> String {
    let mut text = String::new();
    let topology = &host.topology;
    let list = |cores: &[usize]| format_core_list(cores);
    writeln!(text, "cores online {}, isolated {:?}", list(&topology.online), list(&topology.isolated)).unwrap();
    for &core in &topology.online {
        let of = |map: &std::collections::BTreeMap<usize, usize>| map.get(&core).map_or("?".into(), usize::to_string);
        let node = of(&topology.node_of_core);
        let (physical, cache) = (of(&topology.physical_of_core), of(&topology.cache_of_core));
        writeln!(text, "  core {core}: node {node}, physical {physical}, cache {cache}").unwrap();
    }
    for interface in &host.interfaces {
        let node = interface.node.map_or("?".to_owned(), |node| node.to_string());
        let driver = interface.driver.get().map_or("?", String::as_str);
        let (name, kind) = (&interface.name, &interface.kind);
        writeln!(text, "{name}: {kind:?}, driver {driver}, node {node}, up {}", interface.is_up).unwrap();
        for queue in &interface.queues {
            let interrupt = match &queue.interrupt {
                Known::Is(interrupt) => format!(
                    "irq {} {:?} on {} (asked {}, {:?}{})",
                    interrupt.number,
                    interrupt.name,
                    list(&interrupt.effective),
                    list(&interrupt.requested),
                    interrupt.source,
                    if interrupt.is_settable { "" } else { ", managed" }
                ),
                Known::NotSupported => "no irq".to_owned(),
                Known::Unknown(reason) => format!("irq unknown: {reason}"),
            };
            let work = match &queue.work {
                Known::Is(work) => format!("{:?} on {}", work.by, list(&work.cores)),
                other => format!("{:?}", other.get().is_some()),
            };
            writeln!(text, "  queue {}: {interrupt}; work: {work}", queue.index).unwrap();
        }
    }
    text
}

#[test]
fn every_machine_is_read_as_it_was_reviewed() {
    for name in all_machines() {
        let host = Machine::named(&name).read(&[]).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_reviewed(&format!("{name}.host"), &show(&host));
    }
}

#[test]
fn an_interface_that_does_not_exist_is_named_with_those_that_do() {
    let error = Machine::named("vm-virtio-single").read(&["eth7"]).expect_err("no such interface");
    assert_eq!(error.to_string(), "there is no interface eth7; this host has eth0, lo");
    assert!(matches!(error, ReadError::NoInterface { .. }));
    assert!(Machine::named("vm-virtio-single").read(&["../net/eth0"]).is_err(), "a path is not a name");
}

#[test]
fn the_interrupts_of_a_virtio_device_are_those_of_its_parent() {
    let host = Machine::named("vm-virtio-single").read(&["eth0"]).expect("a host");
    let interface = &host.interfaces[0];
    let interrupt = interface.queues[0].interrupt.get().expect("an interrupt");
    assert_eq!((interrupt.number, interrupt.source), (38, Source::DriverName));
    assert_eq!(interface.node, Some(0), "node -1 is unknown, and with one node there is nothing to guess");
}

#[test]
fn a_program_that_polls_beats_the_interrupt_and_rps_comes_after_it() {
    let machine = Machine::named("virtio-multi");
    let polls = [BusyPoll { interface: "eth0".to_owned(), queue: 1, core: 3 }];
    machine.write("sys/class/net/eth0/queues/rx-2/rps_cpus", "0000000c");
    let host = machine.read_polled(&["eth0"], &polls).expect("a host");
    let work = |queue: usize| host.interfaces[0].queues[queue].work.get().expect("known").clone();
    assert_eq!((work(0).by, work(1).by, work(2).by), (WorkBy::Interrupt, WorkBy::BusyPoll, WorkBy::Rps));
    assert_eq!((work(1).cores, work(2).cores), (vec![3], vec![2, 3]));
}

#[test]
fn bonds_bridges_and_vlans_are_seen_with_what_is_below_them() {
    let mut machine = Machine::unpack("sys/devices/system/cpu/online = 0-1");
    let files = [
        "bond0/1fs = x",
        "bond0/bonding/slaves = eth0 eth1",
        "bond0/lower_eth0 = x",
        "bond0/lower_eth1 = x",
        "br0/bridge/x = x",
        "v7/uevent = DEVTYPE=vlan",
        "v7/lower_eth0 = x",
        "wlan0/phy80211/x = x",
    ];
    files.iter().for_each(|file| machine.add(&format!("sys/class/net/{file}")).expect("a file"));
    for (index, name) in (4..).zip(["bond0", "br0", "v7", "wlan0", "dummy0"]) {
        machine.write(&format!("sys/class/net/{name}/ifindex"), &format!("{index}"));
        machine.write(&format!("sys/class/net/{name}/flags"), "0x1003");
    }
    let host = machine.read(&["bond0", "br0", "v7", "wlan0", "dummy0"]).expect("a host");
    let kinds: Vec<&Kind> = host.interfaces.iter().map(|interface| &interface.kind).collect();
    let nothing = Kind::Virtual("no device behind it".to_owned());
    assert_eq!(kinds, [&Kind::Bond, &Kind::Bridge, &Kind::Vlan, &Kind::Wireless, &nothing]);
    assert_eq!(host.interfaces[0].members, ["eth0", "eth1"]);
    assert_eq!(host.interfaces[2].members, ["eth0"]);
}

#[test]
fn this_machine_is_read_without_privileges() {
    let ethtool = crate::ethtool::Ioctl::new().expect("a socket");
    let reader = crate::Reader {
        sys_root: std::path::Path::new("/sys"),
        proc_root: std::path::Path::new("/proc"),
        ethtool: &ethtool,
        netdev: &crate::Netlink,
        busy_polls: &[],
    };
    let host = reader.read(&["lo".to_owned()]).expect("every machine has loopback");
    assert_eq!(host.interfaces[0].kind, Kind::Loopback);
    assert!(!host.topology.online.is_empty());
    let physical = reader.physical_interfaces().expect("sysfs lists them");
    for interface in reader.read(&physical).expect("they are there").interfaces {
        assert!(!interface.queues.is_empty(), "{interface:?}");
    }
}

#[test]
fn what_sysfs_refuses_to_tell_is_an_error_with_its_path() {
    for path in
        ["class/net/eth0/queues/rx-1/rps_cpus", "class/net/eth0/queues/tx-1/xps_cpus", "class/net/eth0/threaded"]
    {
        let machine = Machine::named("virtio-multi");
        let file = machine.sys().join(path);
        let _ = std::fs::remove_file(&file);
        std::fs::create_dir(&file).expect("a folder, which cannot be read as a file");
        let error = machine.read(&["eth0"]).expect_err(path);
        assert!(error.to_string().contains(path), "{error}");
    }
}

#[test]
fn a_kernel_that_fails_to_tell_of_queues_is_part_of_the_reason() {
    struct Broken;
    impl crate::Netdev for Broken {
        fn receive_queues(&self, _interface: u32) -> std::io::Result<Vec<crate::NetdevQueue>> {
            Err(std::io::Error::from_raw_os_error(libc::ENOBUFS))
        }

        fn links(&self) -> std::io::Result<Vec<crate::Link>> {
            Err(std::io::Error::from_raw_os_error(libc::ENOBUFS))
        }
    }
    let machine = Machine::named("unknown-driver");
    let host = machine.with_reader(&[], |reader| {
        let reader = crate::Reader { netdev: &Broken, ..reader };
        reader.read(&reader.physical_interfaces().expect("one")).expect("a host")
    });
    let Known::Unknown(reason) = &host.interfaces[0].queues[0].interrupt else { panic!("{host:?}") };
    assert!(reason.contains("No buffer space available"), "{reason}");
}

#[test]
fn only_a_thread_of_the_whole_name_polls_a_queue_whatever_else_is_called_alike() {
    let tree = std::fs::read_to_string(crate::testing::trees().join("threaded-napi.tree")).expect("a tree");
    let tree = tree.replace(" thread {n+900}", "");
    let machine = Machine::unpack(&format!("{tree}\nproc/7/comm = n\nproc/8/comm = napi/eth0\n"));
    let host = machine.read(&["eth0"]).expect("a host");
    let by: Vec<WorkBy> = host.interfaces[0].queues.iter().map(|queue| queue.work.get().expect("known").by).collect();
    assert_eq!(by, [WorkBy::Thread(900), WorkBy::Thread(901)]);
}
