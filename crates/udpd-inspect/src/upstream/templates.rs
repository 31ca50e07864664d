//! How long the records of IPFIX templates are, of all streams of a listener, in a table of fixed size. A template that
//! finds no place takes another's; exporters repeat theirs every few minutes.

use std::hash::{BuildHasher, RandomState};

use super::convention::Records;
use super::note::Key;

const TEMPLATES: usize = 1 << 15;
const WAYS: usize = 4;

/// What the table takes.
pub(super) const TEMPLATES_BYTES: usize = TEMPLATES * size_of::<Template>();

#[derive(Debug, Clone, Copy, Default)]
struct Template {
    /// Of its stream and its number; 0 is none.
    mark: u64,
    record_bytes: u16,
    is_variable: bool,
    is_options: bool,
}

#[derive(Debug)]
pub(super) struct Templates {
    all: Box<[Template]>,
    hasher: RandomState,
    turn: usize,
}

/// The records of a set.
pub(super) struct Counted {
    pub(super) records: Records,
    pub(super) is_options: bool,
}

impl Templates {
    pub(super) fn new() -> Self {
        Self { all: vec![Template::default(); TEMPLATES].into(), hasher: RandomState::new(), turn: 0 }
    }

    fn ways(&mut self, key: &Key, template: u64) -> (u64, &mut [Template]) {
        let mark = self.hasher.hash_one((key, template)).max(1);
        let first = (mark as usize % (TEMPLATES / WAYS)) * WAYS;
        (mark, &mut self.all[first..first + WAYS])
    }

    pub(super) fn learn(&mut self, key: &Key, template: u64, record_bytes: u16, is_variable: bool, is_options: bool) {
        self.turn = (self.turn + 1) % WAYS;
        let turn = self.turn;
        let (mark, ways) = self.ways(key, template);
        let place = ways.iter().position(|way| way.mark == mark || way.mark == 0).unwrap_or(turn);
        ways[place] = Template { mark, record_bytes, is_variable, is_options };
    }

    /// How many records a set of so many bytes has. Without its template nobody knows more than that there is one.
    pub(super) fn count(&mut self, key: &Key, template: u64, bytes: u16) -> Counted {
        let (mark, ways) = self.ways(key, template);
        let known = ways.iter().find(|way| way.mark == mark && way.record_bytes > 0);
        let most = bytes / known.map_or(1, |known| known.record_bytes);
        let is_exact = known.is_some_and(|known| !known.is_variable);
        let least = if is_exact { most } else { most.min(1) };
        Counted { records: Records { least, most }, is_options: known.is_some_and(|known| known.is_options) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_records_of_a_set_follow_from_its_template_or_have_bounds() {
        let mut templates = Templates::new();
        let key = |stream| Key { source: 9, stream };
        templates.learn(&key(1), 256, 20, false, false);
        templates.learn(&key(1), 257, 12, false, true);
        templates.learn(&key(1), 258, 10, true, false);
        let mut count = |stream, template, bytes| {
            let counted = templates.count(&key(stream), template, bytes);
            (counted.records.least, counted.records.most, counted.is_options)
        };
        assert_eq!(count(1, 256, 103), (5, 5, false), "three bytes are padding");
        assert_eq!(count(1, 257, 12), (1, 1, true));
        assert_eq!(count(1, 258, 100), (1, 10, false));
        assert_eq!(count(1, 259, 100), (1, 100, false));
        assert_eq!(count(2, 256, 100), (1, 100, false), "a template is of one stream alone");
    }
}
