//! Tests of applying and restoring, on unpacked machines: files for the interrupts, a device in memory for the rest.

use std::collections::BTreeMap;
use std::fs;

use super::*;
use crate::ethtool::FlowHash;
use crate::plan::Amount;
use crate::testing::{Machine, all_machines};

fn request() -> Request {
    Request {
        rx_queues: Amount::Max,
        ring: Amount::Max,
        flow_hash_udp: Some(FlowHash::ADDRESSES_AND_PORTS),
        ..Request::default()
    }
}

/// Everything on a machine that can be set, as it is.
fn state(machine: &Machine) -> (BTreeMap<String, String>, String) {
    let mut files = BTreeMap::new();
    for folder in ["proc/irq", "sys/class/net/eth0/queues"] {
        for entry in fs::read_dir(machine.root.path().join(folder)).expect("a folder").flatten() {
            for file in ["smp_affinity_list", "rps_cpus", "xps_cpus"] {
                let path = entry.path().join(file);
                if let Ok(text) = fs::read_to_string(&path) {
                    files.insert(path.display().to_string(), text);
                }
            }
        }
    }
    // Whether somebody has set the table is nothing that anybody can read back.
    let devices = format!("{:?}", machine.ethtool.states.borrow());
    (files, devices.replace("table_is_set: true", "table_is_set: false"))
}

struct Rig {
    machine: Machine,
    journal: Journal,
    _folder: tempfile::TempDir,
}

impl Rig {
    fn new(machine: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let journal = Journal::in_folder(folder.path().join("steer"));
        Self { machine: Machine::named(machine), journal, _folder: folder }
    }

