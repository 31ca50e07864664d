//! A spill on a real disk: its order, its bounds, and every way in which its files can be damaged.

#[path = "fault_tests.rs"]
mod faults;

use std::fs;
use std::os::unix::fs::FileExt;

use mmsg::PackedBatch;
use tempfile::TempDir;

use super::*;
use crate::layout::HEAD_BYTES;
use crate::{Frame, Recovered, SpillLane};

const BYTES_MAX: u64 = 64 << 20;

fn lanes() -> SpillLanes {
    let lane = |lane: usize, name: &str| SpillLane {
        lane,
        listener: lane,
        name: name.to_owned(),
        bound: format!("127.0.0.1:{}", 514 + lane),
    };
    SpillLanes::of(vec![lane(0, "syslog"), lane(1, "flows")]).expect("two lanes")
}

fn open_with(directory: &TempDir, bytes_max: u64) -> (SpillStore, Recovered) {
    SpillStore::open(directory.path(), bytes_max, lanes(), &[]).expect("it opens")
}

fn open(directory: &TempDir) -> (SpillStore, Recovered) {
    open_with(directory, BYTES_MAX)
}

/// Appends datagrams whose payloads are these numbers, padded to `bytes`, and writes them as one write.
fn append(store: &mut SpillStore, lane: usize, numbers: std::ops::Range<u32>, bytes: usize) -> io::Result<()> {
    let mut packed = Vec::new();
    let source = "192.0.2.7:514".parse().expect("an address");
    for number in numbers {
        let mut payload = number.to_string().into_bytes();
        payload.resize(bytes.max(payload.len()), b' ');
        mmsg::pack_known(source, None, (&payload, payload.len()), &mut packed);
    }
    let mut batch = PackedBatch::pool(1, packed.len().max(4096), false).expect("memory").0.remove(0);
    assert!(batch.unpack(&packed, |_| true));
    for datagram in batch.datagrams() {
        store.push(lane, &datagram);
    }
    store.write_out(|_, _| {}).map(drop)
}

/// The numbers of a frame's datagrams that are not decided.
fn numbers(store: &SpillStore, frame: Frame) -> Vec<u32> {
    let mut batch = PackedBatch::pool(1, FRAME_BYTES_MAX, false).expect("memory").0.remove(0);
    assert!(batch.unpack(store.datagrams(), |place| place >= frame.skipped));
    let number = |payload: &[u8]| String::from_utf8_lossy(payload).trim().parse().expect("a number");
    let numbers: Vec<u32> = batch.datagrams().map(|one| number(one.payload())).collect();
    assert_eq!(numbers.len() as u64, frame.datagrams);
    numbers
}

/// Reads everything and acknowledges it; how many of it could not be read comes second.
fn drain(store: &mut SpillStore) -> (Vec<u32>, u64) {
    let (mut read, mut lost) = (Vec::new(), 0);
    while let Some(frame) = store.read().expect("it reads") {
        if frame.is_damaged {
            store.give_up(frame.segment, frame.listener, frame.datagrams, |_, datagrams| lost += datagrams);
        } else {
            read.extend(numbers(store, frame));
            store.decide(frame.segment, frame.listener, frame.datagrams);
        }
        store.acknowledge(frame.segment, frame.end);
    }
    (read, lost)
}

fn files(directory: &TempDir) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory.path()).expect("it lists").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> = entries.filter(|path| !path.ends_with("lock")).collect();
    files.sort();
    files
}

fn left(found: &Recovered) -> u64 {
    found.left.iter().map(|(_, datagrams)| datagrams).sum()
}

fn torn_datagrams(found: &Recovered) -> u64 {
    found.torn.iter().map(|(_, datagrams)| datagrams).sum()
}

fn twice(found: &Recovered) -> u64 {
    found.twice_at_most.iter().map(|(_, datagrams)| datagrams).sum()
}

#[test]
fn a_process_adds_nothing_to_a_segment_of_an_earlier_one_also_when_others_are_done() {
    let directory = TempDir::new().expect("a directory");
    append(&mut open(&directory).0, 0, 0..10, 0).expect("room");
    append(&mut open(&directory).0, 0, 10..20, 0).expect("room");
    let (mut store, _) = open(&directory);
    let first = store.read().expect("it reads").expect("a frame");
    store.decide(first.segment, 0, 10);
    store.acknowledge(first.segment, first.end);
    let [earlier] = &files(&directory)[..] else { panic!("one is done: {:?}", files(&directory)) };
    let length = earlier.metadata().expect("there").len();
    append(&mut store, 0, 20..30, 0).expect("room");
    assert_eq!(files(&directory).len(), 2);
    assert_eq!(earlier.metadata().expect("there").len(), length);
    assert_eq!(drain(&mut store).0, (10..30).collect::<Vec<_>>());
}

