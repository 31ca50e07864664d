//! The thread that compresses: one for all sinks of the daemon, begun with the first that wants it, and at the lowest
//! priority there is. On a core that has anything else to do it gets almost nothing.
//!
//! Each path has one file with it at most, so what waits here is bounded by how many paths there are. It holds one file
//! open at a time. A file whose sink has ended meanwhile is left as it is: the thread looks up after each quarter of a
//! mebibyte. It ends when no sink wants it any more.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::job::{Job, Report};
use super::packing::pack;
use udpd_base::os::crew;
use udpd_base::os::crew::Crew;
use udpd_base::os::duty::Duty;

/// The lowest priority that a thread can have.
const NICE_MAX: i32 = 19;

/// Where files to be compressed are brought.
pub struct Jobs {
    sender: Sender<Job>,
}

/// The thread, if there is one.
#[derive(Debug, Clone, Default)]
pub struct Compressor(Arc<Mutex<Option<Running>>>);

#[derive(Debug)]
struct Running {
    jobs: Weak<Jobs>,
    /// Disconnected when it has ended.
    ended: Receiver<Infallible>,
}

impl std::fmt::Debug for Jobs {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Jobs").field("waiting", &self.sender.len()).finish()
    }
}

impl Jobs {
    /// Brings a file. When the thread is gone nobody answers, and the file stays as it is.
    pub fn bring(&self, job: Job) {
        let _ = self.sender.send(job);
    }
}

impl Compressor {
    /// For a sink that wants it. The thread stays on these cores, if there are any, where no receiver is.
    pub fn engage(&self, crew: &Crew, cores: &[usize]) -> io::Result<Arc<Jobs>> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(jobs) = running.as_ref().and_then(|running| running.jobs.upgrade()) {
            return Ok(jobs);
        }
        let ((sender, jobs), (alive, ended)) = (unbounded(), unbounded());
        let own = Arc::new(Jobs { sender });
        let cores = cores.to_vec();
        crew.spawn("udpd-compress", Duty::Compressor, move || {
            let _alive: Sender<Infallible> = alive;
            step_back(&cores);
            work(&jobs);
        })?;
        *running = Some(Running { jobs: Arc::downgrade(&own), ended });
        Ok(own)
    }

    /// Waits until the thread has ended, whose sinks have, and until whatever it had begun is removed again. A disk
    /// that takes longer leaves that to the next start.
    pub fn await_end(&self, limit: Duration) {
        let ended = self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|running| running.ended.clone());
        if let Some(ended) = ended {
            // Nothing is ever sent.
            let _ = ended.recv_timeout(limit);
        }
    }
}

/// Lets everybody else go first.
fn step_back(cores: &[usize]) {
    if let Err(error) = rustix::process::setpriority_process(None, NICE_MAX) {
        log::warn!("cannot lower the priority of the thread that compresses files: {error}; it competes with others");
    }
    if !cores.is_empty()
        && let Err(error) = steer::confine_current_thread(cores)
    {
        let cores = steer::format_core_list(cores);
        log::warn!("the thread that compresses files cannot run on the cores {cores} only: {error}");
    }
}

fn work(jobs: &Receiver<Job>) {
    while let Ok(job) = crew::at_rest(|| jobs.recv()) {
        // Whatever else runs comes first, so it may take any time without being stuck.
        crew::at_rest(|| {
            let is_wanted = || job.asker.strong_count() > 0;
            let outcome = pack(&job, &is_wanted);
            if let Some(asker) = job.asker.upgrade() {
                asker.report(Report { file: job.file, whose: job.whose, outcome });
            }
        });
    }
}
