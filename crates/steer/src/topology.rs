//! The machine as sysfs describes it: which cores are online and on which memory node each one stands. The root of the
//! tree is a parameter so that tests can describe machines that are not at hand.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use crate::corelist::parse_core_list;

/// Cores and nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Topology {
    /// Cores that are online, in order.
    pub online: Vec<usize>,
    /// The memory node of each core, as far as the machine tells.
    pub node_of_core: BTreeMap<usize, usize>,
}

impl Topology {
    /// Reads the tree below `sys_root`, which is `/sys` on a live machine.
    ///
    /// A machine without memory nodes is no error: `node_of_core` is then empty.
    pub fn read(sys_root: &Path) -> io::Result<Self> {
        let online_path = sys_root.join("devices/system/cpu/online");
        let online = read_list(&online_path)?;
        let mut node_of_core = BTreeMap::new();
        if let Ok(entries) = fs::read_dir(sys_root.join("devices/system/node")) {
            for entry in entries.flatten() {
                let name = entry.file_name();
                let number =
                    name.to_str().and_then(|name| name.strip_prefix("node")).and_then(|digits| digits.parse().ok());
                let Some(node) = number else { continue };
                for core in read_list(&entry.path().join("cpulist"))? {
                    node_of_core.insert(core, node);
                }
            }
        }
        Ok(Self { online, node_of_core })
    }
}

fn read_list(path: &Path) -> io::Result<Vec<usize>> {
    let describe = |cause: String| io::Error::other(format!("cannot read the core list {}: {cause}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| describe(error.to_string()))?;
    parse_core_list(&text).map_err(|error| describe(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a temporary directory");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
            fs::write(path, text).expect("a file");
        }
        root
    }

    #[test]
    fn two_nodes_are_read_with_their_cores() {
        let root = tree(&[
            ("devices/system/cpu/online", "0-3\n"),
            ("devices/system/node/node0/cpulist", "0-1\n"),
            ("devices/system/node/node1/cpulist", "2-3\n"),
            ("devices/system/node/has_cpu", "0-1\n"),
        ]);
        let topology = Topology::read(root.path()).expect("a topology");
        assert_eq!(topology.online, [0, 1, 2, 3]);
        assert_eq!(topology.node_of_core, BTreeMap::from([(0, 0), (1, 0), (2, 1), (3, 1)]));
    }

    #[test]
    fn a_node_without_cores_and_a_machine_without_nodes_are_no_errors() {
        let memory_only = tree(&[
            ("devices/system/cpu/online", "0\n"),
            ("devices/system/node/node0/cpulist", "0\n"),
            ("devices/system/node/node1/cpulist", "\n"),
        ]);
        assert_eq!(Topology::read(memory_only.path()).expect("a topology").node_of_core, BTreeMap::from([(0, 0)]));
        let flat = tree(&[("devices/system/cpu/online", "0-1\n")]);
        assert!(Topology::read(flat.path()).expect("a topology").node_of_core.is_empty());
    }

    #[test]
    fn a_malformed_list_names_the_file() {
        let root = tree(&[("devices/system/cpu/online", "0-x\n")]);
        let error = Topology::read(root.path()).expect_err("a malformed list");
        assert!(error.to_string().contains("devices/system/cpu/online"), "{error}");
    }
}
