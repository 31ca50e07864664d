//! Lines on their way to a file descriptor, and the books of whose they are.
//!
//! Lines of many batches are gathered into one buffer of fixed size, so that one write carries thousands of datagrams. The
//! buffer remembers, in runs, which listener each stretch belongs to. A line ends with a newline and has no other, so after
//! a write that took only a part the number of datagrams that arrived is the number of newlines in that part: the books
//! are exact also when a disk fills up in the middle of a line.

use std::io;

use super::{deliver, fail, lines};
use crate::ledger::Tally;

/// The size of the buffer: the longest payload there is, escaped to its longest, and its newline, with room to spare.
const BUFFER_BYTES: usize = 512 * 1024;

/// From this fill on the buffer is written out.
const WRITE_AT_BYTES: usize = 256 * 1024;

/// The most runs that are remembered before the buffer is written out.
const RUNS_MAX: usize = 4096;

/// What an outbox writes to; the seam that tests make fail.
pub(super) trait Destination {
    /// Writes a part of `bytes`, at least one byte.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Takes back the last `bytes` that were written, the beginning of a line whose rest cannot be written. A destination
    /// that cannot, a pipe, leaves them.
    fn take_back(&mut self, bytes: usize) -> io::Result<()>;
}

/// A stretch of the buffer that belongs to one listener.
#[derive(Debug, Clone, Copy)]
struct Run {
    listener: usize,
    datagrams: u64,
    /// Where it ends in the buffer.
    end: usize,
}

/// Lines that are formatted and not yet written.
#[derive(Debug)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    runs: Vec<Run>,
}

impl Default for Outbox {
    fn default() -> Self {
        Self { bytes: Vec::with_capacity(BUFFER_BYTES), runs: Vec::with_capacity(RUNS_MAX) }
    }
}

impl Outbox {
    /// True when nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// True when it is time to write.
    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() >= WRITE_AT_BYTES || self.runs.len() == RUNS_MAX
    }

    /// Adds the line of one datagram, whose payload may be only the beginning of `length` bytes. The caller writes the box
    /// out when it is full.
    pub(super) fn push(&mut self, listener: usize, payload: &[u8], length: usize) {
        debug_assert!(
            BUFFER_BYTES - self.bytes.len() > lines::EXPANSION_MAX * payload.len() + lines::MARK_MAX,
            "a full box was not written"
        );
        if length > payload.len() {
            lines::append_truncated(&mut self.bytes, payload, length);
        } else {
            lines::append(&mut self.bytes, payload);
        }
        let end = self.bytes.len();
        match self.runs.last_mut() {
            Some(run) if run.listener == listener => {
                run.datagrams += 1;
                run.end = end;
            }
            _ => self.runs.push(Run { listener, datagrams: 1, end }),
        }
    }

    /// Writes everything. On an error what was written in whole lines is delivered, a part of a line is taken back, the rest
    /// is failed; the box is empty afterwards in any case.
    pub(super) fn write_to(&mut self, destination: &mut impl Destination, tallies: &mut [Tally]) -> io::Result<()> {
        let mut written = 0;
        let mut outcome = Ok(());
        while written < self.bytes.len() && outcome.is_ok() {
            match destination.write(&self.bytes[written..]) {
                Ok(0) => outcome = Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => outcome = Err(error),
            }
        }
        if outcome.is_err() {
            let whole = self.bytes[..written].iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
            if whole < written
                && let Err(error) = destination.take_back(written - whole)
            {
                log::warn!("a part of a line ({} bytes) could not be taken back: {error}", written - whole);
            }
            written = whole;
        }
        self.settle(written, tallies);
        outcome
    }

    /// Counts everything as failed without trying.
    pub(super) fn discard(&mut self, tallies: &mut [Tally]) {
        self.settle(0, tallies);
    }

    /// The first `written` bytes, whole lines, are delivered and the others failed.
    fn settle(&mut self, written: usize, tallies: &mut [Tally]) {
        let mut start = 0;
        for run in &self.runs {
            let tally = &mut tallies[run.listener];
            let delivered = if run.end <= written {
                run.datagrams
            } else {
                let part = &self.bytes[start..written.max(start)];
                part.iter().filter(|&&byte| byte == b'\n').count() as u64
            };
            deliver(tally, delivered);
            fail(tally, run.datagrams - delivered);
            start = run.end;
        }
        self.bytes.clear();
        self.runs.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes `room` bytes, a few at a time, and then refuses.
    struct Narrow {
        taken: Vec<u8>,
        room: usize,
    }

    impl Destination for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(7).min(self.room - self.taken.len());
            if count == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.taken.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn take_back(&mut self, bytes: usize) -> io::Result<()> {
            self.taken.truncate(self.taken.len() - bytes);
            Ok(())
        }
    }

    #[test]
    fn wherever_a_disk_fills_up_whole_lines_are_delivered_and_the_books_are_exact() {
        let payloads: [&[u8]; 5] = [b"first", b"", b"a\nb", b"fourth of them", b"last"];
        let whole: Vec<u8> = b"first\n\na\\nb\nfourth of them\nlast\n".to_vec();
        for room in 0..=whole.len() {
            let mut outbox = Outbox::default();
            let mut tallies = [Tally::default(); 2];
            for (index, payload) in payloads.iter().enumerate() {
                tallies[index % 2].pending += 1;
                outbox.push(index % 2, payload, payload.len());
            }
            let mut destination = Narrow { taken: Vec::new(), room };
            let outcome = outbox.write_to(&mut destination, &mut tallies);
            assert_eq!(outcome.is_ok(), room == whole.len());
            assert!(outbox.is_empty() && whole.starts_with(&destination.taken));
            let lines = destination.taken.iter().filter(|&&byte| byte == b'\n').count() as u64;
            assert!(destination.taken.is_empty() || destination.taken.ends_with(b"\n"), "no torn line at {room}");
            assert_eq!(tallies[0].delivered + tallies[1].delivered, lines, "room for {room} bytes");
            assert_eq!(tallies.map(|tally| tally.delivered + tally.failed), [3, 2]);
            assert_eq!(tallies.map(|tally| tally.pending), [0, 0]);
        }
    }
}
