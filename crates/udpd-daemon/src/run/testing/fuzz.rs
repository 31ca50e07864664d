//! A fuzz target: the record that a process has left in memory.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};

use super::crash_record::{RecordFile, SLOT_BYTES};

/// The first half of the bytes is in one slot, the rest in the other. What is read of a record and written again is
/// read as the same, and no number of what was lost wraps.
pub(crate) fn record(input: &[u8]) {
    let file = File::from(memfd_create("record", MemfdFlags::CLOEXEC).expect("a file in memory"));
    let (one, other) = input.split_at(input.iter().position(|byte| *byte == 0xff).unwrap_or(input.len()));
    file.write_all_at(one, 0).expect("room");
    file.write_all_at(other.get(1..).unwrap_or_default(), SLOT_BYTES as u64).expect("room");
    let kept = file.try_clone().expect("a descriptor").into();
    let Some((mut read, record)) = RecordFile::open(kept) else { return };
    let lost = record.lost();
    assert!(lost.held_at_most.datagrams >= record.before.held_at_most.datagrams);
    if read.write(&record).is_ok() {
        let (_, again) = RecordFile::open(file.into()).expect("it was written");
        assert_eq!(again, record);
        assert_eq!(again.lost(), lost);
    }
}
