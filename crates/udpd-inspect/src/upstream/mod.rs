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
//! IPFIX counts. `records` have what was counted of each stream, for the ledger and the log.

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
mod records;
mod settings;
mod stream;
mod table;
pub mod templates;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tracker;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

pub use self::gaps::WINDOW;
use self::ipfix::{LEARNING_BYTES, TEMPLATES_BYTES};
use self::note_ring::{NoteRing, RING_BYTES, TrackerWaker};
pub use self::observer::Observer;
use self::observer::{DESTINATIONS_MAX, Destinations, LaneDestinations};
pub use self::records::StreamChange;
use self::records::{CHANGES_MAX, HostLoss, StreamRecord};
pub use self::settings::{AnySequence, Fixed, NumberOrder, Sequence, SequenceUnit};
pub use self::table::STREAMS_MAX;
use self::table::TABLE_BYTES;
use self::tracker::StreamTracker;
use udpd_base::ledger::Published;
use udpd_base::ledger::counter_list::UpstreamTally;
use udpd_base::ledger::snapshot::{NumberSpan, StreamSnapshot, UpstreamSnapshot};
use udpd_base::os::threads;
use udpd_base::seams::clock;

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
    destinations: Arc<Destinations>,
    /// When a stream is silent; 0: never.
    silence_s: u32,
    started: Instant,
    started_at: SystemTime,
    /// What was counted of each stream, as of the last sweep.
    records: Mutex<Vec<StreamRecord>>,
    /// What the log has yet to say, and how much more there is.
    changes: Mutex<(Vec<(StreamChange, StreamRecord)>, u64)>,
    /// What this host may have lost, as of the last reading; `None` before the first.
    host_loss: Mutex<Option<HostLoss>>,
    /// When the last sweep was, in seconds since the listener was made.
    swept_s: AtomicU32,
    tally: Published<UpstreamTally>,
    is_ending: AtomicBool,
}

/// Instead of a count of drops.
const NOT_MATCHED: u64 = u64::MAX;

/// The most datagrams of a train.
const TRAIN: u64 = 128;

impl UpstreamMonitor {
    /// For so many lanes. Without `knows_drops` no drops are matched with gaps, so they widen the bounds. After
    /// `silence` without a datagram an exporter is silent; zero: it never is.
    pub fn new(sequence: Sequence, lanes: usize, knows_drops: bool, silence: Duration) -> Self {
        Self(Arc::new(MonitorState {
            sequence,
            knows_drops,
            rings: (0..lanes).map(|_| Arc::default()).collect(),
            matched: (0..lanes).map(|_| AtomicU64::new(NOT_MATCHED)).collect(),
            waker: Arc::default(),
            destinations: Arc::new(Mutex::new(Vec::with_capacity(DESTINATIONS_MAX))),
            silence_s: u32::try_from(silence.as_secs()).unwrap_or(u32::MAX),
            started: clock::now(),
            started_at: clock::wall(),
            records: Mutex::default(),
            changes: Mutex::default(),
            host_loss: Mutex::default(),
            swept_s: AtomicU32::new(0),
            tally: Published::default(),
            is_ending: AtomicBool::new(false),
        }))
    }

    /// The observer of a lane that is bound to this address, for its receiver.
    pub fn observer(&self, lane: usize, bound: SocketAddr) -> Observer {
        let MonitorState { sequence, knows_drops, rings, waker, destinations, .. } = &*self.0;
        let destinations = LaneDestinations::new(bound, Arc::clone(destinations));
        Observer::new(*sequence, *knows_drops, Arc::clone(&rings[lane]), Arc::clone(waker), destinations)
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
            SequenceUnit::Flows | SequenceUnit::Mixed => {
                let most = rings.iter().map(|ring| ring.units_max.load(Ordering::Relaxed)).max().unwrap_or(0);
                (most < u64::MAX).then_some(most)
            }
            // A message has any number of records.
            SequenceUnit::Records => None,
        };
        let swept_s = self.0.swept_s.load(Ordering::Acquire);
        let host_loss = HostLoss { swept_s, datagrams: lost_here, units_each };
        *threads::lock(&self.0.host_loss) = Some(host_loss);
        let lost_units = host_loss.units();
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
            worst: records::worst(&threads::lock(&self.0.records)).iter().map(|one| self.0.snapshot(one)).collect(),
        }
    }

    /// All streams that are remembered, as of the last sweep and the last reading.
    pub fn streams(&self) -> Vec<StreamSnapshot> {
        threads::lock(&self.0.records).iter().map(|record| self.0.snapshot(record)).collect()
    }

    /// What has changed since the last call, and how many more changes there were.
    pub fn changes(&self) -> (Vec<(StreamChange, StreamSnapshot)>, u64) {
        let (changes, more) = std::mem::take(&mut *threads::lock(&self.0.changes));
        (changes.iter().map(|(change, record)| (*change, self.0.snapshot(record))).collect(), more)
    }
}

impl MonitorState {
    fn note(&self, change: StreamChange, record: &StreamRecord) {
        let mut changes = threads::lock(&self.changes);
        if changes.0.len() < CHANGES_MAX {
            changes.0.push((change, *record));
        } else {
            changes.1 += 1;
        }
    }

    fn snapshot(&self, record: &StreamRecord) -> StreamSnapshot {
        let StreamRecord { key, counts, arrived, first_s, heard_s, .. } = *record;
        let protocol = self.sequence.of_stream(key.stream);
        let lost_here = threads::lock(&self.host_loss).and_then(|here| here.units());
        let least = record.missing_at_least(lost_here);
        let most = record.missing_at_most();
        let at = |seconds: u32| {
            let since_1970 = self.started_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            since_1970.as_secs() + u64::from(seconds)
        };
        StreamSnapshot {
            source: key.address(),
            port: key.session.port,
            destination: threads::lock(&self.destinations).get(usize::from(key.session.destination)).copied(),
            domain: protocol.domain(key.stream),
            protocol: protocol.to_string(),
            unit: protocol.unit().to_string(),
            arrived,
            missing: (least == most).then_some(most),
            missing_at_least: least,
            missing_at_most: most,
            duplicate: counts.duplicate,
            reordered: counts.reordered,
            late: counts.late,
            restarts: counts.restarts,
            since: at(first_s),
            heard: at(heard_s),
            numbers: record.span.map(|(first, next)| NumberSpan { first, next, bits: protocol.bits() }),
            losing: record.is_losing(),
            silent: record.is_silent(),
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
        TABLE_BYTES + if self.has_messages() { LEARNING_BYTES + TEMPLATES_BYTES } else { 0 }
    }

    /// The memory of a lane for this.
    pub fn lane_bytes(self) -> usize {
        RING_BYTES
    }
}
