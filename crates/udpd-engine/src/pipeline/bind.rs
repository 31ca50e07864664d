//! Binds the sockets of an address as one group with its program, in order and from one thread, and attaches the
//! counter of where datagrams arrive before the first of them comes.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use mmsg::{CoreCounter, Family, Group, Socket};
use nix::errno::Errno;

use super::discarded_sockets::{self, DiscardedSocket};
use super::{adopt_sockets::AdoptedGroup, inherited_sockets::SocketAssignment, lane_setup::LaneSetup, multicast};
use crate::config::{self, ListenerConfig};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::holder;
use udpd_sandbox::privilege_helper;

/// The holder of an address where /proc shows none.
const UNSEEN_HOLDER: &str = "a process that /proc does not show";

/// A bound socket, as far as the ledger needs it.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub address: SocketAddr,
    /// Counts where its datagrams arrive.
    pub arrivals: Option<CoreCounter>,
}

/// Prepares and binds the sockets of all lanes that have one, and returns each by the index of its lane.
/// `arrivals` is what [`count_arrivals`] has made for them.
pub(super) fn open(
    lanes: &[(&LaneSetup, Arc<Socket>)],
    arrivals: Vec<Option<CoreCounter>>,
    assignment: &SocketAssignment,
) -> Result<BTreeMap<usize, Endpoint>, Failure> {
    let (setups, sockets): (Vec<&LaneSetup>, Vec<Arc<Socket>>) = lanes.iter().cloned().unzip();
    let addresses = bind_all(&setups, &sockets, Some(assignment), |setup| refuse_company(setup, &sockets, assignment))?;
    let indexes = setups.iter().map(|setup| setup.index);
    let endpoints = addresses.into_iter().zip(arrivals).map(|(address, arrivals)| Endpoint { address, arrivals });
    Ok(indexes.zip(endpoints).collect())
}

/// Makes a counter by core and queue for every lane whose plan says where its datagrams should arrive. Without the
/// right to one there is one warning, and `wrong_cpu` stays null.
pub(super) fn count_arrivals(lanes: &[(&LaneSetup, Arc<Socket>)]) -> Vec<Option<CoreCounter>> {
    let mut refused = false;
    let mut counter = |(setup, socket): &(&LaneSetup, Arc<Socket>)| {
        let intake = &setup.plan.intake;
        if refused || !intake.is_planned() {
            return None;
        }
        let made =
            CoreCounter::by_queue(intake.queues_planned()).and_then(|counter| counter.attach(socket).map(|()| counter));
        made.inspect_err(|error| {
            refused = true;
            log::warn!(
                "cannot count on which cores datagrams arrive: {error}; wrong_cpu is null, and udpd does not notice \
                 a drift{}",
                cure_of_count(error)
            );
        })
        .ok()
    };
    lanes.iter().map(&mut counter).collect()
}

/// The cure where the kernel takes no counter. Only a missing right is cured by granting one.
fn cure_of_count(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EPERM) => {
            "; grant CAP_BPF (in the unit file AmbientCapabilities=CAP_BPF, CapabilityBoundingSet=CAP_BPF and \
             SystemCallFilter=bpf)"
        }
        Some(Errno::EACCES) => "; the verifier of this kernel refuses the counter's program, and no right cures that",
        Some(Errno::E2BIG) => "; the kernel finds the counter too large: give the interface fewer receive queues",
        Some(Errno::ENOMEM) => "; the kernel has no memory for the counter: raise MemoryMax or free memory",
        _ => "",
    }
}

