//! Going on with a group of sockets that is bound already, with as many members as its address has lanes now. It is
//! done step by step, each step for all addresses, so that what can fail comes before what cannot be undone; and what
//! fails for one of them is undone for all.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use mmsg::{Group, GroupSpread, Socket};
use nix::errno::Errno;

use super::{inherited_sockets::SocketAssignment, lane_setup::LaneSetup, multicast};
use crate::config::{Config, ListenerConfig, Spread};
use crate::plan::PipelinePlan;
use udpd_base::exit::{ExitCode, Failure};
use udpd_sandbox::privilege_helper;

/// A group that is bound, and what is to become of it.
#[derive(Debug)]
pub(super) struct AdoptedGroup<'a> {
    listener: &'a ListenerConfig,
    address: SocketAddr,
    shares: bool,
    group: Group,
    /// Those that are to join it.
    new: &'a [Arc<Socket>],
    /// Those at its end that are to leave it.
    surplus: &'a [Arc<Socket>],
    /// How it was spread, where a pipeline of this process receives from it.
    before: Option<&'a GroupSpread>,
}

/// How the groups of a pipeline are spread, by the first lane that is to adopt each. `sockets` are those of its
/// lanes.
pub(super) fn group_spreads(
    config: &Config,
    plan: &PipelinePlan,
    sockets: &[Option<Arc<Socket>>],
    assignment: &SocketAssignment,
) -> BTreeMap<usize, GroupSpread> {
    let spread = |(lane, assigned): (usize, &Option<Arc<Socket>>)| {
        let assigned = assigned.as_ref()?;
        let is_it = |socket: &Option<Arc<Socket>>| socket.as_ref().is_some_and(|own| Arc::ptr_eq(own, assigned));
        let first = sockets.iter().position(is_it)?;
        let own = &plan.lanes[first];
        let rest = plan.lanes[first + 1..].iter().take_while(|lane| lane.member > 0);
        let plans = std::iter::once(own).chain(rest);
        let of_group = || (lane, multicast::group_spread(&config.listeners[own.listener], plans));
        (own.member == 0).then(of_group)
    };
    assignment.by_lane.iter().enumerate().filter_map(spread).collect()
}

