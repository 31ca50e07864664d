//! The interfaces of a configuration as the running kernel shows them, and one plan for all that are steered.
//!
//! Planned one by one, two cards would get the same cores, so all callers take a part of one plan: the daemon, `udpd
//! check` and the bench through [`Interfaces`], `udpd steer` through [`of_command`]. The plan follows the order of
//! `[steer] interfaces` and has as many receivers as the listeners have lanes. The crate `steer` makes it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use steer::ethtool::Ioctl;
use steer::model::{Host, Kind};
use steer::plan::{Amount, InterfacePlan, Plan, QueueSeat, Request};
use steer::{ApplyError, Netlink, Reader, Steering};

use super::advice;
use super::neighbours::{cores, merge};
use crate::config::feeders::LaneFeeds;
use crate::config::{Lanes, ListenerConfig, Spread, SteerConfig};
use udpd_base::exit::{ExitCode, Failure};
use udpd_endpoint::control::Neighbours;

/// What the crate `steer` needs of the running kernel.
#[derive(Debug)]
pub struct Kernel {
    ethtool: Ioctl,
    allowed: Vec<usize>,
}

impl Kernel {
    /// With a socket to ask drivers, for the cores that this process may use.
    pub fn open() -> Result<Self, Failure> {
        let allowed = steer::allowed_cores().map_err(|error| cannot("read which cores udpd may use", &error))?;
        Self::for_cores(allowed)
    }

    /// The same for these cores.
    pub fn for_cores(allowed: Vec<usize>) -> Result<Self, Failure> {
        let ethtool = Ioctl::new().map_err(|error| cannot("make a socket to ask drivers with", &error))?;
        Ok(Self { ethtool, allowed })
    }

    pub fn steering<'a>(&'a self, request: &'a Request) -> Steering<'a> {
        Steering { reader: self.reader(), allowed: &self.allowed, request, rounded: &[] }
    }

    pub fn reader(&self) -> Reader<'_> {
        Reader {
            sys_root: Path::new("/sys"),
            proc_root: Path::new("/proc"),
            ethtool: &self.ethtool,
            netdev: &Netlink,
            busy_polls: &[],
        }
    }
}

fn cannot(what: &str, error: &std::io::Error) -> Failure {
    Failure::new(ExitCode::Failure, format!("cannot {what}: {error}; is this a Linux with a network?"))
}

/// What a plan of lanes needs to know of interfaces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interfaces {
    /// The plan of each steered one, in the order of `[steer] interfaces`.
    pub steered: Vec<InterfacePlan>,
    /// The request of that plan.
    pub request: Request,
    /// By name, those to which a listener is bound and which are not steered.
    pub around: BTreeMap<String, Surroundings>,
    /// The index of each, by its name.
    pub indexes: BTreeMap<String, u32>,
    /// How many receive queues each has now, by its name.
    pub queues: BTreeMap<String, usize>,
    /// The cores of the lanes that each feeds, by its name. Other receivers of its plan do not exist.
    pub lane_cores: BTreeMap<String, BTreeSet<usize>>,
    /// Cores of other daemons on this host.
    pub taken: Vec<usize>,
    /// What could not be read or planned, and what that costs: one line each.
    pub remarks: Vec<String>,
}

/// Where lanes should sit near, and the cores where they should not sit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Surroundings {
    pub node: Option<usize>,
    /// The cores where its interrupts fire now.
    pub fires_on: Vec<usize>,
}

impl Interfaces {
    /// Reads the interfaces of `[steer]` and of the listeners, and plans the former around the seats of other daemons.
    /// `queues` are the receive queues of the listeners' interfaces.
    pub fn read(
        wish: &SteerConfig,
        feeders: &LaneFeeds<'_>,
        queues: BTreeMap<String, usize>,
        allowed: &[usize],
        neighbours: &Neighbours,
    ) -> Self {
        let taken = cores(neighbours);
        let request =
            Request { receivers: receivers(feeders, wish, &queues), taken: taken.clone(), ..wish.request.clone() };
        let silent = neighbours.silent.iter().map(|who| format!("{who}; lanes may come to share its cores"));
        let mut read = Self { request, queues, taken, remarks: silent.collect(), ..Self::default() };
        let listeners = feeders.listeners().iter();
        let bound: Vec<&str> = listeners.filter_map(|listener| listener.interface.as_deref()).collect();
        if wish.interfaces.is_empty() && bound.is_empty() {
            return read;
        }
        match Kernel::for_cores(allowed.to_vec()) {
            Ok(kernel) => {
                read.plan(&kernel, &wish.interfaces, neighbours);
                read.look_around(&kernel, &bound);
            }
            Err(failure) => read.remarks.push(format!("lanes are placed without a look at interfaces: {failure}")),
        }
        read
    }

    /// The plan of an interface that is steered.
    pub fn plan_of(&self, name: &str) -> Option<&InterfacePlan> {
        self.steered.iter().find(|part| part.name == name)
    }

    fn plan(&mut self, kernel: &Kernel, names: &[String], neighbours: &Neighbours) {
        let mut whole = InterfacePlans::new(&kernel.steering(&self.request), names);
        // Where another daemon steers the same card, its interrupts stay: they cannot suit two plans.
        let seated = merge(&whole.host, &whole.plan, neighbours);
        if !seated.is_empty() {
            self.request = beside(self.request.clone(), seated);
            whole = InterfacePlans::new(&kernel.steering(&self.request), names);
        }
        for (name, error) in &whole.left_out {
            let error = advice::of_error(error, false);
            self.remarks.push(format!("interface {name} is not steered, and its lanes follow no plan: {error}"));
        }
        let numbers = whole.host.interfaces.iter().map(|interface| (interface.name.clone(), interface.index));
        self.indexes.extend(numbers);
        self.steered = whole.plan.interfaces;
    }

