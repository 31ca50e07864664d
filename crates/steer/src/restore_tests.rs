//! Tests of restoring, on unpacked machines that tests have changed meanwhile.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;
use crate::ethtool::Ethtool;
use crate::netdev::Link;
use crate::plan::{Amount, Request};
use crate::testing::Random;
use crate::testing::driver::STEP;
use crate::testing::rig::{Rig, machines, request};

#[test]
fn restoring_brings_everything_back_byte_for_byte() {
    for name in machines() {
        let rig = Rig::new(&name);
        let before = rig.state();
        if rig.apply(&request()).is_err() {
            continue;
        }
        rig.restore_to(&before);
    }
}

#[test]
fn stopped_at_any_change_it_is_restored_to_what_was() {
    // A setting that fails is where a kill would have been: nothing after it happens.
    let total = Rig::ixgbe().apply(&request()).expect("applied").len();
    let mut stopped = 0;
    for allowed in 0..total {
        let rig = Rig::ixgbe();
        let before = rig.state();
        rig.allow_settings(Some(allowed));
        stopped += usize::from(rig.apply(&request()).is_err());
        // A second apply after the crash must not take the half-changed host for what was.
        let _ = rig.apply(&request());
        rig.allow_settings(None);
        rig.restore_to(&before);
    }
    assert!(stopped >= 5, "channels, rings, table and two hashes can each be refused: {stopped}");
}

#[test]
fn an_interrupt_with_a_new_number_is_found_by_its_name_and_one_that_is_gone_is_said() {
    let (rig, _) = Rig::applied(&Request::default());
    let (sys, proc) = (rig.sys(), rig.proc());
    fs::rename(sys.join("kernel/irq/100"), sys.join("kernel/irq/200")).expect("renamed");
    rig.write("sys/devices/pci/0000:81:00.0/msi_irqs/200", "msix");
    fs::rename(proc.join("irq/100"), proc.join("irq/200")).expect("renamed");
    fs::remove_dir_all(sys.join("kernel/irq/101")).expect("removed");
    let restored = rig.restore();
    assert_eq!(rig.text("proc/irq/200/smp_affinity_list"), "0\n");
    assert_eq!(restored.failures, Vec::<String>::new());
    let [note] = restored.notes.as_slice() else { panic!("one interrupt is gone: {restored:?}") };
    assert!(note.contains("eth0-TxRx-1"), "{note}");
    assert!(rig.saved().is_empty(), "there is nothing left to put anything back to");
}

#[test]
fn an_interrupt_that_an_interface_has_given_back_while_it_is_down_stays_saved() {
    let (rig, before) = Rig::applied(&Request::default());
    let (sys, away) = (rig.sys(), rig.root.path().join("away"));
    rig.write("sys/class/net/eth0/flags", "0x1002");
    fs::rename(sys.join("kernel/irq/101"), &away).expect("given back");
    let restored = rig.restore();
    assert_eq!((restored.failures.len(), restored.notes.len()), (1, 0), "{restored:?}");
    assert!(restored.failures[0].contains("eth0-TxRx-1"), "{restored:?}");
    assert_eq!(rig.saved(), ["eth0"]);
    rig.write("sys/class/net/eth0/flags", "0x1003");
    fs::rename(&away, sys.join("kernel/irq/101")).expect("asked for again");
    rig.restore_to(&before);
}

#[test]
fn a_table_that_names_queues_that_are_gone_becomes_the_drivers_own() {
    let mut rig = Rig::ixgbe();
    // As after `ethtool -L eth0 combined 2` on a driver that keeps its default table, and refuses it from others.
    rig.change_device(|state| state.channels.as_mut().expect("channels").combined = 2);
    rig.machine.ethtool.refuses_queues_that_are_gone = true;
    rig.apply(&Request { rx_queues: Amount::Max, ..request() }).expect("applied");
    let restored = rig.restore_all();
    let [note] = restored.notes.as_slice() else { panic!("the table: {restored:?}") };
    assert!(note.contains("indirection") && note.contains("there are 2"), "{note}");
    assert!(rig.saved().is_empty());
    assert_eq!(rig.device().channels.expect("channels").combined, 2);
    assert_eq!(rig.device().rss.expect("a table").indirection[..4], [0, 1, 0, 1]);
}

