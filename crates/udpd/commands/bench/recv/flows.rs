//! Which datagrams of which flow have come: exact, in memory that is fixed at start.
//!
//! Each flow has a bitmap over the last 65,536 sequences up to the highest one seen. Within it every datagram is told:
//! new, out of task, or a repeat. What is older cannot be told from a repeat any more; it is counted as late and stays
//! lost.
//!
//! A flow begins at sequence 0, so what is missing before the first one seen is lost. Only when the first is beyond the
//! window has the receiver come into the middle of a run, and then counting begins there.

use serde::Serialize;

/// How far back a datagram may come and still be told from a repeat.
pub const WINDOW: u64 = 65_536;

const WORD_BITS: u64 = u64::BITS as u64;
const WORDS: usize = (WINDOW / WORD_BITS) as usize;

/// What a datagram turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The first with its sequence, in order.
    New,
    /// The first with its sequence, after a higher one.
    Reordered,
    Duplicated,
    Late,
    /// Of a flow for which there is no room.
    Untracked,
}

/// One flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Flow {
    pub run: u16,
    pub flow: u16,
    /// The first sequence that was to come: 0, or where the receiver came into the middle.
    pub first_expected: u64,
    pub highest: u64,
    /// Sequences that came at least once.
    pub received: u64,
    /// Of these, those that came after a higher one.
    pub reordered: u64,
    pub duplicated: u64,
    /// Too far behind to tell a repeat from a first arrival.
    pub late: u64,
}

impl Flow {
    /// Sequences up to the highest that did not come.
    pub fn lost(&self) -> u64 {
        (self.highest + 1 - self.first_expected).saturating_sub(self.received)
    }
}

/// All flows.
#[derive(Debug)]
pub struct Flows {
    flows: Vec<Flow>,
    flows_max: usize,
    bits: Vec<u64>,
    /// Open addressing: the index of a flow plus one, 0 where there is none.
    places: Box<[u32]>,
    /// The flow of the datagram before: they come in runs.
    last: usize,
}

impl Flows {
    /// Room for `flows_max` flows, 8 KiB each.
    pub fn new(flows_max: usize) -> Self {
        Self {
            flows: Vec::with_capacity(flows_max),
            flows_max,
            bits: vec![0; flows_max * WORDS],
            // Half empty, so that a search ends soon.
            places: vec![0; (flows_max * 2).next_power_of_two()].into_boxed_slice(),
            last: 0,
        }
    }

    /// The flows seen, in the order of their first datagrams.
    pub fn all(&self) -> &[Flow] {
        &self.flows
    }

    /// All sequences that did not come.
    pub fn lost(&self) -> u64 {
        self.flows.iter().map(Flow::lost).sum()
    }

    pub fn take(&mut self, run: u16, flow: u16, sequence: u64) -> Fate {
        let index = match self.flows.get(self.last) {
            Some(last) if (last.run, last.flow) == (run, flow) => self.last,
            _ => match self.find(run, flow) {
                Some(index) => index,
                None => return self.begin(run, flow, sequence),
            },
        };
        self.last = index;
        let bits = &mut self.bits[index * WORDS..(index + 1) * WORDS];
        let flow = &mut self.flows[index];
        if sequence > flow.highest {
            let skipped = (sequence - flow.highest - 1).min(WINDOW);
            (1..=skipped).for_each(|back| clear(bits, sequence - back));
            set(bits, sequence);
            flow.highest = sequence;
            flow.received += 1;
            Fate::New
        } else if flow.highest - sequence >= WINDOW {
            flow.late += 1;
            Fate::Late
        } else if set(bits, sequence) {
            flow.duplicated += 1;
            Fate::Duplicated
        } else {
            // After coming into the middle, one from before can still follow.
            flow.first_expected = flow.first_expected.min(sequence);
            flow.received += 1;
            flow.reordered += 1;
            Fate::Reordered
        }
    }

