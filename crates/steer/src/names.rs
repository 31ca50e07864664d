//! Which queue an interrupt belongs to, by the name that the driver gave it.
//!
//! Drivers name their interrupts as they like, and a name often contains the interface's name as it was when the
//! interrupt was requested: after a rename it is stale. So the interface's name is never compared. The caller passes
//! only names of the device's own vectors, and here only the part that the driver itself composes is read. A driver
//! that is not in the table is not guessed at.

/// What a name says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Named {
    /// The interrupt of this receive queue.
    Queue(usize),
    /// One interrupt for all queues.
    AllQueues,
}

/// How a driver names the interrupts of its receive queues.
#[derive(Debug, Clone, Copy)]
enum Pattern {
    /// What is behind the last of these is the number of the queue.
    Behind(&'static [&'static str]),
    /// What is between the two is the number of the queue.
    Between(&'static str, &'static str),
    /// As before, but the first half of the blocks is for sending.
    UpperHalf(&'static [(&'static str, &'static str)]),
    /// `virtioN-input.Q`, or one for all when vectors are short.
    Virtio,
}

/// The drivers whose source says how they name their interrupts.
const PATTERNS: &[(&str, Pattern)] = &[
    ("bnxt_en", Pattern::Behind(&["-TxRx-", "-rx-"])),
    ("e1000e", Pattern::Behind(&["-rx-"])),
    ("ena", Pattern::Behind(&["-Tx-Rx-"])),
    ("gve", Pattern::UpperHalf(&[("gve-ntfy-blk", "@pci:"), ("-ntfy-block.", "")])),
    ("i40e", Pattern::Behind(&["-TxRx-", "-rx-"])),
    ("iavf", Pattern::Behind(&["-TxRx-", "-rx-"])),
    ("ice", Pattern::Behind(&["-TxRx-", "-rx-"])),
    ("igb", Pattern::Behind(&["-TxRx-", "-rx-"])),
    ("igc", Pattern::Behind(&["-TxRx-", "-rx-"])),
    ("ixgbe", Pattern::Behind(&["-TxRx-", "-rx-"])),
    ("ixgbevf", Pattern::Behind(&["-TxRx-", "-rx-"])),
    ("mlx5_core", Pattern::Between("mlx5_comp", "@pci:")),
    ("virtio_net", Pattern::Virtio),
    ("vmxnet3", Pattern::Behind(&["-rxtx-", "-rx-"])),
];

/// True when the table knows the driver.
pub(crate) fn is_known_driver(driver: &str) -> bool {
    pattern_of(driver).is_some()
}

/// What each of `names`, the names of all the device's own vectors, says; in the same order.
pub(crate) fn read_names(driver: &str, names: &[&str]) -> Vec<Option<Named>> {
    let Some(pattern) = pattern_of(driver) else { return vec![None; names.len()] };
    match pattern {
        Pattern::Behind(markers) => {
            names.iter().map(|name| markers.iter().find_map(|marker| behind(name, marker)).map(Named::Queue)).collect()
        }
        Pattern::Between(before, after) => {
            names.iter().map(|name| between(name, before, after).map(Named::Queue)).collect()
        }
        Pattern::UpperHalf(forms) => {
            let block = |name: &&str| forms.iter().find_map(|(before, after)| between(name, before, after));
            let blocks: Vec<Option<usize>> = names.iter().map(block).collect();
            let half = blocks.iter().flatten().count() / 2;
            blocks.into_iter().map(|block| block?.checked_sub(half).map(Named::Queue)).collect()
        }
        Pattern::Virtio => names.iter().map(|name| virtio(name)).collect(),
    }
}

fn pattern_of(driver: &str) -> Option<Pattern> {
    PATTERNS.iter().find(|(name, _)| *name == driver).map(|(_, pattern)| *pattern)
}

