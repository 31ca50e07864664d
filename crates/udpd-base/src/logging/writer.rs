//! The thread that writes the log, and the only one that may wait for the log's reader.
//!
//! A line is given to the output whole, in one call. When a failure cuts a line short, its rest is written before
//! anything else, so a reader that comes back never sees two halves joined.

use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use log::Level;

use super::line::Style;
use crate::os::threads;

/// How long to leave a full non-blocking output alone. Stderr is non-blocking when another process that shares it made
/// it so; the writer then waits as it would on any other full pipe.
const FULL_OUTPUT_PAUSE: Duration = Duration::from_millis(200);

/// What travels to the writer.
pub(super) enum LogMessage {
    /// One whole line with its newline.
    Line(Vec<u8>),
    /// Write what is queued, then drop the sender and end.
    Finish(Sender<()>),
}

/// The state of the writing thread.
pub(super) struct LogWriter<W> {
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
                    threads::blocking(|| thread::sleep(FULL_OUTPUT_PAUSE))
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
