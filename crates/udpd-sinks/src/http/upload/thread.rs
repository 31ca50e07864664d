//! The thread that brings one file after the other to the server, pauses when one did not get there, and says so.

use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::super::connection::log_lines::ServerLog;
use super::server::{S3Server, UploadTrouble};
use udpd_base::logging::{LogLimiter, repeats};
use udpd_base::os::threads;
use udpd_base::seams::{clock, waits};
use udpd_file::upload::{UploadJob, UploadOutcome};

/// The first pause after a failure, and the longest.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The longest that a server may ask for.
const ASKED_PAUSE_MAX: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub(super) struct UploadThread {
    pub(super) sink: String,
    pub(super) server: S3Server,
    pub(super) log: ServerLog,
    /// Its end: nothing is to be tried again.
    pub(super) end: Receiver<Infallible>,
    pub(super) unreadable: LogLimiter,
    pub(super) random: RandomState,
}

impl UploadThread {
    pub(super) fn run(mut self, jobs: &Receiver<UploadJob>) {
        let mut pause = PAUSE_MIN;
        while let Ok(job) = threads::blocking(|| waits::recv(jobs)) {
            match threads::blocking(|| self.server.bring(&job)) {
                Ok(()) => {
                    self.log.note_taken();
                    pause = PAUSE_MIN;
                    log::debug!("sink {}: {} is uploaded", self.sink, job.path.display());
                    job.report(UploadOutcome::Uploaded);
                }
                Err(UploadTrouble::File(error)) => {
                    self.note_unreadable(&job, &error);
                    job.report(UploadOutcome::Returned);
                }
                Err(UploadTrouble::Ended) => return,
                Err(UploadTrouble::Server { what, cure, after }) => {
                    self.log.note_trouble(&what, cure);
                    job.ledger.note_upload_failure();
                    job.report(UploadOutcome::Returned);
                    if !self.rest_for(after.unwrap_or(pause).min(ASKED_PAUSE_MAX)) {
                        return;
                    }
                    pause = (2 * pause).min(PAUSE_MAX);
                }
            }
        }
    }

    /// A file that is gone was removed, or changed its name.
    fn note_unreadable(&self, job: &UploadJob, error: &std::io::Error) {
        if error.kind() == std::io::ErrorKind::NotFound {
            return log::debug!("sink {}: {} is not uploaded now: {error}", self.sink, job.path.display());
        }
        job.ledger.note_upload_failure();
        if let Some(silent) = self.unreadable.pass(clock::now()) {
            let (sink, path) = (&self.sink, job.path.display());
            log::warn!(
                "sink {sink}: cannot read {path} to upload it: {error}; udpd tries again; let the user of udpd read \
                 it, and see to its disk{}",
                repeats(silent)
            );
        }
    }

    /// Pauses. Returns false when nothing is to be tried again.
    fn rest_for(&self, pause: Duration) -> bool {
        // Many hosts do not come back at the same moment.
        let chance = self.random.hash_one(clock::now()) % 1000;
        let pause = pause + pause.mul_f64(chance as f64 / 5_000.0);
        threads::blocking(|| waits::recv_timeout(&self.end, pause)) == Err(RecvTimeoutError::Timeout)
    }
}