fn virtio(name: &str) -> Option<Named> {
    let (device, role) = name.split_once('-').unwrap_or((name, "virtqueues"));
    device.strip_prefix("virtio").and_then(number)?;
    if role == "virtqueues" {
        return Some(Named::AllQueues);
    }
    role.strip_prefix("input.").and_then(number).map(Named::Queue)
}

fn behind(name: &str, marker: &str) -> Option<usize> {
    name.rsplit_once(marker).and_then(|(_, digits)| number(digits))
}

/// An empty `after` is the end of the name.
fn between(name: &str, before: &str, after: &str) -> Option<usize> {
    let (_, rest) = name.split_once(before)?;
    let digits = if after.is_empty() { rest } else { rest.split_once(after)?.0 };
    number(digits)
}

/// Digits and nothing else; `parse` alone would take a sign.
fn number(digits: &str) -> Option<usize> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(driver: &str, names: &[&str]) -> Vec<Option<usize>> {
        let read = read_names(driver, names).into_iter();
        read.map(|named| named.map(|named| if let Named::Queue(queue) = named { queue } else { usize::MAX })).collect()
    }

    #[test]
    fn each_driver_is_read_as_it_writes() {
        assert_eq!(queues("ixgbe", &["eth0-TxRx-3", "eth0-rx-1", "eth0"]), [Some(3), Some(1), None]);
        assert_eq!(queues("i40e", &["i40e-eth0-TxRx-12", "i40e-0000:3b:00.0:misc"]), [Some(12), None]);
        assert_eq!(queues("ice", &["ice-ens1f0-TxRx-0", "ice-0000:17:00.0:misc"]), [Some(0), None]);
        assert_eq!(queues("iavf", &["iavf-ens1f0v0-TxRx-2"]), [Some(2)]);
        assert_eq!(
            queues("mlx5_core", &["mlx5_comp5@pci:0000:3b:00.0", "mlx5_async0@pci:0000:3b:00.0"]),
            [Some(5), None]
        );
        assert_eq!(queues("ena", &["ens5-Tx-Rx-1", "ena-mgmnt@pci:0000:00:05.0"]), [Some(1), None]);
        assert_eq!(queues("bnxt_en", &["bnxt_en-ens3-TxRx-4", "ens3-rx-1", "ens3-tx-1"]), [Some(4), Some(1), None]);
        assert_eq!(queues("vmxnet3", &["eth1-rxtx-2", "eth1-event-4"]), [Some(2), None]);
    }

    #[test]
    fn virtio_says_one_queue_or_all_of_them() {
        let names = ["virtio2-input.1", "virtio2-output.1", "virtio2-config", "virtio2-virtqueues", "virtio2"];
        let all = Some(Named::AllQueues);
        assert_eq!(read_names("virtio_net", &names), [Some(Named::Queue(1)), None, None, all, all]);
    }

    #[test]
    fn gve_receives_on_the_upper_half_of_its_blocks() {
        let names: Vec<String> = (0..8).map(|block| format!("gve-ntfy-blk{block}@pci:0000:00:04.0")).collect();
        let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
        names.push("gve-mgmnt@pci:0000:00:04.0");
        let expected = [None, None, None, None, Some(0), Some(1), Some(2), Some(3), None];
        assert_eq!(queues("gve", &names), expected);
    }

    #[test]
    fn a_name_from_before_a_rename_says_the_same() {
        assert_eq!(queues("ixgbe", &["old-name-TxRx-3"]), [Some(3)]);
    }

    #[test]
    fn what_only_resembles_a_number_is_none() {
        assert_eq!(queues("ixgbe", &["eth0-TxRx-+3", "eth0-TxRx-", "eth0-TxRx-3x"]), [None, None, None]);
        assert_eq!(queues("ixgbe", &["eth0-TxRx-99999999999999999999999"]), [None]);
        assert_eq!(queues("a_driver_of_tomorrow", &["eth0-TxRx-3"]), [None], "an unknown driver is not guessed at");
    }
}
