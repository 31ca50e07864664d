//! The sides of a feed, of which each datagram is handed on once: what each has brought first, what after another, and
//! what it has not brought. From the counts of lanes, so that it goes on over a reload.

use super::counter::CounterTable as _;
use super::snapshot::{ListenerSnapshot, Snapshot};

/// One address on which a feed comes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SideCounts {
    pub listener: String,
    pub address: String,
    /// Datagrams that this side brought before all others, or alone.
    pub first: u64,
    /// Datagrams that another side had brought before.
    pub second: u64,
    /// What it brought more than once.
    pub repeated: u64,
    /// What others have brought and this one has not, or not yet.
    pub missing: u64,
}

impl Snapshot {
    /// The feeds by name, each with its sides. What could not be remembered counts as brought by one side alone.
    pub fn feeds(&self) -> Vec<(String, Vec<SideCounts>)> {
        let mut feeds: Vec<(bool, String, Vec<SideCounts>)> = Vec::new();
        for listener in &self.listeners {
            let Some(name) = &listener.feed else { continue };
            let (is_alone, name) = if name.is_empty() { (true, &listener.name) } else { (false, name) };
            match feeds.iter_mut().find(|(alone, known, _)| !is_alone && !alone && known == name) {
                Some((.., sides)) => sides.extend(listener.sides()),
                None => feeds.push((is_alone, name.clone(), listener.sides())),
            }
        }
        let with_missing = |(_, name, mut sides): (bool, String, Vec<SideCounts>)| {
            let all: u64 = sides.iter().map(|side| side.first).sum();
            sides.iter_mut().for_each(|side| side.missing = all.saturating_sub(side.first + side.second));
            (name, sides)
        };
        feeds.into_iter().map(with_missing).collect()
    }
}

impl ListenerSnapshot {
    fn sides(&self) -> Vec<SideCounts> {
        let mut sides: Vec<SideCounts> = Vec::new();
        for lane in &self.lanes {
            let place = sides.iter().position(|side| side.address == lane.address).unwrap_or_else(|| {
                let (listener, address) = (self.name.clone(), lane.address.clone());
                sides.push(SideCounts { listener, address, ..SideCounts::default() });
                sides.len() - 1
            });
            let dropped = &lane.counts.dropped;
            sides[place].first += lane.counts.received.saturating_sub(dropped.total());
            sides[place].second += dropped.duplicate;
            sides[place].repeated += dropped.repeated;
        }
        sides
    }
}
