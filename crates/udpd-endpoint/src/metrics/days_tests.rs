//! Days of history through restarts, kills, damage and another number of days.

use tempfile::TempDir;

use super::*;

fn minute(arrived: u64) -> Minute {
    let mut point = FoldedPoint { seen_ms: 60_000, ..FoldedPoint::default() };
    (point.values[0], point.values[1]) = (Some(arrived), None);
    Minute { point, started: 100, reload: (7, true) }
}

fn address() -> SocketAddr {
    ([127, 0, 0, 1], 9817).into()
}

/// A file with a minute for each of these numbers, and what is read from it with as many days.
fn file_with(directory: &TempDir, days: u32, numbers: &[u64]) -> PathBuf {
    let path = file_in(directory.path(), address());
    let (file, _) = open(&path, days).expect("a file");
    for number in numbers {
        disk::write_all_at(&file, &encode(*number, &minute(*number)), place_of(*number, days)).expect("room");
    }
    path
}

fn read(path: &Path, days: u32) -> Vec<u64> {
    open(path, days).expect("a file").1.into_keys().collect()
}

fn this_minute() -> u64 {
    clock::seconds_since_1970() as u64 / 60
}

#[test]
fn a_minute_is_read_as_it_was_written_with_what_is_not_known_and_in_144_bytes() {
    let written = minute(5);
    assert_eq!(decode(&encode(17, &written)), Some((17, written)));
    assert_eq!((MINUTE_BYTES, bytes_on_disk(1), bytes_on_disk(7)), (144, 207_360, 1_451_520));
    assert_eq!(decode(&[0; MINUTE_BYTES]), None);
}

#[test]
fn a_place_that_is_torn_after_any_byte_is_no_minute_and_the_others_stay() {
    let directory = TempDir::new().expect("a folder");
    let now = this_minute();
    let path = file_with(&directory, 1, &[now - 2, now - 1]);
    let (older, newer) = (encode(now - 1, &minute(1)), encode(now - 1 + MINUTES_OF_A_DAY, &minute(2)));
    for torn in 1..MINUTE_BYTES - 8 {
        // A kill in the middle of a write leaves the beginning of the new one and the rest of the old one.
        let bytes = [&newer[..torn], &older[torn..]].concat();
        assert_eq!(decode(&bytes).filter(|_| bytes != older), None, "{torn}");
    }
    let (file, _) = open(&path, 1).expect("a file");
    disk::write_all_at(&file, &newer[..50], place_of(now - 1, 1)).expect("room");
    assert_eq!(read(&path, 1), [now - 2]);
}