#[test]
fn a_table_that_was_the_drivers_own_is_the_drivers_own_again() {
    let rig = Rig::ixgbe();
    let is_set = || rig.device().table_is_set;
    assert!(!is_set());
    let fewer = Request { rx_queues: Amount::Number(2), ..request() };
    rig.apply(&fewer).expect("applied");
    rig.with_steering(&fewer, |steering| {
        steering.reader.set("eth0", &Setting::Indirection, &["0", "1"].repeat(64).join(","))
    })
    .expect("a table that was set by hand");
    assert!(is_set());
    rig.restore_all();
    assert!(!is_set(), "or the kernel refuses fewer queues from now on, and new ones get no share");
}

#[test]
fn what_cannot_be_read_just_now_is_not_taken_for_gone() {
    let (rig, before) = Rig::applied(&request());
    let online = rig.sys().join("devices/system/cpu/online");
    let text = fs::read(&online).expect("a file");
    fs::write(&online, "nonsense").expect("a file");
    // What is read of cores is not needed.
    rig.restore_all();
    fs::write(&online, text).expect("a file");
    assert_eq!(rig.state(), before);
}

#[test]
fn a_renamed_interface_is_put_back_under_its_new_name() {
    let (rig, before) = Rig::applied(&request());
    let (old, new) = (rig.sys().join("class/net/eth0"), rig.sys().join("class/net/lan0"));
    fs::rename(&old, &new).expect("renamed");
    rig.rename_device("eth0", "lan0");
    rig.kernel_sees_what_sysfs_shows();
    rig.restore_all();
    fs::rename(&new, &old).expect("renamed");
    rig.rename_device("lan0", "eth0");
    assert_eq!(rig.state(), before);
    assert!(rig.saved().is_empty());
}

#[test]
fn whichever_reading_fails_what_is_changed_can_be_put_back() {
    let mut refused = 0;
    let rig = Rig::ixgbe();
    let before = rig.state();
    for readings in 0..40 {
        rig.allow_readings(Some(readings));
        refused += usize::from(rig.apply(&request()).is_err());
        rig.allow_readings(None);
        rig.restore_to(&before);
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
        let (rig, _) = Rig::applied(&request());
        let after = rig.state().1;
        spoil(&rig.sys().join("class/net"));
        let restored = rig.restore();
        assert_eq!(restored.failures.len(), 1, "{restored:?}");
        assert!(restored.failures[0].starts_with("cannot tell whether eth0 is still there: "), "{restored:?}");
        assert_eq!(rig.saved(), ["eth0"], "what was is still known");
        assert_eq!(rig.state().1, after);
    }
}

#[test]
fn an_interrupt_line_that_devices_share_is_put_back_too() {
    let rig = Rig::ixgbe();
    let actions = rig.sys().join("kernel/irq/100/actions");
    let name = fs::read_to_string(&actions).expect("a file");
    fs::write(&actions, format!("{},another-device\n", name.trim())).expect("a file");
    let before = rig.state();
    let moved = rig.apply(&Request::default()).expect("applied");
    assert!(moved.iter().any(|change| change.command.contains("/irq/100/")), "{moved:?}");
    rig.restore_to(&before);
}

#[test]
fn an_interrupt_that_only_the_kernel_names_is_saved_and_put_back() {
    // Not among the device's own vectors, as a line of a device that is not on PCI.
    let mut rig = Rig::ixgbe();
    let (sys, proc) = (rig.sys(), rig.proc());
    fs::create_dir_all(sys.join("kernel/irq/300")).expect("a folder");
    rig.write("sys/kernel/irq/300/actions", "eth0-line,usb1");
    fs::create_dir_all(proc.join("irq/300")).expect("a folder");
    rig.write("proc/irq/300/smp_affinity_list", "0-31");
    rig.machine.add("netdev 2 = queue 0 napi 257 irq 300").expect("a queue");
    let before = rig.state();
    let moved = rig.apply(&Request::default()).expect("applied");
    assert!(moved.iter().any(|change| change.command.contains("/irq/300/")), "{moved:?}");
    rig.restore_to(&before);
}

