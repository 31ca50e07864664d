//! The capture of datagrams that a server has refused for good, which `udpd replay` can send again.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mmsg::Datagram;

use super::request::{RefusedRecord, RequestBatch};
use udpd_base::exit::{ExitCode, Failure};
use udpd_base::format::{Encoder, Format, Scene};
use udpd_base::logging::{LogLimiter, repeats};
use udpd_base::os::threads;
use udpd_base::os::trusted_files;
use udpd_base::seams::{clock, disk};
use udpd_base::sink::settings::Opening;

/// Writes the datagrams of one consumer.
#[derive(Debug)]
pub(super) struct RefusedFile {
    path: PathBuf,
    file: File,
    encoder: Encoder,
    /// The section of this sink is begun.
    is_begun: bool,
    failures: LogLimiter,
}

impl RefusedFile {
    /// Opens the file of a consumer: the first has the path itself, another its number behind it.
    pub(super) fn open(path: &Path, opening: &Opening<'_>) -> Result<Self, Failure> {
        let path = match opening.consumer {
            0 => path.to_owned(),
            number => PathBuf::from(format!("{}.{number}", path.display())),
        };
        let file = trusted_files::open(&path, OpenOptions::new().append(true).create(true)).map_err(|error| {
            let code = if trusted_files::is_refusal(&error) { ExitCode::Permission } else { ExitCode::Disk };
            let (sink, path) = (opening.sink, path.display());
            let message =
                format!("[sink.{sink}] cannot open refused = \"{path}\": {error}; let the user of udpd write there");
            Failure::new(code, message)
        })?;
        let encoder = opening.encoder(Format::Pcapng);
        Ok(Self { path, file, encoder, is_begun: false, failures: LogLimiter::default() })
    }

    /// Keeps a datagram in its batch, until the answer is there.
    pub(super) fn keep(&mut self, batch: &mut RequestBatch, lane: usize, datagram: &Datagram<'_>) {
        self.encoder.append(&mut batch.packets, lane, datagram);
        batch.packet_ends.push(batch.packets.len());
    }

    /// Goes on for the same lanes under other names.
    pub(super) fn go_on_for(&mut self, scenes: &Arc<[Scene]>) {
        self.encoder.go_on_for(Arc::clone(scenes));
    }

    /// A batch that takes packets is begun.
    pub(super) fn begin(&mut self) {
        self.encoder.begin();
    }

    /// Writes those that the server has refused.
    pub(super) fn write(&mut self, sink: &str, batch: &RequestBatch, refused: &[RefusedRecord]) {
        let mut bytes = if self.is_begun { Vec::new() } else { self.encoder.header() };
        for place in refused.iter().map(|record| record.place) {
            let begin = place.checked_sub(1).map_or(0, |before| batch.packet_ends[before]);
            bytes.extend_from_slice(&batch.packets[begin..batch.packet_ends[place]]);
        }
        match threads::blocking(|| disk::append_all(&self.file, &bytes)) {
            Ok(()) => self.is_begun = true,
            Err(error) => {
                // What a failed write has left would hide what comes after it: the next write begins a section anew.
                self.is_begun = false;
                if let Some(silent) = self.failures.pass(clock::now()) {
                    log::warn!(
                        "sink {sink}: cannot write {} refused datagrams to {}: {error}; they are lost; check that \
                         disk{}",
                        refused.len(),
                        self.path.display(),
                        repeats(silent)
                    );
                }
            }
        }
    }
}
