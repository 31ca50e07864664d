//! Sockets that outlive a process or a pipeline: what they are called where they are kept, and which lane adopts
//! which. This is the one description of existing sockets with which a pipeline begins, wherever they come from.
//!
//! A service manager keeps a second descriptor of each listening socket and passes it to the next process. What arrives
//! in between waits in the socket. A process that is taken over from sends its sockets, and a reload has those of the
//! running pipeline. The configuration may have changed meanwhile, so the kernel is asked what each socket is. A lane
//! adopts a socket that fits it. Where an address has more sockets than lanes now, the rest leaves the group from
//! its end, and the first lane of that address reads it to the end. What no lane can adopt is counted and closed,
//! see `discarded_sockets`.
//!
//! The order within a group is the order of binding, so it is in the names.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use mmsg::{GroupSpread, Socket};
use nix::net::if_::if_nametoindex;

use super::discarded_sockets::{self, DiscardReports, DiscardedSocket};
use super::multicast;
use crate::config::{self, Config, ListenerConfig};
use crate::plan::{LanePlan, PipelinePlan};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::holder;

/// The cure for a change that a socket cannot follow while it is received from.
pub(super) const TAKES_A_RESTART: &str = "; this takes a restart, over which the service manager keeps the sockets";

#[derive(Debug)]
pub struct InheritedSocket {
    /// What it is called where it is kept.
    pub name: String,
    /// The same in every process that has it.
    pub inode: u64,
    pub(super) socket: Arc<Socket>,
    pub(super) address: SocketAddr,
    pub(super) interface: u32,
}

/// The sockets that a process or a pipeline begins with.
#[derive(Debug, Default)]
pub struct InheritedSockets {
    sockets: Vec<InheritedSocket>,
}

/// Which lane gets which socket.
#[derive(Debug)]
pub struct SocketAssignment {
    /// What each lane adopts, by its index.
    pub(super) by_lane: Vec<Option<Arc<Socket>>>,
    /// The sockets that a group has too many of, in the order of the group, by the index of its first lane.
    pub(super) surplus: Vec<Vec<Arc<Socket>>>,
    /// Those that are closed when all others are bound, in the order of their binding.
    pub(super) discarded: Vec<DiscardedSocket>,
    /// Another pipeline or process still receives from them.
    pub(super) are_in_use: bool,
    /// How the groups of the running pipeline are spread, by the first lane that is to adopt each.
    pub(super) group_spreads: BTreeMap<usize, GroupSpread>,
    /// What was found in those that are closed, and in new ones that had joined a group in vain.
    pub(super) discard_reports: Arc<DiscardReports>,
}

/// What comes from a process that still receives.
#[derive(Debug)]
pub struct TakeOverAssignment {
    pub(super) assignment: SocketAssignment,
    /// The names of those that lanes adopt. That process drains and closes the others.
    pub names: Vec<String>,
    /// The addresses, by listener, where no socket of that process is in the way.
    pub(super) free: Vec<(usize, SocketAddr)>,
    /// What that process drains and closes, unless it dies before.
    pub left: Vec<InheritedSocket>,
}

/// Who receives from the sockets while they are assigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CurrentReceiver {
    None,
    /// The pipeline of this process that a reload replaces.
    ThisProcess,
    /// A process that ends when everything is assigned. It drains what no lane adopts.
    OtherProcess,
}

type Planned<'a> = (&'a ListenerConfig, &'a LanePlan);

/// What the socket of a lane is called: its listener, its number, and a fingerprint of the multicast groups that it has
/// joined, because the kernel does not tell those of a socket.
pub(super) fn socket_name(listener: &ListenerConfig, plan: &LanePlan) -> String {
    let (name, number) = (&listener.name, plan.number);
    match multicast::fingerprint(listener, plan) {
        None => format!("{name}.{number}"),
        Some(joined) => format!("{name}.{number}.m{joined:08x}"),
    }
}

/// The listener whose socket has such a name.
fn listener_of(name: &str) -> &str {
    let name = match name.rsplit_once(".m") {
        Some((rest, _)) if parse(name).is_some_and(|(_, joined)| joined.is_some()) => rest,
        _ => name,
    };
    name.rsplit_once('.').map_or(name, |(listener, _)| listener)
}

