//! Files of the kernel that are read once a second: opened once, and read anew from their beginning.
//!
//! An open file below /proc/net stays in the network namespace of the thread that opened it. It is therefore opened
//! below `thread-self`: `/proc/net` is that of the process's first thread.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// More than any of them has, so that nothing here grows without bound.
const BYTES_MAX: usize = 4 << 20;
const FIRST_BYTES: usize = 16 << 10;

/// One such file.
#[derive(Debug)]
pub(super) struct ProcFile {
    path: PathBuf,
    file: Option<File>,
}

impl ProcFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, file: None }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Its text of now. `None` when there is no such file: the kernel has not what it tells of.
    pub(super) fn read<'a>(&mut self, buffer: &'a mut Vec<u8>) -> Result<Option<&'a str>, String> {
        let length = match self.fill(buffer) {
            Ok(length) => length,
            Err(error) => {
                // Perhaps it can be opened anew.
                self.file = None;
                let is_absent = error.kind() == io::ErrorKind::NotFound;
                return if is_absent { Ok(None) } else { Err(format!("{}: {error}", self.path.display())) };
            }
        };
        match str::from_utf8(&buffer[..length]) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(format!("{} is not text", self.path.display())),
        }
    }

    fn fill(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        if self.file.is_none() {
            self.file = Some(File::open(&self.path)?);
        }
        let file = self.file.as_ref().expect("just opened");
        buffer.resize(buffer.len().max(FIRST_BYTES), 0);
        let mut length = 0;
        // The kernel may hand out a file in pieces, so only the end says that it is whole.
        loop {
            match file.read_at(&mut buffer[length..], length as u64)? {
                0 => return Ok(length),
                read => length += read,
            }
            if length == buffer.len() {
                if length >= BYTES_MAX {
                    return Err(io::Error::other(format!("it is longer than {BYTES_MAX} bytes")));
                }
                buffer.resize(2 * length, 0);
            }
        }
    }
}
