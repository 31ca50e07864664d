//! Of what a port's sockets lost because they had no room, which part has which cause. What happened in the moments of
//! loss decides, so a reader that is slow for a while is told apart from a buffer that is too small, and two causes are
//! both told with their parts.

use std::collections::BTreeMap;

use super::buffer::without_memory;
use super::reader::{is_shared, stolen};
use crate::explain::evidence::{Evidence, ListenerEvidence, Moment, Port, SinkEvidence};

/// Why a socket had no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Memory,
    Stopped,
    Throttled,
    SinkBlocks,
    Starved,
    Busy,
    Waits,
    /// The buffer stayed full, and what the reader did is not known.
    Unknown,
    /// More came at once than fits, and the reader came to the end of it.
    Burst,
}

impl Part {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Stopped => "stopped",
            Self::Throttled => "throttled",
            Self::SinkBlocks => "sink_blocks",
            Self::Starved => "starved",
            Self::Busy => "busy",
            Self::Waits => "waits",
            Self::Unknown => "unknown",
            Self::Burst => "burst",
        }
    }
}

/// A thread that runs more of the time has none left for a burst.
pub(super) const BUSY: f64 = 0.85;
/// A thread that waits so much of a moment for a core is the cause of what was lost in it, full or not.
const HARDLY_RAN: f64 = 0.5;
/// A thread that was behind, and ran or waited for a core for so much of the time, did nothing else.
const MOSTLY_BUSY: f64 = 0.7;
/// A thread that waits so much of the time for a core explains drops.
const WAITED: f64 = 0.25;
/// A thread that runs less of the time did next to nothing.
const IDLE: f64 = 0.02;
/// A socket that is full at more of the looks is not read.
const MOSTLY_FULL: f64 = 0.5;
/// A socket that is full at so many of the looks would be full with any buffer.
const ALWAYS_FULL: f64 = 0.9;
/// A control group that throttles a process in more of the periods explains drops.
pub(super) const THROTTLED: f64 = 0.05;
/// A hypervisor that takes so much of a core explains drops.
pub(super) const STOLEN: f64 = 0.2;
/// How many looks count as beside a moment: half a second.
const NEAR_LOOKS: u32 = 5;
/// A smaller part of a loss is noise at the edge of a moment, and goes to the largest.
const NOISE: f64 = 0.05;

/// The parts of what a port lost, in the order of the causes. Together they are all of it.
pub(super) fn shares(evidence: &Evidence, port: &Port) -> BTreeMap<Part, u64> {
    let lost = port.dropped();
    let memory = without_memory(evidence, port);
    let left = lost - memory;
    let mut weights: BTreeMap<Part, u64> = BTreeMap::new();
    for socket in port.sockets.iter().filter(|socket| socket.dropped > 0) {
        let whole = [as_one_moment(evidence, port)];
        let moments = if socket.moments.is_empty() { &whole[..] } else { &socket.moments };
        for moment in moments {
            *weights.entry(part_beside(evidence, port, moment, moments)).or_default() += moment.lost;
        }
    }
    let all: u64 = weights.values().sum();
    weights.retain(|_, weight| *weight as f64 >= all as f64 * NOISE);
    let all = weights.values().sum::<u64>().max(1);
    let mut parts: BTreeMap<Part, u64> =
        weights.iter().map(|(part, weight)| (*part, (left as f64 * *weight as f64 / all as f64) as u64)).collect();
    let told: u64 = parts.values().sum();
    match parts.values_mut().max() {
        Some(largest) => *largest += left - told,
        None => drop(parts.insert(Part::Burst, left)),
    }
    parts.insert(Part::Memory, memory);
    parts.retain(|_, part| *part > 0);
    parts
}

/// The moments of loss of a port's worst socket in which this was the cause.
pub(super) fn moments<'a>(evidence: &'a Evidence, port: &'a Port, wanted: Part) -> impl Iterator<Item = &'a Moment> {
    let moments = port.worst().map_or(&[][..], |worst| worst.moments.as_slice());
    moments.iter().filter(move |moment| part_beside(evidence, port, moment, moments) == wanted)
}

