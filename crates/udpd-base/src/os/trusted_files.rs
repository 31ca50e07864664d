//! What an earlier process has left and this one takes up again: believed only when no other user can have written it.
//!
//! A file in a directory that others may write can be theirs, or a link to theirs, and a daemon that starts as root
//! would deliver what it finds there or overwrite what it leads to. So the last step of a path is never through a link,
//! and what is opened belongs to root or to the user of this process, is of the kind that is expected, has one name,
//! and is written by its owner alone.

use std::error::Error;
use std::fmt;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::unistd::geteuid;

use crate::seams::disk;

/// What a file is made with, whatever the umask.
pub const FILE_MODE: u32 = 0o600;

/// The same of a directory.
pub const DIRECTORY_MODE: u32 = 0o700;

/// Who may write it, besides its owner.
const OTHERS_WRITE: u32 = 0o022;

/// Why something is not believed: it says what is there, what is expected and what helps.
#[derive(Debug)]
struct OwnershipRefusal(String);

impl fmt::Display for OwnershipRefusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl Error for OwnershipRefusal {}

fn refused(path: &Path, what: &str, expected: &str, cure: &str) -> io::Error {
    let text = format!("{} {what}, and udpd takes up only {expected}; {cure}", path.display());
    io::Error::new(ErrorKind::PermissionDenied, OwnershipRefusal(text))
}

/// Whether something was refused here, and says itself where it is and what helps.
pub fn is_refusal(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<OwnershipRefusal>())
}

/// Whether it is believed, whatever its kind is.
fn check_owner(path: &Path, found: &Metadata) -> io::Result<()> {
    let own = geteuid().as_raw();
    let at = path.display();
    if found.uid() != 0 && found.uid() != own {
        let what = format!("belongs to user {}", found.uid());
        let whose = if own == 0 { "what belongs to root".to_owned() } else { format!("what belongs to user {own}") };
        return Err(refused(
            path,
            &what,
            &whose,
            &format!("`chown {own} {at}` if you have put it there, else move it away"),
        ));
    }
    check_mode(path, found)
}

/// Whether its owner alone may write it.
fn check_mode(path: &Path, found: &Metadata) -> io::Result<()> {
    let (at, mode) = (path.display(), found.mode() & 0o7777);
    if mode & OTHERS_WRITE != 0 {
        let what = format!("has mode {mode:04o}, so others may write it");
        let cure = format!("`chmod go-w {at}` if no other user has written it, else move it away");
        return Err(refused(path, &what, "what its owner alone may write", &cure));
    }
    Ok(())
}

/// Whether a stranger could replace a socket in this directory. In a sticky one no user replaces what is another's; and
/// its owner is not believed by its name, but asked of the kernel at each connection.
pub fn check_directory_of_socket(path: &Path) -> io::Result<()> {
    let found = fs::metadata(path)?;
    match found.mode() & 0o1000 != 0 {
        true => Ok(()),
        false => check_mode(path, &found),
    }
}

/// Opens a file, never through a link, and makes it for its owner alone where `options` say so.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    open_as(path, options, FILE_MODE)
}

/// The same with the mode that one gets that is made.
pub fn open_as(path: &Path, options: &mut OpenOptions, mode: u32) -> io::Result<File> {
    // A pipe in its place does not make us wait for its other end.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = disk::open(path, options.mode(mode).custom_flags(flags.bits())).map_err(|error| {
        match error.raw_os_error() {
            Some(number) if number == Errno::ELOOP as i32 => {
                refused(path, "is a symbolic link", "what is a file itself", "put the file itself there")
            }
            _ => error,
        }
    })?;
    check_file(path, &file)?;
    Ok(file)
}

/// Whether an open file is believed.
pub fn check_file(path: &Path, file: &File) -> io::Result<()> {
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(refused(path, "is not a regular file", "regular files", "take it away"));
    }
    if found.nlink() > 1 {
        let what = format!("has {} names (hard links)", found.nlink());
        let cure = format!("find the others (`find / -xdev -samefile {}`) and remove them", path.display());
        return Err(refused(path, &what, "files with one name", &cure));
    }
    check_owner(path, &found)
}

