//! Going over to new files on request, for those who rotate files themselves: every sink at once, and the answer when
//! every old file is closed, so that whoever asked may compress or remove it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::RecvTimeoutError;

use udpd_base::exit::{ExitCode, Failure};
use udpd_base::os::threads;
use udpd_base::os::threads::ThreadRegistry;
use udpd_file::{Compressor, FileKeeper, Reopened, Reopener};

/// How long the old files may take. A disk that takes longer hangs, and so would whoever asked.
const REOPEN_LIMIT: Duration = Duration::from_secs(10);

/// How long the thread that compresses may take to end. What it leaves then the next start removes.
const COMPRESSION_LIMIT: Duration = Duration::from_secs(1);

/// The files of all sinks of a pipeline.
#[derive(Debug, Clone, Default)]
pub struct Files {
    /// By sink. Shared, because sinks come and go while somebody has this.
    reopeners: Arc<Mutex<Vec<(String, Reopener)>>>,
    /// Of all sinks, those of before as well.
    compressor: Compressor,
}

impl Files {
    /// Those of a pipeline that takes the place of one that has `others`.
    pub(super) fn beside(others: &Self) -> Self {
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
            Failure::new(
                ExitCode::Failure,
                format!("sink {sink}: cannot start the thread that keeps its files: {error}"),
            )
        })?;
        self.list().push((sink.to_owned(), reopener));
        Ok(())
    }

    /// Goes on with the files of a sink of `other`.
    pub(super) fn keep(&self, sink: &str, other: &Self) {
        let kept: Vec<_> = other.list().iter().filter(|(name, _)| name == sink).cloned().collect();
        self.list().extend(kept);
    }

    /// These are the files from now on, for everybody who has this.
    pub(super) fn become_those_of(&self, other: &Self) {
        let files = other.list().clone();
        *self.list() = files;
    }

    /// The sinks have ended: waits for a moment until what was begun to be compressed is removed again.
    pub(super) fn end_compression(&self) {
        self.compressor.await_end(COMPRESSION_LIMIT);
    }

    fn list(&self) -> MutexGuard<'_, Vec<(String, Reopener)>> {
        self.reopeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has every sink go over to a new file where somebody has moved or removed the one in use. Returns when the old
    /// ones are closed, and synced as `sync` says: one line that says what was done, or which file could not be begun,
    /// and why.
    pub fn reopen(&self) -> Result<String, String> {
        self.reopen_within(REOPEN_LIMIT)
    }

    fn reopen_within(&self, limit: Duration) -> Result<String, String> {
        let deadline = Instant::now() + limit;
        let reopeners = self.list().clone();
        let asked: Vec<_> = reopeners.iter().map(|(sink, reopener)| (sink, reopener.ask())).collect();
        let mut sum = Reopened::default();
        for (sink, answer) in asked {
            let ended = Err(RecvTimeoutError::Disconnected);
            match answer.map_or(ended, |answer| threads::blocking(|| answer.recv_deadline(deadline))) {
                Ok(reopened) => {
                    sum.begun += reopened.begun;
                    sum.left += reopened.left;
                    sum.stayed += reopened.stayed;
                    sum.refused.extend(reopened.refused.into_iter().map(|why| format!("sink {sink}: {why}")));
                }
                Err(RecvTimeoutError::Timeout) => sum.refused.push(format!(
                    "sink {sink}: an old file is still in use after {} s, because its disk does not take the rest; \
                     do not remove it yet",
                    limit.as_secs()
                )),
                Err(RecvTimeoutError::Disconnected) => sum.refused.push(format!("sink {sink}: it has ended")),
            }
        }
        if !sum.refused.is_empty() {
            return Err(sum.refused.join("; "));
        }
        Ok(if reopeners.is_empty() { "no sink writes files".to_owned() } else { words(&sum) })
    }
}

/// What was done, of which nothing was refused.
fn words(&Reopened { begun, left, stayed, .. }: &Reopened) -> String {
    let parts = [
        (begun > 0, format!("new files begun: {begun}")),
        (left > 0, format!("moved files left: {left}, and the next datagram of each source begins its new one")),
        (stayed > 0, format!("not moved, so still written: {stayed}")),
    ];
    let said: Vec<String> = parts.into_iter().filter_map(|(is_so, text)| is_so.then_some(text)).collect();
    if said.is_empty() { "no sink has begun a file yet".to_owned() } else { said.join("; ") }
}
