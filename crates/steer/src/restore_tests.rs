//! Tests of restoring, on unpacked machines that tests have changed meanwhile.

use std::fs;

use super::*;
use crate::host::Reader;
use crate::plan::{Amount, Request};
use crate::steering_rig::{Rig, machines, request, state};

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
        assert!(rig.saved().is_empty(), "{name}");
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
    assert_eq!(restored.failures, Vec::<String>::new());
    let [note] = restored.notes.as_slice() else { panic!("one interrupt is gone: {restored:?}") };
    assert!(note.contains("eth0-TxRx-1"), "{note}");
    assert!(rig.saved().is_empty(), "there is nothing left to put anything back to");
}

#[test]
fn an_interrupt_that_an_interface_has_given_back_while_it_is_down_stays_saved() {
    let rig = Rig::new("two-socket-smt-ixgbe");
    let before = state(&rig.machine);
    rig.apply(&Request::default()).expect("applied");
    let (sys, away) = (rig.machine.sys(), rig.machine.root.path().join("away"));
    fs::write(sys.join("class/net/eth0/flags"), "0x1002\n").expect("a file");
    fs::rename(sys.join("kernel/irq/101"), &away).expect("given back");
    let restored = rig.restore();
    assert_eq!((restored.failures.len(), restored.notes.len()), (1, 0), "{restored:?}");
    assert!(restored.failures[0].contains("eth0-TxRx-1"), "{restored:?}");
    assert_eq!(rig.saved(), ["eth0"]);
    fs::write(sys.join("class/net/eth0/flags"), "0x1003\n").expect("a file");
    fs::rename(&away, sys.join("kernel/irq/101")).expect("asked for again");
    assert_eq!(rig.restore().failures, Vec::<String>::new());
    assert_eq!(state(&rig.machine), before);
}

