//! Which sources there are, and which of their files are open. The table has room for as many as the settings allow and
//! never grows: a source once in it stays, so nobody who invents sources pushes another one out.

use std::collections::HashMap;

use super::super::handle::Handle;
use super::gathered::Chain;
use super::key::Key;
use super::voice::Failing;

/// No source.
const NONE: usize = usize::MAX;

/// What is known of a source's file.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) key: Key,
    /// What waits to be written.
    pub(super) chain: Chain,
    /// Its file, while that is open.
    pub(super) handle: Option<Handle>,
    /// The file that was begun and is not finished, open or not.
    pub(super) begun: Option<Begun>,
    /// What of it fails, for the log.
    pub(super) failing: Failing,
    /// Its neighbours among the open ones, by when they were written.
    older: usize,
    newer: usize,
}

/// A file that is gone on with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Begun {
    /// In seconds since 1970.
    pub(super) at: u64,
    pub(super) inode: u64,
    pub(super) length: u64,
    /// How long it was when it was last seen in its place.
    pub(super) seen_bytes: u64,
    /// It was not in its place when it was last looked for, and nothing was.
    pub(super) is_astray: bool,
}

/// All sources.
#[derive(Debug)]
pub(super) struct Table {
    by_key: HashMap<Key, usize>,
    sources: Vec<Source>,
    sources_max: usize,
    /// How many of them are those of overflow.
    overflows: usize,
    open_max: usize,
    open: usize,
    oldest: usize,
    newest: usize,
}

/// The memory for so many sources. A table of hashes is at most seven eighths full, and twice as large as one that is
/// less than that; a path that is being filled in is short.
pub(super) fn memory_bytes_max(sources_max: usize) -> usize {
    let slots = (sources_max * 8 / 7 + 1).next_power_of_two();
    sources_max * size_of::<Source>() + slots * (size_of::<(Key, usize)>() + 1)
}

impl Table {
    pub(super) fn new(sources_max: usize, paths: usize, open_max: usize) -> Self {
        Self {
            by_key: HashMap::with_capacity(sources_max + paths),
            sources: Vec::with_capacity(sources_max + paths),
            sources_max,
            overflows: 0,
            open_max,
            open: 0,
            oldest: NONE,
            newest: NONE,
        }
    }

    /// The place of a source, and whether it has a file of its own; one more than there may be is with the others of
    /// its path that are too many.
    pub(super) fn place(&mut self, key: Key) -> (usize, bool) {
        if let Some(&place) = self.by_key.get(&key) {
            return (place, true);
        }
        if self.sources.len() - self.overflows < self.sources_max {
            return (self.add(key), true);
        }
        let overflow = Key::overflow(key.path);
        let known = self.by_key.get(&overflow).copied();
        let place = known.unwrap_or_else(|| {
            self.overflows += 1;
            self.add(overflow)
        });
        (place, false)
    }

    fn add(&mut self, key: Key) -> usize {
        let place = self.sources.len();
        let (chain, failing) = (Chain::EMPTY, Failing::default());
        self.sources.push(Source { key, chain, handle: None, begun: None, failing, older: NONE, newer: NONE });
        self.by_key.insert(key, place);
        place
    }

    pub(super) fn len(&self) -> usize {
        self.sources.len()
    }

    /// How many have a file of their own.
    pub(super) fn own(&self) -> usize {
        self.sources.len() - self.overflows
    }

    pub(super) fn at(&mut self, place: usize) -> &mut Source {
        &mut self.sources[place]
    }

    pub(super) fn is_open(&self, place: usize) -> bool {
        self.sources[place].handle.is_some()
    }

    /// The source whose file was written longest ago, when no more may be open than are.
    pub(super) fn oldest_if_full(&self) -> Option<usize> {
        (self.open >= self.open_max && self.oldest != NONE).then_some(self.oldest)
    }

    /// The source whose file was written longest ago.
    pub(super) fn oldest(&self) -> Option<usize> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    pub(super) fn open(&self) -> usize {
        self.open
    }

    pub(super) fn note_opened(&mut self, place: usize, handle: Handle) {
        debug_assert!(!self.is_open(place), "it is closed before another is opened");
        self.sources[place].handle = Some(handle);
        self.open += 1;
        self.link(place);
    }

    pub(super) fn note_written(&mut self, place: usize) {
        if self.newest != place && self.is_open(place) {
            self.unlink(place);
            self.link(place);
        }
    }

    /// Closes its file, if that is open.
    pub(super) fn close(&mut self, place: usize) {
        if self.sources[place].handle.take().is_some() {
            self.open -= 1;
            self.unlink(place);
        }
    }

    fn link(&mut self, place: usize) {
        let before = std::mem::replace(&mut self.newest, place);
        (self.sources[place].older, self.sources[place].newer) = (before, NONE);
        match before {
            NONE => self.oldest = place,
            before => self.sources[before].newer = place,
        }
    }

    fn unlink(&mut self, place: usize) {
        let (older, newer) = (self.sources[place].older, self.sources[place].newer);
        match older {
            NONE => self.oldest = newer,
            older => self.sources[older].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.sources[newer].older = older,
        }
    }
}
