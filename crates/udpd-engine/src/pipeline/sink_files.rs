//! Reopens the files of all sinks at once, for other programs that rotate them. The answer comes when every old file is
//! closed, so that the client may compress or remove it.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crossbeam_channel::RecvTimeoutError;

use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::threads::lock;
use udpd_base::os::threads::{self, ThreadRegistry};
use udpd_base::seams::{clock, waits};
use udpd_file::{Compressor, FileKeeper, FileReopener, Reopened};

/// How long the old files may take. A disk that takes longer hangs, and the client would hang with it.
const REOPEN_LIMIT: Duration = Duration::from_secs(10);

/// How long the thread that compresses may take to end. What it leaves then the next start removes.
const COMPRESSION_LIMIT: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Default)]
pub struct SinkFiles {
    /// By the name of the sink. Shared, because a reload changes it under those who have this.
    reopeners: Arc<Mutex<Vec<(String, FileReopener)>>>,
    /// Of all sinks, also those of earlier pipelines.
    compressor: Compressor,
}

impl SinkFiles {
    /// Those of a replacement for the pipeline that has `others`.
    pub(super) fn for_replacement(others: &Self) -> Self {
        Self { reopeners: Arc::default(), compressor: others.compressor.clone() }
    }

    /// Starts the keeper of the files of a sink. What compresses them stays on `cores`, if there are any.
    pub(super) fn start(
        &self,
        sink: &str,
        keeper: FileKeeper,
        registry: &ThreadRegistry,
        cores: &[usize],
    ) -> Result<(), Failure> {
        let reopener = keeper.start(registry, &self.compressor, cores).map_err(|error| {
            let message = format!("sink {sink}: cannot start the thread that keeps its files: {error}");
            Failure::new(ExitCode::Failure, message)
        })?;
        self.list().push((sink.to_owned(), reopener));
        Ok(())
    }

    /// Goes on with the files of a sink of `other`.
    pub(super) fn retain_from(&self, other: &Self, sink: &str) {
        let retained: Vec<_> = other.list().iter().filter(|(name, _)| name == sink).cloned().collect();
        self.list().extend(retained);
    }

    /// From now on these are the files of `other`, also for all clones.
    pub(super) fn replace_with(&self, other: &Self) {
        let files = other.list().clone();
        *self.list() = files;
    }

    /// The sinks have ended: waits a moment until what was begun to be compressed is removed again.
    pub(super) fn end_compression(&self) {
        self.compressor.await_end(COMPRESSION_LIMIT);
    }

    fn list(&self) -> MutexGuard<'_, Vec<(String, FileReopener)>> {
        lock(&self.reopeners)
    }

    /// Has every sink begin a new file where another program has moved or removed the one in use. Returns when the old
    /// files are closed, and synced as `sync` says: one line that says what was done, or which file could not be begun,
    /// and why.
    pub fn reopen(&self) -> Result<String, String> {
        let deadline = clock::now() + REOPEN_LIMIT;
        let reopeners = self.list().clone();
        let asked: Vec<_> = reopeners.iter().map(|(sink, reopener)| (sink, reopener.ask())).collect();
        let mut sum = Reopened::default();
        for (sink, answer) in asked {
            let ended = Err(RecvTimeoutError::Disconnected);
            match answer.map_or(ended, |answer| threads::blocking(|| waits::recv_deadline(&answer, deadline))) {
                Ok(reopened) => {
                    sum.begun += reopened.begun;
                    sum.closed += reopened.closed;
                    sum.unmoved += reopened.unmoved;
                    sum.refused.extend(reopened.refused.into_iter().map(|why| format!("sink {sink}: {why}")));
                }
                Err(RecvTimeoutError::Timeout) => sum.refused.push(format!(
                    "sink {sink}: an old file is still in use after {} s, because its disk does not take the rest; \
                     do not remove it yet",
                    REOPEN_LIMIT.as_secs()
                )),
                Err(RecvTimeoutError::Disconnected) => sum.refused.push(format!("sink {sink}: it has ended")),
            }
        }
        if !sum.refused.is_empty() {
            return Err(sum.refused.join("; "));
        }
        Ok(if reopeners.is_empty() { "no sink writes files".to_owned() } else { what_was_done(&sum) })
    }
}

fn what_was_done(&Reopened { begun, closed, unmoved, .. }: &Reopened) -> String {
    let parts = [
        (begun > 0, format!("new files begun: {begun}")),
        (closed > 0, format!("moved files left: {closed}, and the next datagram of each source begins its new one")),
        (unmoved > 0, format!("not moved, so still written: {unmoved}")),
    ];
    let said: Vec<String> = parts.into_iter().filter_map(|(is_so, text)| is_so.then_some(text)).collect();
    if said.is_empty() { "no sink has begun a file yet".to_owned() } else { said.join("; ") }
}
