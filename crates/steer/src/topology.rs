//! The machine as sysfs describes it: which cores are online, which of them share a physical core, a cache, a package
//! or a memory node, and how far the nodes are from each other. The root of the tree is a parameter so that tests can
//! describe machines that are not at hand.
//!
//! What a machine does not tell is left out, and nothing is made up for it: a core without an entry has no known
//! sibling, cache or node. What it tells wrongly is an error, because a core list that is misread puts a thread on the
//! wrong core.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use crate::corelist::parse_core_list;

/// How far a node is from itself: what the kernel and the firmware call it.
const LOCAL_DISTANCE: u32 = 10;

/// The cores, caches and memory nodes of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Topology {
    /// Cores that are online, in order.
    pub online: Vec<usize>,
    /// Cores that are there, online or not. Empty when the machine does not tell.
    pub present: Vec<usize>,
    /// Cores that the scheduler leaves alone (`isolcpus`).
    pub isolated: Vec<usize>,
    /// The memory node of each core, as far as the machine tells.
    pub node_of_core: BTreeMap<usize, usize>,
    /// The physical core behind each core, by the lowest number among its sibling threads.
    pub physical_of_core: BTreeMap<usize, usize>,
    /// The last-level cache of each core, by the lowest number among the cores that share it.
    pub cache_of_core: BTreeMap<usize, usize>,
    /// The package of each core.
    pub package_of_core: BTreeMap<usize, usize>,
    /// The memory nodes, those without cores too, and the distance of each to each as the firmware tells it.
    pub distances: BTreeMap<(usize, usize), u32>,
}

impl Topology {
    /// Reads the tree below `sys_root`, which is `/sys` on a live machine.
    ///
    /// A machine without memory nodes is no error: `node_of_core` is then empty.
    pub fn read(sys_root: &Path) -> io::Result<Self> {
        let cores = sys_root.join("devices/system/cpu");
        let mut topology = Self {
            online: read_list(&cores.join("online"))?,
            present: read_list_if_any(&cores.join("present"))?,
            isolated: read_list_if_any(&cores.join("isolated"))?,
            ..Self::default()
        };
        for &core in &topology.online {
            let folder = cores.join(format!("cpu{core}"));
            let siblings = read_list_if_any(&folder.join("topology/thread_siblings_list"))?;
            topology.physical_of_core.extend(siblings.first().map(|&lowest| (core, lowest)));
            topology.cache_of_core.extend(last_level_cache(&folder.join("cache"))?.map(|lowest| (core, lowest)));
            let package = read_number(&folder.join("topology/physical_package_id"))?;
            topology.package_of_core.extend(package.map(|package| (core, package)));
        }
        topology.read_nodes(&sys_root.join("devices/system/node"))?;
        Ok(topology)
    }

    /// A machine of which only the cores are known: one memory node.
    pub fn flat(cores: &[usize]) -> Self {
        let node_of_core = cores.iter().map(|&core| (core, 0)).collect();
        Self { online: cores.to_vec(), node_of_core, ..Self::default() }
    }

    fn read_nodes(&mut self, folder: &Path) -> io::Result<()> {
        let nodes = try_numbered(folder, "node")?;
        for &node in &nodes {
            let folder = folder.join(format!("node{node}"));
            for core in read_list(&folder.join("cpulist"))? {
                self.node_of_core.insert(core, node);
            }
            // One number for each node that is online, in the order of their numbers.
            let distances = read_if_any(&folder.join("distance"))?.unwrap_or_default();
            for (&other, distance) in nodes.iter().zip(distances.split_ascii_whitespace()) {
                self.distances.extend(distance.parse().ok().map(|distance| ((node, other), distance)));
            }
        }
        Ok(())
    }

    /// True when the two are threads of one physical core, or the same core.
    pub fn are_siblings(&self, one: usize, other: usize) -> bool {
        one == other
            || self.physical_of_core.get(&one).is_some_and(|one| Some(one) == self.physical_of_core.get(&other))
    }

    /// True when both cores are known to share their last-level cache.
    pub fn share_cache(&self, one: usize, other: usize) -> bool {
        self.cache_of_core.get(&one).is_some_and(|one| Some(one) == self.cache_of_core.get(&other))
    }

