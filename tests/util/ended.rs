//! A daemon that has ended: how, what it logged, its last ledger and its files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use serde_json::Value;

use super::ledger::{assert_closed, count, listener, sink};

/// How a daemon ended, and what it left.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// All that it wrote to stderr.
    pub(crate) stderr: String,
    /// All that it wrote to stdout, where that was a file of the test.
    pub(crate) stdout: Vec<u8>,
    /// From the signal to the exit.
    pub(crate) elapsed: Duration,
    /// What it left in `stats_on_exit`; null when it wrote none.
    pub(crate) ledger: Value,
    /// Its directory, with the files that it wrote.
    pub(crate) directory: PathBuf,
    /// Removes the directory in the end, where no other daemon follows in it.
    pub(crate) owner: Option<tempfile::TempDir>,
}

/// The ledger that a daemon left in this file.
pub(crate) fn last_ledger(file: &Path) -> Value {
    std::fs::read(file).map_or(Value::Null, |json| serde_json::from_slice(&json).expect("stats_on_exit is JSON"))
}

/// The files of a directory whose names begin so, with what is in them.
pub(crate) fn files(directory: &Path, prefix: &str) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let files = entries.flatten().filter(|entry| entry.path().is_file());
    let named = files.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()));
    let wanted = named.filter(|(name, _)| name.starts_with(prefix));
    wanted.map(|(name, path)| (name, std::fs::read(path).expect("readable"))).collect()
}

/// All that is in the files of a directory whose names begin so.
pub(crate) fn contents(directory: &Path, prefix: &str) -> Vec<u8> {
    files(directory, prefix).into_values().flatten().collect()
}

impl Ended {
    /// Checks that it ended with success and that its ledger closes over `sent`.
    #[track_caller]
    pub(crate) fn closed(self, sent: u64) -> Self {
        assert!(self.status.success(), "{}: {}", self.status, self.stderr);
        assert_closed(&self.ledger, sent);
        self
    }

    /// The same over all that it received, without a drop of the kernel; returns how many those are.
    #[track_caller]
    pub(crate) fn received(&self) -> u64 {
        assert!(self.status.success(), "{}: {}", self.status, self.stderr);
        assert_eq!(count(self.listener(), "kernel_dropped"), 0, "{:#}", self.ledger);
        assert_closed(&self.ledger, count(self.listener(), "received"));
        count(self.listener(), "received")
    }

    /// The first listener in its ledger.
    pub(crate) fn listener(&self) -> &Value {
        listener(&self.ledger)
    }

    /// The first sink of that.
    pub(crate) fn sink(&self) -> &Value {
        sink(&self.ledger)
    }

    /// What the process before it may have lost, as it says in its ledger.
    pub(crate) fn before(&self) -> &Value {
        &self.ledger["before"]
    }

    /// How often it logged these words.
    pub(crate) fn times(&self, words: &str) -> usize {
        self.stderr.matches(words).count()
    }

    /// Checks how often it logged these words.
    #[track_caller]
    pub(crate) fn assert_logged(&self, words: &str, times: usize) {
        assert_eq!(self.times(words), times, "{words:?} in {}", self.stderr);
    }

    /// Checks that it logged all of these words.
    #[track_caller]
    pub(crate) fn logged(&self, words: &[&str]) {
        words.iter().for_each(|words| assert!(self.times(words) > 0, "{words:?} is missing in {}", self.stderr));
    }

    /// The lines of its log with these words.
    pub(crate) fn lines(&self, words: &str) -> Vec<&str> {
        self.stderr.lines().filter(|line| line.contains(words)).collect()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// What is in a file that it wrote.
    #[track_caller]
    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    #[track_caller]
    pub(crate) fn text(&self, name: &str) -> String {
        String::from_utf8(self.read(name)).expect("text")
    }
}
