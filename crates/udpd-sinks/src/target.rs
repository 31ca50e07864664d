//! Where a destination is now: an address is where it is written, one on an interface goes with the number that the
//! interface has, which is another after it was gone, and a name is wherever its resolver says.

use std::borrow::Cow;
use std::io;
use std::net::{SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

use mmsg::{Family, Socket};
use nix::libc;

use udpd_base::os::host_names::{FollowedName, LookupRequest};
use udpd_base::os::threads;
use udpd_base::os::threads::ThreadRegistry;
use udpd_base::text::address;
use udpd_base::text::address::PeerAddress;

/// How long the first datagrams wait for the first answers of a resolver.
pub(crate) const FIRST_ANSWER: Duration = Duration::from_secs(1);

/// What the address of a destination comes from.
#[derive(Debug)]
pub(crate) enum DestinationTarget {
    At(SocketAddr),
    OnInterface { peer: PeerAddress, address: SocketAddrV6, interface: String },
    Named(FollowedName),
}

/// How names are looked up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lookup<'a> {
    pub(crate) registry: &'a ThreadRegistry,
    pub(crate) every: Duration,
    /// The name of the sink.
    pub(crate) sink: &'a str,
    /// The addresses that this process receives on: no name may lead back there.
    pub(crate) bound: &'a [SocketAddr],
}

impl DestinationTarget {
    /// Begins to look up a name.
    pub(crate) fn at(peer: &PeerAddress, lookup: Lookup<'_>) -> io::Result<Self> {
        Ok(match peer {
            PeerAddress::Address(address) => Self::At(*address),
            PeerAddress::OnInterface { ip, interface, port } => Self::OnInterface {
                peer: peer.clone(),
                address: SocketAddrV6::new(*ip, *port, 0, 0),
                interface: interface.clone(),
            },
            PeerAddress::Host { name, port } => {
                let asker = format!("sink {}", lookup.sink);
                let question = LookupRequest { name: name.clone(), port: *port, every: lookup.every, asker };
                let bound = lookup.bound.to_vec();
                let local = udpd_base::os::lookup::local_addresses();
                let is_usable = move |address: SocketAddr| {
                    address::parse_destination(&address.to_string()).is_ok()
                        && !bound.iter().any(|&bound| address::reaches(address, bound, &local))
                };
                Self::Named(FollowedName::follow(lookup.registry, question, is_usable)?)
            }
        })
    }

    /// Waits for the first answer about a name, until `limit`.
    pub(crate) fn settle(&self, limit: Instant) {
        if let Self::Named(name) = self {
            threads::blocking(|| name.wait(limit));
        }
    }

    /// Whether its address is unknown until a resolver has answered.
    pub(crate) fn is_named(&self) -> bool {
        matches!(self, Self::Named(_))
    }

    /// Its addresses now, at least one; `before` is the one in use, which comes first as long as a name still has it,
    /// because resolvers rotate their answers. Nothing is allocated for a plain address: this is called once a second.
    pub(crate) fn now(&self, before: Option<SocketAddr>) -> io::Result<Cow<'_, [SocketAddr]>> {
        match self {
            Self::At(address) => Ok(std::slice::from_ref(address).into()),
            Self::OnInterface { peer, address, interface } => {
                let index = index_of(interface).map_err(|error| {
                    io::Error::new(
                        io::ErrorKind::NotFound,
                        format!("{peer} is on an interface that is not there: {error}"),
                    )
                })?;
                Ok(vec![SocketAddr::from(SocketAddrV6::new(*address.ip(), address.port(), 0, index))].into())
            }
            Self::Named(name) => {
                let mut addresses = name.addresses();
                if addresses.is_empty() {
                    return Err(io::Error::new(io::ErrorKind::NotFound, "no resolver has given its address yet"));
                }
                // Stable: the others stay in the resolver's order.
                addresses.sort_by_key(|address| before != Some(*address));
                Ok(addresses.into())
            }
        }
    }

    /// Whether its address can change.
    pub(crate) fn moves(&self) -> bool {
        !matches!(self, Self::At(_))
    }
}

/// The number of an interface, asked by a socket of a kind that a relay makes anyway: a sandbox allows no other.
fn index_of(interface: &str) -> io::Result<u32> {
    let socket = Socket::nonblocking(Family::V6).or_else(|error| match error.raw_os_error() {
        Some(libc::EAFNOSUPPORT) => Socket::nonblocking(Family::V4),
        _ => Err(error),
    })?;
    Ok(rustix::net::netdevice::name_to_index(socket, interface)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_has_a_number_while_it_is_there() {
        let expected = nix::net::if_::if_nametoindex("lo").expect("every host has it");
        assert_eq!(index_of("lo").expect("a number"), expected);
        assert!(index_of("nosuch0").is_err());
    }
}