/// Binds every socket and returns what each is bound to. `may_join` is asked before a socket is bound that sockets of
/// other processes could join unnoticed.
pub(super) fn bind_all(
    setups: &[&LaneSetup],
    sockets: &[Arc<Socket>],
    assignment: Option<&SocketAssignment>,
    may_join: impl Fn(&LaneSetup) -> Result<(), Failure>,
) -> Result<Vec<SocketAddr>, Failure> {
    let is_inherited = |first: &usize| assignment.is_some_and(|own| own.by_lane[setups[*first].index].is_some());
    let firsts = (0..sockets.len()).filter(|&lane| setups[lane].plan.member == 0);
    let (inherited, made): (Vec<usize>, Vec<usize>) = firsts.partition(is_inherited);
    let lanes_of = |first: usize| {
        let members = 1 + setups[first + 1..].iter().take_while(|setup| setup.plan.member > 0).count();
        first..first + members
    };
    let mut replacing: Vec<ReplacingGroup<'_>> = Vec::new();
    for first in made {
        let (lanes, LaneSetup { plan, listener, .. }) = (lanes_of(first), setups[first]);
        let discarded = assignment.map_or_else(Vec::new, |own| own.discarded_at(listener, plan));
        if !discarded.is_empty() {
            may_join(setups[first])?;
            let bound = ReplacingGroup::bind(&setups[lanes.clone()], &sockets[lanes], &discarded);
            replacing.push(bound.map_err(|error| bind_failure(plan.address, &error))?);
        } else if plan.shares {
            may_join(setups[first])?;
            bind_group(&setups[lanes.clone()], &sockets[lanes])?;
        } else {
            // A lone socket needs no group, and then no socket of another process can join one.
            let bind = privilege_helper::bind(&sockets[first], plan.address);
            bind.map_err(|error| bind_failure(plan.address, &error))?;
        }
    }
    // Last the sockets that may be received from: an address that cannot be had leaves them as they are.
    if let Some(assignment) = assignment {
        let group = |first: usize| AdoptedGroup::adopt(&setups[lanes_of(first)], &sockets[lanes_of(first)], assignment);
        let mut groups: Vec<AdoptedGroup<'_>> = Vec::with_capacity(inherited.len());
        let outcome = inherited.into_iter().try_for_each(|first| group(first).map(|group| groups.push(group)));
        outcome.and_then(|()| groups.iter_mut().try_for_each(AdoptedGroup::grow)).inspect_err(|_| {
            groups.iter_mut().for_each(|group| group.take_back(assignment));
        })?;
        // Only when all of them have what they need: what has left its group cannot come back.
        groups.iter_mut().for_each(AdoptedGroup::shrink);
        groups.iter().for_each(AdoptedGroup::log_new_number);
        groups.iter().try_for_each(AdoptedGroup::keep_others_out)?;
        discarded_sockets::close(&assignment.discarded, &assignment.discard_reports);
        replacing.iter().try_for_each(|own| own.finish().map_err(|error| bind_failure(own.address(), &error)))?;
    }
    let address_of = |(setup, socket): (&&LaneSetup, &Arc<Socket>)| socket.local_addr().unwrap_or(setup.plan.address);
    Ok(setups.iter().zip(sockets).map(address_of).collect())
}

/// Refuses an address on which another process has sockets that ours could join. The kernel knows best whether it has:
/// a socket that does not share is bound there for a moment.
fn refuse_company(setup: &LaneSetup, sockets: &[Arc<Socket>], assignment: &SocketAssignment) -> Result<(), Failure> {
    let LaneSetup { plan, listener, .. } = setup;
    if listener.share_port || is_free(listener.interface.as_deref(), plan.address) {
        return Ok(());
    }
    let surplus = assignment.surplus.iter().flatten();
    let discarded = assignment.discarded.iter().map(|own| &own.socket);
    let own = sockets.iter().chain(surplus).chain(discarded).filter_map(|socket| holder::inode_of(socket).ok());
    let overlaps = |socket: &Arc<Socket>| {
        socket.local_addr().is_ok_and(|taken| taken.port() != 0 && config::overlap(&taken, &plan.address))
    };
    let holder = match holders(plan.address, &own.collect::<Vec<u64>>()) {
        Some(holder) => holder,
        // A listener of ours on another interface.
        None if sockets.iter().any(overlaps) => return Ok(()),
        None if !assignment.discarded_at(listener, plan).is_empty() => return Ok(()),
        None => UNSEEN_HOLDER.to_owned(),
    };
    let message = format!(
        "cannot bind {}: {holder} holds it; stop that process or choose another address; processes of one user can \
         share it if all of them ask for that, here with share_port = true for listener {}",
        plan.address, listener.name
    );
    Err(Failure::new(ExitCode::Unavailable, message))
}

