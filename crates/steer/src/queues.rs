//! What sysfs says of an interface: whether it exists and how many receive queues it has.
//!
//! sysfs shows the network namespace in which it was mounted, so the answer holds for a process that was started in the
//! usual way in its namespace, and not for one that changed namespaces later.

use std::fs;
use std::path::Path;

/// True when there is an interface of this name.
fn interface_exists(sys_root: &Path, interface: &str) -> bool {
    !interface.contains('/') && sys_root.join("class/net").join(interface).exists()
}

/// The number of receive queues of an interface; `None` when it does not exist or does not tell.
pub fn receive_queues(sys_root: &Path, interface: &str) -> Option<usize> {
    if !interface_exists(sys_root, interface) {
        return None;
    }
    let entries = fs::read_dir(sys_root.join("class/net").join(interface).join("queues")).ok()?;
    let queues = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("rx-")).count();
    (queues > 0).then_some(queues)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receive_queues_are_counted_and_transmit_queues_are_not() {
        let root = tempfile::tempdir().expect("a temporary directory");
        for queue in ["rx-0", "rx-1", "tx-0"] {
            fs::create_dir_all(root.path().join("class/net/eth0/queues").join(queue)).expect("directories");
        }
        assert_eq!(receive_queues(root.path(), "eth0"), Some(2));
        assert_eq!(receive_queues(root.path(), "eth1"), None);
        assert!(!interface_exists(root.path(), "../net/eth0"), "a path is not a name");
    }
}
