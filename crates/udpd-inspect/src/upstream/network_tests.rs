//! Streams against the truth of a simulated network: exporters of every protocol, each with its own numbers, send
//! through a network that loses, repeats and reorders; they start anew, fall silent and wrap; a host drops at its
//! sockets and has no time to follow. The model knows of each datagram whether it arrived, and so what was truly lost.
//!
//! The datagrams are bytes and pass everything but a socket: headers, runs, rings, table, streams and bounds.

use std::net::SocketAddr;
use std::time::Duration;

use mmsg::{PackedDatagrams, pack_known};

use seeds::{Chance, Run, Simulation};

use super::network_model::{Arrived, Life, Truth};
use super::note_ring::NOTES;
use super::observer::Observer;
use super::tracker::StreamTracker;
use super::{Fixed, NumberOrder, Sequence, SequenceUnit, UpstreamMonitor};
use udpd_base::ledger::snapshot::UpstreamSnapshot;

const fn fixed(bytes: usize, order: NumberOrder) -> Sequence {
    Sequence::Fixed(Fixed { offset: 3, bytes, order })
}

const PROTOCOLS: &[Sequence] = &[
    Sequence::NetFlow,
    Sequence::NetFlow5,
    Sequence::NetFlow9,
    Sequence::Ipfix,
    Sequence::Sflow,
    Sequence::Rtp,
    fixed(1, NumberOrder::Big),
    fixed(2, NumberOrder::Little),
    fixed(4, NumberOrder::Big),
    fixed(8, NumberOrder::Little),
];

/// How many datagrams of its stream may overtake one on its way.
const OVERTAKEN_MAX: u64 = 24;

/// The most numbers of a datagram.
const UNITS_MAX: u64 = 30;

/// How long one may be on its way.
const DELAY_MS: u64 = 700;

/// How many datagrams of one step may come by different lanes, which the tracker takes one after the other.
const SPREAD_MAX: u64 = 12;

/// The time of day at the start, in seconds.
const EPOCH_S: u64 = 1_700_000_000;

/// An exporter, or one of the streams of an exporter.
#[derive(Debug)]
struct Exporter {
    /// With `Sequence::NetFlow` each has its own.
    protocol: Sequence,
    source: SocketAddr,
    /// The last byte of the address of this host that it sends to.
    destination: u8,
    stream: u32,
    /// The lane that it comes by; one lane after another where it has none.
    lane: Option<usize>,
    /// The uptime at the start of the simulation, and when it started last.
    uptime_before: u64,
    started_ms: u64,
    sent_ms: u64,
    /// The next number, without any wrap.
    number: u64,
    /// How many datagrams it has sent, lost ones included.
    sent: u64,
    /// How many more of them an outage loses.
    outage: u64,
    /// How many datagrams from now on reach the host whatever happens.
    spared: u64,
    /// IPFIX: whether its numbers count a message's own records, and options.
    counts_itself: bool,
    counts_options: bool,
    is_silent: bool,
    lives: Vec<Life>,
}

#[derive(Debug, Clone)]
struct UnderWay {
    exporter: usize,
    arrived: Arrived,
    payload: Vec<u8>,
    /// It arrives once its exporter has sent so many datagrams, or at this time.
    overtaken_until: u64,
    arrives_ms: u64,
    is_repeated: bool,
    is_spared: bool,
}

#[derive(Debug, Default)]
struct Lane {
    /// The datagrams since the last batch, packed, and those whose notes the tracker has not taken.
    batch: Vec<u8>,
    noted: Vec<(usize, Arrived)>,
    dropped: u32,
    /// How many of the next datagrams the kernel drops.
    to_drop: u64,
}

/// What the network does now.
#[derive(Debug, Clone, Copy, Default)]
struct Weather {
    lost_percent: u64,
    repeated_percent: u64,
    overtaken_max: u64,
}

