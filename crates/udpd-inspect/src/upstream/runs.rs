//! The runs of a batch that may still go on: a few at a time, each in the place that its stream's key names, or next to
//! it. Many streams that come by turns cost one note each that way, and not one a datagram. Where a stream finds no
//! place a run is closed for it: that costs a note, and nothing is lost.

use super::header::Header;
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

    /// Lets the run of this stream go on with this datagram. False where there is none, or where it cannot.
    #[inline]
    pub(super) fn go_on(&mut self, key: &Key, header: &Header, drops: u32) -> bool {
        let first = place(key);
        let is_there = |place: usize| self.places[place].key == *key && self.is_open(place);
        let place = if is_there(first) {
            first
        } else if is_there(first ^ 1) {
            first ^ 1
        } else {
            return false;
        };
        let run = &mut self.places[place];
        if run.number.wrapping_add(run.units.into()) & self.mask == header.number
            && run.drops == drops
            // A run has the clock of its last datagram; that of the first must not seem later than it is.
            && run.clock.made_at == header.clock.made_at
            && let Some(units) = run.units.checked_add(header.units)
            && let Some(datagrams) = run.datagrams.checked_add(1)
        {
            (run.units, run.datagrams, run.clock) = (units, datagrams, header.clock);
            return true;
        }
        false
    }

    /// Begins a run. The one that had its place is closed.
    #[inline]
    pub(super) fn begin(&mut self, run: &Note, close: impl FnOnce(&Note)) {
        let first = place(&run.key);
        let neighbour = first ^ 1;
        let is_for = |place: usize| !self.is_open(place) || self.places[place].key == run.key;
        // The neighbour takes what finds its place in use.
        let place = if !is_for(first) && is_for(neighbour) { neighbour } else { first };
        if self.is_open(place) {
            close(&self.places[place]);
        }
        self.open |= 1 << place;
        self.places[place] = *run;
    }

    #[inline]
    fn is_open(&self, place: usize) -> bool {
        self.open >> place & 1 == 1
    }

    /// Closes one of the runs that are open.
    pub(super) fn pop(&mut self) -> Option<&Note> {
        let place = (self.open != 0).then(|| self.open.trailing_zeros() as usize)?;
        self.open &= self.open - 1;
        Some(&self.places[place])
    }
}

/// The place of a stream. Who shares one with another on purpose gains nothing but a note for each datagram.
#[inline]
fn place(key: &Key) -> usize {
    let source = (key.source >> 64) as u64 ^ key.source as u64;
    // The fractions of the golden ratio and of the root of 2: multiples of either lie far from each other.
    let mixed = key.stream.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(source.wrapping_mul(0x6a09_e667_f3bc_c909));
    (mixed >> (u64::BITS - PLACES.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the receiver does it; returns the run that is closed by that.
    fn push(runs: &mut Runs, note: &Note) -> Option<Note> {
        let header = Header { stream: note.key.stream, number: note.number, units: note.units, clock: note.clock };
        let mut closed = None;
        if !runs.go_on(&note.key, &header, note.drops) {
            runs.begin(note, |run| closed = Some(*run));
        }
        closed
    }

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
                assert_eq!(push(&mut runs, &note(stream, number & 0xffff)), None);
            }
        }
        assert_eq!(rest(&mut runs), [(0, 65_530, 20, 20), (1, 65_530, 20, 20), (2, 65_530, 20, 20)]);
        assert_eq!(rest(&mut runs), []);
    }

    #[test]
    fn a_gap_a_step_back_and_a_drop_close_a_run_and_begin_another() {
        let mut runs = Runs::new(32);
        let mut closed = |note: &Note| push(&mut runs, note).as_ref().map(short);
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
                push(&mut runs, &note(stream, number)).iter().for_each(&mut write);
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
