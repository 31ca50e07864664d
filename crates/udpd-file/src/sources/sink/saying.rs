//! The words for what fails with files by source; when they are said is up to the voice.

use std::io;
use std::path::Path;
use std::time::Instant;

use super::super::super::handle::cure;
use super::super::voice::Fault;
use super::SourcesSink;
use udpd_base::logging::muffle::count;

impl SourcesSink {
    /// The file of a source cannot be written.
    pub(super) fn say_unwritten(&mut self, place: usize, path: &Path, error: &io::Error) {
        let failing = &mut self.table.at(place).failing;
        let Some(times) = self.voice.fail(Fault::Writing, failing, Instant::now()) else { return };
        log::error!(
            "cannot write to {}: {error}; the datagrams of each source whose file cannot be written count as \
             sink_error until it can be{}{}",
            path.display(),
            cure(error),
            count(times - 1)
        );
    }

    /// The file of a source cannot be finished, and is written on.
    pub(super) fn say_unfinished(&mut self, place: usize, error: &io::Error) {
        let source = self.table.at(place);
        let Some(times) = self.voice.fail(Fault::Finishing, &mut source.failing, Instant::now()) else { return };
        let path = self.files.path(&source.key, source.begun.map_or(self.clock.seconds(), |begun| begun.at));
        log::error!(
            "cannot finish {}: {error}; udpd goes on writing it and tries again{}{}",
            path.display(),
            cure(error),
            count(times - 1)
        );
    }

    /// A file could be opened only because others were closed for it.
    pub(super) fn say_lacking(&mut self, error: &io::Error) {
        let Some(times) = self.voice.lack(Instant::now()) else { return };
        log::warn!(
            "{}: cannot open one more file: {error}; half of those that are open are closed for it, so files are \
             opened more often{}{}",
            self.settings.path,
            cure(error),
            count(times - 1)
        );
    }

    /// The file of a source is finished.
    pub(super) fn note_finished(&mut self, place: usize) {
        self.voice.fare_well(Fault::Finishing, &mut self.table.at(place).failing);
        if self.voice.is_over(Fault::Finishing, Instant::now()) {
            log::warn!("{}: files that are over are finished again", self.settings.path);
        }
    }

    /// A round of writing is over.
    pub(super) fn settle_voice(&mut self) {
        let now = Instant::now();
        self.voice.lose(self.failed);
        if self.failed.0 == 0 && self.voice.is_over(Fault::Writing, now) {
            let lost = self.voice.take_lost();
            self.say_lost("is written again", lost);
        }
        if self.voice.has_enough(now) {
            log::warn!("{}: no file was closed for another one's descriptor for a minute", self.settings.path);
        }
    }

    pub(super) fn say_last_words(&mut self) {
        match self.voice.last_words() {
            Some((lost, true)) => self.say_lost("is written again", lost),
            Some((lost, false)) => self.say_lost("was not written again before the end", lost),
            None => {}
        }
    }

    fn say_lost(&self, what: &str, (datagrams, bytes): (u64, u64)) {
        log::warn!(
            "{} {what}; {datagrams} datagrams ({bytes} bytes) were lost meanwhile and are counted as sink_error",
            self.settings.path
        );
    }
}
