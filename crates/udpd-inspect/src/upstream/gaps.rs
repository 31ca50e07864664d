//! The numbers of one stream that have not come: a few gaps below the next number, in order, in fixed memory.
//!
//! They are gaps and not a bit for each number, because a datagram of NetFlow 5 or IPFIX covers many numbers. Every
//! number below the next one and in no gap has come. A gap is *open* first. It is *settled* once enough datagrams or
//! enough time have passed, and from then on its numbers count as missing. What fills an open gap was out of order.
//! What fills a settled gap is late, and no longer counts as missing. A gap that makes room for another is settled and
//! forgotten.

/// How many datagrams of its stream may overtake one before its numbers count as missing.
pub const WINDOW: u16 = 64;

/// How many gaps are remembered: more than are open at a time, unless many datagrams overtake each other.
const GAPS: usize = 48;

/// How far back a gap may lie, in numbers.
const HORIZON: u64 = 1 << 30;

#[derive(Debug, Clone, Copy, Default)]
struct Gap {
    /// The low half of its first number.
    start: u32,
    length: u32,
    /// How many datagrams of the stream had come when it opened; wraps.
    born: u16,
    is_settled: bool,
    /// Whether a sweep has seen it open.
    is_swept: bool,
}

/// The gaps of a stream, from the lowest.
#[derive(Debug, Clone)]
pub(super) struct Gaps {
    gaps: [Gap; GAPS],
    count: u8,
    open: u8,
}

/// How many numbers of an interval filled open and settled gaps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Filled {
    pub(super) open: u64,
    pub(super) settled: u64,
    /// Numbers that were settled to make room.
    pub(super) pushed_out: u64,
}

impl Gaps {
    pub(super) const NONE: Self = Self {
        gaps: [Gap { start: 0, length: 0, born: 0, is_settled: false, is_swept: false }; GAPS],
        count: 0,
        open: 0,
    };

    pub(super) fn has_open(&self) -> bool {
        self.open > 0
    }

    fn all(&self) -> &[Gap] {
        &self.gaps[..self.count.into()]
    }

    /// Opens a gap of `length` numbers that ends below `next`, above all others. Returns how many numbers were settled
    /// to make room.
    pub(super) fn open(&mut self, next: u64, length: u64, born: u16) -> u64 {
        let (start, length) = (next.wrapping_sub(length) as u32, u32::try_from(length).unwrap_or(u32::MAX));
        self.insert(self.count.into(), Gap { start, length, born, is_settled: false, is_swept: false })
    }

    /// Opens a gap below all others: the stream began earlier than it seemed.
    pub(super) fn open_below(&mut self, start: u64, length: u64, born: u16) {
        if usize::from(self.count) < GAPS && self.all().iter().all(|gap| !gap.is_settled) {
            let length = u32::try_from(length).unwrap_or(u32::MAX);
            self.insert(0, Gap { start: start as u32, length, born, is_settled: false, is_swept: false });
        }
    }

    /// Puts a gap in its place; the lowest makes room.
    fn insert(&mut self, mut place: usize, gap: Gap) -> u64 {
        let mut settled = 0;
        if usize::from(self.count) == GAPS {
            settled = self.settle_lowest(1);
            self.remove(0);
            place = place.saturating_sub(1);
        }
        let count = usize::from(self.count);
        self.gaps.copy_within(place..count, place + 1);
        self.gaps[place] = gap;
        self.count += 1;
        self.open += u8::from(!gap.is_settled);
        settled
    }

    fn remove(&mut self, place: usize) {
        self.open -= u8::from(!self.gaps[place].is_settled);
        self.gaps.copy_within(place + 1..self.count.into(), place);
        self.count -= 1;
    }

    /// Settles the lowest `count` gaps; returns how many numbers they have.
    fn settle_lowest(&mut self, count: usize) -> u64 {
        let mut numbers = 0;
        for gap in self.gaps[..count].iter_mut().filter(|gap| !gap.is_settled) {
            gap.is_settled = true;
            self.open -= 1;
            numbers += u64::from(gap.length);
        }
        numbers
    }

    /// Settles gaps that have been open for longer than the window; returns how many numbers they have.
    pub(super) fn settle_older(&mut self, datagrams: u16) -> u64 {
        if self.open == 0 {
            return 0;
        }
        // Those that are open are the highest.
        let first = usize::from(self.count - self.open);
        let old = self.all()[first..].iter().take_while(|gap| datagrams.wrapping_sub(gap.born) > WINDOW);
        let old = old.count();
        self.settle_lowest(first + old)
    }

    /// Settles gaps that were open at the last sweep already.
    pub(super) fn sweep(&mut self) -> u64 {
        let seen = self.all().iter().take_while(|gap| gap.is_settled || gap.is_swept).count();
        let numbers = self.settle_lowest(seen);
        self.gaps.iter_mut().for_each(|gap| gap.is_swept = true);
        numbers
    }

