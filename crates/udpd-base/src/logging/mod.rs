//! Logging that cannot stop a receiver: the backend of the `log` crate.
//!
//! A daemon that writes its log itself hangs as soon as its stderr has no reader. Here a log call formats one line,
//! offers it to a bounded queue and returns, whatever the state of stderr; a thread of its own does the writing and
//! may hang as long as it likes. A line that finds the queue full, or that cannot be written, is counted, and once
//! writing works again the log says how many are missing. So the log is either complete or says that it is not.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use log::{Level, LevelFilter, Log, Metadata, Record};

mod line;

pub use self::line::LogFormat;
use self::line::Style;
use crate::exit::{ExitCode, Failure};
use crate::os::role::ThreadRole;
use crate::os::threads;
use crate::os::threads::ThreadRegistry;
use crate::os::threads::lock;
use crate::seams::clock;

/// How many lines may wait for the writer. At the length of a usual line that is less than a megabyte.
const QUEUE_LINES: usize = 4096;

/// Lines lost by the logger of this process.
static LINES_LOST: AtomicU64 = AtomicU64::new(0);

/// The last line that warned of each sink, and when. It is for those who look at the sink and have no log at hand.
static TROUBLES: Mutex<BTreeMap<String, (f64, String)>> = Mutex::new(BTreeMap::new());

/// More sinks than a configuration has; what is logged of others is not kept.
const TROUBLES_MAX: usize = 1000;

/// The last line that warned of a sink, without its name, and when that was in seconds since 1970.
pub fn last_trouble_of_sink(name: &str) -> Option<(f64, String)> {
    lock(&TROUBLES).get(name).cloned()
}

/// Keeps a line that begins with `sink NAME: `, as all lines of sinks do.
fn keep_trouble(line: &str) {
    let Some((name, text)) = line.strip_prefix("sink ").and_then(|rest| rest.split_once(": ")) else { return };
    let mut troubles = lock(&TROUBLES);
    if troubles.len() < TROUBLES_MAX || troubles.contains_key(name) {
        troubles.insert(name.to_owned(), (clock::seconds_since_1970(), text.chars().take(300).collect()));
    }
}

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
        let deadline = clock::now() + limit;
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
        if record.level() <= Level::Warn && self.enabled(record.metadata()) {
            keep_trouble(&record.args().to_string());
        }
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

// Limits a repeated log line to one or a few a minute, with a count of the lines left out: for what ten thousand files
// may report alike, and what other processes can trigger as often as they like.

/// After a line, the same line is left out for this long.
pub const INTERVAL: Duration = Duration::from_secs(60);

/// Limits one log line, for all that share it.
#[derive(Debug)]
pub struct LogLimiter {
    /// How many lines may be logged within [`INTERVAL`].
    lines_max: u32,
    state: Mutex<LimiterState>,
}

#[derive(Debug, Default)]
struct LimiterState {
    /// When the first line of this interval was logged.
    begun: Option<Instant>,
    /// How many lines were logged since.
    logged: u32,
    /// How many lines were left out since the last one.
    suppressed: u64,
}

impl LimiterState {
    fn is_over(&self, now: Instant) -> bool {
        self.begun.is_none_or(|begun| now.saturating_duration_since(begun) >= INTERVAL)
    }
}

impl Default for LogLimiter {
    fn default() -> Self {
        Self::of(1)
    }
}

impl LogLimiter {
    /// For lines of which so many may be logged within [`INTERVAL`], because they differ.
    pub fn of(lines_max: u32) -> Self {
        Self { lines_max, state: Mutex::default() }
    }

    /// Whether a line would be left out now.
    pub fn suppresses(&self, now: Instant) -> bool {
        let state = lock(&self.state);
        state.logged >= self.lines_max && !state.is_over(now)
    }

    /// How many lines were left out before this one, which is to be logged; `None` when this one is left out too.
    pub fn pass(&self, now: Instant) -> Option<u64> {
        let mut state = lock(&self.state);
        if state.is_over(now) {
            (state.begun, state.logged) = (Some(now), 0);
        }
        if state.logged >= self.lines_max {
            state.suppressed += 1;
            return None;
        }
        state.logged += 1;
        Some(std::mem::take(&mut state.suppressed))
    }

    /// How many lines were left out in an interval that is over, for a line that tells so. Each is counted once.
    pub fn take_suppressed(&self, now: Instant) -> u64 {
        let mut state = lock(&self.state);
        if state.is_over(now) { std::mem::take(&mut state.suppressed) } else { 0 }
    }
}

