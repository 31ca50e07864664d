//! What the log hears of files by source that cannot be written, finished or opened. Ten thousand of them fail together
//! where a disk is full, and one of them may fail once a second for a week: a kind of trouble is said when it begins,
//! at most once a minute while it lasts, and once when it is over. The ledger goes on counting meanwhile.

use std::time::{Duration, Instant};

/// No kind of trouble begins to be said, or is said once more, sooner than this after the last time.
const AGAIN: Duration = Duration::from_secs(60);

/// What goes wrong with the file of one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// It cannot be opened or written.
    Writing,
    /// It cannot be given the name of a finished one.
    Finishing,
}

/// In which spell of each kind the file of a source has failed and has not fared better since; 0: in none.
pub(super) type Failing = [u32; 2];

/// One kind of trouble, from its beginning until it is over.
#[derive(Debug)]
struct Spell {
    /// The number of the next one, or of this one.
    number: u32,
    /// How many sources have yet to fare better.
    sources: usize,
    /// When something last went wrong, while it is not over.
    last: Option<Instant>,
    /// When it was last said that something goes wrong.
    said: Option<Instant>,
    /// The end is to be said because the beginning was.
    is_known: bool,
    /// How often it went wrong since that.
    times: u64,
}

impl Spell {
    const fn new() -> Self {
        Self { number: 1, sources: 0, last: None, said: None, is_known: false, times: 0 }
    }

    /// Something went wrong; how often it has since the log last heard of it, if it is to hear now.
    fn fail(&mut self, now: Instant) -> Option<u64> {
        self.last = Some(now);
        self.times += 1;
        if self.said.is_some_and(|said| now.duration_since(said) < AGAIN) {
            return None;
        }
        (self.said, self.is_known) = (Some(now), true);
        Some(std::mem::take(&mut self.times))
    }

    /// Something went well: it is over where no source is left, or where nothing has failed for as long as the log
    /// would be silent. True when that is to be said.
    fn succeed(&mut self, now: Instant) -> bool {
        let Some(last) = self.last else { return false };
        if self.sources > 0 && now.duration_since(last) < AGAIN {
            return false;
        }
        // Those that are left belong to a spell of before.
        (self.number, self.sources, self.last) = (self.number.wrapping_add(1).max(1), 0, None);
        std::mem::take(&mut self.is_known)
    }
}

/// Decides what is said of the files of one consumer.
#[derive(Debug)]
pub(super) struct Voice {
    faults: [Spell; 2],
    shortage: Spell,
    /// How many datagrams and bytes could not be written, and the log has not said that it is over.
    lost: (u64, u64),
}

impl Voice {
    pub(super) const fn new() -> Self {
        Self { faults: [Spell::new(), Spell::new()], shortage: Spell::new(), lost: (0, 0) }
    }

    /// The file of a source fails; how often that has happened since the log last heard of it, if it is to hear now.
    pub(super) fn fail(&mut self, fault: Fault, failing: &mut Failing, now: Instant) -> Option<u64> {
        let spell = &mut self.faults[fault as usize];
        if std::mem::replace(&mut failing[fault as usize], spell.number) != spell.number {
            spell.sources += 1;
        }
        spell.fail(now)
    }

    /// The file of a source fares well.
    pub(super) fn fare_well(&mut self, fault: Fault, failing: &mut Failing) {
        let spell = &mut self.faults[fault as usize];
        if std::mem::take(&mut failing[fault as usize]) == spell.number {
            spell.sources -= 1;
        }
    }

    /// Nothing failed in a round in which something was tried; true when the end of the trouble is to be said.
    pub(super) fn is_over(&mut self, fault: Fault, now: Instant) -> bool {
        self.faults[fault as usize].succeed(now)
    }

    /// There was no descriptor for a file; as above.
    pub(super) fn lack(&mut self, now: Instant) -> Option<u64> {
        // Nobody can say of one file that it does not lack any more what all of them share.
        self.shortage.sources = 1;
        self.shortage.fail(now)
    }

