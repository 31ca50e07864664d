//! What one process leaves in the books for the next: how far the kernel had counted at each socket, and how much was
//! under way; and what the next one finds since.
//!
//! The kernel's count of drops goes on with the socket. What it dropped while no process looked is the difference
//! between the last count that the process before has seen and the first one of this, and is in the books of neither.
//! Of a socket that is closed it is the last count that there ever was.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mmsg::Socket;

use super::books::{Between, Books, Drops, ListenerBooks, Look};
use super::closing::{Closed, Found};
use super::kept::Claims;
use super::running::Pipeline;
use udpd_base::ledger::snapshot::ListenerSnapshot;
use udpd_base::ledger::tables::SinkDropped;
use udpd_base::ledger::{CounterSet as _, CounterTable as _, LaneTally, SinkTally};
use udpd_base::os::holder;

/// Sockets of an earlier process: those that lanes go on with, those that are read to their end and closed, with the
/// place of the lane that reads them, and what was found in those that no lane could read.
#[derive(Debug, Default)]
pub struct Left {
    kept: BTreeSet<u64>,
    surplus: Vec<(usize, Arc<Socket>)>,
    found: Arc<Found>,
}

/// What is known of the process before.
#[derive(Debug)]
pub struct Known<'a> {
    /// The kernel's counts of drops when it looked last; `None` where that is not known.
    pub seen: Option<&'a Drops>,
    /// The listeners whose receive queues it took past the kernel's stack until it was killed.
    pub lost_queues: &'a BTreeSet<String>,
}

impl Left {
    /// Remembers them before they are given to their lanes.
    pub fn of(claims: &Claims) -> Self {
        let by_lane = claims.surplus.iter().enumerate();
        Self {
            kept: claims.of_lanes.iter().flatten().filter_map(|socket| holder::inode_of(&**socket).ok()).collect(),
            surplus: by_lane.flat_map(|(lane, own)| own.iter().map(move |one| (lane, Arc::clone(one)))).collect(),
            found: Arc::clone(&claims.closed),
        }
    }

    /// The datagrams that waited in those that are closed, and are dropped.
    pub fn unread(&self) -> u64 {
        self.found.unread()
    }

    /// What the kernel has dropped at those of a lane. They are out of its search by now.
    fn dropped_at_surplus(&self, lane: usize, seen: Option<&Drops>) -> Option<u64> {
        let of_lane = self.surplus.iter().filter(|(reader, _)| *reader == lane);
        of_lane.map(|(_, socket)| since(seen?, holder::inode_of(socket).ok()?, socket.memory_info().ok()?.drops)).sum()
    }
}

/// What the kernel has dropped at a socket that stands at `now` since the process before has seen it. One that it never
/// saw is of after its last look.
fn since(seen: &Drops, inode: u64, now: u32) -> Option<u64> {
    Some(u64::from(now.wrapping_sub(seen.get(&inode).copied().unwrap_or(0))))
}

impl Pipeline {
    /// Takes into the books what the kernel has dropped at the sockets of the process before since that looked last,
    /// and what waited in those that are closed. Returns for each listener with such sockets what the kernel has
    /// dropped; `None` where nobody knows.
    pub fn note_before(&self, left: &Left, known: &Known<'_>) -> Vec<(String, Option<u64>)> {
        let mut closed: BTreeMap<String, Vec<Closed>> = BTreeMap::new();
        for one in left.found.all().drain(..) {
            closed.entry(one.listener.clone()).or_default().push(one);
        }
        let mut all = Vec::new();
        for (index, books) in self.books.listeners.iter().enumerate() {
            let closed = closed.remove(&books.name).unwrap_or_default();
            books.count_unread(&closed);
            let own = self.lanes.iter().filter(|lane| lane.setup.plan.listener == index).filter_map(|lane| {
                let inode = lane.socket().and_then(|socket| holder::inode_of(socket).ok());
                let is_kept = inode.is_some_and(|inode| left.kept.contains(&inode));
                let has_others = left.surplus.iter().any(|(reader, _)| *reader == lane.setup.index);
                let own = || since(known.seen?, inode?, lane.ledger.began_at()?);
                let of_lane = if is_kept { own() } else { Some(0) };
                let others = left.dropped_at_surplus(lane.setup.index, known.seen);
                (is_kept || has_others).then(|| Some(of_lane? + others?))
            });
            let terms: Vec<Option<u64>> = own.chain(terms(&closed, known)).collect();
            let in_buffers = closed.iter().any(|one| one.has_gro);
            if let Some(dropped) = sum(terms, known.lost_queues.contains(&books.name)) {
                let _ = books.between.set(Between { dropped, in_buffers });
                all.push((books.name.clone(), dropped));
            }
        }
        for (name, closed) in closed {
            let dropped = sum(terms(&closed, known).collect(), known.lost_queues.contains(&name)).flatten();
            self.chronicle.note_closed(removed(&name, &closed, dropped));
            all.push((name, dropped));
        }
        let is_said = |name: &String| all.iter().any(|(own, _)| own == name);
        let others = known.lost_queues.iter().filter(|name| !is_said(name));
        let others: Vec<_> = others.map(|name| (name.clone(), None)).collect();
        all.into_iter().chain(others).collect()
    }
}

