//! When the keeper offers the next finished file of a path to the compressor: one at a time, and after a failure not
//! before a pause.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::super::handle::cure;
use super::super::retention::CompressCandidate;
use super::CompressError;
use udpd_base::codec::Recipe;

/// The pause of the whole queue after a failure, such as a full disk.
const PAUSE: Duration = Duration::from_secs(60);

/// The pause of one file that could not be compressed, while others are.
const FILE_PAUSE: Duration = Duration::from_secs(600);

/// The same for a file in use, perhaps by its own consumer.
const IN_USE_PAUSE: Duration = Duration::from_secs(3);

/// At most so many files are paused; the others are retried.
const PAUSED_MAX: usize = 1024;

/// The queue of one path.
#[derive(Debug)]
pub(crate) struct CompressQueue {
    pub recipe: Recipe,
    /// The compressor has one file.
    is_asked: bool,
    /// A file may have been added since the last look.
    may_have: bool,
    /// No file is offered before this.
    paused: Option<Instant>,
    paused_files: HashMap<PathBuf, Instant>,
    /// The last failure in the log.
    said: Option<String>,
}

impl CompressQueue {
    pub(crate) fn new(recipe: Recipe) -> Self {
        let paused_files = HashMap::new();
        Self { recipe, is_asked: false, may_have: true, paused: None, paused_files, said: None }
    }

    /// A file was finished.
    pub(crate) fn note_finished(&mut self) {
        self.may_have = true;
    }

    /// Ends the pause of these files.
    pub(crate) fn retry_files(&mut self, is_one: impl Fn(&Path) -> bool) {
        self.paused_files.retain(|path, _| !is_one(path));
    }

    /// Whether to look for a file now.
    pub(crate) fn wants(&mut self, now: Instant) -> bool {
        let is_over = self.paused.take_if(|until| *until <= now).is_some();
        if is_over || self.paused_files.values().any(|until| *until <= now) {
            self.may_have = true;
        }
        self.may_have && !self.is_asked && self.paused.is_none()
    }

    /// When to look for a file, if nothing else happens; at once when there may be one.
    pub(crate) fn checks_at(&self, now: Instant) -> Option<Instant> {
        if self.is_asked {
            return None;
        }
        let file = self.paused_files.values().min().copied();
        let more = self.may_have.then_some(now);
        self.paused.or_else(|| [more, file].into_iter().flatten().min())
    }

    /// The first file that is not paused. If there is none, the next look waits for a finished file or the end of a
    /// pause.
    pub(crate) fn choose(&mut self, candidates: Vec<CompressCandidate>, now: Instant) -> Option<CompressCandidate> {
        self.paused_files.retain(|_, until| *until > now);
        self.may_have = false;
        candidates.into_iter().find(|file| !self.paused_files.contains_key(&file.path))
    }

    /// The compressor has the file.
    pub(crate) fn note_asked(&mut self) {
        (self.is_asked, self.may_have) = (true, true);
    }

    /// The file is compressed.
    pub(crate) fn note_compressed(&mut self) {
        self.is_asked = false;
        self.said = None;
    }

    /// The file was not compressed; returns true when that counts as a failure.
    pub(crate) fn note_refused(&mut self, file: &Path, refusal: &CompressError, now: Instant) -> bool {
        self.is_asked = false;
        if self.paused_files.len() < PAUSED_MAX {
            let pause = if matches!(refusal, CompressError::Failed(_)) { FILE_PAUSE } else { IN_USE_PAUSE };
            self.paused_files.insert(file.to_owned(), now + pause);
        }
        let CompressError::Failed(error) = refusal else {
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

    fn candidate(name: &str) -> CompressCandidate {
        CompressCandidate { path: PathBuf::from(name), inode: 1, may_be_torn: false }
    }

    #[test]
    fn one_is_asked_for_at_a_time_and_after_a_failure_none_for_a_while() {
        let mut queue = CompressQueue::new(Recipe { method: Method::Gzip, level: 6 });
        let begun = Instant::now();
        let two = || vec![candidate("/a"), candidate("/b")];
        assert!(queue.wants(begun));
        assert_eq!(queue.choose(two(), begun), Some(candidate("/a")));
        queue.note_asked();
        assert!(!queue.wants(begun));
        let refusal = CompressError::Failed(io::ErrorKind::StorageFull.into());
        assert!(queue.note_refused(Path::new("/a"), &refusal, begun));
        assert!(!queue.wants(begun) && queue.checks_at(begun) == Some(begun + PAUSE));
        assert!(queue.wants(begun + PAUSE));
        assert_eq!(queue.choose(two(), begun + PAUSE), Some(candidate("/b")), "the other one first");
        queue.note_asked();
        queue.note_compressed();
        assert!(queue.wants(begun + PAUSE));
        assert_eq!(queue.choose(vec![candidate("/a")], begun + PAUSE), None);
        assert!(!queue.wants(begun + PAUSE), "until something happens");
        assert_eq!(queue.choose(vec![candidate("/a")], begun + FILE_PAUSE), Some(candidate("/a")));
    }
}
