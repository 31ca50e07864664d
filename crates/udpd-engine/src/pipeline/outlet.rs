//! Where the datagrams of a lane leave its receiver: through a channel to the consumer of a sink, or into the sink
//! itself, on this very thread.
//!
//! An inline sink is run to completion. The batch goes from the receive call to the sink and back to the pool; no
//! thread is woken and nothing waits in between. So such a sink never waits either, and has decided about a batch when
//! it is flushed after it: what its peer or the kernel does not take at once fails. It has the ledger of a consumer,
//! one for each lane.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::latency_sampling::ResidenceTracker;
use udpd_base::handover::batch::Parcel;
use udpd_base::handover::pool::Pool;
use udpd_base::handover::route::{NotTaken, RoomTimeout, SinkRoute};
use udpd_base::ledger::{ConsumerLedger, LaneLedger, Tallies};
use udpd_base::os::role::ThreadRole;
use udpd_base::sink::Sink;

#[derive(Debug)]
pub(super) enum Outlet {
    /// To a consumer.
    Channel(SinkRoute),
    /// Into a sink of this lane's own.
    Inline(Box<InlineSink>),
}

/// A sink that its receiver runs.
#[derive(Debug)]
pub(super) struct InlineSink {
    pub(super) index: usize,
    /// What the sandbox of that thread has to allow for it.
    pub(super) roles: Vec<ThreadRole>,
    pub(super) sink: Box<dyn Sink>,
    pub(super) ledger: Arc<ConsumerLedger>,
    pub(super) tallies: Tallies,
    /// Measures how long datagrams stayed.
    pub(super) residence: ResidenceTracker,
}

impl Outlet {
    pub(super) fn sink(&self) -> usize {
        match self {
            Self::Channel(route) => route.sink,
            Self::Inline(inline) => inline.index,
        }
    }

    /// What the sandbox of the receiver has to allow for it.
    pub(super) fn roles(&self) -> &[ThreadRole] {
        match self {
            Self::Channel(_) => &[],
            Self::Inline(inline) => &inline.roles,
        }
    }

    /// The first call, when the receiver begins.
    pub(super) fn begin(&mut self) {
        if let Self::Inline(inline) = self {
            inline.sink.begin();
        }
    }

    /// Whether a batch that is handed over now would be looked at soon.
    pub(super) fn is_awaited(&self) -> bool {
        match self {
            Self::Channel(route) => route.is_awaited(),
            Self::Inline(_) => true,
        }
    }

    /// Whether a receiver may have to wait here until there is room.
    pub(super) fn may_block(&self) -> bool {
        matches!(self, Self::Channel(route) if route.may_block())
    }

    /// Wakes the consumer, if something was handed to it quietly.
    pub(super) fn ring(&mut self) {
        if let Self::Channel(route) = self {
            route.ring();
        }
    }

    /// Hands the datagrams of a batch over, see [`SinkRoute::hand`]. What is not taken is counted in the ledger of the
    /// lane.
    pub(super) fn hand(
        &mut self,
        parcel: &Parcel,
        is_full: bool,
        quietly: bool,
        pool: &mut Pool,
        patience: &RoomTimeout,
        ledger: &LaneLedger,
    ) {
        let route = match self {
            Self::Channel(route) => route,
            Self::Inline(inline) => return inline.take(parcel),
        };
        let sink = route.sink;
        route.hand(parcel, is_full, quietly, pool, patience, &mut |datagrams, reason| {
            let counters = ledger.not_taken(sink);
            let counter = match reason {
                NotTaken::Full => &counters.queue_full,
                NotTaken::GivenUp => &counters.sink_error,
            };
            counter.fetch_add(datagrams, Ordering::Relaxed);
        });
    }

    /// The last call, when the receiver has ended.
    pub(super) fn finish(self) {
        if let Self::Inline(mut inline) = self {
            let InlineSink { sink, ledger, tallies, .. } = &mut *inline;
            sink.finish(tallies, &mut |tallies| ledger.publish(tallies));
            ledger.publish(tallies);
        }
    }
}

impl InlineSink {
    /// Runs the sink on a batch until nothing of it is pending.
    fn take(&mut self, parcel: &Parcel) {
        let datagrams = parcel.datagrams.summary().datagrams;
        let tally = &mut self.tallies[parcel.listener];
        tally.taken += datagrams;
        tally.pending += datagrams;
        if let Some(stamp) = parcel.stamp {
            self.residence.track(stamp, parcel.listener, &self.tallies);
        }
        self.sink.accept(parcel, &mut self.tallies);
        self.sink.flush(&mut self.tallies);
        debug_assert_eq!(self.tallies[parcel.listener].pending, 0, "an inline sink keeps nothing");
        self.ledger.publish(&mut self.tallies);
        self.residence.measure_decided(&self.tallies);
    }
}
