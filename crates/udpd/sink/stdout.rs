//! Records on standard output, or on any stream that cannot be opened again. When its reader is gone for good, the sink
//! says that it is closed and the daemon ends: there is nobody left to work for.

use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use super::Sink;
use super::outbox::{Destination, Outbox};
use crate::format::encoder::Encoder;
use crate::handover::pool::LaneBatch;
use crate::ledger::Tally;

/// How often a full pipe that does not wait by itself is tried again.
const FULL_PIPE_POLL: Duration = Duration::from_millis(1);

/// Writes records to a stream.
pub struct StreamSink<W> {
    stream: Stream<W>,
    outbox: Outbox,
    closed: Option<String>,
}

impl<W> fmt::Debug for StreamSink<W> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("StreamSink").field("closed", &self.closed).finish_non_exhaustive()
    }
}

struct Stream<W>(W);

impl<W: Write> Destination for Stream<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(bytes) {
                // Somebody else who has the same pipe has switched waiting off; we wait all the same.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(FULL_PIPE_POLL),
                result => return result,
            }
        }
    }

    fn take_back(&mut self, _bytes: usize) -> io::Result<()> {
        // What a pipe has taken is gone; its reader is gone too, or the write had not failed.
        Ok(())
    }
}

impl<W: Write> StreamSink<W> {
    /// A sink that writes to `stream`, which must not buffer.
    pub fn new(stream: W, encoder: Encoder) -> Self {
        Self { stream: Stream(stream), outbox: Outbox::with_header(encoder), closed: None }
    }
}

impl<W: Write + Send> Sink for StreamSink<W> {
    fn accept(&mut self, batch: &LaneBatch, tallies: &mut [Tally]) {
        self.outbox.begin_batch();
        for datagram in batch.datagrams.datagrams() {
            self.outbox.push(batch, &datagram);
            if self.outbox.is_full() {
                self.flush(tallies);
            }
        }
    }

    fn flush(&mut self, tallies: &mut [Tally]) {
        if self.closed.is_some() {
            return self.outbox.discard(tallies);
        }
        if let (_, Err(error)) = self.outbox.write_to(&mut self.stream, tallies) {
            let why = match error.kind() {
                io::ErrorKind::BrokenPipe => "its reader has ended",
                io::ErrorKind::StorageFull => "free some space on that file system",
                _ => "redirect it elsewhere, or use a sink of type \"file\", which recovers",
            };
            self.closed = Some(format!("cannot write to standard output: {error}; {why}"));
        }
    }

    fn closed(&self) -> Option<String> {
        self.closed.clone()
    }
}
