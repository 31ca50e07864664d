//! The model of a simulated network: what of each life of an exporter reached the host, as plain sets. It knows nothing
//! of windows, gaps or clocks.

use std::collections::BTreeMap;
use std::iter::Sum;

/// A datagram: the life of its exporter that sent it, its first number without any wrap, and how many it covers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived {
    pub(super) life: usize,
    pub(super) number: u64,
    pub(super) units: u64,
}

/// From one start of an exporter to the next.
#[derive(Debug, Default)]
pub(super) struct Life {
    pub(super) sent: u64,
    /// How many datagrams the tracker could take.
    pub(super) noted: u64,
    /// How many gaps its numbers have, at most.
    pub(super) holes: u64,
    /// What reached the host, dropped there or not, and what of it the tracker has taken.
    reached: BTreeMap<u64, u64>,
    taken: BTreeMap<u64, u64>,
    duplicate: u64,
    /// Numbers that came after a higher one.
    behind: u64,
    /// The tracker may not have seen where it begins and ends.
    is_blurred: bool,
}

/// What must be counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Truth {
    /// Between the lowest and the highest number, and never at the host.
    pub(super) missing: u64,
    /// The same where the tracker must have seen both ends.
    pub(super) missing_surely: u64,
    /// At the host, and never with the tracker.
    pub(super) here: u64,
    pub(super) duplicate: u64,
    pub(super) behind: u64,
}

impl Life {
    /// It reaches the host.
    pub(super) fn reach(&mut self, arrived: &Arrived) {
        self.reached.insert(arrived.number, arrived.units);
    }

    /// The tracker takes it.
    pub(super) fn note(&mut self, arrived: &Arrived) {
        self.noted += 1;
        let is_behind = self.taken.last_key_value().is_some_and(|(highest, _)| arrived.number < *highest);
        if self.taken.insert(arrived.number, arrived.units).is_some() {
            self.duplicate += arrived.units;
        } else if is_behind {
            self.behind += arrived.units;
        }
    }

    /// The tracker did not see everything.
    pub(super) fn blur(&mut self) {
        self.is_blurred = true;
    }

    /// So many have come that none can come from below the first any more.
    pub(super) fn is_settled(&self) -> bool {
        self.reached.len() > 64
    }

    pub(super) fn lowest(&self) -> Option<u64> {
        self.taken.first_key_value().map(|(number, _)| *number)
    }

    pub(super) fn truth(&self) -> Truth {
        let (Some((lowest, _)), Some((highest, units))) = (self.taken.first_key_value(), self.taken.last_key_value())
        else {
            return Truth::default();
        };
        let sum = |of: &BTreeMap<u64, u64>| of.range(lowest..=highest).map(|(_, units)| units).sum::<u64>();
        let (reached, taken) = (sum(&self.reached), sum(&self.taken));
        let missing = highest + units - lowest - reached;
        let missing_surely = if self.is_blurred { 0 } else { missing };
        Truth { missing, missing_surely, here: reached - taken, duplicate: self.duplicate, behind: self.behind }
    }
}

impl Sum for Truth {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            missing: sum.missing + one.missing,
            missing_surely: sum.missing_surely + one.missing_surely,
            here: sum.here + one.here,
            duplicate: sum.duplicate + one.duplicate,
            behind: sum.behind + one.behind,
        })
    }
}