/// The same where its neighbours are known. A sender that pauses for a moment lets a slow reader catch up for as long,
/// so beside a moment with a cause a burst has it as well, unless the reader waited for datagrams.
fn part_beside(evidence: &Evidence, port: &Port, moment: &Moment, moments: &[Moment]) -> Part {
    let own = part(evidence, port, moment);
    if own != Part::Burst || moment.receives || moment.is_stopped {
        return own;
    }
    // They are in the order of their looks, and a long watch has many.
    let first = moments.partition_point(|other| other.look + NEAR_LOOKS < moment.look);
    let near = moments[first..].iter().take_while(|other| other.look <= moment.look + NEAR_LOOKS);
    let near = near.filter(|other| other.is_behind);
    near.min_by_key(|other| other.look.abs_diff(moment.look)).map_or(own, |other| part(evidence, port, other))
}

fn part(evidence: &Evidence, port: &Port, moment: &Moment) -> Part {
    let (ran, waited) = (moment.ran.unwrap_or(0.0), moment.waited.unwrap_or(0.0));
    let blocking = evidence.listener_on(port.port).and_then(blocking_sink);
    let is_stolen = port.reader.as_ref().and_then(|reader| stolen(evidence, reader)).is_some_and(|it| it >= STOLEN);
    match moment {
        // A process that was stopped for a moment is a stall, which a buffer may cover.
        Moment { is_stopped: true, .. } if port.reader.as_ref().is_some_and(|it| it.is_stopped) => Part::Stopped,
        Moment { is_stopped: true, .. } => Part::Burst,
        Moment { is_throttled: true, .. } if port.reader.as_ref().is_some_and(|it| it.throttled.is_some()) => {
            Part::Throttled
        }
        Moment { is_behind: true, .. } if blocking.is_some() => Part::SinkBlocks,
        _ if is_stolen => Part::Starved,
        _ if waited >= HARDLY_RAN && waited > ran && port.reader.is_some() => Part::Starved,
        Moment { is_behind: false, .. } => Part::Burst,
        Moment { ran: None, .. } => Part::Unknown,
        _ if port.reader.is_none() => Part::Unknown,
        _ if is_shared(evidence, port).is_some() => Part::Busy,
        // A thread that sleeps by itself for longer does not lack a core.
        _ if ran + waited < MOSTLY_BUSY => Part::Waits,
        _ if waited > ran => Part::Starved,
        _ => Part::Busy,
    }
}

/// A sink that holds up its receivers: the configuration says so, or its queue is full and dropped nothing.
pub(super) fn blocking_sink(listener: &ListenerEvidence) -> Option<&SinkEvidence> {
    let blocks = |sink: &&SinkEvidence| match sink.blocks {
        Some(blocks) => blocks,
        None => sink.is_full && sink.queue_full == 0,
    };
    listener.sinks.iter().find(blocks)
}

/// What is known of the whole watch, where the moments are not.
fn as_one_moment(evidence: &Evidence, port: &Port) -> Moment {
    let full = port.worst().map_or(0.0, |worst| worst.full);
    let reader = port.reader.as_ref();
    let (ran, waited) = (reader.and_then(|reader| reader.ran), reader.and_then(|reader| reader.waited));
    let is_busy =
        ran.is_some_and(|ran| ran >= BUSY) || waited.is_some_and(|waited| waited >= WAITED && Some(waited) > ran);
    let is_idle = full >= MOSTLY_FULL && ran.is_some_and(|ran| ran < IDLE);
    let blocks = full >= 0.3 && evidence.listener_on(port.port).and_then(blocking_sink).is_some();
    Moment {
        lost: port.dropped(),
        is_behind: full >= ALWAYS_FULL || is_busy || is_idle || blocks || is_shared(evidence, port).is_some(),
        ran,
        waited,
        is_stopped: reader.is_some_and(|reader| reader.is_stopped),
        is_throttled: reader.and_then(|it| it.throttled.as_ref()).is_some_and(|it| it.share >= THROTTLED),
        ..Moment::default()
    }
}
