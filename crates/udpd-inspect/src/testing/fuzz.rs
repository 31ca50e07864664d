//! Fuzz targets: lists of networks, and datagrams as a receiver looks at them.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::policy::lists::read_lines;
use crate::policy::{AccessList, parse_network};

/// A target and its name.
pub type NamedTarget = (&'static str, fn(&[u8]));

/// All of them.
pub fn targets() -> Vec<NamedTarget> {
    vec![("received", crate::upstream::fuzz::received), ("networks", networks)]
}

/// What the table answers is what a look at every network answers.
fn networks(input: &[u8]) {
    let (mut all, mut last) = (Vec::new(), 0);
    let mut refused = Vec::new();
    let take = |network: IpNet, line: u32| {
        assert!(line > last);
        last = line;
        all.push(network);
    };
    read_lines(input, take, |line, advice| refused.push((line, advice))).expect("no disk is read");
    assert!(all.len() + refused.len() <= input.len());
    for (_, advice) in &refused {
        assert!(!advice.to_string().contains(char::is_control), "{advice}");
    }
    for network in &all {
        assert_eq!(parse_network(&network.to_string()).as_ref(), Ok(network));
    }
    // Every other network is refused; a network stands on one side only.
    let is_accepted =
        |network: &IpNet| all.iter().position(|other| other == network).is_some_and(|place| place % 2 == 0);
    let (allow, deny): (Vec<IpNet>, Vec<IpNet>) = all.iter().partition(|network| is_accepted(network));
    let list = AccessList::new(&allow, &deny);
    let edges = all.iter().flat_map(|network| around(network.network()).chain(around(network.broadcast())));
    for address in edges.take(300) {
        let longest =
            all.iter().filter(|network| network.contains(&address)).max_by_key(|network| network.prefix_len());
        assert_eq!(list.accepts(address), longest.map_or(allow.is_empty(), is_accepted), "{address}");
    }
}

/// An address, the one before it and the one behind it.
fn around(address: IpAddr) -> impl Iterator<Item = IpAddr> {
    [u128::MAX, 0, 1].into_iter().filter_map(move |step| match address {
        IpAddr::V4(v4) => Some(IpAddr::from(v4.to_bits().wrapping_add(step as u32).to_be_bytes())),
        // The table takes a mapped address for IPv4, and a network of IPv6 does not hold it.
        IpAddr::V6(v6) => {
            let near = std::net::Ipv6Addr::from_bits(v6.to_bits().wrapping_add(step));
            near.to_ipv4_mapped().is_none().then_some(IpAddr::V6(near))
        }
    })
}
