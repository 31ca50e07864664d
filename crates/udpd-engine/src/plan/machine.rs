//! The cores of the machine, and what is assumed where they cannot be read: a container without /sys, or a filter that
//! forbids sched_getaffinity, costs placement and must not prevent the start.

use std::io;
use std::path::Path;

use steer::Topology;

/// The cores that a plan is made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineCores {
    pub topology: Topology,
    /// The cores that udpd may use.
    pub allowed: Vec<usize>,
    /// What is assumed, why, and what that costs: one line each.
    pub assumed: Vec<String>,
}

impl MachineCores {
    /// Reads the machine below `sys_root`, which is `/sys`.
    pub fn read(sys_root: &Path) -> Self {
        Self::from_parts(sys_root, Topology::read(sys_root), steer::allowed_cores())
    }

    fn from_parts(sys_root: &Path, topology: io::Result<Topology>, allowed: io::Result<Vec<usize>>) -> Self {
        let mut assumed = Vec::new();
        let topology = topology.and_then(|topology| match topology.online.is_empty() {
            true => Err(io::Error::other("no core is listed as online")),
            false => Ok(topology),
        });
        let (topology, allowed) = match (topology, allowed) {
            (Ok(topology), Ok(allowed)) => (topology, allowed),
            (Err(error), Ok(allowed)) => {
                assumed.push(format!(
                    "cannot read the cores of this machine below {}: {error}; udpd uses the cores {} that it may run \
                     on, as one memory node; mount sysfs there to place lanes near their memory",
                    sys_root.display(),
                    steer::format_core_list(&allowed)
                ));
                (Topology::flat(&allowed), allowed)
            }
            (Ok(topology), Err(error)) => {
                assumed.push(format!(
                    "cannot ask which cores udpd may run on: {error}; udpd uses all that are online; let \
                     sched_getaffinity pass, or write [steer] cpus"
                ));
                let online = topology.online.clone();
                (topology, online)
            }
            (Err(unreadable), Err(error)) => {
                assumed.push(format!("{unreadable}, and {error}: udpd pins no thread; the scheduler places them"));
                (Topology::default(), Vec::new())
            }
        };
        Self { topology, allowed, assumed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> io::Error {
        io::Error::from_raw_os_error(nix::errno::Errno::EPERM as i32)
    }

    #[test]
    fn a_machine_that_tells_everything_leaves_nothing_to_assume() {
        let topology = Topology { online: vec![0, 1, 2], ..Topology::default() };
        let machine = MachineCores::from_parts(Path::new("/sys"), Ok(topology.clone()), Ok(vec![1, 2]));
        assert_eq!(machine, MachineCores { topology, allowed: vec![1, 2], assumed: Vec::new() });
    }

    #[test]
    fn without_sysfs_the_cores_that_may_be_used_are_one_node() {
        let root = tempfile::tempdir().expect("a directory");
        let unreadable = root.path().join("devices/system/cpu");
        for make in [|_: &Path| {}, |path: &Path| std::fs::create_dir_all(path.join("online")).expect("a directory")] {
            make(&unreadable);
            let machine = MachineCores::from_parts(root.path(), Topology::read(root.path()), Ok(vec![3, 5]));
            assert_eq!((&machine.topology.online, &machine.allowed), (&vec![3, 5], &vec![3, 5]));
            assert_eq!(machine.topology.node_of_core, [(3, 0), (5, 0)].into());
            let [line] = machine.assumed.as_slice() else { panic!("{machine:?}") };
            assert!(line.contains("devices/system/cpu/online") && line.contains("the cores 3,5"), "{line}");
        }
        std::fs::remove_dir(unreadable.join("online")).expect("removed");
        std::fs::write(unreadable.join("online"), "\n").expect("an empty list");
        assert_eq!(MachineCores::from_parts(root.path(), Topology::read(root.path()), Ok(vec![3])).allowed, [3]);
    }

    #[test]
    fn without_the_affinity_all_cores_that_are_online_count() {
        let topology = Topology { online: vec![0, 1], ..Topology::default() };
        let machine = MachineCores::from_parts(Path::new("/sys"), Ok(topology), Err(refused()));
        assert_eq!(machine.allowed, [0, 1]);
        assert!(machine.assumed[0].contains("sched_getaffinity"), "{machine:?}");
    }

    #[test]
    fn with_neither_threads_go_where_the_scheduler_puts_them() {
        let machine =
            MachineCores::from_parts(Path::new("/sys"), Err(io::Error::other("cannot read it")), Err(refused()));
        assert_eq!((machine.allowed.len(), machine.assumed.len()), (0, 1));
    }
}
