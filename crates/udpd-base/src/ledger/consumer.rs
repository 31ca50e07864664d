//! What a consumer counts and publishes: its counts for each listener that feeds it and, where its sink is a relay,
//! those of each destination. It is the only writer.
//!
//! A consumer may serve a thousand listeners and hand on the datagrams of one of them. So it publishes what has changed
//! and no more, and there may be a thousand consumers, so each has places for its own listeners only.

use std::ops::{Index, IndexMut, Range};
use std::sync::Arc;

use super::counter::CounterSet;
use super::counter::Published;
use super::counter_list::{DestinationTally, SinkTally};
use super::snapshot::DestinationSnapshot;

/// What a consumer has counted, by the index of the listener.
#[derive(Debug)]
pub struct Tallies {
    /// The listener of the first one.
    first: usize,
    tallies: Box<[SinkTally]>,
    /// Those that may have changed since they were published, by their place, each once.
    changed: Vec<usize>,
    is_changed: Box<[bool]>,
    /// Where a sink that waits publishes them.
    ledger: Option<Arc<ConsumerLedger>>,
}

impl Tallies {
    /// Nothing yet, for these listeners.
    pub fn new(listeners: Range<usize>) -> Self {
        let count = listeners.len();
        Self {
            first: listeners.start,
            tallies: vec![SinkTally::default(); count].into(),
            changed: Vec::with_capacity(count),
            is_changed: vec![false; count].into(),
            ledger: None,
        }
    }

    /// The same for a consumer with this ledger.
    pub fn published_in(self, ledger: &Arc<ConsumerLedger>) -> Self {
        Self { ledger: Some(Arc::clone(ledger)), ..self }
    }

    /// Lets others see what is counted so far. A consumer does that after each batch; a sink that waits within one, as
    /// long as its destination likes, does it by itself, so that what was handed on by then counts whatever comes.
    pub fn publish(&mut self) {
        if let Some(ledger) = self.ledger.clone() {
            ledger.publish(self);
        }
    }

    /// The listeners of which the sink holds something: how much of each is pending, and how much spilled.
    pub fn held(&self) -> impl Iterator<Item = (usize, u64, u64)> {
        let held = self.tallies.iter().enumerate().filter(|(_, tally)| tally.pending > 0 || tally.spilled > 0);
        held.map(|(place, tally)| (self.first + place, tally.pending, tally.spilled))
    }
}

#[cfg(any(test, feature = "testing"))]
impl<const N: usize> From<[SinkTally; N]> for Tallies {
    fn from(counted: [SinkTally; N]) -> Self {
        Self { tallies: counted.into(), ..Self::new(0..N) }
    }
}

impl Index<usize> for Tallies {
    type Output = SinkTally;

    fn index(&self, listener: usize) -> &SinkTally {
        &self.tallies[listener - self.first]
    }
}

/// Who can change it is taken to have changed it.
impl IndexMut<usize> for Tallies {
    fn index_mut(&mut self, listener: usize) -> &mut SinkTally {
        let place = listener - self.first;
        if !std::mem::replace(&mut self.is_changed[place], true) {
            self.changed.push(place);
        }
        &mut self.tallies[place]
    }
}

/// The published side of one consumer.
#[derive(Debug)]
pub struct ConsumerLedger {
    /// The listener of the first one.
    first: usize,
    counts: Box<[Published<SinkTally>]>,
}

impl ConsumerLedger {
    /// An empty ledger of a consumer that these listeners feed, and perhaps others among them.
    pub fn new(listeners: Range<usize>) -> Self {
        Self { first: listeners.start, counts: listeners.map(|_| Published::default()).collect() }
    }

    /// Publishes what the consumer that owns this ledger has counted, as far as it has changed.
    pub fn publish(&self, tallies: &mut Tallies) {
        for place in tallies.changed.drain(..) {
            tallies.is_changed[place] = false;
            self.counts[place].publish(&tallies.tallies[place]);
        }
    }

    /// The counts for all listeners together.
    pub fn sum(&self) -> SinkTally {
        SinkTally::sum(self.counts.iter().map(Published::read))
    }

    /// The counts for one listener as last published.
    pub fn read(&self, listener: usize) -> SinkTally {
        let place = listener.checked_sub(self.first).and_then(|place| self.counts.get(place));
        place.map(Published::read).unwrap_or_default()
    }
}

/// The published side of one destination.
#[derive(Debug)]
pub struct DestinationLedger {
    /// As it is written.
    address: String,
    counts: Published<DestinationTally>,
}

impl DestinationLedger {
    pub fn new(address: impl ToString) -> Self {
        Self { address: address.to_string(), counts: Published::default() }
    }

    pub fn publish(&self, tally: &DestinationTally) {
        self.counts.publish(tally);
    }

    /// The sums by destination, in the order of the first mention: each consumer of a sink has sockets of its own.
    pub fn sum<'l>(ledgers: impl Iterator<Item = &'l DestinationLedger>) -> Vec<DestinationSnapshot> {
        let mut sums: Vec<DestinationSnapshot> = Vec::new();
        for ledger in ledgers {
            let counts = ledger.counts.read();
            match sums.iter_mut().find(|sum| sum.address == ledger.address) {
                Some(sum) => sum.counts.add(&counts),
                None => sums.push(DestinationSnapshot { address: ledger.address.clone(), counts }),
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_changed_is_published_and_what_others_count_is_not_here() {
        let ledger = ConsumerLedger::new(3..6);
        let mut tallies = Tallies::new(3..6);
        for _ in 0..2 {
            tallies[4].taken += 1;
            tallies[5].taken += 10;
        }
        ledger.publish(&mut tallies);
        tallies[4].taken += 1;
        let taken = || (0..8).map(|listener| ledger.read(listener).taken).collect::<Vec<_>>();
        assert_eq!(taken(), [0, 0, 0, 0, 2, 20, 0, 0]);
        ledger.publish(&mut tallies);
        assert_eq!(taken(), [0, 0, 0, 0, 3, 20, 0, 0]);
        assert_eq!((tallies[4].taken, tallies[5].taken), (3, 20));
        assert_eq!(ledger.sum().taken, 23, "all listeners together");
    }

    #[test]
    fn a_sink_that_waits_publishes_by_itself_where_its_consumer_does() {
        let ledger = Arc::new(ConsumerLedger::new(0..2));
        let mut tallies = Tallies::new(0..2).published_in(&ledger);
        tallies[1].delivered += 7;
        tallies.publish();
        assert_eq!(ledger.read(1).delivered, 7);
        let mut without = Tallies::new(0..2);
        without[1].delivered += 9;
        without.publish();
        assert_eq!((ledger.read(1).delivered, without[1].delivered), (7, 9), "one without a ledger keeps its counts");
    }

    #[test]
    fn the_sockets_of_one_destination_are_one_sum_in_the_order_of_the_first() {
        let ledgers = [("b:1", 1), ("a:1", 10), ("b:1", 100)].map(|(address, sent)| {
            let ledger = DestinationLedger::new(address);
            ledger.publish(&DestinationTally { sent, ..DestinationTally::default() });
            ledger
        });
        let sums = DestinationLedger::sum(ledgers.iter());
        let read: Vec<_> = sums.iter().map(|sum| (sum.address.as_str(), sum.counts.sent)).collect();
        assert_eq!(read, [("b:1", 101), ("a:1", 10)]);
    }
}
