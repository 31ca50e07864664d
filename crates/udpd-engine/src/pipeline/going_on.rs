//! Going on with the sockets of an address that are bound already, as one group with as many members as it has lanes
//! now. It is done step by step, each step for all addresses, so that what can fail comes before what cannot be undone;
//! and what fails for one of them is undone for all.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use mmsg::{Group, GroupSpread, Socket};
use nix::errno::Errno;

use super::kept::Claims;
use super::setup::LaneSetup;
use crate::config::{Config, ListenerConfig, Spread};
use crate::plan::{PipelinePlan, spread};
use udpd_base::exit::{ExitCode, Failure};
use udpd_sandbox::warden;

/// A group that is bound, and what is to become of it.
#[derive(Debug)]
pub(super) struct GoingOn<'a> {
    listener: &'a ListenerConfig,
    address: SocketAddr,
    shares: bool,
    group: Group,
    /// Those that are to join it.
    new: &'a [Arc<Socket>],
    /// Those at its end that are to leave it.
    surplus: &'a [Arc<Socket>],
    /// How it was spread, where somebody receives from it.
    before: Option<&'a GroupSpread>,
}

/// How the groups of a pipeline are spread, by the first lane that is to go on with each. `sockets` are those of its
/// lanes.
pub(super) fn spreads(
    config: &Config,
    plan: &PipelinePlan,
    sockets: &[Option<Arc<Socket>>],
    claims: &Claims,
) -> BTreeMap<usize, GroupSpread> {
    let spread = |(lane, claimed): (usize, &Option<Arc<Socket>>)| {
        let claimed = claimed.as_ref()?;
        let is_it = |socket: &Option<Arc<Socket>>| socket.as_ref().is_some_and(|own| Arc::ptr_eq(own, claimed));
        let first = sockets.iter().position(is_it)?;
        let own = &plan.lanes[first];
        let rest = plan.lanes[first + 1..].iter().take_while(|lane| lane.member > 0);
        let intakes = std::iter::once(own).chain(rest).map(|lane| &lane.intake);
        let of_group = || (lane, spread::group_spread(config.listeners[own.listener].spread, intakes));
        (own.member == 0).then(of_group)
    };
    claims.of_lanes.iter().enumerate().filter_map(spread).collect()
}

impl<'a> GoingOn<'a> {
    /// Gives the group the program that is planned now, with all the members that it has.
    pub(super) fn adopt(
        setups: &[&'a LaneSetup],
        sockets: &'a [Arc<Socket>],
        claims: &'a Claims,
    ) -> Result<Self, Failure> {
        let LaneSetup { plan, listener, index: first, .. } = setups[0];
        let first = *first;
        let (kept, surplus) = (&claims.of_lanes[first..first + sockets.len()], &claims.surplus[first]);
        let (own, new) = sockets.split_at(kept.iter().flatten().count());
        let program = spread::group_spread(listener.spread, setups.iter().map(|setup| &setup.plan.intake));
        let group = Group::adopt(own.iter().chain(surplus).cloned().collect(), program)
            .map_err(|error| failure(listener, plan.address, "go on with", &error, ""))?;
        let before = claims.spreads.get(&first);
        Ok(Self { listener, address: plan.address, shares: plan.shares, group, new, surplus, before })
    }

    /// Adds what is new to it.
    pub(super) fn grow(&mut self) -> Result<(), Failure> {
        for socket in self.new {
            self.group.grow_by(Arc::clone(socket), warden::bind).map_err(|error| {
                // A group is of one user.
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

    /// Takes out again what has joined it, so that it is as it was. Nobody reads what has come there meanwhile: it is
    /// counted and dropped.
    pub(super) fn take_back(&mut self, claims: &Claims) {
        let adopted = claims.of_lanes.iter().flatten().chain(self.surplus);
        let is_new = |group: &Group| {
            let last = group.members().last().expect("a group has members");
            adopted.clone().all(|own| !Arc::ptr_eq(own, last))
        };
        let (mut unread, place) = (0, (&*self.listener.name, self.address));
        while is_new(&self.group) {
            let count = |leaving: Arc<Socket>| claims.closed.count_out(place, &leaving, (false, false));
            let outcome = self.group.shrink_by(warden::withdraw, count);
            match outcome.and_then(|counted| counted) {
                Ok(counted) => unread += counted,
                Err(error) => {
                    log::warn!(
                        "listener {}, address {}: cannot take a socket out of its group again: {error}; what has come \
                         there in this moment is lost, and it is not known how much that is",
                        self.listener.name,
                        self.address
                    );
                    claims.closed.note_unknown(place);
                    break;
                }
            }
        }
        if unread > 0 {
            log::error!(
                "listener {}, address {}: {unread} datagrams came to sockets that were given up again, and are dropped",
                self.listener.name,
                self.address
            );
        }
        if let Some(Err(error)) = self.before.map(|before| self.group.set_spread(before.clone())) {
            log::warn!(
                "listener {}, address {}: cannot spread it again as before: {error}; restart udpd",
                self.listener.name,
                self.address
            );
        }
    }

    /// Says what another number of lanes means for the order of a sender.
    pub(super) fn say_new_number(&self) {
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

    /// Takes out what has no lane any more. It is out of the kernel's search afterwards, and whoever reads it to the
    /// end loses nothing.
    pub(super) fn shrink(&mut self) {
        for left in (1..=self.surplus.len()).rev() {
            if let Err(error) = self.group.shrink_by(warden::withdraw, drop) {
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

    /// Alone a socket needs no group, and then nobody else can join one.
    pub(super) fn keep_others_away(&self) -> Result<(), Failure> {
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

/// Has the kernel drop and count what arrives at sockets that cannot leave their group, so that what is in them comes
/// to an end.
fn refuse_arrivals(surplus: &[Arc<Socket>], listener: &ListenerConfig) {
    for socket in surplus {
        if let Err(error) = socket.refuse_arrivals() {
            log::warn!(
                "listener {}: cannot refuse arrivals at a socket that has no lane any more: {error}; nobody counts \
                 what arrives there until it is closed",
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
#[path = "going_on_tests.rs"]
mod tests;
