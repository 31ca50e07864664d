//! The file systems on which the files by source of one consumer lie, each with a descriptor by which it is forced to
//! the disk. A directory that a path names may be a mount point, so there can be several.
//!
//! The kernel tells a descriptor of what failed since it was opened. So that of a file system is opened before the
//! first byte is written there, and stays open. It is one of a directory: a file may be removed by others, and would
//! keep its place on the disk.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// So many are kept; a sink on more is a mistake, or deserves several sinks.
pub(crate) const FILE_SYSTEMS_MAX: usize = 64;

/// One file system.
#[derive(Debug, Clone)]
pub(super) struct Disk {
    /// Some directory on it.
    pub(super) directory: PathBuf,
    pub(super) opened: Arc<File>,
    number: u64,
}

/// All that are known.
#[derive(Debug, Default)]
pub(super) struct Disks {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    disks: Vec<Disk>,
    /// What files there say of where they are: not always the same as their directory, as on overlayfs.
    of_files: Vec<u64>,
    /// There is one more than are kept.
    is_overfull: bool,
}

impl Disk {
    fn open(directory: &Path) -> io::Result<Self> {
        let opened = File::open(directory)?;
        Ok(Self { number: opened.metadata()?.dev(), directory: directory.to_owned(), opened: Arc::new(opened) })
    }
}

impl Disks {
    /// The one of a directory first of all.
    pub(super) fn begin(&self, directory: &Path) -> io::Result<()> {
        let disk = Disk::open(directory)?;
        self.known.lock().unwrap_or_else(PoisonError::into_inner).add(disk);
        Ok(())
    }

    /// A file is open and nothing is written to it yet.
    pub(super) fn note(&self, path: &Path, file: &Metadata) -> io::Result<()> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_overfull || known.of_files.contains(&file.dev()) {
            return Ok(());
        }
        let disk = match Disk::open(path.parent().unwrap_or(Path::new("/"))) {
            // It may be for writing only, and nothing is to be lost for that.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Disk::open(path)?,
            opened => opened?,
        };
        if known.of_files.len() < FILE_SYSTEMS_MAX && known.add(disk) {
            known.of_files.push(file.dev());
            return Ok(());
        }
        known.is_overfull = true;
        log::error!(
            "{}: files by source lie on more than {FILE_SYSTEMS_MAX} file systems; those on further ones are not \
             synced, and unsynced_bytes counts everything from now on; give them several sinks",
            path.display()
        );
        Ok(())
    }

    /// Those that are kept, and whether these are all.
    pub(super) fn all(&self) -> (Vec<Disk>, bool) {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        (known.disks.clone(), !known.is_overfull)
    }
}

impl Known {
    /// False when there is no place for it.
    fn add(&mut self, disk: Disk) -> bool {
        if self.disks.iter().any(|other| other.number == disk.number) {
            return true;
        }
        let has_place = self.disks.len() < FILE_SYSTEMS_MAX;
        if has_place {
            self.disks.push(disk);
        }
        has_place
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::settings::FileSettings;
    use super::super::key::Key;
    use super::super::source_file::SourceFiles;
    use super::super::table::Table;
    use super::*;
    use udpd_base::ledger::FileLedger;

    #[test]
    fn each_file_system_on_which_a_source_has_its_file_is_known_once() {
        let here = tempfile::tempdir().expect("a directory");
        // Where there is no other file system there is nothing to see.
        let Ok(there) = tempfile::tempdir_in("/dev/shm") else { return };
        let number = |path: &Path| path.metadata().expect("there").dev();
        if number(here.path()) == number(there.path()) {
            return;
        }
        for (name, target) in [("10.0.0.2", "a"), ("10.0.0.3", "b")] {
            std::fs::create_dir(there.path().join(target)).expect("made");
            std::os::unix::fs::symlink(there.path().join(target), here.path().join(name)).expect("a link");
        }
        let settings = FileSettings::new(format!("{}/{{source}}/log", here.path().display()));
        let mut files = SourceFiles::new(&settings, Vec::new());
        files.number(settings.path.clone());
        let (parts, mut table) = (files.parts().expect("parts"), Table::new(10, 1, 10));
        files.disks.begin(here.path()).expect("a directory");
        for last in [1, 2, 3, 1] {
            let source = std::net::SocketAddr::from(([10, 0, 0, last], 7));
            let (place, _) = table.place(Key::new(0, &parts, source, source.ip()));
            files.provide(&mut table, place, 0, &FileLedger::default()).expect("opened");
        }
        let (disks, are_all) = files.disks.all();
        let numbers: Vec<u64> = disks.iter().map(|disk| disk.number).collect();
        assert_eq!((numbers, are_all), (vec![number(here.path()), number(there.path())], true));
        assert!(disks.iter().all(|disk| rustix::fs::syncfs(&disk.opened).is_ok()));
    }

    #[test]
    fn one_more_than_are_kept_is_never_called_synced() {
        let disks = Disks::default();
        let directory = tempfile::tempdir().expect("a directory");
        disks.begin(directory.path()).expect("there");
        let mut known = disks.known.lock().expect("nobody has panicked");
        let disk = known.disks[0].clone();
        for number in 1..=FILE_SYSTEMS_MAX as u64 {
            let added = known.add(Disk { number: disk.number + number, ..disk.clone() });
            assert_eq!(added, number < FILE_SYSTEMS_MAX as u64);
        }
        // Its own file system is known; what is full is the list of what files say.
        known.of_files = (1..=FILE_SYSTEMS_MAX as u64).map(|number| disk.number + number).collect();
        drop(known);
        let file = directory.path().join("file");
        std::fs::write(&file, "").expect("written");
        disks.note(&file, &file.metadata().expect("there")).expect("a directory");
        assert!(!disks.all().1);
    }
}
