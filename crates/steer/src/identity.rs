//! Tells interfaces apart, so that what was saved for one is never written to another, and tells when one is really
//! gone.
//!
//! A number belongs to an interface for as long as its network namespace lives, and to another one in another
//! namespace; a name can be given away at any time. sysfs shows the namespace in which it was mounted, or nothing where
//! it is not mounted at all. So nothing is concluded before sysfs and the kernel list the same interfaces with the same
//! numbers and addresses, and an interface is gone only when its driver says so too.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use crate::device::Device;
use crate::ethtool::EthtoolError;
use crate::host::Reader;
use crate::host::pause;
use crate::netdev::Link;

/// How often both lists are read until they agree: interfaces come and go while they are listed.
const READINGS: usize = 5;

/// The length of a hardware address of six bytes as a text.
const ADDRESS_CHARACTERS: usize = 17;

/// A network namespace, while it exists: the device and the inode of its file in procfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Namespace {
    /// The device of the file.
    pub device: u64,
    /// Its inode, as `lsns -t net` shows it.
    pub inode: u64,
}

/// What tells an interface from every other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its name at that time.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Its network namespace.
    pub namespace: Namespace,
    /// Its hardware address; of a member of a bond its own one.
    pub address: Option<String>,
    /// Where its device is, as in "0000:3b:00.0".
    pub bus: Option<String>,
}

impl Identity {
    /// True for the device of an interface that has the same number. A bus address is the place of a card and stays; an
    /// administrator may change a hardware address at any time, so it tells devices apart only where there is no bus.
    pub(crate) fn is_device_of(&self, other: &Self) -> bool {
        match (&self.bus, &other.bus) {
            (Some(bus), Some(other)) => bus == other,
            _ => self.address == other.address,
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |text: &Option<String>| text.clone().unwrap_or_else(|| "none".to_owned());
        write!(formatter, "interface {} with address {}", self.index, word(&self.address))?;
        if self.bus.is_some() { write!(formatter, " on bus {}", word(&self.bus)) } else { Ok(()) }
    }
}

/// Whether an interface that was saved is still there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    /// It is there, under this name.
    Here(String),
    /// It is certainly gone.
    Gone,
    /// It cannot be told, or not from this namespace: why.
    Unclear(String),
}

