//! What a segment asks of its disk. In tests the disk can be a small one, which takes a write up to its last byte.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Writes all of it or fails; what was written by then stays there.
pub(super) fn write_all_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    #[cfg(test)]
    if let Some(missing) = small::take(file, at + bytes.len() as u64) {
        let fits = bytes.len().saturating_sub(usize::try_from(missing).unwrap_or(usize::MAX));
        file.write_all_at(&bytes[..fits], at)?;
        return Err(io::ErrorKind::StorageFull.into());
    }
    file.write_all_at(bytes, at)
}

pub(super) fn set_len(file: &File, bytes: u64) -> io::Result<()> {
    #[cfg(test)]
    small::give_back(file.metadata()?.len().saturating_sub(bytes));
    file.set_len(bytes)
}

pub(super) fn remove(path: &Path) -> io::Result<()> {
    #[cfg(test)]
    small::give_back(path.metadata()?.len());
    fs::remove_file(path)
}

/// How much room the disk of this thread has.
#[cfg(test)]
pub(crate) mod small {
    use std::cell::Cell;
    use std::fs::File;

    thread_local! {
        static FREE: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// From now on it has so much; `None` for as much as there is.
    pub(crate) fn set_free(bytes: Option<u64>) {
        FREE.set(bytes);
    }

    /// Takes room for a file that is to be so long; how much of that there is not.
    pub(super) fn take(file: &File, bytes: u64) -> Option<u64> {
        let room = FREE.get()?;
        let grows = bytes.saturating_sub(file.metadata().map_or(0, |found| found.len()));
        FREE.set(Some(room.saturating_sub(grows)));
        grows.checked_sub(room).filter(|missing| *missing > 0)
    }

    pub(super) fn give_back(bytes: u64) {
        FREE.set(FREE.get().map(|room| room + bytes));
    }
}
