//! Turns readings of the ledger into the rows of the picture: what happened between two of them, by lane and by sink.
//! Nothing here knows a terminal.
//!
//! A rate is known only between two readings of the same daemon. After a restart the counters begin anew, so the first
//! reading has no rates, and a counter that went back never makes a negative one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hostloss::{HostReading, KernelLayer};

use udpd_base::ledger::snapshot::{
    LaneSnapshot, ListenerSnapshot, SinkSnapshot, SinkStateSnapshot, Snapshot, StreamSnapshot,
};
use udpd_base::ledger::{CounterTable, PeersSnapshot, ResidenceSnapshot, SenderSnapshot};

/// How late a daemon's clock may seem, because one answer was slow and the next was not.
const LATE_SECONDS: f64 = 6.0;

/// How many readings a history goes back.
const HISTORY: usize = 240;

/// Counts of one layer: in the last second, and since the daemon began.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct RateAndTotal {
    /// A second; `None` before there are two readings, or where it is not known.
    pub rate: Option<f64>,
    pub total: Option<u64>,
    /// A sum of which a part is not known: it is at least this.
    pub is_partial: bool,
}

/// One lane: the way of a datagram as far as the receiver.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LaneRow {
    /// The place of its listener.
    pub listener: usize,
    pub lane: usize,
    pub received: RateAndTotal,
    pub socket_lost: RateAndTotal,
    /// What the receiver read and did not offer to the sinks.
    pub refused: RateAndTotal,
    /// How full the receive buffer is.
    pub buffer: Option<f64>,
    /// The ledger's own words for the rest.
    pub found: LaneSnapshot,
    pub calls: RateAndTotal,
}

/// One sink of one listener: the way from the channel on.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SinkRow {
    pub name: String,
    pub delivered: RateAndTotal,
    pub lost: RateAndTotal,
    /// How full its channel is.
    pub channel: Option<f64>,
    /// It has no channel.
    pub is_inline: bool,
    pub state: Option<SinkStateSnapshot>,
    pub peers: PeersSnapshot,
    /// Since the reading before, or as long as nothing was measured since then, since the start.
    pub residence: Option<ResidenceSnapshot>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ListenerRow {
    pub name: String,
    pub address: String,
    pub residual: Option<i64>,
    pub sinks: Vec<SinkRow>,
    /// The streams that lost most before this host.
    pub worst: Vec<StreamSnapshot>,
}

/// What all lanes and sinks together lost, by the layer that lost it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct LayerLosses {
    /// The cards of this host and the queues of its cores, whatever the protocol.
    pub nic: RateAndTotal,
    pub softnet: RateAndTotal,
    pub socket: RateAndTotal,
    pub listener: RateAndTotal,
    pub sink: RateAndTotal,
}

/// A series of rates, the newest last; `None` where there was no reading.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct RateHistory(VecDeque<Option<f64>>);

impl RateHistory {
    fn push(&mut self, rate: Option<f64>) {
        if self.0.len() == HISTORY {
            self.0.pop_front();
        }
        self.0.push_back(rate);
    }

    /// The last so many, the newest last.
    pub(super) fn last(&self, count: usize) -> impl ExactSizeIterator<Item = Option<f64>> {
        self.0.iter().skip(self.0.len().saturating_sub(count)).copied()
    }
}

/// The histories of one lane, or of all.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct LaneHistory {
    pub received: RateHistory,
    pub lost: RateHistory,
}

/// The picture of the last reading.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Model {
    pub version: String,
    pub uptime_seconds: f64,
    /// Why it is not ready, where it is not.
    pub unready: Option<String>,
    pub listeners: Vec<ListenerRow>,
    /// In the order of the ledger.
    pub lanes: Vec<LaneRow>,
    pub received: RateAndTotal,
    pub delivered: RateAndTotal,
    pub layers: LayerLosses,
    pub whole: LaneHistory,
    /// By the name of the listener and the number of the lane.
    by_lane: Vec<((String, usize), LaneHistory)>,
    /// How many daemons there have been before this one.
    pub restarts: u32,
    last: Option<Snapshot>,
    last_at: Option<Instant>,
}

