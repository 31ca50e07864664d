//! Finds the interrupt of a receive queue by the best source that answers, or tells why it is unknown.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::{fs, io};

use crate::device::Device;
use crate::model::{Interrupt, Known, Source};
use crate::netdev::NetdevQueue;
use crate::topology::{read_if_any, read_list, read_list_if_any, try_numbered};

/// One interrupt of a device and what its drivers call it.
struct Vector {
    number: u32,
    name: String,
}

/// The trees in which the kernel describes interrupts.
pub(crate) struct Roots<'a> {
    pub(crate) sys: &'a Path,
    pub(crate) proc: &'a Path,
}

impl Roots<'_> {
    /// The interrupt of each of `queues`, in their order.
    pub(crate) fn interrupts(
        &self,
        device: &Device,
        driver: Option<&str>,
        queues: &[usize],
        kernel: &io::Result<Vec<NetdevQueue>>,
    ) -> io::Result<Vec<Known<Interrupt>>> {
        let vectors = self.vectors(device)?;
        let names: Vec<&str> = vectors.iter().map(|vector| vector.name.as_str()).collect();
        let named = driver.map(|driver| read_names(driver, &names)).unwrap_or_default();
        let by_name =
            |wanted: Named| named.iter().position(|named| *named == Some(wanted)).map(|place| &vectors[place]);
        queues
            .iter()
            .map(|&queue| {
                let told = kernel.iter().flatten().find(|told| told.queue as usize == queue);
                let told = told.and_then(|told| told.interrupt);
                if let Some(number) = told {
                    return self.describe(number, Source::Netlink).map(Known::Is);
                }
                if let Some(vector) = by_name(Named::Queue(queue)).or_else(|| by_name(Named::AllQueues)) {
                    return self.describe(vector.number, Source::DriverName).map(Known::Is);
                }
                if let ([_], [vector]) = (queues, vectors.as_slice()) {
                    return self.describe(vector.number, Source::OnlyOne).map(Known::Is);
                }
                let silent = kernel.as_ref().err().map_or(String::new(), |error| format!(" ({error})"));
                Ok(Known::Unknown(why_unknown(driver, queue, vectors.len()) + &silent))
            })
            .collect()
    }

    /// The numbers and names of all the device's interrupts.
    pub(crate) fn names(&self, device: &Device) -> io::Result<Vec<(u32, String)>> {
        Ok(self.vectors(device)?.into_iter().map(|vector| (vector.number, vector.name)).collect())
    }

    /// The device's own vectors. A device that is not on PCI has no list of them; a virtio device is then found by its
    /// own name, which its interrupts carry and which no other device has.
    fn vectors(&self, device: &Device) -> io::Result<Vec<Vector>> {
        let own = device.vectors()?;
        let all = if own.is_empty() {
            try_numbered(&self.sys.join("kernel/irq"), "")?
                .into_iter()
                .filter_map(|number| u32::try_from(number).ok())
                .collect()
        } else {
            own.clone()
        };
        let mut vectors = Vec::new();
        for number in all {
            // A line that several devices share has several names.
            let names = read_if_any(&self.sys.join(format!("kernel/irq/{number}/actions")))?.unwrap_or_default();
            for name in names.trim().split(',').filter(|name| !name.is_empty()) {
                let is_ours = device.name().filter(|device| device.starts_with("virtio")).is_some_and(|device| {
                    name.strip_prefix(device).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
                });
                if is_ours || !own.is_empty() {
                    vectors.push(Vector { number, name: name.to_owned() });
                }
            }
        }
        Ok(vectors)
    }

    fn describe(&self, number: u32, source: Source) -> io::Result<Interrupt> {
        let affinity = self.proc.join(format!("irq/{number}/smp_affinity_list"));
        let requested = read_list(&affinity)?;
        let effective = self.effective(number)?;
        // The kernel takes the right to write away from what it manages itself.
        let is_settable = fs::metadata(&affinity)?.permissions().mode() & 0o200 != 0;
        let name = read_if_any(&self.sys.join(format!("kernel/irq/{number}/actions")))?.unwrap_or_default();
        let effective = if effective.is_empty() { requested.clone() } else { effective };
        Ok(Interrupt { number, name: name.trim().to_owned(), requested, effective, is_settable, source })
    }
}

