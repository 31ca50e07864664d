//! The finished files of a path that wait to be compressed, as its keeper sees them: one of them is with the thread at
//! a time, and one that could not be compressed is left alone for a while.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::super::handle::cure;
use super::super::shelf::Candidate;
use super::job::Refusal;
use udpd_base::codec::Recipe;

/// How long nothing is tried after something has failed: the disk is full, or the like.
const PAUSE: Duration = Duration::from_secs(60);

/// How long a file is left alone that could not be compressed, while others are.
const FILE_PAUSE: Duration = Duration::from_secs(600);

/// The same for one that somebody uses, its own consumer perhaps.
const IN_USE_PAUSE: Duration = Duration::from_secs(3);

/// Of so many files that is known; the rest is tried again.
const PAUSED_MAX: usize = 1024;

/// What waits.
#[derive(Debug)]
pub(crate) struct Pile {
    pub recipe: Recipe,
    /// One is with the thread.
    is_asked: bool,
    /// There may be one since it was last looked for.
    may_have: bool,
    /// Nothing is tried before.
    paused: Option<Instant>,
    paused_files: HashMap<PathBuf, Instant>,
    /// What was said of the last failure.
    said: Option<String>,
}

impl Pile {
    pub(crate) fn new(recipe: Recipe) -> Self {
        let paused_files = HashMap::new();
        Self { recipe, is_asked: false, may_have: true, paused: None, paused_files, said: None }
    }

    /// A file was finished.
    pub(crate) fn note_finished(&mut self) {
        self.may_have = true;
    }

    /// What had kept one of these from being compressed may be over.
    pub(crate) fn forgive(&mut self, is_one: impl Fn(&Path) -> bool) {
        self.paused_files.retain(|path, _| !is_one(path));
    }

    /// Whether it is time to look for one.
    pub(crate) fn wants(&mut self, now: Instant) -> bool {
        let is_over = self.paused.take_if(|until| *until <= now).is_some();
        if is_over || self.paused_files.values().any(|until| *until <= now) {
            self.may_have = true;
        }
        self.may_have && !self.is_asked && self.paused.is_none()
    }

    /// When it is to be looked at, if nothing else happens; at once where there may be one.
    pub(crate) fn looks_at(&self, now: Instant) -> Option<Instant> {
        if self.is_asked {
            return None;
        }
        let file = self.paused_files.values().min().copied();
        let more = self.may_have.then_some(now);
        self.paused.or_else(|| [more, file].into_iter().flatten().min())
    }

    /// The first that is not left alone; there is none until the next is finished or a pause is over.
    pub(crate) fn choose(&mut self, candidates: Vec<Candidate>, now: Instant) -> Option<Candidate> {
        self.paused_files.retain(|_, until| *until > now);
        self.may_have = false;
        candidates.into_iter().find(|file| !self.paused_files.contains_key(&file.path))
    }

    /// The thread has it.
    pub(crate) fn note_asked(&mut self) {
        (self.is_asked, self.may_have) = (true, true);
    }

    /// It is back, compressed.
    pub(crate) fn note_compressed(&mut self) {
        self.is_asked = false;
        self.said = None;
    }

    /// It is back as it was; true when that counts as a failure.
    pub(crate) fn note_refused(&mut self, file: &Path, refusal: &Refusal, now: Instant) -> bool {
        self.is_asked = false;
        if self.paused_files.len() < PAUSED_MAX {
            let pause = if matches!(refusal, Refusal::Failed(_)) { FILE_PAUSE } else { IN_USE_PAUSE };
            self.paused_files.insert(file.to_owned(), now + pause);
        }
        let Refusal::Failed(error) = refusal else {
            log::debug!("{} is not compressed now: {refusal}", file.display());
            return false;
        };
        self.paused = Some(now + PAUSE);
        let text = error.to_string();
        if self.said.as_ref() != Some(&text) {
            log::warn!(
                "cannot compress {}: {text}; it stays as it is, and udpd tries again every minute{}",
                file.display(),
                cure(error)
            );
            self.said = Some(text);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use udpd_base::codec::Method;

    fn candidate(name: &str) -> Candidate {
        Candidate { path: PathBuf::from(name), inode: 1, may_be_torn: false }
    }

    #[test]
    fn one_is_asked_for_at_a_time_and_after_a_failure_none_for_a_while() {
        let mut pile = Pile::new(Recipe { method: Method::Gzip, level: 6 });
        let begun = Instant::now();
        let two = || vec![candidate("/a"), candidate("/b")];
        assert!(pile.wants(begun));
        assert_eq!(pile.choose(two(), begun), Some(candidate("/a")));
        pile.note_asked();
        assert!(!pile.wants(begun));
        let refusal = Refusal::Failed(io::ErrorKind::StorageFull.into());
        assert!(pile.note_refused(Path::new("/a"), &refusal, begun));
        assert!(!pile.wants(begun) && pile.looks_at(begun) == Some(begun + PAUSE));
        assert!(pile.wants(begun + PAUSE));
        assert_eq!(pile.choose(two(), begun + PAUSE), Some(candidate("/b")), "the other one first");
        pile.note_asked();
        pile.note_compressed();
        assert!(pile.wants(begun + PAUSE));
        assert_eq!(pile.choose(vec![candidate("/a")], begun + PAUSE), None);
        assert!(!pile.wants(begun + PAUSE), "until something happens");
        assert_eq!(pile.choose(vec![candidate("/a")], begun + FILE_PAUSE), Some(candidate("/a")));
    }
}