impl<'a> AdoptedGroup<'a> {
    /// Gives the group the program that is planned now, with all the members that it has.
    pub(super) fn adopt(
        setups: &[&'a LaneSetup],
        sockets: &'a [Arc<Socket>],
        assignment: &'a SocketAssignment,
    ) -> Result<Self, Failure> {
        let LaneSetup { plan, listener, index, .. } = setups[0];
        let assigned = &assignment.by_lane[*index..*index + sockets.len()];
        let surplus = &assignment.surplus[*index];
        let (own, new) = sockets.split_at(assigned.iter().flatten().count());
        let program = multicast::group_spread(listener, setups.iter().map(|setup| &setup.plan));
        let group = Group::adopt(own.iter().chain(surplus).cloned().collect(), program)
            .map_err(|error| failure(listener, plan.address, "go on with", &error, ""))?;
        let before = assignment.group_spreads.get(index);
        Ok(Self { listener, address: plan.address, shares: plan.shares, group, new, surplus, before })
    }

    /// Adds the new members.
    pub(super) fn grow(&mut self) -> Result<(), Failure> {
        for socket in self.new {
            self.group.grow_by(Arc::clone(socket), privilege_helper::bind).map_err(|error| {
                // The kernel lets only sockets of one user into a group.
                let cure = match error.raw_os_error().map(Errno::from_raw) {
                    Some(Errno::EADDRINUSE) => {
                        "; they belong to another user: stop the service once, or give its .socket unit a \
                         ListenDatagram= line for each lane, with ReusePort=yes"
                    }
                    _ => "",
                };
                failure(self.listener, self.address, "add to", &error, cure)
            })?;
        }
        Ok(())
    }

    /// Takes the new members out again, so that the group is as it was. What has come to them meanwhile has no reader:
    /// it is counted and dropped.
    pub(super) fn take_back(&mut self, assignment: &SocketAssignment) {
        let adopted = assignment.by_lane.iter().flatten().chain(self.surplus);
        let is_new = |group: &Group| {
            let last = group.members().last().expect("a group has members");
            adopted.clone().all(|own| !Arc::ptr_eq(own, last))
        };
        let (name, address, reports) = (&self.listener.name, self.address, &assignment.discard_reports);
        let mut unread = 0;
        while is_new(&self.group) {
            let count = |leaving: Arc<Socket>| reports.count(name, address, &leaving, false, false);
            let outcome = self.group.shrink_by(privilege_helper::withdraw, count);
            match outcome.and_then(|counted| counted) {
                Ok(counted) => unread += counted,
                Err(error) => {
                    log::warn!(
                        "listener {name}, address {address}: cannot take a socket out of its group again: {error}; \
                         what has come there in this moment is lost, and it is not known how much that is"
                    );
                    reports.note_unknown(name, address);
                    break;
                }
            }
        }
        if unread > 0 {
            log::error!(
                "listener {name}, address {address}: {unread} datagrams came to sockets that were given up again, and \
                 are dropped"
            );
        }
        if let Some(Err(error)) = self.before.map(|before| self.group.set_spread(before.clone())) {
            log::warn!(
                "listener {name}, address {address}: cannot give the group its earlier spread again: {error}; restart \
                 udpd"
            );
        }
    }

    /// Says what another number of lanes means for the order of a sender.
    pub(super) fn log_new_number(&self) {
        let members = self.group.members().len();
        let before = members - self.new.len() + self.surplus.len();
        if before == members || self.listener.spread == Spread::Random {
            return;
        }
        log::info!(
            "listener {}, address {}: it has {members} lanes now and had {before}, so senders are dealt out anew: of \
             what waited in the sockets, and of what comes now, the datagrams of one sender may be delivered in \
             another order",
            self.listener.name,
            self.address
        );
    }

    /// Takes the sockets out that have no lane any more. They are out of the kernel's search afterwards, so a lane can
    /// read them to the end and loses nothing.
    pub(super) fn shrink(&mut self) {
        for left in (1..=self.surplus.len()).rev() {
            if let Err(error) = self.group.shrink_by(privilege_helper::withdraw, drop) {
                log::warn!(
                    "listener {}, address {}: cannot take a socket out of its group that has no lane any more: \
                     {error}; the kernel refuses what arrives there until it is closed; grant CAP_NET_RAW, or restart \
                     once more without `interface`",
                    self.listener.name,
                    self.address
                );
                refuse_arrivals(&self.surplus[..left], self.listener);
                return;
            }
        }
    }

    /// A lone socket needs no group, and then no socket of another process can join one.
    pub(super) fn keep_others_out(&self) -> Result<(), Failure> {
        if self.shares {
            return Ok(());
        }
        let alone = self.group.members()[0].set_reuse_port(false);
        alone.map_err(|error| failure(self.listener, self.address, "keep others away from", &error, ""))
    }
}

fn failure(listener: &ListenerConfig, address: SocketAddr, what: &str, error: &io::Error, cure: &str) -> Failure {
    let message = format!(
        "listener {}, address {address}: cannot {what} the sockets that were left for it: {error}{cure}",
        listener.name
    );
    Failure::new(ExitCode::Failure, message)
}

/// Has the kernel drop and count what arrives at sockets that cannot leave their group, so that reading them comes to
/// an end.
fn refuse_arrivals(surplus: &[Arc<Socket>], listener: &ListenerConfig) {
    for socket in surplus {
        if let Err(error) = socket.refuse_arrivals() {
            log::warn!(
                "listener {}: cannot refuse arrivals at a socket that has no lane any more: {error}; what \
                 arrives there until it is closed is not counted",
                listener.name
            );
        }
    }
    // What is under way comes before the reader begins.
    if let Err(error) = mmsg::wait_for_arrivals_under_way() {
        log::debug!("cannot wait for what the kernel still delivers: {error}");
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use mmsg::Family;

    use super::super::bind;
    use super::super::discarded_sockets::count_out;
    use super::*;

    /// A configuration of one listener that has so many lanes at each of these addresses.
    fn setups(addresses: [SocketAddr; 2], lanes: usize) -> (Config, PipelinePlan) {
        let [first, second] = addresses;
        let text = format!(
            "[[listener]]\nname = \"in\"\naddress = [\"{first}\", \"{second}\"]\nlanes = {lanes}\nspread = \"random\"\n\
             sinks = [\"out\"]\n[sink.out]\ntype = \"null\"\n"
        );
        let config = Config::parse(&text, "test.toml", &Default::default()).expect("valid");
        let plan = crate::plan::make(&config, &Default::default()).expect("a plan");
        (config, plan)
    }

    fn made() -> Arc<Socket> {
        Arc::new(Socket::new(Family::V4).expect("a socket"))
    }

    /// One that is received from, alone at its address.
    fn received_from() -> (Arc<Socket>, SocketAddr) {
        let socket = made();
        socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        let address = socket.local_addr().expect("bound");
        (socket, address)
    }

    /// From as many ports.
    fn send(to: SocketAddr, datagrams: usize) {
        for _ in 0..datagrams {
            let sent = UdpSocket::bind("127.0.0.1:0").and_then(|sender| sender.send_to(b"x", to));
            assert_eq!(sent.expect("loopback takes it"), 1);
        }
    }

    fn waiting(socket: &Socket) -> u64 {
        let mut all = 0;
        count_out(socket, |datagrams| all += datagrams).expect("readable");
        all
    }

    #[test]
    fn where_one_address_cannot_have_more_lanes_no_other_one_keeps_those_that_it_got() {
        let ((first, first_address), (second, second_address)) = (received_from(), received_from());
        let (config, plan) = setups([first_address, second_address], 2);
        let setups = LaneSetup::all(&config, &plan);
        let mut assignment = SocketAssignment::none(&plan);
        assignment.by_lane = vec![Some(Arc::clone(&first)), None, Some(Arc::clone(&second)), None];
        assignment.are_in_use = true;
        // What is bound already cannot be bound once more.
        let (joins, (cannot_join, _)) = (made(), received_from());
        let sockets = [Arc::clone(&first), Arc::clone(&joins), Arc::clone(&second), cannot_join];
        let lanes: Vec<(&LaneSetup, Arc<Socket>)> = setups.iter().zip(sockets).collect();
        let refused = bind::open(&lanes, lanes.iter().map(|_| None).collect(), &assignment)
            .expect_err("the last cannot be bound");
        assert!(refused.message.contains("cannot add to"), "{refused}");
        assert!(joins.is_withdrawn(), "it is out of the group, and nothing comes there");
        send(first_address, 100);
        send(second_address, 100);
        assert_eq!((waiting(&first), waiting(&joins), waiting(&second)), (100, 0, 100));
        assert_eq!(assignment.discard_reports.unread(), 0);
    }

    #[test]
    fn whichever_lane_cannot_be_bound_every_socket_stays_where_it_was_and_gets_what_is_sent() {
        const LANES: usize = 4;
        for broken in (1..2 * LANES).filter(|lane| *lane != LANES) {
            let ((first, first_address), (second, second_address)) = (received_from(), received_from());
            let (config, plan) = setups([first_address, second_address], LANES);
            let setups = LaneSetup::all(&config, &plan);
            let mut assignment = SocketAssignment::none(&plan);
            assignment.are_in_use = true;
            let mut sockets: Vec<Arc<Socket>> = (0..2 * LANES).map(|_| made()).collect();
            for (place, own) in [(0, &first), (LANES, &second)] {
                sockets[place] = Arc::clone(own);
                assignment.by_lane[place] = Some(Arc::clone(own));
            }
            sockets[broken] = received_from().0;
            let lanes: Vec<(&LaneSetup, Arc<Socket>)> = setups.iter().zip(sockets.iter().cloned()).collect();
            let refused = bind::open(&lanes, lanes.iter().map(|_| None).collect(), &assignment);
            assert!(refused.expect_err("one cannot be bound").message.contains("cannot add to"), "lane {broken}");
            send(first_address, 60);
            send(second_address, 60);
            let news = sockets.iter().enumerate().filter(|(place, _)| ![0, LANES, broken].contains(place));
            assert_eq!(news.map(|(_, socket)| waiting(socket)).sum::<u64>(), 0, "lane {broken}");
            assert_eq!((waiting(&first), waiting(&second)), (60, 60), "lane {broken}");
            assert_eq!(assignment.discard_reports.unread(), 0, "lane {broken}");
        }
    }

    #[test]
    fn what_comes_to_a_socket_before_it_is_taken_back_is_counted() {
        let ((first, address), (_, other)) = (received_from(), received_from());
        let (config, plan) = setups([address, other], 2);
        let setups = LaneSetup::all(&config, &plan);
        let setups: Vec<&LaneSetup> = setups.iter().collect();
        let mut assignment = SocketAssignment::none(&plan);
        assignment.by_lane = vec![Some(Arc::clone(&first)), None, None, None];
        let sockets = [Arc::clone(&first), made()];
        let mut group = AdoptedGroup::adopt(&setups[..2], &sockets, &assignment).expect("a group of one");
        group.grow().expect("and of two");
        send(address, 200);
        group.take_back(&assignment);
        let taken_back = assignment.discard_reports.unread();
        assert!(taken_back > 0, "none of 200 went to the second of two");
        assert_eq!(waiting(&first) + taken_back, 200);
        send(address, 50);
        assert_eq!(waiting(&first), 50);
    }
}