/// Binds a socket for a moment where this process has none, to find out whether a lane can. What arrives in that moment
/// would have had no receiver either.
pub(super) fn probe(listener: &ListenerConfig, address: SocketAddr) -> Result<(), Failure> {
    bind_alone(listener.interface.as_deref(), address).or_else(|error| {
        let is_shared = listener.share_port && error.kind() == io::ErrorKind::AddrInUse;
        if is_shared { Ok(()) } else { Err(bind_failure(address, &error)) }
    })
}

/// Whether a socket can be bound that does not share its address. Any other error is left to the bind that follows.
fn is_free(interface: Option<&str>, address: SocketAddr) -> bool {
    !bind_alone(interface, address).is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

fn bind_alone(interface: Option<&str>, address: SocketAddr) -> io::Result<()> {
    let family = if address.is_ipv4() { Family::V4 } else { Family::V6 };
    let probe = Socket::new(family)?;
    if address.is_ipv6() {
        probe.set_v6_only(!address.ip().is_unspecified())?;
    }
    if let Some(interface) = interface {
        probe.bind_to_device(interface)?;
    }
    probe.bind(address)
}

fn bind_group(setups: &[&LaneSetup], sockets: &[Arc<Socket>]) -> Result<(), Failure> {
    let (listener, address) = (&setups[0].listener, setups[0].plan.address);
    let program = multicast::group_spread(listener, setups.iter().map(|setup| &setup.plan));
    let mut group = Group::new(sockets.to_vec(), program).map_err(|error| {
        let cure = match error.raw_os_error() {
            Some(code) if code == Errno::ENOMEM as i32 => {
                "; the program is larger than net.core.optmem_max allows: raise that with sysctl"
            }
            _ => "",
        };
        let (name, spread) = (&listener.name, listener.spread.name());
        let message = format!("listener {name}, address {address}: cannot set up spread = \"{spread}\": {error}{cure}");
        Failure::new(ExitCode::Failure, message)
    })?;
    // The group ends here and its sockets live on: nothing grows or shrinks while the daemon runs.
    group.bind_by(address, privilege_helper::bind).map(drop).map_err(|error| bind_failure(address, &error))
}

/// Why an address could not be bound, and what to do.
fn bind_failure(address: SocketAddr, error: &io::Error) -> Failure {
    let errno = error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw);
    let (code, cure) = match errno {
        Errno::EADDRINUSE => {
            let holder = holders(address, &[]).unwrap_or_else(|| UNSEEN_HOLDER.to_owned());
            (ExitCode::Unavailable, format!("{holder} holds it; stop that process or choose another address"))
        }
        Errno::EADDRNOTAVAIL => {
            let cure = "no interface of this host has it; `ip address` shows which have one; or use the wildcard \
                        address";
            (ExitCode::Unavailable, cure.to_owned())
        }
        Errno::EACCES => {
            let cure = format!(
                "ports below {} need CAP_NET_BIND_SERVICE; in the unit file: \
                 AmbientCapabilities=CAP_NET_BIND_SERVICE and CapabilityBoundingSet=CAP_NET_BIND_SERVICE",
                first_unprivileged_port()
            );
            (ExitCode::Permission, cure)
        }
        _ => (ExitCode::Unavailable, "choose another address".to_owned()),
    };
    Failure::new(code, format!("cannot bind {address}: {error}; {cure}"))
}

/// The other processes that have an address, as far as /proc shows them; `own` are the inodes of our sockets.
fn holders(address: SocketAddr, own: &[u64]) -> Option<String> {
    let holders = holder::of_udp_address(address, own, Path::new("/proc"));
    let mut names: Vec<String> = holders.iter().map(ToString::to_string).collect();
    names.dedup();
    (!names.is_empty()).then(|| names.join(", "))
}

fn first_unprivileged_port() -> u16 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
    text.trim().parse().unwrap_or(1024)
}

/// New sockets that were bound where old ones still are that are to be closed, so that whatever comes to the address
/// always finds a socket.
#[derive(Debug)]
pub(super) struct ReplacingGroup<'a> {
    setups: &'a [&'a LaneSetup],
    sockets: &'a [Arc<Socket>],
}

