//! Lines on standard output, or on any stream that cannot be opened again. When its reader is gone for good, the sink says
//! that it is closed and the daemon ends: there is nobody left to work for.

use std::fmt;
use std::io::{self, Write};

use super::Sink;
use super::outbox::{Destination, Outbox};
use crate::ledger::Tally;
use crate::pool::LaneBatch;

/// Writes lines to a stream.
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
        self.0.write(bytes)
    }

    fn take_back(&mut self, _bytes: usize) -> io::Result<()> {
        // What a pipe has taken is gone; its reader is gone too, or the write had not failed.
        Ok(())
    }
}

impl<W: Write> StreamSink<W> {
    /// A sink that writes to `stream`, which must not buffer.
    pub fn new(stream: W) -> Self {
        Self { stream: Stream(stream), outbox: Outbox::default(), closed: None }
    }
}

impl<W: Write + Send> Sink for StreamSink<W> {
    fn accept(&mut self, batch: &LaneBatch, tallies: &mut [Tally]) {
        for datagram in batch.datagrams.datagrams() {
            self.outbox.push(batch.listener, datagram.payload());
            if self.outbox.is_full() {
                self.flush(tallies);
            }
        }
    }

    fn flush(&mut self, tallies: &mut [Tally]) {
        if self.closed.is_some() {
            self.outbox.discard(tallies);
        } else if let Err(error) = self.outbox.write_to(&mut self.stream, tallies) {
            self.closed = Some(format!("standard output cannot be written: {error}; its reader has gone away"));
        }
    }

    fn closed(&self) -> Option<String> {
        self.closed.clone()
    }
}
