//! The random numbers of the program in the kernel: a state of 64 bits, and from it flows and sizes.
//!
//! The program and the writer of this crate draw the same numbers in the same order, so that each can tell the frames
//! of the other, one by one.

use crate::spec::Mix;

/// A linear congruential step (Knuth's MMIX); the upper half of the state is what is used.
pub(crate) const MULTIPLIER: u64 = 6_364_136_223_846_793_005;
pub(crate) const INCREMENT: u64 = 1_442_695_040_888_963_407;

/// A source of numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
        (self.0 >> 32) as u32
    }

    /// One of `0..limit`.
    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        ((u64::from(self.next()) * u64::from(limit)) >> 32) as u32
    }
}

/// A share as the number that [`Chance::next`] is below with that probability.
pub(crate) fn threshold(share: f64) -> u64 {
    (share.clamp(0.0, 1.0) * 4_294_967_296.0) as u64
}

/// An entry of an alias table, which draws by unequal chances with two numbers: the entry itself below `threshold`,
/// else `other`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AliasEntry {
    pub(crate) threshold: u32,
    pub(crate) other: u32,
}

/// The table of a Zipf mix (Walker's aliases, filled after Vose).
pub(crate) fn zipf_places(flows: u32, exponent: f64) -> Vec<AliasEntry> {
    let weights: Vec<f64> = (1..=flows).map(|rank| f64::from(rank).powf(-exponent)).collect();
    let mean = weights.iter().sum::<f64>() / f64::from(flows);
    // Each weight as a multiple of the mean: an entry has room for exactly 1.
    let mut shares: Vec<f64> = weights.into_iter().map(|weight| weight / mean).collect();
    let full = |other| AliasEntry { threshold: u32::MAX, other };
    let mut places: Vec<AliasEntry> = (0..flows).map(full).collect();
    let (mut small, mut large): (Vec<u32>, Vec<u32>) = (0..flows).partition(|&flow| shares[flow as usize] < 1.0);
    while let (Some(&poor), Some(&rich)) = (small.last(), large.last()) {
        small.pop();
        let share = shares[poor as usize];
        places[poor as usize] =
            AliasEntry { threshold: u32::try_from(threshold(share)).unwrap_or(u32::MAX), other: rich };
        // The rest of the poor entry is filled from the rich one.
        shares[rich as usize] -= 1.0 - share;
        if shares[rich as usize] < 1.0 {
            large.pop();
            small.push(rich);
        }
    }
    places
}

/// Which flow is next.
#[derive(Clone, Debug)]
pub(crate) enum Flows {
    /// The next flow, and how many rounds there were.
    InTurn { next: u32, round: u64 },
    /// Each flow's next sequence.
    Drawn { mix: Mix, sequences: Vec<u64>, places: Vec<AliasEntry> },
}

impl Flows {
    pub(crate) fn new(mix: Mix, flows: u32) -> Self {
        if is_in_turn(mix, flows) {
            return Self::InTurn { next: 0, round: 0 };
        }
        let places = match mix {
            Mix::Zipf { exponent } => zipf_places(flows, exponent),
            _ => Vec::new(),
        };
        Self::Drawn { mix, sequences: vec![0; flows as usize], places }
    }

    /// The flow of the next frame, and its sequence there.
    pub(crate) fn draw(&mut self, flows: u32, chance: &mut Chance) -> (u32, u64) {
        match self {
            Self::InTurn { next, round } => {
                let drawn = (*next, *round);
                (*next, *round) = if *next + 1 == flows { (0, *round + 1) } else { (*next + 1, *round) };
                drawn
            }
            Self::Drawn { mix, sequences, places } => {
                let flow = match *mix {
                    Mix::Uniform | Mix::RoundRobin => chance.below(flows),
                    Mix::Hot { share } => match u64::from(chance.next()) < threshold(share) {
                        true => 0,
                        false => 1 + chance.below(flows - 1),
                    },
                    Mix::Zipf { .. } => {
                        let place = chance.below(flows);
                        let AliasEntry { threshold, other } = places[place as usize];
                        if chance.next() < threshold { place } else { other }
                    }
                };
                let sequence = sequences[flow as usize];
                sequences[flow as usize] += 1;
                (flow, sequence)
            }
        }
    }
}

/// Whether flows come one after the other, so that each one's sequence need not be remembered.
pub(crate) fn is_in_turn(mix: Mix, flows: u32) -> bool {
    flows == 1 || mix == Mix::RoundRobin
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(mix: Mix, flows: u32, draws: u32) -> Vec<u32> {
        let (mut drawn, mut chance) = (Flows::new(mix, flows), Chance(1));
        let mut counts = vec![0; flows as usize];
        for _ in 0..draws {
            let (flow, sequence) = drawn.draw(flows, &mut chance);
            assert_eq!(sequence, u64::from(counts[flow as usize]), "sequences of a flow have no gaps");
            counts[flow as usize] += 1;
        }
        counts
    }

    #[test]
    fn round_robin_gives_each_flow_its_turn() {
        assert_eq!(counts(Mix::RoundRobin, 3, 10), [4, 3, 3]);
        assert_eq!(counts(Mix::Uniform, 1, 10), [10]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "nothing but arithmetic, and slow there")]
    fn uniform_and_hot_have_the_shares_that_they_are_named_for() {
        for count in counts(Mix::Uniform, 10, 100_000) {
            assert!(count.abs_diff(10_000) < 500, "{count}");
        }
        let hot = counts(Mix::Hot { share: 0.4 }, 11, 100_000);
        assert!(hot[0].abs_diff(40_000) < 500 && hot[1..].iter().all(|count| count.abs_diff(6_000) < 400), "{hot:?}");
        assert_eq!(counts(Mix::Hot { share: 1.0 }, 5, 100), [100, 0, 0, 0, 0]);
        assert_eq!(counts(Mix::Hot { share: 0.0 }, 5, 100)[0], 0);
    }

    #[test]
    #[cfg_attr(miri, ignore = "nothing but arithmetic, and slow there")]
    fn the_table_of_a_zipf_mix_gives_each_flow_its_chance_exactly() {
        for (flows, exponent) in [(1_u32, 1.0), (7, 1.0), (1_000, 1.2), (1_000, 0.0)] {
            let places = zipf_places(flows, exponent);
            let mut chances = vec![0.0; flows as usize];
            for (at, place) in places.iter().enumerate() {
                let own =
                    (f64::from(place.threshold) + f64::from(u8::from(place.threshold == u32::MAX))) / 2_f64.powi(32);
                chances[at] += own / f64::from(flows);
                chances[place.other as usize] += (1.0 - own) / f64::from(flows);
            }
            let whole: f64 = (1..=flows).map(|rank| f64::from(rank).powf(-exponent)).sum();
            for (at, chance) in chances.iter().enumerate() {
                let due = (at as f64 + 1.0).powf(-exponent) / whole;
                assert!((chance - due).abs() < 1e-8, "flow {at} of {flows}: {chance}, not {due}");
            }
        }
        let drawn = counts(Mix::Zipf { exponent: 1.0 }, 100, 100_000);
        assert!(drawn[0].abs_diff(19_277) < 600 && drawn[1].abs_diff(9_638) < 500, "{:?}", &drawn[..2]);
    }
}
