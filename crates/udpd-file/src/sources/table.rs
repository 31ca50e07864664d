//! The known sources, and which of their files are open. The table is allocated for as many sources as the settings
//! allow and never grows. A source stays in it, so invented sources cannot push out real ones.

use std::collections::HashMap;

use super::super::handle::LogHandle;
use super::error_log::FailingEpisodes;
use super::gathered::RecordChain;
use super::key::SourceKey;

/// No source.
const NONE: usize = usize::MAX;

#[derive(Debug)]
pub(super) struct KnownSource {
    pub(super) key: SourceKey,
    /// The records that wait to be written.
    pub(super) chain: RecordChain,
    /// Its file, while that is open.
    pub(super) handle: Option<LogHandle>,
    /// The file that was begun and is not finished, open or not.
    pub(super) begun: Option<BegunFile>,
    /// Its current errors, for the log.
    pub(super) failing: FailingEpisodes,
    /// Its neighbours among the open files, in order of their last write.
    older: usize,
    newer: usize,
}

/// A file that was begun and is not finished.
#[derive(Debug, Clone, Copy)]
pub(super) struct BegunFile {
    /// In seconds since 1970.
    pub(super) at: u64,
    pub(super) inode: u64,
    pub(super) length: u64,
    /// Its length when its path last led to it.
    pub(super) seen_bytes: u64,
    /// At the last check nothing was at its path.
    pub(super) is_displaced: bool,
}

#[derive(Debug)]
pub(super) struct KnownSources {
    by_key: HashMap<SourceKey, usize>,
    sources: Vec<KnownSource>,
    sources_max: usize,
    /// How many of them are overflow files.
    overflows: usize,
    open_max: usize,
    open: usize,
    oldest: usize,
    newest: usize,
}

/// The memory for so many sources. A hash table is at most seven eighths full, and its size is a power of two.
pub(super) fn memory_bytes_max(sources_max: usize) -> usize {
    let slots = (sources_max * 8 / 7 + 1).next_power_of_two();
    sources_max * size_of::<KnownSource>() + slots * (size_of::<(SourceKey, usize)>() + 1)
}

impl KnownSources {
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

    /// The place of a source, and whether it has a file of its own. A source beyond the limit shares the overflow file
    /// of its path.
    pub(super) fn place(&mut self, key: SourceKey) -> (usize, bool) {
        if let Some(&place) = self.by_key.get(&key) {
            return (place, true);
        }
        if self.sources.len() - self.overflows < self.sources_max {
            return (self.add(key), true);
        }
        let overflow = SourceKey::overflow(key.path);
        let known = self.by_key.get(&overflow).copied();
        let place = known.unwrap_or_else(|| {
            self.overflows += 1;
            self.add(overflow)
        });
        (place, false)
    }

    fn add(&mut self, key: SourceKey) -> usize {
        let place = self.sources.len();
        let (chain, failing) = (RecordChain::EMPTY, FailingEpisodes::default());
        self.sources.push(KnownSource { key, chain, handle: None, begun: None, failing, older: NONE, newer: NONE });
        self.by_key.insert(key, place);
        place
    }

    /// Gives a source that has no file yet, and whose key is not another's, this key.
    pub(super) fn change_key(&mut self, place: usize, key: SourceKey) -> bool {
        let source = &mut self.sources[place];
        let is_free = source.begun.is_none() && !self.by_key.contains_key(&key);
        if is_free {
            self.by_key.remove(&source.key);
            source.key = key;
            self.by_key.insert(key, place);
        }
        is_free
    }

    pub(super) fn len(&self) -> usize {
        self.sources.len()
    }

    /// How many have a file of their own.
    pub(super) fn own(&self) -> usize {
        self.sources.len() - self.overflows
    }

    pub(super) fn at(&mut self, place: usize) -> &mut KnownSource {
        &mut self.sources[place]
    }

    pub(super) fn is_open(&self, place: usize) -> bool {
        self.sources[place].handle.is_some()
    }

    /// The source whose file was written longest ago, if the limit of open files is reached.
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

    pub(super) fn note_opened(&mut self, place: usize, handle: LogHandle) {
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
