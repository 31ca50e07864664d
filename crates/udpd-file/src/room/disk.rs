//! Forcing files to the disk, and what becomes of one where that fails.
//!
//! A sync that failed is final. The kernel reports a lost write once and then forgets it, so a file whose sync has
//! failed is set aside under a name that says so, its unsynced bytes are counted as doubtful, and another file is
//! begun.

use std::fs;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use super::super::desk::At;
use super::super::handle::{cure, set_aside};
use super::super::name::failed_names;
use super::super::settings::Sync;
use super::{Fate, Kept, Room};

impl Room {
    /// Forces to the disk what the consumer has written so far: it is in the file that it has not yet left.
    pub(crate) fn sync(&mut self, at: At) {
        let is_it = |kept: &Kept| kept.generation == at.generation;
        if let Some(kept) = self.current.clone().filter(is_it) {
            if !self.force(&kept, at.written) {
                self.current = None;
                self.is_astray = false;
                self.left.push_back((kept, Fate::Condemned));
                if let Err(error) = self.go_on() {
                    self.stop();
                    self.explain(&error, "its datagrams count as sink_error until udpd can");
                }
            }
        } else if let Some(index) = self.left.iter().position(|(kept, fate)| is_it(kept) && *fate != Fate::Condemned) {
            let kept = self.left[index].0.clone();
            if !self.force(&kept, at.written) {
                self.left[index].1 = Fate::Condemned;
            }
        }
    }

    pub(super) fn force_if_asked(&mut self, kept: &Kept, written: u64) {
        if self.sync != Sync::Never {
            self.force(kept, written);
        }
    }

    /// Forces a file to the disk, and counts what came of it. False when that failed, and it has been set aside.
    fn force(&mut self, kept: &Kept, written: u64) -> bool {
        let begun = SystemTime::now();
        match kept.handle.sync() {
            Ok(()) => self.ledger.note_synced(written, begun),
            Err(error) => {
                self.ledger.note_sync_failure();
                self.ledger.note_doubtful(written);
                self.condemn(kept, &error);
                return false;
            }
        }
        true
    }

    /// Sets a file aside whose sync has failed.
    fn condemn(&mut self, kept: &Kept, error: &io::Error) {
        let path = kept.path.display();
        let what = format!("cannot sync {path} to the disk: {error}; its unsynced bytes may be lost");
        if !kept.handle.is_at(&kept.path) {
            return log::error!("{what}; somebody has moved or removed it{}", cure(error));
        }
        match set_aside(&kept.path, failed_names(&kept.path, self.clock.seconds()), |_| ()) {
            Ok(aside) => log::error!("{what}; set it aside as {}{}", aside.display(), cure(error)),
            Err(refusal) => {
                log::error!("{what}; cannot set it aside: {refusal}; its datagrams count as sink_error until udpd can");
                self.condemned = Some(kept.clone());
            }
        }
    }

    /// The names of files are kept by their directory, which has to be forced to the disk as well.
    pub(super) fn sync_directory(&self) {
        let path = self.name.at(self.begun);
        let directory = path.parent().unwrap_or(Path::new("/"));
        if let Err(error) = fs::File::open(directory).and_then(|directory| directory.sync_all()) {
            log::warn!("cannot sync the directory {} to the disk: {error}", directory.display());
        }
    }
}
