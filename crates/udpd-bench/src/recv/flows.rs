//! Which datagrams of which flow have come: exact, in memory that is fixed at start.
//!
//! Each flow has a bitmap over the last sequences up to the highest one seen: 65,536 of them, and fewer where so many
//! flows are followed that all bitmaps together would take more than 128 MiB. Within it every datagram is new, out of
//! order, or a repeat. An older one cannot be told from a repeat; it is counted as late and stays lost.
//!
//! A flow begins at sequence 0, so what is missing before the first one seen is lost. Only when the first is beyond the
//! window has the receiver come into the middle of a run, and then counting begins there.

use serde::Serialize;

/// How far back a datagram is told from a repeat, if there is memory for it.
pub(super) const WINDOW: u64 = 65_536;

/// All bitmaps together take no more, unless there are so many flows that they have one word each.
const BITMAPS_BYTES: usize = 128 << 20;

const WORD_BITS: u64 = u64::BITS as u64;

/// How many sequences of each flow are told apart when so many flows are followed.
pub(super) fn window_of(flows_max: usize) -> u64 {
    let bits = (BITMAPS_BYTES as u64 * 8) / flows_max.max(1) as u64;
    let power = 1 << bits.max(1).ilog2();
    power.clamp(WORD_BITS, WINDOW)
}

/// The memory that following so many flows takes, all of it when it begins.
pub(super) fn memory_bytes(flows_max: usize) -> usize {
    let bitmap = (window_of(flows_max) / 8) as usize;
    flows_max * (bitmap + size_of::<FlowRecord>()) + places_of(flows_max) * size_of::<u32>()
}

/// Half empty, so that a search ends soon.
fn places_of(flows_max: usize) -> usize {
    (flows_max * 2).next_power_of_two()
}

