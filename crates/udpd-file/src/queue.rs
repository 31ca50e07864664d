//! Which finished file a thread is offered next, and when: one at a time for each path, so the number of paths bounds
//! what waits at the thread. No queue holds what waits for long: that is every file of the index to which it has not
//! happened yet.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::compress::{CompressError, CompressedSizes};
use super::handle::cure;
use super::retention::WaitingFile;
use udpd_base::ledger::FileLedger;

/// The pause of the whole queue after a failure, such as a full disk.
const PAUSE: Duration = Duration::from_secs(60);

/// The pause of one file that could not be compressed, while others are.
const FILE_PAUSE: Duration = Duration::from_secs(600);

/// The same for a file in use, perhaps by its own consumer.
const IN_USE_PAUSE: Duration = Duration::from_secs(3);

/// At most so many files are paused; the others are retried.
const PAUSED_MAX: usize = 1024;

/// The files of one path that wait for a thread, by which each is compressed or uploaded.
#[derive(Debug)]
pub(crate) struct JobQueue {
    /// The thread behind it has one file.
    is_asked: bool,
    /// A file may have been added since the last look.
    may_have: bool,
    /// No file is offered before this.
    paused: Option<Instant>,
    paused_files: HashMap<PathBuf, Instant>,
    /// The last failure in the log.
    logged: Option<String>,
}

impl JobQueue {
    pub(crate) fn new() -> Self {
        Self { is_asked: false, may_have: true, paused: None, paused_files: HashMap::new(), logged: None }
    }

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
    pub(crate) fn choose(&mut self, candidates: Vec<WaitingFile>, now: Instant) -> Option<WaitingFile> {
        self.paused_files.retain(|_, until| *until > now);
        self.may_have = false;
        candidates.into_iter().find(|file| !self.paused_files.contains_key(&file.path))
    }

    /// The thread behind it has the file.
    pub(crate) fn note_asked(&mut self) {
        (self.is_asked, self.may_have) = (true, true);
    }

    pub(crate) fn note_compressed(&mut self, sizes: CompressedSizes, ledger: &FileLedger) {
        self.is_asked = false;
        self.logged = None;
        ledger.note_compressed(sizes.from_bytes, sizes.to_bytes);
    }

    pub(crate) fn note_refused(&mut self, file: &Path, refusal: &CompressError, now: Instant, ledger: &FileLedger) {
        let pause = if matches!(refusal, CompressError::Failed(_)) { FILE_PAUSE } else { IN_USE_PAUSE };
        self.note_returned(file, now + pause);
        let CompressError::Failed(error) = refusal else {
            return log::debug!("{} is not compressed now: {refusal}", file.display());
        };
        ledger.note_compress_failure();
        self.paused = Some(now + PAUSE);
        let text = error.to_string();
        if self.logged.as_ref() != Some(&text) {
            log::warn!(
                "cannot compress {}: {text}; it stays as it is, and udpd tries again every minute{}",
                file.display(),
                cure(error)
            );
            self.logged = Some(text);
        }
    }

    /// The file was uploaded.
    pub(crate) fn note_uploaded(&mut self) {
        self.is_asked = false;
    }

    /// The thread behind it has the file no longer, and it is not offered again before this.
    pub(crate) fn note_returned(&mut self, file: &Path, until: Instant) {
        self.is_asked = false;
        if self.paused_files.len() < PAUSED_MAX {
            self.paused_files.insert(file.to_owned(), until);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn candidate(name: &str) -> WaitingFile {
        WaitingFile { path: PathBuf::from(name), inode: 1, may_be_torn: false }
    }

    #[test]
    fn one_is_asked_for_at_a_time_and_after_a_failure_none_for_a_while() {
        let mut queue = JobQueue::new();
        let begun = Instant::now();
        let two = || vec![candidate("/a"), candidate("/b")];
        assert!(queue.wants(begun));
        assert_eq!(queue.choose(two(), begun), Some(candidate("/a")));
        queue.note_asked();
        assert!(!queue.wants(begun));
        let refusal = CompressError::Failed(io::ErrorKind::StorageFull.into());
        let ledger = FileLedger::default();
        queue.note_refused(Path::new("/a"), &refusal, begun, &ledger);
        assert!(!queue.wants(begun) && queue.checks_at(begun) == Some(begun + PAUSE));
        assert!(queue.wants(begun + PAUSE));
        assert_eq!(queue.choose(two(), begun + PAUSE), Some(candidate("/b")), "the other one first");
        queue.note_asked();
        queue.note_compressed(CompressedSizes { from_bytes: 9, to_bytes: 3 }, &ledger);
        assert!(queue.wants(begun + PAUSE));
        assert_eq!(queue.choose(vec![candidate("/a")], begun + PAUSE), None);
        assert!(!queue.wants(begun + PAUSE), "until something happens");
        assert_eq!(queue.choose(vec![candidate("/a")], begun + FILE_PAUSE), Some(candidate("/a")));
        let counts = FileLedger::sum([&ledger].into_iter()).counts;
        assert_eq!((counts.compress_failures, counts.compressed, counts.compressed_to_bytes), (1, 1, 3));
    }
}