impl Roots<'_> {
    /// The cores where an interrupt fires; none where the kernel does not tell.
    pub(crate) fn effective(&self, number: u32) -> io::Result<Vec<usize>> {
        read_list_if_any(&self.proc.join(format!("irq/{number}/effective_affinity_list")))
    }

    /// How often an interrupt has fired since the machine was started.
    pub(crate) fn fired(&self, number: u32) -> io::Result<u64> {
        let path = self.sys.join(format!("kernel/irq/{number}/per_cpu_count"));
        let unread = |why: String| io::Error::other(format!("cannot read {}: {why}", path.display()));
        let text = fs::read_to_string(&path).map_err(|error| unread(error.to_string()))?;
        let counts = text.trim().split(',').map(str::parse::<u64>);
        counts.sum::<Result<u64, _>>().map_err(|_| unread(format!("{text:?} is no list of numbers")))
    }
}

fn why_unknown(driver: Option<&str>, queue: usize, vectors: usize) -> String {
    match driver {
        None => "neither ethtool nor sysfs names the driver".to_owned(),
        Some(driver) if !is_known_driver(driver) => {
            format!("the kernel does not say which it is, and how the driver {driver} names its interrupts is unknown")
        }
        Some(_) if vectors == 0 => "the device shows no interrupts; an interface that is down has none".to_owned(),
        Some(driver) => {
            format!("none of the device's {vectors} interrupts has a name that {driver} would give to queue {queue}")
        }
    }
}

// Drivers name their interrupts as they like, and a name often contains the interface's name as it was when the
// interrupt was requested: after a rename it is stale. So the interface's name is never compared. Only names of the
// device's own vectors are read, and of those only the part that the driver itself composes. A driver that is not in
// the table is not guessed at.

/// What the name of an interrupt says.
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
    fn each_driver_is_read_as_it_writes_and_what_only_resembles_a_number_is_none() {
        type Name = (&'static str, Option<usize>);
        let cases: &[(&str, &[Name])] = &[
            (
                "ixgbe",
                &[("eth0-TxRx-3", Some(3)), ("eth0-rx-1", Some(1)), ("eth0", None), ("old-name-TxRx-3", Some(3))],
            ),
            ("ixgbe", &[("eth0-TxRx-+3", None), ("eth0-TxRx-", None), ("eth0-TxRx-3x", None)]),
            ("ixgbe", &[("eth0-TxRx-99999999999999999999999", None)]),
            ("i40e", &[("i40e-eth0-TxRx-12", Some(12)), ("i40e-0000:3b:00.0:misc", None)]),
            ("ice", &[("ice-ens1f0-TxRx-0", Some(0)), ("ice-0000:17:00.0:misc", None)]),
            ("iavf", &[("iavf-ens1f0v0-TxRx-2", Some(2))]),
            ("mlx5_core", &[("mlx5_comp5@pci:0000:3b:00.0", Some(5)), ("mlx5_async0@pci:0000:3b:00.0", None)]),
            ("ena", &[("ens5-Tx-Rx-1", Some(1)), ("ena-mgmnt@pci:0000:00:05.0", None)]),
            ("bnxt_en", &[("bnxt_en-ens3-TxRx-4", Some(4)), ("ens3-rx-1", Some(1)), ("ens3-tx-1", None)]),
            ("vmxnet3", &[("eth1-rxtx-2", Some(2)), ("eth1-event-4", None)]),
            ("a_driver_of_tomorrow", &[("eth0-TxRx-3", None)]),
        ];
        for (driver, names) in cases {
            let (names, expected): (Vec<&str>, Vec<Option<usize>>) = names.iter().copied().unzip();
            assert_eq!(queues(driver, &names), expected, "{driver}: {names:?}");
        }
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
}
