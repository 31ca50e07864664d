//! Which finished files by source are to be compressed: those of the sources that have finished one, and at the start
//! those of all that an earlier run has left.
//!
//! What is kept here are names of paths and not of files; the list of a source says which of its files have no
//! compressed form. So a name that finds no place here loses nothing: once the others are done, all lists are looked
//! through again.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::super::clock::Clock;
use super::super::compress::{Exchanged, Pile, Refusal, Report, list, remove_plain, take_place};
use super::super::name::Name;
use super::super::settings::FileSettings;
use super::super::shelf::Candidate;
use super::annex::{Annex, CLEARINGS_MAX};
use super::walk::Walk;
use udpd_base::codec::Recipe;
use udpd_base::format::boundary::Boundary;

/// The lists of so many sources are read before the keeper looks at what else is to be done.
const LOOKED_AT_ONCE: usize = 64;

/// How soon a sink that is not in force yet is looked at again.
const NOT_IN_FORCE: Duration = Duration::from_secs(1);

/// Those of one consumer.
#[derive(Debug)]
pub(crate) struct SourcePiles {
    pile: Pile,
    boundary: Boundary,
    walk: Walk,
    /// All lists are to be looked through, those from this one on.
    walks_from: Option<usize>,
    /// The first is that of the file that is with the thread, if one is.
    names: VecDeque<Name>,
    /// So many of them have yet to be looked at in this round.
    unseen: usize,
    /// Others have come since it began.
    has_more: bool,
    clock: Clock,
}

impl SourcePiles {
    /// For these paths, with the names that a lane fills in.
    pub(super) fn new<'p>(recipe: Recipe, settings: &FileSettings, paths: impl Iterator<Item = &'p str>) -> Self {
        Self {
            pile: Pile::new(recipe),
            boundary: settings.format.boundary(),
            walk: Walk::new(paths, settings.rotate.every),
            walks_from: Some(0),
            names: VecDeque::new(),
            unseen: 0,
            has_more: false,
            clock: Clock::default(),
        }
    }

    pub(crate) fn recipe(&self) -> Recipe {
        self.pile.recipe
    }

    pub(crate) fn boundary(&self) -> Boundary {
        self.boundary
    }

    /// A source has finished a file.
    pub(crate) fn add(&mut self, name: Name) {
        // Before that the consumer may have had it open.
        self.pile.forgive(|path| name.before_finishing(path).is_some());
        match self.names.len() < CLEARINGS_MAX {
            true => self.names.push_back(name),
            false => self.walks_from = self.walks_from.or(Some(0)),
        }
        self.has_more = true;
        self.pile.note_finished();
    }

    /// The next file to be compressed, unless one is under way.
    pub(crate) fn offer(&mut self, annex: &Annex, now: Instant) -> Option<Candidate> {
        if !self.pile.wants(now) {
            return None;
        }
        if annex.has_missed.swap(false, Ordering::AcqRel) {
            self.walks_from = self.walks_from.or(Some(0));
        }
        if self.names.is_empty()
            && let Some(from) = self.walks_from.take()
        {
            self.names.extend(self.walk.names(from, CLEARINGS_MAX));
            self.walks_from = (self.names.len() == CLEARINGS_MAX).then_some(from + CLEARINGS_MAX);
        }
        if self.unseen == 0 {
            self.unseen = self.names.len();
            self.has_more = false;
        }
        let chosen = self.choose(annex, now);
        annex.ledger.note_uncompressed(self.names.len() as u64);
        chosen
    }

    fn choose(&mut self, annex: &Annex, now: Instant) -> Option<Candidate> {
        let seconds = self.clock.seconds();
        for _ in 0..LOOKED_AT_ONCE {
            let Some(name) = self.names.front().filter(|_| self.unseen > 0) else { break };
            self.unseen -= 1;
            let latch = annex.latch();
            let _latch = latch.lock().unwrap_or_else(PoisonError::into_inner);
            let mut shelf = annex.shelf(name);
            let candidates = shelf.candidates(&[], seconds);
            let are_any = !candidates.is_empty();
            if let Some(file) = self.pile.choose(candidates, now) {
                let path = file.path.clone();
                match shelf.with_free_name(file, self.pile.recipe.method, seconds) {
                    Ok(file) => {
                        // It stays the first, and may have more.
                        self.unseen += 1;
                        self.pile.note_asked();
                        return Some(file);
                    }
                    Err(error) => self.refuse(annex, &path, &Refusal::from(error)),
                }
                return None;
            }
            // One whose files are left alone for a while waits behind the others.
            let name = self.names.pop_front().filter(|_| are_any);
            self.names.extend(name);
        }
        // There may be more in this round, or in the lists that had no place in it.
        if self.unseen > 0 || self.has_more || self.names.is_empty() && self.walks_from.is_some() {
            self.pile.note_finished();
        } else {
            self.pile.choose(Vec::new(), now);
        }
        None
    }

    /// What became of the last.
    pub(crate) fn take_report(&mut self, annex: &Annex, Report { file, outcome, .. }: Report) {
        let Some(name) = self.names.front() else { return };
        let outcome = outcome.and_then(|made| {
            let latch = annex.latch();
            let locked = latch.lock().unwrap_or_else(PoisonError::into_inner);
            list(&mut annex.shelf(name), &file.path, &made)?;
            drop(locked);
            take_place(&made)?;
            let _locked = latch.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(remove_plain(&file.path, &made))
        });
        match outcome {
            Ok(Exchanged { from_bytes, to_bytes }) => {
                self.pile.note_compressed();
                annex.ledger.note_compressed(from_bytes, to_bytes);
            }
            Err(refusal) => self.refuse(annex, &file.path, &refusal),
        }
    }

    fn refuse(&mut self, annex: &Annex, path: &std::path::Path, refusal: &Refusal) {
        if self.pile.note_refused(path, refusal, Instant::now()) {
            annex.ledger.note_compress_failure();
        }
        self.names.rotate_left(usize::from(!self.names.is_empty()));
    }

    /// When there may be one, if nothing else happens.
    pub(crate) fn offers_at(&self, now: Instant, is_in_force: bool) -> Option<Instant> {
        if !is_in_force {
            return Some(now + NOT_IN_FORCE);
        }
        self.pile.looks_at(now)
    }
}
