//! One stream: its next number, its gaps, and whether a number that does not fit is a loss, a late datagram, a
//! repetition, or a restart of the exporter.
//!
//! Numbers wrap; here they are continued in 64 bits, and only distances from the next one matter. A jump that no clock
//! of the header explains has to be confirmed by a second datagram that follows it, because a damaged or foreign
//! datagram must not count as a loss of millions.

use super::gaps::{Gaps, WINDOW};
use super::header::ExporterClock;

/// How many datagrams may be missing in one gap before a second datagram must confirm the jump.
const TRUSTED_JUMP: u64 = 1000;

/// How much an exporter's clocks may differ between datagrams that overtake each other.
const CLOCK_SLACK_MS: i32 = 1000;

/// How far the uptime must fall to be a restart even where the number fits a gap.
const CERTAIN_RESTART_MS: i32 = 60_000;

/// What the numbers of a protocol allow.
#[derive(Debug, Clone, Copy)]
pub(super) struct SequenceRules {
    bits: u32,
    /// So few numbers that a restart may go on at any of them: without a clock a long jump is a loss or a restart.
    is_narrow: bool,
    /// How many numbers a gap may have.
    ahead_max: u64,
    /// How many numbers a gap may have without a second datagram that confirms it.
    trusted: u64,
    /// How far below the next number a repetition may lie.
    behind_max: u64,
    /// How far below the first number one may lie that was sent earlier and came later.
    before_first: u64,
}

impl SequenceRules {
    /// `scale` is how many numbers a datagram covers at the most, about.
    pub(super) fn new(bits: u32, scale: u64) -> Self {
        let quarter = 1 << (bits - 2).min(40);
        Self {
            bits,
            is_narrow: bits <= 16,
            ahead_max: (2 * quarter - 1).min(1 << 24),
            trusted: (TRUSTED_JUMP * scale).min(quarter - 1),
            behind_max: (TRUSTED_JUMP * scale).min(quarter),
            before_first: (u64::from(WINDOW) * scale).min(quarter),
        }
    }

    /// Whether a jump may be a loss as well as a restart.
    fn is_in_doubt(&self, clock: ExporterClock) -> bool {
        self.is_narrow && clock == ExporterClock::default()
    }

    /// How far `number` is from `place`, by the shorter way round.
    fn distance(&self, number: u64, place: u64) -> i64 {
        let unused = 64 - self.bits;
        (number.wrapping_sub(place) << unused).cast_signed() >> unused
    }
}

/// What arrived: numbers from `number` on.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Arrival {
    pub(super) number: u64,
    pub(super) units: u32,
    /// How many more numbers it may cover at its end or at its beginning, where that is not known.
    pub(super) more_behind: u32,
    pub(super) more_before: u32,
    pub(super) datagrams: u16,
    pub(super) clock: ExporterClock,
}

/// What is counted of a stream, or of all together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct StreamCounts {
    /// Numbers of settled gaps, less what came late.
    pub(super) missing: u64,
    /// Numbers that are missing, or belong to a datagram that covers an unknown number of them.
    pub(super) uncertain: u64,
    pub(super) reordered: u64,
    pub(super) late: u64,
    pub(super) duplicate: u64,
    pub(super) restarts: u64,
}

impl StreamCounts {
    /// Adds what came to `before` until `now`.
    pub(super) fn add_change(&mut self, before: &Self, now: &Self) {
        // What came late takes from the missing.
        self.missing = self.missing.wrapping_add(now.missing.wrapping_sub(before.missing));
        self.uncertain += now.uncertain - before.uncertain;
        self.reordered += now.reordered - before.reordered;
        self.late += now.late - before.late;
        self.duplicate += now.duplicate - before.duplicate;
        self.restarts += now.restarts - before.restarts;
    }
}

/// One stream.
#[derive(Debug, Clone)]
pub(super) struct NumberedStream {
    /// The number that should come next, continued past every wrap.
    next: u64,
    /// The lowest that has come, for as long as one before it may come.
    first: u64,
    datagrams: u16,
    is_young: bool,
    has_restarted: bool,
    clock: ExporterClock,
    /// How many more numbers the highest datagram may cover.
    more: u32,
    /// A jump that waits to be confirmed.
    jump: Option<(u64, u32)>,
    /// Without a clock: how many consecutive numbers had all come before. They are counted as duplicates only when they
    /// end, because they may be the numbers of a restart.
    repeated: u64,
    gaps: Gaps,
}

impl NumberedStream {
    /// A stream that begins with this datagram.
    pub(super) fn new(arrival: &Arrival) -> Self {
        Self {
            next: arrival.number.wrapping_add(arrival.units.into()),
            first: arrival.number,
            datagrams: arrival.datagrams,
            is_young: true,
            has_restarted: false,
            clock: arrival.clock,
            more: arrival.more_behind,
            jump: None,
            repeated: 0,
            gaps: Gaps::NONE,
        }
    }

