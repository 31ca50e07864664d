//! An exporter and a network for tests: losses, repetitions and delays are drawn from a seed, and an independent model
//! says from the set of what arrived what must be counted.

use std::collections::BTreeMap;

/// Numbers that look random and are the same in every run.
#[derive(Debug, Clone)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// What the network does.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Network {
    pub(super) lost_percent: u64,
    pub(super) repeated_percent: u64,
    /// By how many places a datagram may come later.
    pub(super) delay_max: u64,
}

/// A datagram on its way: the first number that it covers, before any wrap, and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SentDatagram {
    pub(super) number: u64,
    pub(super) units: u64,
    /// When it was sent, in datagrams since the exporter started.
    pub(super) order: u64,
}

/// What must be counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Truth {
    pub(super) missing: u64,
    pub(super) duplicate: u64,
}

/// `count` datagrams of up to `units_max` numbers each, from `first` on.
pub(super) fn sent(first: u64, count: u64, units_max: u64, random: &mut Random) -> Vec<SentDatagram> {
    let mut number = first;
    let mut one = |order| {
        let units = 1 + random.below(units_max);
        number += units;
        SentDatagram { number: number - units, units, order }
    };
    (0..count).map(&mut one).collect()
}

impl Network {
    /// What arrives of that, in order of arrival. The first and the last always do.
    pub(super) fn carry(&self, sent: &[SentDatagram], random: &mut Random) -> Vec<SentDatagram> {
        let mut under_way: BTreeMap<(u64, u64), SentDatagram> = BTreeMap::new();
        for (place, datagram) in sent.iter().enumerate() {
            let is_end = place == 0 || place + 1 == sent.len();
            if !is_end && random.percent(self.lost_percent) {
                continue;
            }
            for _ in 0..1 + u64::from(random.percent(self.repeated_percent)) {
                let delay = random.below(self.delay_max + 1);
                under_way.insert((place as u64 + delay, under_way.len() as u64), *datagram);
            }
        }
        under_way.into_values().collect()
    }
}

/// From the set of what arrived, without any order: what lies between the lowest and the highest and is not there, and
/// what is there twice.
pub(super) fn truth(arrived: &[SentDatagram]) -> Truth {
    let mut once: BTreeMap<u64, u64> = BTreeMap::new();
    let mut duplicate = 0;
    for datagram in arrived {
        if once.insert(datagram.number, datagram.units).is_some() {
            duplicate += datagram.units;
        }
    }
    let covered: u64 = once.values().sum();
    let lowest = once.first_key_value().map_or(0, |(number, _)| *number);
    let highest = once.last_key_value().map_or(0, |(number, units)| number + units);
    Truth { missing: highest - lowest - covered, duplicate }
}
