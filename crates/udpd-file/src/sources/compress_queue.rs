//! Which finished files by source to compress: those of sources that have finished one, and at the start those of all
//! sources that an earlier run has left.
//!
//! The queue holds names of paths, not of files; the index of a source tells which of its files have no compressed
//! form. So nothing is lost when the queue is full: when it is empty, all indexes are searched again.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::super::clock::WallClock;
use super::super::compress::{
    CompressError, CompressQueue, CompressReport, CompressedSizes, list, remove_plain, take_place,
};
use super::super::name::FileName;
use super::super::retention::CompressCandidate;
use super::super::settings::FileSettings;
use super::existing::IndexFinder;
use super::worker::{FINISHED_MAX, SourceFilesWorker};
use udpd_base::codec::Recipe;
use udpd_base::format::boundary::Boundary;

/// How many indexes are read before the keeper handles other requests.
const READ_AT_ONCE: usize = 64;

/// The pause before the next look at a sink whose pipeline does not receive yet.
const NOT_IN_FORCE: Duration = Duration::from_secs(1);

/// The queue of one consumer.
#[derive(Debug)]
pub(crate) struct SourceCompressQueue {
    queue: CompressQueue,
    boundary: Boundary,
    finder: IndexFinder,
    /// Search the indexes from this number on.
    scans_from: Option<usize>,
    /// The first is that of the file at the compressor, if there is one.
    names: VecDeque<FileName>,
    /// How many of them this round has yet to look at.
    unseen: usize,
    /// Names were added since the round began.
    has_more: bool,
    clock: WallClock,
}

impl SourceCompressQueue {
    /// For these paths, with the placeholders of a lane filled in.
    pub(super) fn new<'p>(recipe: Recipe, settings: &FileSettings, paths: impl Iterator<Item = &'p str>) -> Self {
        Self {
            queue: CompressQueue::new(recipe),
            boundary: settings.format.boundary(),
            finder: IndexFinder::new(paths, settings.rotate.every),
            scans_from: Some(0),
            names: VecDeque::new(),
            unseen: 0,
            has_more: false,
            clock: WallClock::default(),
        }
    }

    pub(crate) fn recipe(&self) -> Recipe {
        self.queue.recipe
    }

    pub(crate) fn boundary(&self) -> Boundary {
        self.boundary
    }

    /// A source has finished a file.
    pub(crate) fn add(&mut self, name: FileName) {
        // A pause may have come from the consumer having the file open.
        self.queue.retry_files(|path| name.before_finishing(path).is_some());
        match self.names.len() < FINISHED_MAX {
            true => self.names.push_back(name),
            false => self.scans_from = self.scans_from.or(Some(0)),
        }
        self.has_more = true;
        self.queue.note_finished();
    }

    /// The next file to compress, unless one is being compressed.
    pub(crate) fn offer(&mut self, worker: &SourceFilesWorker, now: Instant) -> Option<CompressCandidate> {
        if !self.queue.wants(now) {
            return None;
        }
        if worker.has_overflowed.swap(false, Ordering::AcqRel) {
            self.scans_from = self.scans_from.or(Some(0));
        }
        if self.names.is_empty()
            && let Some(from) = self.scans_from.take()
        {
            self.names.extend(self.finder.names(from, FINISHED_MAX));
            self.scans_from = (self.names.len() == FINISHED_MAX).then_some(from + FINISHED_MAX);
        }
        if self.unseen == 0 {
            self.unseen = self.names.len();
            self.has_more = false;
        }
        let chosen = self.choose(worker, now);
        worker.ledger.note_uncompressed(self.names.len() as u64);
        chosen
    }

    fn choose(&mut self, worker: &SourceFilesWorker, now: Instant) -> Option<CompressCandidate> {
        let seconds = self.clock.seconds();
        for _ in 0..READ_AT_ONCE {
            let Some(name) = self.names.front().filter(|_| self.unseen > 0) else { break };
            self.unseen -= 1;
            let files_lock = worker.files_lock();
            let _files_lock = files_lock.lock().unwrap_or_else(PoisonError::into_inner);
            let mut retention = worker.retention(name);
            let candidates = retention.candidates(&[], seconds);
            let are_any = !candidates.is_empty();
            if let Some(file) = self.queue.choose(candidates, now) {
                let path = file.path.clone();
                match retention.with_free_name(file, self.queue.recipe.method, seconds) {
                    Ok(file) => {
                        // Its name stays the first, because it may have more files.
                        self.unseen += 1;
                        self.queue.note_asked();
                        return Some(file);
                    }
                    Err(error) => self.refuse(worker, &path, &CompressError::from(error)),
                }
                return None;
            }
            // A name whose files are all paused waits behind the others.
            let name = self.names.pop_front().filter(|_| are_any);
            self.names.extend(name);
        }
        // There may be more in this round, or in indexes that did not fit into the queue.
        if self.unseen > 0 || self.has_more || self.names.is_empty() && self.scans_from.is_some() {
            self.queue.note_finished();
        } else {
            self.queue.choose(Vec::new(), now);
        }
        None
    }

    /// Takes the outcome of the last compression.
    pub(crate) fn take_report(
        &mut self,
        worker: &SourceFilesWorker,
        CompressReport { file, outcome, .. }: CompressReport,
    ) {
        let Some(name) = self.names.front() else { return };
        let outcome = outcome.and_then(|made| {
            let files_lock = worker.files_lock();
            let locked = files_lock.lock().unwrap_or_else(PoisonError::into_inner);
            list(&mut worker.retention(name), &file.path, &made)?;
            drop(locked);
            take_place(&made)?;
            let _locked = files_lock.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(remove_plain(&file.path, &made))
        });
        match outcome {
            Ok(CompressedSizes { from_bytes, to_bytes }) => {
                self.queue.note_compressed();
                worker.ledger.note_compressed(from_bytes, to_bytes);
            }
            Err(refusal) => self.refuse(worker, &file.path, &refusal),
        }
    }

    fn refuse(&mut self, worker: &SourceFilesWorker, path: &std::path::Path, refusal: &CompressError) {
        if self.queue.note_refused(path, refusal, Instant::now()) {
            worker.ledger.note_compress_failure();
        }
        self.names.rotate_left(usize::from(!self.names.is_empty()));
    }

    /// When to ask for the next file, if nothing else happens.
    pub(crate) fn offers_at(&self, now: Instant, is_in_force: bool) -> Option<Instant> {
        if !is_in_force {
            return Some(now + NOT_IN_FORCE);
        }
        self.queue.checks_at(now)
    }
}
