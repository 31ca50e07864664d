//! Days of history, a minute in each point, for the page: in memory, and in a file that outlives the process.
//!
//! The file has a place of 144 bytes for each minute that is kept, and the place of a minute follows from its number:
//! so the file never grows, nothing in it has to be moved, and a minute that is written again takes its own place. Each
//! place ends with a checksum, so what a kill or a power loss has torn is no minute. A thread of its own writes, ten
//! seconds after ten seconds: a disk that stands still holds up neither scrapers nor the page, and what it does not
//! take in time is left out of the file.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crossbeam_channel::{Receiver, Sender, bounded};

use super::history::{FoldedPoint, HistoryMark, SERIES};
use udpd_base::logging::{LogLimiter, repeats};
use udpd_base::os::threads::{self, ThreadRegistry};
use udpd_base::os::{role::ThreadRole, trusted_files};
use udpd_base::seams::{clock, disk};

const MINUTES_OF_A_DAY: u64 = 1440;

/// The most days that can be kept.
pub const DAYS_MAX: u32 = 31;

/// Begins each place, with the version of what stands there.
const MAGIC: u64 = u64::from_le_bytes(*b"udpdday1");

/// Magic, minute, milliseconds seen, start, reload; the series; the checksum.
const WORDS: usize = 5 + SERIES.len() + 1;
const MINUTE_BYTES: usize = 8 * WORDS;

/// What stands for what is not known.
const UNKNOWN: u64 = u64::MAX;

/// So many minutes may wait for the disk.
const QUEUE: usize = 8;

/// What a file of so many days takes on the disk.
pub fn bytes_on_disk(days: u32) -> u64 {
    u64::from(days) * MINUTES_OF_A_DAY * MINUTE_BYTES as u64
}

/// The file of the daemon with this metrics address: no other one can have the address at the same time.
pub fn file_in(directory: &Path, address: SocketAddr) -> PathBuf {
    directory.join(format!("history-{address}"))
}

/// What happened in a minute.
#[derive(Debug, Clone, PartialEq)]
struct Minute {
    point: FoldedPoint,
    /// When the process started that saw its end, in seconds since 1970.
    started: u64,
    /// When the configuration was read again last, in seconds since 1970, or 0; and whether that was refused.
    reload: (u64, bool),
}

/// The minutes that are kept, by their number since 1970.
#[derive(Debug)]
pub(super) struct DayHistory {
    days: u32,
    minutes: BTreeMap<u64, Minute>,
    /// When this process started, in seconds since 1970: as the clock said at first, so that a clock that is set later
    /// makes no second start of it.
    started: Option<u64>,
    /// The minute that was added to last, and the ten seconds in which it was written last.
    latest: Option<(u64, u64)>,
    /// Where minutes are written; `None` where there is no file.
    to_disk: Option<Sender<(u64, [u8; MINUTE_BYTES])>>,
}

impl DayHistory {
    /// What `path` has of the last days, and from now on is to have. Where there can be no file, the days are those of
    /// this process.
    pub(super) fn open(path: &Path, days: u32, registry: &ThreadRegistry) -> Self {
        let mut history = Self { days, minutes: BTreeMap::new(), started: None, latest: None, to_disk: None };
        let opened = open(path, days).and_then(|(file, minutes)| {
            history.minutes = minutes;
            let (to_disk, from_history) = bounded(QUEUE);
            let writer = move || write(&file, days, &from_history);
            registry.spawn("udpd-history", ThreadRole::HistoryWriter, writer)?;
            Ok(to_disk)
        });
        match opened {
            Ok(to_disk) => {
                history.to_disk = Some(to_disk);
                let (shown, bytes) = (path.display(), bytes_on_disk(days));
                log::info!("history: {days} days in {shown}, {bytes} bytes, {} of them a day", bytes_on_disk(1));
            }
            Err(error) => log::warn!(
                "history: cannot use {}: {error}; the page shows the days of this process only",
                path.display()
            ),
        }
        history
    }