#[test]
fn an_interface_that_is_gone_stays_saved_until_it_is_given_up() {
    let (rig, _) = Rig::applied(&request());
    let file = rig.file();
    fs::remove_dir_all(rig.sys().join("class/net/eth0")).expect("removed");
    rig.ethtool.states.borrow_mut().remove("eth0");
    rig.kernel_sees_what_sysfs_shows();
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
    let (rig, before) = Rig::applied(&request());
    let damaged = rig.journal.folder().join("eth9.9.77.saved");
    fs::write(&damaged, "no journal\n").expect("a file");
    let restored = rig.restore();
    assert_eq!(rig.state(), before);
    assert_eq!(rig.saved(), ["eth9"]);
    let [failure] = restored.failures.as_slice() else { panic!("one is damaged: {restored:?}") };
    assert_eq!(*failure, format!("{0} is damaged: nothing is restored from it; {0} stays", damaged.display()));
    assert_eq!(rig.try_restore(&["eth9"], true).expect("the folder").failures, Vec::<String>::new());
    assert!(rig.saved().is_empty());
}

#[test]
fn what_was_kept_from_irqbalance_is_given_back_when_all_else_is() {
    let rig = Rig::ixgbe();
    let keep = |numbers: &[u32]| {
        rig.with_steering(&request(), |steering| {
            let (host, _) = steering.plan(&["eth0".to_owned()]).expect("a plan");
            steering.save_ban(&host.interfaces[0], numbers, &mut rig.lock()).expect("saved");
        });
    };
    keep(&[100, 101]);
    rig.apply(&Request::default()).expect("applied");
    keep(&[101, 102]);
    rig.with_steering(&request(), |steering| {
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
        let options = RestoreOptions { interfaces: &[], forget: false, unban: &mut unban };
        let restored = rig.with_steering(&request(), |steering| steering.restore(options, &mut rig.lock(), |_| ()));
        (asked, restored.expect("the folder").failures.len())
    };
    assert_eq!(restore(Err("no answer".to_owned())), (vec![vec![100, 101, 102]], 1));
    assert_eq!(rig.saved(), ["eth0"], "it is still kept from irqbalance");
    assert_eq!(restore(Ok(())), (vec![vec![100, 101, 102]], 0));
    assert!(rig.saved().is_empty());
}

#[test]
fn killed_between_any_two_changes_everything_is_put_back() {
    let steps = Rig::ixgbe().apply(&request()).expect("applied").len();
    assert!(steps >= 10, "{steps}");
    for step in 0..steps {
        let rig = Rig::ixgbe();
        let before = rig.state();
        let die_after = |count: usize| {
            let mut left = count;
            move |_: &Change| {
                assert!(left > 0, "killed, for the test");
                left -= 1;
            }
        };
        let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let options = request();
            rig.with_steering(&options, |steering| {
                steering.apply(&["eth0".to_owned()], &mut rig.lock(), die_after(step))
            })
        }));
        assert!(killed.is_err());
        assert_eq!(rig.saved(), ["eth0"], "after {step} changes");
        let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let options = RestoreOptions { interfaces: &[], forget: false, unban: &mut |_| Ok(()) };
            rig.with_steering(&request(), |steering| steering.restore(options, &mut rig.lock(), die_after(step / 2)))
        }));
        assert!(killed.is_err());
        assert_eq!(rig.saved(), ["eth0"], "a restore that is killed forgets nothing");
        rig.restore_to(&before);
    }
}

