//! Reading a segment: from frame to frame, and past what is damaged to the next frame that is whole. Each step goes
//! forward, so a reader always ends.

use std::io;
use std::os::unix::fs::FileExt;

use super::layout::{ALIGNMENT, HEAD_BYTES, HEADER_BYTES, Head, may_be_head};
use super::segment::Segment;

/// How much is read at a time where the next frame is looked for.
const LOOK_BYTES: usize = 64 << 10;

/// The longest names in front of a frame's datagrams.
const NAMES_BYTES_MAX: usize = 2 * u8::MAX as usize;

/// What is in a segment, frame by frame.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    /// Datagrams behind the mark, by the name of their listener.
    pub(super) left: Vec<(String, u64)>,
    /// Datagrams of frames that end too early, the same way.
    pub(super) torn: Vec<(String, u64)>,
    /// Bytes that belong to no frame.
    pub(super) torn_bytes: u64,
    /// How many datagrams it has had.
    pub(super) records: u64,
}

/// The first frame from `at` on, and where it begins.
pub(super) fn next(segment: &Segment, at: u64) -> Option<(u64, Head)> {
    if at + HEAD_BYTES as u64 > segment.bytes {
        return None;
    }
    match segment.head(at) {
        Some(head) => Some((at, head)),
        None => search(segment, at + ALIGNMENT as u64),
    }
}

/// The first place from `at` on where a frame begins.
fn search(segment: &Segment, mut at: u64) -> Option<(u64, Head)> {
    let mut bytes = vec![0; LOOK_BYTES];
    while at + HEAD_BYTES as u64 <= segment.bytes {
        let wanted = bytes.len().min(usize::try_from(segment.bytes - at).unwrap_or(usize::MAX));
        let found = &mut bytes[..wanted];
        // What cannot be read is passed over, a piece at a time.
        if segment.file.read_exact_at(found, at).is_ok() {
            let places = (0..found.len()).step_by(ALIGNMENT).filter(|&place| may_be_head(&found[place..]));
            let heads = places.map(|place| at + place as u64);
            if let Some(found) = heads.into_iter().find_map(|at| segment.head(at).map(|head| (at, head))) {
                return Some(found);
            }
        }
        at += wanted.next_multiple_of(ALIGNMENT) as u64;
    }
    None
}

/// Whether all of a frame is there, as far as the length of its file tells.
pub(super) fn is_whole(segment: &Segment, at: u64, head: Head) -> bool {
    at + head.frame_bytes() <= segment.bytes
}

/// Reads the heads of all frames, and none of the datagrams.
pub(super) fn contents(segment: &Segment) -> Contents {
    let mut contents = Contents::default();
    let mut at = HEADER_BYTES as u64;
    while let Some((begin, head)) = next(segment, at) {
        contents.torn_bytes += begin - at;
        contents.records = contents.records.max(head.end());
        let is_whole = is_whole(segment, begin, head);
        let undecided = head.end().saturating_sub(head.first.max(u64::from(segment.mark.decided)));
        let by_name = if is_whole { &mut contents.left } else { &mut contents.torn };
        let name = listener_of(segment, begin, head);
        match by_name.iter_mut().find(|(own, _)| *own == name) {
            Some((_, datagrams)) => *datagrams += undecided,
            None => by_name.push((name, undecided)),
        }
        at = if is_whole { begin + head.frame_bytes() } else { begin + HEAD_BYTES as u64 };
    }
    contents.torn_bytes += segment.bytes.saturating_sub(at);
    contents
}

pub(super) fn listener_of(segment: &Segment, at: u64, head: Head) -> String {
    let mut name = [0; NAMES_BYTES_MAX];
    let name = &mut name[..usize::from(head.listener_bytes)];
    match segment.file.read_exact_at(name, at + HEAD_BYTES as u64) {
        Ok(()) => String::from_utf8_lossy(name).into_owned(),
        Err(_) => String::new(),
    }
}

/// Reads the body of a whole frame; an error where it is not what was written.
pub(super) fn body(segment: &Segment, at: u64, head: Head, body: &mut Vec<u8>) -> io::Result<()> {
    body.resize(head.body_bytes as usize, 0);
    segment.file.read_exact_at(body, at + HEAD_BYTES as u64)?;
    match crc32fast::hash(body) == head.body_sum {
        true => Ok(()),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}
