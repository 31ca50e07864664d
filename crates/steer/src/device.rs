//! What sysfs says of a network interface and of the device behind it.
//!
//! The device of a virtio interface is not the PCI function: that is one step further up, and only there are the
//! interrupts and the memory node. So both are looked for upwards, and no further than the first PCI function, because
//! the bridges above it have interrupts and nodes too, which are not ours.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::model::Kind;
use crate::topology::{read_if_any, read_number, try_numbered};

/// How many steps up a device is followed; none has more.
const STEPS_MAX: usize = 8;

/// The folder of an interface.
#[derive(Debug, Clone)]
pub(crate) struct Device {
    folder: PathBuf,
    /// From the device of the interface to the PCI function, both included; empty without a device.
    chain: Vec<PathBuf>,
}

impl Device {
    /// `None` when there is no such interface.
    pub(crate) fn find(sys_root: &Path, interface: &str) -> io::Result<Option<Self>> {
        if interface.is_empty() || interface.starts_with('.') || interface.contains('/') {
            return Ok(None);
        }
        let folder = sys_root.join("class/net").join(interface);
        match folder.try_exists() {
            Ok(true) => Ok(Some(Self { chain: chain(&folder)?, folder })),
            Ok(false) => Ok(None),
            Err(error) => Err(cannot_read(&folder, &error)),
        }
    }

    pub(crate) fn index(&self) -> io::Result<u32> {
        let number = read_number(&self.folder.join("ifindex"))?.and_then(|number| u32::try_from(number).ok());
        number.ok_or_else(|| {
            io::Error::other(format!("{} does not hold the number of the interface", self.folder.display()))
        })
    }

    /// True when it is administratively up.
    pub(crate) fn is_up(&self) -> io::Result<bool> {
        let text = read_if_any(&self.folder.join("flags"))?.unwrap_or_default();
        let flags = u32::from_str_radix(text.trim().trim_start_matches("0x"), 16);
        let flags = flags.map_err(|_| {
            io::Error::other(format!("{} does not say whether the interface is up", self.folder.display()))
        })?;
        Ok(flags & libc::IFF_UP.cast_unsigned() != 0)
    }

    /// `driver` is what ethtool says; sysfs does not tell a cable by itself.
    pub(crate) fn kind(&self, driver: Option<&str>) -> io::Result<Kind> {
        let has = |name: &str| is_there(&self.folder.join(name));
        let uevent = read_if_any(&self.folder.join("uevent"))?.unwrap_or_default();
        let devtype = uevent.lines().find_map(|line| line.strip_prefix("DEVTYPE="));
        let is_loopback = read_number(&self.folder.join("type"))? == Some(usize::from(libc::ARPHRD_LOOPBACK));
        let is_radio = has("wireless")? || has("phy80211")?;
        let (is_bond, is_bridge, is_tun) = (has("bonding")?, has("bridge")?, has("tun_flags")?);
        Ok(match () {
            () if is_loopback => Kind::Loopback,
            () if is_bond => Kind::Bond,
            () if is_bridge => Kind::Bridge,
            () if is_radio => Kind::Wireless,
            () if is_tun => Kind::Tun,
            () if devtype == Some("vlan") => Kind::Vlan,
            () if driver == Some("veth") => Kind::Veth,
            () if !self.chain.is_empty() => Kind::Physical,
            () => Kind::Virtual(devtype.or(driver).unwrap_or("no device behind it").to_owned()),
        })
    }

    /// The interfaces below: members, ports, the parent of a VLAN.
    pub(crate) fn members(&self) -> io::Result<Vec<String>> {
        let mut members = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(|error| cannot_read(&self.folder, &error))? {
            let name = entry.map_err(|error| cannot_read(&self.folder, &error))?.file_name();
            members.extend(name.to_string_lossy().strip_prefix("lower_").map(str::to_owned));
        }
        members.sort();
        Ok(members)
    }

