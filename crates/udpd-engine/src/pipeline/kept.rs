//! Sockets that outlive a process: what they are called where they are kept, and which lane goes on with which.
//!
//! A service manager keeps a second descriptor of each listening socket and passes it to the next process. What arrives
//! in between waits in the socket. The configuration may have changed meanwhile, so each socket is asked what it is.
//! What fits a lane is gone on with. What an address has too many of, because it has fewer lanes now, is taken out of
//! the kernel's search from the end of its group, and read to the end by the first lane of that address. What no lane
//! can go on with is counted and closed, see `closing`.
//!
//! The order within a group is the order of binding, so it is in the names.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use mmsg::{GroupSpread, Socket};
use nix::net::if_::if_nametoindex;

use super::closing::{self, Closing, Found};
use super::multicast;
use crate::config;
use crate::config::{Config, ListenerConfig};
use crate::plan::{LanePlan, PipelinePlan};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::holder;

/// What helps against a change that a socket cannot follow while it is received from.
pub(super) const TAKES_A_RESTART: &str = "; this takes a restart, over which the service manager keeps the sockets";

/// A socket that was kept.
#[derive(Debug)]
pub struct KeptSocket {
    /// What it is called where it is kept.
    pub name: String,
    /// The same in every process that has it.
    pub inode: u64,
    pub(super) socket: Arc<Socket>,
    pub(super) address: SocketAddr,
    pub(super) interface: u32,
}

/// Those that this process was started with.
#[derive(Debug, Default)]
pub struct Kept {
    sockets: Vec<KeptSocket>,
}

/// Which lane gets what.
#[derive(Debug)]
pub struct Claims {
    /// What each lane goes on with, by its index.
    pub(super) of_lanes: Vec<Option<Arc<Socket>>>,
    /// What the group of a lane has too many of, in the order of the group, by the index of its first lane.
    pub(super) surplus: Vec<Vec<Arc<Socket>>>,
    /// Those that are closed when all others are bound, in the order of their binding.
    pub(super) closing: Vec<Closing>,
    /// Somebody still receives from them.
    pub(super) are_in_use: bool,
    /// How the groups of that pipeline are spread, by the first lane that is to go on with each.
    pub(super) spreads: BTreeMap<usize, GroupSpread>,
    /// What was found in those that are closed, and in new ones that had joined a group in vain.
    pub(super) closed: Arc<Found>,
}

/// What comes from a process that still receives.
#[derive(Debug)]
pub struct FromRunning {
    pub claims: Claims,
    /// The names of those that lanes go on with. That process drains and closes the others.
    pub names: Vec<String>,
    /// Where that process has nothing in the way, by listener.
    pub(super) free: Vec<(usize, SocketAddr)>,
    /// What that process drains and closes, unless it dies before.
    pub left: Vec<KeptSocket>,
}

/// Who receives from the sockets while they are dealt out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Users {
    Nobody,
    /// A pipeline of this process.
    Own,
    /// A process that ends when everything is dealt out. It drains what no lane goes on with.
    Other,
}

/// A lane as it is planned.
type Planned<'a> = (&'a ListenerConfig, &'a LanePlan);

