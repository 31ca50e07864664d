//! One run of a seed, as the command line and the corpus name it: the seed, how many steps, and which are left out.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

/// A seed and its steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    pub(super) seed: u64,
    pub(super) steps: u64,
    pub(super) skipped: BTreeSet<u64>,
}

impl Replay {
    pub(super) fn whole(seed: u64, steps: u64) -> Self {
        Self { seed, steps, skipped: BTreeSet::new() }
    }

    /// Reads `SEED [STEPS] [!STEP]...`; `steps` where it names none.
    pub(super) fn parse(text: &str, steps: u64) -> Option<Self> {
        let mut words = text.split_whitespace().peekable();
        let mut replay = Self::whole(words.next()?.parse().ok()?, steps);
        if let Some(word) = words.next_if(|word| !word.starts_with('!')) {
            replay.steps = word.parse().ok()?;
        }
        for word in words {
            let mut bounds = word.strip_prefix('!')?.split('-').map(str::parse::<u64>);
            let first = bounds.next()?.ok()?;
            let last = bounds.next().unwrap_or(Ok(first)).ok()?;
            replay.skipped.extend(first..=last);
        }
        Some(replay)
    }

    pub(super) fn skips(&self, step: u64) -> bool {
        self.skipped.contains(&step)
    }

    pub(super) fn without(&self, steps: Range<u64>) -> Self {
        let mut other = self.clone();
        other.skipped.extend(steps);
        other
    }
}

impl fmt::Display for Replay {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.seed, self.steps)?;
        let mut skipped = self.skipped.iter().copied().filter(|step| *step < self.steps).peekable();
        while let Some(first) = skipped.next() {
            let mut last = first;
            while let Some(next) = skipped.next_if_eq(&(last + 1)) {
                last = next;
            }
            match first == last {
                true => write!(formatter, " !{first}")?,
                false => write!(formatter, " !{first}-{last}")?,
            }
        }
        Ok(())
    }
}