/// The number of the lane and what it had joined; `None` for a name that udpd does not give.
fn parse(name: &str) -> Option<(usize, Option<u32>)> {
    let (name, joined) = match name.rsplit_once(".m") {
        Some((rest, joined)) if joined.len() == 8 => (rest, Some(u32::from_str_radix(joined, 16).ok()?)),
        _ => (name, None),
    };
    let (_, number) = name.rsplit_once('.')?;
    Some((number.parse().ok()?, joined))
}

impl InheritedSocket {
    fn new(name: String, socket: Arc<Socket>) -> io::Result<Self> {
        let (address, interface) = (socket.local_addr()?, socket.bound_interface()?);
        Ok(Self { name, inode: holder::inode_of(&*socket)?, socket, address, interface })
    }

    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Whether udpd has given it its name, so that it is udpd's to remove.
    pub fn is_own(&self) -> bool {
        parse(&self.name).is_some()
    }

    /// Whether it is bound to the address and the interface of these lanes. Where the kernel is to choose the port the
    /// name has to say so.
    fn is_at(&self, lanes: &[Planned<'_>]) -> bool {
        let (listener, LanePlan { address, .. }) = lanes[0];
        let interface = listener.interface.as_deref().map_or(Ok(0), if_nametoindex);
        let is_named = || lanes.iter().any(|(listener, plan)| socket_name(listener, plan) == self.name);
        interface.is_ok_and(|interface| interface == self.interface)
            && self.address.ip() == address.ip()
            && (self.address.port() == address.port() || (address.port() == 0 && is_named()))
    }

    /// Whether the lane can adopt it, or why it cannot.
    fn fits(&self, (listener, plan): Planned<'_>) -> Result<(), &'static str> {
        if self.socket.has_gro() && !plan.shape.control.gro {
            return Err("it has gro on, which cannot be switched off");
        }
        let joined = parse(&self.name).and_then(|(_, joined)| joined);
        if self.is_own() && joined != multicast::fingerprint(listener, plan) {
            return Err("it has joined other multicast groups");
        }
        Ok(())
    }

    fn too_many(&self, listener: &ListenerConfig, lanes: usize) -> Failure {
        let message = format!(
            "the service manager passed more sockets for {} than the {lanes} lanes that listener {} has there, and \
             what arrives at one without a lane is lost: write one ListenDatagram= line for each lane into the .socket \
             unit, or set lanes",
            self.address, listener.name
        );
        Failure::new(ExitCode::Configuration, message)
    }
}

impl InheritedSockets {
    /// Those that a service manager or another process has passed. A descriptor that is no UDP socket is refused.
    pub fn new(passed: Vec<(String, OwnedFd)>) -> Result<Self, Failure> {
        let mut sockets: Vec<InheritedSocket> = Vec::with_capacity(passed.len());
        for (name, descriptor) in passed {
            let socket = Socket::try_from(descriptor).map(Arc::new);
            let socket = socket.and_then(|socket| InheritedSocket::new(name.clone(), socket)).map_err(|error| {
                let message = format!(
                    "the service manager passed a descriptor named {name:?} that udpd cannot use: {error}; its .socket \
                     unit must have ListenDatagram= lines with IP addresses only"
                );
                Failure::new(ExitCode::Configuration, message)
            })?;
            // A socket unit and the descriptor store may both have it.
            if sockets.iter().all(|other| other.inode != socket.inode) {
                sockets.push(socket);
            }
        }
        // Stable: sockets of a unit have one name and come in the order of their binding.
        sockets.sort_by_key(|socket| parse(&socket.name).map_or(0, |(number, _)| number));
        Ok(Self { sockets })
    }

    /// Those of a running pipeline.
    pub(super) fn of(sockets: impl Iterator<Item = (String, Arc<Socket>)>) -> io::Result<Self> {
        let sockets = sockets.map(|(name, socket)| InheritedSocket::new(name, socket));
        Ok(Self { sockets: sockets.collect::<io::Result<_>>()? })
    }

    /// The same sockets once more.
    pub fn duplicate(&self) -> Self {
        let duplicate = |own: &InheritedSocket| InheritedSocket {
            name: own.name.clone(),
            inode: own.inode,
            socket: Arc::clone(&own.socket),
            address: own.address,
            interface: own.interface,
        };
        Self { sockets: self.sockets.iter().map(duplicate).collect() }
    }

    pub fn sockets(&self) -> &[InheritedSocket] {
        &self.sockets
    }

    /// Whether sockets of a listener have GRO on.
    pub fn have_gro(&self, listener: &str) -> bool {
        let is_its = |name: &str| name.strip_prefix(listener).is_some_and(|rest| rest.starts_with('.'));
        self.sockets.iter().any(|own| own.is_own() && is_its(&own.name) && own.socket.has_gro())
    }

    /// Assigns sockets that no process receives from. What fits no lane is closed when all others are bound.
    pub fn assign(self, config: &Config, plan: &PipelinePlan) -> Result<SocketAssignment, Failure> {
        let mut assignment = SocketAssignment::none(plan);
        let (abandoned, left): (Vec<_>, Vec<_>) = self.sockets.into_iter().partition(|own| is_abandoned(&own.socket));
        assignment.discard(abandoned, "an earlier start had given it up")?;
        let left = assignment.assign_groups(left, config, plan, CurrentReceiver::None)?;
        assignment.discard(left, "no listener has its address and interface")?;
        Ok(assignment)
    }

    /// Assigns the sockets of a running pipeline, which keeps what fits no lane.
    pub(super) fn assign_for_reload(self, config: &Config, plan: &PipelinePlan) -> Result<SocketAssignment, Failure> {
        let mut assignment = SocketAssignment { are_in_use: true, ..SocketAssignment::none(plan) };
        let left = assignment.assign_groups(self.sockets, config, plan, CurrentReceiver::ThisProcess)?;
        for lane in assignment.lanes_to_bind(plan) {
            let listener = &config.listeners[lane.listener];
            if let Some(old) = left.iter().find(|old| is_in_the_way(old.address, old.interface, listener, lane)) {
                let message = format!(
                    "listener {}: cannot bind {} while udpd still receives on {}{TAKES_A_RESTART}",
                    listener.name, lane.address, old.address
                );
                return Err(Failure::new(ExitCode::Configuration, message));
            }
        }
        Ok(assignment)
    }

    /// Assigns the sockets of another process that still receives from them and is to end.
    pub fn assign_for_take_over(self, config: &Config, plan: &PipelinePlan) -> Result<TakeOverAssignment, Failure> {
        let mut assignment = SocketAssignment { are_in_use: true, ..SocketAssignment::none(plan) };
        let mut names: Vec<String> = self.sockets.iter().map(|own| own.name.clone()).collect();
        let left = assignment.assign_groups(self.sockets, config, plan, CurrentReceiver::OtherProcess)?;
        names.retain(|name| left.iter().all(|own| own.name != *name));
        let is_free = |lane: &&LanePlan| {
            let listener = &config.listeners[lane.listener];
            !left.iter().any(|old| is_in_the_way(old.address, old.interface, listener, lane))
        };
        let free = assignment.lanes_to_bind(plan).filter(is_free);
        let free = free.map(|lane| (lane.listener, lane.address)).collect();
        Ok(TakeOverAssignment { assignment, names, free, left })
    }
}

impl SocketAssignment {
    /// No socket for any lane.
    pub(super) fn none(plan: &PipelinePlan) -> Self {
        let lanes = plan.lanes.len();
        Self {
            by_lane: vec![None; lanes],
            surplus: vec![Vec::new(); lanes],
            discarded: Vec::new(),
            are_in_use: false,
            group_spreads: BTreeMap::new(),
            discard_reports: Arc::default(),
        }
    }

    /// The first lane of each address for which a socket is to be made.
    fn lanes_to_bind<'a>(&self, plan: &'a PipelinePlan) -> impl Iterator<Item = &'a LanePlan> + use<'a, '_> {
        let lanes = plan.lanes.iter().zip(&self.by_lane).filter(|(_, socket)| socket.is_none());
        lanes.map(|(lane, _)| lane).filter(|lane| lane.member == 0 && lane.has_socket())
    }

