//! What a process writes down for the one that comes after it, in a file in memory that the service manager keeps with
//! the sockets, and that a process gets with them which takes over: who it is, how much it can hold at most, how far it
//! and the kernel had counted drops, and whether it has ended by itself. A process that is killed cannot say what it
//! lost; the next one says it for it.
//!
//! The file has two places, which are written in turn, so that a kill between two pages spoils one of them at most. A
//! place counts when the number at its beginning is also at its end.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, Mode, fchmod, memfd_create};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use udpd_engine::pipeline::Drops;
use udpd_engine::plan::Held;

/// What it is called where it is kept. No lane is called so: their names end with a number.
pub(super) const NAME: &str = "udpd-record";

/// The length of a place. Only what is written takes memory; there is room for some twenty thousand sockets.
const PLACE_BYTES: usize = 1 << 20;

/// How many digits a number has at the beginning and at the end of a place.
const DIGITS: usize = 20;

/// What is written down of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Record {
    pub pid: u32,
    /// It has ended by itself, with closed books.
    pub ended: bool,
    pub held_at_most: Held,
    /// What processes before it may have lost. It stands here until this one has it in its books and is ready.
    pub before: Unsaid,
    /// Datagrams under way when it looked last.
    pub in_flight: u64,
    /// The kernel's counts of drops when it looked last, by the inode of the socket.
    pub drops: Drops,
    /// What the kernel had dropped by then, in its own books; `None` where that is not known, as of older versions.
    #[serde(default)]
    pub kernel_dropped: Option<u64>,
    /// What it had dropped itself by then.
    pub dropped: u64,
    /// The listeners whose receive queues it takes past the kernel's stack. What the kernel drops there nobody can ask
    /// when it is dead.
    pub queues: BTreeSet<String>,
}

/// What no process that was ready has said yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Unsaid {
    pub held_at_most: Held,
    pub in_flight: u64,
    /// What the kernel had dropped, in books that are gone; `None` where that is not known.
    #[serde(default)]
    pub kernel_dropped: Option<u64>,
    /// What those processes had dropped themselves.
    pub dropped: u64,
}

impl Default for Record {
    fn default() -> Self {
        Self {
            pid: 0,
            ended: false,
            held_at_most: Held::default(),
            before: Unsaid::default(),
            in_flight: 0,
            drops: Drops::new(),
            kernel_dropped: Some(0),
            dropped: 0,
            queues: BTreeSet::new(),
        }
    }
}

impl Default for Unsaid {
    fn default() -> Self {
        Self { held_at_most: Held::default(), in_flight: 0, kernel_dropped: Some(0), dropped: 0 }
    }
}

impl Record {
    /// What it may have lost, with what it had yet to say of those before it.
    pub(super) fn lost(&self) -> Unsaid {
        let Self { held_at_most, in_flight, kernel_dropped, dropped, before, .. } = self;
        // What one has counted that ended by itself is in its last ledger.
        let own = if self.ended {
            Unsaid::default()
        } else {
            Unsaid {
                held_at_most: *held_at_most,
                in_flight: *in_flight,
                kernel_dropped: *kernel_dropped,
                dropped: *dropped,
            }
        };
        let add = |one: u64, other: u64| one.saturating_add(other);
        let held_at_most = Held {
            datagrams: add(own.held_at_most.datagrams, before.held_at_most.datagrams),
            bytes: add(own.held_at_most.bytes, before.held_at_most.bytes),
        };
        Unsaid {
            held_at_most,
            in_flight: add(own.in_flight, before.in_flight),
            kernel_dropped: own.kernel_dropped.zip(before.kernel_dropped).map(|(one, other)| add(one, other)),
            dropped: add(own.dropped, before.dropped),
        }
    }
}

/// The file.
#[derive(Debug)]
pub(super) struct RecordFile {
    file: File,
    /// How many records were written.
    written: u64,
}

