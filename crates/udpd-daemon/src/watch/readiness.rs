//! Whether a balancer is to send here, and in one word why not. [`FaultFinder`] compares one reading of the ledger with
//! the one before, and [`Readiness`] makes a state of what it finds, look by look, once a second.
//!
//! A fault counts when it lasts for three looks in a row, and is over after five without one. A member that is not
//! ready gets no datagrams, and then most faults cannot be seen: it has to be tried again. So that one with a fault
//! that stays does not come and go, each relapse within a minute doubles how long it has to look well, up to five
//! minutes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use udpd_base::ledger::snapshot::{ListenerSnapshot, ReadinessSnapshot};
use udpd_base::ledger::{CounterTable as _, Snapshot};
use udpd_base::text::tables::grouped;

/// After so many looks with a fault in a row udpd is not ready.
const FALL: u32 = 3;

/// After so many without one it is ready again, and after twice as many where it was not ready for long.
const RISE: u32 = 5;
const RISE_MAX: u32 = 300;

/// A fault so soon after udpd was ready again is a relapse.
const RELAPSE: Duration = Duration::from_secs(60);

/// Why udpd is not ready: the word for a script, and a sentence for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub word: &'static str,
    pub text: String,
}

/// What the ledger does not say.
#[derive(Debug, Default)]
pub struct OtherFacts<'a> {
    /// The sinks that take nothing, and for how long.
    pub stalled: BTreeMap<&'a str, Duration>,
    /// The sinks that have yet to begin.
    pub waiting: Vec<&'a str>,
    /// The listeners that hear nothing of an interface, and why.
    pub deaf: Vec<String>,
}

/// Finds what is wrong now.
#[derive(Debug, Default)]
pub struct FaultFinder {
    sinks: BTreeMap<String, SinkSums>,
    /// What each lane had received, and whether something waited for it.
    lanes: BTreeMap<(String, usize), (u64, bool)>,
}

/// Of all listeners of a sink together.
#[derive(Debug, Clone, Copy, Default)]
struct SinkSums {
    handed_on: u64,
    lost: u64,
    depth: u64,
    capacity: u64,
}

impl FaultFinder {
    /// The worst fault since the last look, if any.
    pub fn look(&mut self, snapshot: &Snapshot, other: &OtherFacts<'_>) -> Option<Fault> {
        let (stuck, sink, queue) =
            (self.stuck_lane(snapshot), self.sink_fault(snapshot, other), full_queue(&self.sinks));
        deaf_lane(snapshot, other).or(sink).or(stuck).or(queue).or_else(|| residual(snapshot))
    }

    /// A receiver that leaves in its socket what waits there, although it had a second.
    fn stuck_lane(&mut self, snapshot: &Snapshot) -> Option<Fault> {
        let mut found = None;
        let mut now = BTreeMap::new();
        for listener in snapshot.listeners.iter().filter(|listener| !listener.removed) {
            for lane in listener.lanes.iter().filter(|lane| !lane.removed) {
                let (received, waits) = (lane.counts.received, lane.receive_buffer_used_bytes > 0);
                let key = (listener.name.clone(), lane.lane);
                if waits && self.lanes.get(&key) == Some(&(received, true)) {
                    let text = format!(
                        "lane {} of listener {} takes nothing of what waits in its socket",
                        lane.lane, listener.name
                    );
                    found = found.or(Some(Fault { word: "lane", text }));
                }
                now.insert(key, (received, waits));
            }
        }
        self.lanes = now;
        found
    }

    /// A sink that only loses, takes nothing, or has yet to begin. What it puts on disk for later is not lost.
    fn sink_fault(&mut self, snapshot: &Snapshot, other: &OtherFacts<'_>) -> Option<Fault> {
        let mut now: BTreeMap<String, SinkSums> = BTreeMap::new();
        for sink in snapshot.listeners.iter().flat_map(|listener| &listener.sinks).filter(|sink| !sink.removed) {
            let sums = now.entry(sink.name.clone()).or_default();
            sums.handed_on += sink.counts.delivered + sink.counts.spilled;
            sums.lost += sink.counts.dropped.total();
            (sums.depth, sums.capacity) = (sums.depth.max(sink.queue_depth), sums.capacity.max(sink.queue_capacity));
        }
        let before = std::mem::replace(&mut self.sinks, now);
        let only_loses = |(name, now): (&String, &SinkSums)| {
            let then = before.get(name)?;
            let lost = now.lost.saturating_sub(then.lost);
            (lost > 0 && now.handed_on == then.handed_on)
                .then(|| format!("sink {name} has lost {} datagrams in a second and handed on none", grouped(lost)))
        };
        let stalls = |(name, lasts): (&&str, &Duration)| {
            format!("sink {name} has handed on nothing for {} s although datagrams wait for it", lasts.as_secs())
        };
        let text = other.waiting.first().map(|name| format!("sink {name} has yet to begin"));
        let text = text.or_else(|| other.stalled.iter().map(stalls).next());
        let text = text.or_else(|| self.sinks.iter().find_map(only_loses))?;
        Some(Fault { word: "sink", text })
    }
}

