//! Plans that are applied to a made-up machine and taken back, with all that may come between: a driver or a file that
//! refuses, a process that is killed at any step, a disk that is full at any byte of the journal, a reboot, a card that
//! is renamed, replaced or gets another address, and other programs that change settings.
//!
//! The shadow model has the settings as they were when the journal was made, the rules of others, and what irqbalance
//! was asked to leave alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use seeds::{Chance, Run, Simulation};

use super::*;
use crate::change::Restored;
use crate::ethtool::{Channels, Ethtool, Family, FlowHash, Rings, Rule};
use crate::plan::{Amount, Request, Shares};
use crate::restore::RestoreOptions;
use crate::setting::{is_same, parse_coalescing, show_coalescing};
use crate::testing::Machine;
use crate::testing::driver::{Follow, State};
use crate::testing::faults::{self, Faults, KILLED};
use crate::testing::rig::dedication;

/// The interrupt of the first queue.
const INTERRUPT: u32 = 100;

const QUEUES_MAX: u32 = 4;

type Settings = BTreeMap<String, String>;

/// A machine with one card, and what is known of it beside the code.
struct World {
    machine: Machine,
    _folder: tempfile::TempDir,
    journal: Journal,
    cores: u64,
    /// The card and its files after boot.
    boot: (State, u32),
    name: &'static str,
    index: u32,
    /// The settings when the journal of the card was made; `None` where there is no such journal.
    before: Option<Settings>,
    is_damaged: bool,
    /// Journals of cards that are gone.
    stale: usize,
    rules_of_others: Vec<(u32, Rule)>,
    banned: BTreeSet<u32>,
}

/// How an apply or a restore has ended.
#[derive(Debug, PartialEq, Eq)]
enum End<T> {
    Done(T),
    Refused(String),
    Killed,
}

fn text_of(machine: &Machine, path: &Path) -> String {
    fs::read_to_string(machine.root.path().join(path)).unwrap_or_default().trim().to_owned()
}

/// Makes and removes queues and their interrupts, so that there are so many.
fn follow(root: &Path, interface: &str, cores: u64, queues: u32) {
    let write = |path: PathBuf, text: &str| {
        fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        fs::write(path, format!("{text}\n")).expect("a file");
    };
    let folder = root.join("sys/class/net").join(interface).join("queues");
    for queue in 0..QUEUES_MAX {
        let number = (INTERRUPT + queue).to_string();
        let (receives, sends) = (folder.join(format!("rx-{queue}")), folder.join(format!("tx-{queue}")));
        let (irq, of_proc) = (root.join("sys/kernel/irq").join(&number), root.join("proc/irq").join(&number));
        let vector = root.join("sys/devices/pci/0000:81:00.0/msi_irqs").join(&number);
        if queue >= queues {
            for gone in [receives, sends, irq, of_proc] {
                let _ = fs::remove_dir_all(gone);
            }
            let _ = fs::remove_file(vector);
        } else if !receives.exists() {
            write(receives.join("rps_cpus"), "00");
            write(sends.join("xps_cpus"), "00");
            write(irq.join("actions"), &format!("eth0-TxRx-{queue}"));
            write(irq.join("per_cpu_count"), "0");
            write(of_proc.join("smp_affinity_list"), &format!("0-{}", cores - 1));
            write(vector, "msix");
        }
    }
}