    /// The first number, and the one behind the last.
    pub(super) fn span(&self) -> (u64, u64) {
        (self.first, self.next)
    }

    pub(super) fn has_open_gaps(&self) -> bool {
        self.gaps.has_open()
    }

    /// A jump waits to be confirmed.
    pub(super) fn has_jump(&self) -> bool {
        self.jump.is_some()
    }

    /// Whether the last numbers had come before and are not counted yet.
    pub(super) fn is_repeating(&self) -> bool {
        self.repeated > 0
    }

    /// Takes what arrived.
    pub(super) fn take(&mut self, rules: &SequenceRules, arrival: &Arrival, counts: &mut StreamCounts) {
        let distance = rules.distance(arrival.number, self.next);
        if distance == 0 {
            self.drop_jump(counts);
            self.advance(rules, 0, arrival, counts);
        } else if self.is_new_start(distance, arrival) {
            self.restart(rules, arrival, counts);
        } else if distance > 0 {
            self.take_ahead(rules, distance.unsigned_abs(), arrival, counts);
        } else {
            self.take_behind(rules, distance.unsigned_abs(), arrival, counts);
        }
    }

    /// Whether the clocks say that the exporter has restarted since the highest number.
    fn is_new_start(&self, distance: i64, arrival: &Arrival) -> bool {
        let (then, now) = (self.clock, arrival.clock);
        let made = then.made_at.zip(now.made_at).map(|(then, now)| now.wrapping_sub(then).cast_signed());
        let up = then.uptime_ms.zip(now.uptime_ms).map(|(then, now)| now.wrapping_sub(then).cast_signed());
        if distance < 0 {
            // Made later than the highest number and numbered before it.
            let is_later = made.map_or(up.is_some_and(|up| up > CLOCK_SLACK_MS), |made| made > 0);
            if is_later {
                return true;
            }
        }
        let Some(fallen) = up.map(i32::saturating_neg).filter(|fallen| *fallen > CLOCK_SLACK_MS) else { return false };
        match made {
            Some(made) => made >= 0,
            None => {
                let below = distance.unsigned_abs();
                let fits = distance < 0 && {
                    let start = self.next.wrapping_sub(below);
                    self.gaps.clone().fill(self.next, start, arrival.units.into()) != Default::default()
                };
                fallen > CERTAIN_RESTART_MS || !fits
            }
        }
    }

    fn restart(&mut self, rules: &SequenceRules, arrival: &Arrival, counts: &mut StreamCounts) {
        self.settle_all(counts);
        if rules.is_in_doubt(arrival.clock) {
            counts.uncertain += arrival.number.wrapping_sub(self.next) & (u64::MAX >> (64 - rules.bits));
        }
        counts.restarts += 1;
        *self = Self { has_restarted: true, ..Self::new(arrival) };
    }

    /// The next number, or one beyond it.
    fn take_ahead(&mut self, rules: &SequenceRules, distance: u64, arrival: &Arrival, counts: &mut StreamCounts) {
        let is_older = self.clock.made_at.zip(arrival.clock.made_at).is_some_and(|(then, now)| now < then);
        if self.has_restarted && self.is_young && is_older {
            // It was sent before the restart.
            counts.late += u64::from(arrival.units);
            return;
        }
        if distance <= rules.trusted {
            self.drop_jump(counts);
            self.advance(rules, distance, arrival, counts);
        } else {
            self.confirm(rules, arrival, counts);
        }
    }

    /// Continues behind a gap of `ahead` numbers.
    fn advance(&mut self, rules: &SequenceRules, ahead: u64, arrival: &Arrival, counts: &mut StreamCounts) {
        let before = self.datagrams;
        self.datagrams = self.datagrams.wrapping_add(arrival.datagrams);
        self.is_young &=
            arrival.datagrams <= WINDOW && u32::from(before) + u32::from(arrival.datagrams) <= WINDOW.into();
        self.next = self.next.wrapping_add(ahead);
        if ahead > 0 {
            let uncertain = ahead.min(u64::from(self.more) + u64::from(arrival.more_before));
            counts.uncertain += uncertain;
            if ahead > uncertain {
                counts.missing += self.gaps.open(self.next, ahead - uncertain, before);
            }
        }
        self.next = self.next.wrapping_add(arrival.units.into());
        self.count_repeated(counts);
        (self.clock, self.more) = (arrival.clock, arrival.more_behind);
        counts.missing += self.gaps.settle_older(self.datagrams);
        counts.missing += self.gaps.expire(self.next, 1 << (rules.bits - 1));
    }