#[test]
fn days_last_through_a_restart_and_the_file_has_one_length_whatever_is_in_it() {
    let directory = TempDir::new().expect("a folder");
    let (now, registry) = (this_minute(), ThreadRegistry::new().0);
    let path = file_with(&directory, 1, &[now - 1439, now - 30, now - 29, now + 10]);
    let mut history = DayHistory::open(&path, 1, &registry);
    let point = FoldedPoint { seen_ms: 1000, ..FoldedPoint::default() };
    history.add(&point, 1e9, Some((clock::seconds_since_1970(), true)));
    let shown: u64 = history.steps(60, 5).iter().map(|(_, point)| point.values[0].unwrap_or(0)).sum();
    assert_eq!(shown, (now - 30) + (now - 29));
    let marks: Vec<&str> = history.marks(60).iter().map(|mark| mark.what).collect();
    assert_eq!(marks, ["reload_refused", "reload_refused", "start", "reload"]);
    drop(history);
    for _ in 0..1000 {
        if read(&path, 1).contains(&now) || read(&path, 1).contains(&(now + 1)) {
            break;
        }
        std::thread::yield_now();
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(read(&path, 1).len() >= 3, "its last minute is there as well");
    assert_eq!(std::fs::metadata(&path).expect("a file").len(), bytes_on_disk(1));
}

#[test]
fn another_number_of_days_keeps_what_fits_and_what_is_no_history_is_none() {
    let directory = TempDir::new().expect("a folder");
    let now = this_minute();
    let path = file_with(&directory, 7, &[now - 3 * MINUTES_OF_A_DAY, now - 5, now]);
    assert_eq!(read(&path, 1), [now - 5, now]);
    assert_eq!(read(&path, 7), [now - 5, now], "the third day is gone");
    std::fs::write(&path, "no history at all").expect("written");
    assert!(read(&path, 2).is_empty());
    assert_eq!(std::fs::metadata(&path).expect("a file").len(), bytes_on_disk(2));
}

#[test]
fn of_a_file_of_any_length_no_more_is_read_at_start_than_31_days_have() {
    let directory = TempDir::new().expect("a folder");
    let path = file_with(&directory, DAYS_MAX, &[]);
    // Longer than any memory.
    File::options().write(true).open(&path).expect("a file").set_len(1 << 42).expect("a file with holes");
    assert!(read(&path, DAYS_MAX).is_empty());
    assert_eq!((std::fs::metadata(&path).expect("a file").len(), bytes_on_disk(DAYS_MAX)), (6_428_160, 6_428_160));
}

#[test]
fn without_a_file_the_days_of_this_process_are_kept_in_bounded_memory() {
    let registry = ThreadRegistry::new().0;
    let mut history = DayHistory::open(Path::new("/proc/no/such/place"), 1, &registry);
    assert!(history.to_disk.is_none());
    for number in 0..3000 {
        history.minutes.insert(number, minute(number));
    }
    history.add(&FoldedPoint::default(), 0.0, None);
    assert_eq!(history.minutes.len() as u64, MINUTES_OF_A_DAY);
}

/// What waits to be written: the number of each minute, and how much of it was seen.
fn written(from_history: &Receiver<(u64, [u8; MINUTE_BYTES])>) -> Vec<(u64, u64)> {
    let decoded = |(_, bytes): (u64, [u8; MINUTE_BYTES])| decode(&bytes).expect("a minute");
    from_history.try_iter().map(decoded).map(|(number, minute)| (number, minute.point.seen_ms)).collect()
}

fn history_in_memory() -> (DayHistory, Receiver<(u64, [u8; MINUTE_BYTES])>) {
    let (to_disk, from_history) = bounded(100);
    let (days, minutes) = (1, BTreeMap::new());
    (DayHistory { days, minutes, started: None, latest: None, to_disk: Some(to_disk) }, from_history)
}

#[test]
fn all_of_a_minute_is_written_whatever_second_the_readings_miss() {
    let (mut history, from_history) = history_in_memory();
    let point = FoldedPoint { seen_ms: 1000, ..FoldedPoint::default() };
    // No reading falls on the second 59.
    (600..=660).filter(|second| *second != 659).for_each(|second| history.add_at(second, &point, 0.0, None));
    let written = written(&from_history);
    assert!(written.contains(&(10, 59_000)), "{written:?}");
    assert!(written.len() <= 7, "once in ten seconds: {written:?}");
}

#[test]
fn a_clock_that_was_ahead_for_days_leaves_room_for_what_comes_after_it_is_set_back() {
    let (mut history, from_history) = history_in_memory();
    let point = FoldedPoint { seen_ms: 1000, ..FoldedPoint::default() };
    let year = 365 * MINUTES_OF_A_DAY;
    (year..year + 2000).for_each(|minute| history.add_at(minute * 60, &point, 0.0, None));
    from_history.try_iter().for_each(drop);
    (600..=700).for_each(|second| history.add_at(second, &point, 0.0, None));
    assert_eq!(history.minutes.keys().take(2).copied().collect::<Vec<_>>(), [10, 11]);
    assert_eq!(history.minutes.len() as u64, MINUTES_OF_A_DAY);
    assert!(written(&from_history).contains(&(10, 60_000)));
}

#[test]
fn a_process_has_one_start_however_its_clock_is_set() {
    let (mut history, _from_history) = history_in_memory();
    let now = clock::seconds_since_1970();
    for (second, started) in [(0.0, now - 300.0), (60.0, now - 299.5), (120.0, now + 4000.0)] {
        history.add_at((now - 240.0 + second) as u64, &FoldedPoint::default(), started, None);
    }
    assert!(history.marks(60).iter().all(|mark| mark.at == (now - 300.0).floor()), "{:?}", history.marks(60));
}
