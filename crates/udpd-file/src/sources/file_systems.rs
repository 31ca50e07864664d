//! The file systems of the files by source of one consumer, each with a descriptor for `syncfs`. A directory that a
//! path names may be a mount point, so there can be several.
//!
//! The kernel reports to a descriptor what failed since it was opened. So it is opened before the first byte is written
//! there, and stays open. It is one of a directory, because an open descriptor of a removed file would keep its space.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use udpd_base::os::threads::lock;

/// The most file systems of one consumer; more is a mistake, or calls for several sinks.
pub(crate) const FILE_SYSTEMS_MAX: usize = 64;

#[derive(Debug, Clone)]
pub(super) struct FileSystem {
    pub(super) directory: PathBuf,
    pub(super) opened: Arc<File>,
    number: u64,
}

#[derive(Debug, Default)]
pub(super) struct FileSystems {
    known: Mutex<KnownFileSystems>,
}

#[derive(Debug, Default)]
struct KnownFileSystems {
    file_systems: Vec<FileSystem>,
    /// The device numbers of files there: on overlayfs they differ from that of the directory.
    of_files: Vec<u64>,
    /// There are more than the list holds.
    is_overfull: bool,
}

impl FileSystem {
    fn open(directory: &Path) -> io::Result<Self> {
        let opened = File::open(directory)?;
        Ok(Self { number: opened.metadata()?.dev(), directory: directory.to_owned(), opened: Arc::new(opened) })
    }
}

impl FileSystems {
    /// Adds the file system of a directory.
    pub(super) fn begin(&self, directory: &Path) -> io::Result<()> {
        let file_system = FileSystem::open(directory)?;
        lock(&self.known).add(file_system);
        Ok(())
    }

    /// Adds the file system of a file before anything is written to it.
    pub(super) fn note(&self, path: &Path, file: &Metadata) -> io::Result<()> {
        let mut known = lock(&self.known);
        if known.is_overfull || known.of_files.contains(&file.dev()) {
            return Ok(());
        }
        let file_system = match FileSystem::open(path.parent().unwrap_or(Path::new("/"))) {
            // The directory may not be readable, which must cost no datagram.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => FileSystem::open(path)?,
            opened => opened?,
        };
        if known.of_files.len() < FILE_SYSTEMS_MAX && known.add(file_system) {
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

    /// The known file systems, and whether these are all.
    pub(super) fn all(&self) -> (Vec<FileSystem>, bool) {
        let known = lock(&self.known);
        (known.file_systems.clone(), !known.is_overfull)
    }
}

impl KnownFileSystems {
    /// Returns false when the list is full.
    fn add(&mut self, file_system: FileSystem) -> bool {
        if self.file_systems.iter().any(|other| other.number == file_system.number) {
            return true;
        }
        let has_place = self.file_systems.len() < FILE_SYSTEMS_MAX;
        if has_place {
            self.file_systems.push(file_system);
        }
        has_place
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::settings::FileSettings;
    use super::super::key::SourceKey;
    use super::super::source_file::SourceFiles;
    use super::super::table::KnownSources;
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
        let mut files = SourceFiles::new(&settings, Vec::new(), None);
        files.number(settings.path.clone());
        let (parts, mut table) = (files.parts().expect("parts"), KnownSources::new(10, 1, 10));
        files.file_systems.begin(here.path()).expect("a directory");
        for last in [1, 2, 3, 1] {
            let source = std::net::SocketAddr::from(([10, 0, 0, last], 7));
            let (place, _) = table.place(SourceKey::new(0, &parts, source, source.ip(), 0));
            files.provide(&mut table, place, 0, &FileLedger::default()).expect("opened");
        }
        let (file_systems, are_all) = files.file_systems.all();
        let numbers: Vec<u64> = file_systems.iter().map(|file_system| file_system.number).collect();
        assert_eq!((numbers, are_all), (vec![number(here.path()), number(there.path())], true));
        assert!(file_systems.iter().all(|file_system| rustix::fs::syncfs(&file_system.opened).is_ok()));
    }

    #[test]
    fn one_file_system_beyond_the_limit_is_never_called_synced() {
        let file_systems = FileSystems::default();
        let directory = tempfile::tempdir().expect("a directory");
        file_systems.begin(directory.path()).expect("there");
        let mut known = file_systems.known.lock().expect("no thread has panicked");
        let file_system = known.file_systems[0].clone();
        for number in 1..=FILE_SYSTEMS_MAX as u64 {
            let added = known.add(FileSystem { number: file_system.number + number, ..file_system.clone() });
            assert_eq!(added, number < FILE_SYSTEMS_MAX as u64);
        }
        // Its own file system is known; what is full is the list of what files say.
        known.of_files = (1..=FILE_SYSTEMS_MAX as u64).map(|number| file_system.number + number).collect();
        drop(known);
        let file = directory.path().join("file");
        std::fs::write(&file, "").expect("written");
        file_systems.note(&file, &file.metadata().expect("there")).expect("a directory");
        assert!(!file_systems.all().1);
    }
}