    /// Settles everything.
    pub(super) fn settle_all(&mut self) -> u64 {
        self.settle_lowest(self.count.into())
    }

    /// Forgets all gaps, which have to be settled.
    pub(super) fn clear(&mut self) {
        (self.count, self.open) = (0, 0);
    }

    /// Forgets gaps so far below `next` that their numbers may be given again.
    pub(super) fn expire(&mut self, next: u64, horizon: u64) -> u64 {
        let mut settled = 0;
        while self.count > 0 && u64::from((next as u32).wrapping_sub(self.gaps[0].start)) > horizon.min(HORIZON) {
            settled += self.settle_lowest(1);
            self.remove(0);
        }
        settled
    }

    /// Fills what an interval covers of the gaps, all of which lies below `next`.
    pub(super) fn fill(&mut self, next: u64, start: u64, length: u64) -> Filled {
        let mut filled = Filled::default();
        // As distances below `next`, which grow downwards.
        let (high, low) = (next.wrapping_sub(start), next.wrapping_sub(start.wrapping_add(length)));
        let mut place = usize::from(self.count);
        while place > 0 {
            place -= 1;
            let gap = self.gaps[place];
            let top = u64::from((next as u32).wrapping_sub(gap.start));
            // Once the stream was found to stand lower (`stand_at`), a gap may end above `next`.
            let bottom = top.saturating_sub(gap.length.into());
            if bottom >= high {
                break;
            }
            let (from, to) = (top.min(high), bottom.max(low));
            if from <= to {
                continue;
            }
            let part = if gap.is_settled { &mut filled.settled } else { &mut filled.open };
            *part += from - to;
            let (below, above) = ((top - from) as u32, (to - bottom) as u32);
            let end = gap.start.wrapping_add(gap.length);
            match (below, above) {
                (0, 0) => self.remove(place),
                (below, 0) => self.gaps[place].length = below,
                (0, above) => (self.gaps[place].start, self.gaps[place].length) = (end.wrapping_sub(above), above),
                (below, above) => {
                    let upper = Gap { start: end.wrapping_sub(above), length: above, ..gap };
                    self.gaps[place].length = below;
                    if usize::from(self.count) == GAPS {
                        filled.pushed_out += self.settle_lowest(1);
                        self.remove(0);
                        // Where it was the lowest itself, its upper part takes its place.
                        match place.checked_sub(1) {
                            Some(lower) => place = lower,
                            None => {
                                self.insert(0, upper);
                                continue;
                            }
                        }
                    }
                    self.insert(place + 1, upper);
                }
            }
        }
        filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(numbers: u64) -> Filled {
        Filled { open: numbers, ..Filled::default() }
    }

    #[test]
    fn a_gap_is_filled_from_either_end_and_from_the_middle() {
        let mut gaps = Gaps::NONE;
        assert_eq!(gaps.open(100, 50, 1), 0);
        assert_eq!(gaps.fill(100, 50, 10), open(10));
        assert_eq!(gaps.fill(100, 90, 10), open(10));
        assert_eq!(gaps.fill(100, 70, 5), open(5));
        assert_eq!(gaps.fill(100, 70, 5), Filled::default(), "it is there");
        assert_eq!(gaps.fill(100, 40, 60), open(25), "the rest, in two pieces");
        assert!(!gaps.has_open());
        assert_eq!(gaps.settle_all(), 0);
    }

    #[test]
    fn a_gap_settles_when_enough_datagrams_have_passed_and_is_taken_back_by_what_comes_late() {
        let mut gaps = Gaps::NONE;
        gaps.open(10, 3, 0);
        gaps.open(30, 2, 20);
        assert_eq!(gaps.settle_older(WINDOW), 0);
        assert_eq!(gaps.settle_older(WINDOW + 1), 3);
        assert_eq!(gaps.settle_older(WINDOW + 1), 0, "once");
        assert_eq!(gaps.fill(100, 8, 1), Filled { settled: 1, ..Filled::default() });
        assert_eq!((gaps.sweep(), gaps.sweep()), (0, 2), "time settles, too");
    }

    #[test]
    fn the_lowest_gap_makes_room_and_one_far_below_expires() {
        let mut gaps = Gaps::NONE;
        let settled: u64 = (0..GAPS as u64 + 5).map(|gap| gaps.open(10 * gap + 10, 2, 0)).sum();
        assert_eq!(settled, 10);
        assert_eq!(gaps.fill(10_000, 8, 2), Filled::default(), "it is forgotten");
        assert_eq!(gaps.fill(10_000, 58, 2), open(2));
        assert_eq!(gaps.expire(1 << 31, u64::MAX), 2 * (GAPS as u64 - 1));
        assert_eq!(gaps.count, 0);
    }

    #[test]
    fn a_gap_that_ends_above_the_next_number_is_filled_as_far_as_it_lies_below() {
        let mut gaps = Gaps::NONE;
        gaps.open(100, 10, 0);
        assert_eq!(gaps.fill(95, 90, 1), open(1));
    }
}