    /// A number below the next: out of order, late, a repetition, or from before the first.
    fn take_behind(&mut self, rules: &SequenceRules, behind: u64, arrival: &Arrival, counts: &mut StreamCounts) {
        let units = u64::from(arrival.units);
        let (start, below) = (self.next.wrapping_sub(behind), units.min(behind));
        let before = self.first.wrapping_sub(start);
        if self.is_young && (1..=rules.before_first).contains(&before) {
            let below = below.min(before);
            if before > below {
                self.gaps.open_below(start.wrapping_add(below), before - below, self.datagrams);
            }
            self.first = start;
            counts.reordered += below;
            if units > below {
                let (number, units) = (arrival.number.wrapping_add(below), (units - below) as u32);
                self.take_behind(rules, behind - below, &Arrival { number, units, ..*arrival }, counts);
            }
            return;
        }
        let filled = self.gaps.fill(self.next, start, below);
        counts.missing += filled.pushed_out;
        let mut repeated = below - filled.open - filled.settled;
        let has_clock = arrival.clock != ExporterClock::default();
        if filled == Default::default() {
            if behind > rules.behind_max {
                self.confirm(rules, arrival, counts);
                return;
            }
            if !has_clock && self.repeated + below > WINDOW.into() {
                // No exporter repeats so much without a new number: these are the numbers of a restart.
                self.repeated = 0;
                self.restart(rules, arrival, counts);
                return;
            }
            if !has_clock {
                self.repeated += std::mem::take(&mut repeated);
            }
        } else {
            self.count_repeated(counts);
        }
        self.drop_jump(counts);
        counts.reordered += filled.open;
        counts.late += filled.settled;
        counts.missing -= filled.settled;
        counts.duplicate += repeated;
        if units > below {
            let rest = Arrival { units: (units - below) as u32, datagrams: 0, ..*arrival };
            self.advance(rules, 0, &rest, counts);
        }
    }

    /// Handles a jump that is too far to be believed of one datagram: another near it confirms it, also one of the same
    /// run.
    fn confirm(&mut self, rules: &SequenceRules, arrival: &Arrival, counts: &mut StreamCounts) {
        if let Some((number, units)) = self.jump {
            let away = rules.distance(arrival.number, number).unsigned_abs();
            if away == 0 && arrival.datagrams <= 1 {
                // The same again.
                counts.duplicate += u64::from(arrival.units);
                return;
            }
            if away <= rules.before_first + u64::from(units) {
                self.jump = None;
                self.jump_to(rules, &Arrival { number, units, datagrams: 1, ..*arrival }, counts);
                self.take(rules, arrival, counts);
                return;
            }
        }
        self.drop_jump(counts);
        match arrival.datagrams {
            0..=1 => self.jump = Some((arrival.number, arrival.units)),
            _ => self.jump_to(rules, arrival, counts),
        }
    }

    /// Continues at a jump that is confirmed.
    fn jump_to(&mut self, rules: &SequenceRules, arrival: &Arrival, counts: &mut StreamCounts) {
        match rules.distance(arrival.number, self.next) {
            ahead @ 1.. if ahead.unsigned_abs() <= rules.ahead_max => {
                let more_before = if rules.is_in_doubt(arrival.clock) { u32::MAX } else { arrival.more_before };
                self.advance(rules, ahead.unsigned_abs(), &Arrival { more_before, ..*arrival }, counts);
            }
            _ => self.restart(rules, arrival, counts),
        }
    }

    /// Ends the wait for a jump to be confirmed: nothing followed it, so it counts as late.
    fn drop_jump(&mut self, counts: &mut StreamCounts) {
        if let Some((_, units)) = self.jump.take() {
            counts.late += u64::from(units);
        }
    }

    /// Counts repeated numbers as duplicates: they were no restart.
    fn count_repeated(&mut self, counts: &mut StreamCounts) {
        counts.duplicate += std::mem::take(&mut self.repeated);
    }

    /// Settles gaps that were open at the last sweep already.
    pub(super) fn sweep(&mut self, counts: &mut StreamCounts) {
        counts.missing += self.gaps.sweep();
    }

    pub(super) fn settle_all(&mut self, counts: &mut StreamCounts) {
        self.drop_jump(counts);
        self.count_repeated(counts);
        counts.missing += self.gaps.settle_all();
        self.gaps.clear();
    }

    /// Sets the next number, without a gap, after it was learnt that numbers mean something else.
    pub(super) fn stand_at(&mut self, rules: &SequenceRules, number: u64) {
        self.next = self.next.wrapping_add_signed(rules.distance(number, self.next));
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