/// A listener, its exporters and the network between them.
struct World {
    sequence: Sequence,
    monitor: UpstreamMonitor,
    observers: Vec<Observer>,
    tracker: StreamTracker,
    streams_max: usize,
    exporters: Vec<Exporter>,
    under_way: Vec<UnderWay>,
    lanes: Vec<Lane>,
    weather: Weather,
    /// More streams than the table holds: what a forgotten one has lost is not known.
    is_crowded: bool,
    /// Datagrams may come so late that they were counted as missing.
    has_late: bool,
    now_ms: u64,
    swept_ms: u64,
    /// For so many steps the tracker gets no core.
    stalled: u64,
    unnumbered: u64,
    /// Numbers of 16 bits made a long jump: it may have been a loss, or a restart.
    has_doubt: bool,
    before: Option<UpstreamSnapshot>,
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Send,
    Burst,
    Outage,
    Restart,
    Silence,
    Pause,
    Weather,
    Late,
    Noise,
    Drops,
    Stall,
}

const ACTIONS: &[(u64, Action)] = &[
    (60, Action::Send),
    (3, Action::Burst),
    (2, Action::Outage),
    (3, Action::Restart),
    (3, Action::Silence),
    (4, Action::Pause),
    (4, Action::Weather),
    (3, Action::Late),
    (1, Action::Noise),
    (3, Action::Drops),
    (1, Action::Stall),
];

fn bytes(parts: &[(u64, usize)]) -> Vec<u8> {
    parts.iter().flat_map(|(value, width)| value.to_be_bytes()[8 - width..].to_vec()).collect()
}

impl World {
    fn new(setup: &mut Chance) -> Self {
        let sequence = *setup.pick(PROTOCOLS);
        let is_crowded = setup.happens(1, 8);
        let lanes = 1 + setup.index(3);
        let streams_max = if is_crowded { 3 } else { 16 };
        let monitor = UpstreamMonitor::new(sequence, lanes, sequence.reads_drops(false), Duration::ZERO);
        let mut world = Self {
            sequence,
            observers: (0..lanes).map(|lane| monitor.observer(lane, ([0, 0, 0, 0], 0).into())).collect(),
            tracker: StreamTracker::with_limit(&monitor.0, streams_max),
            monitor,
            streams_max,
            exporters: Vec::new(),
            under_way: Vec::new(),
            lanes: (0..lanes).map(|_| Lane::default()).collect(),
            weather: Weather::default(),
            is_crowded,
            has_late: setup.happens(1, 4),
            now_ms: 0,
            swept_ms: 0,
            stalled: 0,
            unnumbered: 0,
            has_doubt: false,
            before: None,
        };
        let count = if is_crowded { 4 + setup.below(5) } else { 1 + setup.below(5) };
        for place in 0..count {
            let exporter = world.exporter(place, setup);
            world.exporters.push(exporter);
        }
        // How an exporter of IPFIX counts is a guess until some of its messages have come in a row.
        for _ in 0..if sequence.has_messages() { 12 } else { 0 } {
            for place in 0..world.exporters.len() {
                world.exporters[place].spared = 4;
                world.send(place, 4, setup);
                world.pass(1, setup);
            }
        }
        world
    }

    /// Several are behind the same address and count by the same number of a stream: they differ in the port, in the
    /// stream, or in where they send to, as the two sides of a redundant feed do.
    fn exporter(&self, place: u64, setup: &mut Chance) -> Exporter {
        let address = *setup.pick(&["192.0.2.1", "192.0.2.2", "2001:db8::1", "::ffff:192.0.2.1"]);
        let versions = [Sequence::NetFlow5, Sequence::NetFlow9, Sequence::Ipfix];
        let protocol = if self.sequence == Sequence::NetFlow { *setup.pick(&versions) } else { self.sequence };
        let (mut port, mut stream, mut destination) = (2000, 7, 0);
        match setup.below(3) {
            0 => port += place as u16,
            1 if !matches!(protocol, Sequence::Fixed(_)) => stream += place as u32,
            _ => destination += place as u8,
        }
        let lane = setup.index(self.lanes.len());
        let is_spread = !self.is_crowded && self.bits() > 8 && protocol != Sequence::Ipfix && setup.happens(1, 3);
        let end = u64::MAX >> (64 - self.bits().min(62));
        // Anywhere, or just before the wrap.
        let number = if setup.happens(1, 3) { end - setup.below(end.min(400)) } else { setup.below(end) };
        let near_wrap = setup.happens(1, 4);
        Exporter {
            protocol,
            source: SocketAddr::new(address.parse().expect("an address"), port),
            destination,
            stream,
            lane: (!is_spread).then_some(lane),
            uptime_before: if near_wrap { u64::from(u32::MAX) - 3000 } else { 100_000 },
            started_ms: 0,
            sent_ms: 0,
            number,
            sent: 0,
            outage: 0,
            spared: 0,
            counts_itself: setup.happens(1, 2),
            counts_options: setup.happens(1, 2),
            is_silent: false,
            lives: vec![Life::default()],
        }
    }