/// How a datagram is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DatagramOutcome {
    /// The first with its sequence, in order.
    New,
    /// The first with its sequence, after a higher one.
    Reordered,
    Duplicated,
    Late,
    /// Of a flow for which there is no room.
    Untracked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct FlowRecord {
    pub run: u16,
    pub flow: u32,
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

impl FlowRecord {
    /// Sequences up to the highest that did not come.
    pub(super) fn lost(&self) -> u64 {
        (self.highest + 1 - self.first_expected).saturating_sub(self.received)
    }
}

#[derive(Debug)]
pub(super) struct FlowTable {
    flows: Vec<FlowRecord>,
    flows_max: usize,
    bits: Vec<u64>,
    window: u64,
    /// All sequences that did not come, kept up to date: there may be too many flows to add them up at every look.
    lost: u64,
    /// Open addressing: the index of a flow plus one, 0 where there is none.
    places: Box<[u32]>,
    /// The flow of the datagram before: they come in runs.
    last: usize,
}

impl FlowTable {
    /// Room for `flows_max` flows; [`memory_bytes`] says how much that is.
    pub(super) fn new(flows_max: usize) -> Self {
        let window = window_of(flows_max);
        Self {
            flows: Vec::with_capacity(flows_max),
            flows_max,
            bits: vec![0; flows_max * (window / WORD_BITS) as usize],
            window,
            lost: 0,
            places: vec![0; places_of(flows_max)].into_boxed_slice(),
            last: 0,
        }
    }

    pub(super) fn all(&self) -> &[FlowRecord] {
        &self.flows
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    pub(super) fn window(&self) -> u64 {
        self.window
    }

    pub(super) fn memory_bytes(&self) -> usize {
        memory_bytes(self.flows_max)
    }

    fn bitmap(&mut self, index: usize) -> Bitmap<'_> {
        let words = (self.window / WORD_BITS) as usize;
        Bitmap { words: &mut self.bits[index * words..(index + 1) * words], window: self.window }
    }

    pub(super) fn take(&mut self, run: u16, flow: u32, sequence: u64) -> DatagramOutcome {
        let index = match self.flows.get(self.last) {
            Some(last) if (last.run, last.flow) == (run, flow) => self.last,
            _ => match self.find(run, flow) {
                Some(index) => index,
                None => return self.begin(run, flow, sequence),
            },
        };
        self.last = index;
        let window = self.window;
        let highest = self.flows[index].highest;
        if sequence > highest {
            let skipped = sequence - highest - 1;
            let mut bitmap = self.bitmap(index);
            (1..=skipped.min(window)).for_each(|back| bitmap.clear(sequence - back));
            bitmap.set(sequence);
            self.lost += skipped;
            let flow = &mut self.flows[index];
            flow.highest = sequence;
            flow.received += 1;
            DatagramOutcome::New
        } else if highest - sequence >= window {
            self.flows[index].late += 1;
            DatagramOutcome::Late
        } else if self.bitmap(index).set(sequence) {
            self.flows[index].duplicated += 1;
            DatagramOutcome::Duplicated
        } else {
            let flow = &mut self.flows[index];
            let lost = flow.lost();
            // After coming into the middle, one from before can still follow.
            flow.first_expected = flow.first_expected.min(sequence);
            flow.received += 1;
            flow.reordered += 1;
            let lost_now = flow.lost();
            self.lost = self.lost + lost_now - lost;
            DatagramOutcome::Reordered
        }
    }

    /// The place of a flow in the table: where it is, or where it would be.
    fn place(&self, run: u16, flow: u32) -> usize {
        let mask = self.places.len() - 1;
        let hash = (u64::from(run) << 32 | u64::from(flow)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The upper half: of a product it depends on all bits.
        let mut place = (hash >> 32) as usize & mask;
        while let Some(index) = (self.places[place] as usize).checked_sub(1)
            && (self.flows[index].run, self.flows[index].flow) != (run, flow)
        {
            place = (place + 1) & mask;
        }
        place
    }

    fn find(&self, run: u16, flow: u32) -> Option<usize> {
        (self.places[self.place(run, flow)] as usize).checked_sub(1)
    }

    #[cold]
    fn begin(&mut self, run: u16, flow: u32, sequence: u64) -> DatagramOutcome {
        if self.flows.len() == self.flows_max {
            return DatagramOutcome::Untracked;
        }
        let (index, place) = (self.flows.len(), self.place(run, flow));
        let first_expected = if sequence < self.window { 0 } else { sequence };
        self.lost += sequence - first_expected;
        self.flows.push(FlowRecord {
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
        self.bitmap(index).set(sequence);
        DatagramOutcome::New
    }
}

/// Which of the last sequences of a flow have come.
struct Bitmap<'a> {
    words: &'a mut [u64],
    window: u64,
}

impl Bitmap<'_> {
    /// A window is a power of two.
    fn bit(&self, sequence: u64) -> (usize, u64) {
        (((sequence & (self.window - 1)) / WORD_BITS) as usize, 1 << (sequence % WORD_BITS))
    }

    /// Sets a bit and says whether it was set.
    fn set(&mut self, sequence: u64) -> bool {
        let (word, mask) = self.bit(sequence);
        let was = self.words[word] & mask != 0;
        self.words[word] |= mask;
        was
    }

    fn clear(&mut self, sequence: u64) {
        let (word, mask) = self.bit(sequence);
        self.words[word] &= !mask;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn fates(flows: &mut FlowTable, sequences: impl IntoIterator<Item = u64>) -> Vec<DatagramOutcome> {
        sequences.into_iter().map(|sequence| flows.take(1, 2, sequence)).collect()
    }

    #[test]
    fn a_gap_is_lost_until_it_is_filled_and_a_repeat_is_a_repeat() {
        let mut flows = FlowTable::new(1);
        use DatagramOutcome::{Duplicated, New, Reordered};
        assert_eq!(fates(&mut flows, [0, 1, 4, 4, 3, 1]), [New, New, New, Duplicated, Reordered, Duplicated]);
        let flow = flows.all()[0];
        assert_eq!((flow.lost(), flow.received, flow.reordered, flow.duplicated, flow.highest), (1, 4, 1, 2, 4));
    }

    #[test]
    fn what_is_missing_before_the_first_is_lost_unless_it_is_a_whole_window() {
        let mut flows = FlowTable::new(2);
        flows.take(1, 1, WINDOW - 1);
        flows.take(1, 2, WINDOW);
        assert_eq!(flows.all().iter().map(FlowRecord::lost).collect::<Vec<_>>(), [WINDOW - 1, 0]);
        assert_eq!(flows.take(1, 2, WINDOW - 1), DatagramOutcome::Reordered);
        assert_eq!(flows.all()[1].lost(), 0, "it was sent before the receiver came, and is not missing");
    }

    #[test]
    fn the_window_reaches_back_exactly_65_535_sequences() {
        let mut flows = FlowTable::new(1);
        fates(&mut flows, [0, WINDOW]);
        assert_eq!(fates(&mut flows, [1, 0]), [DatagramOutcome::Reordered, DatagramOutcome::Late]);
        assert_eq!(flows.all()[0].lost(), WINDOW - 2);
        // The bit of 1 is the bit of 1 + WINDOW, which has not come.
        assert_eq!(fates(&mut flows, [1 + WINDOW, 1 + WINDOW]), [DatagramOutcome::New, DatagramOutcome::Duplicated]);
        let far = 10 * WINDOW + 5;
        assert_eq!(
            fates(&mut flows, [far, far - 1, far - WINDOW + 1, far - WINDOW]),
            [DatagramOutcome::New, DatagramOutcome::Reordered, DatagramOutcome::Reordered, DatagramOutcome::Late]
        );
    }

    #[test]
    fn flows_beyond_the_stated_number_are_said_to_be_untracked() {
        let mut flows = FlowTable::new(3);
        let kinds: Vec<DatagramOutcome> = (0..5).map(|flow| flows.take(9, flow, 0)).collect();
        assert_eq!(
            kinds,
            [
                DatagramOutcome::New,
                DatagramOutcome::New,
                DatagramOutcome::New,
                DatagramOutcome::Untracked,
                DatagramOutcome::Untracked
            ]
        );
        assert_eq!(flows.take(9, 1, 0), DatagramOutcome::Duplicated);
        assert_eq!(flows.take(8, 1, 0), DatagramOutcome::Untracked, "the same flow of another run is another flow");
    }

    #[test]
    fn a_million_flows_are_followed_in_bounded_memory_and_each_still_has_a_window() {
        assert_eq!([1, 1024, 16_384].map(window_of), [WINDOW; 3]);
        assert_eq!([16_385, 65_536, 1_000_000, 1 << 24].map(window_of), [32_768, 16_384, 1_024, 64]);
        assert!(memory_bytes(1_000_000) < 184 << 20, "{}", memory_bytes(1_000_000));
        let mut flows = FlowTable::new(1_000_000);
        for sequence in [0, 2, 1, 2] {
            for flow in 0..1_000_000 {
                let expected = match sequence {
                    2 if flows.find(3, flow).is_some_and(|index| flows.all()[index].highest == 2) => {
                        DatagramOutcome::Duplicated
                    }
                    1 => DatagramOutcome::Reordered,
                    _ => DatagramOutcome::New,
                };
                assert_eq!(flows.take(3, flow, sequence), expected);
            }
        }
        assert_eq!((flows.lost(), flows.all().len()), (0, 1_000_000));
        assert_eq!(flows.take(3, 5, 1_026), DatagramOutcome::New);
        assert_eq!((flows.take(3, 5, 2), flows.take(3, 5, 3)), (DatagramOutcome::Late, DatagramOutcome::Reordered));
        assert_eq!(flows.lost(), 1_022);
    }

    #[test]
    fn random_traffic_is_counted_as_by_a_set() {
        let mut flows = FlowTable::new(40);
        let mut seen: Vec<BTreeSet<u64>> = vec![BTreeSet::new(); 40];
        let (mut state, mut duplicated, mut reordered) = (12_345_u64, 0, 0);
        for step in 0..200_000_u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let flow = (state >> 33) as usize % 40;
            let sequence = step / 8 + (state >> 45) % 3_000;
            let is_highest = seen[flow].last().is_none_or(|highest| sequence > *highest);
            let expected = match seen[flow].insert(sequence) {
                false => DatagramOutcome::Duplicated,
                true if is_highest => DatagramOutcome::New,
                true => DatagramOutcome::Reordered,
            };
            duplicated += u64::from(expected == DatagramOutcome::Duplicated);
            reordered += u64::from(expected == DatagramOutcome::Reordered);
            assert_eq!(flows.take(7, flow as u32, sequence), expected, "step {step}");
        }
        assert!(duplicated > 1_000 && reordered > 1_000, "{duplicated} and {reordered}: the traffic tests nothing");
        assert_eq!(flows.lost(), flows.all().iter().map(FlowRecord::lost).sum::<u64>());
        for flow in flows.all() {
            let seen = &seen[flow.flow as usize];
            let highest = *seen.last().expect("traffic");
            assert_eq!((flow.received, flow.lost()), (seen.len() as u64, highest + 1 - seen.len() as u64));
        }
    }
}
