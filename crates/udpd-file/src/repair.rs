//! Repair after a crash: a torn record at the end of a file is moved beside it before anything is appended.
//!
//! In a file of another format no end of a record can be recognized, so it is refused.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use super::handle::append_to;
use udpd_base::format::Boundary;
use udpd_base::seams::disk;

/// How far from its end an existing file of lines is searched for its last whole line, and how much of a file of blocks
/// is read at once. No record is as long.
const REPAIR_BYTES: u64 = 1 << 20;

/// How every capture begins: the type of its first block, the same in either byte order.
const CAPTURE_BEGINS: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// Refuses a file of another format, which would look like one with a torn end.
pub(super) fn check_format(mut file: &File, boundary: Boundary) -> io::Result<()> {
    let mut beginning = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(CAPTURE_BEGINS.len() as u64).read_to_end(&mut beginning)?;
    let is_capture = beginning == CAPTURE_BEGINS;
    match boundary {
        Boundary::Newline if is_capture => {
            Err(io::Error::other("it is a capture, and lines cannot follow one; write another path"))
        }
        Boundary::Block if !is_capture && !CAPTURE_BEGINS.starts_with(&beginning) => {
            Err(io::Error::other("it is not a capture, so none can be appended; write another path"))
        }
        _ => Ok(()),
    }
}

/// Moves what follows the last whole record into a file beside this one.
pub(super) fn set_torn_aside(file: &File, path: &Path, boundary: Boundary) -> io::Result<()> {
    match torn_end(file, boundary)? {
        torn if torn.is_empty() => Ok(()),
        torn => move_aside(file, path, &torn),
    }
}

/// What follows the last whole record.
pub(super) fn torn_end(file: &File, boundary: Boundary) -> io::Result<Vec<u8>> {
    check_format(file, boundary)?;
    match boundary {
        Boundary::Newline => torn_line(file),
        Boundary::Block | Boundary::Length => torn_record(file, boundary),
    }
}

/// Moves the torn end beside the file, which no other process writes.
pub(super) fn move_aside(file: &File, path: &Path, torn: &[u8]) -> io::Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".torn");
    disk::append_all(&append_to(Path::new(&aside))?, torn)?;
    disk::set_len(file, file.metadata()?.len() - torn.len() as u64)?;
    log::warn!(
        "{}: an earlier stop left a record of {} bytes unfinished at its end; moved it to {}",
        path.display(),
        torn.len(),
        Path::new(&aside).display()
    );
    Ok(())
}

/// What follows the last line end. A file whose last mebibyte has no line end at all is not ours and is refused.
fn torn_line(mut file: &File) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    let looked_at = length.min(REPAIR_BYTES);
    let mut tail = Vec::new();
    file.seek(SeekFrom::Start(length - looked_at))?;
    file.take(looked_at).read_to_end(&mut tail)?;
    let whole = Boundary::Newline.whole(&tail).bytes;
    if whole == 0 && length > looked_at {
        return Err(io::Error::other("its last MiB has no line end, so it is not a file of lines"));
    }
    Ok(tail.split_off(whole))
}

/// What follows the last whole record, found by walking from the first: a payload may hold anything, also what looks
/// like the end of a record.
fn torn_record(mut file: &File, boundary: Boundary) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(0))?;
    let mut chunk = Vec::new();
    loop {
        let begun = chunk.len() as u64;
        file.take(REPAIR_BYTES - begun).read_to_end(&mut chunk)?;
        let whole = boundary.whole(&chunk).bytes;
        let is_last = (chunk.len() as u64) < REPAIR_BYTES;
        if whole == 0 && !is_last {
            return Err(io::Error::other("its content is of another format"));
        }
        chunk.drain(..whole);
        if is_last {
            return Ok(chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::handle::LogHandle;
    use super::*;

    fn directory() -> tempfile::TempDir {
        tempfile::tempdir().expect("a temporary directory")
    }

    #[test]
    fn a_torn_line_is_set_aside_and_whole_lines_stay() {
        let directory = directory();
        let path = directory.path().join("deep/er/log");
        drop(LogHandle::open(&path, Boundary::Newline).expect("made with its directories"));
        fs::write(&path, b"whole\ntorn").expect("written");
        LogHandle::open(&path, Boundary::Newline).expect("repaired");
        assert_eq!(fs::read(&path).expect("readable"), b"whole\n");
        assert_eq!(fs::read(path.with_extension("torn")).expect("set aside"), b"torn");
    }

    #[test]
    fn a_torn_record_is_found_from_the_front_also_in_a_long_file() {
        let directory = directory();
        let path = directory.path().join("records");
        // The payload looks like a record with an end; only the walk from the front is not deceived.
        let record = [&1000_u32.to_be_bytes()[..], &[0; 1000]].concat();
        let whole = record.repeat(3000);
        fs::write(&path, [&whole[..], &record[..504]].concat()).expect("written");
        drop(LogHandle::open(&path, Boundary::Length).expect("repaired"));
        assert_eq!(fs::read(&path).expect("readable"), whole);
        assert_eq!(fs::read(directory.path().join("records.torn")).expect("set aside"), record[..504]);
        fs::write(&path, vec![0xff; 2 << 20]).expect("written");
        let error = LogHandle::open(&path, Boundary::Length).expect_err("something else");
        assert!(error.to_string().contains("of another format"), "{error}");
        assert_eq!(fs::metadata(&path).expect("there").len(), 2 << 20, "left as it is");
    }

    #[test]
    fn a_file_of_another_format_is_refused_and_left_as_it_is() {
        let directory = directory();
        let path = directory.path().join("file");
        for (content, boundary, words) in [
            (&b"text, and no line end"[..], Boundary::Block, "not a capture"),
            (&[&CAPTURE_BEGINS[..], b"and so on\ntorn"].concat(), Boundary::Newline, "a capture"),
        ] {
            fs::write(&path, content).expect("written");
            let error = LogHandle::open(&path, boundary).expect_err("another format").to_string();
            assert!(error.contains(words), "{error}");
            assert_eq!(fs::read(&path).expect("there"), content);
        }
        fs::write(&path, &CAPTURE_BEGINS[..2]).expect("written");
        LogHandle::open(&path, Boundary::Block).expect("a capture that was torn at once");
        assert_eq!(fs::metadata(&path).expect("there").len(), 0);
    }
}