    /// Gives each address what is bound there. Returns what no lane can adopt.
    fn assign_groups(
        &mut self,
        mut left: Vec<InheritedSocket>,
        config: &Config,
        plan: &PipelinePlan,
        receiver: CurrentReceiver,
    ) -> Result<Vec<InheritedSocket>, Failure> {
        let planned: Vec<Planned<'_>> =
            plan.lanes.iter().map(|lane| (&config.listeners[lane.listener], lane)).collect();
        let (mut first, mut unfit) = (0, Vec::new());
        while first < planned.len() {
            if !planned[first].1.has_socket() {
                first += 1;
                continue;
            }
            let members = 1 + planned[first + 1..].iter().take_while(|(_, plan)| plan.member > 0).count();
            let lanes = &planned[first..first + members];
            let (own, others) = left.into_iter().partition(|own| own.is_at(lanes));
            left = others;
            unfit.extend(self.assign_group(first, lanes, own, receiver)?);
            first += members;
        }
        left.extend(unfit);
        Ok(left)
    }

    /// Gives the lanes of an address what is bound there: to all of them, or to none. Sockets of one group were made by
    /// one process, and are alike in what cannot be changed. Returns what their receiver has to drain.
    fn assign_group(
        &mut self,
        first: usize,
        lanes: &[Planned<'_>],
        mut own: Vec<InheritedSocket>,
        receiver: CurrentReceiver,
    ) -> Result<Vec<InheritedSocket>, Failure> {
        let (listener, LanePlan { address, .. }) = lanes[0];
        if let Some(why) = own.iter().zip(lanes).find_map(|(own, lane)| own.fits(*lane).err()) {
            return match receiver {
                CurrentReceiver::None => self.discard(own, why).map(|()| Vec::new()),
                CurrentReceiver::ThisProcess => {
                    let message = format!("listener {}, {address}: {why}{TAKES_A_RESTART}", listener.name);
                    Err(Failure::new(ExitCode::Configuration, message))
                }
                CurrentReceiver::OtherProcess => Ok(own),
            };
        }
        let surplus = own.split_off(own.len().min(lanes.len()));
        if receiver == CurrentReceiver::ThisProcess && !surplus.is_empty() && listener.interface.is_some() {
            let message = format!(
                "listener {}, {address}: it has fewer lanes, and a socket that is bound to an interface cannot leave \
                 its group while datagrams arrive{TAKES_A_RESTART}",
                listener.name
            );
            return Err(Failure::new(ExitCode::Configuration, message));
        }
        if let Some(foreign) = surplus.iter().find(|own| !own.is_own()) {
            return Err(foreign.too_many(listener, lanes.len()));
        }
        for (lane, own) in (first..).zip(own) {
            self.by_lane[lane] = Some(own.socket);
        }
        self.surplus[first] = surplus.into_iter().map(|own| own.socket).collect();
        Ok(Vec::new())
    }

    /// How many datagrams can wait in sockets that are closed.
    pub fn discarded_hold_at_most(&self) -> u64 {
        discarded_sockets::hold_at_most(&self.discarded)
    }

    /// Has sockets closed that no lane can adopt.
    pub(super) fn discard(&mut self, sockets: Vec<InheritedSocket>, why: &'static str) -> Result<(), Failure> {
        for own in sockets {
            if !own.is_own() {
                let message = format!(
                    "the service manager passed a socket named {:?} for {} that udpd cannot use: {why}; correct the \
                     .socket unit or the listener",
                    own.name, own.address
                );
                return Err(Failure::new(ExitCode::Configuration, message));
            }
            let InheritedSocket { name, socket, address, interface, .. } = own;
            let listener = listener_of(&name).to_owned();
            self.discarded.push(DiscardedSocket { name, listener, socket, address, interface, why });
        }
        Ok(())
    }

    /// The discarded sockets that are where a lane is to be bound.
    pub(super) fn discarded_at(&self, listener: &ListenerConfig, plan: &LanePlan) -> Vec<&DiscardedSocket> {
        let is_there = |own: &&DiscardedSocket| is_in_the_way(own.address, own.interface, listener, plan);
        self.discarded.iter().filter(is_there).collect()
    }
}

/// Whether a socket that is bound to this address and interface keeps the lane from binding one, or takes datagrams
/// that the lane is to have. Sockets on two interfaces can have one address.
fn is_in_the_way(address: SocketAddr, own: u32, listener: &ListenerConfig, plan: &LanePlan) -> bool {
    let interface = listener.interface.as_deref().map_or(Ok(0), if_nametoindex);
    interface.is_ok_and(|interface| interface == 0 || own == 0 || interface == own)
        && plan.address.port() != 0
        && config::overlap(&address, &plan.address)
}

/// Whether a process had begun to close a socket: it was taken out of the kernel's search, or interrupted for good.
pub(super) fn is_abandoned(socket: &Socket) -> bool {
    socket.is_withdrawn() || socket.is_interrupted().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a running pipeline has at these addresses, claimed by a listener with these lines.
    fn assign_for_reload(running: &[(&str, &str, u32)], lines: &str) -> Result<SocketAssignment, Failure> {
        let sink = "sinks = [\"out\"]\n[sink.out]\ntype = \"null\"\n";
        let text = format!("[[listener]]\nname = \"in\"\n{lines}\n{sink}");
        let config = Config::parse(&text, "test.toml", &Default::default()).expect("valid");
        let plan = crate::plan::make(&config, &Default::default()).expect("a plan");
        let socket = |&(name, address, interface): &(&str, &str, u32)| InheritedSocket {
            name: name.to_owned(),
            inode: 0,
            socket: Arc::new(Socket::new(mmsg::Family::V4).expect("a socket")),
            address: address.parse().expect("an address"),
            interface,
        };
        InheritedSockets { sockets: running.iter().map(socket).collect() }.assign_for_reload(&config, &plan)
    }

    #[test]
    fn fewer_lanes_on_an_interface_take_a_restart_and_without_one_they_do_not() {
        let lo = if_nametoindex("lo").expect("loopback");
        let two = |interface| [("in.0", "127.0.0.1:5140", interface), ("in.1", "127.0.0.1:5140", interface)];
        let lines = "address = \"127.0.0.1:5140\"\nlanes = 1\n";
        let assignment = assign_for_reload(&two(0), lines).expect("it leaves its group");
        assert_eq!((assignment.by_lane.iter().flatten().count(), assignment.surplus[0].len()), (1, 1));
        let failure = assign_for_reload(&two(lo), &format!("{lines}interface = \"lo\"")).expect_err("it cannot leave");
        assert!(failure.message.contains("fewer lanes") && failure.message.ends_with(TAKES_A_RESTART), "{failure}");
    }

    #[test]
    fn an_address_within_one_that_is_received_on_takes_a_restart_and_on_another_interface_it_does_not() {
        let lo = if_nametoindex("lo").expect("loopback");
        let claim = |old: &str, interface, lines: &str| assign_for_reload(&[("in.0", old, interface)], lines);
        for (old, new) in [("0.0.0.0:5140", "127.0.0.1:5140"), ("127.0.0.1:5140", "0.0.0.0:5140")] {
            let lines = format!("address = \"{new}\"\nlanes = 1");
            let failure = claim(old, 0, &lines).expect_err("udpd itself has it");
            let words = format!("cannot bind {new} while udpd still receives on {old}");
            assert!(failure.message.contains(&words) && failure.message.ends_with(TAKES_A_RESTART), "{failure}");
            let elsewhere = claim(old, lo + 1, &format!("{lines}\ninterface = \"lo\"")).expect("two interfaces");
            assert_eq!(elsewhere.by_lane.iter().flatten().count(), 0);
        }
        claim("127.0.0.1:5140", 0, "address = \"127.0.0.1:5141\"\nlanes = 1").expect("another port");
    }

    #[test]
    fn a_name_says_which_lane_it_was_and_a_name_of_others_does_not() {
        assert_eq!(parse("syslog.0"), Some((0, None)));
        assert_eq!(parse("sys.log.12"), Some((12, None)));
        assert_eq!(parse("feed.3.m0012abcd"), Some((3, Some(0x0012_abcd))));
        for foreign in ["udpd.socket", "syslog", "", "unknown", "syslog.", "feed.x.m0012abcd"] {
            assert_eq!(parse(foreign), None, "{foreign}");
        }
        for (name, listener) in [("syslog.0", "syslog"), ("sys.log.12", "sys.log"), ("feed.3.m0012abcd", "feed")] {
            assert_eq!(listener_of(name), listener);
        }
    }
}
