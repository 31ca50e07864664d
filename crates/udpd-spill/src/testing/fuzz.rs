//! A fuzz target: the segments that an earlier process, a crash or a bad disk has left.

use std::fs;
use std::path::Path;

use mmsg::PackedBatch;

use crate::layout::{ALIGNMENT, FrameHead, HEAD_BYTES, MARK_BYTES, MARKS, SegmentHeader, SegmentMark};
use crate::{BYTES_MIN, FRAME_BYTES_MAX, SpillLane, SpillLanes, SpillStore};

/// A target and its name.
pub type NamedTarget = (&'static str, fn(&[u8]));

/// All of them.
pub fn targets() -> Vec<NamedTarget> {
    vec![("segments", segments)]
}

/// The first byte says whether the rest is a segment as it is, or frames whose checksums are made right. What was found
/// is what is read or given up, in steps that end, and a second process finds nothing more.
fn segments(input: &[u8]) {
    let Some((&kind, rest)) = input.split_first() else { return };
    let directory = tempfile::tempdir_in(memory()).expect("a directory");
    let path = directory.path().join(format!("{:020}.spill", 7));
    let content = if kind == 0 { rest.to_vec() } else { sealed(kind, rest) };
    fs::write(&path, content).expect("a segment");
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a mode");
    let lane =
        |lane: usize, name: &str| SpillLane { lane, listener: lane, name: name.to_owned(), bound: String::new() };
    let lanes = || SpillLanes::of(vec![lane(0, "a"), lane(1, "b")]).expect("two lanes");
    let Ok((mut store, found)) = SpillStore::open(directory.path(), BYTES_MIN, lanes(), &[]) else { return };
    let left: u64 = found.left.iter().map(|(_, datagrams)| datagrams).sum();
    assert_eq!(store.left(), left);
    let (mut decided, mut lost) = (0, 0);
    let mut batch = PackedBatch::pool(1, FRAME_BYTES_MAX, false).expect("memory").0.remove(0);
    while let Some(frame) = store.read().expect("a disk in memory") {
        assert!(frame.datagrams > 0 && frame.skipped as u64 + frame.datagrams <= frame.end);
        let is_read = !frame.is_damaged && batch.unpack(store.datagrams(), |place| place >= frame.skipped);
        if is_read && batch.summary().datagrams == frame.datagrams {
            store.decide(frame.segment, frame.listener, frame.datagrams);
            decided += frame.datagrams;
        } else {
            store.give_up(frame.segment, frame.listener, frame.datagrams, |_, datagrams| lost += datagrams);
        }
        store.acknowledge(frame.segment, frame.end);
        assert!(decided + lost <= left + decided, "no more is lost than there is");
    }
    store.close(false).expect("a disk in memory");
    drop(store);
    let (store, found) = SpillStore::open(directory.path(), BYTES_MIN, lanes(), &[]).expect("it was opened before");
    let again: u64 = found.left.iter().map(|(_, datagrams)| datagrams).sum();
    assert!(again == store.left() && again <= left.saturating_sub(lost));
}

/// A segment whose header is right, with frames that the bytes describe: how many records a head claims, how long its
/// body is and which listener's datagrams are in it; then the body itself. Numbers are also the largest there can be.
fn sealed(kind: u8, mut rest: &[u8]) -> Vec<u8> {
    let header = SegmentHeader { number: 7, key: 1 };
    let mut bytes = header.encode().to_vec();
    if kind & 1 == 1 {
        let turn = if kind & 2 == 0 { 1 } else { u32::MAX };
        let mark = SegmentMark {
            decided: u32::from(kind >> 4),
            handed: u32::from(kind >> 2 & 7),
            turn,
            ..SegmentMark::default()
        };
        bytes[MARKS[0] as usize..][..MARK_BYTES].copy_from_slice(&mark.encode());
    }
    while let Some((own, more)) = rest.split_first_chunk::<8>() {
        let (body, behind) = more.split_at((usize::from(own[0]) * ALIGNMENT).min(more.len()));
        rest = behind;
        let place = u64::from(u16::from_le_bytes([own[4], own[5]]));
        let first = match own[6] >> 4 & 3 {
            1 => u64::from(u32::MAX) - place,
            2 => u64::MAX - place,
            _ => place,
        };
        let head = FrameHead {
            records: u32::from(own[1]),
            body_bytes: (usize::from(own[0]) * ALIGNMENT) as u32 + u32::from(own[6] & 1) * u32::from(own[7]),
            listener_bytes: own[2],
            bound_bytes: own[3],
            first,
            body_sum: if own[6] & 2 == 0 { crc32fast::hash(body) } else { 1 },
        };
        let mut encoded = head.encode(header, bytes.len() as u64 + u64::from(own[6] & 4));
        if own[6] & 8 != 0 {
            encoded[usize::from(own[7]) % HEAD_BYTES] ^= 1;
        }
        bytes.extend_from_slice(&encoded);
        bytes.extend_from_slice(body);
    }
    bytes
}

/// A file system in memory, where there is one.
fn memory() -> std::path::PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}