/// A lane that nothing can reach.
fn deaf_lane(snapshot: &Snapshot, other: &OtherFacts<'_>) -> Option<Fault> {
    let of_queue = |listener: &ListenerSnapshot| {
        let lanes = listener.lanes.iter().filter(|lane| !lane.removed);
        let lanes = lanes.filter_map(|lane| Some((lane.lane, lane.xdp.as_ref()?)));
        let (lane, queue) = lanes.into_iter().find(|(_, queue)| queue.state != "running")?;
        let state = queue.state.replace('_', " ");
        Some(format!(
            "lane {lane} of listener {} has no engine at interface {}: {state}",
            listener.name, queue.interface
        ))
    };
    let listeners = snapshot.listeners.iter().filter(|listener| !listener.removed);
    let text = other.deaf.first().cloned().or_else(|| listeners.into_iter().find_map(of_queue))?;
    Some(Fault { word: "lane", text })
}

/// A queue that is four fifths full: what a balancer sends more would be lost.
fn full_queue(sinks: &BTreeMap<String, SinkSums>) -> Option<Fault> {
    let is_full =
        |sums: &SinkSums| sums.capacity > 0 && sums.depth.saturating_mul(5) >= sums.capacity.saturating_mul(4);
    let (name, sums) = sinks.iter().find(|(_, sums)| is_full(sums))?;
    let percent = sums.depth.saturating_mul(100) / sums.capacity;
    Some(Fault { word: "queue", text: format!("the queue of sink {name} is {percent} % full") })
}

fn residual(snapshot: &Snapshot) -> Option<Fault> {
    let mut wrong =
        snapshot.listeners.iter().filter_map(|own| Some((&own.name, own.residual.filter(|left| *left != 0)?)));
    let (name, left) = wrong.next()?;
    let text =
        format!("the ledger of listener {name} does not close by {left}, which is a bug of udpd: please report it");
    Some(Fault { word: "residual", text })
}

/// The state that is told, from look to look.
#[derive(Debug)]
pub struct Readiness {
    told: ReadinessSnapshot,
    /// As the looks have it, whether udpd drains or not.
    is_well: bool,
    fault: Fault,
    /// Looks in a row that say the other thing than `is_well`.
    against: u32,
    rise: u32,
    /// When it was well again after a fault.
    risen: Option<Instant>,
}

impl Readiness {
    pub fn new(since: f64) -> Self {
        let fault = Fault { word: "starting", text: "udpd starts".to_owned() };
        let told = ReadinessSnapshot { ready: false, reason: fault.word.into(), text: fault.text.clone(), since };
        // One look is enough at the start: every lane is bound by then, and every sink is open.
        Self { told, is_well: false, fault, against: 0, rise: 1, risen: None }
    }

    pub fn told(&self) -> &ReadinessSnapshot {
        &self.told
    }

    /// Notes what a look has found; whether something else is to be told now. `draining`: why udpd is to leave.
    pub fn look(&mut self, fault: Option<Fault>, draining: Option<&str>, now: Instant, wall: f64) -> bool {
        match fault {
            Some(fault) if self.is_well => {
                self.against += 1;
                if self.against >= FALL {
                    let is_relapse = self.risen.is_some_and(|risen| now - risen < RELAPSE);
                    self.rise = if is_relapse { (2 * self.rise).clamp(RISE, RISE_MAX) } else { RISE };
                    (self.is_well, self.against, self.fault) = (false, 0, fault);
                }
            }
            Some(fault) => {
                // A fault at the start is to be over for as long as any other.
                (self.against, self.fault, self.rise) = (0, fault, self.rise.max(RISE));
            }
            None if self.is_well => self.against = 0,
            None => {
                self.against += 1;
                if self.against >= self.rise {
                    (self.is_well, self.against, self.risen) = (true, 0, Some(now));
                }
            }
        }
        self.tell(draining, wall)
    }

    /// The same without a look, when udpd is to leave or to stay after all.
    pub fn tell(&mut self, draining: Option<&str>, wall: f64) -> bool {
        let (ready, reason, text) = match draining {
            Some(text) => (false, "draining", text),
            None if self.is_well => (true, "ready", "udpd is ready"),
            None => (false, self.fault.word, self.fault.text.as_str()),
        };
        if self.told.reason == reason && self.told.text == text {
            return false;
        }
        let since = if self.told.ready == ready { self.told.since } else { wall };
        self.told = ReadinessSnapshot { ready, reason: reason.to_owned(), text: text.to_owned(), since };
        true
    }
}

#[cfg(test)]
#[path = "readiness_tests.rs"]
mod tests;
