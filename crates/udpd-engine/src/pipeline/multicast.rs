//! Joins multicast groups: which lane joins which group, on which interface, from which sources.
//!
//! The kernel gives a copy of a multicast datagram to every socket that joined its group, whatever group of sockets
//! they are in. So one lane joins a group and the others do not: the groups of an address are dealt out to its lanes in
//! turn. And no socket takes what it has not joined: by default Linux also gives a wildcard socket what any other
//! program of the host joined, which would reach every lane.
//!
//! Nor does the kernel always ask who joined: where one socket has, an early look finds it before the route is known,
//! and takes it for any member of its reuseport group, among which the hash then chooses. So the group has a program
//! that chooses the lane by the destination. What was not sent to a group is left to the hash.
//!
//! A membership belongs to an interface by its index. When the interface is removed, it stays in the socket's list and
//! receives nothing any more; for the interface that comes back under the same name, which has another index, it is
//! made anew.

use std::net::IpAddr;
use std::{fmt, io};

use mmsg::{GroupSpread, Socket};
use nix::net::if_::if_nametoindex;

use super::lane_setup::LaneSetup;
use crate::config::{Lanes, ListenerConfig, Spread};
use crate::plan::{LanePlan, spread};
use udpd_base::exit::{ExitCode, Failure};

/// One group that a lane joins, from one source or from all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Membership {
    group: IpAddr,
    source: Option<IpAddr>,
}

impl fmt::Display for Membership {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            Some(source) => write!(formatter, "{} from {source}", self.group),
            None => write!(formatter, "{}", self.group),
        }
    }
}

fn memberships(listener: &ListenerConfig, plan: &LanePlan) -> Vec<Membership> {
    let lanes = match listener.lanes {
        Lanes::Auto => 1,
        Lanes::Count(count) => count.get(),
    };
    let multicast = &listener.multicast;
    let received = multicast.groups.iter().filter(|group| receives(plan.address.ip(), **group));
    let own = received.enumerate().filter(|(number, _)| number % lanes == plan.member).map(|(_, group)| *group);
    own.flat_map(|group| {
        let of_family = multicast.sources.iter().filter(move |source| source.is_ipv4() == group.is_ipv4());
        let from_each = of_family.map(move |source| Membership { group, source: Some(*source) });
        let from_all = multicast.sources.is_empty().then_some(Membership { group, source: None });
        from_each.chain(from_all)
    })
    .collect()
}

/// How the datagrams of an address are spread over these lanes, which are all of it.
pub(super) fn group_spread<'a>(
    listener: &ListenerConfig,
    plans: impl Iterator<Item = &'a LanePlan> + Clone,
) -> GroupSpread {
    if listener.spread != Spread::Flow || plans.clone().count() < 2 || listener.multicast.groups.is_empty() {
        return spread::group_spread(listener.spread, plans.map(|plan| &plan.intake));
    }
    // There are no more lanes than 32 bits hold.
    let joined = |plan: &LanePlan| memberships(listener, plan).into_iter().map(|one| one.group).collect::<Vec<_>>();
    let mut table: Vec<(IpAddr, u32)> =
        plans.flat_map(|plan| joined(plan).into_iter().map(|group| (group, plan.member as u32))).collect();
    table.dedup();
    GroupSpread::Destination(table)
}

/// What the lane of this plan joins, and on which interface, in a number that is the same in every process; `None` when
/// that is nothing.
pub(super) fn fingerprint(listener: &ListenerConfig, plan: &LanePlan) -> Option<u32> {
    let memberships = memberships(listener, plan);
    if memberships.is_empty() {
        return None;
    }
    let mut text = listener.multicast.interface.clone().unwrap_or_default();
    memberships.iter().for_each(|membership| text.push_str(&format!(" {membership}")));
    // FNV-1a.
    Some(text.bytes().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)))
}

/// Whether a socket on `address` is given what is sent to `group`; [::] takes both families.
fn receives(address: IpAddr, group: IpAddr) -> bool {
    address == group || (address.is_unspecified() && (address.is_ipv6() || group.is_ipv4()))
}

/// Makes a socket that is not bound yet take what its lane joins, and nothing else of multicast.
pub(super) fn prepare(setup: &LaneSetup, socket: &Socket) -> Result<(), Failure> {
    if let Err(error) = socket.set_multicast_all(false)
        && setup.warns()
    {
        log::warn!(
            "listener {}: every lane may receive groups that other programs of this host have joined \
             (IP_MULTICAST_ALL: {error}); for IPv6 this needs Linux 4.20",
            setup.listener.name
        );
    }
    let interface = setup.listener.multicast.interface.as_deref();
    let memberships = memberships(&setup.listener, &setup.plan);
    let index = match interface.filter(|_| !memberships.is_empty()) {
        Some(name) => if_nametoindex(name).map_err(|errno| failure(setup, "find the interface", &errno.into()))?,
        None => 0,
    };
    join(socket, &memberships, index).map_err(|(membership, error)| {
        let what = format!("join {membership} on {}", interface.unwrap_or("the interface of its route"));
        failure(setup, &what, &error)
    })
}

/// Joins everything on the interface with this index, 0 for the one that the kernel's routes name.
fn join(socket: &Socket, memberships: &[Membership], index: u32) -> Result<(), (Membership, io::Error)> {
    for membership in memberships {
        match socket.join_multicast(membership.group, index, membership.source) {
            // An inherited socket has joined it before.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            result => result.map_err(|error| (*membership, error))?,
        }
    }
    Ok(())
}

