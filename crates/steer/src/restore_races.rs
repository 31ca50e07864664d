//! Two applies and a restore at once, each stopped, continued and now and then killed at any of its steps, two hundred
//! times: every setting is what it was, what the plan wants or what comes between, and where anything is changed a
//! journal says so.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use crate::apply::Steering;
use crate::ethtool::fake::FakeDevice;
use crate::ethtool::{
    Answer, Channels, Coalescing, DriverInfo, Ethtool, Family, Feature, FlowHash, Rings, Rss, Rule, Rules,
};
use crate::host::Reader;
use crate::journal::Journal;
use crate::restore::RestoreWish;
use crate::steering_rig::{Rig, request, state};
use crate::testing::{FakeNetdev, Machine};

const ROUNDS: usize = if cfg!(debug_assertions) { 40 } else { 200 };
const MACHINE: &str = "two-socket-smt-ixgbe";

/// What happens to a thread at each of its steps.
struct Fate(Mutex<u64>);

impl Fate {
    fn next(&self, below: u64) -> u64 {
        let mut seed = self.0.lock().expect("no thread panicked here");
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        (*seed >> 20) % below
    }

    /// Goes on, or is stopped for a while in which the others go on, or is killed.
    fn step(&self) {
        match self.next(400) {
            0 => panic!("killed, for the test"),
            1..40 => std::thread::sleep(Duration::from_micros(self.next(1500))),
            _ => {}
        }
    }
}

/// The device, for several threads, with a step before each question and each setting.
struct Gate<'a> {
    device: &'a Mutex<FakeDevice>,
    fate: &'a Fate,
}

impl Gate<'_> {
    fn pass<T>(&self, body: impl FnOnce(&FakeDevice) -> Answer<T>) -> Answer<T> {
        self.fate.step();
        body(&self.device.lock().expect("nobody is killed while the device is at work"))
    }
}

impl Ethtool for Gate<'_> {
    fn driver(&self, interface: &str) -> Answer<DriverInfo> {
        self.pass(|device| device.driver(interface))
    }
    fn channels(&self, interface: &str) -> Answer<Channels> {
        self.pass(|device| device.channels(interface))
    }
    fn set_channels(&self, interface: &str, channels: &Channels) -> Answer<()> {
        self.pass(|device| device.set_channels(interface, channels))
    }
    fn rings(&self, interface: &str) -> Answer<Rings> {
        self.pass(|device| device.rings(interface))
    }
    fn set_rings(&self, interface: &str, rings: &Rings) -> Answer<()> {
        self.pass(|device| device.set_rings(interface, rings))
    }
    fn rss(&self, interface: &str) -> Answer<Rss> {
        self.pass(|device| device.rss(interface))
    }
    fn set_indirection(&self, interface: &str, table: Option<&[u32]>) -> Answer<()> {
        self.pass(|device| device.set_indirection(interface, table))
    }
    fn set_rss_key(&self, interface: &str, key: &[u8]) -> Answer<()> {
        self.pass(|device| device.set_rss_key(interface, key))
    }
    fn flow_hash(&self, interface: &str, family: Family) -> Answer<FlowHash> {
        self.pass(|device| device.flow_hash(interface, family))
    }
    fn set_flow_hash(&self, interface: &str, family: Family, hash: FlowHash) -> Answer<()> {
        self.pass(|device| device.set_flow_hash(interface, family, hash))
    }
    fn coalescing(&self, interface: &str) -> Answer<Coalescing> {
        self.pass(|device| device.coalescing(interface))
    }
    fn set_coalescing(&self, interface: &str, coalescing: &Coalescing) -> Answer<()> {
        self.pass(|device| device.set_coalescing(interface, coalescing))
    }
    fn feature(&self, interface: &str, name: &str) -> Answer<Feature> {
        self.pass(|device| device.feature(interface, name))
    }
    fn set_feature(&self, interface: &str, name: &str, on: bool) -> Answer<()> {
        self.pass(|device| device.set_feature(interface, name, on))
    }
    fn rules(&self, interface: &str) -> Answer<Rules> {
        self.pass(|device| device.rules(interface))
    }
    fn insert_rule(&self, interface: &str, rule: &Rule, place: Option<u32>) -> Answer<u32> {
        self.pass(|device| device.insert_rule(interface, rule, place))
    }
    fn delete_rule(&self, interface: &str, place: u32) -> Answer<()> {
        self.pass(|device| device.delete_rule(interface, place))
    }
}