    fn bits(&self) -> u32 {
        self.sequence.bits()
    }

    /// How many numbers of a small jump need no second datagram, in datagrams.
    fn trusted(&self) -> u64 {
        if self.bits() == 8 { 40 } else { 900 }
    }

    fn payload(&self, exporter: &Exporter, number: u64, data: u64, options: u64) -> Vec<u8> {
        let uptime = exporter.uptime_before + self.now_ms - exporter.started_ms;
        let made_at = EPOCH_S + self.now_ms / 1000;
        let (uptime, number32, stream) = (uptime & 0xffff_ffff, number & 0xffff_ffff, u64::from(exporter.stream));
        match exporter.protocol {
            Sequence::NetFlow => unreachable!("each exporter has a version"),
            Sequence::NetFlow5 => {
                bytes(&[(5, 2), (data, 2), (uptime, 4), (made_at, 4), (0, 4), (number32, 4), (stream, 2), (0, 2)])
            }
            Sequence::NetFlow9 => bytes(&[(9, 2), (1, 2), (uptime, 4), (made_at, 4), (number32, 4), (stream, 4)]),
            Sequence::Sflow => bytes(&[(5, 4), (1, 4), (1, 4), (stream, 4), (number32, 4), (uptime, 4), (0, 4)]),
            Sequence::Rtp => bytes(&[(0x8060, 2), (number & 0xffff, 2), (0, 4), (stream, 4)]),
            Sequence::Fixed(Fixed { bytes: width, order, .. }) => {
                let mut payload = bytes(&[(0, 3), (number & (u64::MAX >> (64 - self.bits())), width)]);
                if order == NumberOrder::Little {
                    payload[3..].reverse();
                }
                payload
            }
            Sequence::Ipfix => {
                let mut sets = Vec::new();
                sets.extend(bytes(&[(2, 2), (12, 2), (256, 2), (1, 2), (1, 2), (4, 2)]));
                sets.extend(bytes(&[(3, 2), (14, 2), (257, 2), (1, 2), (1, 2), (1, 2), (4, 2)]));
                sets.extend(bytes(&[(256, 2), (4 + 4 * data, 2)]));
                sets.extend(vec![0; 4 * data as usize]);
                if options > 0 {
                    sets.extend(bytes(&[(257, 2), (4 + 4 * options, 2)]));
                    sets.extend(vec![0; 4 * options as usize]);
                }
                let length = 16 + sets.len() as u64;
                [bytes(&[(10, 2), (length, 2), (made_at, 4), (number32, 4), (stream, 4)]), sets].concat()
            }
        }
    }

    /// An exporter sends so many datagrams.
    fn send(&mut self, place: usize, count: u64, chance: &mut Chance) {
        for _ in 0..count {
            let exporter = &self.exporters[place];
            let (data, options) = match exporter.protocol.unit() {
                SequenceUnit::Datagrams => (1, 0),
                SequenceUnit::Mixed => unreachable!("each exporter has a version"),
                SequenceUnit::Flows => (1 + chance.below(UNITS_MAX), 0),
                SequenceUnit::Records => {
                    (1 + chance.below(UNITS_MAX), u64::from(chance.happens(1, 5)) * chance.below(3))
                }
            };
            let units = data + if exporter.counts_options { options } else { 0 };
            let number = exporter.number;
            let written =
                if exporter.counts_itself && exporter.protocol == Sequence::Ipfix { number + units } else { number };
            let payload = self.payload(exporter, written, data, options);
            let arrived = Arrived { life: exporter.lives.len() - 1, number, units };
            let exporter = &mut self.exporters[place];
            exporter.sent_ms = self.now_ms;
            exporter.number += units;
            exporter.sent += 1;
            let life = exporter.lives.last_mut().expect("one life");
            life.sent += 1;
            let is_spared = exporter.spared > 0;
            exporter.spared = exporter.spared.saturating_sub(1);
            if exporter.outage > 0 {
                exporter.outage -= 1;
                // So that a jump is confirmed.
                exporter.spared = 3;
                continue;
            }
            // Gaps are remembered while they are few.
            let may_lose = !(is_spared || self.has_late && life.holes >= 16);
            if may_lose && chance.happens(self.weather.lost_percent, 100) {
                life.holes += 1;
                continue;
            }
            let is_repeated = chance.happens(self.weather.repeated_percent, 100);
            for _ in 0..1 + u64::from(is_repeated) {
                let overtaken = if is_spared { 0 } else { chance.below(self.weather.overtaken_max + 1) };
                let (sent, now_ms, payload) = (exporter.sent, self.now_ms, payload.clone());
                self.under_way.push(UnderWay {
                    exporter: place,
                    arrived,
                    payload,
                    overtaken_until: sent + overtaken,
                    arrives_ms: now_ms + DELAY_MS,
                    is_repeated,
                    is_spared,
                });
            }
        }
    }