/// Makes a directory where it is missing, and all above it, for its owner alone and whatever the umask. One that is
/// there must be a directory itself and be its owner's.
pub fn make_directory(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(_) => return check_directory(path),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty() && !parent.exists()) {
        make_directory(parent)?;
    }
    match DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    check_directory(path)
}

/// Whether what is in a directory can be believed.
pub fn check_directory(path: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    if found.is_symlink() {
        let cure = "name the directory that it leads to";
        return Err(refused(path, "is a symbolic link", "what is a directory itself", cure));
    }
    if !found.is_dir() {
        return Err(io::Error::new(ErrorKind::NotADirectory, format!("{} is no directory", path.display())));
    }
    check_owner(path, &found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        path.symlink_metadata().expect("there").mode() & 0o7777
    }

    fn refusal<T: fmt::Debug>(outcome: io::Result<T>) -> String {
        let error = outcome.expect_err("refused");
        assert!(is_refusal(&error) && error.kind() == ErrorKind::PermissionDenied, "{error}");
        error.to_string()
    }

    #[test]
    fn what_is_made_is_its_owners_alone_and_is_believed_the_next_time() {
        let root = tempfile::tempdir().expect("a directory");
        let directory = root.path().join("a/b");
        make_directory(&directory).expect("made");
        make_directory(&directory).expect("there");
        let file = directory.join("file");
        drop(open(&file, OpenOptions::new().write(true).create(true).truncate(false)).expect("made"));
        drop(open(&file, OpenOptions::new().write(true)).expect("there"));
        assert_eq!([mode(&root.path().join("a")), mode(&directory), mode(&file)], [0o700, 0o700, 0o600]);
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("set");
        check_directory(&directory).expect("others may read what an older udpd has made");
    }

    #[test]
    fn what_others_may_write_or_own_and_what_is_no_file_is_refused_with_its_name_and_a_cure() {
        let root = tempfile::tempdir().expect("a directory");
        let at = |name: &str| root.path().join(name);
        let reading = || OpenOptions::new().read(true).clone();
        for (name, mode) in [("group", 0o620), ("all", 0o602)] {
            fs::write(at(name), "").expect("written");
            fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).expect("set");
            let said = refusal(open(&at(name), &mut reading()));
            assert!(
                said.contains(name) && said.contains("chmod go-w") && said.contains(&format!("{mode:04o}")),
                "{said}"
            );
        }
        fs::write(at("file"), "").expect("written");
        symlink(at("file"), at("link")).expect("made");
        fs::hard_link(at("file"), at("second")).expect("made");
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("made");
        for (name, what) in [("link", "symbolic link"), ("second", "2 names"), ("pipe", "not a regular file")] {
            let said = refusal(open(&at(name), &mut reading()));
            assert!(said.contains(name) && said.contains(what), "{said}");
        }
        fs::create_dir(at("directory")).expect("made");
        symlink(at("directory"), at("to-directory")).expect("made");
        assert!(refusal(make_directory(&at("to-directory"))).contains("symbolic link"));
        fs::set_permissions(at("directory"), fs::Permissions::from_mode(0o777)).expect("set");
        assert!(refusal(make_directory(&at("directory"))).contains("chmod go-w"));
        assert_eq!(make_directory(&at("file")).expect_err("no directory").kind(), ErrorKind::NotADirectory);
        if geteuid().is_root() {
            fs::write(at("theirs"), "").expect("written");
            std::os::unix::fs::chown(at("theirs"), Some(65_534), None).expect("root may");
            let said = refusal(open(&at("theirs"), &mut reading()));
            assert!(said.contains("belongs to user 65534") && said.contains("chown 0"), "{said}");
        }
    }
}