    /// Adds what a point of the hour has seen, which ends now.
    pub(super) fn add(&mut self, point: &FoldedPoint, started: f64, reload: Option<(f64, bool)>) {
        self.add_at(clock::seconds_since_1970() as u64, point, started, reload);
    }

    fn add_at(&mut self, now: u64, point: &FoldedPoint, started: f64, reload: Option<(f64, bool)>) {
        let (number, most) = (now / 60, self.days_in_minutes());
        let started = *self.started.get_or_insert(started as u64);
        let begun = || Minute { point: FoldedPoint::default(), started: 0, reload: (0, false) };
        let minute = self.minutes.entry(number).or_insert_with(begun);
        minute.point.add(point);
        minute.started = started;
        if let Some((at, done)) = reload.filter(|(at, _)| *at as u64 / 60 == number) {
            minute.reload = (at as u64, !done);
        }
        while self.minutes.len() as u64 > most {
            // After a clock that was ahead, what it made goes first: it would outlive all that is to come.
            let is_ahead = self.minutes.last_key_value().is_some_and(|(last, _)| *last > number);
            if is_ahead {
                self.minutes.pop_last()
            } else {
                self.minutes.pop_first()
            };
        }
        if let Some((latest, written)) =
            self.latest.replace((number, now / 10)).filter(|last| *last != (number, now / 10))
        {
            // All of a minute is known only when the next one has begun.
            if latest != number {
                self.save(latest);
            }
            if written != now / 10 {
                self.save(number);
            }
        }
    }

    /// Where the disk is behind, a later write of the same minute has all of it.
    fn save(&self, number: u64) {
        if let (Some(to_disk), Some(minute)) = (&self.to_disk, self.minutes.get(&number)) {
            let _ = to_disk.try_send((number, encode(number, minute)));
        }
    }

    fn days_in_minutes(&self) -> u64 {
        u64::from(self.days) * MINUTES_OF_A_DAY
    }

    pub(super) fn days(&self) -> u32 {
        self.days
    }

    /// The last so many minutes in steps of some, each with when it ends in seconds since 1970.
    pub(super) fn steps(&self, minutes: u64, step: u64) -> Vec<(u64, FoldedPoint)> {
        let mut steps: Vec<(u64, FoldedPoint)> = Vec::new();
        for (number, minute) in self.last(minutes) {
            let end = (number / step + 1) * step * 60;
            if steps.last().is_none_or(|(last, _)| *last != end) {
                steps.push((end, FoldedPoint::default()));
            }
            steps.last_mut().expect("just pushed").1.add(&minute.point);
        }
        steps
    }

    /// The starts and reloads of the last so many minutes.
    pub(super) fn marks(&self, minutes: u64) -> Vec<HistoryMark> {
        let mut marks = Vec::new();
        let mark = |at: u64, what| HistoryMark { at: at as f64, what, text: String::new() };
        let mut started = None;
        for (number, minute) in self.last(minutes) {
            // Of the oldest minute it is not known whether the process was there before.
            let is_new = started.map_or(minute.started / 60 == number, |before| before != minute.started);
            started = Some(minute.started);
            marks.extend(is_new.then(|| mark(minute.started, "start")));
            let (reload, refused) = minute.reload;
            marks.extend((reload > 0).then(|| mark(reload, if refused { "reload_refused" } else { "reload" })));
        }
        marks
    }

    fn last(&self, minutes: u64) -> impl Iterator<Item = (u64, &Minute)> {
        let now = clock::seconds_since_1970() as u64 / 60;
        self.minutes.range((now + 1).saturating_sub(minutes)..=now).map(|(number, minute)| (*number, minute))
    }
}

impl Drop for DayHistory {
    fn drop(&mut self) {
        self.latest.iter().for_each(|(number, _)| self.save(*number));
    }
}

