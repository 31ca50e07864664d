//! Logging that cannot stop a receiver: the backend of the `log` crate.
//!
//! A daemon that writes its log itself hangs as soon as its stderr has no reader. Here a log call formats one line,
//! offers it to a bounded queue and returns, whatever the state of stderr; a thread of its own does the writing and
//! may hang as long as it likes. A line that finds the queue full, or that cannot be written, is counted, and once
//! writing works again the log says how many are missing. So the log is either complete or says that it is not.

pub mod limiter;
mod line;
mod writer;

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use log::{LevelFilter, Log, Metadata, Record};

pub use self::line::LogFormat;
use crate::exit::{ExitCode, Failure};
use crate::os::role::ThreadRole;
use crate::os::threads;
use crate::os::threads::ThreadRegistry;
use line::Style;
use writer::{LogMessage, LogWriter};

/// How many lines may wait for the writer. At the length of a usual line that is less than a megabyte.
const QUEUE_LINES: usize = 4096;

/// Lines lost by the logger of this process.
static LINES_LOST: AtomicU64 = AtomicU64::new(0);

/// How many log lines could not be written since the process started.
pub fn lines_lost() -> u64 {
    LINES_LOST.load(Ordering::Relaxed)
}

/// Makes `output` the log of this process. Lines less severe than `level` are not even formatted.
///
/// Fails when the process has a logger already, or cannot have one more thread.
pub fn start(
    level: LevelFilter,
    format: LogFormat,
    output: impl Write + Send + 'static,
    registry: &ThreadRegistry,
) -> Result<Logger, Failure> {
    let (backend, logger) = spawn(level, Style::new(format), output, &LINES_LOST, registry)?;
    log::set_boxed_logger(Box::new(backend)).map_err(|error| {
        Failure::new(ExitCode::Failure, format!("cannot start the log: {error}; this is a bug of udpd"))
    })?;
    log::set_max_level(level);
    Ok(logger)
}

/// Ends the log; held by the code that ends the process.
#[derive(Debug)]
#[must_use = "lines still queued when the process ends are lost unless the logger is finished"]
pub struct Logger {
    queue: Sender<LogMessage>,
}

impl Logger {
    /// Writes what is queued, waiting for it no longer than `limit`. Later lines are counted as lost.
    pub fn finish(self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let (alive, ended) = bounded::<()>(0);
        if self.queue.send_deadline(LogMessage::Finish(alive), deadline).is_ok() {
            // Either answer ends the wait: the writer dropped its end, or the time is over.
            let _ = ended.recv_deadline(deadline);
        }
    }
}

/// The side that log calls see.
struct Backend {
    level: LevelFilter,
    style: Style,
    queue: Sender<LogMessage>,
    lines_lost: &'static AtomicU64,
}

impl Log for Backend {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= self.level
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata())
            && self.queue.try_send(LogMessage::Line(self.style.line(record.level(), *record.args()))).is_err()
        {
            self.lines_lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Does nothing, since it could only wait without a bound; [`Logger::finish`] is the flush that has one.
    fn flush(&self) {}
}

/// Starts the writer and connects a backend to it.
fn spawn(
    level: LevelFilter,
    style: Style,
    output: impl Write + Send + 'static,
    lines_lost: &'static AtomicU64,
    registry: &ThreadRegistry,
) -> Result<(Backend, Logger), Failure> {
    let (queue, lines): (Sender<LogMessage>, Receiver<LogMessage>) = bounded(QUEUE_LINES);
    let writer = LogWriter::new(output, lines, style, lines_lost);
    registry
        .spawn("udpd-log", ThreadRole::Log, move || writer.run())
        .map_err(|error| threads::start_failure("udpd-log", &error))?;
    Ok((Backend { level, style, queue: queue.clone(), lines_lost }, Logger { queue }))
}

#[cfg(test)]
mod tests;
