//! What is written of a sink of type `unix`, and which of its two sinks that makes.

use std::path::PathBuf;

use super::sink::{UnixDatagramSink, UnixStreamSink};
use crate::exit::Failure;
use crate::format::Format;
use crate::sink::outbox;
use crate::sink::settings::{Opened, Opening, SinkSettings, Target};

/// What is written of a sink of type `unix`.
#[derive(Debug, Clone)]
pub struct UnixSettings {
    pub path: PathBuf,
    /// What kind of socket that is.
    pub socket: UnixSocket,
}

/// The kind of a Unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnixSocket {
    /// One datagram, one message.
    Datagram,
    /// All in one stream, as records.
    Stream(Format),
}

impl SinkSettings for UnixSettings {
    fn target(&self) -> Target<'_> {
        Target::Elsewhere(self.path.display().to_string())
    }

    fn records_arrival(&self) -> bool {
        matches!(self.socket, UnixSocket::Stream(format) if format.records_arrival())
    }

    fn memory_bytes(&self, consumers: usize, _: usize) -> usize {
        match self.socket {
            UnixSocket::Datagram => 0,
            UnixSocket::Stream(_) => consumers * outbox::memory_bytes_max(),
        }
    }

    fn open(&self, opening: Opening<'_>) -> Result<Opened, Failure> {
        let path = self.path.clone();
        Ok(match self.socket {
            UnixSocket::Datagram => Opened::new(UnixDatagramSink::new(opening.sink, path)),
            UnixSocket::Stream(format) => Opened::new(UnixStreamSink::new(opening.sink, path, opening.encoder(format))),
        })
    }
}
