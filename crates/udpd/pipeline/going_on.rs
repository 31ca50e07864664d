//! Going on with the sockets of an address that are bound already, as one group with as many members as it has lanes
//! now. It is done step by step, each step for all addresses, so that what can fail comes before what cannot be undone.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use mmsg::{Group, Socket};
use nix::errno::Errno;

use super::kept::Claims;
use super::setup::LaneSetup;
use crate::config::Listener;
use crate::exit::{ExitCode, Failure};
use crate::plan::spread;

/// A group that is bound, and what is to become of it.
#[derive(Debug)]
pub(super) struct GoingOn<'a> {
    listener: &'a Listener,
    address: SocketAddr,
    shares: bool,
    group: Group,
    /// Those that are to join it.
    new: &'a [Arc<Socket>],
    /// Those at its end that are to leave it.
    surplus: &'a [Arc<Socket>],
}

impl<'a> GoingOn<'a> {
    /// Gives the group the program that is planned now, with all the members that it has.
    pub(super) fn adopt(
        setups: &[&'a LaneSetup],
        sockets: &'a [Arc<Socket>],
        first: usize,
        claims: &'a Claims,
    ) -> Result<Self, Failure> {
        let LaneSetup { plan, listener, .. } = setups[0];
        let (kept, surplus) = (&claims.of_lanes[first..first + sockets.len()], &claims.surplus[first]);
        let (own, new) = sockets.split_at(kept.iter().flatten().count());
        let program = spread::group_spread(listener.spread, setups.iter().map(|setup| &setup.plan.intake));
        let group = Group::adopt(own.iter().chain(surplus).cloned().collect(), program)
            .map_err(|error| failure(listener, plan.address, "go on with", &error, ""))?;
        Ok(Self { listener, address: plan.address, shares: plan.shares, group, new, surplus })
    }

    /// Adds what is new to it.
    pub(super) fn grow(&mut self) -> Result<(), Failure> {
        for socket in self.new {
            self.group.grow(Arc::clone(socket)).map_err(|error| {
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

    /// Takes out what has no lane any more. It is out of the kernel's search afterwards, and whoever reads it to the
    /// end loses nothing.
    pub(super) fn shrink(&mut self) {
        for left in (1..=self.surplus.len()).rev() {
            if let Err(error) = self.group.shrink(drop) {
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

fn failure(listener: &Listener, address: SocketAddr, what: &str, error: &io::Error, cure: &str) -> Failure {
    let message = format!(
        "listener {}, address {address}: cannot {what} the sockets that were left for it: {error}{cure}",
        listener.name
    );
    Failure::new(ExitCode::Failure, message)
}

/// Has the kernel drop and count what arrives at sockets that cannot leave their group, so that what is in them comes
/// to an end.
fn refuse_arrivals(surplus: &[Arc<Socket>], listener: &Listener) {
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