    /// The same of descriptors.
    pub(super) fn has_enough(&mut self, now: Instant) -> bool {
        self.shortage.succeed(now)
    }

    pub(super) fn lose(&mut self, (datagrams, bytes): (u64, u64)) {
        self.lost.0 += datagrams;
        self.lost.1 += bytes;
    }

    /// What was lost, which is said now.
    pub(super) fn take_lost(&mut self) -> (u64, u64) {
        std::mem::take(&mut self.lost)
    }

    /// What was lost while the log did not hear that it is over, at the end; and whether nothing has failed since.
    pub(super) fn last_words(&mut self) -> Option<((u64, u64), bool)> {
        let spell = &self.faults[Fault::Writing as usize];
        let (is_over, is_known) = (spell.last.is_none(), spell.is_known);
        (is_known || self.lost != (0, 0)).then(|| (self.take_lost(), is_over))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_fails_every_second_is_said_once_a_minute_with_a_count_and_once_when_it_is_over() {
        let (mut voice, mut failing, start) = (Voice::new(), Failing::default(), Instant::now());
        let mut said = Vec::new();
        for second in 0..150 {
            let now = start + SECOND * second;
            said.extend(voice.fail(Fault::Finishing, &mut failing, now).map(|times| (second, times)));
            // Another source fares well meanwhile, which says nothing of this one.
            assert!(!voice.is_over(Fault::Finishing, now));
        }
        assert_eq!(said, [(0, 1), (60, 60), (120, 60)]);
        voice.fare_well(Fault::Finishing, &mut failing);
        assert!(voice.is_over(Fault::Finishing, start + SECOND * 150));
        assert!(!voice.is_over(Fault::Finishing, start + SECOND * 151), "once");
    }

    #[test]
    fn what_fails_and_works_in_turn_is_said_no_more_often() {
        let (mut voice, mut failing, start) = (Voice::new(), Failing::default(), Instant::now());
        let (mut said, mut over) = (0, 0);
        for second in 0..600 {
            let now = start + SECOND * second;
            if second % 2 == 0 {
                said += u32::from(voice.fail(Fault::Writing, &mut failing, now).is_some());
                voice.lose((1, 10));
            } else {
                voice.fare_well(Fault::Writing, &mut failing);
                over += u32::from(voice.is_over(Fault::Writing, now));
            }
        }
        assert_eq!((said, over), (10, 10));
        assert_eq!(voice.last_words(), Some(((300, 3000), true)), "nothing is left out");
        assert_eq!(voice.last_words(), None);
    }

    #[test]
    fn a_source_that_never_comes_again_keeps_no_trouble_alive() {
        let (mut voice, start) = (Voice::new(), Instant::now());
        let (mut gone, mut other) = (Failing::default(), Failing::default());
        assert_eq!(voice.fail(Fault::Writing, &mut gone, start), Some(1));
        assert_eq!(voice.fail(Fault::Writing, &mut other, start), None);
        voice.fare_well(Fault::Writing, &mut other);
        assert!(!voice.is_over(Fault::Writing, start + SECOND * 59));
        assert!(voice.is_over(Fault::Writing, start + SECOND * 60));
        // It does come again, when all is over.
        voice.fare_well(Fault::Writing, &mut gone);
        assert_eq!(voice.fail(Fault::Writing, &mut other, start + SECOND * 61), Some(2));
        voice.fare_well(Fault::Writing, &mut other);
        assert!(voice.is_over(Fault::Writing, start + SECOND * 62));
    }

    #[test]
    fn descriptors_are_enough_when_none_was_lacking_for_a_minute() {
        let (mut voice, start) = (Voice::new(), Instant::now());
        assert!(!voice.has_enough(start));
        assert_eq!((voice.lack(start), voice.lack(start)), (Some(1), None));
        assert!(!voice.has_enough(start + SECOND * 59));
        assert!(voice.has_enough(start + SECOND * 60));
    }
}
