//! SIGHUP: every sink goes over to new files, on a thread of its own. A disk may take its time over the old ones, and
//! the main thread has to handle the next signal meanwhile. A signal during a round may be about a file that was moved
//! only now, so one more round follows, however many signals come.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use udpd_base::os::role::ThreadRole;
use udpd_base::os::threads::ThreadRegistry;
use udpd_engine::pipeline::SinkFiles;

/// Goes over to new files as often as it has to.
#[derive(Debug)]
pub(super) struct ReopenOnHangup {
    registry: ThreadRegistry,
    files: SinkFiles,
    /// Signals that no finished round has answered. The thread lives while there are any.
    open: Arc<AtomicU32>,
}

impl ReopenOnHangup {
    pub(super) fn new(registry: &ThreadRegistry, files: SinkFiles) -> Self {
        Self { registry: registry.clone(), files, open: Arc::default() }
    }

    pub(super) fn start_round(&self) {
        if self.open.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let (files, open) = (self.files.clone(), Arc::clone(&self.open));
        let rounds = move || make_rounds(&open, || log_outcome(files.reopen()));
        if let Err(error) = self.registry.spawn("udpd-reopen", ThreadRole::ShortLived, rounds) {
            self.open.store(0, Ordering::Release);
            log::error!(
                "SIGHUP: cannot start the thread udpd-reopen: {error}; raise the limit on threads (ulimit -u, \
                 TasksMax=)"
            );
        }
    }
}

/// Makes rounds until one has begun after the last signal.
fn make_rounds(open: &AtomicU32, mut round: impl FnMut()) {
    let mut seen = open.load(Ordering::Acquire);
    loop {
        round();
        match open.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

fn log_outcome(outcome: Result<String, String>) {
    match outcome {
        Ok(done) => log::info!("SIGHUP: {done}"),
        Err(why) => log::error!("SIGHUP: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_during_a_round_makes_one_more_and_ten_of_them_as_well() {
        let open = AtomicU32::new(1);
        let mut rounds = 0;
        make_rounds(&open, || {
            rounds += 1;
            if rounds == 1 {
                open.fetch_add(10, Ordering::AcqRel);
            }
        });
        assert_eq!((rounds, open.load(Ordering::Acquire)), (2, 0));
    }
}
