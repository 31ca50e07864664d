//! Payload sizes: one, a range, or the mix that routers are tested with.

use super::payload::PAYLOAD_MAX;
use udpd_base::text::advice::ValueAdvice;

/// The simple IMIX: frames of 64, 594 and 1518 bytes, 7 to 4 to 1, as payloads over IPv4 and Ethernet, interleaved.
const IMIX: [usize; 12] = [18, 548, 18, 18, 548, 18, 1472, 18, 548, 18, 548, 18];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sizes {
    Fixed(usize),
    /// Evenly spread from the first to the last, both included.
    Range(usize, usize),
    /// 18, 548 and 1,472 bytes, 7 to 4 to 1.
    Imix,
}

impl Sizes {
    /// From `"64"`, `"64:1400"` or `"imix"`.
    pub fn parse(text: &str) -> Result<Self, ValueAdvice> {
        let number = |part: &str| {
            part.parse::<usize>().ok().filter(|size| *size <= PAYLOAD_MAX).ok_or_else(|| {
                ValueAdvice::new(
                    format!("{part:?} in {text:?} is not a payload size"),
                    format!("write bytes from 0 to {PAYLOAD_MAX}, a range such as \"64:1400\", or \"imix\""),
                )
            })
        };
        match text.split_once(':') {
            _ if text.eq_ignore_ascii_case("imix") => Ok(Self::Imix),
            None => Ok(Self::Fixed(number(text)?)),
            Some((from, to)) => match (number(from)?, number(to)?) {
                (from, to) if from == to => Ok(Self::Fixed(from)),
                (from, to) if from < to => Ok(Self::Range(from, to)),
                (from, to) => Err(ValueAdvice::new(
                    format!("{text:?} is a range from large to small"),
                    format!("write \"{to}:{from}\""),
                )),
            },
        }
    }

    pub fn max(self) -> usize {
        match self {
            Self::Fixed(size) | Self::Range(_, size) => size,
            Self::Imix => 1472,
        }
    }

    pub fn min(self) -> usize {
        match self {
            Self::Fixed(size) | Self::Range(size, _) => size,
            Self::Imix => 18,
        }
    }

    /// Each size, as often as it comes.
    pub fn all(self) -> Vec<usize> {
        match self {
            Self::Fixed(size) => vec![size],
            Self::Range(from, to) => (from..=to).collect(),
            Self::Imix => IMIX.to_vec(),
        }
    }

    /// A source of sizes. The same `seed` gives the same sizes.
    pub fn picker(self, seed: u64) -> Picker {
        // The generator needs a state that is not 0.
        Picker { sizes: self, state: seed | 1, turn: 0 }
    }
}

impl std::fmt::Display for Sizes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fixed(size) => write!(formatter, "{size}"),
            Self::Range(from, to) => write!(formatter, "{from}:{to}"),
            Self::Imix => formatter.write_str("imix"),
        }
    }
}

#[derive(Debug, Clone)]
pub struct Picker {
    sizes: Sizes,
    state: u64,
    turn: usize,
}

impl Picker {
    pub fn pick(&mut self) -> usize {
        match self.sizes {
            Sizes::Fixed(size) => size,
            Sizes::Range(from, to) => from + self.below(to - from + 1),
            Sizes::Imix => {
                let size = IMIX[self.turn];
                self.turn = (self.turn + 1) % IMIX.len();
                size
            }
        }
    }

    /// An evenly spread number below `limit`: xorshift, and the high half of a product instead of a division.
    fn below(&mut self, limit: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        ((u128::from(self.state) * limit as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn counts(sizes: Sizes, picks: usize) -> BTreeMap<usize, usize> {
        let mut picker = sizes.picker(42);
        let mut counts = BTreeMap::new();
        (0..picks).for_each(|_| *counts.entry(picker.pick()).or_default() += 1);
        counts
    }

    #[test]
    fn the_imix_is_seven_to_four_to_one_exactly() {
        assert_eq!(counts(Sizes::Imix, 1200), BTreeMap::from([(18, 700), (548, 400), (1472, 100)]));
    }

    #[test]
    fn a_range_yields_each_of_its_sizes_about_as_often_and_no_other() {
        let counts = counts(Sizes::Range(64, 73), 100_000);
        assert_eq!(counts.keys().copied().collect::<Vec<_>>(), (64..=73).collect::<Vec<_>>());
        assert!(counts.values().all(|count| count.abs_diff(10_000) < 500), "{counts:?}");
    }

    #[test]
    fn sizes_are_read_from_text() {
        assert_eq!(Sizes::parse("64"), Ok(Sizes::Fixed(64)));
        assert_eq!(Sizes::parse("0"), Ok(Sizes::Fixed(0)));
        assert_eq!(Sizes::parse("64:1400"), Ok(Sizes::Range(64, 1400)));
        assert_eq!(Sizes::parse("9:9"), Ok(Sizes::Fixed(9)));
        assert_eq!(Sizes::parse("IMIX"), Ok(Sizes::Imix));
        for sizes in ["64", "64:1400", "imix"] {
            assert_eq!(Sizes::parse(sizes).expect("valid").to_string(), sizes);
        }
        for (text, words) in [("65508", "0 to 65507"), ("1400:64", "write \"64:1400\""), ("", "not a payload size")] {
            let advice = Sizes::parse(text).expect_err(text).to_string();
            assert!(advice.contains(words), "{text}: {advice}");
        }
    }
}
