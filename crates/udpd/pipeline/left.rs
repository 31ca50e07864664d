//! What one process leaves in the books for the next: how far the kernel had counted at each socket, and how much was
//! under way; and what the next one finds since.
//!
//! The kernel's count of drops goes on with the socket. What it dropped while nobody looked is the difference between
//! the last count that the process before has seen and the first one of this, and is in the books of neither.

use std::sync::Arc;

use mmsg::Socket;

use super::books::{Books, Drops, ListenerBooks};
use super::kept::Claims;
use super::running::Pipeline;
use crate::ledger::tables::SinkDropped;
use crate::ledger::{Counters as _, Table as _, Tally};
use crate::os::holder;

/// Sockets of an earlier process that are read to their end and closed, with the place of the lane that reads them.
#[derive(Debug, Default)]
pub struct Left {
    sockets: Vec<(usize, Arc<Socket>)>,
}

impl Left {
    /// Remembers them before they are given to their lanes.
    pub fn of(claims: &Claims) -> Self {
        let by_lane = claims.surplus.iter().enumerate();
        Self { sockets: by_lane.flat_map(|(lane, own)| own.iter().map(move |one| (lane, Arc::clone(one)))).collect() }
    }

    /// What the kernel has dropped at those of a lane. They are out of its search by now.
    fn dropped(&self, lane: usize, seen: &Drops) -> u64 {
        let of_lane = self.sockets.iter().filter(|(reader, _)| *reader == lane);
        let since = of_lane.filter_map(|(_, socket)| {
            let seen = seen.get(&holder::inode_of(socket).ok()?)?;
            Some(u64::from(socket.memory_info().ok()?.drops.wrapping_sub(*seen)))
        });
        since.sum()
    }
}

impl Pipeline {
    /// Takes into the books what the kernel has dropped at the sockets of the process before since that looked last.
    /// Returns it for each listener of which it is known.
    pub fn note_before(&self, left: &Left, seen: &Drops) -> Vec<(&str, u64)> {
        for lane in &self.lanes {
            let others = left.dropped(lane.setup.index, seen);
            let inode = lane.socket().and_then(|socket| holder::inode_of(socket).ok());
            if let Some(seen) = inode.and_then(|inode| seen.get(&inode)) {
                lane.ledger.note_before(*seen, others);
            }
        }
        self.books.listeners.iter().filter_map(|books| Some((&*books.name, books.dropped_between()?))).collect()
    }
}

impl ListenerBooks {
    /// What the kernel has dropped at its sockets between two processes, of those that it goes on with.
    pub(super) fn dropped_between(&self) -> Option<u64> {
        self.lanes.iter().filter_map(|lane| lane.ledger.dropped_between()).reduce(|sum, one| sum + one)
    }
}

impl Books {
    /// How far the kernel had counted at each socket when somebody looked last.
    pub(super) fn drops_seen(&self) -> Drops {
        let lanes = self.listeners.iter().flat_map(|listener| &listener.lanes);
        let seen = lanes.filter_map(|lane| lane.ledger.seen());
        seen.filter_map(|(socket, drops)| Some((holder::inode_of(socket).ok()?, drops))).collect()
    }

    /// Counts what came to sockets of an heir that is given up.
    pub(super) fn count_in_vain(&self, in_vain: &[(String, u64)]) {
        for (name, datagrams) in in_vain {
            let listener = self.listeners.iter().find(|listener| listener.name == *name);
            if let Some(lane) = listener.and_then(|listener| listener.lanes.first()) {
                lane.ledger.count_unread(*datagrams);
            }
        }
    }

    /// How many drops at each socket are in these books, as of the last look; wrapped as the kernel's own count.
    pub(super) fn drops_counted(&self) -> Drops {
        let lanes = self.listeners.iter().flat_map(|listener| &listener.lanes);
        let lanes = lanes.filter_map(|lane| lane.ledger.counted());
        lanes.filter_map(|(socket, drops)| Some((holder::inode_of(socket).ok()?, drops as u32))).collect()
    }

    /// How many datagrams have been offered to sinks and are not decided there, once for each sink.
    pub(super) fn under_way(&self) -> u64 {
        // In this order, see `ledger`.
        let found = |tally: &Tally| tally.spilled_before + tally.spilled_again;
        let decided =
            |tally: Tally| (tally.delivered + tally.dropped.total() + tally.spilled).saturating_sub(found(&tally));
        let decided: u64 = self
            .listeners
            .iter()
            .enumerate()
            .flat_map(|(index, listener)| listener.sinks.iter().map(move |&sink| (index, sink)))
            .flat_map(|(index, sink)| self.sinks[sink].consumers.iter().map(move |consumer| consumer.read(index)))
            .map(decided)
            .sum();
        let lanes = self.listeners.iter().flat_map(|listener| listener.lanes.iter().map(move |lane| (listener, lane)));
        let offered = lanes.map(|(listener, lane)| {
            let not_taken = |&sink: &usize| SinkDropped::load(lane.ledger.not_taken(sink)).total();
            let not_taken: u64 = listener.sinks.iter().map(not_taken).sum();
            lane.ledger.read().offered.iter().sum::<u64>().saturating_sub(not_taken)
        });
        offered.sum::<u64>().saturating_sub(decided)
    }
}