    /// Lets arrive what is to arrive by now, and the host takes it.
    fn arrive(&mut self, chance: &mut Chance) {
        let (now_ms, exporters) = (self.now_ms, &self.exporters);
        let is_here = |one: &UnderWay| {
            one.arrives_ms <= now_ms || one.overtaken_until <= exporters[one.exporter].sent && one.overtaken_until > 0
        };
        let (mut here, rest): (Vec<_>, Vec<_>) = self.under_way.drain(..).partition(is_here);
        self.under_way = rest;
        here.sort_by_key(|one| one.overtaken_until);
        for one in here {
            let exporter = &mut self.exporters[one.exporter];
            let place = exporter.lane.unwrap_or_else(|| chance.index(self.lanes.len()));
            let life = &mut exporter.lives[one.arrived.life];
            let lane = &mut self.lanes[place];
            life.reach(&one.arrived);
            // Of a repeated one a copy that is dropped would leave no gap, and neither would what is below the first.
            if lane.to_drop > 0 && !one.is_repeated && !one.is_spared && life.is_settled() {
                lane.to_drop -= 1;
                lane.dropped += 1;
                life.holes += 1;
                continue;
            }
            lane.noted.push((one.exporter, one.arrived));
            push(&mut lane.batch, (exporter.source, exporter.destination), &one.payload, lane.dropped);
        }
        for place in 0..self.lanes.len() {
            let unseen = self.monitor.0.rings[place].unseen.load(std::sync::atomic::Ordering::Relaxed);
            let batch = std::mem::take(&mut self.lanes[place].batch);
            self.observers[place].observe_each(PackedDatagrams::of(&batch));
            if self.monitor.0.rings[place].unseen.load(std::sync::atomic::Ordering::Relaxed) > unseen {
                self.exporters.iter_mut().for_each(|exporter| exporter.lives.iter_mut().for_each(Life::blur));
            }
        }
        if self.stalled == 0 {
            self.take();
        }
    }

    /// The tracker takes all notes, lane by lane, and the model takes them in the same order.
    fn take(&mut self) {
        while self.tracker.take_notes(NOTES) > 0 {}
        for lane in &mut self.lanes {
            for (exporter, arrived) in lane.noted.drain(..) {
                self.exporters[exporter].lives[arrived.life].note(&arrived);
            }
        }
        self.tracker.now_s = (self.now_ms / 1000) as u32;
        while self.swept_ms + 1000 <= self.now_ms {
            self.swept_ms = (self.swept_ms + 1000).max(self.now_ms.saturating_sub(4000));
            self.tracker.sweep();
        }
    }

    /// Time passes.
    fn pass(&mut self, ms: u64, chance: &mut Chance) {
        let end = self.now_ms + ms;
        while self.now_ms < end {
            self.now_ms = end.min(self.now_ms + DELAY_MS);
            self.arrive(chance);
        }
    }

