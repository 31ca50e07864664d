//! A spill whose disk fails, and one in which another program has been. A descriptor that cannot do what is asked of it
//! stands for a disk that fails: one to be read from fails each write, one to be written to each read, and `/dev/full`
//! has no room.

use std::mem;

use super::*;
use crate::{SpillReadError, segment};

fn for_reading(path: &Path) -> File {
    File::open(path).expect("it opens")
}

fn for_writing(path: &Path) -> File {
    File::options().write(true).open(path).expect("it opens")
}

fn full() -> File {
    File::options().read(true).write(true).open("/dev/full").expect("every Linux has it")
}

/// Has the last segment use another file, and returns its own.
fn replace_file(store: &mut SpillStore, file: File) -> File {
    mem::replace(&mut store.segments.back_mut().expect("a segment").file, file)
}

#[test]
fn what_cannot_be_marked_as_sent_is_not_sent_and_is_there_when_it_can_be() {
    let directory = TempDir::new().expect("a directory");
    let (mut store, _) = open(&directory);
    append(&mut store, 0, 0..100, 10).expect("room");
    let own = replace_file(&mut store, for_reading(&files(&directory)[0]));
    for _ in 0..20 {
        assert!(matches!(store.read(), Err(SpillReadError::Unmarked(_))));
    }
    drop(replace_file(&mut store, own));
    assert_eq!(drain(&mut store), ((0..100).collect(), 0));
}

#[test]
fn what_a_disk_does_not_give_back_is_looked_for_again_before_it_is_given_up_with_its_number() {
    for recovers in [true, false] {
        let directory = TempDir::new().expect("a directory");
        let (mut store, _) = open(&directory);
        append(&mut store, 0, 0..100, 10).expect("room");
        let own = replace_file(&mut store, for_writing(&files(&directory)[0]));
        for _ in 0..20 {
            assert!(matches!(store.read(), Err(SpillReadError::Unread(_))));
        }
        if recovers {
            drop(replace_file(&mut store, own));
        }
        let expected = if recovers { ((0..100).collect(), 0) } else { (Vec::new(), 100) };
        assert_eq!(drain(&mut store), expected);
        assert!(store.is_empty() && files(&directory).is_empty());
        append(&mut store, 0, 100..110, 10).expect("room");
        assert_eq!(drain(&mut store), ((100..110).collect(), 0));
    }
}

#[test]
fn a_write_that_finds_no_room_waits_as_a_whole_and_is_written_once_when_there_is() {
    let directory = TempDir::new().expect("a directory");
    let (mut store, _) = open(&directory);
    append(&mut store, 0, 0..100, 10).expect("room");
    let own = replace_file(&mut store, full());
    let error = append(&mut store, 0, 100..200, 10).expect_err("no room");
    assert_eq!((error.kind(), store.left()), (io::ErrorKind::StorageFull, 100));
    assert!(store.write_out(|_, _| {}).is_err());
    drop(replace_file(&mut store, own));
    let mut written = 0;
    store.write_out(|_, datagrams| written += datagrams).expect("room again");
    assert_eq!((written, store.left()), (100, 200));
    assert_eq!(drain(&mut store), ((0..200).collect(), 0));
}

#[test]
fn what_cannot_be_forced_to_the_disk_is_told_and_costs_nothing() {
    let directory = TempDir::new().expect("a directory");
    let (mut store, _) = open_with(&directory, BYTES_MIN);
    append(&mut store, 0, 0..300, 1000).expect("room");
    assert!(store.take_sync_error().is_none());
    // It has all that it takes, so the next write begins another one.
    let own = replace_file(&mut store, full());
    append(&mut store, 0, 300..310, 1000).expect("it is written all the same");
    assert!(store.take_sync_error().is_some() && store.take_sync_error().is_none());
    assert!(store.sync().is_err(), "it is tried again");
    let last = store.segments.back().expect("a segment");
    assert!(!last.is_unsynced, "and the others are not left out");
    store.segments[0].file = own;
    store.sync().expect("both");
    assert_eq!(drain(&mut store), ((0..310).collect(), 0));
}

#[test]
fn a_file_that_stands_where_the_next_segment_would_be_is_left_alone_and_passed_by() {
    let directory = TempDir::new().expect("a directory");
    let (mut store, _) = open(&directory);
    let in_the_way = segment::path(directory.path(), FIRST_NUMBER);
    fs::write(&in_the_way, "of another program").expect("written");
    let error = append(&mut store, 0, 0..10, 10).expect_err("it is in the way");
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    store.write_out(|_, _| {}).expect("under the next number");
    assert_eq!(drain(&mut store), ((0..10).collect(), 0));
    assert_eq!(fs::read(&in_the_way).expect("still there"), b"of another program");
}