    /// How far a core is from a node: 10 when it belongs to it (`LOCAL_DISTANCE`), more the farther it is, and
    /// `u32::MAX` when the machine does not say.
    pub fn distance(&self, core: usize, node: usize) -> u32 {
        match self.node_of_core.get(&core) {
            Some(&own) if own == node => LOCAL_DISTANCE,
            Some(&own) => self.distances.get(&(own, node)).copied().unwrap_or(u32::MAX),
            None => u32::MAX,
        }
    }
}

/// The cores that share the largest cache of the core whose `cache` folder this is: the lowest of them.
fn last_level_cache(folder: &Path) -> io::Result<Option<usize>> {
    let mut found = None;
    for index in try_numbered(folder, "index")? {
        let folder = folder.join(format!("index{index}"));
        let Some(level) = read_number(&folder.join("level"))? else { continue };
        if found.is_none_or(|(highest, _)| level > highest) {
            found = read_list_if_any(&folder.join("shared_cpu_list"))?.first().map(|&lowest| (level, lowest));
        }
    }
    Ok(found.map(|(_, lowest)| lowest))
}

/// The numbers behind `prefix` among the names in a folder, in order; none when there is no such folder.
pub(crate) fn try_numbered(folder: &Path, prefix: &str) -> io::Result<Vec<usize>> {
    let fail = |error: io::Error| io::Error::new(error.kind(), format!("cannot read {}: {error}", folder.display()));
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(fail)?,
    };
    let mut numbers = Vec::new();
    for entry in entries {
        let name = entry.map_err(fail)?.file_name();
        let digits = name.to_str().and_then(|name| name.strip_prefix(prefix));
        numbers.extend(digits.and_then(|digits| digits.parse::<usize>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// A number in a file of its own; `None` when there is no such file, or when it is negative, which is how the kernel
/// says that it does not know.
pub(crate) fn read_number(path: &Path) -> io::Result<Option<usize>> {
    let Some(text) = read_if_any(path)? else { return Ok(None) };
    let text = text.trim();
    if text.starts_with('-') {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| io::Error::other(format!("{} is not a number: {text:?}", path.display())))
}

/// The text of a file that need not be there.
pub(crate) fn read_if_any(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io::Error::new(error.kind(), format!("cannot read {}: {error}", path.display()))),
    }
}

/// A list of cores in a file that need not be there.
pub(crate) fn read_list_if_any(path: &Path) -> io::Result<Vec<usize>> {
    read_if_any(path)?.map_or(Ok(Vec::new()), |text| parse_list(path, &text))
}

pub(crate) fn read_list(path: &Path) -> io::Result<Vec<usize>> {
    let text = fs::read_to_string(path).map_err(|error| unreadable_list(path, &error.to_string()))?;
    parse_list(path, &text)
}

fn parse_list(path: &Path, text: &str) -> io::Result<Vec<usize>> {
    parse_core_list(text).map_err(|error| unreadable_list(path, &error.to_string()))
}

fn unreadable_list(path: &Path, cause: &str) -> io::Error {
    io::Error::other(format!("cannot read the core list {}: {cause}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Machine;

    fn read(tree: &str) -> io::Result<Topology> {
        Topology::read(&Machine::unpack(tree).sys())
    }

    #[test]
    fn nodes_are_read_with_their_cores_and_a_machine_without_nodes_is_no_error() {
        let two = read(
            "sys/devices/system/cpu/online = 0-3\nsys/devices/system/node/node0/cpulist = 0-1\n\
             sys/devices/system/node/node1/cpulist = 2-3\nsys/devices/system/node/has_cpu = 0-1",
        );
        let two = two.expect("a topology");
        assert_eq!(two.online, [0, 1, 2, 3]);
        assert_eq!(two.node_of_core, BTreeMap::from([(0, 0), (1, 0), (2, 1), (3, 1)]));
        let memory_only = read(
            "sys/devices/system/cpu/online = 0\nsys/devices/system/node/node0/cpulist = 0\n\
             sys/devices/system/node/node1/cpulist =",
        );
        assert_eq!(memory_only.expect("a topology").node_of_core, BTreeMap::from([(0, 0)]));
        assert!(read("sys/devices/system/cpu/online = 0-1").expect("a topology").node_of_core.is_empty());
    }

    #[test]
    fn a_malformed_list_names_the_file() {
        let error = read("sys/devices/system/cpu/online = 0-x").expect_err("a malformed list");
        assert!(error.to_string().contains("devices/system/cpu/online"), "{error}");
    }
}
