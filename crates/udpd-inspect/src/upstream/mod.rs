//! What never reached this host: `sequence` names the number that a protocol's header carries, and the numbers that do
//! not come were lost before the network card, or by the exporter itself.
//!
//! ```text
//! receiver --> observer --> ring --\
//! receiver --> observer --> ring ----> tracker: table of streams --> ledger
//! ```
//!
//! A receiver reads the header of each datagram after trains are split and before anything is dropped. For each run of
//! consecutive numbers in a batch it writes a note into its `note_ring` (`observer`, `header`). One thread for the
//! listener takes the notes of all lanes (`tracker`) and keeps a bounded `table` of streams. `gaps` are the numbers
//! that a stream lacks, `stream` decides what is a loss and what a new start, and `ipfix` learns how an exporter of
//! IPFIX counts.

#[cfg(feature = "testing")]
#[path = "testing/fuzz.rs"]
pub(crate) mod fuzz;
mod gaps;
mod header;
mod ipfix;
#[cfg(test)]
#[path = "network_model_tests.rs"]
mod network_model;
#[cfg(test)]
mod network_tests;
mod note_ring;
mod observer;
mod settings;
mod stream;
mod table;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tracker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use self::gaps::WINDOW;
use self::ipfix::{LEARNING_BYTES, TEMPLATES_BYTES};
use self::note_ring::{NoteRing, RING_BYTES, TrackerWaker};
pub use self::observer::Observer;
pub use self::settings::{AnySequence, Fixed, NumberOrder, Sequence, SequenceUnit};
pub use self::table::STREAMS_MAX;
use self::table::TABLE_BYTES;
use self::tracker::StreamTracker;
use udpd_base::ledger::Published;
use udpd_base::ledger::counter_list::UpstreamTally;
use udpd_base::ledger::snapshot::UpstreamSnapshot;

/// What a listener with a `sequence` knows of what never reached this host: shared by the observers of its lanes, the
/// thread that tracks its streams, and the readers of the ledger.
#[derive(Debug, Clone)]
pub struct UpstreamMonitor(Arc<MonitorState>);

#[derive(Debug)]
struct MonitorState {
    sequence: Sequence,
    /// Whether the kernel tells with each datagram how many it has dropped before.
    knows_drops: bool,
    /// By lane.
    rings: Vec<Arc<NoteRing>>,
    /// By lane: how many of the kernel's drops the tracker subtracts already, because they left gaps; `NOT_MATCHED`
    /// where it cannot tell.
    matched: Vec<AtomicU64>,
    waker: Arc<TrackerWaker>,
    tally: Published<UpstreamTally>,
    is_ending: AtomicBool,
}

/// Instead of a count of drops.
const NOT_MATCHED: u64 = u64::MAX;

/// The most datagrams of a train.
const TRAIN: u64 = 128;

impl UpstreamMonitor {
    /// For so many lanes. Without `knows_drops` no drops are matched with gaps, so they widen the bounds.
    pub fn new(sequence: Sequence, lanes: usize, knows_drops: bool) -> Self {
        Self(Arc::new(MonitorState {
            sequence,
            knows_drops,
            rings: (0..lanes).map(|_| Arc::default()).collect(),
            matched: (0..lanes).map(|_| AtomicU64::new(NOT_MATCHED)).collect(),
            waker: Arc::default(),
            tally: Published::default(),
            is_ending: AtomicBool::new(false),
        }))
    }

    /// The observer of a lane, for its receiver.
    pub fn observer(&self, lane: usize) -> Observer {
        let MonitorState { sequence, knows_drops, rings, waker, .. } = &*self.0;
        Observer::new(*sequence, *knows_drops, Arc::clone(&rings[lane]), Arc::clone(waker))
    }

    /// Tracks the streams until [`Self::end`]. To be called on a thread of its own.
    pub fn run(&self) {
        StreamTracker::new(&self.0).run();
    }

    /// Lets the thread take the remaining notes, settle them and end. Later notes are not counted.
    pub fn end(&self) {
        self.0.is_ending.store(true, Ordering::Release);
        self.0.waker.wake();
    }

    /// What is known now. `kernel_dropped` is by lane; `others` are datagrams that this host lost in other ways before
    /// their numbers were read.
    pub fn read(&self, kernel_dropped: impl Iterator<Item = Option<u64>>, gro: bool, others: u64) -> UpstreamSnapshot {
        let MonitorState { sequence, rings, matched, tally, .. } = &*self.0;
        let counts = tally.read();
        let sum = |count: fn(&NoteRing) -> u64| rings.iter().map(|ring| count(ring)).sum::<u64>();
        let unseen = sum(|ring| ring.unseen.load(Ordering::Relaxed));
        let each = if gro { TRAIN } else { 1 };
        // No datagram has told yet of the last drops of a lane, so the tracker has not subtracted them.
        let unmatched = kernel_dropped.zip(matched).map(|(dropped, matched)| match matched.load(Ordering::Relaxed) {
            NOT_MATCHED => dropped,
            matched => Some(dropped.map_or(0, |dropped| dropped.saturating_sub(matched))),
        });
        let lost_here: Option<u64> = unmatched.sum();
        let lost_here = lost_here.map(|dropped| (dropped + others) * each + unseen);
        let units_each = match sequence.unit() {
            SequenceUnit::Datagrams => Some(1),
            SequenceUnit::Flows => rings.iter().map(|ring| ring.units_max.load(Ordering::Relaxed)).max().or(Some(0)),
            // A message has any number of records.
            SequenceUnit::Records => None,
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
    /// Whether it helps to know with each datagram what the kernel has dropped before: only where numbers and drops
    /// have the same unit, which they do not with `gro`.
    pub fn reads_drops(self, gro: bool) -> bool {
        !gro && self.unit() == SequenceUnit::Datagrams
    }

    /// The memory of a listener for all of this, beside the rings of its lanes.
    pub fn table_bytes(self) -> usize {
        TABLE_BYTES + if self == Self::Ipfix { LEARNING_BYTES + TEMPLATES_BYTES } else { 0 }
    }

    /// The memory of a lane for this.
    pub fn lane_bytes(self) -> usize {
        RING_BYTES
    }
}
