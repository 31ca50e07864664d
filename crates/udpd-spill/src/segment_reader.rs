//! Reading a segment: from frame to frame, and past what is damaged to the next frame that is whole. Each step goes
//! forward, so a reader always ends.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use mmsg::PackedDatagrams;

use super::layout::{ALIGNMENT, FRAME_BYTES_MAX, FrameHead, HEAD_BYTES, HEADER_BYTES, SegmentMark, may_be_head};
use super::segment::Segment;
use udpd_base::os::trusted_files;
use udpd_base::seams::disk;

/// How much is read at once in the search for the next frame.
const LOOK_BYTES: usize = 64 << 10;

/// How much is read at once of frames whose heads cannot be trusted.
const READ_BYTES: usize = 8 * FRAME_BYTES_MAX;

/// The longest names in front of a frame's datagrams.
const NAMES_BYTES_MAX: usize = 2 * u8::MAX as usize;

/// The datagrams and bytes of a segment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    /// Datagrams after the mark, by the name of their listener.
    pub(super) left: Vec<(String, u64)>,
    /// Datagrams of frames that end too early, the same way.
    pub(super) torn: Vec<(String, u64)>,
    /// Datagrams after the mark that were handed on, the same way.
    pub(super) handed: Vec<(String, u64)>,
    /// Bytes that belong to no frame.
    pub(super) torn_bytes: u64,
    /// How many datagrams it has had.
    pub(super) records: u64,
}

/// The first frame from `at` on, and where it begins. Places that the disk does not return are skipped, and `error`
/// says why.
pub(super) fn next(segment: &Segment, at: u64, error: &mut Option<io::Error>) -> Option<(u64, FrameHead)> {
    if at + HEAD_BYTES as u64 > segment.bytes {
        return None;
    }
    match noted(segment.head(at), error).flatten() {
        Some(head) => Some((at, head)),
        None => search(segment, at + ALIGNMENT as u64, error),
    }
}

/// The first place from `at` on where a frame begins.
fn search(segment: &Segment, mut at: u64, error: &mut Option<io::Error>) -> Option<(u64, FrameHead)> {
    let mut bytes = vec![0; LOOK_BYTES];
    while at + HEAD_BYTES as u64 <= segment.bytes {
        let wanted = bytes.len().min(usize::try_from(segment.bytes - at).unwrap_or(usize::MAX));
        let found = &mut bytes[..wanted];
        if noted(disk::read_exact_at(&segment.file, found, at), error).is_some() {
            for place in (0..found.len()).step_by(ALIGNMENT).filter(|&place| may_be_head(&found[place..])) {
                let at = at + place as u64;
                if let Some(head) = noted(segment.head(at), error).flatten() {
                    return Some((at, head));
                }
            }
        }
        at += wanted.next_multiple_of(ALIGNMENT) as u64;
    }
    None
}

/// The result of a read. An error of the disk goes to `error`.
fn noted<T>(read: io::Result<T>, error: &mut Option<io::Error>) -> Option<T> {
    read.map_err(|found| {
        if is_of_the_disk(&found) {
            *error = Some(found);
        }
    })
    .ok()
}

/// Whether the disk has failed, so that the data may still be intact.
pub(super) fn is_of_the_disk(error: &io::Error) -> bool {
    !matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData)
}

/// Whether all of a frame is there, as far as the length of its file tells.
pub(super) fn is_whole(segment: &Segment, at: u64, head: FrameHead) -> bool {
    at + head.frame_bytes() <= segment.bytes
}

/// Reads the heads of all frames, and datagrams only where a head cannot be read. It fails on an error of the disk:
/// otherwise data that may be readable later would count as damaged and be removed.
pub(super) fn contents(segment: &Segment) -> io::Result<Contents> {
    let (mut contents, mut error) = (Contents::default(), None);
    let (mut at, mut behind, mut uncounted) = (HEADER_BYTES as u64, 0, HEADER_BYTES as u64);
    let decided = u64::from(segment.mark.decided);
    while let Some((begin, head)) = next(segment, at, &mut error) {
        contents.torn_bytes += begin - at;
        let is_whole = is_whole(segment, begin, head);
        let from = head.first.max(decided);
        let undecided = head.end().saturating_sub(from);
        let name = noted(listener_of(segment, begin, head), &mut error).unwrap_or_default();
        // So many datagrams belong to heads in between that cannot be read. Their listener is a guess.
        add(&mut contents.torn, &name, head.first.saturating_sub(decided.max(behind)));
        if is_whole {
            let handed = head.end().min(u64::from(segment.mark.handed)).saturating_sub(from);
            add(&mut contents.handed, &name, handed);
        }
        add(if is_whole { &mut contents.left } else { &mut contents.torn }, &name, undecided);
        behind = behind.max(head.end());
        at = if is_whole { begin + head.frame_bytes() } else { begin + HEAD_BYTES as u64 };
        uncounted = if is_whole { at } else { segment.bytes };
    }
    contents.records = behind;
    contents.torn_bytes += segment.bytes.saturating_sub(at);
    // After the last readable head only the datagrams themselves tell how many there were.
    noted(unsealed(&segment.file, uncounted, segment.bytes, (behind, decided), &mut contents.torn), &mut error);
    error.map_or(Ok(contents), Err)
}

