//! What the pipeline holds of this room, and how the books read it: which part of what is missing this host may have
//! lost itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::observer::Observer;
use super::ring::{RING_BYTES, Ring};
use super::settings::{Sequence, Unit};
use super::shared::Shared;
use super::table::{STREAMS_MAX, TABLE_BYTES};
use super::templates::TEMPLATES_BYTES;
use super::tracker::Tracker;
use udpd_base::ledger::Published;
use udpd_base::ledger::snapshot::UpstreamSnapshot;

/// What a listener with a `sequence` knows of what never reached this host.
#[derive(Debug, Clone)]
pub struct Upstream(Arc<Shared>);

/// The most datagrams of a train.
const TRAIN: u64 = 128;

impl Upstream {
    /// For so many lanes. Where nobody `knows_drops` at each datagram they match nothing: they widen the bounds.
    pub fn new(sequence: Sequence, lanes: usize, knows_drops: bool) -> Self {
        Self(Arc::new(Shared {
            sequence,
            knows_drops,
            rings: (0..lanes).map(|_| Arc::default()).collect(),
            is_matched: (0..lanes).map(|_| AtomicBool::new(false)).collect(),
            bell: Arc::default(),
            tally: Published::default(),
            is_ending: AtomicBool::new(false),
        }))
    }

    /// What the receiver of a lane sees its datagrams with.
    pub fn observer(&self, lane: usize) -> Observer {
        let Shared { sequence, knows_drops, rings, bell, .. } = &*self.0;
        Observer::new(*sequence, *knows_drops, Arc::clone(&rings[lane]), Arc::clone(bell))
    }

    #[cfg(test)]
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }

    /// Keeps the streams until the end: the life of a thread.
    pub fn run(&self) {
        Tracker::new(&self.0).run();
    }

    /// Lets the thread take what is left, settle it and end. What a receiver notes later is not counted.
    pub fn end(&self) {
        self.0.is_ending.store(true, Ordering::Release);
        self.0.bell.ring();
    }

    /// What is known now. `kernel_dropped` is by lane; `others` are datagrams that were lost here in other ways before
    /// anybody saw their numbers.
    pub fn read(&self, kernel_dropped: impl Iterator<Item = Option<u64>>, gro: bool, others: u64) -> UpstreamSnapshot {
        let Shared { sequence, rings, is_matched, tally, .. } = &*self.0;
        let counts = tally.read();
        let sum = |count: fn(&Ring) -> u64| rings.iter().map(|ring| count(ring)).sum::<u64>();
        let unseen = sum(|ring| ring.unseen.load(Ordering::Relaxed));
        let each = if gro { TRAIN } else { 1 };
        let unmatched = kernel_dropped.zip(is_matched).filter(|(_, matched)| !matched.load(Ordering::Relaxed));
        let lost_here: Option<u64> = unmatched.map(|(dropped, _)| dropped).sum();
        let lost_here = lost_here.map(|dropped| (dropped + others) * each + unseen);
        let units_each = match sequence.unit() {
            Unit::Datagrams => Some(1),
            Unit::Flows => Some(rings.iter().map(|ring| ring.units_max.load(Ordering::Relaxed)).max().unwrap_or(0)),
            // A message has any number of records.
            Unit::Records => None,
        };
        let lost_units = match (lost_here, units_each) {
            (Some(0), _) => Some(0),
            (Some(lost), Some(units)) => Some(lost.saturating_mul(units)),
            _ => None,
        };
        let sure = counts.gone.saturating_sub(counts.dropped_perhaps);
        let missing_at_least = lost_units.map_or(0, |lost| sure.saturating_sub(lost));
        let missing_at_most = counts.gone.saturating_sub(counts.dropped_sure) + counts.uncertain;
        UpstreamSnapshot {
            unit: sequence.unit().to_string(),
            missing: (missing_at_least == missing_at_most).then_some(missing_at_most),
            missing_at_least,
            missing_at_most,
            counts,
            unseen,
            unnumbered: sum(|ring| ring.unnumbered.load(Ordering::Relaxed)),
        }
    }
}

impl Sequence {
    /// Whether it helps to know at each datagram what the kernel has dropped before: where numbers and drops have the
    /// same unit, which they have not with `gro`.
    pub fn reads_drops(self, gro: bool) -> bool {
        !gro && self.unit() == Unit::Datagrams
    }

    /// What all of this takes for a listener, beside the rings of its lanes.
    pub fn table_bytes(self) -> usize {
        let learning = STREAMS_MAX * size_of::<super::convention::Learning>() + TEMPLATES_BYTES;
        TABLE_BYTES + if self == Self::Ipfix { learning } else { 0 }
    }

    /// What it takes for a lane.
    pub fn lane_bytes(self) -> usize {
        RING_BYTES
    }
}
