//! A machine to apply to and to restore, for tests: files for the interrupts, a device in memory for the rest.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Deref;
use std::time::Duration;

use crate::change::{ApplyFailure, Change, Restored};
use crate::ethtool::FlowHash;
use crate::journal::{Journal, JournalError, LockedJournal};
use crate::plan::{Amount, Dedication, Request};
use crate::restore::RestoreOptions;
use crate::testing::{Machine, all_machines};

pub(crate) fn request() -> Request {
    Request {
        rx_queues: Amount::Max,
        ring: Amount::Max,
        flow_hash_udp: Some(FlowHash::ADDRESSES_AND_PORTS),
        coalesce: Some(Duration::from_micros(50)),
        dedicated: vec![dedication(&["0.0.0.0:2055", "[::]:2055"]), dedication(&["192.0.2.1:514"])],
        ..Request::default()
    }
}

/// A queue of its own for what is sent to these.
pub(crate) fn dedication(destinations: &[&str]) -> Dedication {
    let destinations = destinations.iter().map(|text| text.parse().expect("an address")).collect();
    Dedication { interface: None, destinations, queues: 1 }
}

/// Everything on a machine that can be set: its files, and its devices.
pub(crate) type State = (BTreeMap<String, String>, String);

pub(crate) struct Rig {
    pub(crate) machine: Machine,
    pub(crate) journal: Journal,
    _folder: tempfile::TempDir,
}

impl Deref for Rig {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.machine
    }
}

impl Rig {
    pub(crate) fn new(machine: &str) -> Self {
        // In memory where there is such a place: a journal is made durable, and a disk takes its time for that.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary directory");
        let journal = Journal::in_folder(folder.path().join("steer"));
        let machine = Machine::named(machine);
        if machine.sys().join("class/net/eth0").exists() {
            machine.write("sys/class/net/eth0/address", "52:54:00:12:34:56");
            machine.kernel_sees_what_sysfs_shows();
        }
        Self { machine, journal, _folder: folder }
    }

    /// The one with an ixgbe card, which has everything that can be set.
    pub(crate) fn ixgbe() -> Self {
        Self::new("two-socket-smt-ixgbe")
    }

    /// Everything on the machine that can be set, as it is.
    pub(crate) fn state(&self) -> State {
        let mut files = BTreeMap::new();
        for folder in ["proc/irq", "sys/class/net/eth0/queues"] {
            for entry in fs::read_dir(self.machine.root.path().join(folder)).into_iter().flatten().flatten() {
                for file in ["smp_affinity_list", "rps_cpus", "xps_cpus"] {
                    let path = entry.path().join(file);
                    if let Ok(text) = fs::read_to_string(&path) {
                        files.insert(path.display().to_string(), text);
                    }
                }
            }
        }
        // Whether the table was set cannot be read back.
        let devices = format!("{:?}", self.machine.ethtool.states.borrow());
        (files, devices.replace("table_is_set: true", "table_is_set: false"))
    }

    /// What the devices were told since the last call, in order.
    pub(crate) fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut *self.machine.ethtool.log.borrow_mut())
    }

    /// The device takes so many more settings before it refuses all.
    pub(crate) fn allow_settings(&self, count: Option<usize>) {
        *self.machine.ethtool.settings_left.borrow_mut() = count;
    }

    /// One to which the request was applied, and its state before.
    pub(crate) fn applied(request: &Request) -> (Self, State) {
        let rig = Self::ixgbe();
        let before = rig.state();
        rig.apply(request).expect("applied");
        (rig, before)
    }

    /// Restores, and checks that everything is as it was and that nothing is saved any more.
    #[track_caller]
    pub(crate) fn restore_to(&self, before: &State) {
        self.restore_all();
        assert_eq!(&self.state(), before);
        assert!(self.saved().is_empty());
    }

    /// Restores, and checks that everything could be put back.
    #[track_caller]
    pub(crate) fn restore_all(&self) -> Restored {
        let restored = self.restore();
        assert_eq!(restored.failures, Vec::<String>::new());
        restored
    }

    pub(crate) fn lock(&self) -> LockedJournal {
        self.journal.lock("a test", Duration::ZERO, |_| ()).expect("no other process has it")
    }

    pub(crate) fn apply(&self, request: &Request) -> Result<Vec<Change>, ApplyFailure> {
        self.with_steering(request, |steering| steering.apply(&["eth0".to_owned()], &mut self.lock(), |_| ()))
    }

    pub(crate) fn restore(&self) -> Restored {
        self.try_restore(&[], false).expect("the journal is readable")
    }

    pub(crate) fn try_restore(&self, interfaces: &[&str], forget: bool) -> Result<Restored, JournalError> {
        let interfaces: Vec<String> = interfaces.iter().map(|&name| name.to_owned()).collect();
        let options = RestoreOptions { interfaces: &interfaces, forget, unban: &mut |_| Ok(()) };
        let mut journal = self.journal.lock("a test", Duration::ZERO, |_| ())?;
        self.with_steering(&request(), |steering| steering.restore(options, &mut journal, |_| ()))
    }

    /// The interfaces for which something is saved.
    pub(crate) fn saved(&self) -> Vec<String> {
        self.journal.interfaces().expect("the folder")
    }

    /// The one file of what is saved.
    pub(crate) fn file(&self) -> std::path::PathBuf {
        let entries = self.journal.entries().expect("the folder");
        let [entry] = entries.as_slice() else { panic!("one file: {entries:?}") };
        entry.path.clone()
    }
}

/// The machines whose interface is eth0 and whose plan exists.
pub(crate) fn machines() -> Vec<String> {
    let is_ours = |name: &String| Machine::named(name).sys().join("class/net/eth0").exists();
    all_machines().into_iter().filter(is_ours).collect()
}