impl World {
    fn new(chance: &mut Chance) -> Self {
        let cores = chance.within(2..6);
        let queues = chance.within(1..4);
        let mut text = format!(
            "sys/devices/system/cpu/online = 0-{last}\nsys/devices/system/cpu/present = 0-{last}\n\
             sys/class/net/lo/ifindex = 1\nsys/class/net/lo/type = 772\nsys/class/net/lo/flags = 0x9\n\
             sys/class/net/eth0/ifindex = 2\nsys/class/net/eth0/type = 1\nsys/class/net/eth0/flags = 0x1003\n\
             sys/class/net/eth0/device -> ../../../devices/pci/0000:81:00.0\n\
             sys/class/net/eth0/address = 52:54:00:12:34:56\n\
             sys/devices/pci/0000:81:00.0/uevent = x\nsys/devices/pci/0000:81:00.0/config = x\n\
             sys/devices/pci/0000:81:00.0/numa_node = 0\nsys/devices/system/node/node0/cpulist = 0-{last}\n\
             ethtool eth0 driver = ixgbe\nethtool eth0 combined = {queues}/{QUEUES_MAX}\n\
             ethtool eth0 table = 16/{queues}\n",
            last = cores - 1
        );
        let mut add = |times, line: &str| {
            if chance.happens(times, 10) {
                text += &format!("ethtool eth0 {line}\n");
            }
        };
        add(8, "ring = 512/4096");
        add(8, "hash4 = sd");
        add(7, "hash6 = sdfn");
        add(5, "coalesce = 1/0");
        add(3, "coalesce = 8/0 adaptive");
        add(8, "ntuple = off");
        add(2, "ntuple = on");
        add(9, "rules = 16");
        add(2, "rules = any");
        let mut machine = Machine::unpack(&text);
        let root = machine.root.path().to_owned();
        follow(&root, "eth0", cores, u32::try_from(queues).expect("few"));
        // One namespace in every run, so that a journal has the same bytes.
        let namespace = machine.proc().join("thread-self/ns/net");
        fs::remove_file(&namespace).expect("it is there");
        symlink("/proc/thread-self/ns/net", namespace).expect("a link");
        machine.ethtool.refuses_queues_that_are_gone = chance.happens(1, 2);
        machine.ethtool.sorts_ipv4_only = chance.happens(1, 3);
        machine.ethtool.keeps_rules_while_off = chance.happens(1, 3);
        machine.ethtool.keeps_coalescing = chance.happens(1, 6);
        machine.ethtool.follow = Some(Follow(Box::new(move |name, queues| follow(&root, name, cores, queues))));
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
        let journal = Journal::in_folder(folder.path().join("steer"));
        let boot = (machine.device(), u32::try_from(queues).expect("few"));
        Self {
            machine,
            _folder: folder,
            journal,
            cores,
            boot,
            name: "eth0",
            index: 2,
            before: None,
            is_damaged: false,
            stale: 0,
            rules_of_others: Vec::new(),
            banned: BTreeSet::new(),
        }
    }

    fn device(&self) -> State {
        self.machine.ethtool.states.borrow()[self.name].clone()
    }

    /// Everything that can be set, but for rules.
    fn settings(&self) -> Settings {
        let device = self.device();
        let mut all = Settings::new();
        let mut note = |name: &str, value: Option<String>| all.extend(value.map(|value| (name.to_owned(), value)));
        note("channels", device.channels.map(|own| format!("{} {}", own.rx, own.combined)));
        note("rings", device.rings.map(|own| format!("{} {}", own.rx, own.tx)));
        note("coalescing", device.coalescing.as_ref().map(show_coalescing));
        note("ntuple", device.ntuple.map(|own| own.is_on.to_string()));
        note("indirection", device.rss.as_ref().map(|own| format!("{:?}", own.indirection)));
        note("hash-key", device.rss.map(|own| format!("{:?}", own.key)));
        note("flow-hash-udp4", device.hash_v4.map(FlowHash::letters));
        note("flow-hash-udp6", device.hash_v6.map(FlowHash::letters));
        for queue in 0..QUEUES_MAX {
            let number = INTERRUPT + queue;
            let of_queues = PathBuf::from("sys/class/net").join(self.name).join("queues");
            let mut file = |name: String, path: PathBuf| {
                if self.machine.root.path().join(&path).exists() {
                    note(&name, Some(text_of(&self.machine, &path)));
                }
            };
            file(format!("interrupt {number}"), format!("proc/irq/{number}/smp_affinity_list").into());
            file(format!("rps {queue}"), of_queues.join(format!("rx-{queue}/rps_cpus")));
            file(format!("xps {queue}"), of_queues.join(format!("tx-{queue}/xps_cpus")));
        }
        all
    }

    fn rules(&self) -> Vec<(u32, Rule)> {
        let taken = self.device().rules.map(|rules| rules.taken).unwrap_or_default();
        taken.into_iter().map(|(place, rule)| (place, rule.expect("the device shows it"))).collect()
    }

    /// The journals there are, without looking into them.
    fn journals(&self) -> usize {
        let names = fs::read_dir(self.journal.folder()).into_iter().flatten().flatten();
        names.filter(|entry| entry.file_name().to_string_lossy().ends_with(ENDING)).count()
    }