impl<'a> ReplacingGroup<'a> {
    pub(super) fn bind(
        setups: &'a [&'a LaneSetup],
        sockets: &'a [Arc<Socket>],
        discarded: &[&DiscardedSocket],
    ) -> io::Result<Self> {
        let plan = &setups[0].plan;
        discarded.iter().try_for_each(|own| own.socket.set_reuse_port(true))?;
        let is_of_group = |own: &&&DiscardedSocket| own.address == plan.address && !own.socket.is_withdrawn();
        for place in order_of_binding(discarded.iter().filter(is_of_group).count(), sockets.len()) {
            sockets[place].set_reuse_port(true)?;
            privilege_helper::bind(&sockets[place], plan.address)?;
        }
        Ok(Self { setups, sockets })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.setups[0].plan.address
    }

    /// Gives them the program of their group, now that they are alone in it.
    pub(super) fn finish(&self) -> io::Result<()> {
        let LaneSetup { plan, listener, .. } = self.setups[0];
        let program = multicast::group_spread(listener, self.setups.iter().map(|setup| &setup.plan));
        let group = Group::adopt(self.sockets.to_vec(), program)?;
        if plan.shares { Ok(()) } else { group.members()[0].set_reuse_port(false) }
    }
}

/// In which order sockets join a group that others leave afterwards, from its end to its beginning, so that those that
/// stay are numbered in order: whenever one leaves, the last takes its number.
fn order_of_binding(leaving: usize, joining: usize) -> Vec<usize> {
    let mut places: Vec<Option<usize>> = vec![None; leaving];
    places.extend((0..joining).map(Some));
    for leaves in (0..leaving).rev() {
        places.swap_remove(leaves);
    }
    let mut order = vec![0; joining];
    places.into_iter().flatten().enumerate().for_each(|(number, bound)| order[bound] = number);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_right_names_the_capability_and_the_line_that_grants_it() {
        let address = "127.0.0.1:514".parse().expect("an address");
        let failure = bind_failure(address, &io::Error::from_raw_os_error(Errno::EACCES as i32));
        assert_eq!(failure.code, ExitCode::Permission);
        assert!(failure.message.contains("AmbientCapabilities=CAP_NET_BIND_SERVICE"), "{failure}");
    }

    #[test]
    fn only_a_missing_right_to_count_is_cured_by_a_capability() {
        let cure = |errno: Errno| cure_of_count(&io::Error::from_raw_os_error(errno as i32));
        assert!(cure(Errno::EPERM).contains("AmbientCapabilities=CAP_BPF"));
        assert!(cure(Errno::EACCES).contains("verifier") && cure(Errno::ENOMEM).contains("memory"));
        for errno in [Errno::EACCES, Errno::E2BIG, Errno::ENOMEM, Errno::EINVAL] {
            assert!(!cure(errno).contains("CAP_BPF"), "{errno}");
        }
    }

    #[test]
    fn an_address_of_no_interface_is_unavailable() {
        let address = "192.0.2.1:514".parse().expect("an address");
        let failure = bind_failure(address, &io::Error::from_raw_os_error(Errno::EADDRNOTAVAIL as i32));
        assert_eq!(failure.code, ExitCode::Unavailable);
        assert!(failure.message.contains("192.0.2.1:514"), "{failure}");
    }

    #[test]
    fn those_that_stay_in_a_group_are_numbered_in_order_when_the_others_have_left() {
        for (leaving, joining) in [(1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (2, 3), (3, 2), (4, 7), (0, 3)] {
            let order = order_of_binding(leaving, joining);
            let mut group: Vec<Option<usize>> = vec![None; leaving];
            group.extend(order.iter().copied().map(Some));
            (0..leaving).rev().for_each(|leaves| assert_eq!(group.swap_remove(leaves), None, "{group:?}"));
            let numbers: Vec<usize> = group.into_iter().flatten().collect();
            assert_eq!(numbers, (0..joining).collect::<Vec<_>>(), "{leaving} leave, {joining} join");
        }
    }
}