#[test]
fn what_goes_in_comes_out_in_its_order_with_its_lane_and_leaves_nothing_behind() {
    let directory = TempDir::new().expect("a directory");
    let (mut store, found) = open(&directory);
    assert_eq!((found, store.is_empty()), (Recovered::default(), true));
    append(&mut store, 0, 0..100, 10).expect("room");
    append(&mut store, 1, 100..200, 0).expect("room");
    append(&mut store, 0, 200..300, 2000).expect("room");
    assert_eq!((store.left(), store.is_empty()), (300, false));
    let first = store.read().expect("it reads").expect("a frame");
    assert_eq!((first.listener, first.lane, first.datagrams), (0, 0, 100));
    assert_eq!(numbers(&store, first), (0..100).collect::<Vec<_>>());
    store.decide(first.segment, 0, 100);
    store.acknowledge(first.segment, first.end);
    let second = store.read().expect("it reads").expect("a frame");
    assert_eq!((second.listener, second.lane, numbers(&store, second)), (1, 1, (100..200).collect()));
    store.decide(second.segment, 1, 100);
    store.acknowledge(second.segment, second.end);
    assert_eq!(drain(&mut store), ((200..300).collect(), 0));
    assert!(store.is_empty() && store.bytes() == 0 && files(&directory).is_empty());
    append(&mut store, 0, 300..301, 0).expect("room again");
    assert_eq!(drain(&mut store), (vec![300], 0));
}

#[test]
fn another_process_goes_on_where_this_one_was_and_is_told_what_may_be_twice() {
    let directory = TempDir::new().expect("a directory");
    let (mut store, _) = open(&directory);
    for begin in [0, 100, 200] {
        append(&mut store, 0, begin..begin + 100, 1400).expect("room");
    }
    let first = store.read().expect("it reads").expect("a frame");
    assert!(first.datagrams < 100, "a frame has a limit");
    store.decide(first.segment, 0, first.datagrams);
    store.acknowledge(first.segment, first.end);
    let second = store.read().expect("it reads").expect("a frame");
    drop(store);
    // As after a kill: the second frame was handed on, and not acknowledged.
    let (mut store, found) = open(&directory);
    assert_eq!((left(&found), twice(&found)), (300 - first.datagrams, second.datagrams));
    assert_eq!(drain(&mut store), ((first.datagrams as u32..300).collect(), 0));
    append(&mut store, 0, 0..10, 0).expect("room");
    let frame = store.read().expect("it reads").expect("a frame");
    store.close(false).expect("closed");
    drop(store);
    // As at an end in good order: what was handed on was not taken.
    let (store, found) = open(&directory);
    assert_eq!((left(&found), twice(&found)), (frame.datagrams, 0));
    assert_eq!(store.left(), 10);
}

#[test]
fn wherever_the_last_write_was_torn_all_before_it_is_read_and_the_rest_is_named() {
    let directory = TempDir::new().expect("a directory");
    let (mut store, _) = open(&directory);
    append(&mut store, 0, 0..3, 8).expect("room");
    let whole = store.bytes();
    append(&mut store, 1, 3..6, 8).expect("room");
    drop(store);
    let path = files(&directory).remove(0);
    let bytes = fs::read(&path).expect("its bytes");
    for end in 0..bytes.len() {
        let torn = TempDir::new().expect("a directory");
        fs::write(torn.path().join(path.file_name().expect("a name")), &bytes[..end]).expect("written");
        let (mut store, found) = open(&torn);
        let expected: Vec<u32> = if end as u64 >= whole { (0..3).collect() } else { Vec::new() };
        assert_eq!(left(&found), expected.len() as u64, "cut at {end}");
        // A head that is there says how many are lost.
        let has_head = (end as u64 >= HEADER_BYTES as u64 + HEAD_BYTES as u64 && (end as u64) < whole)
            || end as u64 >= whole + HEAD_BYTES as u64;
        assert_eq!(torn_datagrams(&found), if has_head { 3 } else { 0 }, "cut at {end}");
        assert_eq!(found.empty.len(), usize::from(end == 0), "cut at {end}");
        assert_eq!(drain(&mut store), (expected, 0), "cut at {end}");
        append(&mut store, 0, 7..9, 8).expect("it takes more");
        assert_eq!(drain(&mut store), (vec![7, 8], 0));
    }
}