/// The end of a line that tells how many like it were left out.
pub fn repeats(suppressed: u64) -> String {
    if suppressed > 0 { format!("; {} times since this was last said", suppressed + 1) } else { String::new() }
}

// The thread that writes the log, and the only one that may wait for the log's reader.
//
// A line is given to the output whole, in one call. When a failure cuts a line short, its rest is written before
// anything else, so a reader that comes back never sees two halves joined.

/// How long to leave a full non-blocking output alone. Stderr is non-blocking when another process that shares it made
/// it so; the writer then waits as it would on any other full pipe.
const FULL_OUTPUT_PAUSE: Duration = Duration::from_millis(200);

/// What travels to the writer.
enum LogMessage {
    /// One whole line with its newline.
    Line(Vec<u8>),
    /// Write what is queued, then drop the sender and end.
    Finish(Sender<()>),
}

/// The state of the writing thread.
struct LogWriter<W> {
    output: W,
    lines: Receiver<LogMessage>,
    style: Style,
    lines_lost: &'static AtomicU64,
    /// How many of those the log has admitted to.
    lines_lost_told: u64,
    /// The rest of a line that a failure cut short.
    unfinished: Vec<u8>,
    /// Whether the last attempt failed; the next one then begins with the note.
    failing: bool,
}

impl<W: Write> LogWriter<W> {
    pub(super) fn new(output: W, lines: Receiver<LogMessage>, style: Style, lines_lost: &'static AtomicU64) -> Self {
        Self { output, lines, style, lines_lost, lines_lost_told: 0, unfinished: Vec::new(), failing: false }
    }

    /// Writes until the log is finished or no thread is left that could log.
    pub(super) fn run(mut self) {
        let mut finished = None;
        while finished.is_none()
            && let Ok(message) = threads::blocking(|| self.lines.recv())
        {
            match message {
                LogMessage::Line(line) => self.write_or_count(&line),
                LogMessage::Finish(alive) => finished = Some(alive),
            }
        }
        // Other threads may have logged in the meantime.
        while let Ok(message) = self.lines.try_recv() {
            if let LogMessage::Line(line) = message {
                self.write_or_count(&line);
            }
        }
        self.tell_lines_lost();
        if !self.write(&[]) {
            self.lines_lost.fetch_add(1, Ordering::Relaxed);
        }
        // From here on a log call finds no queue and counts its line as lost; only then is the log said to be
        // finished.
        drop(self);
        drop(finished);
    }

    fn write_or_count(&mut self, line: &[u8]) {
        if self.failing {
            self.tell_lines_lost();
        }
        if self.failing || !self.write(line) {
            self.lines_lost.fetch_add(1, Ordering::Relaxed);
        } else if self.lines.is_empty() {
            // Lines lost to a full queue were younger than everything in it: this is their place in the log.
            self.tell_lines_lost();
        }
    }

    fn tell_lines_lost(&mut self) {
        let lost = self.lines_lost.load(Ordering::Relaxed);
        let news = lost - self.lines_lost_told;
        if news > 0 {
            let lines = if news == 1 { "line was" } else { "lines were" };
            let note = self.style.line(Level::Warn, format_args!("{news} log {lines} lost"));
            if self.write(&note) {
                self.lines_lost_told = lost;
            }
        } else {
            self.failing = false;
        }
    }

    /// Writes the rest of a cut line, then `bytes`. True when all is written, or at least begun and sure to be
    /// completed before anything else.
    fn write(&mut self, bytes: &[u8]) -> bool {
        let rest = std::mem::take(&mut self.unfinished);
        let written = self.push(&rest);
        if written < rest.len() {
            self.unfinished = rest[written..].to_vec();
            self.failing = true;
            return false;
        }
        let written = self.push(bytes);
        if written > 0 {
            self.unfinished = bytes[written..].to_vec();
        }
        self.failing = written < bytes.len();
        written > 0 || bytes.is_empty()
    }

    /// Hands bytes to the output until it has them all or fails. Returns how many it took.
    fn push(&mut self, bytes: &[u8]) -> usize {
        let mut written = 0;
        while written < bytes.len() {
            match threads::blocking(|| self.output.write(&bytes[written..])) {
                Ok(0) => break,
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    threads::blocking(|| clock::sleep(FULL_OUTPUT_PAUSE))
                }
                Err(_) => break,
            }
        }
        if written > 0 {
            // Stderr keeps nothing back; an output that does reports its failure here or at the next write.
            let _ = threads::blocking(|| self.output.flush());
        }
        written
    }
}

#[cfg(test)]
mod tests;