    fn own_journal(&self) -> Option<PathBuf> {
        let mark = format!(".{}.", self.index);
        let names = fs::read_dir(self.journal.folder()).into_iter().flatten().flatten();
        let is_own = |path: &PathBuf| {
            let name = path.file_name().expect("a name").to_string_lossy();
            name.ends_with(ENDING) && name.contains(&mark)
        };
        names.map(|entry| entry.path()).find(is_own)
    }

    fn request(&self, chance: &mut Chance) -> Request {
        let mut dedicated = Vec::new();
        if chance.happens(2, 3) {
            dedicated.push(dedication(&["0.0.0.0:2055", "[::]:2055"]));
        }
        if chance.happens(1, 3) {
            dedicated.push(dedication(&["192.0.2.1:514"]));
        }
        let queues = u32::try_from(chance.within(1..u64::from(QUEUES_MAX) + 1)).expect("few");
        Request {
            rx_queues: *chance.pick(&[Amount::Keep, Amount::Max, Amount::Number(queues)]),
            ring: *chance.pick(&[Amount::Keep, Amount::Max, Amount::Number(1024)]),
            flow_hash_udp: *chance.pick(&[None, Some(FlowHash::ADDRESSES_AND_PORTS)]),
            indirection: *chance.pick(&[Shares::default(), Shares::Even]),
            coalesce: *chance.pick(&[None, Some(Duration::from_micros(50))]),
            dedicated,
            ..Request::default()
        }
    }

    /// Runs an apply or a restore with what was ordered; afterwards nothing is ordered any more.
    fn run<T>(&self, faults: Faults, chance: &mut Chance, body: impl FnOnce() -> Result<T, String>) -> End<T> {
        let refusals = [None, None, Some(chance.index(12))];
        *self.machine.ethtool.settings_left.borrow_mut() = *chance.pick(&refusals);
        let readings = [None, None, None, Some(chance.index(60))];
        *self.machine.ethtool.readings_left.borrow_mut() = *chance.pick(&readings);
        let end = self.run_well(faults, body);
        *self.machine.ethtool.settings_left.borrow_mut() = None;
        *self.machine.ethtool.readings_left.borrow_mut() = None;
        end
    }

    fn run_well<T>(&self, faults: Faults, body: impl FnOnce() -> Result<T, String>) -> End<T> {
        faults::order(faults);
        let caught = catch_unwind(AssertUnwindSafe(body));
        faults::order(Faults::default());
        match caught {
            Ok(Ok(done)) => End::Done(done),
            Ok(Err(why)) => End::Refused(why),
            Err(why) if why.downcast_ref::<String>().is_some_and(|why| why == KILLED) => End::Killed,
            Err(why) if why.downcast_ref::<&str>().is_some_and(|why| *why == KILLED) => End::Killed,
            Err(why) => std::panic::resume_unwind(why),
        }
    }

    fn apply(&self, request: &Request) -> Result<usize, String> {
        let mut journal = self.journal.lock("a test", Duration::ZERO, |_| ()).map_err(|error| error.to_string())?;
        let applied = self.machine.with_steering(request, |steering| {
            steering.apply(&[self.name.to_owned()], &mut journal, |_| faults::step())
        });
        applied.map(|done| done.len()).map_err(|error| error.to_string())
    }

    fn restore(&self, forget: bool, unban: &mut dyn FnMut(&[u32]) -> Result<(), String>) -> Result<Restored, String> {
        let mut journal = self.journal.lock("a test", Duration::ZERO, |_| ()).map_err(|error| error.to_string())?;
        let options = RestoreOptions { interfaces: &[], forget, unban };
        self.machine
            .with_steering(&Request::default(), |steering| steering.restore(options, &mut journal, |_| faults::step()))
            .map_err(|error| error.to_string())
    }

    /// Applies; afterwards either the journal says what was, or nothing has changed.
    fn apply_step(&mut self, chance: &mut Chance) -> String {
        let (settings, rules, request) = (self.settings(), self.rules(), self.request(chance));
        let faults = faults_of(chance);
        let end = self.run(faults, chance, || self.apply(&request));
        if self.is_damaged {
            assert!(!matches!(end, End::Done(count) if count > 0), "a damaged journal is not gone over: {end:?}");
            assert_eq!((self.settings(), self.rules()), (settings, rules), "nothing changes beside a damaged journal");
        } else if self.own_journal().is_none() {
            assert_eq!((self.settings(), self.rules()), (settings, rules), "changed, and no journal says so: {end:?}");
        } else if self.before.is_none() {
            self.before = Some(settings);
        }
        self.others_are_untouched();
        format!("apply {end:?}")
    }