impl Model {
    pub(super) fn read(&mut self, snapshot: Snapshot, now: Instant) {
        let passed = self.last_at.replace(now).map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        let before = self.last.take().filter(|before| {
            // A daemon that started while top did not ask may have run longer by now than the one before.
            let missing = before.uptime_seconds + passed.as_secs_f64() - snapshot.uptime_seconds;
            let is_same = before.uptime_seconds < snapshot.uptime_seconds && missing < LATE_SECONDS;
            self.restarts += u32::from(!is_same);
            is_same
        });
        let seconds = before.as_ref().map_or(0.0, |before| snapshot.uptime_seconds - before.uptime_seconds);
        let between = ReadingPair { before: before.as_ref(), seconds };
        self.version.clone_from(&snapshot.version);
        self.uptime_seconds = snapshot.uptime_seconds;
        let unready = snapshot.readiness.as_ref().filter(|readiness| !readiness.ready);
        self.unready = unready.map(|readiness| format!("{}: {}", readiness.reason, readiness.text));
        self.listeners = snapshot.listeners.iter().map(|listener| between.listener(listener)).collect();
        let of = |(place, listener): (usize, &ListenerSnapshot)| between.lanes(place, listener);
        self.lanes = snapshot.listeners.iter().enumerate().flat_map(of).collect();
        let sinks = || self.listeners.iter().flat_map(|listener| &listener.sinks);
        self.received = sum(self.lanes.iter().map(|lane| lane.received));
        self.delivered = sum(sinks().map(|sink| sink.delivered));
        let (nic, softnet) = between.host(&snapshot.host);
        self.layers = LayerLosses {
            nic,
            softnet,
            socket: sum(self.lanes.iter().map(|lane| lane.socket_lost)),
            listener: sum(self.lanes.iter().map(|lane| lane.refused)),
            sink: sum(sinks().map(|sink| sink.lost)),
        };
        self.remember();
        self.last = Some(snapshot);
    }

    /// There was no reading this time.
    pub(super) fn miss(&mut self) {
        for histories in self.by_lane.iter_mut().map(|(_, histories)| histories).chain([&mut self.whole]) {
            histories.received.push(None);
            histories.lost.push(None);
        }
    }

    fn remember(&mut self) {
        let lost = [self.layers.socket, self.layers.listener, self.layers.sink];
        self.whole.received.push(self.received.rate);
        self.whole.lost.push(sum(lost.into_iter()).rate);
        let mut before = std::mem::take(&mut self.by_lane);
        for lane in &self.lanes {
            let key = (self.listeners[lane.listener].name.clone(), lane.lane);
            let place = before.iter().position(|(own, _)| *own == key);
            let mut histories = place.map(|place| before.swap_remove(place).1).unwrap_or_default();
            histories.received.push(lane.received.rate);
            histories.lost.push(sum([lane.socket_lost, lane.refused].into_iter()).rate);
            self.by_lane.push((key, histories));
        }
    }

    /// Of the lane at this place.
    pub(super) fn histories(&self, lane: usize) -> Option<&LaneHistory> {
        self.by_lane.get(lane).map(|(_, histories)| histories)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.last.is_none()
    }
}

impl LaneRow {
    /// Who sends most to it.
    pub(super) fn senders(&self) -> &[SenderSnapshot] {
        &self.found.senders
    }

    pub(super) fn lost(&self) -> RateAndTotal {
        sum([self.socket_lost, self.refused].into_iter())
    }
}

/// The sum of what is known, so that an unknown count does not hide a loss elsewhere.
pub(super) fn sum(flows: impl Iterator<Item = RateAndTotal>) -> RateAndTotal {
    let flows: Vec<RateAndTotal> = flows.collect();
    let rates = || flows.iter().filter_map(|flow| flow.rate);
    let totals = || flows.iter().filter_map(|flow| flow.total);
    // No known part is not a partial sum. A first reading has totals and no rates.
    let is_part = |known: usize| known > 0 && known < flows.len();
    RateAndTotal {
        rate: rates().reduce(|sum, rate| sum + rate),
        total: totals().reduce(|sum, total| sum + total),
        is_partial: flows.iter().any(|flow| flow.is_partial) || is_part(rates().count()) || is_part(totals().count()),
    }
}