fn encode(number: u64, minute: &Minute) -> [u8; MINUTE_BYTES] {
    let (reload, refused) = minute.reload;
    let head = [MAGIC, number, minute.point.seen_ms, minute.started, reload << 1 | u64::from(refused)];
    let values = minute.point.values.iter().map(|value| value.unwrap_or(UNKNOWN));
    let mut bytes = [0; MINUTE_BYTES];
    for (place, word) in bytes.chunks_exact_mut(8).zip(head.into_iter().chain(values)) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    let checksum = crc32fast::hash(&bytes[..MINUTE_BYTES - 8]);
    bytes[MINUTE_BYTES - 8..].copy_from_slice(&u64::from(checksum).to_le_bytes());
    bytes
}

/// The minute in a place, unless nothing was written there, or not all of it.
fn decode(bytes: &[u8]) -> Option<(u64, Minute)> {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().ok()?);
    }
    let checksum = crc32fast::hash(bytes.get(..MINUTE_BYTES - 8)?);
    if words[0] != MAGIC || words[WORDS - 1] != u64::from(checksum) {
        return None;
    }
    let values = std::array::from_fn(|place| Some(words[5 + place]).filter(|value| *value != UNKNOWN));
    let point = FoldedPoint { seen_ms: words[2], values };
    Some((words[1], Minute { point, started: words[3], reload: (words[4] >> 1, words[4] & 1 == 1) }))
}

/// Opens the file, and makes it anew where it is not as long as it is to be.
fn open(path: &Path, days: u32) -> io::Result<(File, BTreeMap<u64, Minute>)> {
    path.parent().map_or(Ok(()), trusted_files::make_directory)?;
    let options = || OpenOptions::new().read(true).write(true).create(true).truncate(false).to_owned();
    let file = trusted_files::open(path, &mut options())?;
    // More than this was never written by udpd.
    let length = file.metadata()?.len().min(bytes_on_disk(DAYS_MAX));
    let mut bytes = vec![0; length as usize];
    disk::read_exact_at(&file, &mut bytes, 0)?;
    let now = clock::seconds_since_1970() as u64 / 60;
    let oldest = (now + 1).saturating_sub(u64::from(days) * MINUTES_OF_A_DAY);
    let found = bytes.chunks_exact(MINUTE_BYTES).filter_map(decode);
    let minutes: BTreeMap<u64, Minute> = found.filter(|(number, _)| (oldest..=now).contains(number)).collect();
    if file.metadata()?.len() == bytes_on_disk(days) {
        return Ok((file, minutes));
    }
    // Another number of days has other places.
    let beside = PathBuf::from(format!("{}.new", path.display()));
    let file = trusted_files::open(&beside, &mut options())?;
    disk::set_len(&file, 0)?;
    disk::set_len(&file, bytes_on_disk(days))?;
    for (number, minute) in &minutes {
        disk::write_all_at(&file, &encode(*number, minute), place_of(*number, days))?;
    }
    disk::rename(&beside, path)?;
    Ok((file, minutes))
}

fn place_of(number: u64, days: u32) -> u64 {
    number % (u64::from(days) * MINUTES_OF_A_DAY) * MINUTE_BYTES as u64
}

/// Writes minutes until none will come any more.
fn write(file: &File, days: u32, minutes: &Receiver<(u64, [u8; MINUTE_BYTES])>) {
    let limiter = LogLimiter::default();
    while let Ok((number, bytes)) = threads::blocking(|| minutes.recv()) {
        let written = threads::blocking(|| disk::write_all_at(file, &bytes, place_of(number, days)));
        if let (Err(error), Some(times)) = (&written, written.is_err().then(|| limiter.pass(clock::now())).flatten()) {
            log::warn!("history: cannot write to its file: {error}; the page keeps it until the end{}", repeats(times));
        }
    }
}

#[cfg(test)]
#[path = "days_tests.rs"]
mod tests;