#[test]
fn whichever_byte_is_damaged_the_frames_beside_it_are_read_and_every_datagram_is_in_the_sums() {
    let directory = TempDir::new().expect("a directory");
    let (mut store, _) = open(&directory);
    for begin in [0, 4, 8] {
        append(&mut store, 0, begin..begin + 4, 12).expect("room");
    }
    let path = files(&directory).remove(0);
    let bytes = fs::read(&path).expect("its bytes");
    let frame = (bytes.len() - HEADER_BYTES) / 3;
    let file = File::options().write(true).open(&path).expect("opened");
    for at in HEADER_BYTES..bytes.len() {
        // Beneath a store that knows what it has written.
        let below = TempDir::new().expect("a directory");
        let (mut store, _) = open(&below);
        for begin in [0, 4, 8] {
            append(&mut store, 0, begin..begin + 4, 12).expect("room");
        }
        let own = File::options().read(true).write(true).open(files(&below).remove(0)).expect("opened");
        let mut byte = [0];
        own.read_exact_at(&mut byte, at as u64).expect("a byte");
        own.write_all_at(&[byte[0] ^ 0x10], at as u64).expect("damaged");
        let hit = ((at - HEADER_BYTES) / frame) as u32;
        let expected: Vec<u32> = (0..12).filter(|number| number / 4 != hit).collect();
        assert_eq!(drain(&mut store), (expected.clone(), 4), "damaged at {at}");
        assert!(store.is_empty() && files(&below).is_empty(), "damaged at {at}");
        // And found by the next process.
        file.write_all_at(&bytes, 0).expect("whole again");
        file.write_all_at(&[bytes[at] ^ 0x10], at as u64).expect("damaged");
        let other = TempDir::new().expect("a directory");
        fs::copy(&path, other.path().join(path.file_name().expect("a name"))).expect("copied");
        let (mut store, found) = open(&other);
        let (read, lost) = drain(&mut store);
        assert_eq!((read.as_slice(), lost), (expected.as_slice(), left(&found) - 8), "damaged at {at}");
        assert_eq!(lost + torn_datagrams(&found), 4, "damaged at {at}");
        assert!(store.is_empty(), "damaged at {at}");
    }
}