    /// Applies without faults twice: the second time nothing is left to change.
    fn settle_step(&mut self, chance: &mut Chance) -> String {
        let (settings, request) = (self.settings(), self.request(chance));
        let first = self.run_well(Faults::default(), || self.apply(&request));
        if !self.is_damaged && self.before.is_none() && self.own_journal().is_some() {
            self.before = Some(settings);
        }
        let after = (self.settings(), self.rules());
        let second = self.run_well(Faults::default(), || self.apply(&request));
        match (&first, &second) {
            (End::Done(_), second) => assert_eq!(*second, End::Done(0), "applied twice: {request:?}"),
            (End::Refused(why), second) => assert!(matches!(second, End::Refused(_)), "{why}, then {second:?}"),
            (End::Killed, _) => panic!("no fault was ordered"),
        }
        assert_eq!((self.settings(), self.rules()), after, "the second apply writes: {request:?}, {first:?}");
        self.others_are_untouched();
        format!("apply twice {first:?}")
    }

    fn others_are_untouched(&self) {
        let rules = self.rules();
        let lost: Vec<_> = self.rules_of_others.iter().filter(|rule| !rules.contains(rule)).collect();
        assert!(lost.is_empty(), "rules of others are gone: {lost:?} of {rules:?}");
    }

    /// Restores; what is forgotten then is as it was, or is told, and nothing has another value than before or now.
    fn restore_step(&mut self, chance: &mut Chance, is_faulty: bool) -> String {
        let (settings, journals) = (self.settings(), self.journals());
        let refuses = is_faulty && chance.happens(1, 6);
        let mut unbanned = BTreeSet::new();
        let mut unban = |numbers: &[u32]| {
            unbanned.extend(numbers.iter().copied());
            if refuses { Err("no answer".to_owned()) } else { Ok(()) }
        };
        let end = if is_faulty {
            let faults = faults_of(chance);
            self.run(faults, chance, || self.restore(false, &mut unban))
        } else {
            self.run_well(Faults::default(), || self.restore(false, &mut unban))
        };
        let was_asked = !unbanned.is_empty();
        if !refuses {
            self.banned.retain(|number| !unbanned.contains(number));
        }
        self.others_are_untouched();
        let now = self.settings();
        let is_known = |name: &String, value: &String| {
            let values = [self.before.as_ref().and_then(|before| before.get(name)), settings.get(name)];
            values.iter().flatten().any(|known| means_the_same(name, known, value))
        };
        let between = ["indirection", "coalescing"];
        // What queues bring with them when they come back is new, and what a driver makes of its table by itself.
        let is_new = |(name, value): &(&String, &String)| {
            !is_known(name, value) && !is_fresh(name, value, self.cores) && !between.contains(&name.as_str())
        };
        let unknown: Vec<_> = now.iter().filter(is_new).collect();
        assert!(unknown.is_empty(), "neither as it was nor as it is: {unknown:?}, {end:?}");
        let shown = format!("restore {end:?}");
        let is_whole = self.own_journal().is_none() && journals > self.stale;
        if is_whole {
            let before = self.before.take();
            let Some(before) = before else { panic!("a journal that no apply made: {shown}") };
            assert!(!self.is_damaged, "a damaged journal stays");
            let notes = match &end {
                End::Done(restored) => restored.notes.join("\n"),
                End::Refused(_) | End::Killed => String::new(),
            };
            for (name, was) in &before {
                let is_told = notes.contains(name.as_str());
                let is_as_it_was = now.get(name).is_some_and(|now| means_the_same(name, was, now));
                assert!(
                    is_as_it_was || is_told,
                    "{name} was {was}, is {:?}, and it is not told: {shown}",
                    now.get(name)
                );
            }
            assert_eq!(self.rules(), self.rules_of_others, "rules of ours are left: {shown}");
            assert!(self.banned.is_empty(), "irqbalance still leaves {:?} alone: {shown}", self.banned);
            self.machine.ethtool.log.borrow_mut().clear();
        } else if let End::Done(restored) = &end {
            let kept = self.journals();
            assert!(restored.failures.len() >= kept, "{kept} journals stay, and it is not told why: {shown}");
            assert!(kept == 0 || !was_asked || refuses || self.own_journal().is_none(), "asked too early: {shown}");
            assert!(journals > 0 || restored.changes.is_empty(), "restored from nothing: {shown}");
        }
        if self.is_damaged {
            assert_eq!(now, settings, "nothing is restored from a damaged journal");
        }
        shown
    }