    /// The driver's name, where ethtool does not tell it.
    pub(crate) fn driver(&self) -> io::Result<Option<String>> {
        let Some(device) = self.chain.first() else { return Ok(None) };
        let path = device.join("driver");
        match fs::read_link(&path) {
            Ok(link) => Ok(link.file_name().and_then(|name| name.to_str()).map(str::to_owned)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(cannot_read(&path, &error)),
        }
    }

    /// The name of the device itself, as in "virtio2" or "0000:3b:00.0".
    pub(crate) fn name(&self) -> Option<&str> {
        self.chain.first()?.file_name()?.to_str()
    }

    /// Where the device is: the PCI function, or what else it hangs on. A name like "virtio2" can change.
    pub(crate) fn bus(&self) -> Option<&str> {
        self.chain.last()?.file_name()?.to_str()
    }

    /// The hardware address that it has now.
    pub(crate) fn address(&self) -> io::Result<Option<String>> {
        self.line("address")
    }

    /// Its permanent hardware address, which a member of a bond does not use.
    pub(crate) fn own_address(&self) -> io::Result<Option<String>> {
        Ok(self.line("bonding_slave/perm_hwaddr")?.or(self.address()?))
    }

    fn line(&self, file: &str) -> io::Result<Option<String>> {
        let text = read_if_any(&self.folder.join(file))?.unwrap_or_default();
        Ok(Some(text.trim().to_owned()).filter(|line| !line.is_empty()))
    }

    /// The memory node; `None` when the machine does not say.
    pub(crate) fn node(&self) -> io::Result<Option<usize>> {
        for folder in &self.chain {
            if is_there(&folder.join("numa_node"))? {
                return read_number(&folder.join("numa_node"));
            }
        }
        Ok(None)
    }

    /// The receive queues, by number.
    pub(crate) fn receive_queues(&self) -> io::Result<Vec<usize>> {
        try_numbered(&self.folder.join("queues"), "rx-")
    }

    /// The send queues, by number; there may be more or fewer of them.
    pub(crate) fn send_queues(&self) -> io::Result<Vec<usize>> {
        try_numbered(&self.folder.join("queues"), "tx-")
    }

    /// The numbers of the device's own interrupts. Empty when the tree does not tell, as for devices that are not on
    /// PCI.
    pub(crate) fn vectors(&self) -> io::Result<Vec<u32>> {
        for folder in &self.chain {
            let vectors = try_numbered(&folder.join("msi_irqs"), "")?;
            if !vectors.is_empty() {
                return Ok(vectors.into_iter().filter_map(|vector| u32::try_from(vector).ok()).collect());
            }
            if let Some(line) = read_number(&folder.join("irq"))?.filter(|&line| line != 0) {
                return Ok(u32::try_from(line).into_iter().collect());
            }
        }
        Ok(Vec::new())
    }

    /// The cores that a queue's datagrams are handed on to, or that send through a queue; `None` where it has no mask.
    pub(crate) fn queue_mask(&self, queue: &str, file: &str) -> io::Result<Option<Vec<usize>>> {
        let path = self.folder.join("queues").join(queue).join(file);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if has_no_mask(&error) => return Ok(None),
            Err(error) => return Err(cannot_read(&path, &error)),
        };
        parse_mask(&text)
            .map(Some)
            .ok_or_else(|| io::Error::other(format!("{} is not a mask of cores: {text:?}", path.display())))
    }

    /// True when kernel threads poll the queues.
    pub(crate) fn is_threaded(&self) -> io::Result<bool> {
        Ok(read_number(&self.folder.join("threaded"))?.is_some_and(|threaded| threaded != 0))
    }
}

/// The number of receive queues of an interface; `None` when it does not exist or does not tell.
///
/// sysfs shows the network namespace in which it was mounted, so the answer holds for a process that was started in the
/// usual way in its namespace, and not for one that changed namespaces later.
pub fn receive_queues(sys_root: &Path, interface: &str) -> Option<usize> {
    let queues = Device::find(sys_root, interface).ok()??.receive_queues().ok()?;
    Some(queues.len()).filter(|&queues| queues > 0)
}

