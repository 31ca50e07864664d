//! The last reading of the ledger, written to `stats_on_exit`.
//!
//! A reader never sees half of it, so it is written beside the path first and then put in its place. A user who may
//! write into that directory could have prepared the name beside it: a symbolic link would be followed and its target
//! overwritten, a pipe would block until it has a reader. Hence a name that cannot be foreseen, for a file that must be
//! new. What stands at the path itself is replaced only if it is a regular file, such as the ledger of the run before:
//! a device or a pipe was made by another program for another purpose.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use super::Snapshot;
use crate::exit::{ExitCode, Failure};

/// It names senders: for its owner to write and for the owner's group to read, whatever the umask.
const MODE: u32 = 0o640;

/// How many names to try. That even one of 2^64 is taken is no accident.
const NAMES_TRIED: u32 = 4;

impl Snapshot {
    /// Writes it to `path` as JSON, whole or not at all.
    pub fn save(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(self).map_err(io::Error::from);
        let saved = text.and_then(|text| replace(path, |file| writeln!(file, "{text}")));
        saved.map_err(|error| {
            let cure =
                "free some space, let udpd write there, or choose another stats_on_exit; the sums are in the log";
            let message = format!("cannot write the final ledger to {}: {error}; {cure}", path.display());
            Failure::new(ExitCode::Disk, message)
        })
    }
}

/// Lets `write` fill a new file beside `path`, and puts that in the place of what is there.
fn replace(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let (beside, mut file) = create_beside(path)?;
    let done = write(&mut file).and_then(|()| refuse_to_replace(path)).and_then(|()| fs::rename(&beside, path));
    if done.is_err() {
        // What went wrong first is what to say; that the rest of it stays is no worse.
        let _ = fs::remove_file(&beside);
    }
    done
}

/// A symbolic link is replaced itself: it may have been put there only now, and is never followed.
fn refuse_to_replace(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() || found.is_symlink() => Ok(()),
        Ok(_) => Err(io::Error::new(ErrorKind::AlreadyExists, "what is there is not a regular file")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// A new file in the directory of `path`.
fn create_beside(path: &Path) -> io::Result<(PathBuf, File)> {
    let mut outcome = Err(ErrorKind::AlreadyExists.into());
    for _ in 0..NAMES_TRIED {
        // The standard library has no random numbers, but it seeds its hash tables with them.
        let beside = path.with_file_name(format!(".udpd-ledger-{:016x}", RandomState::new().hash_one(path)));
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(MODE).custom_flags(OFlag::O_NOFOLLOW.bits());
        match options.open(&beside) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => outcome = Err(error),
            opened => return opened.map(|file| (beside, file)),
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;
    use hostloss::HostReading;

    fn ledger() -> Snapshot {
        Snapshot {
            version: "0.1.0".into(),
            uptime_seconds: 12.5,
            before: None,
            listeners: Vec::new(),
            host: HostReading::default(),
            log_lines_lost: 6,
            last_reload: None,
            draining_since: None,
            readiness: None,
            drain: None,
        }
    }

    fn names(directory: &Path) -> Vec<String> {
        let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    fn write_new(path: &Path) -> io::Result<()> {
        replace(path, |file| file.write_all(b"new"))
    }

    #[test]
    fn a_file_that_is_there_is_replaced_as_a_whole_and_nothing_stays_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.json");
        ledger().save(&path).unwrap();
        assert_eq!(serde_json::from_slice::<Snapshot>(&fs::read(&path).unwrap()).unwrap(), ledger());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777 & !0o640, 0);
        let before = File::open(&path).unwrap();
        write_new(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert!(io::read_to_string(before).unwrap().ends_with("}\n"), "who reads the old one reads on in it");
        assert_eq!(names(directory.path()), ["ledger.json"]);
    }

    #[test]
    fn what_somebody_has_put_beside_it_is_neither_opened_nor_removed() {
        let directory = tempfile::tempdir().unwrap();
        let (path, beside) = (directory.path().join("ledger.json"), directory.path().join("ledger.json.new"));
        let precious = directory.path().join("precious");
        fs::write(&precious, "precious").unwrap();
        symlink(&precious, &beside).unwrap();
        write_new(&path).unwrap();
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        assert!(beside.is_symlink());
        fs::remove_file(&beside).unwrap();
        // Opening a pipe without a reader would wait for ever.
        mkfifo(&beside, Mode::S_IRWXU).unwrap();
        write_new(&path).unwrap();
        assert!(fs::symlink_metadata(&beside).unwrap().file_type().is_fifo());
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(directory.path()), ["ledger.json", "ledger.json.new", "precious"]);
    }

    #[test]
    fn a_symbolic_link_is_replaced_itself_and_its_target_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let (path, target) = (directory.path().join("ledger.json"), directory.path().join("target"));
        fs::write(&target, "precious").unwrap();
        symlink(&target, &path).unwrap();
        write_new(&path).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
    }

    #[test]
    fn a_pipe_and_a_directory_are_refused_and_left_as_they_are() {
        let directory = tempfile::tempdir().unwrap();
        let (pipe, folder) = (directory.path().join("pipe"), directory.path().join("folder"));
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        fs::create_dir(&folder).unwrap();
        for path in [&pipe, &folder] {
            let failure = ledger().save(path).unwrap_err();
            assert_eq!(failure.code, ExitCode::Disk);
            for part in [path.to_str().unwrap(), "not a regular file", "stats_on_exit"] {
                assert!(failure.message.contains(part), "{failure} says nothing of {part}");
            }
        }
        assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
        assert_eq!(names(directory.path()), ["folder", "pipe"]);
    }

    #[test]
    fn a_failure_leaves_the_old_one_as_it_was_and_nothing_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.json");
        fs::write(&path, "old").unwrap();
        let failing = |file: &mut File| {
            file.write_all(b"half")?;
            Err(ErrorKind::StorageFull.into())
        };
        assert_eq!(replace(&path, failing).unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(names(directory.path()), ["ledger.json"]);
        let failure = ledger().save(&directory.path().join("absent/ledger.json")).unwrap_err();
        assert!(failure.message.contains("absent/ledger.json"), "{failure}");
    }
}