    /// Reads the interfaces to which listeners are bound and which are not steered.
    fn look_around(&mut self, kernel: &Kernel, bound: &[&str]) {
        for &name in bound {
            if self.plan_of(name).is_some() || self.around.contains_key(name) {
                continue;
            }
            let surroundings = match kernel.reader().read(&[name.to_owned()]) {
                Ok(host) => {
                    self.indexes.extend(host.interfaces.iter().map(|found| (name.to_owned(), found.index)));
                    surroundings_of(&host)
                }
                Err(error) => {
                    self.remarks.push(format!(
                        "cannot read interface {name}: {error}; its lanes are placed without regard to its memory \
                         node and its interrupts"
                    ));
                    Surroundings::default()
                }
            };
            self.around.insert(name.to_owned(), surroundings);
        }
    }
}

fn surroundings_of(host: &Host) -> Surroundings {
    let physical = host.interfaces.iter().filter(|interface| interface.kind == Kind::Physical);
    let queues = physical.clone().flat_map(|interface| &interface.queues);
    let mut fires_on: Vec<usize> =
        queues.filter_map(|queue| queue.interrupt.get()).flat_map(|interrupt| interrupt.effective.clone()).collect();
    fires_on.sort_unstable();
    fires_on.dedup();
    Surroundings { node: physical.clone().find_map(|interface| interface.node), fires_on }
}

/// How many receivers each interface feeds: as many as one address has lanes, of the listener that has the most. With
/// `spread = "queue"` lanes beyond the queues get nothing, so they do not count and RPS is not needed for them. With
/// dedicated queues each queue gets a seat, so that no other lane shares that of a dedicated one.
pub fn receivers(
    feeders: &LaneFeeds<'_>,
    wish: &SteerConfig,
    queues: &BTreeMap<String, usize>,
) -> BTreeMap<String, usize> {
    let mut receivers = BTreeMap::new();
    for (index, listener) in feeders.listeners().iter().enumerate() {
        let ListenerConfig { interface: Some(name), spread, .. } = listener else { continue };
        // Only the driver knows how many queues "max" are; a plan assumes a receiver for each by itself.
        let follows = listener.lanes == Lanes::Auto && wish.request.rx_queues == Amount::Max;
        if follows || wish.dedicated_to(listener).is_some() {
            continue;
        }
        let lanes = feeders.lanes_on_address(index).max(feeders.lanes_past_the_stack(index));
        let keeps = *spread == Spread::Queue && wish.request.rx_queues == Amount::Keep;
        let queues = queues.get(name).filter(|_| keeps);
        let most: &mut usize = receivers.entry(name.clone()).or_default();
        *most = queues.map_or(lanes, |&queues| lanes.min(queues)).max(*most);
    }
    for (name, most) in &mut receivers {
        let kept = wish.dedicated_on(name);
        if kept > 0 {
            *most = (*most + kept).max(queues.get(name).copied().unwrap_or(0));
        }
    }
    receivers
}

/// A plan for several interfaces, without those that cannot be planned.
#[derive(Debug)]
pub struct InterfacePlans {
    pub host: Host,
    /// For the same interfaces in the same order.
    pub plan: Plan,
    /// Those that could not be read or planned, and why.
    pub left_out: Vec<(String, ApplyError)>,
}

impl InterfacePlans {
    /// Plans all of them together, without those that fail.
    pub fn new(steering: &Steering<'_>, names: &[String]) -> Self {
        let mut left_out = Vec::new();
        let mut kept: Vec<String> = Vec::new();
        let mut planned = steering.plan(names);
        if planned.is_err() {
            planned = steering.plan(&[]);
            for name in names {
                kept.push(name.clone());
                match steering.plan(&kept) {
                    Ok(plan) => planned = Ok(plan),
                    Err(error) => left_out.extend(kept.pop().map(|name| (name, error))),
                }
            }
        }
        let nothing = || Host { topology: steer::Topology::default(), interfaces: Vec::new() };
        let (host, plan) = planned.unwrap_or_else(|_| (nothing(), Plan { interfaces: Vec::new() }));
        Self { host, plan, left_out }
    }

    /// The plan of some of its interfaces; an error if one of them was left out.
    pub fn only(mut self, names: &[String]) -> Result<(Host, Plan), ApplyError> {
        if let Some(place) = self.left_out.iter().position(|(name, _)| names.contains(name)) {
            return Err(self.left_out.swap_remove(place).1);
        }
        self.host.interfaces.retain(|interface| names.contains(&interface.name));
        self.plan.interfaces.retain(|part| names.contains(&part.name));
        Ok((self.host, self.plan))
    }
}

/// The plan of `udpd steer`. The interfaces of `[steer]` come first in their order, so an interface that is named on
/// the command line has the same part of the plan as without; then those that only the command line names, which take
/// the cores that are left.
pub fn of_command(steering: &Steering<'_>, wish: &SteerConfig, named: &[String]) -> InterfacePlans {
    let mut names: Vec<String> = Vec::new();
    for name in wish.interfaces.iter().chain(named) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    InterfacePlans::new(steering, &names)
}

/// The request beside running receivers with these seats, whose cores are not `taken` then.
pub fn beside(request: Request, seated: BTreeMap<String, Vec<QueueSeat>>) -> Request {
    let own = |core: &usize| {
        let mut seats = seated.values().flatten();
        seats.any(|seat| seat.receiver_core == *core || seat.cores_of_queue().contains(core))
    };
    let taken = request.taken.iter().copied().filter(|core| !own(core)).collect();
    Request { seated, taken, ..request }
}