/// What a file or a link is and holds, without following it.
fn remains(path: &Path) -> (u32, Vec<u8>) {
    let status = fs::symlink_metadata(path).expect("it is kept");
    let content = match fs::read_link(path) {
        Ok(target) => target.into_os_string().into_encoded_bytes(),
        Err(_) => fs::read(path).unwrap_or_default(),
    };
    (status.permissions().mode(), content)
}

type Attack = (&'static str, fn(&Rig, &Path, usize) -> &'static str);

/// Each with what is said of it.
const ATTACKS: [Attack; 19] = [
    ("sysfs is not mounted", |rig, _, _| {
        fs::rename(rig.sys(), rig.root.path().join("away")).expect("renamed");
        "cannot list the interfaces"
    }),
    ("sysfs is empty", |rig, _, _| {
        fs::rename(rig.sys(), rig.root.path().join("away")).expect("renamed");
        fs::create_dir(rig.sys()).expect("a directory");
        "cannot list the interfaces"
    }),
    ("sysfs lists nothing", |rig, _, _| {
        fs::remove_dir_all(rig.sys().join("class/net")).expect("removed");
        fs::create_dir(rig.sys().join("class/net")).expect("a directory");
        "which it does not show"
    }),
    ("sysfs is of another namespace, where the number is another's", |rig, _, _| {
        let other = Link { index: 2, name: "veth0".to_owned(), address: None };
        *rig.netdev.links.lock().expect("no thread panicked") = vec![other];
        "which the kernel does not have"
    }),
    ("sysfs is of another namespace, where names and numbers are the same", |rig, _, _| {
        for link in rig.netdev.links.lock().expect("no thread panicked").iter_mut() {
            link.address = link.address.as_ref().map(|_| "02:00:00:00:00:07".to_owned());
        }
        "which the kernel does not have"
    }),
    ("another namespace", |rig, _, _| {
        let file = rig.proc().join("thread-self/ns/net");
        fs::rename(&file, file.with_extension("then")).expect("renamed");
        fs::write(&file, "").expect("another inode");
        "belongs to the network namespace"
    }),
    ("procfs is not mounted", |rig, _, _| {
        fs::remove_dir_all(rig.proc().join("thread-self")).expect("removed");
        "cannot tell the network namespace"
    }),
    ("another address, where no bus tells that it is the same device", |rig, _, _| {
        fs::remove_file(rig.sys().join("class/net/eth0/device")).expect("removed");
        rig.write("sys/class/net/eth0/address", "02:00:00:00:00:09");
        rig.kernel_sees_what_sysfs_shows();
        "and what was saved is of interface"
    }),
    ("another bus", |rig, _, _| {
        let device = rig.sys().join("class/net/eth0/device");
        let now = fs::canonicalize(&device).expect("a device");
        let other = rig.sys().join("devices/pci/0000:7f:00.0");
        fs::create_dir_all(&other).expect("directories");
        for file in ["uevent", "config"] {
            fs::write(other.join(file), "x").expect("a file");
        }
        assert_ne!(now, other);
        fs::remove_file(&device).expect("removed");
        symlink(&other, &device).expect("a link");
        "and what was saved is of interface"
    }),
    ("gone", |rig, _, _| {
        fs::remove_dir_all(rig.sys().join("class/net/eth0")).expect("removed");
        rig.ethtool.states.borrow_mut().remove("eth0");
        rig.kernel_sees_what_sysfs_shows();
        "is gone"
    }),
    ("no list has it, and its driver answers", |rig, _, _| {
        fs::remove_dir_all(rig.sys().join("class/net/eth0")).expect("removed");
        rig.kernel_sees_what_sysfs_shows();
        assert!(rig.ethtool.driver("eth0").is_ok());
        "a driver answers for it"
    }),
    ("cut off", |_, file, random| {
        let bytes = fs::read(file).expect("a file");
        fs::write(file, &bytes[..random % bytes.len()]).expect("a file");
        "is damaged"
    }),
    ("forged", |_, file, random| {
        let text = fs::read_to_string(file).expect("a file");
        let [from, to] = [["index\t2\n", "index\t3\n"], ["name\teth0\n", "name\tlo\n"]][random % 2];
        assert!(text.contains(from), "{text}");
        fs::write(file, text.replace(from, to)).expect("a file");
        "is damaged"
    }),
    ("a symbolic link", |rig, file, _| {
        let outside = rig.journal.folder().join("forged");
        fs::rename(file, &outside).expect("renamed");
        symlink(&outside, file).expect("a link");
        "is a symbolic link"
    }),
    ("a hard link", |rig, file, _| {
        fs::hard_link(file, rig.journal.folder().join("hard")).expect("a link");
        "has 2 names"
    }),
    ("writable by others", |_, file, random| {
        let mode = [0o620, 0o602, 0o666][random % 3];
        fs::set_permissions(file, fs::Permissions::from_mode(mode)).expect("ours");
        "is writable by others"
    }),
    ("foreign-owned, where the test may give it away", |_, file, _| {
        if chown(file, Some(65_534), None).is_ok() {
            return "belongs to user 65534";
        }
        fs::set_permissions(file, fs::Permissions::from_mode(0o606)).expect("ours");
        "is writable by others"
    }),
    ("a folder that others may write to", |_, file, _| {
        fs::set_permissions(file.parent().expect("a folder"), fs::Permissions::from_mode(0o777)).expect("ours");
        "is writable by others"
    }),
    ("a driver that refuses", |rig, _, _| {
        rig.allow_settings(Some(0));
        // As on a file system that is read-only.
        for entry in fs::read_dir(rig.proc().join("irq")).expect("interrupts").flatten() {
            fs::remove_file(entry.path().join("smp_affinity_list")).expect("removed");
            symlink("/proc/version", entry.path().join("smp_affinity_list")).expect("a link to what is read-only");
        }
        for entry in fs::read_dir(rig.sys().join("class/net/eth0/queues")).expect("queues").flatten() {
            let mask = entry.path().join("xps_cpus");
            if mask.exists() {
                fs::remove_file(&mask).expect("removed");
                symlink("/proc/version", &mask).expect("a link to what is read-only");
            }
        }
        "cannot put "
    }),
];