#[test]
fn it_never_takes_more_than_it_may_and_has_room_again_before_it_is_empty() {
    let directory = TempDir::new().expect("a directory");
    let (mut store, _) = open_with(&directory, BYTES_MIN);
    let mut appended = 0;
    let error = loop {
        match append(&mut store, 0, appended..appended + 50, 1000) {
            Ok(()) => appended += 50,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
    let on_disk = || files(&directory).iter().map(|path| path.metadata().expect("there").len()).sum::<u64>();
    assert!(on_disk() <= BYTES_MIN && on_disk() > BYTES_MIN - (64 << 10), "{}", on_disk());
    assert_eq!(on_disk(), store.bytes());
    let mut lost = 0;
    store.forget_unwritten(|_, datagrams| lost += datagrams);
    assert_eq!(lost, 50);
    let mut read = 0;
    while append(&mut store, 0, appended..appended + 50, 1000).is_err() {
        store.forget_unwritten(|_, _| {});
        let frame = store.read().expect("it reads").expect("a frame");
        store.decide(frame.segment, 0, frame.datagrams);
        store.acknowledge(frame.segment, frame.end);
        read += frame.datagrams;
    }
    assert!(read * 8 < u64::from(appended), "{read} of {appended} were sent before there was room");
    assert!(on_disk() <= BYTES_MIN);
    assert!(files(&directory).len() < FILES_MAX);
}

#[test]
fn the_oldest_are_given_up_with_their_number_and_the_order_stays() {
    let directory = TempDir::new().expect("a directory");
    let (mut store, _) = open_with(&directory, BYTES_MIN);
    let (mut appended, mut given_up) = (0, 0);
    while appended < 20_000 {
        match append(&mut store, 0, appended..appended + 50, 1000) {
            Ok(()) => appended += 50,
            Err(_) => {
                store.forget_unwritten(|_, _| {});
                given_up += store.drop_oldest().iter().map(|(_, lost)| lost).sum::<u64>();
            }
        }
    }
    assert!(given_up > 0);
    assert_eq!(drain(&mut store), ((given_up as u32..20_000).collect(), 0));
}

#[test]
fn a_second_writer_and_what_a_newer_udpd_wrote_are_refused_and_left_alone() {
    let directory = TempDir::new().expect("a directory");
    let (mut store, _) = open(&directory);
    append(&mut store, 0, 0..3, 8).expect("room");
    let refused = || SpillStore::open(directory.path(), BYTES_MAX, lanes(), &[]).expect_err("refused").to_string();
    assert!(refused().contains("second one"), "{}", refused());
    drop(store);
    let path = files(&directory).remove(0);
    let mut bytes = fs::read(&path).expect("its bytes");
    bytes[8] += 1;
    let sum = crc32fast::hash(&bytes[..28]);
    bytes[28..32].copy_from_slice(&sum.to_le_bytes());
    fs::write(&path, &bytes).expect("written");
    assert!(refused().contains("newer udpd"), "{}", refused());
    assert_eq!(fs::read(&path).expect("its bytes"), bytes);
    bytes[20] ^= 1;
    fs::write(&path, &bytes).expect("written");
    let (store, found) = open(&directory);
    assert_eq!((store.is_empty(), found.torn_bytes), (true, bytes.len() as u64));
    assert_eq!(fs::read(&found.set_aside[0]).expect("set aside"), bytes);
}

#[test]
fn what_consumers_have_left_that_there_are_no_more_comes_first() {
    let (directory, other) = (TempDir::new().expect("a directory"), TempDir::new().expect("a directory"));
    for (directory, numbers) in [(&other, 0..20), (&directory, 20..40)] {
        let (mut store, _) = open(directory);
        append(&mut store, 0, numbers, 8).expect("room");
    }
    let others = [other.path().to_owned()];
    let (mut store, found) = SpillStore::open(directory.path(), BYTES_MAX, lanes(), &others).expect("it opens");
    assert_eq!(left(&found), 40);
    assert_eq!(drain(&mut store), ((0..40).collect(), 0));
    assert!(files(&other).is_empty());
}

#[test]
fn datagrams_of_a_listener_that_is_gone_are_not_lost() {
    let directory = TempDir::new().expect("a directory");
    let (mut store, _) = open(&directory);
    append(&mut store, 1, 0..5, 8).expect("room");
    drop(store);
    let lane = SpillLane { lane: 3, listener: 2, name: "other".to_owned(), bound: "[::]:1".to_owned() };
    let lanes = SpillLanes::of(vec![lane]).expect("a lane");
    let (mut store, found) = SpillStore::open(directory.path(), BYTES_MAX, lanes, &[]).expect("it opens");
    assert_eq!((found.unknown.as_slice(), found.left.as_slice()), (&["flows".to_owned()][..], &[(2, 5)][..]));
    let frame = store.read().expect("it reads").expect("a frame");
    assert_eq!((frame.listener, frame.lane, numbers(&store, frame).len()), (2, 3, 5));
}

#[test]
fn whichever_byte_of_a_header_is_damaged_every_datagram_is_in_the_sums_of_its_listener() {
    let directory = TempDir::new().expect("a directory");
    let (mut store, _) = open(&directory);
    for (lane, numbers) in [(0, 0..7), (1, 7..12), (0, 12..300)] {
        append(&mut store, lane, numbers, 1400).expect("room");
    }
    let frame = store.read().expect("it reads").expect("a frame");
    store.decide(frame.segment, 0, 7);
    store.acknowledge(frame.segment, frame.end);
    store.close(false).expect("closed");
    drop(store);
    let path = files(&directory).remove(0);
    let bytes = fs::read(&path).expect("its bytes");
    for at in 0..HEADER_BYTES {
        let other = TempDir::new().expect("a directory");
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        fs::write(other.path().join(path.file_name().expect("a name")), &damaged).expect("written");
        let (mut store, found) = open(&other);
        if at < 32 {
            assert_eq!(found.torn, [(1, 5), (0, 288)], "damaged at {at}");
            assert_eq!((left(&found), found.set_aside.len()), (0, 1), "damaged at {at}");
        } else {
            // A mark, which only says what need not be sent again.
            assert!([293, 300].contains(&left(&found)) && torn_datagrams(&found) == 0, "damaged at {at}: {found:?}");
            assert_eq!(drain(&mut store).0.last(), Some(&299));
        }
    }
}

#[test]
fn a_segment_whose_number_leaves_none_behind_it_is_not_taken_for_ones_own() {
    let directory = TempDir::new().expect("a directory");
    fs::write(directory.path().join(format!("{}.spill", u64::MAX)), "").expect("written");
    let (mut store, found) = open(&directory);
    assert_eq!(found, Recovered::default());
    append(&mut store, 0, 0..3, 8).expect("room");
    assert_eq!(drain(&mut store), (vec![0, 1, 2], 0));
}

#[test]
fn a_lane_is_found_by_its_names_and_otherwise_the_nearest() {
    let lane = |lane, listener, name: &str, bound: &str| SpillLane {
        lane,
        listener,
        name: name.to_owned(),
        bound: bound.to_owned(),
    };
    let lanes = SpillLanes::of(vec![lane(4, 1, "a", "[::]:1"), lane(5, 1, "a", "[::]:2"), lane(6, 2, "b", "[::]:3")]);
    let lanes = lanes.expect("three lanes");
    let found = |name, bound| lanes.find(name, bound).lane;
    assert_eq!([found("a", "[::]:2"), found("b", "[::]:9"), found("gone", "[::]:3")], [5, 6, 4]);
    assert_eq!((lanes.knows("b"), lanes.knows("gone"), SpillLanes::of(Vec::new())), (true, false, None));
}