    /// An exporter starts anew, with other numbers.
    fn restart(&mut self, place: usize, chance: &mut Chance) {
        let life = self.exporters[place].lives.last().expect("one life");
        if self.bits() == 8 || life.noted < 80 || self.stalled > 0 || self.exporters[place].spared > 0 {
            return;
        }
        let protocol = self.exporters[place].protocol;
        let has_clock = !matches!(protocol, Sequence::Rtp | Sequence::Fixed(_));
        // Whether the uptime of the last datagram is so high that a fall is seen, and not in the upper half of its
        // range, from which a fall looks like a wrap.
        let Exporter { uptime_before, sent_ms, started_ms, .. } = self.exporters[place];
        let uptime = (uptime_before + sent_ms - started_ms) & 0xffff_ffff;
        // The host may not have seen the datagrams since a wrap.
        let has_wrapped = uptime_before > 0x7000_0000;
        let falls = !has_wrapped && (1500..0x7000_0000).contains(&uptime);
        if protocol == Sequence::Sflow && (has_wrapped || !(65_000..0x7000_0000).contains(&uptime)) {
            return;
        }
        // Without a time of day only an uptime that falls far is a restart for certain.
        self.pass(if protocol == Sequence::Sflow { 70_000 } else { 2500 }, chance);
        // What comes from before a restart cannot fill a gap any more.
        while self.under_way.iter().any(|one| one.exporter == place) {
            self.pass(DELAY_MS, chance);
        }
        let (bits, exporter) = (self.bits(), &mut self.exporters[place]);
        let old = exporter.number;
        let life = exporter.lives.last().expect("one life");
        let span = old - life.lowest().unwrap_or(old);
        let scale = if protocol.unit() == SequenceUnit::Datagrams { 1 } else { 32 };
        let back = match bits {
            // Anywhere but so near ahead that it looks like a loss, or below what came and not far below all of it.
            16 if span < 26_000 => span + 1200 + chance.below((1 << 16) - span - 2400),
            16 => return,
            _ if !has_clock => span + 1200 + chance.below(1 << 20),
            _ => 1200 * scale + chance.below(1 << 20),
        };
        let has_uptime = protocol != Sequence::Ipfix && has_clock && falls;
        // Without a wrap, in the model.
        let round = 1 << bits.min(62);
        exporter.number = match has_uptime && chance.happens(1, 3) {
            true => old + chance.below(5000),
            false if old > back => old - back,
            false => old + round - back,
        };
        self.has_doubt |= bits == 16;
        (exporter.uptime_before, exporter.started_ms) = (10, self.now_ms);
        exporter.lives.push(Life::default());
        // Two that follow one another say so where there is no clock, and before the uptime is as high as it was.
        exporter.spared = 2;
        self.send(place, 2, chance);
        self.pass(1, chance);
    }

    fn act(&mut self, action: Action, chance: &mut Chance) {
        let place = chance.index(self.exporters.len());
        match action {
            Action::Send => {
                if !self.exporters[place].is_silent {
                    self.send(place, 1 + chance.below(SPREAD_MAX), chance);
                    self.pass(1 + chance.below(30), chance);
                }
            }
            Action::Burst => {
                if self.exporters[place].lane.is_some() && self.bits() > 8 {
                    self.send(place, 60 + chance.below(100), chance);
                    self.pass(1, chance);
                }
            }
            Action::Outage => {
                // A jump that waits to be confirmed is given up for one that is far from it.
                if self.exporters[place].spared > 0 {
                    return;
                }
                let is_long = chance.happens(1, 3) && self.bits() > 8;
                let length = if is_long { 1100 + chance.below(3000) } else { 1 + chance.below(self.trusted()) };
                self.has_doubt |= is_long && self.bits() == 16;
                self.exporters[place].outage = length;
                self.exporters[place].lives.last_mut().expect("one life").holes += 1;
                // Most of it at once: the numbers go on, and nothing comes.
                self.send(place, length, chance);
                self.pass(DELAY_MS, chance);
            }
            Action::Restart => self.restart(place, chance),
            Action::Silence => self.exporters[place].is_silent ^= true,
            Action::Pause => {
                let ms = chance.weighted(&[(5, 100), (5, 1500), (2, 5000), (1, 100_000)]);
                self.pass(ms, chance);
            }
            Action::Weather => {
                self.weather = Weather {
                    lost_percent: chance.weighted(&[(3, 0), (3, 2), (2, 10), (1, 30)]),
                    repeated_percent: chance.weighted(&[(3, 0), (1, 1), (1, 10)]),
                    overtaken_max: chance.weighted(&[(2, 0), (1, 3), (1, OVERTAKEN_MAX)]),
                };
                // What a stream lost in flight when it was forgotten would count as missing.
                if self.is_crowded {
                    self.weather.overtaken_max = 0;
                }
                if self.bits() == 8 {
                    self.weather.overtaken_max = self.weather.overtaken_max.min(8);
                }
            }
            Action::Late => {
                if self.is_crowded || !self.has_late || self.bits() == 8 {
                    return;
                }
                let Some(one) = self.under_way.iter_mut().find(|one| !one.is_repeated && !one.is_spared) else {
                    return;
                };
                let exporter = &mut self.exporters[one.exporter];
                let life = &mut exporter.lives[one.arrived.life];
                // What is below the first comes no later than that by the window.
                if life.is_settled() && life.lowest().is_some_and(|lowest| lowest < one.arrived.number) {
                    one.overtaken_until = 0;
                    one.arrives_ms = self.now_ms + 2000 + chance.below(3000);
                    life.holes += 1;
                }
            }
            Action::Noise => {
                self.unnumbered += 1;
                let lane = chance.index(self.lanes.len());
                let lane = &mut self.lanes[lane];
                let Exporter { source, destination, .. } = self.exporters[place];
                push(&mut lane.batch, (source, destination), &[0, 0], lane.dropped);
                self.pass(1, chance);
            }
            Action::Drops => {
                if !self.has_late {
                    let lane = chance.index(self.lanes.len());
                    self.lanes[lane].to_drop = 1 + chance.below(20);
                }
            }
            Action::Stall => {
                if self.exporters.iter().all(|exporter| exporter.lane.is_some()) {
                    self.stalled = 1 + chance.below(30);
                }
            }
        }
    }

