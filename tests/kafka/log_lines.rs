//! What the program says in its log while a test runs, kept for the test and shown on stderr.

use std::io::Write;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use log::{LevelFilter, Log, Metadata, Record};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Keeper;

impl Log for Keeper {
    /// The reader of the topic has a library of its own, which says when it is at the end.
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        !metadata.target().contains("rdkafka")
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let line = format!("{} {}", record.level(), record.args());
        let _ = writeln!(std::io::stderr(), "     {line}");
        lines().push(line);
    }

    fn flush(&self) {}
}

fn lines() -> MutexGuard<'static, Vec<String>> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins to listen, and forgets what earlier tests have heard.
pub(crate) fn listen() {
    static START: Once = Once::new();
    START.call_once(|| {
        log::set_logger(&Keeper).expect("the only logger of this process");
        log::set_max_level(LevelFilter::Info);
    });
    lines().clear();
}

/// How many lines with this in them were said since.
pub(crate) fn count(part: &str) -> usize {
    lines().iter().filter(|line| line.contains(part)).count()
}

/// How many lines were said since.
pub(crate) fn all() -> usize {
    lines().len()
}