/// Two readings of one daemon, or the first one.
struct ReadingPair<'a> {
    before: Option<&'a Snapshot>,
    seconds: f64,
}

impl ReadingPair<'_> {
    fn flow(&self, now: Option<u64>, before: Option<u64>) -> RateAndTotal {
        let difference = now.zip(before).and_then(|(now, before)| now.checked_sub(before));
        RateAndTotal { rate: difference.map(|count| count as f64 / self.seconds), total: now, is_partial: false }
    }

    /// The same listener in the reading before.
    fn earlier(&self, listener: &ListenerSnapshot) -> Option<&ListenerSnapshot> {
        self.before?.listeners.iter().find(|before| before.name == listener.name)
    }

    fn listener(&self, listener: &ListenerSnapshot) -> ListenerRow {
        let earlier = self.earlier(listener);
        let sinks = listener.sinks.iter().map(|sink| {
            let before = earlier.and_then(|before| before.sinks.iter().find(|before| before.name == sink.name));
            self.sink(sink, before)
        });
        ListenerRow {
            name: listener.name.clone(),
            address: listener.address.clone(),
            residual: listener.residual,
            sinks: sinks.collect(),
            worst: listener.upstream.as_ref().map_or_else(Vec::new, |upstream| upstream.worst.clone()),
        }
    }

    /// What the cards and the queues of the cores lost. The first counts the second as well.
    fn host(&self, host: &HostReading) -> (RateAndTotal, RateAndTotal) {
        let nic = |host: &HostReading| {
            let lost = || host.lost.lost.iter().filter(|loss| loss.layer == KernelLayer::Nic).map(|loss| loss.count);
            (!host.nic.is_empty()).then(|| lost().sum())
        };
        let softnet = |host: &HostReading| -> Option<u64> {
            let cores = || host.softnet.values().map(|core| core.dropped);
            if host.softnet.is_empty() { None } else { cores().sum() }
        };
        let earlier = self.before.map(|before| &before.host);
        let nic = self.flow(nic(host), earlier.and_then(nic));
        // Some drivers do not tell all.
        let is_partial = nic.total.is_some() && host.lost.unseen.iter().any(|unseen| unseen.layer == KernelLayer::Nic);
        (RateAndTotal { is_partial, ..nic }, self.flow(softnet(host), earlier.and_then(softnet)))
    }

    fn sink(&self, sink: &SinkSnapshot, before: Option<&SinkSnapshot>) -> SinkRow {
        let lost = |sink: &SinkSnapshot| sink.counts.dropped.total();
        let since = sink.residence.as_ref().zip(before.and_then(|before| before.residence.as_ref()));
        let since = since.and_then(|(now, before)| now.since(before));
        SinkRow {
            name: sink.name.clone(),
            delivered: self.flow(Some(sink.counts.delivered), before.map(|before| before.counts.delivered)),
            lost: self.flow(Some(lost(sink)), before.map(lost)),
            channel: part(sink.queue_depth, sink.queue_capacity),
            is_inline: sink.inline,
            state: sink.state.clone(),
            peers: sink.peers.clone(),
            residence: since.or_else(|| sink.residence.clone()),
        }
    }

    fn lanes(&self, place: usize, listener: &ListenerSnapshot) -> Vec<LaneRow> {
        let earlier = self.earlier(listener);
        let lanes = listener.lanes.iter().map(|lane| {
            let before = earlier.and_then(|before| before.lanes.iter().find(|before| before.lane == lane.lane));
            let refused = |lane: &LaneSnapshot| lane.counts.dropped.total();
            LaneRow {
                listener: place,
                lane: lane.lane,
                received: self.flow(Some(lane.counts.received), before.map(|before| before.counts.received)),
                socket_lost: self.flow(lane.kernel_dropped, before.and_then(|before| before.kernel_dropped)),
                refused: self.flow(Some(refused(lane)), before.map(refused)),
                buffer: part(lane.receive_buffer_used_bytes, lane.receive_buffer_bytes),
                calls: self.flow(Some(lane.counts.calls), before.map(|before| before.counts.calls)),
                found: lane.clone(),
            }
        });
        lanes.collect()
    }
}

/// Not known of nothing.
fn part(used: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| used as f64 / whole as f64)
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