impl RecordFile {
    /// An empty one.
    pub(super) fn create() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC;
        // Some hosts insist that it cannot be run as a program; kernels before 6.3 do not know what that is.
        let file = match memfd_create(NAME, flags | MemfdFlags::NOEXEC_SEAL) {
            Err(Errno::INVAL) => memfd_create(NAME, flags),
            other => other,
        };
        let file = File::from(file?);
        // The kernel makes it for everybody.
        fchmod(&file, Mode::RUSR | Mode::WUSR)?;
        Ok(Self { file, written: 0 })
    }

    /// One that was kept, with what was written there last; `None` where nothing can be read from it.
    pub(super) fn open(descriptor: OwnedFd) -> Option<(Self, Record)> {
        let file = File::from(descriptor);
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let (written, record) = newest(&file)?;
        Some((Self { file, written }, record))
    }

    /// Puts down what is so now.
    pub(super) fn write(&mut self, record: &Record) -> io::Result<()> {
        let number = self.written + 1;
        let json = serde_json::to_string(record)?;
        let text = format!("{number:0DIGITS$}\n{json}\n{number:0DIGITS$}\n");
        if text.len() > PLACE_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.file.write_all_at(text.as_bytes(), offset(number % 2))?;
        self.written = number;
        Ok(())
    }

    pub(super) fn descriptor(&self) -> &File {
        &self.file
    }
}

fn offset(place: u64) -> u64 {
    place * PLACE_BYTES as u64
}

fn newest(file: &File) -> Option<(u64, Record)> {
    let places = [0, 1].map(|place| read_place(file, place));
    places.into_iter().flatten().max_by_key(|(number, _)| *number)
}

/// The number and the record in a place, unless it is empty or was written in part.
fn read_place(file: &File, place: u64) -> Option<(u64, Record)> {
    let mut bytes = vec![0; PLACE_BYTES];
    let mut length = 0;
    while length < PLACE_BYTES {
        match file.read_at(&mut bytes[length..], offset(place) + length as u64) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    let mut lines = std::str::from_utf8(&bytes[..length]).ok()?.split('\n');
    let (begin, json, end) = (lines.next()?, lines.next()?, lines.next()?);
    if begin != end || begin.len() != DIGITS {
        return None;
    }
    // The next one has a number, too.
    let number = begin.parse().ok().filter(|number| *number < u64::MAX)?;
    Some((number, serde_json::from_str(json).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(in_flight: u64, sockets: u64) -> Record {
        let drops = (0..sockets).map(|inode| (inode, 7)).collect();
        let held_at_most = Held { datagrams: 5, bytes: 6 };
        Record { pid: 4, held_at_most, in_flight, drops, ..Record::default() }
    }

    fn reopened(file: &RecordFile) -> Option<Record> {
        RecordFile::open(file.file.try_clone().expect("a copy").into()).map(|(_, record)| record)
    }

    #[test]
    fn the_record_that_was_written_last_is_read_also_by_the_next_that_writes() {
        let mut file = RecordFile::create().expect("a file in memory");
        assert_eq!(reopened(&file), None, "nothing is written yet");
        for in_flight in 1..=5 {
            // Long ones before short ones: what is behind the end of a shorter one does not count.
            file.write(&record(in_flight, 900 / in_flight)).expect("room");
            assert_eq!(reopened(&file), Some(record(in_flight, 900 / in_flight)));
        }
        let (mut next, _) = RecordFile::open(file.file.try_clone().expect("a copy").into()).expect("a record");
        next.write(&record(6, 1)).expect("room");
        assert_eq!(reopened(&file), Some(record(6, 1)));
    }

    #[test]
    fn a_record_that_was_cut_off_anywhere_leaves_the_one_before() {
        let mut file = RecordFile::create().expect("a file in memory");
        file.write(&record(1, 40)).expect("room");
        file.write(&record(2, 40)).expect("room");
        file.write(&record(3, 40)).expect("room");
        let whole = std::fs::read(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file.file)));
        let whole = whole.expect("it can be read");
        let mut fourth = RecordFile::create().expect("a file in memory");
        fourth.written = 3;
        fourth.write(&record(4, 41)).expect("room");
        let text = std::fs::read(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fourth.file)));
        let text = text.expect("it can be read");
        for cut in (0..text.len()).step_by(7) {
            file.file.write_all_at(&whole, 0).expect("as it was");
            file.file.write_all_at(&text[..cut], 0).expect("a part");
            assert_eq!(reopened(&file), Some(record(3, 40)), "cut at {cut}");
        }
        file.file.write_all_at(&text, 0).expect("all of it");
        assert_eq!(reopened(&file), Some(record(4, 41)));
    }

    #[test]
    fn what_is_no_record_is_none() {
        let null = File::open("/dev/null").expect("every host has one");
        assert!(RecordFile::open(null.into()).is_none());
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
        assert!(RecordFile::open(socket.into()).is_none());
        let mut file = RecordFile::create().expect("a file in memory");
        let many = (0..60_000).map(|inode| (1_000_000_000 + inode, u32::MAX)).collect();
        let record = Record { drops: many, ..record(1, 0) };
        assert!(file.write(&record).is_err(), "more than there is room for is refused");
    }
}