    fn with<T>(&self, request: &Request, body: impl FnOnce(Steering<'_>) -> T) -> T {
        let (sys, proc) = (self.machine.sys(), self.machine.proc());
        let reader = Reader {
            sys_root: &sys,
            proc_root: &proc,
            ethtool: &self.machine.ethtool,
            netdev: &self.machine.netdev,
            busy_polls: &[],
        };
        let allowed = crate::Topology::read(&sys).expect("a topology").online;
        body(Steering { reader, allowed: &allowed, request })
    }

    fn apply(&self, request: &Request) -> Result<Vec<Change>, ApplyError> {
        self.with(request, |steering| steering.apply(&["eth0".to_owned()], &self.journal, |_| ()))
    }

    fn restore(&self) -> Restored {
        self.with(&request(), |steering| steering.restore(&[], &self.journal, |_| ())).expect("the journal is readable")
    }
}

/// The machines whose interface is eth0 and whose plan exists.
fn machines() -> Vec<String> {
    let is_ours = |name: &String| Machine::named(name).sys().join("class/net/eth0").exists();
    all_machines().into_iter().filter(is_ours).collect()
}

#[test]
fn settings_are_applied_in_the_order_in_which_drivers_forget() {
    let rig = Rig::new("two-socket-smt-ixgbe");
    let changes = rig.apply(&request()).expect("applied");
    let settings: Vec<&Setting> = changes.iter().map(|change| &change.setting).collect();
    let mut sorted = settings.clone();
    sorted.sort();
    assert_eq!(settings, sorted);
    assert_eq!(settings[..3], [&Setting::Channels, &Setting::Rings, &Setting::Indirection]);
    assert!(changes.iter().all(Change::is_as_wanted), "{changes:?}");
    assert_eq!(changes[0].command, "ethtool -L eth0 combined 16");
}

#[test]
fn applying_twice_writes_nothing_the_second_time() {
    for name in machines() {
        for request in [Request::default(), request()] {
            let rig = Rig::new(&name);
            let Ok(_) = rig.apply(&request) else { continue };
            let after_first = state(&rig.machine);
            rig.machine.ethtool.log.borrow_mut().clear();
            assert_eq!(rig.apply(&request).expect("still possible"), [], "{name}");
            assert!(rig.machine.ethtool.log.borrow().is_empty(), "{name}");
            assert_eq!(state(&rig.machine), after_first, "{name}");
        }
    }
}

#[test]
fn restoring_brings_everything_back_byte_for_byte() {
    for name in machines() {
        let rig = Rig::new(&name);
        let before = state(&rig.machine);
        if rig.apply(&request()).is_err() {
            continue;
        }
        assert_eq!(rig.restore().failures, Vec::<String>::new(), "{name}");
        assert_eq!(state(&rig.machine), before, "{name}");
        assert!(rig.journal.interfaces().expect("the folder").is_empty(), "{name}");
    }
}

#[test]
fn stopped_at_any_change_it_is_restored_to_what_was() {
    // A setting that fails is where a kill would have been: nothing after it happens.
    let total = Rig::new("two-socket-smt-ixgbe").apply(&request()).expect("applied").len();
    let mut stopped = 0;
    for allowed in 0..total {
        let rig = Rig::new("two-socket-smt-ixgbe");
        let before = state(&rig.machine);
        *rig.machine.ethtool.settings_left.borrow_mut() = Some(allowed);
        stopped += usize::from(rig.apply(&request()).is_err());
        // A second apply after the crash must not take the half-changed host for what was.
        let _ = rig.apply(&request());
        *rig.machine.ethtool.settings_left.borrow_mut() = None;
        assert_eq!(rig.restore().failures, Vec::<String>::new());
        assert_eq!(state(&rig.machine), before, "stopped after {allowed}");
    }
    assert!(stopped >= 5, "channels, rings, table and two hashes can each be refused: {stopped}");
}

#[test]
fn a_driver_that_takes_something_else_is_told() {
    let mut rig = Rig::new("two-socket-smt-ixgbe");
    rig.machine.ethtool.rounds_ring_to = Some(2048);
    let changes = rig.apply(&request()).expect("applied");
    let ring = changes.iter().find(|change| change.setting == Setting::Rings).expect("the ring");
    assert_eq!((ring.to.as_str(), ring.now.as_deref()), ("4096 512", Some("2048 512")));
    assert!(!ring.is_as_wanted());
}

#[test]
fn fewer_queues_than_a_table_names_are_set_all_the_same() {
    let rig = Rig::new("two-socket-smt-ixgbe");
    let fewer = Request { rx_queues: Amount::Number(2), ..Request::default() };
    rig.with(&fewer, |steering| steering.reader.set("eth0", &Setting::Indirection, "0,7"))
        .expect("a table of the administrator's own");
    rig.machine.ethtool.log.borrow_mut().clear();
    let changes = rig.apply(&fewer).expect("applied");
    assert_eq!((changes[0].setting.clone(), changes[0].to.as_str()), (Setting::Channels, "0 0 0 2"));
    let log = rig.machine.ethtool.log.borrow();
    assert_eq!(log[..2], ["eth0: indirection None", "eth0: channels rx 0 combined 2"]);
}

#[test]
fn without_the_right_nothing_is_changed() {
    let rig = Rig::new("two-socket-smt-ixgbe");
    let before = state(&rig.machine);
    fs::create_dir_all(rig.machine.proc().join("self")).expect("a folder");
    fs::write(rig.machine.proc().join("self/status"), "CapEff:\t0000000000000000\n").expect("a file");
    let error = rig.apply(&request()).expect_err("no capability");
    assert!(matches!(error, ApplyError::Permission(_)) && error.to_string().contains("CAP_NET_ADMIN"), "{error}");
    assert_eq!(state(&rig.machine), before);
    assert!(rig.journal.interfaces().expect("the folder").is_empty());
}

#[test]
fn an_interrupt_with_a_new_number_is_found_by_its_name_and_one_that_is_gone_is_said() {
    let rig = Rig::new("two-socket-smt-ixgbe");
    rig.apply(&Request::default()).expect("applied");
    let (sys, proc) = (rig.machine.sys(), rig.machine.proc());
    fs::rename(sys.join("kernel/irq/100"), sys.join("kernel/irq/200")).expect("renamed");
    fs::write(sys.join("devices/pci/0000:81:00.0/msi_irqs/200"), "msix\n").expect("one of the device's own");
    fs::rename(proc.join("irq/100"), proc.join("irq/200")).expect("renamed");
    fs::remove_dir_all(sys.join("kernel/irq/101")).expect("removed");
    let restored = rig.restore();
    assert_eq!(fs::read_to_string(proc.join("irq/200/smp_affinity_list")).expect("a file"), "0\n");
    assert_eq!(restored.failures.len(), 1, "{restored:?}");
    assert!(restored.failures[0].contains("eth0-TxRx-1"), "{restored:?}");
    assert_eq!(rig.journal.interfaces().expect("the folder"), ["eth0"], "what could not be put back stays saved");
}

#[test]
fn whatever_the_host_only_what_is_planned_is_written() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 20) as usize % below
    };
    let names = machines();
    for _ in 0..if cfg!(debug_assertions) { 40 } else { 500 } {
        let rig = Rig::new(&names[next(names.len())]);
        let numbers = crate::topology::try_numbered(&rig.machine.proc().join("irq"), "").expect("a folder");
        let core = format!("{}\n", next(4));
        let number = numbers[next(numbers.len())];
        let path = rig.machine.proc().join(format!("irq/{number}/smp_affinity_list"));
        let _ = fs::write(path, core);
        let amounts = [Amount::Keep, Amount::Max, Amount::Number(u32::try_from(next(20)).expect("small"))];
        let request = Request { rx_queues: amounts[next(3)], ring: amounts[next(3)], ..Request::default() };
        let before = state(&rig.machine).0;
        let Ok(changes) = rig.apply(&request) else { continue };
        let after = state(&rig.machine).0;
        for (path, value) in after.iter().filter(|(path, value)| before.get(*path) != Some(value)) {
            let planned = changes.iter().any(|change| change.command == format!("echo {} > {path}", value.trim()));
            assert!(planned, "{path} became {value} and no change says so: {changes:?}");
        }
        let told = rig.machine.ethtool.log.borrow().iter().filter(|line| !line.contains("indirection None")).count();
        assert_eq!(told, changes.iter().filter(|change| change.setting <= Setting::FlowHashV6).count());
    }
}