    /// The place of a flow in the table: where it is, or where it would be.
    fn place(&self, run: u16, flow: u16) -> usize {
        let mask = self.places.len() - 1;
        let hash = (u64::from(run) << 16 | u64::from(flow)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut place = (hash >> 40) as usize & mask;
        while let Some(index) = (self.places[place] as usize).checked_sub(1)
            && (self.flows[index].run, self.flows[index].flow) != (run, flow)
        {
            place = (place + 1) & mask;
        }
        place
    }

    fn find(&self, run: u16, flow: u16) -> Option<usize> {
        (self.places[self.place(run, flow)] as usize).checked_sub(1)
    }

    #[cold]
    fn begin(&mut self, run: u16, flow: u16, sequence: u64) -> Fate {
        if self.flows.len() == self.flows_max {
            return Fate::Untracked;
        }
        let (index, place) = (self.flows.len(), self.place(run, flow));
        let first_expected = if sequence < WINDOW { 0 } else { sequence };
        self.flows.push(Flow {
            run,
            flow,
            first_expected,
            highest: sequence,
            received: 1,
            reordered: 0,
            duplicated: 0,
            late: 0,
        });
        self.places[place] = u32::try_from(self.flows.len()).unwrap_or(0);
        self.last = index;
        set(&mut self.bits[index * WORDS..(index + 1) * WORDS], sequence);
        Fate::New
    }
}

fn bit(sequence: u64) -> (usize, u64) {
    ((sequence % WINDOW / WORD_BITS) as usize, 1 << (sequence % WORD_BITS))
}

/// Sets a bit and says whether it was set.
fn set(bits: &mut [u64], sequence: u64) -> bool {
    let (word, mask) = bit(sequence);
    let was = bits[word] & mask != 0;
    bits[word] |= mask;
    was
}

fn clear(bits: &mut [u64], sequence: u64) {
    let (word, mask) = bit(sequence);
    bits[word] &= !mask;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn fates(flows: &mut Flows, sequences: impl IntoIterator<Item = u64>) -> Vec<Fate> {
        sequences.into_iter().map(|sequence| flows.take(1, 2, sequence)).collect()
    }

    #[test]
    fn a_gap_is_lost_until_it_is_filled_and_a_repeat_is_a_repeat() {
        let mut flows = Flows::new(1);
        use Fate::{Duplicated, New, Reordered};
        assert_eq!(fates(&mut flows, [0, 1, 4, 4, 3, 1]), [New, New, New, Duplicated, Reordered, Duplicated]);
        let flow = flows.all()[0];
        assert_eq!((flow.lost(), flow.received, flow.reordered, flow.duplicated, flow.highest), (1, 4, 1, 2, 4));
    }

    #[test]
    fn what_is_missing_before_the_first_is_lost_unless_it_is_a_whole_window() {
        let mut flows = Flows::new(2);
        flows.take(1, 1, WINDOW - 1);
        flows.take(1, 2, WINDOW);
        assert_eq!(flows.all().iter().map(Flow::lost).collect::<Vec<_>>(), [WINDOW - 1, 0]);
        assert_eq!(flows.take(1, 2, WINDOW - 1), Fate::Reordered);
        assert_eq!(flows.all()[1].lost(), 0, "it was sent before the receiver came, and is not missing");
    }

    #[test]
    fn the_window_reaches_back_exactly_65_535_sequences() {
        let mut flows = Flows::new(1);
        fates(&mut flows, [0, WINDOW]);
        assert_eq!(fates(&mut flows, [1, 0]), [Fate::Reordered, Fate::Late]);
        assert_eq!(flows.all()[0].lost(), WINDOW - 2);
        // The bit of 1 is the bit of 1 + WINDOW, which has not come.
        assert_eq!(fates(&mut flows, [1 + WINDOW, 1 + WINDOW]), [Fate::New, Fate::Duplicated]);
        let far = 10 * WINDOW + 5;
        assert_eq!(
            fates(&mut flows, [far, far - 1, far - WINDOW + 1, far - WINDOW]),
            [Fate::New, Fate::Reordered, Fate::Reordered, Fate::Late]
        );
    }

    #[test]
    fn flows_beyond_the_stated_number_are_said_to_be_untracked() {
        let mut flows = Flows::new(3);
        let kinds: Vec<Fate> = (0..5).map(|flow| flows.take(9, flow, 0)).collect();
        assert_eq!(kinds, [Fate::New, Fate::New, Fate::New, Fate::Untracked, Fate::Untracked]);
        assert_eq!(flows.take(9, 1, 0), Fate::Duplicated);
        assert_eq!(flows.take(8, 1, 0), Fate::Untracked, "the same flow of another run is another flow");
    }

    #[test]
    fn random_traffic_is_counted_as_by_a_set() {
        let mut flows = Flows::new(40);
        let mut seen: Vec<BTreeSet<u64>> = vec![BTreeSet::new(); 40];
        let (mut state, mut duplicated, mut reordered) = (12_345_u64, 0, 0);
        for step in 0..200_000_u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let flow = (state >> 33) as usize % 40;
            let sequence = step / 8 + (state >> 45) % 3_000;
            let is_highest = seen[flow].last().is_none_or(|highest| sequence > *highest);
            let expected = match seen[flow].insert(sequence) {
                false => Fate::Duplicated,
                true if is_highest => Fate::New,
                true => Fate::Reordered,
            };
            duplicated += u64::from(expected == Fate::Duplicated);
            reordered += u64::from(expected == Fate::Reordered);
            assert_eq!(flows.take(7, flow as u16, sequence), expected, "step {step}");
        }
        assert!(duplicated > 1_000 && reordered > 1_000, "{duplicated} and {reordered}: the traffic tests nothing");
        for flow in flows.all() {
            let seen = &seen[usize::from(flow.flow)];
            let highest = *seen.last().expect("traffic");
            assert_eq!((flow.received, flow.lost()), (seen.len() as u64, highest + 1 - seen.len() as u64));
        }
    }
}
