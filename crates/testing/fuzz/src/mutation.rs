//! Makes a new input of those that are kept.

use seeds::Chance;

use crate::Corpus;

/// Numbers at which code turns.
const NUMBERS: [u64; 12] = [0, 1, 7, 16, 127, 128, 255, 256, 65_535, 1 << 31, u32::MAX as u64, u64::MAX];

/// Chance, and what it works on.
#[derive(Debug)]
pub struct Mutator<'c> {
    chance: Chance,
    corpus: &'c Corpus,
    bytes_max: usize,
}

impl<'c> Mutator<'c> {
    /// The same seed and corpus give the same inputs.
    pub fn new(seed: u64, corpus: &'c Corpus, bytes_max: usize) -> Self {
        Self { chance: Chance::new(seed), corpus, bytes_max }
    }

    /// The next input: one that is kept, with some changes.
    pub fn input(&mut self) -> Vec<u8> {
        let mut bytes = self.kept();
        for _ in 0..=self.chance.below(5) {
            self.change(&mut bytes);
        }
        bytes.truncate(self.bytes_max);
        bytes
    }

    fn kept(&mut self) -> Vec<u8> {
        let Corpus { inputs, others, .. } = self.corpus;
        let place = self.chance.index(inputs.len() + others.len());
        inputs.iter().chain(others).nth(place).map(|(_, bytes)| bytes.clone()).unwrap_or_default()
    }

    /// A part of it, which may be empty.
    fn part(&mut self, length: usize, longest: usize) -> std::ops::Range<usize> {
        let start = self.chance.index(length + 1);
        start..start + self.chance.index((length - start).min(longest) + 1)
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        let at = self.chance.index(bytes.len().max(1));
        match self.chance.below(10) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << self.chance.below(8),
            1 if !bytes.is_empty() => bytes[at] = self.chance.next() as u8,
            2 | 3 => self.put_number(bytes, at),
            4 => drop(bytes.drain(self.part(bytes.len(), 64))),
            5 => {
                let doubled = bytes[self.part(bytes.len(), 64)].to_vec();
                bytes.splice(at.min(bytes.len())..at.min(bytes.len()), doubled);
            }
            6 => {
                // The beginning of one and the end of another.
                let other = self.kept();
                bytes.truncate(at);
                bytes.extend_from_slice(&other[self.part(other.len(), usize::MAX).start..]);
            }
            7 => bytes.truncate(at),
            _ if !self.corpus.words.is_empty() => {
                let word = self.chance.pick(&self.corpus.words).clone();
                let end = if self.chance.happens(1, 2) { at } else { at + word.len() };
                bytes.splice(at.min(bytes.len())..end.min(bytes.len()), word);
            }
            _ => {
                let mut any = vec![0; 1 + self.chance.index(8)];
                self.chance.fill(&mut any);
                bytes.splice(at.min(bytes.len())..at.min(bytes.len()), any);
            }
        }
    }

    /// Writes a number over what is there: such as a length that no longer fits.
    fn put_number(&mut self, bytes: &mut [u8], at: usize) {
        let number = match self.chance.below(3) {
            0 => bytes.len() as u64,
            1 => *self.chance.pick(&NUMBERS),
            _ => self.chance.pick(&NUMBERS).wrapping_add(self.chance.below(9)).wrapping_sub(4),
        };
        let width = 1 << self.chance.below(4);
        let number = if self.chance.happens(1, 2) {
            number.to_be_bytes()[8 - width..].to_vec()
        } else {
            number.to_le_bytes()[..width].to_vec()
        };
        for (byte, new) in bytes.iter_mut().skip(at).zip(number) {
            *byte = new;
        }
    }
}
