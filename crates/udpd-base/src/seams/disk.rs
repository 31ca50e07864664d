//! Calls that change files, and those that read back what has to last. A simulation can have each of them fail, a write
//! also after any of its bytes, and it sees what was done: so it knows what a power loss may take.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};

/// A call, as a simulation sees it.
#[derive(Debug, Clone, Copy)]
pub enum DiskCall<'a> {
    /// Opens a file, and makes it where the options say so.
    Open(&'a Path),
    /// Reads so many bytes at this place.
    Read(&'a File, usize, u64),
    /// Writes at this place; `None`: behind the last byte.
    Write(&'a File, &'a [u8], Option<u64>),
    SetLength(&'a File, u64),
    /// Forces a file or a directory to the disk.
    Sync(&'a File),
    Rename(&'a Path, &'a Path),
    Link(&'a Path, &'a Path),
    Remove(&'a Path),
}

/// Makes a call, unless the simulation lets it fail.
#[inline]
fn call<T>(_call: DiskCall<'_>, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    #[cfg(any(test, feature = "testing"))]
    if let Some(simulated) = crate::testing::simulated::current() {
        simulated.before(&_call)?;
        let made = make()?;
        simulated.after(&_call);
        return Ok(made);
    }
    make()
}

/// How many of the bytes are to be written, and how that ends.
#[inline]
fn fitting<'a>(_file: &File, bytes: &'a [u8], _at: Option<u64>) -> (&'a [u8], io::Result<()>) {
    #[cfg(any(test, feature = "testing"))]
    if let Some(simulated) = crate::testing::simulated::current() {
        let (written, outcome) = simulated.write(_file, bytes, _at);
        return (&bytes[..written], outcome);
    }
    (bytes, Ok(()))
}

#[inline]
pub fn open(path: &Path, options: &OpenOptions) -> io::Result<File> {
    call(DiskCall::Open(path), || options.open(path))
}

#[inline]
pub fn read_exact_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    call(DiskCall::Read(file, bytes.len(), at), || file.read_exact_at(bytes, at))
}

/// Writes all bytes or fails; those that were written by then stay.
#[inline]
pub fn write_all_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    let (fitting, outcome) = fitting(file, bytes, Some(at));
    call(DiskCall::Write(file, fitting, Some(at)), || file.write_all_at(fitting, at))?;
    outcome
}

/// Appends some of the bytes; returns how many.
#[inline]
pub fn append(mut file: &File, bytes: &[u8]) -> io::Result<usize> {
    let (fitting, outcome) = fitting(file, bytes, None);
    if fitting.is_empty() {
        outcome?;
    }
    call(DiskCall::Write(file, fitting, None), || file.write(fitting))
}

/// Appends through the seam, for what writes to any [`Write`].
#[derive(Debug)]
pub struct Appender<'a>(pub &'a File);

impl Write for Appender<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        append(self.0, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Appends all bytes or fails; those that were written by then stay.
pub fn append_all(file: &File, bytes: &[u8]) -> io::Result<()> {
    Appender(file).write_all(bytes)
}

#[inline]
pub fn set_len(file: &File, bytes: u64) -> io::Result<()> {
    call(DiskCall::SetLength(file, bytes), || file.set_len(bytes))
}

#[inline]
pub fn sync_data(file: &File) -> io::Result<()> {
    call(DiskCall::Sync(file), || file.sync_data())
}

/// Of a file with all that is known of it, or of the names in a directory.
#[inline]
pub fn sync_all(file: &File) -> io::Result<()> {
    call(DiskCall::Sync(file), || file.sync_all())
}

#[inline]
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    call(DiskCall::Rename(from, to), || fs::rename(from, to))
}

/// The same, and fails where there is such a name.
#[inline]
pub fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    call(DiskCall::Rename(from, to), || Ok(renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?))
}

#[inline]
pub fn hard_link(from: &Path, to: &Path) -> io::Result<()> {
    call(DiskCall::Link(from, to), || fs::hard_link(from, to))
}

#[inline]
pub fn remove_file(path: &Path) -> io::Result<()> {
    call(DiskCall::Remove(path), || fs::remove_file(path))
}