/// Each setting with its value, those of the device field by field.
fn settings(machine: &Machine) -> BTreeSet<String> {
    let (files, _) = state(machine);
    let states = machine.ethtool.states.borrow();
    let device = &states["eth0"];
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

/// The shares of the driver's own table, which is set for a moment before another one is: whoever is killed then leaves
/// it behind, and a journal that says what was.
fn own_shares(machine: &Machine) -> String {
    let device = &machine.ethtool;
    let kept = device.states.borrow().clone();
    device.set_indirection("eth0", None).expect("the device has a table");
    let shares = format!("{:?}", device.states.borrow()["eth0"].rss);
    *device.states.borrow_mut() = kept;
    shares
}

/// Applies or restores as another process would, until it is done or killed.
fn run(is_apply: bool, (sys, proc): (&Path, &Path), netdev: &FakeNetdev, gate: &Gate<'_>, journal: &Journal) {
    let reader = Reader { sys_root: sys, proc_root: proc, ethtool: gate, netdev, busy_polls: &[] };
    let allowed = crate::Topology::read(sys).expect("a topology").online;
    let steering = Steering { reader, allowed: &allowed, request: &request(), rounded: &[] };
    let patience = Duration::from_millis(gate.fate.next(2) * 10_000);
    // Who is refused the lock, or is killed, has done what it could.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let Ok(mut journal) = journal.lock("a test", patience, |_| ()) else { return };
        if is_apply {
            let _ = steering.apply(&["eth0".to_owned()], &mut journal, |_| gate.fate.step());
        } else {
            let wish = RestoreWish { interfaces: &[], forget: false, unban: &mut |_| Ok(()) };
            let _ = steering.restore(wish, &mut journal, |_| gate.fate.step());
        }
    }));
}

#[test]
fn two_applies_and_a_restore_at_once_leave_nothing_of_which_no_journal_says_what_it_was() {
    let fate = Fate(Mutex::new(0x9e37_79b9_7f4a_7c15));
    let mut rig = Rig::new(MACHINE);
    let original = settings(&rig.machine);
    let mut in_between = BTreeSet::from([own_shares(&rig.machine)]);
    rig.apply(&request()).expect("applied");
    let planned = settings(&rig.machine);
    in_between.insert(own_shares(&rig.machine));
    assert!(planned.difference(&original).count() >= 3, "the plan changes something");
    assert_eq!(rig.restore().failures, Vec::<String>::new());
    let (mut changed, mut untouched) = (0, 0);
    for round in 0..ROUNDS {
        let device = Mutex::new(std::mem::take(&mut rig.machine.ethtool));
        let (sys, proc, netdev, journal) = (rig.machine.sys(), rig.machine.proc(), &rig.machine.netdev, &rig.journal);
        std::thread::scope(|scope| {
            for is_apply in [true, false, true] {
                let (roots, gate) = ((sys.as_path(), proc.as_path()), Gate { device: &device, fate: &fate });
                scope.spawn(move || run(is_apply, roots, netdev, &gate, journal));
            }
        });
        rig.machine.ethtool = device.into_inner().expect("nobody was killed while it was at work");
        let now = settings(&rig.machine);
        let known = [&original, &planned, &in_between];
        let foreign: Vec<&String> = now.iter().filter(|it| known.iter().all(|set| !set.contains(*it))).collect();
        assert!(foreign.is_empty(), "round {round}: {foreign:?}");
        assert!(now == original || rig.saved() == ["eth0"], "round {round}: changed, and no journal says so");
        changed += usize::from(now != original);
        untouched += usize::from(now == original);
        assert_eq!(rig.restore().failures, Vec::<String>::new(), "round {round}");
        assert_eq!(settings(&rig.machine), original, "round {round}");
        assert!(rig.saved().is_empty(), "round {round}");
    }
    assert!(changed > 0 && untouched > 0, "both happen: {changed} and {untouched}");
}