impl Reader<'_> {
    /// The network namespace of this thread.
    pub(crate) fn namespace(&self) -> io::Result<Namespace> {
        let path = self.proc_root.join("thread-self/ns/net");
        let file = fs::metadata(&path).map_err(|error| {
            let what = format!("cannot tell the network namespace from {}: {error}", path.display());
            io::Error::new(error.kind(), what)
        })?;
        Ok(Namespace { device: file.dev(), inode: file.ino() })
    }

    /// The interfaces on which sysfs and the kernel agree; an error where they do not.
    pub(crate) fn links(&self) -> io::Result<Vec<Link>> {
        let mut differs = String::new();
        for reading in 0..READINGS {
            if reading > 0 {
                pause();
            }
            let (shown, told) = (self.links_of_sysfs()?, self.netdev.links()?);
            match difference(&shown, &told) {
                None => return Ok(shown),
                Some(difference) => differs = difference,
            }
        }
        let sys = self.sys_root.display();
        Err(io::Error::other(format!("{sys} does not show the interfaces of this network namespace: {differs}")))
    }

    fn links_of_sysfs(&self) -> io::Result<Vec<Link>> {
        let folder = self.sys_root.join("class/net");
        let mut links = Vec::new();
        for name in self.all_interfaces()? {
            // The bonding driver puts a file of its own there.
            if folder.join(&name).is_file() {
                continue;
            }
            let Some(device) = Device::find(self.sys_root, &name)? else { continue };
            match device.index().and_then(|index| Ok((index, device.address()?))) {
                Ok((index, address)) => links.push(Link { index, address, name }),
                // One that went while we looked.
                Err(_) if !folder.join(&name).exists() => {}
                Err(error) => return Err(error),
            }
        }
        links.sort();
        Ok(links)
    }

    /// What tells this interface from every other.
    pub(crate) fn identity(&self, interface: &str) -> io::Result<Identity> {
        let missing = || io::Error::new(io::ErrorKind::NotFound, format!("there is no interface {interface}"));
        let link = self.links()?.into_iter().find(|link| link.name == interface).ok_or_else(missing)?;
        let device = Device::find(self.sys_root, interface)?.ok_or_else(missing)?;
        Ok(Identity {
            name: link.name,
            index: link.index,
            namespace: self.namespace()?,
            address: device.own_address()?.or(link.address),
            bus: device.bus().map(str::to_owned),
        })
    }

    /// True while the interface of this name has this number.
    pub(crate) fn is_still(&self, interface: &str, index: u32) -> bool {
        let device = Device::find(self.sys_root, interface).ok().flatten();
        device.is_some_and(|device| device.index().is_ok_and(|now| now == index))
    }

    /// Looks for an interface that was saved.
    pub(crate) fn whereabouts(&self, was: &Identity) -> Whereabouts {
        self.look_for(was).unwrap_or_else(|error| {
            Whereabouts::Unclear(format!("cannot tell whether {} is still there: {error}", was.name))
        })
    }

    fn look_for(&self, was: &Identity) -> io::Result<Whereabouts> {
        let here = self.namespace()?;
        if here != was.namespace {
            let (there, here) = (was.namespace.inode, here.inode);
            return Ok(Whereabouts::Unclear(format!(
                "{} belongs to the network namespace {there}, and this is {here}: restore it there",
                was.name
            )));
        }
        if let Some(link) = self.links()?.into_iter().find(|link| link.index == was.index) {
            let now = self.identity(&link.name)?;
            if now.is_device_of(was) {
                return Ok(Whereabouts::Here(link.name));
            }
            return Ok(Whereabouts::Unclear(format!("{} is {now} now, and what was saved is of {was}", link.name)));
        }
        match self.ethtool.driver(&was.name) {
            Err(EthtoolError::NoInterface) => Ok(Whereabouts::Gone),
            // Another interface has its name by now, and both lists say that no interface has its number.
            Ok(_) | Err(EthtoolError::NotSupported) if Device::find(self.sys_root, &was.name)?.is_some() => {
                Ok(Whereabouts::Gone)
            }
            Ok(_) | Err(EthtoolError::NotSupported) => Ok(Whereabouts::Unclear(format!(
                "cannot tell whether {} is still there: a driver answers for it, and no list has it",
                was.name
            ))),
            Err(error) => Err(io::Error::other(error.to_string())),
        }
    }
}

/// The first difference of what sysfs shows from what the kernel tells.
fn difference(shown: &[Link], told: &[Link]) -> Option<String> {
    let is_same = |one: &Link, other: &Link| {
        let comparable = |link: &Link| link.address.clone().filter(|it| it.len() == ADDRESS_CHARACTERS);
        let addresses = comparable(one).zip(comparable(other));
        (one.index, &one.name) == (other.index, &other.name) && addresses.is_none_or(|(one, other)| one == other)
    };
    let describe = |link: &Link| format!("{} {} {}", link.index, link.name, link.address.as_deref().unwrap_or("-"));
    let only_shown = shown.iter().find(|one| !told.iter().any(|other| is_same(one, other)));
    let only_told = told.iter().find(|one| !shown.iter().any(|other| is_same(one, other)));
    only_shown
        .map(|link| format!("it shows {}, which the kernel does not have", describe(link)))
        .or_else(|| only_told.map(|link| format!("the kernel has {}, which it does not show", describe(link))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::while_pausing;
    use crate::testing::Machine;

    #[test]
    fn an_interface_that_goes_while_the_lists_are_read_is_given_the_time_to() {
        let machine = Machine::unpack("sys/class/net/lo/ifindex = 1\nsys/class/net/veth0/ifindex = 7");
        let veth = machine.sys().join("class/net/veth0");
        machine.netdev.links.lock().expect("no thread panicked").retain(|link| link.name == "lo");
        while_pausing(move |pauses| {
            if pauses == 1 {
                fs::remove_dir_all(&veth).expect("it was there");
            }
        });
        let links = machine.with_reader(&[], |reader| reader.links()).expect("they agree by then");
        assert_eq!(links.iter().map(|link| link.name.as_str()).collect::<Vec<_>>(), ["lo"]);
    }
}
