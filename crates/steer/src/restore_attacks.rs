//! Everything that happened to what was saved, or to the host around it, a hundred times at random: what was saved is
//! kept, nothing is written that was not ours, and the cause is named.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use crate::ethtool::Ethtool;
use crate::links::Link;
use crate::steering_rig::{Rig, machines, request, state};

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
        fs::rename(rig.machine.sys(), rig.machine.root.path().join("away")).expect("renamed");
        "cannot list the interfaces"
    }),
    ("sysfs is empty", |rig, _, _| {
        fs::rename(rig.machine.sys(), rig.machine.root.path().join("away")).expect("renamed");
        fs::create_dir(rig.machine.sys()).expect("a directory");
        "cannot list the interfaces"
    }),
    ("sysfs lists nothing", |rig, _, _| {
        fs::remove_dir_all(rig.machine.sys().join("class/net")).expect("removed");
        fs::create_dir(rig.machine.sys().join("class/net")).expect("a directory");
        "which it does not show"
    }),
    ("sysfs is of another namespace, where the number is another's", |rig, _, _| {
        let other = Link { index: 2, name: "veth0".to_owned(), address: None };
        *rig.machine.netdev.links.lock().expect("no thread panicked") = vec![other];
        "which the kernel does not have"
    }),
    ("sysfs is of another namespace, where names and numbers are the same", |rig, _, _| {
        for link in rig.machine.netdev.links.lock().expect("no thread panicked").iter_mut() {
            link.address = link.address.as_ref().map(|_| "02:00:00:00:00:07".to_owned());
        }
        "which the kernel does not have"
    }),
    ("another namespace", |rig, _, _| {
        let file = rig.machine.proc().join("thread-self/ns/net");
        fs::rename(&file, file.with_extension("then")).expect("renamed");
        fs::write(&file, "").expect("another inode");
        "belongs to the network namespace"
    }),
    ("procfs is not mounted", |rig, _, _| {
        fs::remove_dir_all(rig.machine.proc().join("thread-self")).expect("removed");
        "cannot tell the network namespace"
    }),
    ("another address, where no bus tells that it is the same device", |rig, _, _| {
        fs::remove_file(rig.machine.sys().join("class/net/eth0/device")).expect("removed");
        fs::write(rig.machine.sys().join("class/net/eth0/address"), "02:00:00:00:00:09\n").expect("a file");
        rig.machine.kernel_sees_what_sysfs_shows();
        "and what was saved is of interface"
    }),
    ("another bus", |rig, _, _| {
        let device = rig.machine.sys().join("class/net/eth0/device");
        let now = fs::canonicalize(&device).expect("a device");
        let other = rig.machine.sys().join("devices/pci/0000:7f:00.0");
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
        fs::remove_dir_all(rig.machine.sys().join("class/net/eth0")).expect("removed");
        rig.machine.ethtool.states.borrow_mut().remove("eth0");
        rig.machine.kernel_sees_what_sysfs_shows();
        "is gone"
    }),
    ("no list has it, and its driver answers", |rig, _, _| {
        fs::remove_dir_all(rig.machine.sys().join("class/net/eth0")).expect("removed");
        rig.machine.kernel_sees_what_sysfs_shows();
        assert!(rig.machine.ethtool.driver("eth0").is_ok());
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
        *rig.machine.ethtool.settings_left.borrow_mut() = Some(0);
        // Nobody can write to a directory, as nobody can to a file system that is read-only.
        for entry in fs::read_dir(rig.machine.proc().join("irq")).expect("interrupts").flatten() {
            fs::remove_file(entry.path().join("smp_affinity_list")).expect("removed");
            symlink("/proc/version", entry.path().join("smp_affinity_list")).expect("a link to what is read-only");
        }
        for entry in fs::read_dir(rig.machine.sys().join("class/net/eth0/queues")).expect("queues").flatten() {
            let mask = entry.path().join("xps_cpus");
            if mask.exists() {
                fs::remove_file(&mask).expect("removed");
                symlink("/proc/version", &mask).expect("a link to what is read-only");
            }
        }
        "cannot put "
    }),
];

#[test]
fn of_a_hundred_attacks_a_hundred_keep_what_was_saved_and_write_nothing() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 20) as usize % below
    };
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
        let (saved, before) = (remains(&file), state(&rig.machine));
        let told = match rig.try_restore(&[], false) {
            Ok(restored) => {
                assert!(!restored.failures.is_empty(), "{kind}: {restored:?}");
                restored.failures.join("\n")
            }
            Err(error) => error.to_string(),
        };
        assert!(told.contains(said), "{kind}: {told}");
        assert_eq!((remains(&file), state(&rig.machine)), (saved, before), "{kind}");
        kinds.insert(kind);
        kept += 1;
    }
    assert_eq!((kept, kinds.len()), (100, ATTACKS.len()));
}