#[test]
fn a_device_without_rss_that_says_it_hashes_nothing_is_not_told_to() {
    let rig = Rig::new("vm-virtio-single");
    // virtio_net without RSS answers the question, and refuses every setting with EINVAL.
    rig.machine.ethtool.states.borrow_mut().get_mut("eth0").expect("a device").hash_v4 = Some(FlowHash(0));
    let (_, plan) = rig.with(&request(), |steering| steering.plan(&["eth0".to_owned()])).expect("a plan");
    let part = &plan.interfaces[0];
    let asks = |wanted: &crate::plan::Wanted| matches!(wanted.target, crate::plan::Target::FlowHash(..));
    assert!(!part.wanted.iter().any(asks), "{plan}");
    assert!(part.notes.iter().any(|note| note.text.contains("hashes nothing")), "{plan}");
}

#[test]
fn a_table_that_was_the_drivers_own_is_the_drivers_own_again() {
    let rig = Rig::new("two-socket-smt-ixgbe");
    let is_set = || rig.machine.ethtool.states.borrow()["eth0"].table_is_set;
    assert!(!is_set());
    let fewer = Request { rx_queues: Amount::Number(2), ..request() };
    rig.apply(&fewer).expect("applied");
    rig.with(&fewer, |steering| steering.reader.set("eth0", &Setting::Indirection, &["0", "1"].repeat(64).join(",")))
        .expect("a table that somebody set");
    assert!(is_set());
    assert_eq!(rig.restore().failures, Vec::<String>::new());
    assert!(!is_set(), "or the kernel refuses fewer queues from now on, and new ones get no share");
}

#[test]
fn what_cannot_be_read_just_now_is_not_taken_for_gone() {
    let rig = Rig::new("two-socket-smt-ixgbe");
    let before = state(&rig.machine);
    rig.apply(&request()).expect("applied");
    let online = rig.machine.sys().join("devices/system/cpu/online");
    let text = fs::read(&online).expect("a file");
    fs::write(&online, "nonsense").expect("a file");
    let restored = {
        let allowed = [0];
        let (sys, proc) = (rig.machine.sys(), rig.machine.proc());
        let (ethtool, netdev) = (&rig.machine.ethtool, &rig.machine.netdev);
        let reader = Reader { sys_root: &sys, proc_root: &proc, ethtool, netdev, busy_polls: &[] };
        let request = request();
        Steering { reader, allowed: &allowed, request: &request }.restore(&[], &rig.journal, |_| ())
    };
    assert_eq!(restored.expect("a journal").failures, Vec::<String>::new(), "what is read of cores is not needed");
    fs::write(&online, text).expect("a file");
    assert_eq!(state(&rig.machine), before);
}

