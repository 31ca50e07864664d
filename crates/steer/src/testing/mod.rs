//! Machines that are not at hand, for tests: a text file describes one, and this unpacks it.
//!
//! ```text
//! # a comment
//! sys/devices/system/cpu/online = 0-7
//! proc/irq/{40-43}/smp_affinity_list = {n-40}          one file for each n; also {n+2}, {n/2}, {n%2}
//! sys/class/net/eth0/device -> ../../../devices/pci/0000:3b:00.0
//! mode proc/irq/40/smp_affinity_list = 0444
//! ethtool eth0 driver = ixgbe
//! ethtool eth0 combined = 4/8                          in use and the most; also rx, tx, ring
//! ethtool eth0 table = 128/4                           entries, spread evenly over so many queues
//! ethtool eth0 hash4 = sd                              also hash6
//! ethtool eth0 coalesce = 8/0 adaptive                 microseconds and frames
//! ethtool eth0 ntuple = off                            or on; also "off fixed"
//! ethtool eth0 rules = 1022                            places; "any" where the driver chooses
//! netdev 2 = queue 0 napi 257 irq 45 thread 99         of the interface with this number
//! ```

pub(crate) mod driver;
pub(crate) mod faults;
pub(crate) mod rig;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::apply::Steering;
use crate::ethtool::{Channels, Coalescing, Feature, FlowHash, Rings, Rss, Rules};
use crate::host::{BusyPoll, ReadError, Reader};
use crate::model::Host;
use crate::netdev::Link;
use crate::netdev::{Netdev, NetdevQueue};
use crate::plan::Request;
use crate::testing::driver::{FakeDevice, State};
use crate::topology::Topology;

/// An unpacked machine; its files go when it goes.
pub(crate) struct Machine {
    pub(crate) root: tempfile::TempDir,
    pub(crate) ethtool: FakeDevice,
    pub(crate) netdev: FakeNetdev,
}

/// Queues by the number of their interface, and the interfaces that the kernel has.
#[derive(Default)]
pub(crate) struct FakeNetdev {
    queues: BTreeMap<u32, Vec<NetdevQueue>>,
    pub(crate) links: Mutex<Vec<Link>>,
}

impl Netdev for FakeNetdev {
    fn receive_queues(&self, interface: u32) -> io::Result<Vec<NetdevQueue>> {
        Ok(self.queues.get(&interface).cloned().unwrap_or_default())
    }

    fn links(&self) -> io::Result<Vec<Link>> {
        Ok(self.links.lock().expect("no thread panicked").clone())
    }
}

/// The folder with the machines.
pub(crate) fn trees() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trees")
}

/// The names of all machines, in order.
pub(crate) fn all_machines() -> Vec<String> {
    let entries = fs::read_dir(trees()).expect("the folder with the machines");
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().strip_suffix(".tree").map(str::to_owned);
    let mut names: Vec<String> = entries.flatten().filter_map(name).collect();
    names.sort();
    assert!(names.len() >= 12, "where have the machines gone? {names:?}");
    names
}

/// Compares with a file that was reviewed by a person; with STEER_BLESS=1 writes it instead, for a person to review.
#[track_caller]
pub(crate) fn assert_reviewed(name: &str, found: &str) {
    let path = trees().join(name);
    if std::env::var_os("STEER_BLESS").is_some() {
        fs::write(&path, found).expect("the file can be written");
        return;
    }
    let reviewed = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(reviewed, found, "{} differs (left: reviewed, right: now)", path.display());
}

