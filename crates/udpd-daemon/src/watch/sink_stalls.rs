//! Sinks that take nothing: something waits for a consumer and it has decided nothing for some seconds, because its
//! disk, its peer or its broker stands still. Waiting is no fault of a thread, and nothing may be lost yet, so no other
//! watch says a word until the queue is full. The log hears it once, and once more when it is over.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use udpd_base::ledger::Snapshot;
use udpd_base::os::watchdog;
use udpd_base::text::tables::grouped;
use udpd_engine::pipeline::Progress;

/// A sink that has decided nothing for so long takes nothing.
const STALLED_AFTER: Duration = Duration::from_secs(4);

/// Compares what consumers have done from one look to the next.
#[derive(Debug, Default)]
pub struct StallWatch {
    /// By sink and consumer, those for which something waits.
    seen: BTreeMap<(String, usize), ConsumerState>,
}

#[derive(Debug)]
struct ConsumerState {
    decided: u64,
    since: Instant,
    is_said: bool,
}

/// What is to be told of a sink.
#[derive(Debug, PartialEq, Eq)]
pub enum StallChange {
    Begun { sink: String, consumer: usize, lasts: Duration },
    Over { sink: String, consumer: usize, lasted: Duration },
}

impl StallWatch {
    /// What has changed since the last look: to be called once a second.
    pub fn look(&mut self, found: BTreeMap<(String, usize), Progress>, now: Instant) -> Vec<StallChange> {
        let mut changes = Vec::new();
        let mut before = std::mem::take(&mut self.seen);
        for ((sink, consumer), progress) in found {
            let key = (sink, consumer);
            let is_same = |seen: &ConsumerState| progress.waits && seen.decided == progress.decided;
            let mut seen = match before.remove(&key) {
                Some(seen) if is_same(&seen) => seen,
                other => {
                    changes.extend(other.and_then(|seen| seen.over(&key, now)));
                    ConsumerState { decided: progress.decided, since: now, is_said: false }
                }
            };
            if !seen.is_said && now - seen.since >= STALLED_AFTER {
                seen.is_said = true;
                changes.push(StallChange::Begun { sink: key.0.clone(), consumer, lasts: now - seen.since });
            }
            if progress.waits {
                self.seen.insert(key, seen);
            }
        }
        changes.extend(before.into_iter().filter_map(|(key, seen)| seen.over(&key, now)));
        changes
    }

    /// The sinks that take nothing, each with how long it has been so, for the service manager.
    pub fn stalled(&self, now: Instant) -> BTreeMap<&str, Duration> {
        let mut stalled = BTreeMap::new();
        for ((sink, _), seen) in self.seen.iter().filter(|(_, seen)| seen.is_said) {
            let longest: &mut Duration = stalled.entry(sink.as_str()).or_default();
            *longest = (*longest).max(now - seen.since);
        }
        stalled
    }
}

impl ConsumerState {
    fn over(&self, (sink, consumer): &(String, usize), now: Instant) -> Option<StallChange> {
        self.is_said.then(|| StallChange::Over { sink: sink.clone(), consumer: *consumer, lasted: now - self.since })
    }
}

/// How many datagrams are under way to a sink, of all listeners together.
pub fn in_flight(snapshot: &Snapshot, sink: &str) -> u64 {
    let sinks = snapshot.listeners.iter().flat_map(|listener| &listener.sinks);
    sinks.filter(|own| own.name == sink).map(|own| own.in_flight).sum()
}

/// Says in the log that a sink takes nothing. `threads` are those of its consumers.
pub fn say_begun(sink: &str, lasts: Duration, snapshot: &Snapshot, threads: &[i32]) {
    let waits_for = match threads.iter().any(|thread| watchdog::state(*thread) == Some('D')) {
        true => "a call of its thread waits in the kernel, as a rule for a disk",
        false => "its thread waits for its peer, its broker or its reader",
    };
    log::warn!(
        "sink {sink}: has handed on nothing for {} s, with {} datagrams in flight: {waits_for}; look at what is behind \
         it. What its queue cannot hold any more, when_full decides",
        lasts.as_secs(),
        grouped(in_flight(snapshot, sink))
    );
}

/// Says that it is over.
pub fn say_over(sink: &str, lasted: Duration) {
    log::warn!("sink {sink}: hands on again, after {} s", lasted.as_secs());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said at each of these looks, one a second, at what a consumer has decided and whether more waits.
    fn said(looks: &[(u64, bool)]) -> Vec<&'static str> {
        let (mut watch, begun) = (StallWatch::default(), Instant::now());
        let mut look = |(second, &(decided, waits)): (u64, &(u64, bool))| {
            let found = BTreeMap::from([(("archive".to_owned(), 0), Progress { decided, waits })]);
            match watch.look(found, begun + Duration::from_secs(second)).as_slice() {
                [] => "",
                [StallChange::Begun { .. }] => "begun",
                [StallChange::Over { .. }] => "over",
                _ => "both",
            }
        };
        (0..).zip(looks).map(&mut look).collect()
    }

    #[test]
    fn a_sink_that_decides_nothing_while_something_waits_is_said_once_and_once_when_it_goes_on() {
        let stands = [(7, true); 7];
        assert_eq!(said(&stands), ["", "", "", "", "begun", "", ""]);
        assert_eq!(said(&[&stands[..5], &[(8, true), (9, true)]].concat())[4..], ["begun", "over", ""]);
        assert_eq!(said(&[&stands[..5], &[(7, false)]].concat())[4..], ["begun", "over"]);
    }

    #[test]
    fn a_sink_that_is_slow_or_has_nothing_to_do_is_not_said() {
        assert!(said(&[(7, false); 10]).iter().all(|said| said.is_empty()));
        let slow: Vec<(u64, bool)> = (0..10).map(|second| (second / 3, true)).collect();
        assert!(said(&slow).iter().all(|said| said.is_empty()));
    }

    #[test]
    fn a_sink_that_is_gone_is_over() {
        let (mut watch, begun) = (StallWatch::default(), Instant::now());
        let found = || BTreeMap::from([(("archive".to_owned(), 0), Progress { decided: 1, waits: true })]);
        assert_eq!(watch.look(found(), begun), []);
        let (second, third) = (begun + STALLED_AFTER, begun + 2 * STALLED_AFTER);
        assert_eq!(watch.look(found(), second).len(), 1);
        assert_eq!(watch.stalled(third), BTreeMap::from([("archive", 2 * STALLED_AFTER)]));
        let over = StallChange::Over { sink: "archive".to_owned(), consumer: 0, lasted: 2 * STALLED_AFTER };
        assert_eq!(watch.look(BTreeMap::new(), third), [over]);
        assert!(watch.stalled(third).is_empty());
    }
}
