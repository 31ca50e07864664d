//! Opening a file to append to it: a regular one with one name, or none.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::OFlag;

/// Opens or makes a regular file with one name; a symbolic link in the last place is refused, a pipe or a device does
/// not block.
pub(super) fn append_to(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o640)
        .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if metadata.nlink() > 1 {
        return Err(io::Error::other(format!(
            "it has {} names (hard links), and every record would appear under all of them; move it away (mv), or \
             find the others (find / -xdev -samefile FILE) and remove them",
            metadata.nlink()
        )));
    }
    Ok(file)
}

/// Opens a regular file that is there, to read it and, where that is allowed, to cut it.
pub(super) fn open_there(path: &Path) -> io::Result<File> {
    let open = |append| {
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
        OpenOptions::new().read(true).append(append).custom_flags(flags).open(path)
    };
    let file = match open(true) {
        Err(error) if matches!(error.kind(), io::ErrorKind::PermissionDenied) => open(false)?,
        opened => opened?,
    };
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}