#[test]
fn a_renamed_interface_is_put_back_under_its_new_name() {
    let rig = Rig::new("two-socket-smt-ixgbe");
    let before = state(&rig.machine);
    rig.apply(&request()).expect("applied");
    let (old, new) = (rig.machine.sys().join("class/net/eth0"), rig.machine.sys().join("class/net/lan0"));
    let rename = |from: &str, to: &str| {
        let device = rig.machine.ethtool.states.borrow_mut().remove(from).expect("a device");
        rig.machine.ethtool.states.borrow_mut().insert(to.to_owned(), device);
    };
    fs::rename(&old, &new).expect("renamed");
    rename("eth0", "lan0");
    assert_eq!(rig.restore().failures, Vec::<String>::new());
    fs::rename(&new, &old).expect("renamed");
    rename("lan0", "eth0");
    assert_eq!(state(&rig.machine), before);
    assert!(rig.journal.interfaces().expect("the folder").is_empty());
}

#[test]
fn a_setting_that_cannot_be_read_is_an_error_and_never_as_planned() {
    let rig = Rig::new("two-socket-smt-ixgbe");
    let wish = request();
    rig.with(&wish, |steering| {
        let (host, plan) = steering.plan(&["eth0".to_owned()]).expect("a plan");
        let all = steering.changes(&host, &plan).expect("everything is readable");
        let mut failed = 0;
        for readings in 0..20 {
            *rig.machine.ethtool.readings_left.borrow_mut() = Some(readings);
            match steering.changes(&host, &plan) {
                Ok(changes) => assert_eq!(changes.len(), all.len(), "after {readings} readings"),
                Err(error) => {
                    failed += 1;
                    assert!(error.to_string().starts_with("cannot read "), "{error}");
                }
            }
        }
        // The commands read too, to show what an administrator would type; that may fail without harm.
        assert!(failed >= 5, "channels, ring, table and two hashes are read: {failed}");
    });
}

#[test]
fn whichever_reading_fails_what_is_changed_can_be_put_back() {
    let mut refused = 0;
    let rig = Rig::new("two-socket-smt-ixgbe");
    let before = state(&rig.machine);
    for readings in 0..40 {
        *rig.machine.ethtool.readings_left.borrow_mut() = Some(readings);
        refused += usize::from(rig.apply(&request()).is_err());
        *rig.machine.ethtool.readings_left.borrow_mut() = None;
        assert_eq!(rig.restore().failures, Vec::<String>::new(), "after {readings} readings");
        assert_eq!(state(&rig.machine), before, "after {readings} readings");
    }
    assert!(refused >= 10, "what is planned and what is saved is read: {refused}");
}

#[test]
fn interfaces_that_cannot_be_listed_are_not_taken_for_gone() {
    let spoilers: [fn(&std::path::Path); 3] = [
        |net| fs::rename(net, net.with_extension("away")).expect("as with /sys unmounted"),
        |net| fs::write(net.join("eth0/ifindex"), "nonsense").expect("a number that is none"),
        |net| fs::remove_file(net.join("eth0/ifindex")).expect("a number that is not there"),
    ];
    for spoil in spoilers {
        let rig = Rig::new("two-socket-smt-ixgbe");
        rig.apply(&request()).expect("applied");
        let after = state(&rig.machine).1;
        spoil(&rig.machine.sys().join("class/net"));
        let restored = rig.restore();
        assert_eq!(restored.failures.len(), 1, "{restored:?}");
        assert!(restored.failures[0].starts_with("cannot tell whether eth0 is still there: "), "{restored:?}");
        assert_eq!(rig.journal.interfaces().expect("the folder"), ["eth0"], "what was is still known");
        assert_eq!(
            format!("{:?}", rig.machine.ethtool.states.borrow()).replace("table_is_set: true", "table_is_set: false"),
            after
        );
    }
}

#[test]
fn an_interrupt_line_that_devices_share_is_put_back_too() {
    let rig = Rig::new("two-socket-smt-ixgbe");
    let actions = rig.machine.sys().join("kernel/irq/100/actions");
    let name = fs::read_to_string(&actions).expect("a file");
    fs::write(&actions, format!("{},another-device\n", name.trim())).expect("a file");
    let before = state(&rig.machine);
    let moved = rig.apply(&Request::default()).expect("applied");
    assert!(moved.iter().any(|change| change.command.contains("/irq/100/")), "{moved:?}");
    assert_eq!(rig.restore().failures, Vec::<String>::new());
    assert_eq!(state(&rig.machine), before);
}
