//! What the kernel dropped while no process counted: between the last look of the previous process and the first one of
//! this, at the sockets that were left to it.
//!
//! The kernel's count of drops goes on with the socket. The difference between the last count that the previous process
//! has seen and the first one of this process is in the ledger of neither. Of a socket that is closed, the last count
//! is final.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mmsg::Socket;

use super::discarded_sockets::{DiscardReport, DiscardReports};
use super::pipeline_ledger::{Drops, DropsBetweenProcesses};
use super::{inherited_sockets::SocketAssignment, running::Pipeline};
use udpd_base::ledger::LaneTally;
use udpd_base::ledger::snapshot::ListenerSnapshot;
use udpd_base::os::holder;

#[derive(Debug, Default)]
pub struct OrphanSockets {
    /// The inodes of those that lanes adopt.
    adopted: BTreeSet<u64>,
    /// Those that are read to their end and closed, with the index of the lane that reads them.
    surplus: Vec<(usize, Arc<Socket>)>,
    /// What was found in those that no lane could read.
    reports: Arc<DiscardReports>,
}

#[derive(Debug)]
pub struct PreviousCounts<'a> {
    /// The kernel's counts of drops when it looked last; `None` where that is not known.
    pub seen: Option<&'a Drops>,
    /// The listeners whose receive queues it took past the kernel's stack until it was killed.
    pub lost_queues: &'a BTreeSet<String>,
}

impl PreviousCounts<'_> {
    /// What the kernel has dropped since at a socket that is at `now`. A socket that the process never saw was made
    /// after its last look.
    fn since(&self, inode: u64, now: u32) -> Option<u64> {
        let seen = self.seen?.get(&inode).copied().unwrap_or(0);
        Some(u64::from(now.wrapping_sub(seen)))
    }

    fn since_report(&self, report: &DiscardReport) -> Option<u64> {
        if report.is_old { self.since(report.inode, report.drops?) } else { report.drops.map(u64::from) }
    }
}

impl OrphanSockets {
    /// Remembers them before they are given to their lanes.
    pub fn of(assignment: &SocketAssignment) -> Self {
        let by_lane = assignment.surplus.iter().enumerate();
        let adopted = assignment.by_lane.iter().flatten();
        Self {
            adopted: adopted.filter_map(|socket| holder::inode_of(&**socket).ok()).collect(),
            surplus: by_lane.flat_map(|(lane, own)| own.iter().map(move |one| (lane, Arc::clone(one)))).collect(),
            reports: Arc::clone(&assignment.discard_reports),
        }
    }

    /// The datagrams that waited in those that are closed, and are dropped.
    pub fn unread(&self) -> u64 {
        self.reports.unread()
    }

    /// What the kernel has dropped at those that a lane reads to their end. They are out of its search by now.
    fn dropped_at_surplus(&self, lane: usize, previous: &PreviousCounts<'_>) -> Option<u64> {
        let of_lane = self.surplus.iter().filter(|(reader, _)| *reader == lane);
        of_lane
            .map(|(_, socket)| previous.since(holder::inode_of(socket).ok()?, socket.memory_info().ok()?.drops))
            .sum()
    }
}

impl Pipeline {
    /// Takes into the ledger what the kernel has dropped at the sockets of the previous process since that looked last,
    /// and what waited in those that are closed. Returns for each listener with such sockets what the kernel has
    /// dropped; `None` where that is not known.
    pub fn count_previous_process(
        &self,
        orphans: &OrphanSockets,
        previous: &PreviousCounts<'_>,
    ) -> Vec<(String, Option<u64>)> {
        let mut reports: BTreeMap<String, Vec<DiscardReport>> = BTreeMap::new();
        for report in orphans.reports.all().drain(..) {
            reports.entry(report.listener.clone()).or_default().push(report);
        }
        let mut all = Vec::new();
        for (index, section) in self.own_ledger.listeners.iter().enumerate() {
            let closed = reports.remove(&section.name).unwrap_or_default();
            section.count_unread(&closed);
            let of_lanes = self.lanes_of(index).filter_map(|lane| {
                let inode = lane.socket().and_then(|socket| holder::inode_of(socket).ok());
                let is_adopted = inode.is_some_and(|inode| orphans.adopted.contains(&inode));
                let has_surplus = orphans.surplus.iter().any(|(reader, _)| *reader == lane.setup.index);
                let own = || previous.since(inode?, lane.ledger.began_at()?);
                let own = if is_adopted { own() } else { Some(0) };
                let surplus = orphans.dropped_at_surplus(lane.setup.index, previous);
                (is_adopted || has_surplus).then(|| Some(own? + surplus?))
            });
            let terms = of_lanes.chain(closed.iter().map(|report| previous.since_report(report))).collect();
            let in_buffers = closed.iter().any(|report| report.has_gro);
            if let Some(dropped) = sum(terms, previous.lost_queues.contains(&section.name)) {
                let _ = section.between.set(DropsBetweenProcesses { dropped, in_buffers });
                all.push((section.name.clone(), dropped));
            }
        }
        for (name, closed) in reports {
            let terms = closed.iter().map(|report| previous.since_report(report)).collect();
            let dropped = sum(terms, previous.lost_queues.contains(&name)).flatten();
            self.cumulative_ledger.add_removed_listener(removed_listener(&name, &closed, dropped));
            all.push((name, dropped));
        }
        let is_listed = |name: &String| all.iter().any(|(own, _)| own == name);
        let others = previous.lost_queues.iter().filter(|name| !is_listed(name));
        let others: Vec<_> = others.map(|name| (name.clone(), None)).collect();
        all.into_iter().chain(others).collect()
    }
}

/// `None` without any terms. A term that is not known makes the sum unknown.
fn sum(terms: Vec<Option<u64>>, is_unknown: bool) -> Option<Option<u64>> {
    let has_some = !terms.is_empty() || is_unknown;
    has_some.then(|| terms.into_iter().sum::<Option<u64>>().filter(|_| !is_unknown))
}

/// A listener that is no longer there, of which sockets were closed.
fn removed_listener(name: &str, closed: &[DiscardReport], dropped: Option<u64>) -> ListenerSnapshot {
    let unread: Option<u64> = closed.iter().map(|report| report.unread).sum();
    let (has_gro, mut counts) = (closed.iter().any(|report| report.has_gro), LaneTally::default());
    counts.received = unread.unwrap_or(0);
    counts.dropped.unread = counts.received;
    let mut addresses: Vec<String> = closed.iter().map(|report| report.address.to_string()).collect();
    addresses.dedup();
    ListenerSnapshot {
        name: name.to_owned(),
        address: addresses.join(", "),
        arrived: unread,
        kernel_dropped: Some(0),
        kernel_dropped_between: dropped,
        kernel_dropped_unit: if has_gro { "buffers" } else { "datagrams" }.to_owned(),
        gro: if has_gro { "on" } else { "off" }.to_owned(),
        feed: None,
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
