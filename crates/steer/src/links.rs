//! The interfaces of this network namespace as the kernel lists them to whoever asks it. sysfs shows those of the
//! namespace in which it was mounted, which need not be this one; only both lists together tell.

use std::collections::BTreeMap;
use std::io;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nameindex;

/// One interface of this network namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its hardware address, where it has one of six bytes.
    pub address: Option<String>,
}

/// Asks the kernel, in the network namespace of this thread.
pub(crate) fn links() -> io::Result<Vec<Link>> {
    let mut addresses = BTreeMap::new();
    for interface in getifaddrs()? {
        let link = interface.address.as_ref().and_then(|address| address.as_link_addr());
        if let Some(bytes) = link.and_then(|link| link.addr()) {
            let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            addresses.insert(interface.interface_name, bytes.join(":"));
        }
    }
    let mut links: Vec<Link> = Vec::new();
    for interface in &if_nameindex()? {
        let name = interface.name().to_string_lossy().into_owned();
        let address = addresses.get(&name).cloned();
        links.push(Link { index: interface.index(), name, address });
    }
    links.sort();
    Ok(links)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_lists_the_loopback_with_its_number() {
        let links = links().expect("the kernel answers");
        let loopback = links.iter().find(|link| link.name == "lo").expect("every namespace has one");
        assert_eq!(loopback.index, 1);
    }
}