/// Everything that can happen to what was saved, or to the host around it, a hundred times at random: what was saved is
/// kept, nothing is written that was not ours, and the cause is named.
#[test]
fn of_a_hundred_attacks_a_hundred_keep_what_was_saved_and_write_nothing() {
    let mut random = Random::default();
    let mut next = |below: usize| random.below(below);
    let (names, mut kinds, mut kept) = (machines(), BTreeSet::new(), 0);
    while kept < 100 {
        let rig = Rig::new(&names[next(names.len())]);
        if !rig.apply(&request()).is_ok_and(|changes| !changes.is_empty()) {
            continue;
        }
        // Every kind once, and then any.
        let (kind, attack) = ATTACKS[if kept < ATTACKS.len() { kept } else { next(ATTACKS.len()) }];
        let file = rig.file();
        let said = attack(&rig, &file, next(1 << 20));
        let (saved, before) = (remains(&file), rig.state());
        let told = match rig.try_restore(&[], false) {
            Ok(restored) => {
                assert!(!restored.failures.is_empty(), "{kind}: {restored:?}");
                restored.failures.join("\n")
            }
            Err(error) => error.to_string(),
        };
        assert!(told.contains(said), "{kind}: {told}");
        assert_eq!((remains(&file), rig.state()), (saved, before), "{kind}");
        kinds.insert(kind);
        kept += 1;
    }
    assert_eq!((kept, kinds.len()), (100, ATTACKS.len()));
}

const ROUNDS: usize = if cfg!(debug_assertions) { 40 } else { 200 };

/// Decides what happens to each of several threads at each of its steps.
struct Interruptions(Mutex<Random>);

impl Interruptions {
    fn below(&self, limit: usize) -> usize {
        self.0.lock().expect("no thread panics in here").below(limit)
    }

