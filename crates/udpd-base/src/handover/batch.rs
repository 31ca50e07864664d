//! What travels from a receiver to its sinks: datagrams, and where they come from.
//!
//! Datagrams travel in one of two forms. A batch as it was received is handed on as it is, by counted reference, to
//! every sink that keeps up. For a sink that is behind they are packed instead, each in no more memory than it is long,
//! so that what waits takes the memory of what it is and not of the longest datagram there could be. A sink sees no
//! difference.

use std::fmt;
use std::time::Instant;

use mmsg::{Datagram, PackedBatch, RecvBatch, Summary};

use super::sync::Arc;

/// Datagrams in one of the two forms.
#[derive(Debug)]
pub enum LaneLoad {
    /// As received.
    Received(RecvBatch),
    /// One behind the other.
    Packed(PackedBatch),
}

impl LaneLoad {
    /// The datagrams, in the order they were received.
    pub fn datagrams(&self) -> LoadDatagrams<'_> {
        match self {
            LaneLoad::Received(batch) => LoadDatagrams::Received(batch.datagrams()),
            LaneLoad::Packed(batch) => LoadDatagrams::Packed(batch.datagrams()),
        }
    }

    /// Counts of these.
    pub fn summary(&self) -> &Summary {
        match self {
            LaneLoad::Received(batch) => batch.summary(),
            LaneLoad::Packed(batch) => batch.summary(),
        }
    }
}

/// Iterator over the datagrams of a load.
#[derive(Debug, Clone)]
pub enum LoadDatagrams<'a> {
    /// Of a batch as received.
    Received(mmsg::Datagrams<'a>),
    /// Of a packed one.
    Packed(mmsg::PackedDatagrams<'a>),
}

impl<'a> Iterator for LoadDatagrams<'a> {
    type Item = Datagram<'a>;

    #[inline]
    fn next(&mut self) -> Option<Datagram<'a>> {
        match self {
            LoadDatagrams::Received(datagrams) => datagrams.next(),
            LoadDatagrams::Packed(datagrams) => datagrams.next(),
        }
    }
}

/// Where a load was born, and goes back to when it is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoadOrigin {
    /// In the pool of its lane.
    Lane,
    /// In the stock of the queue that it was taken for.
    Queue,
    /// In the stock that all queues of its memory node share.
    Node,
    /// Beside them, for this load alone.
    Nowhere,
}

/// Datagrams that know where they come from.
pub struct LaneBatch {
    /// The datagrams.
    pub datagrams: LaneLoad,
    /// Index of the listener, for the ledger and for paths.
    pub listener: usize,
    /// Index of the lane over all listeners.
    pub lane: usize,
    /// When it arrived, where that is measured.
    pub stamp: Option<LatencyStamp>,
    pub(super) origin: LoadOrigin,
    /// Of the memory node, for the way home.
    pub(super) node: usize,
    /// Grows from each load of a lane to the next, in the order they were begun.
    pub(super) number: u64,
}

impl LaneBatch {
    /// A batch of a lane that has no pool: for measurements and tests of what sinks do with it.
    pub fn received(batch: RecvBatch, listener: usize, lane: usize) -> Self {
        Self { listener, lane, ..Self::with(LaneLoad::Received(batch), LoadOrigin::Lane) }
    }

    /// An empty packed one of a lane that has no pool: for what was put away and comes back.
    pub fn unpacked(batch: PackedBatch) -> Self {
        Self::with(LaneLoad::Packed(batch), LoadOrigin::Lane)
    }

    /// Takes those of the datagrams that `mmsg::pack` wrote whose places `wanted` picks, of this listener and lane.
    /// False when the bytes are no such datagrams, or do not fit.
    #[must_use]
    pub fn unpack(
        &mut self,
        (listener, lane): (usize, usize),
        bytes: &[u8],
        wanted: impl FnMut(usize) -> bool,
    ) -> bool {
        (self.listener, self.lane) = (listener, lane);
        match &mut self.datagrams {
            LaneLoad::Packed(batch) => batch.unpack(bytes, wanted),
            LaneLoad::Received(_) => false,
        }
    }

    fn with(datagrams: LaneLoad, origin: LoadOrigin) -> Self {
        Self { datagrams, listener: 0, lane: 0, stamp: None, origin, node: 0, number: 0 }
    }

    pub(super) fn new(datagrams: LaneLoad, origin: LoadOrigin) -> Parcel {
        Arc::new(Self::with(datagrams, origin))
    }
}

impl fmt::Debug for LaneBatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LaneBatch").field("lane", &self.lane).field("load", &self.datagrams).finish()
    }
}

/// A load on its way: a reference that is counted, never copied.
pub type Parcel = Arc<LaneBatch>;

/// Whether there is no other reference to a parcel.
pub(super) fn is_last(parcel: &mut Parcel) -> bool {
    Arc::get_mut(parcel).is_some()
}

/// The whole of a parcel to which there is no other reference.
///
/// # Panics
/// When there is another one, which a pool rules out and which would be a bug here.
pub(super) fn whole(parcel: &mut Parcel) -> &mut LaneBatch {
    Arc::get_mut(parcel).expect("a parcel from the pool has no other reference")
}

/// The received batch of a parcel that [`Pool::take`](super::pool::Pool::take) returned.
///
/// # Panics
/// As above, or when it is packed.
pub fn exclusive(parcel: &mut Parcel) -> &mut RecvBatch {
    match &mut whole(parcel).datagrams {
        LaneLoad::Received(batch) => batch,
        LaneLoad::Packed(_) => unreachable!("a pool keeps the two forms apart"),
    }
}

/// Lets a batch carry a stamp, under the same conditions.
pub fn put_stamp(parcel: &mut Parcel, stamp: Option<LatencyStamp>) {
    whole(parcel).stamp = stamp;
}

/// The packed batch of a parcel, under the same conditions.
pub(super) fn packed(parcel: &mut Parcel) -> &mut PackedBatch {
    match &mut whole(parcel).datagrams {
        LaneLoad::Packed(batch) => batch,
        LaneLoad::Received(_) => unreachable!("a pool keeps the two forms apart"),
    }
}

/// What a sampled batch carries to every consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatencyStamp {
    /// When the receive call returned that brought the first of its datagrams.
    pub arrived: Instant,
    /// For how many datagrams this stands: those of the load that carries it, and none that was dropped before.
    pub datagrams: u64,
}

impl LatencyStamp {
    /// One block has datagrams of both: all of them count as old as the oldest, so that nothing seems faster than it
    /// was.
    pub(super) fn join(self, other: Self) -> Self {
        Self { arrived: self.arrived.min(other.arrived), datagrams: self.datagrams + other.datagrams }
    }
}