impl Machine {
    /// The machine of this name.
    pub(crate) fn named(name: &str) -> Self {
        let path = trees().join(format!("{name}.tree"));
        Self::unpack(&fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    pub(crate) fn unpack(text: &str) -> Self {
        // In memory where there is such a place.
        let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary directory");
        let mut machine = Self { root, ethtool: FakeDevice::default(), netdev: FakeNetdev::default() };
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            for line in expand(line) {
                machine.add(&line).unwrap_or_else(|| panic!("not understood: {line}"));
            }
        }
        fs::write(machine.create_parent("proc/thread-self/ns/net"), "").expect("a namespace is a file");
        machine.kernel_sees_what_sysfs_shows();
        machine.count_firings();
        machine
    }

    /// Makes the kernel's list of interfaces that of sysfs, as it is now.
    pub(crate) fn kernel_sees_what_sysfs_shows(&self) {
        let line = |path: PathBuf| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let link = |entry: fs::DirEntry| {
            let index = line(entry.path().join("ifindex"))?.parse().ok()?;
            let (name, address) =
                (entry.file_name().to_string_lossy().into_owned(), line(entry.path().join("address")));
            Some(Link { index, name, address })
        };
        let entries = fs::read_dir(self.sys().join("class/net")).into_iter().flatten().flatten();
        *self.netdev.links.lock().expect("no thread panicked") = entries.filter_map(link).collect();
    }

    /// No interrupt has fired yet, unless a test says so.
    fn count_firings(&self) {
        for entry in fs::read_dir(self.sys().join("kernel/irq")).into_iter().flatten().flatten() {
            fs::write(entry.path().join("per_cpu_count"), "0\n").expect("a file");
        }
    }

    pub(crate) fn sys(&self) -> PathBuf {
        self.root.path().join("sys")
    }

    pub(crate) fn proc(&self) -> PathBuf {
        self.root.path().join("proc")
    }

    /// Writes a line into a file, with the folders above it.
    pub(crate) fn write(&self, path: &str, line: &str) {
        fs::write(self.create_parent(path), format!("{line}\n")).expect("a file");
    }

    /// The text of a file.
    pub(crate) fn text(&self, path: &str) -> String {
        fs::read_to_string(self.root.path().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// What the device of eth0 has.
    pub(crate) fn device(&self) -> State {
        self.ethtool.states.borrow()["eth0"].clone()
    }

    /// Changes the device of eth0 as another program or its driver would.
    pub(crate) fn change_device(&self, change: impl FnOnce(&mut State)) {
        change(self.ethtool.states.borrow_mut().get_mut("eth0").expect("a device"));
    }

    /// Gives the device of an interface to another name.
    pub(crate) fn rename_device(&self, from: &str, to: &str) {
        let device = self.ethtool.states.borrow_mut().remove(from).expect("a device");
        self.ethtool.states.borrow_mut().insert(to.to_owned(), device);
    }

    /// How many more questions the device answers before one fails.
    pub(crate) fn allow_readings(&self, count: Option<usize>) {
        *self.ethtool.readings_left.borrow_mut() = count;
    }

    pub(crate) fn with_reader<T>(&self, busy_polls: &[BusyPoll], body: impl FnOnce(Reader<'_>) -> T) -> T {
        let (sys_root, proc_root) = (&self.sys(), &self.proc());
        body(Reader { sys_root, proc_root, ethtool: &self.ethtool, netdev: &self.netdev, busy_polls })
    }

    /// Steers with all cores that are online.
    pub(crate) fn with_steering<T>(&self, request: &Request, body: impl FnOnce(Steering<'_>) -> T) -> T {
        self.with_steering_polled(request, &[], body)
    }

    pub(crate) fn with_steering_polled<T>(
        &self,
        request: &Request,
        busy_polls: &[BusyPoll],
        body: impl FnOnce(Steering<'_>) -> T,
    ) -> T {
        let allowed = Topology::read(&self.sys()).map_or_else(|_| vec![0], |topology| topology.online);
        self.with_reader(busy_polls, |reader| body(Steering { reader, allowed: &allowed, request, rounded: &[] }))
    }

    /// Reads these interfaces; all physical ones when none is named.
    pub(crate) fn read(&self, interfaces: &[&str]) -> Result<Host, ReadError> {
        self.read_polled(interfaces, &[])
    }

    pub(crate) fn read_polled(&self, interfaces: &[&str], busy_polls: &[BusyPoll]) -> Result<Host, ReadError> {
        self.with_reader(busy_polls, |reader| {
            let mut names: Vec<String> = interfaces.iter().map(|&name| name.to_owned()).collect();
            if names.is_empty() {
                names = reader.physical_interfaces()?;
            }
            let mut host = reader.read(&names)?;
            reader.read_sorting(&mut host);
            Ok(host)
        })
    }

    pub(crate) fn add(&mut self, line: &str) -> Option<()> {
        if let Some((path, target)) = line.split_once(" -> ") {
            let path = self.create_parent(path);
            symlink(target, path).ok()?;
            return Some(());
        }
        let (what, value) = line.split_once(" = ").or_else(|| line.strip_suffix(" =").map(|what| (what, "")))?;
        match what.split(' ').collect::<Vec<_>>()[..] {
            ["ethtool", interface, field] => self.add_ethtool(interface, field, value),
            ["netdev", index] => self.add_netdev(index.parse().ok()?, value),
            ["mode", path] => {
                let mode = fs::Permissions::from_mode(u32::from_str_radix(value, 8).ok()?);
                fs::set_permissions(self.root.path().join(path), mode).ok()
            }
            [path] => fs::write(self.create_parent(path), format!("{}\n", value.replace("\\n", "\n"))).ok(),
            _ => None,
        }
    }

    fn create_parent(&self, path: &str) -> PathBuf {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        path
    }

    fn add_ethtool(&mut self, interface: &str, field: &str, value: &str) -> Option<()> {
        let mut states = self.ethtool.states.borrow_mut();
        let state = states.entry(interface.to_owned()).or_default();
        let pair = || value.split_once('/').and_then(|(one, other)| Some((one.parse().ok()?, other.parse().ok()?)));
        match field {
            "driver" => state.driver = Some(value.to_owned()),
            "combined" => {
                let (combined, combined_max) = pair()?;
                state.channels = Some(Channels { combined, combined_max, ..state.channels.unwrap_or_default() });
            }
            "rx" => {
                let (rx, rx_max) = pair()?;
                state.channels = Some(Channels { rx, rx_max, ..state.channels.unwrap_or_default() });
            }
            "tx" => {
                let (tx, tx_max) = pair()?;
                state.channels = Some(Channels { tx, tx_max, ..state.channels.unwrap_or_default() });
            }
            "ring" => {
                let (rx, rx_max) = pair()?;
                state.rings = Some(Rings { rx, rx_max, tx: rx, tx_max: rx_max });
            }
            "table" => {
                let (entries, queues): (u32, u32) = pair()?;
                let indirection = (0..queues).cycle().take(entries as usize).collect();
                state.rss = Some(Rss { indirection, key: (0..40).collect() });
            }
            "coalesce" => {
                let (usecs, frames) = value.strip_suffix(" adaptive").unwrap_or(value).split_once('/')?;
                let (rx_usecs, rx_frames) = (usecs.parse().ok()?, frames.parse().ok()?);
                state.coalescing = Some(Coalescing { rx_usecs, rx_frames, adaptive_rx: value.ends_with("adaptive") });
            }
            "ntuple" => {
                let (is_on, is_changeable) = (value.starts_with("on"), !value.ends_with("fixed"));
                state.ntuple = Some(Feature { is_on, is_changeable });
            }
            "rules" => {
                let places = value.parse().ok();
                state.rules = Some(Rules { places, driver_chooses: places.is_none(), taken: Vec::new() });
            }
            "hash4" => state.hash_v4 = FlowHash::from_letters(value),
            "hash6" => state.hash_v6 = FlowHash::from_letters(value),
            _ => return None,
        }
        Some(())
    }

    fn add_netdev(&mut self, index: u32, value: &str) -> Option<()> {
        let words: Vec<&str> = value.split(' ').collect();
        let field =
            |name: &str| words.chunks(2).find(|pair| pair[0] == name).and_then(|pair| pair.get(1)?.parse::<u32>().ok());
        let queue = NetdevQueue {
            queue: field("queue")?,
            napi: field("napi"),
            interrupt: field("irq"),
            thread: field("thread"),
            threaded: field("threaded").map(|threaded| threaded != 0),
        };
        self.netdev.queues.entry(index).or_default().push(queue);
        Some(())
    }
}

/// Netlink attributes that are numbers of four bytes.
pub(crate) fn numbers(pairs: &[(u16, u32)]) -> Vec<u8> {
    pairs.iter().flat_map(|(kind, value)| netlink::attribute(*kind, &value.to_ne_bytes())).collect()
}

/// Numbers that look random and are the same in every run (xorshift).
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Default for Random {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }
}

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 20) as usize % limit
    }
}

/// Damages a template in a few places and cuts it off somewhere, a million times (fewer in a slow build).
pub(crate) fn mutate(template: &[u8], mut read: impl FnMut(&[u8])) {
    let mut random = Random::default();
    for _ in 0..if cfg!(debug_assertions) { 20_000 } else { 1_000_000 } {
        let mut bytes = template.to_vec();
        for _ in 0..random.below(6) {
            bytes[random.below(template.len())] = random.next().to_ne_bytes()[0];
        }
        bytes.truncate(random.below(template.len() + 1));
        read(&bytes);
    }
}

/// A line for each number of its `{a-b}`, with the other braces worked out; the line itself when it has none.
fn expand(line: &str) -> Vec<String> {
    let Some((before, rest)) = line.split_once('{') else { return vec![line.to_owned()] };
    let (range, after) = rest.split_once('}').expect("a closing brace");
    let (first, last) = range.split_once('-').expect("a range");
    let (first, last): (usize, usize) = (first.parse().expect("a number"), last.parse().expect("a number"));
    (first..=last).map(|number| format!("{before}{number}{}", work_out(after, number))).collect()
}

fn work_out(text: &str, number: usize) -> String {
    let Some((before, rest)) = text.split_once('{') else { return text.to_owned() };
    let (expression, after) = rest.split_once('}').expect("a closing brace");
    let expression = expression.strip_prefix('n').expect("n");
    let operand = || expression[1..].parse::<usize>().expect("a number");
    let value = match expression.bytes().next() {
        None => number,
        Some(b'+') => number + operand(),
        Some(b'-') => number - operand(),
        Some(b'/') => number / operand(),
        Some(b'%') => number % operand(),
        Some(other) => panic!("{other} is no operation"),
    };
    format!("{before}{value}{}", work_out(after, number))
}