fn terms<'a>(closed: &'a [Closed], known: &'a Known<'_>) -> impl Iterator<Item = Option<u64>> + 'a {
    closed
        .iter()
        .map(|one| if one.is_old { since(known.seen?, one.inode, one.drops?) } else { one.drops.map(u64::from) })
}

/// `None` without any terms; and one that is not known makes the sum unknown.
fn sum(terms: Vec<Option<u64>>, is_unknown: bool) -> Option<Option<u64>> {
    let has_some = !terms.is_empty() || is_unknown;
    has_some.then(|| terms.into_iter().sum::<Option<u64>>().filter(|_| !is_unknown))
}

/// A listener that is no longer there, of which sockets were closed.
fn removed(name: &str, closed: &[Closed], dropped: Option<u64>) -> ListenerSnapshot {
    let unread: Option<u64> = closed.iter().map(|one| one.unread).sum();
    let (has_gro, mut counts) = (closed.iter().any(|one| one.has_gro), LaneTally::default());
    counts.received = unread.unwrap_or(0);
    counts.dropped.unread = counts.received;
    let mut addresses: Vec<String> = closed.iter().map(|one| one.address.to_string()).collect();
    addresses.dedup();
    ListenerSnapshot {
        name: name.to_owned(),
        address: addresses.join(", "),
        arrived: unread,
        kernel_dropped: Some(0),
        kernel_dropped_between: dropped,
        kernel_dropped_unit: if has_gro { "buffers" } else { "datagrams" }.to_owned(),
        gro: if has_gro { "on" } else { "off" }.to_owned(),
        counts,
        upstream: None,
        shared_with: None,
        wrong_cpu: None,
        residual: unread.map(|_| 0),
        sinks: Vec::new(),
        lanes: Vec::new(),
        removed: true,
    }
}

impl ListenerBooks {
    /// Counts what waited in its sockets that are closed.
    fn count_unread(&self, closed: &[Closed]) {
        let Some(lane) = self.lanes.first() else { return };
        closed.iter().for_each(|one| match one.unread {
            Some(unread) => lane.ledger.count_unread(unread),
            None => lane.ledger.note_uncountable(),
        });
    }
}

impl Books {
    /// How far it has counted, each socket and its part of the sum as of one moment.
    pub(super) fn look(&self) -> Look {
        let mut look = Look { kernel_dropped: Some(0), ..Look::default() };
        let mut add = |dropped: Option<u64>| {
            look.kernel_dropped = look.kernel_dropped.zip(dropped).map(|(sum, one)| sum.saturating_add(one));
        };
        for listener in &self.listeners {
            add(listener.between.get().map_or(Some(0), |between| between.dropped));
            for lane in &listener.lanes {
                let own = lane.ledger.look();
                add(own.dropped);
                look.dropped += lane.ledger.read().dropped.total() + own.denied;
                if let Some((socket, drops)) = own.seen {
                    look.drops.extend(holder::inode_of(socket).ok().map(|inode| (inode, drops)));
                }
                if lane.queue.is_some() {
                    look.queues.insert(listener.name.clone());
                }
            }
        }
        look.dropped += self.not_taken() + self.taken(|tally| tally.dropped.total());
        look
    }

    /// Counts what came to sockets of an heir that is given up.
    pub(super) fn count_in_vain(&self, found: &Found) {
        for one in found.all().drain(..) {
            let listener = self.listeners.iter().find(|listener| listener.name == one.listener);
            let Some(lane) = listener.and_then(|listener| listener.lanes.first()) else { continue };
            lane.ledger.count_elsewhere(one.drops.map(u64::from), one.unread);
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
        let found = |tally: &SinkTally| tally.spilled_before + tally.spilled_again;
        let decided =
            |tally: SinkTally| (tally.delivered + tally.dropped.total() + tally.spilled).saturating_sub(found(&tally));
        let decided = self.taken(decided);
        let lanes = self.listeners.iter().flat_map(|listener| &listener.lanes);
        let offered: u64 = lanes.map(|lane| lane.ledger.read().offered.iter().sum::<u64>()).sum();
        offered.saturating_sub(self.not_taken() + decided)
    }

    /// What lanes could not give to sinks.
    fn not_taken(&self) -> u64 {
        let lanes = self.listeners.iter().flat_map(|listener| listener.lanes.iter().map(move |lane| (listener, lane)));
        let by_sink = lanes.flat_map(|(listener, lane)| listener.sinks.iter().map(|&sink| lane.ledger.not_taken(sink)));
        by_sink.map(|cells| SinkDropped::load(cells).total()).sum()
    }

    /// Something of what all consumers have counted.
    fn taken(&self, what: impl Fn(SinkTally) -> u64) -> u64 {
        let by_sink = self.listeners.iter().enumerate();
        by_sink
            .flat_map(|(index, listener)| listener.sinks.iter().map(move |&sink| (index, sink)))
            .flat_map(|(index, sink)| self.sinks[sink].consumers.iter().map(move |consumer| consumer.read(index)))
            .map(what)
            .sum()
    }
}
