//! The runs of a batch that may still go on: a few at a time, each in the place that its stream's key names, or next to
//! it. Many streams that come by turns cost one note each that way, and not one a datagram. Where a stream finds no
//! place a run is closed for it: that costs a note, and nothing is lost.

use super::note::{Key, Note};

/// How many runs may be open: a bit each, and few enough that they stay in the nearest cache.
const PLACES: usize = u64::BITS as usize;

/// Those of one receiver. None is open between batches.
#[derive(Debug)]
pub(super) struct Runs {
    /// One bit for each place in use.
    open: u64,
    places: [Note; PLACES],
    /// What the numbers of the protocol wrap at.
    mask: u64,
}

impl Runs {
    pub(super) fn new(bits: u32) -> Self {
        Self { open: 0, places: [Note::default(); PLACES], mask: u64::MAX >> (64 - bits) }
    }

    /// Lets the run of this stream go on with `note`, or begins one. Returns the run that is closed by that.
    pub(super) fn push(&mut self, note: &Note) -> Option<Note> {
        let first = place(&note.key);
        // The neighbour takes what finds its place in use.
        let is_for = |place: usize| self.open >> place & 1 == 0 || self.places[place].key == note.key;
        let place = if !is_for(first) && is_for(first ^ 1) { first ^ 1 } else { first };
        let run = &mut self.places[place];
        if self.open >> place & 1 == 0 {
            self.open |= 1 << place;
            *run = *note;
            return None;
        }
        if run.key == note.key
            && run.number.wrapping_add(run.units.into()) & self.mask == note.number
            && run.drops == note.drops
            // A run has the clock of its last datagram; that of the first must not seem later than it is.
            && run.clock.made_at == note.clock.made_at
            && let Some(units) = run.units.checked_add(note.units)
            && let Some(datagrams) = run.datagrams.checked_add(note.datagrams)
        {
            (run.units, run.datagrams, run.clock) = (units, datagrams, note.clock);
            return None;
        }
        Some(std::mem::replace(run, *note))
    }

    /// Closes one of the runs that are open.
    pub(super) fn pop(&mut self) -> Option<&Note> {
        let place = (self.open != 0).then(|| self.open.trailing_zeros() as usize)?;
        self.open &= self.open - 1;
        Some(&self.places[place])
    }
}

/// The place of a stream. Who shares one with another on purpose gains nothing but a note for each datagram.
fn place(key: &Key) -> usize {
    let source = (key.source >> 64) as u64 ^ key.source as u64;
    // The fractions of the golden ratio and of the root of 2: multiples of either lie far from each other.
    let mixed = key.stream.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(source.wrapping_mul(0x6a09_e667_f3bc_c909));
    (mixed >> (u64::BITS - PLACES.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(stream: u64, number: u64) -> Note {
        Note { key: Key { source: 7, stream }, number, units: 1, datagrams: 1, ..Note::default() }
    }

    fn rest(runs: &mut Runs) -> Vec<(u64, u64, u32, u16)> {
        let mut closed: Vec<_> = std::iter::from_fn(|| runs.pop().copied()).map(|note| short(&note)).collect();
        closed.sort_unstable();
        closed
    }

    fn short(note: &Note) -> (u64, u64, u32, u16) {
        (note.key.stream, note.number, note.units, note.datagrams)
    }

    #[test]
    fn streams_that_come_by_turns_have_a_run_each() {
        let mut runs = Runs::new(16);
        for number in 65_530..65_550 {
            for stream in 0..3 {
                assert_eq!(runs.push(&note(stream, number & 0xffff)), None);
            }
        }
        assert_eq!(rest(&mut runs), [(0, 65_530, 20, 20), (1, 65_530, 20, 20), (2, 65_530, 20, 20)]);
        assert_eq!(rest(&mut runs), []);
    }

    #[test]
    fn a_gap_a_step_back_and_a_drop_close_a_run_and_begin_another() {
        let mut runs = Runs::new(32);
        let mut closed = |note: &Note| runs.push(note).as_ref().map(short);
        assert_eq!(closed(&note(1, 5)), None);
        assert_eq!(closed(&note(1, 6)), None);
        assert_eq!(closed(&note(1, 8)), Some((1, 5, 2, 2)));
        assert_eq!(closed(&note(1, 7)), Some((1, 8, 1, 1)));
        assert_eq!(closed(&Note { drops: 1, ..note(1, 8) }), Some((1, 7, 1, 1)));
        assert_eq!(rest(&mut runs), [(1, 8, 1, 1)]);
    }

    #[test]
    fn more_streams_than_places_lose_nothing_and_keep_the_order_of_each() {
        let mut runs = Runs::new(64);
        let mut seen = vec![Vec::new(); 1000];
        let mut write = |note: &Note| {
            let numbers = note.number..note.number + u64::from(note.units);
            seen[note.key.stream as usize].extend(numbers);
        };
        for number in 0..50 {
            for stream in 0..1000 {
                runs.push(&note(stream, number)).iter().for_each(&mut write);
            }
        }
        while let Some(note) = runs.pop() {
            write(note);
        }
        let expected: Vec<u64> = (0..50).collect();
        assert!(seen.iter().all(|numbers| *numbers == expected));
    }

    #[test]
    fn neighbours_hardly_share_a_place() {
        let v4 = |number: u64| u128::from(0xffff_0a00_0000 + number);
        let by_port = |port: u64| Key { source: v4(1), stream: 40_000 + port };
        let by_address = |number: u64| Key { source: v4(number), stream: 0 };
        for keys in [(0..16).map(by_port).collect::<Vec<_>>(), (0..16).map(by_address).collect()] {
            let places: std::collections::HashSet<_> = keys.iter().map(place).collect();
            assert!(places.len() >= 14, "{places:?}");
        }
    }
}
