//! The finished files of a room are compressed, one after the other, by the thread for that.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::super::compress::{Pile, Refusal, Report, exchange};
use super::super::shelf::Candidate;
use super::Room;
use udpd_base::codec::Recipe;
use udpd_base::format::boundary::Boundary;

/// How soon a sink that is not in force yet is looked at again.
const NOT_IN_FORCE: Duration = Duration::from_secs(1);

impl Room {
    /// The next file to be compressed, and how, unless one is under way.
    pub(crate) fn offer(&mut self, now: Instant) -> Option<(Candidate, Recipe, Boundary)> {
        if self.is_held || !self.prospect.is_in_force.load(Ordering::Acquire) {
            return None;
        }
        if !self.pile.as_mut()?.wants(now) {
            return None;
        }
        let (in_use, seconds) = (self.in_use(), self.clock.seconds());
        let pile = self.pile.as_mut()?;
        let candidates = self.shelf.candidates(&in_use, seconds);
        self.ledger.note_uncompressed(candidates.len() as u64);
        let chosen = pile.choose(candidates, now)?;
        let path = chosen.path.clone();
        match self.shelf.with_free_name(chosen, pile.recipe.method, seconds) {
            Ok(file) => {
                pile.note_asked();
                Some((file, pile.recipe, self.boundary))
            }
            Err(error) => {
                if pile.note_refused(&path, &Refusal::from(error), now) {
                    self.ledger.note_compress_failure();
                }
                None
            }
        }
    }

    /// When there may be one, if nothing else happens.
    pub(crate) fn offers_at(&self, now: Instant) -> Option<Instant> {
        let pile = self.pile.as_ref().filter(|_| !self.is_held)?;
        match self.prospect.is_in_force.load(Ordering::Acquire) {
            true => pile.looks_at(now),
            false => Some(now + NOT_IN_FORCE),
        }
    }

    /// What became of the last.
    pub(crate) fn take_report(&mut self, Report { file, outcome, .. }: Report) {
        let outcome = outcome.and_then(|made| exchange(&mut self.shelf, &file.path, &made));
        match outcome {
            Ok(done) => {
                self.pile.iter_mut().for_each(Pile::note_compressed);
                self.ledger.note_compressed(done.from_bytes, done.to_bytes);
            }
            Err(refusal) => {
                if self.pile.as_mut().is_some_and(|pile| pile.note_refused(&file.path, &refusal, Instant::now())) {
                    self.ledger.note_compress_failure();
                }
            }
        }
    }
}