/// What the socket of a lane is called: its listener, its number, and what it has joined, because nobody can ask a
/// socket for that.
pub fn name_of(listener: &ListenerConfig, plan: &LanePlan) -> String {
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

impl KeptSocket {
    fn new(name: String, descriptor: OwnedFd) -> io::Result<Self> {
        let socket = Socket::try_from(descriptor)?;
        let (address, interface) = (socket.local_addr()?, socket.bound_interface()?);
        Ok(Self { name, inode: holder::inode_of(&socket)?, socket: Arc::new(socket), address, interface })
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
        let is_named = || lanes.iter().any(|(listener, plan)| name_of(listener, plan) == self.name);
        interface.is_ok_and(|interface| interface == self.interface)
            && self.address.ip() == address.ip()
            && (self.address.port() == address.port() || (address.port() == 0 && is_named()))
    }

    fn is_in_the_way_of(&self, listener: &ListenerConfig, plan: &LanePlan) -> bool {
        is_in_the_way((self.address, self.interface), listener, plan)
    }

    /// Whether the lane can go on with it, or what is in its way.
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

    /// Whether its process was about to close it: it was taken out of the kernel's search, or interrupted for good.
    pub(super) fn is_given_up(&self) -> bool {
        is_given_up(&self.socket)
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

impl Kept {
    /// Asks each descriptor what it is. What is no socket of UDP is refused.
    pub fn new(passed: Vec<(String, OwnedFd)>) -> Result<Self, Failure> {
        let mut sockets: Vec<KeptSocket> = Vec::with_capacity(passed.len());
        for (name, descriptor) in passed {
            let socket = KeptSocket::new(name.clone(), descriptor).map_err(|error| {
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

    /// Those of a pipeline that runs.
    pub(super) fn of(sockets: impl Iterator<Item = (String, Arc<Socket>)>) -> io::Result<Self> {
        let kept = |(name, socket): (String, Arc<Socket>)| {
            let (address, interface) = (socket.local_addr()?, socket.bound_interface()?);
            Ok(KeptSocket { name, inode: holder::inode_of(&*socket)?, socket, address, interface })
        };
        Ok(Self { sockets: sockets.map(kept).collect::<io::Result<_>>()? })
    }

    /// The same once more, by second handles.
    pub fn again(&self) -> Self {
        let again = |kept: &KeptSocket| {
            let KeptSocket { name, inode, socket, address, interface } = kept;
            let (name, socket) = (name.clone(), Arc::clone(socket));
            KeptSocket { name, inode: *inode, socket, address: *address, interface: *interface }
        };
        Self { sockets: self.sockets.iter().map(again).collect() }
    }

    pub fn sockets(&self) -> &[KeptSocket] {
        &self.sockets
    }

    /// Whether sockets of a listener take trains in one piece.
    pub fn take_trains(&self, listener: &str) -> bool {
        let is_its = |name: &str| name.strip_prefix(listener).is_some_and(|rest| rest.starts_with('.'));
        self.sockets.iter().any(|kept| kept.is_own() && is_its(&kept.name) && kept.socket.has_gro())
    }

    /// Deals them out to the lanes. What fits none is closed when all others are bound.
    pub fn claim(self, config: &Config, plan: &PipelinePlan) -> Result<Claims, Failure> {
        let mut claims = Claims::none(plan);
        let (given_up, left): (Vec<_>, Vec<_>) = self.sockets.into_iter().partition(KeptSocket::is_given_up);
        claims.let_go(given_up, "an earlier start had given it up")?;
        let left = claims.deal_out(left, config, plan, Users::Nobody)?;
        claims.let_go(left, "no listener has its address and interface")?;
        Ok(claims)
    }

    /// The same while a pipeline receives from them. What fits none is left to that pipeline.
    pub(super) fn claim_in_use(self, config: &Config, plan: &PipelinePlan) -> Result<Claims, Failure> {
        let mut claims = Claims { are_in_use: true, ..Claims::none(plan) };
        let left = claims.deal_out(self.sockets, config, plan, Users::Own)?;
        for lane in claims.without_socket(plan) {
            let listener = &config.listeners[lane.listener];
            if let Some(old) = left.iter().find(|old| old.is_in_the_way_of(listener, lane)) {
                let message = format!(
                    "listener {}: cannot bind {} while udpd still receives on {}{TAKES_A_RESTART}",
                    listener.name, lane.address, old.address
                );
                return Err(Failure::new(ExitCode::Configuration, message));
            }
        }
        Ok(claims)
    }

    /// The same while another process receives from them, which is to end.
    pub fn claim_from_running(self, config: &Config, plan: &PipelinePlan) -> Result<FromRunning, Failure> {
        let mut claims = Claims { are_in_use: true, ..Claims::none(plan) };
        let mut names: Vec<String> = self.sockets.iter().map(|kept| kept.name.clone()).collect();
        let left = claims.deal_out(self.sockets, config, plan, Users::Other)?;
        names.retain(|name| left.iter().all(|kept| kept.name != *name));
        let is_free =
            |lane: &&LanePlan| !left.iter().any(|old| old.is_in_the_way_of(&config.listeners[lane.listener], lane));
        let free = claims.without_socket(plan).filter(is_free).map(|lane| (lane.listener, lane.address)).collect();
        Ok(FromRunning { claims, names, free, left })
    }
}

impl Claims {
    /// Nothing for any lane.
    pub(super) fn none(plan: &PipelinePlan) -> Self {
        let lanes = plan.lanes.len();
        let (of_lanes, surplus) = (vec![None; lanes], vec![Vec::new(); lanes]);
        let (closing, spreads, closed) = (Vec::new(), BTreeMap::new(), Arc::default());
        Self { of_lanes, surplus, closing, are_in_use: false, spreads, closed }
    }

    /// The first lane of each address for which a socket is to be made.
    fn without_socket<'a>(&self, plan: &'a PipelinePlan) -> impl Iterator<Item = &'a LanePlan> + use<'a, '_> {
        let lanes = plan.lanes.iter().zip(&self.of_lanes);
        let is_first = |lane: &LanePlan| lane.member == 0 && lane.has_socket();
        lanes.filter(move |(lane, claimed)| claimed.is_none() && is_first(lane)).map(|(lane, _)| lane)
    }

    /// Gives each address what is bound there, and gives back what no lane can go on with.
    fn deal_out(
        &mut self,
        mut left: Vec<KeptSocket>,
        config: &Config,
        plan: &PipelinePlan,
        users: Users,
    ) -> Result<Vec<KeptSocket>, Failure> {
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
            let (own, others) = left.into_iter().partition(|kept| kept.is_at(lanes));
            left = others;
            unfit.extend(self.claim_group(first, lanes, own, users)?);
            first += members;
        }
        left.extend(unfit);
        Ok(left)
    }

    /// Gives the lanes of an address what is bound there: to all of them, or to none. Sockets of one group were made by
    /// one process, and are alike in what cannot be changed. Gives back what their users have to drain.
    fn claim_group(
        &mut self,
        first: usize,
        lanes: &[Planned<'_>],
        mut own: Vec<KeptSocket>,
        users: Users,
    ) -> Result<Vec<KeptSocket>, Failure> {
        if let Some(why) = own.iter().zip(lanes).find_map(|(kept, lane)| kept.fits(*lane).err()) {
            let (name, address) = (&lanes[0].0.name, lanes[0].1.address);
            return match users {
                Users::Nobody => self.let_go(own, why).map(|()| Vec::new()),
                Users::Own => {
                    let message = format!("listener {name}, {address}: {why}{TAKES_A_RESTART}");
                    Err(Failure::new(ExitCode::Configuration, message))
                }
                Users::Other => Ok(own),
            };
        }
        let surplus = own.split_off(own.len().min(lanes.len()));
        if users == Users::Own && !surplus.is_empty() && lanes[0].0.interface.is_some() {
            let message = format!(
                "listener {}, {}: it has fewer lanes, and a socket that is bound to an interface cannot leave its \
                 group while datagrams arrive{TAKES_A_RESTART}",
                lanes[0].0.name, lanes[0].1.address
            );
            return Err(Failure::new(ExitCode::Configuration, message));
        }
        if let Some(foreign) = surplus.iter().find(|kept| !kept.is_own()) {
            return Err(foreign.too_many(lanes[0].0, lanes.len()));
        }
        for (lane, kept) in (first..).zip(own) {
            self.of_lanes[lane] = Some(kept.socket);
        }
        self.surplus[first] = surplus.into_iter().map(|kept| kept.socket).collect();
        Ok(Vec::new())
    }

    /// How many datagrams can wait in sockets that are closed.
    pub fn closing_hold_at_most(&self) -> u64 {
        closing::hold_at_most(&self.closing)
    }

    /// Has sockets closed that no lane can go on with.
    pub(super) fn let_go(&mut self, sockets: Vec<KeptSocket>, why: &'static str) -> Result<(), Failure> {
        for kept in sockets {
            if !kept.is_own() {
                let (name, address) = (&kept.name, kept.address);
                let message = format!(
                    "the service manager passed a socket named {name:?} for {address} that udpd cannot use: {why}; \
                     correct the .socket unit or the listener"
                );
                return Err(Failure::new(ExitCode::Configuration, message));
            }
            let KeptSocket { name, socket, address, interface, .. } = kept;
            let listener = listener_of(&name).to_owned();
            self.closing.push(Closing { name, listener, socket, address, interface, why });
        }
        Ok(())
    }
}

/// Whether no socket can be bound for the lane, or for other datagrams than it is to have, while one is there that is
/// bound to this address and interface. Sockets on two interfaces can have one address.
pub(super) fn is_in_the_way((address, own): (SocketAddr, u32), listener: &ListenerConfig, plan: &LanePlan) -> bool {
    let interface = listener.interface.as_deref().map_or(Ok(0), if_nametoindex);
    interface.is_ok_and(|interface| interface == 0 || own == 0 || interface == own)
        && plan.address.port() != 0
        && config::overlap(&address, &plan.address)
}

/// Whether somebody was about to close a socket: nothing comes to it any more, or no receive call waits there again.
pub(super) fn is_given_up(socket: &Socket) -> bool {
    socket.is_withdrawn() || socket.is_interrupted().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a running pipeline has at these addresses, claimed by a listener with these lines.
    fn claim_in_use(running: &[(&str, &str, u32)], lines: &str) -> Result<Claims, Failure> {
        let sink = "sinks = [\"out\"]\n[sink.out]\ntype = \"null\"\n";
        let text = format!("[[listener]]\nname = \"in\"\n{lines}\n{sink}");
        let config = Config::parse(&text, "test.toml", &Default::default()).expect("valid");
        let plan = crate::plan::make(&config, &Default::default()).expect("a plan");
        let socket = |&(name, address, interface): &(&str, &str, u32)| KeptSocket {
            name: name.to_owned(),
            inode: 0,
            socket: Arc::new(Socket::new(mmsg::Family::V4).expect("a socket")),
            address: address.parse().expect("an address"),
            interface,
        };
        Kept { sockets: running.iter().map(socket).collect() }.claim_in_use(&config, &plan)
    }

    #[test]
    fn fewer_lanes_on_an_interface_take_a_restart_and_without_one_they_do_not() {
        let lo = if_nametoindex("lo").expect("loopback");
        let two = |interface| [("in.0", "127.0.0.1:5140", interface), ("in.1", "127.0.0.1:5140", interface)];
        let lines = "address = \"127.0.0.1:5140\"\nlanes = 1\n";
        let claims = claim_in_use(&two(0), lines).expect("it leaves its group");
        assert_eq!((claims.of_lanes.iter().flatten().count(), claims.surplus[0].len()), (1, 1));
        let failure = claim_in_use(&two(lo), &format!("{lines}interface = \"lo\"")).expect_err("it cannot leave");
        assert!(failure.message.contains("fewer lanes") && failure.message.ends_with(TAKES_A_RESTART), "{failure}");
    }

    #[test]
    fn an_address_within_one_that_is_received_on_takes_a_restart_and_on_another_interface_it_does_not() {
        let lo = if_nametoindex("lo").expect("loopback");
        let claim = |old: &str, interface, lines: &str| claim_in_use(&[("in.0", old, interface)], lines);
        for (old, new) in [("0.0.0.0:5140", "127.0.0.1:5140"), ("127.0.0.1:5140", "0.0.0.0:5140")] {
            let lines = format!("address = \"{new}\"\nlanes = 1");
            let failure = claim(old, 0, &lines).expect_err("udpd itself has it");
            let words = format!("cannot bind {new} while udpd still receives on {old}");
            assert!(failure.message.contains(&words) && failure.message.ends_with(TAKES_A_RESTART), "{failure}");
            let elsewhere = claim(old, lo + 1, &format!("{lines}\ninterface = \"lo\"")).expect("two interfaces");
            assert_eq!(elsewhere.of_lanes.iter().flatten().count(), 0);
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
