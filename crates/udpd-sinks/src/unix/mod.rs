//! A Unix socket on which another process listens: the keys of a sink of type `unix`, and which of its two sinks they
//! make.

mod peer;
mod sink;

use std::path::PathBuf;

use sink::{UnixDatagramSink, UnixStreamSink};
use udpd_base::exit::Failure;
use udpd_base::format::Format;
use udpd_base::os::path_check;
use udpd_base::os::role::ThreadRole;
use udpd_base::settings::kinds::{OneOf, QuotedText, SubTable};
use udpd_base::settings::{Findings, WrittenKeys, settings};
use udpd_base::sink::outbox;
use udpd_base::sink::settings::{Differs, Needs, OpenedSink, Opening, SinkSettings, SinkTarget, SpillPlace};
use udpd_base::sink::settings::{Scheme, WrittenSink, wrong};
use udpd_spill::spilling::Spill;

settings! {
    /// What is written of a sink of type `unix`.
    #[derive(Debug, Clone, PartialEq)]
    pub struct UnixSettings {
        /// Where another program listens.
        path: PathBuf = required like "/run/collector.sock", QuotedText(path_check::check_socket);
        /// What kind of socket that is.
        socket: UnixSocket = "datagram", OneOf(&[("datagram", UnixSocket::Datagram), ("stream", UnixSocket::Stream)]);
        /// How datagrams are told apart in a stream.
        framing: Framing = "newline", OneOf(&[("newline", Framing::Newline), ("length", Framing::Length)]);
        /// How a datagram is written.
        format: Format = "lines", OneOf(&Format::WORDS);
        /// What its destination does not take waits on a disk, see docs/spill.md.
        spill: Spill = {}, SubTable;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnixSocket {
    /// One datagram, one message.
    Datagram,
    /// All in one stream.
    Stream,
}

/// How datagrams are told apart in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// Records that end with a newline and hold no other.
    Newline,
    /// The payload as it is, after its length in four bytes, most significant first.
    Length,
}

impl WrittenSink for UnixSettings {
    const NAME: &'static str = "unix";
    const SCHEMES: &'static [Scheme] = &[Scheme {
        name: "unix",
        form: "unix:PATH",
        read: |uri| {
            let path = path_check::check_socket(&uri.path()?).map_err(wrong)?;
            Ok(Self { path, ..Self::default() }.finished())
        },
    }];

    fn check(&self, written: &WrittenKeys<'_>, findings: &mut Findings<'_>) {
        self.spill.check(written, findings);
        if let (Some(place), UnixSocket::Datagram) = (written.place("framing"), self.socket) {
            let what = "messages of a datagram socket need no framing";
            findings.say(&place, what, "remove it, or write socket = \"stream\"");
        }
        let Some(place) = written.place("format") else { return };
        if self.stream_format() != Some(self.format) {
            let what = "the payload is handed on as it is";
            findings.say(&place, what, "remove it, or write socket = \"stream\" and framing = \"newline\"");
        } else if self.format == Format::Pcapng {
            findings.say(&place, "a capture is not a sequence of lines", "write format = \"jsonl\" or \"lines\"");
        }
    }
}

impl UnixSettings {
    /// How records are written in a stream; `None` where datagrams are messages.
    fn stream_format(&self) -> Option<Format> {
        match (self.socket, self.framing) {
            (UnixSocket::Datagram, _) => None,
            (UnixSocket::Stream, Framing::Newline) => Some(self.format),
            (UnixSocket::Stream, Framing::Length) => Some(Format::Lengths),
        }
    }
}

impl SinkSettings for UnixSettings {
    fn target(&self) -> SinkTarget<'_> {
        SinkTarget::Elsewhere(self.path.display().to_string())
    }

    fn records_arrival(&self) -> bool {
        self.stream_format().is_some_and(Format::records_arrival)
    }

    fn memory_bytes(&self, consumers: usize, _: usize) -> usize {
        let own = match self.socket {
            UnixSocket::Datagram => 0,
            UnixSocket::Stream => consumers * outbox::memory_bytes_max(),
        };
        own + self.spill.memory_bytes(consumers)
    }

    fn files_open(&self, consumers: usize, _: usize) -> usize {
        self.spill.files_open(consumers)
    }

    fn spill(&self) -> Option<SpillPlace<'_>> {
        self.spill.place()
    }

    fn never_waits(&self) -> bool {
        self.socket == UnixSocket::Datagram && !self.spill.is_on()
    }

    fn needs(&self) -> Needs {
        Needs::only([&[ThreadRole::UnixClient][..], self.spill.role().as_slice()].concat())
    }

    fn open(&self, opening: Opening<'_>) -> Result<OpenedSink, Failure> {
        let (name, path, spills) = (opening.sink, self.path.clone(), self.spill.is_on());
        match self.stream_format() {
            Some(format) => {
                let sink = UnixStreamSink::new(name, path, opening.encoder(format), spills);
                self.spill.around(sink, &opening)
            }
            None if opening.is_inline && !spills => Ok(OpenedSink::new(UnixDatagramSink::that_never_waits(name, path))),
            None => self.spill.around(UnixDatagramSink::new(name, path, spills), &opening),
        }
    }

    fn goes_on(&self, before: &dyn SinkSettings, differs: Differs) -> bool {
        let is_new = differs.lanes && (self.format == Format::Pcapng || self.spill.is_on());
        before.of_type() == Some(self) && !is_new && !(differs.listeners && self.spill.is_on())
    }
}