/// Counts the datagrams of consecutive frames from `at` on whose heads cannot be trusted. `behind` is the place after
/// the last datagram before them, and `decided` the place of the first undecided one.
fn unsealed(
    file: &File,
    mut at: u64,
    end: u64,
    (mut behind, decided): (u64, u64),
    torn: &mut Vec<(String, u64)>,
) -> io::Result<()> {
    let (mut bytes, mut from) = (Vec::new(), at);
    while at + HEAD_BYTES as u64 <= end {
        let left = usize::try_from(end - at).unwrap_or(usize::MAX);
        let (longest, mut begin) = (FRAME_BYTES_MAX.min(left), (at - from) as usize);
        if bytes.len() < begin + longest {
            // Many short frames are read at once.
            bytes.resize(left.min(READ_BYTES), 0);
            disk::read_exact_at(file, &mut bytes, at)?;
            (from, begin) = (at, 0);
        }
        let Some((name, datagrams, frame_bytes)) = unsealed_frame(&bytes[begin..begin + longest]) else {
            return Ok(());
        };
        let undecided = (behind + datagrams).saturating_sub(behind.max(decided));
        add(torn, &name, undecided);
        (at, behind) = (at + frame_bytes as u64, behind + datagrams);
    }
    Ok(())
}

/// The listener of a frame that begins here, how many datagrams are in it, and how long it is.
fn unsealed_frame(bytes: &[u8]) -> Option<(String, u64, usize)> {
    let (own, behind) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    if let Some(head) = FrameHead::unsealed(own)
        && let Some(body) = behind.get(..head.body_bytes as usize)
        && crc32fast::hash(body) == head.body_sum
    {
        let (name, packed) = (&body[..usize::from(head.listener_bytes)], &body[head.names_bytes()..]);
        let (datagrams, length) = count(packed);
        if length == packed.len() {
            return Some((String::from_utf8_lossy(name).into_owned(), datagrams, HEAD_BYTES + body.len()));
        }
    }
    // The head is invalid, and tells neither where the datagrams begin nor where the frame ends.
    let begins = (0..=NAMES_BYTES_MAX.min(behind.len())).step_by(ALIGNMENT);
    let (begin, (datagrams, length)) =
        begins.map(|begin| (begin, count(&behind[begin..]))).max_by_key(|(_, (_, length))| *length)?;
    (datagrams > 0).then(|| (String::new(), datagrams, HEAD_BYTES + begin + length))
}

/// How many datagrams follow one another here, and how long they are.
fn count(bytes: &[u8]) -> (u64, usize) {
    let mut packed = PackedDatagrams::of(bytes);
    let mut datagrams = 0;
    loop {
        let length = bytes.len() - packed.rest().len();
        // A datagram without a source was never written: zero bytes would look like many of them.
        match packed.next() {
            Some(datagram) if datagram.source().is_some() => datagrams += 1,
            _ => return (datagrams, length),
        }
    }
}

/// The datagrams of a segment whose header is damaged, so that none of its heads can be trusted.
pub(super) fn contents_unsealed(path: &Path) -> io::Result<Vec<(String, u64)>> {
    let file = trusted_files::open(path, OpenOptions::new().read(true))?;
    let bytes = file.metadata()?.len();
    let mut header = [0; HEADER_BYTES];
    let mut torn = Vec::new();
    if bytes > HEADER_BYTES as u64 {
        disk::read_exact_at(&file, &mut header, 0)?;
        let decided = u64::from(SegmentMark::latest(&header).decided);
        unsealed(&file, HEADER_BYTES as u64, bytes, (0, decided), &mut torn)?;
    }
    Ok(torn)
}

fn add(sums: &mut Vec<(String, u64)>, name: &str, datagrams: u64) {
    match sums.iter_mut().find(|(own, _)| own == name) {
        Some((_, sum)) => *sum += datagrams,
        None if datagrams > 0 => sums.push((name.to_owned(), datagrams)),
        None => {}
    }
}

/// The name of the listener whose datagrams are in a frame.
pub(super) fn listener_of(segment: &Segment, at: u64, head: FrameHead) -> io::Result<String> {
    let mut name = [0; NAMES_BYTES_MAX];
    let name = &mut name[..usize::from(head.listener_bytes)];
    disk::read_exact_at(&segment.file, name, at + HEAD_BYTES as u64)?;
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// Reads the body of a whole frame; an error where it is not what was written.
pub(super) fn body(segment: &Segment, at: u64, head: FrameHead, body: &mut Vec<u8>) -> io::Result<()> {
    body.resize(head.body_bytes as usize, 0);
    disk::read_exact_at(&segment.file, body, at + HEAD_BYTES as u64)?;
    match crc32fast::hash(body) == head.body_sum {
        true => Ok(()),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}