/// Joins on the interface with the index `now` what was joined on one that is gone.
pub(super) fn rejoin(setup: &LaneSetup, socket: &Socket, gone: u32, now: u32) -> Result<(), String> {
    let memberships = memberships(&setup.listener, &setup.plan);
    for membership in &memberships {
        // Also those of an earlier attempt: they could not be joined a second time.
        for index in [gone, now] {
            let _ = socket.leave_multicast(membership.group, index, membership.source);
        }
    }
    join(socket, &memberships, now).map_err(|(membership, error)| format!("cannot join {membership}: {error}"))
}

fn failure(setup: &LaneSetup, what: &str, error: &io::Error) -> Failure {
    use nix::errno::Errno;
    let cure = match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOBUFS) => {
            "the kernel lets this socket join no more: raise net.ipv4.igmp_max_memberships for groups, \
             net.ipv4.igmp_max_msf and net.ipv6.mld_max_msf for sources, or deal the groups out with lanes"
        }
        Some(Errno::ENODEV | Errno::EADDRNOTAVAIL) => {
            "no interface leads there: name one in multicast_interface that \"ip link\" shows, with an address of \
             the family"
        }
        _ => "see multicast_groups and multicast_interface",
    };
    let LaneSetup { listener, plan, .. } = setup;
    let message = format!("listener {}, address {}: cannot {what}: {error}; {cure}", listener.name, plan.address);
    Failure::new(ExitCode::Unavailable, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, EngineKind, HostView};
    use crate::plan::engine::EngineChoice;
    use crate::plan::{Interfaces, PipelinePlan, PlacementInput};

    /// What each lane of a listener with these keys joins, in the order of the lanes.
    fn joined(keys: &str) -> Vec<Vec<String>> {
        let (config, plan) = planned(keys);
        let of_lane = |plan| memberships(&config.listeners[0], plan).iter().map(ToString::to_string).collect();
        plan.lanes.iter().map(of_lane).collect()
    }

    fn spread_of(keys: &str) -> GroupSpread {
        let (config, plan) = planned(keys);
        group_spread(&config.listeners[0], plan.lanes.iter())
    }

    fn planned(keys: &str) -> (Config, PipelinePlan) {
        let text = format!("[[listener]]\nname = \"a\"\nsinks = [\"s\"]\n{keys}\n[sink.s]\ntype = \"null\"\n");
        let config = Config::parse(&text, "test", &HostView::default()).unwrap_or_else(|problems| panic!("{problems}"));
        let engines = [EngineChoice { kind: EngineKind::Recvmmsg, why: String::new() }];
        let (topology, interfaces) = (steer::Topology::default(), Interfaces::default());
        let ground = PlacementInput { topology: &topology, allowed: &[], interfaces: &interfaces };
        let plan = PipelinePlan::new(&config, &ground, &engines, 0).expect("a plan");
        (config, plan)
    }

    #[test]
    fn each_group_is_joined_by_one_lane_of_the_addresses_that_receive_it() {
        let keys = "multicast_groups = [\"239.1.1.1\", \"ff02::1:5\", \"239.1.1.2\", \"239.1.1.3\"]\nlanes = 2\n";
        let lanes = joined(&format!("address = [\"0.0.0.0:5000\", \"[::]:5001\", \"127.0.0.1:5002\"]\n{keys}"));
        let expected: [&[&str]; 6] = [
            &["239.1.1.1", "239.1.1.3"],
            &["239.1.1.2"],
            &["239.1.1.1", "239.1.1.2"],
            &["ff02::1:5", "239.1.1.3"],
            &[],
            &[],
        ];
        assert_eq!(lanes, expected);
    }

    #[test]
    fn several_lanes_get_a_program_that_gives_each_group_to_the_lane_that_joined_it() {
        let keys = |more: &str| {
            let groups = "multicast_groups = [\"239.1.1.1\", \"ff02::1:5\", \"239.1.1.2\"]";
            format!("address = [\"[::]:5001\"]\n{groups}\n{more}\nsources = []")
        };
        let group = |text: &str| text.parse::<IpAddr>().expect("an address");
        let table = vec![(group("239.1.1.1"), 0), (group("239.1.1.2"), 0), (group("ff02::1:5"), 1)];
        assert_eq!(spread_of(&keys("lanes = 2")), GroupSpread::Destination(table));
        assert_eq!(spread_of(&keys("lanes = 1")), GroupSpread::Flow);
        assert_eq!(spread_of("address = \"[::]:5001\"\nlanes = 2"), GroupSpread::Flow);
    }

    #[test]
    fn an_address_that_is_a_group_joins_that_one_alone() {
        let lanes = joined(
            "address = [\"239.1.1.1:5000\", \"239.1.1.2:5000\"]\nmulticast_groups = [\"239.1.1.2\", \"239.1.1.1\"]",
        );
        assert_eq!(lanes, [["239.1.1.1"], ["239.1.1.2"]]);
    }

    #[test]
    fn with_sources_a_group_is_joined_from_each_of_its_family() {
        let keys =
            "multicast_groups = [\"232.1.1.1\", \"ff3e::1\"]\nsources = [\"10.0.0.9\", \"2001:db8::9\", \"10.0.0.10\"]";
        let lanes = joined(&format!("address = \"[::]:5000\"\n{keys}"));
        assert_eq!(lanes, [["232.1.1.1 from 10.0.0.9", "232.1.1.1 from 10.0.0.10", "ff3e::1 from 2001:db8::9"]]);
    }
}