/// How the kernel says that a queue has no mask: ENOENT where there is only one queue, EINVAL where traffic classes own
/// it.
pub(crate) fn has_no_mask(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL))
}

fn cannot_read(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot read {}: {error}", path.display()))
}

/// Unlike `exists`, this does not take an error for "no".
fn is_there(path: &Path) -> io::Result<bool> {
    path.try_exists().map_err(|error| cannot_read(path, &error))
}

fn chain(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut chain = Vec::new();
    let device = match fs::canonicalize(folder.join("device")) {
        Ok(device) => device,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(chain),
        Err(error) => return Err(cannot_read(&folder.join("device"), &error)),
    };
    for step in device.ancestors().take(STEPS_MAX) {
        // Above the devices are folders without a name of their own.
        if !is_there(&step.join("uevent"))? {
            break;
        }
        chain.push(step.to_owned());
        // Only a PCI function has a configuration space.
        if is_there(&step.join("config"))? {
            break;
        }
    }
    Ok(chain)
}

/// Reads a mask as the kernel writes it: words of 32 bits in hexadecimal, the highest first, with commas between them.
pub(crate) fn parse_mask(text: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for (word, digits) in text.trim().rsplit(',').enumerate() {
        if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let bits = u32::from_str_radix(digits, 16).ok()?;
        cores.extend((0..32).filter(|bit| bits & (1 << bit) != 0).map(|bit| 32 * word + bit));
    }
    Some(cores)
}

/// Writes a mask as the kernel does.
pub(crate) fn format_mask(cores: &[usize]) -> String {
    let words = cores.iter().max().map_or(1, |highest| highest / 32 + 1);
    let word = |number: usize| {
        let bits = cores.iter().filter(|&&core| core / 32 == number).fold(0_u32, |bits, core| bits | 1 << (core % 32));
        format!("{bits:08x}")
    };
    (0..words).rev().map(word).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn receive_queues_are_counted_and_transmit_queues_are_not() {
        let root = tempfile::tempdir().expect("a temporary directory");
        for queue in ["rx-0", "rx-1", "tx-0"] {
            fs::create_dir_all(root.path().join("class/net/eth0/queues").join(queue)).expect("directories");
        }
        assert_eq!(receive_queues(root.path(), "eth0"), Some(2));
        assert_eq!(receive_queues(root.path(), "eth1"), None);
        assert_eq!(receive_queues(root.path(), "../net/eth0"), None, "a path is not a name");
    }

    #[test]
    fn masks_are_read_and_written_as_the_kernel_does() {
        assert_eq!(parse_mask("3\n"), Some(vec![0, 1]));
        assert_eq!(parse_mask("00000001,80000002"), Some(vec![1, 31, 32]));
        assert_eq!(format_mask(&[1, 31, 32]), "00000001,80000002");
        assert_eq!(format_mask(&[]), "00000000");
        for wrong in ["", "g", "1,", "123456789", "+1"] {
            assert_eq!(parse_mask(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn every_mask_is_read_back_as_it_was_written() {
        let mut random = Random::default();
        for _ in 0..if cfg!(debug_assertions) { 10_000 } else { 1_000_000 } {
            let state = random.next();
            let cores: Vec<usize> = (0..64).filter(|bit| state & (1 << bit) != 0).collect();
            assert_eq!(parse_mask(&format_mask(&cores)), Some(cores));
            // And what is no mask is refused or read, never a panic.
            let bytes: Vec<u8> =
                state.to_ne_bytes().iter().map(|byte| b" ,0123456789abcdefxg-\n"[usize::from(byte % 22)]).collect();
            let _ = parse_mask(&String::from_utf8_lossy(&bytes));
        }
    }
}