    /// What no restore can put back is given up.
    fn forget_step(&mut self) -> String {
        let mut unban = |_: &[u32]| Ok(());
        let restored = self.run_well(Faults::default(), || self.restore(true, &mut unban));
        assert!(matches!(&restored, End::Done(restored) if restored.failures.is_empty()), "{restored:?}");
        assert_eq!(self.journals(), 0, "all is forgotten");
        // What was ours and could not be read about is of the machine from now on.
        (self.before, self.is_damaged, self.stale) = (None, false, 0);
        self.rules_of_others = self.rules();
        self.banned.clear();
        format!("forget {restored:?}")
    }

    /// Another program changes a setting.
    fn other_step(&mut self, chance: &mut Chance) -> String {
        let device = &self.machine.ethtool;
        let queue = u32::try_from(chance.below(u64::from(QUEUES_MAX))).expect("few");
        let mut what = "others change ".to_owned();
        let core = chance.below(self.cores).to_string();
        let write = |path: String, text: &str| {
            let path = self.machine.root.path().join(path);
            if path.exists() {
                fs::write(path, format!("{text}\n")).expect("a file");
            }
        };
        match chance.below(8) {
            0 => {
                if let Ok(rings) = device.rings(self.name) {
                    let _ = device.set_rings(self.name, &Rings { rx: *chance.pick(&[256, 1024, 2048]), ..rings });
                }
                what += "rings";
            }
            1 => {
                write(format!("proc/irq/{}/smp_affinity_list", INTERRUPT + queue), &core);
                let _ = write!(what, "interrupt {queue} to {core}");
            }
            2 => {
                write(format!("sys/class/net/{}/queues/rx-{queue}/rps_cpus", self.name), "01");
                write(format!("sys/class/net/{}/queues/tx-{queue}/xps_cpus", self.name), "02");
                let _ = write!(what, "the masks of {queue}");
            }
            3 => {
                let queues = device.channels(self.name).map_or(1, |channels| channels.receiving());
                let table: Vec<u32> =
                    (0..16).map(|_| u32::try_from(chance.below(u64::from(queues))).expect("few")).collect();
                let _ = device.set_indirection(self.name, Some(&table));
                what += "the table";
            }
            4 => {
                if let Ok(channels) = device.channels(self.name) {
                    let channels = Channels { combined: queue + 1, ..channels };
                    let _ = write!(what, "channels to {}: {:?}", queue + 1, device.set_channels(self.name, &channels));
                }
            }
            5 => {
                let _ = device.set_flow_hash(self.name, Family::V4, FlowHash::from_letters("sdfn").expect("letters"));
                what += "the hash";
            }
            6 => {
                let port = *chance.pick(&[9000, 9001, 2055]);
                let rule = Rule { family: Family::V4, destination: None, port, queue: 0 };
                let is_there = self.rules_of_others.iter().any(|(_, other)| other.port == port);
                let chooses = self.device().rules.is_some_and(|rules| rules.driver_chooses);
                let taken: Vec<u32> = self.rules().iter().map(|(place, _)| *place).collect();
                let free = (0..8).find(|place| !taken.contains(place));
                if let Some(place) = free.filter(|_| !is_there)
                    && let Ok(place) = device.insert_rule(self.name, &rule, Some(place).filter(|_| !chooses))
                {
                    self.rules_of_others.push((place, rule));
                    self.rules_of_others.sort_by_key(|(place, _)| *place);
                    let _ = write!(what, "a rule for {port} at {place}");
                }
            }
            _ => {
                if !self.rules_of_others.is_empty() {
                    let (place, _) = self.rules_of_others.remove(chance.index(self.rules_of_others.len()));
                    device.delete_rule(self.name, place).expect("it is there");
                    let _ = write!(what, "no rule at {place}");
                }
            }
        }
        what
    }