#[test]
fn a_segment_that_cannot_be_removed_is_not_sent_again() {
    let directory = TempDir::new().expect("a directory");
    let (mut store, _) = open(&directory);
    append(&mut store, 0, 0..10, 10).expect("room");
    // A directory cannot be removed like a file.
    store.segments[0].path = directory.path().to_owned();
    assert_eq!(drain(&mut store), ((0..10).collect(), 0));
    assert_eq!((store.is_empty(), files(&directory).len()), (true, 1));
    drop(store);
    let (store, found) = open(&directory);
    assert_eq!((left(&found), twice(&found), store.is_empty()), (0, 0, true));
    assert!(files(&directory).is_empty());
}

#[test]
fn what_a_destination_had_before_it_was_written_counts_as_handed_on_from_its_first_byte() {
    let directory = TempDir::new().expect("a directory");
    let (mut store, _) = open(&directory);
    store.expect_handed(30);
    append(&mut store, 0, 0..100, 10).expect("room");
    drop(store);
    let (mut store, found) = open(&directory);
    assert_eq!((left(&found), twice(&found)), (100, 30));
    // This one ends in good order, and no destination took anything: what it was told is still true.
    store.close(false).expect("closed");
    drop(store);
    let (mut store, found) = open(&directory);
    assert_eq!((left(&found), twice(&found)), (100, 30));
    let frame = store.read().expect("it reads").expect("a frame");
    store.decide(frame.segment, 0, 40);
    store.acknowledge(frame.segment, frame.in_segment(40));
    store.close(false).expect("closed");
    drop(store);
    let (mut store, found) = open(&directory);
    assert_eq!((left(&found), twice(&found)), (60, 0));
    assert_eq!(drain(&mut store), ((40..100).collect(), 0));
}

#[test]
fn files_of_others_are_left_alone_and_what_is_no_file_is_refused_by_its_name() {
    let directory = TempDir::new().expect("a directory");
    let (mut store, _) = open(&directory);
    append(&mut store, 0, 0..10, 10).expect("room");
    drop(store);
    let others = ["7.spill", "+0000000000000000007.spill", "notes.spill", "notes.txt"];
    for name in others {
        fs::write(directory.path().join(name), "not udpd's").expect("written");
    }
    let (store, found) = open(&directory);
    assert_eq!((left(&found), found.torn_bytes, found.set_aside.len()), (10, 0, 0));
    drop(store);
    for name in others {
        assert_eq!(fs::read(directory.path().join(name)).expect("still there"), b"not udpd's", "{name}");
    }
    let odd = segment::path(directory.path(), 5);
    let refused = || SpillStore::open(directory.path(), BYTES_MAX, lanes(), &[]).expect_err("refused").to_string();
    fs::create_dir(&odd).expect("made");
    assert!(refused().contains(odd.to_str().expect("UTF-8")), "{}", refused());
    fs::remove_dir(&odd).expect("removed");
    std::os::unix::fs::symlink("/etc/passwd", &odd).expect("made");
    assert!(refused().contains(odd.to_str().expect("UTF-8")), "{}", refused());
    fs::remove_file(&odd).expect("removed");
    nix::unistd::mkfifo(&odd, nix::sys::stat::Mode::S_IRWXU).expect("made");
    assert!(refused().contains(odd.to_str().expect("UTF-8")), "{}", refused());
    fs::remove_file(&odd).expect("removed");
    assert_eq!(drain(&mut open(&directory).0), ((0..10).collect(), 0));
}

#[test]
fn a_segment_of_which_no_frame_can_be_read_is_set_aside_and_not_removed() {
    let directory = TempDir::new().expect("a directory");
    let (mut store, _) = open(&directory);
    append(&mut store, 0, 0..10, 10).expect("room");
    let path = files(&directory).remove(0);
    let bytes = fs::read(&path).expect("its bytes");
    drop(store);
    for begin in [0, HEADER_BYTES] {
        let mut damaged = bytes.clone();
        damaged[begin..].fill(b'x');
        fs::write(&path, &damaged).expect("written");
        let (mut store, found) = open(&directory);
        assert_eq!((left(&found), found.torn_bytes), (0, bytes.len() as u64));
        assert_eq!(fs::read(&found.set_aside[0]).expect("set aside"), damaged);
        append(&mut store, 0, 10..20, 10).expect("it goes on");
        assert_eq!(drain(&mut store), ((10..20).collect(), 0));
    }
}
