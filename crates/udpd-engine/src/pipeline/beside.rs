//! Binding the sockets of an address where others still are that are to be closed, so that whatever comes there always
//! finds a socket.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use mmsg::{Group, Socket};

use super::closing::Closing;
use super::kept::{Claims, is_in_the_way};
use super::setup::LaneSetup;
use crate::plan::spread;
use udpd_sandbox::warden;

/// New sockets that were bound beside those that are to be closed.
#[derive(Debug)]
pub(super) struct Beside<'a> {
    setups: &'a [&'a LaneSetup],
    sockets: &'a [Arc<Socket>],
}

/// Those that are where a lane is to be bound.
pub(super) fn closing_at<'a>(claims: &'a Claims, setup: &LaneSetup) -> Vec<&'a Closing> {
    let is_there = |own: &&Closing| is_in_the_way((own.address, own.interface), &setup.listener, &setup.plan);
    claims.closing.iter().filter(is_there).collect()
}

impl<'a> Beside<'a> {
    /// Binds the sockets of an address where others are that are to be closed.
    pub(super) fn bind(
        setups: &'a [&'a LaneSetup],
        sockets: &'a [Arc<Socket>],
        closing: &[&Closing],
    ) -> io::Result<Self> {
        let plan = &setups[0].plan;
        closing.iter().try_for_each(|own| own.socket.set_reuse_port(true))?;
        let is_of_group = |own: &&&Closing| own.address == plan.address && !own.socket.is_withdrawn();
        for place in order_of_binding(closing.iter().filter(is_of_group).count(), sockets.len()) {
            sockets[place].set_reuse_port(true)?;
            warden::bind(&sockets[place], plan.address)?;
        }
        Ok(Self { setups, sockets })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.setups[0].plan.address
    }

    /// Gives them the program of their group, now that they are alone in it.
    pub(super) fn stay_alone(&self) -> io::Result<()> {
        let LaneSetup { plan, listener, .. } = self.setups[0];
        let program = spread::group_spread(listener.spread, self.setups.iter().map(|setup| &setup.plan.intake));
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