    fn dropped(&self) -> u64 {
        self.lanes.iter().map(|lane| u64::from(lane.dropped)).sum()
    }

    fn truth(&self) -> Truth {
        self.exporters.iter().flat_map(|exporter| &exporter.lives).map(Life::truth).sum()
    }

    /// What holds at any time.
    fn check(&mut self) -> UpstreamSnapshot {
        self.tracker.publish();
        let dropped = self.lanes.iter().map(|lane| Some(lane.dropped.into()));
        let reading = self.monitor.read(dropped, false, 0);
        let counts = reading.counts;
        assert!(counts.streams as usize <= self.streams_max.min(self.exporters.len()), "{counts:?}");
        assert_eq!(counts.forgotten > 0, counts.forgotten > 0 && self.is_crowded, "there is room for all");
        assert_eq!(reading.unnumbered, self.unnumbered);
        assert!(reading.missing_at_least <= reading.missing_at_most, "{reading:?}");
        let truth = self.truth();
        // A tracker that gets no core has not seen what fills a gap.
        let is_behind = self.lanes.iter().any(|lane| !lane.noted.is_empty());
        let most = truth.missing + if is_behind { truth.here } else { 0 };
        assert!(reading.missing_at_least <= most, "it invents a loss: {truth:?} {reading:?}");
        if !self.sequence.has_messages() && !self.has_doubt {
            let most = truth.missing + truth.here + reading.unseen * UNITS_MAX;
            assert!(reading.missing_at_most <= most, "more than is not there: {truth:?} {reading:?}");
        }
        if !self.has_doubt && truth.missing == 0 {
            let losing: Vec<_> = self.monitor.streams().into_iter().filter(|stream| stream.losing).collect();
            assert!(losing.is_empty(), "only this host lost anything: {truth:?} {losing:?}");
        }
        if let Some(before) = self.before.replace(reading.clone()) {
            let all = |counts: &UpstreamSnapshot| {
                let counts = &counts.counts;
                [counts.reordered, counts.late, counts.duplicate, counts.restarts, counts.forgotten]
            };
            let grown = all(&before).iter().zip(all(&reading)).all(|(before, now)| *before <= now);
            assert!(grown, "a counter has fallen: {before:?} {reading:?}");
        }
        reading
    }