#[test]
fn a_table_that_names_queues_that_are_gone_becomes_the_drivers_own() {
    let mut rig = Rig::new("two-socket-smt-ixgbe");
    let device = |rig: &Rig, change: fn(&mut crate::ethtool::fake::State)| {
        change(rig.machine.ethtool.states.borrow_mut().get_mut("eth0").expect("a device"));
    };
    // As after `ethtool -L eth0 combined 2` on a driver that keeps its default table, and refuses it from others.
    device(&rig, |state| state.channels.as_mut().expect("channels").combined = 2);
    rig.machine.ethtool.refuses_queues_that_are_gone = true;
    rig.apply(&Request { rx_queues: Amount::Max, ..request() }).expect("applied");
    let restored = rig.restore();
    assert_eq!(restored.failures, Vec::<String>::new());
    let [note] = restored.notes.as_slice() else { panic!("the table: {restored:?}") };
    assert!(note.contains("indirection") && note.contains("there are 2"), "{note}");
    assert!(rig.saved().is_empty());
    let states = rig.machine.ethtool.states.borrow();
    assert_eq!(states["eth0"].channels.expect("channels").combined, 2);
    assert_eq!(states["eth0"].rss.clone().expect("a table").indirection[..4], [0, 1, 0, 1]);
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
        let wish = RestoreWish { interfaces: &[], forget: false, unban: &mut |_| Ok(()) };
        Steering { reader, allowed: &allowed, request: &request, rounded: &[] }.restore(wish, &mut rig.lock(), |_| ())
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
    rig.machine.kernel_sees_what_sysfs_shows();
    assert_eq!(rig.restore().failures, Vec::<String>::new());
    fs::rename(&new, &old).expect("renamed");
    rename("lan0", "eth0");
    assert_eq!(state(&rig.machine), before);
    assert!(rig.saved().is_empty());
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
        assert_eq!(rig.saved(), ["eth0"], "what was is still known");
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

#[test]
fn an_interrupt_that_only_the_kernel_names_is_saved_and_put_back() {
    // Not among the device's own vectors, as a line of a device that is not on PCI.
    let mut rig = Rig::new("two-socket-smt-ixgbe");
    let (sys, proc) = (rig.machine.sys(), rig.machine.proc());
    fs::create_dir_all(sys.join("kernel/irq/300")).expect("a folder");
    fs::write(sys.join("kernel/irq/300/actions"), "eth0-line,usb1\n").expect("a file");
    fs::create_dir_all(proc.join("irq/300")).expect("a folder");
    fs::write(proc.join("irq/300/smp_affinity_list"), "0-31\n").expect("a file");
    rig.machine.add("netdev 2 = queue 0 napi 257 irq 300").expect("a queue");
    let before = state(&rig.machine);
    let moved = rig.apply(&Request::default()).expect("applied");
    assert!(moved.iter().any(|change| change.command.contains("/irq/300/")), "{moved:?}");
    assert_eq!(rig.restore().failures, Vec::<String>::new());
    assert_eq!(state(&rig.machine), before);
}

#[test]
fn an_interface_that_is_gone_stays_saved_until_it_is_given_up() {
    let rig = Rig::new("two-socket-smt-ixgbe");
    rig.apply(&request()).expect("applied");
    let file = rig.file();
    fs::remove_dir_all(rig.machine.sys().join("class/net/eth0")).expect("removed");
    rig.machine.ethtool.states.borrow_mut().remove("eth0");
    rig.machine.kernel_sees_what_sysfs_shows();
    let restored = rig.restore();
    let [failure] = restored.failures.as_slice() else { panic!("one is gone: {restored:?}") };
    assert!(failure.starts_with("eth0 (interface 2 ") && failure.contains(" is gone"), "{failure}");
    assert!(failure.ends_with(&format!("{} stays", file.display())), "{failure}");
    assert_eq!(rig.try_restore(&["eth1"], true).expect("the folder"), Restored::default(), "another one");
    assert_eq!(rig.saved(), ["eth0"]);
    let restored = rig.try_restore(&["eth0"], true).expect("the folder");
    assert_eq!((restored.failures.len(), restored.notes.len()), (0, 1), "{restored:?}");
    assert!(rig.saved().is_empty());
}

#[test]
fn a_journal_that_is_of_no_use_does_not_keep_the_others_from_being_restored() {
    let rig = Rig::new("two-socket-smt-ixgbe");
    let before = state(&rig.machine);
    rig.apply(&request()).expect("applied");
    let damaged = rig.journal.folder().join("eth9.9.77.saved");
    fs::write(&damaged, "no journal\n").expect("a file");
    let restored = rig.restore();
    assert_eq!(state(&rig.machine), before);
    assert_eq!(rig.saved(), ["eth9"]);
    let [failure] = restored.failures.as_slice() else { panic!("one is damaged: {restored:?}") };
    assert_eq!(*failure, format!("{0} is damaged: nothing is restored from it; {0} stays", damaged.display()));
    assert_eq!(rig.try_restore(&["eth9"], true).expect("the folder").failures, Vec::<String>::new());
    assert!(rig.saved().is_empty());
}

#[test]
fn what_was_kept_from_irqbalance_is_given_back_when_all_else_is() {
    let rig = Rig::new("two-socket-smt-ixgbe");
    let keep = |numbers: &[u32]| {
        rig.with(&request(), |steering| {
            let (host, _) = steering.plan(&["eth0".to_owned()]).expect("a plan");
            steering.save_ban(&host.interfaces[0], numbers, &mut rig.lock()).expect("saved");
        });
    };
    keep(&[100, 101]);
    rig.apply(&Request::default()).expect("applied");
    keep(&[101, 102]);
    rig.with(&request(), |steering| {
        let (host, _) = steering.plan(&["eth0".to_owned()]).expect("a plan");
        let new = steering.save_ban(&host.interfaces[0], &[102, 103], &mut rig.lock()).expect("saved");
        assert_eq!(new, [103]);
        steering.forget_ban(&host.interfaces[0], &new, &mut rig.lock()).expect("saved: irqbalance refused");
    });
    let restore = |answer: Result<(), String>| {
        let mut asked = Vec::new();
        let mut unban = |numbers: &[u32]| {
            asked.push(numbers.to_vec());
            answer.clone()
        };
        let wish = RestoreWish { interfaces: &[], forget: false, unban: &mut unban };
        let restored = rig.with(&request(), |steering| steering.restore(wish, &mut rig.lock(), |_| ()));
        (asked, restored.expect("the folder").failures.len())
    };
    assert_eq!(restore(Err("nobody answers".to_owned())), (vec![vec![100, 101, 102]], 1));
    assert_eq!(rig.saved(), ["eth0"], "it is still kept from irqbalance");
    assert_eq!(restore(Ok(())), (vec![vec![100, 101, 102]], 0));
    assert!(rig.saved().is_empty());
}

#[test]
fn killed_between_any_two_changes_everything_is_put_back() {
    let steps = Rig::new("two-socket-smt-ixgbe").apply(&request()).expect("applied").len();
    assert!(steps >= 10, "{steps}");
    for step in 0..steps {
        let rig = Rig::new("two-socket-smt-ixgbe");
        let before = state(&rig.machine);
        let die_after = |count: usize| {
            let mut left = count;
            move |_: &Change| {
                assert!(left > 0, "killed, for the test");
                left -= 1;
            }
        };
        let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let wish = request();
            rig.with(&wish, |steering| steering.apply(&["eth0".to_owned()], &mut rig.lock(), die_after(step)))
        }));
        assert!(killed.is_err());
        assert_eq!(rig.saved(), ["eth0"], "after {step} changes");
        let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let wish = RestoreWish { interfaces: &[], forget: false, unban: &mut |_| Ok(()) };
            rig.with(&request(), |steering| steering.restore(wish, &mut rig.lock(), die_after(step / 2)))
        }));
        assert!(killed.is_err());
        assert_eq!(rig.saved(), ["eth0"], "a restore that is killed forgets nothing");
        assert_eq!(rig.restore().failures, Vec::<String>::new());
        assert_eq!(state(&rig.machine), before, "after {step} changes");
        assert!(rig.saved().is_empty());
    }
}
