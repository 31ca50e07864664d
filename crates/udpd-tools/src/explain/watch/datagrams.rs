//! Datagrams that the kernel threw away, by reason, with whose address they were aimed at: one of this host, a group
//! and whether a program has joined it, or another's.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use hostloss::HostReading;
use hostloss::drops::DropProgram;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;

use super::sockets::interface_name;
use crate::explain::evidence::{DatagramDrops, Destination};

/// Those of the watched ports, or why they could not be counted. What was dropped in other network namespaces belongs
/// here where it was on its way to this host.
pub(super) fn read(
    program: &Result<DropProgram, String>,
    counted: &HostReading,
    is_watched: impl Fn(u16) -> bool,
    proc_root: &Path,
) -> Result<Vec<DatagramDrops>, String> {
    let program = program.as_ref().map_err(Clone::clone)?;
    let own = own_addresses();
    let groups = Groups::read(proc_root);
    let drops = program.read().map_err(|error| error.to_string())?;
    let told = drops.into_iter().filter(|drop| is_watched(drop.port)).map(|drop| {
        let interface = interface_name(counted, drop.interface).unwrap_or_default();
        let aimed_at = match drop.destination {
            unknown if unknown.is_unspecified() => Destination::Unknown,
            group if group.is_multicast() => Destination::Group(groups.is_joined(group, &interface)),
            IpAddr::V4(address) if address.is_loopback() || address.is_broadcast() => Destination::Local,
            address if own.contains(&address) || address.is_loopback() => Destination::Local,
            _ => Destination::Foreign,
        };
        DatagramDrops {
            reason: drop.reason,
            source: drop.source,
            destination: drop.destination,
            aimed_at,
            port: drop.port,
            interface,
            is_for_other_host: drop.is_for_other_host,
            is_elsewhere: drop.is_elsewhere,
            longest_bytes: drop.longest_bytes,
            count: drop.count,
        }
    });
    Ok(told.filter(|drop| !drop.is_elsewhere || drop.aimed_at == Destination::Local).collect())
}

/// The addresses of this network namespace, with those by which a whole network is meant.
fn own_addresses() -> BTreeSet<IpAddr> {
    let ip = |address: SockaddrStorage| {
        let of_ipv4 = address.as_sockaddr_in().map(|it| IpAddr::from(it.ip()));
        of_ipv4.or_else(|| address.as_sockaddr_in6().map(|it| IpAddr::from(it.ip())))
    };
    let found = getifaddrs().into_iter().flatten().flat_map(|it| [it.address, it.broadcast]);
    found.flatten().filter_map(ip).collect()
}

/// The groups that programs have joined, by interface.
struct Groups(BTreeSet<(String, IpAddr)>);

impl Groups {
    fn read(proc_root: &Path) -> Self {
        let mut joined = BTreeSet::new();
        let text = |name: &str| fs::read_to_string(proc_root.join(name)).unwrap_or_default();
        let mut interface = String::new();
        for line in text("net/igmp").lines().skip(1) {
            let mut words = line.split_ascii_whitespace();
            if line.starts_with('\t') {
                let group = words.next().and_then(|word| u32::from_str_radix(word, 16).ok());
                joined.extend(group.map(|it| (interface.clone(), Ipv4Addr::from(it.to_ne_bytes()).into())));
            } else {
                words.nth(1).unwrap_or_default().clone_into(&mut interface);
            }
        }
        for line in text("net/igmp6").lines() {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let group = words.get(2).and_then(|word| u128::from_str_radix(word, 16).ok());
            let name = words.get(1).copied().unwrap_or_default();
            joined.extend(group.map(|group| (name.to_owned(), Ipv6Addr::from(group).into())));
        }
        Self(joined)
    }

    fn is_joined(&self, group: IpAddr, interface: &str) -> bool {
        self.0.contains(&(interface.to_owned(), group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostloss::testing::root;

    #[test]
    #[cfg(target_endian = "little")]
    fn groups_are_known_by_the_interface_on_which_they_were_joined() {
        let four = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n\
                    2\teth0      :     1      V3\n\t\t\t\t0A0101EF     1 0:00000000\t\t0\n";
        let six = "2    eth0            ff150000000000000000000000000007     1 00000004 0\n";
        let groups = Groups::read(root(&[("net/igmp", four), ("net/igmp6", six)]).path());
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert!(groups.is_joined(address("239.1.1.10"), "eth0") && groups.is_joined(address("ff15::7"), "eth0"));
        assert!(!groups.is_joined(address("239.1.1.10"), "eth1"));
    }
}