    /// The faults end, everything arrives, and every exporter sends once more.
    fn end(&mut self, chance: &mut Chance) -> UpstreamSnapshot {
        (self.weather, self.stalled) = (Weather::default(), 0);
        self.lanes.iter_mut().for_each(|lane| lane.to_drop = 0);
        self.pass(6000, chance);
        for place in 0..self.exporters.len() {
            let exporter = &mut self.exporters[place];
            if exporter.lives.iter().any(|life| life.noted > 0) || exporter.lives.len() > 1 {
                (exporter.outage, exporter.spared) = (0, 4);
                self.send(place, 4, chance);
                self.pass(DELAY_MS, chance);
            }
        }
        self.tracker.settle_all();
        let reading = self.check();
        let (truth, counts) = (self.truth(), reading.counts);
        assert!(self.under_way.is_empty());
        let surely = if self.is_crowded { 0 } else { truth.missing_surely };
        assert!(surely <= reading.missing_at_most, "it hides a loss: {truth:?} {reading:?}");
        let is_followed = !self.is_crowded && reading.unseen == 0;
        if is_followed && self.dropped() == 0 && !self.has_doubt {
            assert_eq!(reading.missing, Some(truth.missing), "{truth:?} {reading:?}");
        }
        if is_followed && !self.sequence.has_messages() && !self.has_doubt {
            assert_eq!(counts.duplicate, truth.duplicate, "{truth:?} {reading:?}");
            assert_eq!(counts.reordered + counts.late, truth.behind, "{truth:?} {reading:?}");
            let restarts: usize = self.exporters.iter().map(|exporter| exporter.lives.len() - 1).sum();
            assert_eq!(counts.restarts, restarts as u64, "{reading:?}");
        }
        if let Some(missing) = reading.missing.filter(|_| is_followed) {
            assert_eq!(missing, truth.missing, "{truth:?} {reading:?}");
        }
        reading
    }
}

/// Appends a datagram as the kernel hands it over: with its destination, and where it has dropped some before, with
/// their count.
pub(super) fn push(batch: &mut Vec<u8>, (source, destination): (SocketAddr, u8), payload: &[u8], dropped: u32) {
    let message = |level: i32, kind: i32, data: &[u8]| {
        let head = [level.to_ne_bytes(), kind.to_ne_bytes()].concat();
        [&(16 + data.len()).to_ne_bytes()[..], &head, data, &[0; 4]].concat()
    };
    let mut one = Vec::new();
    pack_known(source, None, (payload, payload.len()), &mut one);
    // IP_PKTINFO of IPPROTO_IP: the interface, the local address and the destination. Then SO_RXQ_OVFL of SOL_SOCKET.
    let destination = [10, 0, 0, destination];
    let mut control = message(0, 8, &[&[0; 4][..], &destination, &destination].concat());
    if dropped > 0 {
        control.extend(message(1, 40, &dropped.to_ne_bytes()));
    }
    // The head has the lengths of payload, datagram, name and control messages; they follow in the order of the last
    // three.
    let name_bytes = usize::from(u16::from_ne_bytes([one[8], one[9]]));
    one[10..12].copy_from_slice(&(control.len() as u16).to_ne_bytes());
    one.splice(12 + name_bytes..12 + name_bytes, control);
    batch.extend(one);
}

fn simulate(run: &mut Run) -> String {
    let mut world = World::new(run.setup());
    let exporters = world.exporters.iter().map(|one| (one.source, one.lane, one.number)).collect::<Vec<_>>();
    run.trace(|| format!("{:?} on {} lanes: {exporters:?}", world.sequence, world.lanes.len()));
    while let Some(mut chance) = run.step() {
        let action = chance.weighted(ACTIONS);
        world.act(action, &mut chance);
        if world.stalled > 0 {
            world.stalled -= 1;
        } else {
            world.take();
        }
        run.trace(|| format!("{action:?} until {} ms: {:?} {:?}", world.now_ms, world.truth(), world.weather));
        if chance.happens(1, 4) {
            let UpstreamSnapshot { missing_at_least, missing_at_most, counts, .. } = world.check();
            run.trace(|| format!("{missing_at_least} to {missing_at_most}, {counts:?}"));
        }
    }
    let mut chance = run.setup().clone();
    let mut last = world.end(&mut chance);
    // The time of the day is another in the next run.
    last.worst.iter_mut().for_each(|stream| (stream.since, stream.heard) = (0, 0));
    format!("{last:?}")
}

#[test]
fn what_a_simulated_network_loses_is_told_exactly_or_within_bounds() {
    Simulation::new("what_a_simulated_network_loses_is_told_exactly_or_within_bounds", 400, 100)
        .with_corpus(include_str!("network.seeds"))
        .check(simulate);
}