    /// Goes on, or stops this thread for a while in which the others go on, or kills it.
    fn step(&self) {
        match self.below(400) {
            0 => panic!("killed, for the test"),
            1..40 => std::thread::sleep(Duration::from_micros(self.below(1500) as u64)),
            _ => {}
        }
    }
}

/// Each setting with its value, those of the device field by field.
fn settings(rig: &Rig) -> BTreeSet<String> {
    let ((files, _), device) = (rig.state(), rig.device());
    let fields = [
        format!("{:?}", device.channels),
        format!("{:?}", device.rings),
        format!("{:?}", device.rss),
        format!("IPv4 {:?}", device.hash_v4),
        format!("IPv6 {:?}", device.hash_v6),
        format!("{:?}", device.coalescing),
        format!("ntuple {:?}", device.ntuple),
    ];
    let rules = device.rules.iter().flat_map(|rules| &rules.taken).map(|(_, rule)| format!("{rule:?}"));
    files.into_iter().map(|(path, value)| format!("{path} {value}")).chain(fields).chain(rules).collect()
}

/// The shares of the driver's own table, which is set for a moment before another one is: a process that is killed then
/// leaves it behind, and a journal that says what was.
fn own_shares(rig: &Rig) -> String {
    let before = rig.device();
    rig.ethtool.set_indirection("eth0", None).expect("the device has a table");
    let shares = format!("{:?}", rig.device().rss);
    rig.change_device(|state| *state = before);
    shares
}

/// Applies or restores as another process would, until it is done or killed.
fn run(is_apply: bool, rig: &Rig, interruptions: &Arc<Interruptions>) {
    let (step, patience) = (Arc::clone(interruptions), Duration::from_secs(10 * interruptions.below(2) as u64));
    STEP.set(Some(Box::new(move || step.step())));
    // One that is refused the lock, or is killed, has done what it could.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let Ok(mut journal) = rig.journal.lock("a test", patience, |_| ()) else { return };
        rig.with_steering(&request(), |steering| {
            if is_apply {
                let _ = steering.apply(&["eth0".to_owned()], &mut journal, |_| interruptions.step());
            } else {
                let options = RestoreOptions { interfaces: &[], forget: false, unban: &mut |_| Ok(()) };
                let _ = steering.restore(options, &mut journal, |_| interruptions.step());
            }
        });
    }));
}

/// Two applies and a restore at once, each stopped, continued and now and then killed at any of its steps. Every
/// setting is what it was, what the plan wants or what comes between, and where anything is changed a journal says so.
#[test]
fn two_applies_and_a_restore_at_once_leave_nothing_of_which_no_journal_says_what_it_was() {
    let interruptions = Arc::new(Interruptions(Mutex::default()));
    let rig = Rig::ixgbe();
    let original = settings(&rig);
    let mut in_between = BTreeSet::from([own_shares(&rig)]);
    rig.apply(&request()).expect("applied");
    let planned = settings(&rig);
    in_between.insert(own_shares(&rig));
    assert!(planned.difference(&original).count() >= 3, "the plan changes something");
    rig.restore_all();
    let (mut changed, mut untouched) = (0, 0);
    for round in 0..ROUNDS {
        std::thread::scope(|scope| {
            for is_apply in [true, false, true] {
                let (rig, interruptions) = (&rig, &interruptions);
                scope.spawn(move || run(is_apply, rig, interruptions));
            }
        });
        let now = settings(&rig);
        let known = [&original, &planned, &in_between];
        let foreign: Vec<&String> = now.iter().filter(|it| known.iter().all(|set| !set.contains(*it))).collect();
        assert!(foreign.is_empty(), "round {round}: {foreign:?}");
        assert!(now == original || rig.saved() == ["eth0"], "round {round}: changed, and no journal says so");
        changed += usize::from(now != original);
        untouched += usize::from(now == original);
        rig.restore_all();
        assert_eq!(settings(&rig), original, "round {round}");
        assert!(rig.saved().is_empty(), "round {round}");
    }
    assert!(changed > 0 && untouched > 0, "both happen: {changed} and {untouched}");
}