    /// The card is as after boot.
    fn reset(&mut self) {
        let (device, queues) = self.boot.clone();
        self.machine.ethtool.states.borrow_mut().insert(self.name.to_owned(), device);
        follow(self.machine.root.path(), self.name, self.cores, 0);
        follow(self.machine.root.path(), self.name, self.cores, queues);
        self.rules_of_others.clear();
    }

    fn reboot_step(&mut self, chance: &mut Chance) -> String {
        self.reset();
        if chance.happens(1, 4) {
            // The folder is not below /run.
            return "reboot, and the journal stays".to_owned();
        }
        let _ = fs::remove_dir_all(self.journal.folder());
        (self.before, self.is_damaged, self.stale) = (None, false, 0);
        self.banned.clear();
        "reboot".to_owned()
    }

    fn rename_step(&mut self) -> String {
        let name = if self.name == "eth0" { "lan0" } else { "eth0" };
        let folder = self.machine.sys().join("class/net");
        fs::rename(folder.join(self.name), folder.join(name)).expect("renamed");
        self.machine.rename_device(self.name, name);
        self.machine.kernel_sees_what_sysfs_shows();
        self.name = name;
        format!("renamed to {name}")
    }

    /// An administrator gives the card another hardware address; it is the same card.
    fn address_step(&mut self, chance: &mut Chance) -> String {
        let address = format!("52:54:00:12:34:{:02x}", chance.below(256));
        self.machine.write(&format!("sys/class/net/{}/address", self.name), &address);
        self.machine.kernel_sees_what_sysfs_shows();
        format!("has the address {address}")
    }

    /// The card goes, and comes back under a new number.
    fn replug_step(&mut self, chance: &mut Chance) -> String {
        let (net, away) = (self.machine.sys().join("class/net"), self.machine.root.path().join("away"));
        fs::rename(net.join(self.name), &away).expect("it goes");
        let device = self.machine.ethtool.states.borrow_mut().remove(self.name).expect("a device");
        self.machine.kernel_sees_what_sysfs_shows();
        let journals = self.journals();
        let mut unban = |_: &[u32]| Ok(());
        let restored = self.run_well(Faults::default(), || self.restore(false, &mut unban));
        let End::Done(restored) = restored else { panic!("the folder is readable: {restored:?}") };
        assert_eq!((restored.failures.len(), restored.changes.len()), (journals, 0), "{restored:?}");
        assert_eq!(self.journals(), journals, "what was is still known");
        fs::rename(&away, net.join(self.name)).expect("it comes back");
        self.machine.ethtool.states.borrow_mut().insert(self.name.to_owned(), device);
        if chance.happens(1, 2) {
            self.machine.kernel_sees_what_sysfs_shows();
            return "gone for a moment".to_owned();
        }
        self.stale += usize::from(self.own_journal().is_some());
        (self.before, self.is_damaged) = (None, false);
        self.banned.clear();
        self.index += 1;
        self.machine.write(&format!("sys/class/net/{}/ifindex", self.name), &self.index.to_string());
        self.machine.kernel_sees_what_sysfs_shows();
        self.reset();
        format!("replaced by number {}", self.index)
    }

    fn damage_step(&mut self, chance: &mut Chance) -> String {
        let Some(path) = self.own_journal() else { return "nothing to damage".to_owned() };
        let bytes = fs::read(&path).expect("a file");
        let kept = chance.index(bytes.len());
        fs::write(&path, &bytes[..kept]).expect("a file");
        self.is_damaged = true;
        format!("the journal is cut at byte {kept} of {}", bytes.len())
    }

    /// Has irqbalance leave interrupts alone, which may refuse.
    fn ban_step(&mut self, chance: &mut Chance) -> String {
        let settings = self.settings();
        let numbers = [INTERRUPT, INTERRUPT + u32::try_from(chance.below(4)).expect("few")];
        let (refuses, faults) = (chance.happens(1, 4), faults_of(chance));
        let mut asked = Vec::new();
        let end = self.run_well(faults, || {
            let mut journal = self.journal.lock("a test", Duration::ZERO, |_| ()).map_err(|error| error.to_string())?;
            self.machine.with_steering(&Request::default(), |steering| {
                let (host, _) = steering.plan(&[self.name.to_owned()]).map_err(|error| error.to_string())?;
                let interface = &host.interfaces[0];
                let new = steering.save_ban(interface, &numbers, &mut journal).map_err(|error| error.to_string())?;
                if refuses {
                    return steering.forget_ban(interface, &new, &mut journal).map_err(|error| error.to_string());
                }
                asked.clone_from(&new);
                Ok(())
            })
        });
        self.banned.extend(asked);
        if !self.is_damaged && self.before.is_none() && self.own_journal().is_some() {
            self.before = Some(settings);
        }
        format!("ban {numbers:?} {end:?}")
    }
}

