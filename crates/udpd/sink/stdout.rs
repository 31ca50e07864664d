//! Records on standard output, or on any stream that cannot be opened again. When its reader is gone for good, the sink
//! says that it is closed and the daemon ends: there is nobody left to work for.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use super::contract::{Feeders, Sink};
use super::outbox::{self, Destination, Outbox};
use super::settings::{AnySettings, Differs, Needs, Opened, Opening, SinkSettings, Target};
use super::written::{Scheme, WrittenSink};
use crate::exit::{ExitCode, Failure};
use crate::format::Format;
use crate::format::encoder::Encoder;
use crate::handover::batch::LaneBatch;
use crate::ledger::Tallies;
use crate::os::duty::Duty;
use crate::settings::kinds::Words;
use crate::settings::settings;

/// How often a full pipe that does not wait by itself is tried again.
const FULL_PIPE_POLL: Duration = Duration::from_millis(1);

settings! {
    /// What is written of a sink of type `stdout`.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct StdoutSettings {
        /// How a datagram is written.
        format: Format = "lines", Words(&Format::WORDS);
    }
}

impl WrittenSink for StdoutSettings {
    const NAME: &'static str = "stdout";
    const SCHEMES: &'static [Scheme] = &[Scheme {
        name: "stdout",
        form: "stdout: (or -)",
        read: |uri| uri.alone().map(|()| Self::default().finished()),
    }];
}

impl SinkSettings for StdoutSettings {
    fn target(&self) -> Target<'_> {
        Target::Stdout
    }

    fn records_arrival(&self) -> bool {
        self.format.records_arrival()
    }

    fn records_drops(&self) -> bool {
        self.format.records_drops()
    }

    fn in_format(&self, format: Format) -> Option<AnySettings> {
        Some(Arc::new(Self { format }))
    }

    fn memory_bytes(&self, consumers: usize, _: usize) -> usize {
        consumers * outbox::memory_bytes_max()
    }

    fn needs(&self) -> Needs {
        Needs::only(Duty::Writer)
    }

    fn open(&self, opening: Opening<'_>) -> Result<Opened, Failure> {
        // A handle of its own: the standard one would buffer lines and write each by itself.
        let stream = io::stdout().as_fd().try_clone_to_owned().map_err(|error| {
            let message = format!("sink {}: cannot use standard output: {error}", opening.sink);
            Failure::new(ExitCode::Failure, message)
        })?;
        Ok(Opened::new(StreamSink::new(File::from(stream), opening.encoder(self.format))))
    }

    fn goes_on(&self, before: &dyn SinkSettings, differs: Differs) -> bool {
        before.of_type() == Some(self) && !(differs.lanes && self.format == Format::Pcapng)
    }
}

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
    fn accept(&mut self, batch: &LaneBatch, tallies: &mut Tallies) {
        self.outbox.begin_batch();
        for datagram in batch.datagrams.datagrams() {
            self.outbox.push(batch, &datagram);
            if self.outbox.is_full() {
                self.flush(tallies);
            }
        }
    }

    fn flush(&mut self, tallies: &mut Tallies) {
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

    fn go_on_for(&mut self, feeders: &Feeders) {
        self.outbox.go_on_for(Arc::clone(&feeders.scenes));
    }
}
