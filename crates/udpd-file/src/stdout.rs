//! Records on standard output, which cannot be opened again. When its reader has ended, the sink reports that it is
//! closed, and the daemon ends.
//!
//! A reader that does not read makes the consumer wait. A call that waits in the kernel does not tell how much the pipe
//! has taken, and the daemon may end before it returns. So udpd asks first whether there is room, and then gives a pipe
//! no more than it takes without waiting: that counts as delivered whatever follows. The stream is not made
//! nonblocking, because other processes use it too.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use udpd_base::exit::{ExitCode, Failure};
use udpd_base::format::Encoder;
use udpd_base::format::Format;
use udpd_base::format::prefix::{LinePrefix, LineStyle, Strip};
use udpd_base::handover::batch::LaneBatch;
use udpd_base::ledger::Tallies;
use udpd_base::os::local_time::ShownTime;
use udpd_base::os::role::ThreadRole;
use udpd_base::settings::kinds::OneOf;
use udpd_base::settings::{Findings, WrittenKeys, settings};
use udpd_base::sink::outbox;
use udpd_base::sink::outbox::{Outbox, OutboxDestination};
use udpd_base::sink::settings::{AnySettings, Differs, Needs, OpenedSink, Opening, SinkSettings, SinkTarget};
use udpd_base::sink::settings::{Scheme, WrittenSink};
use udpd_base::sink::{ConsumerFeeders, Sink};

use super::settings::{check_lines_only, check_local_time};

/// How long one wait for a stream that takes nothing lasts. What it has taken until then is counted.
const PATIENCE_MS: u8 = 100;

/// What a pipe or a socket takes whole when it has room.
const PIECE_BYTES: usize = libc::PIPE_BUF;

settings! {
    /// What is written of a sink of type `stdout`.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct StdoutSettings {
        /// How a datagram is written.
        format: Format = "lines", OneOf(&Format::WORDS);
        /// What stands in front of each line of format "lines": "time", "source", "time source" or nothing.
        prefix: LinePrefix = "", OneOf(&LinePrefix::WORDS);
        /// Which time stands in the prefix: "utc", or "local" by TZ or /etc/localtime.
        time: ShownTime = "utc", OneOf(&ShownTime::WORDS), elsewhere "timezone tz";
        /// What is removed from the end of a payload in format "lines": "nul", one byte that is zero, or nothing.
        strip: Strip = "", OneOf(&Strip::WORDS);
    }
}

impl WrittenSink for StdoutSettings {
    const NAME: &'static str = "stdout";
    const SCHEMES: &'static [Scheme] = &[Scheme {
        name: "stdout",
        form: "stdout: (or -)",
        read: |uri| uri.alone().map(|()| Self::default().finished()),
    }];

    fn check(&self, written: &WrittenKeys<'_>, findings: &mut Findings<'_>) {
        check_lines_only(self.format, self.prefix, self.strip, written, findings);
        if let (ShownTime::Local, Some(place)) = (self.time, written.place("time")) {
            check_local_time(&place, findings);
        }
    }
}

impl SinkSettings for StdoutSettings {
    fn target(&self) -> SinkTarget<'_> {
        SinkTarget::Stdout
    }

    fn records_arrival(&self) -> bool {
        self.format.records_arrival() || self.prefix.has_time()
    }

    fn records_drops(&self) -> bool {
        self.format.records_drops()
    }

    fn in_format(&self, format: Format) -> Option<AnySettings> {
        Some(Arc::new(Self { format, ..*self }))
    }

    fn with_prefix(&self, prefix: LinePrefix) -> Option<AnySettings> {
        Some(Arc::new(Self { prefix, ..*self })).filter(|_| self.format == Format::Lines).map(|own| own as _)
    }

    fn memory_bytes(&self, consumers: usize, _: usize) -> usize {
        consumers * outbox::memory_bytes_max()
    }

    fn needs(&self) -> Needs {
        Needs::only(ThreadRole::Writer)
    }

    fn open(&self, opening: Opening<'_>) -> Result<OpenedSink, Failure> {
        // A handle of its own: the standard one would buffer lines and write each by itself.
        let stream = io::stdout().as_fd().try_clone_to_owned().map_err(|error| {
            let message = format!("sink {}: cannot use standard output: {error}", opening.sink);
            Failure::new(ExitCode::Failure, message)
        })?;
        let stream = StdStream::new(File::from(stream)).map_err(|error| {
            let message = format!("sink {}: cannot see what standard output is: {error}", opening.sink);
            Failure::new(ExitCode::Failure, message)
        })?;
        let style = LineStyle { prefix: self.prefix, time: self.time, strip: self.strip };
        Ok(OpenedSink::new(StreamSink::new(stream, opening.encoder(self.format).with_style(style))))
    }

    fn goes_on(&self, before: &dyn SinkSettings, differs: Differs) -> bool {
        before.of_type() == Some(self) && !(differs.lanes && self.format == Format::Pcapng)
    }
}

/// Writes records to a stream.
#[derive(Debug)]
struct StreamSink {
    stream: StdStream,
    outbox: Outbox,
    closed: Option<String>,
}

#[derive(Debug)]
struct StdStream {
    file: File,
    /// The most that is written by one call.
    piece_bytes: usize,
}

impl StdStream {
    fn new(file: File) -> io::Result<Self> {
        let kind = file.metadata()?.file_type();
        let piece_bytes = if kind.is_fifo() || kind.is_socket() { PIECE_BYTES } else { usize::MAX };
        Ok(Self { file, piece_bytes })
    }
}

impl OutboxDestination for StdStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut asked = [PollFd::new(self.file.as_fd(), PollFlags::POLLOUT)];
        match poll(&mut asked, PollTimeout::from(PATIENCE_MS)) {
            Ok(0) => Err(io::ErrorKind::WouldBlock.into()),
            Err(Errno::EINTR) => Err(io::ErrorKind::Interrupted.into()),
            // If the poll fails, the write returns the error.
            Ok(_) | Err(_) => self.file.write(&bytes[..bytes.len().min(self.piece_bytes)]),
        }
    }

    // Another process with the same pipe may have made it nonblocking.
    fn is_slow(&self, error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::WouldBlock
    }

    fn take_back(&mut self, _bytes: usize) -> io::Result<()> {
        // A write to a pipe fails only if its reader has ended, so no process reads what the pipe has taken.
        Ok(())
    }
}

impl StreamSink {
    fn new(stream: StdStream, encoder: Encoder) -> Self {
        Self { stream, outbox: Outbox::with_header(encoder), closed: None }
    }
}

impl Sink for StreamSink {
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

    fn go_on_for(&mut self, feeders: &ConsumerFeeders) {
        self.outbox.go_on_for(Arc::clone(&feeders.scenes));
    }
}
