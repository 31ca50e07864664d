//! The thread that forces a file to the disk, so that its consumer never waits for one.
//!
//! At most one request waits: a file that is synced now need not be synced twice. An error is kept until the consumer asks,
//! because a kernel reports a lost write once and then never again.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Sender, bounded};
use nix::fcntl::Flock;

/// Syncs one file.
#[derive(Debug)]
pub(super) struct Syncer {
    requests: Sender<Arc<Flock<File>>>,
    error: Arc<Mutex<Option<io::Error>>>,
    thread: JoinHandle<()>,
}

impl Syncer {
    /// Starts the thread; it sleeps until there is a request.
    pub(super) fn start(path: &Path) -> io::Result<Self> {
        let (requests, inbox) = bounded::<Arc<Flock<File>>>(1);
        let error = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&error);
        let path = path.to_owned();
        let thread = thread::Builder::new().name("udpd-sync".into()).spawn(move || {
            for file in inbox {
                if let Err(error) = file.sync_data() {
                    log::debug!("fdatasync of {} failed: {error}", path.display());
                    slot.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            }
        })?;
        Ok(Self { requests, error, thread })
    }

    /// Asks for a sync. When one waits already, that one will do.
    pub(super) fn request(&self, file: Arc<Flock<File>>) {
        let _ = self.requests.try_send(file);
    }

    /// The first error since the last look.
    pub(super) fn take_error(&self) -> Option<io::Error> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Waits until everything asked for is done; the error, if one is left.
    pub(super) fn finish(self) -> Option<io::Error> {
        drop(self.requests);
        let _ = self.thread.join();
        let mut slot = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        slot.take()
    }
}