/// What stops a process at a step of it, if anything does.
fn faults_of(chance: &mut Chance) -> Faults {
    let mut faults = Faults::default();
    match chance.below(6) {
        0 => faults.steps_left = Some(chance.below(150)),
        1 => faults.writes_left = Some((chance.below(8), *chance.pick(&[libc::EIO, libc::ENOSPC, libc::EACCES]))),
        2 => {
            faults.room = Some(chance.index(1200));
            faults.is_killed_by_full_disk = chance.happens(1, 2);
        }
        _ => {}
    }
    faults
}

/// Whether a value is one that a queue has when it is new.
fn is_fresh(name: &str, value: &str, cores: u64) -> bool {
    (name.starts_with("interrupt") && value == format!("0-{}", cores - 1)) || (name.contains("ps ") && value == "00")
}

fn means_the_same(name: &str, one: &str, other: &str) -> bool {
    let adapts = |text: &str| parse_coalescing(text).is_some_and(|own| own.adaptive_rx);
    match name.split(' ').next() {
        Some("coalescing") => one == other || (adapts(one) && adapts(other)),
        Some("rps" | "xps") => is_same(&Setting::Rps(0), one, other),
        _ => one == other,
    }
}

fn simulate(run: &mut Run) -> String {
    let mut world = World::new(run.setup());
    let mut books = String::new();
    while let Some(mut chance) = run.step() {
        let chance = &mut chance;
        let done = match chance.below(20) {
            0..6 => world.apply_step(chance),
            6..8 => world.settle_step(chance),
            8..11 => world.restore_step(chance, true),
            11..12 => world.restore_step(chance, false),
            12..16 => world.other_step(chance),
            16 => world.ban_step(chance),
            17 => world.reboot_step(chance),
            18 => match chance.below(4) {
                0 => world.replug_step(chance),
                1 => world.damage_step(chance),
                2 => world.address_step(chance),
                _ => world.rename_step(),
            },
            _ => world.forget_or_restore(chance),
        };
        run.trace(|| done.clone());
        let _ = writeln!(books, "{done} {:?} {:?}", world.settings(), world.rules());
    }
    world.end(run);
    // Paths are of this run.
    let (root, folder) = (world.machine.root.path().display(), world.journal.folder().display());
    books.replace(&root.to_string(), "").replace(&folder.to_string(), "")
}

impl World {
    fn forget_or_restore(&mut self, chance: &mut Chance) -> String {
        if self.is_damaged || self.stale > 0 { self.forget_step() } else { self.restore_step(chance, false) }
    }

    /// No more faults, and others take their rules away: everything is put back, and another plan works.
    fn end(&mut self, run: &mut Run) {
        if self.is_damaged || self.stale > 0 {
            let done = self.forget_step();
            run.trace(|| done);
        }
        for (place, _) in std::mem::take(&mut self.rules_of_others) {
            self.machine.ethtool.delete_rule(self.name, place).expect("it is there");
        }
        let chance = &mut run.setup().clone();
        let done = self.restore_step(chance, false);
        assert_eq!(self.journals(), 0, "nothing keeps it from being put back: {done}");
        run.trace(|| done);
        let settings = self.settings();
        let done = self.settle_step(chance);
        run.trace(|| done);
        let done = self.restore_step(chance, false);
        run.trace(|| done);
        assert_eq!(self.journals(), 0);
        let now = self.settings();
        let is_other = |(name, value): &(&String, &String)| !means_the_same(name, value, &now[*name]);
        let others: Vec<_> = settings.iter().filter(is_other).collect();
        assert!(others.is_empty(), "{others:?}");
    }
}

#[test]
fn whatever_comes_between_a_restore_puts_back_what_was_or_says_what_it_could_not() {
    Simulation::new("whatever_comes_between_a_restore_puts_back_what_was_or_says_what_it_could_not", 60, 14)
        .with_corpus(include_str!("simulation_tests.seeds"))
        .check(simulate);
}
