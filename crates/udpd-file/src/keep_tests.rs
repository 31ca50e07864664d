//! Which finished files are removed, whatever other programs put beside them and whatever the clock says; and that
//! files begin on time however the clock is set.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::tests::{PLAIN, Subject, path_of, rotating};
use super::*;
use crate::retention::{FileRetention, Treatment};
use crate::{Keep, Rotate};
use udpd_base::format::Format;
use udpd_base::sink::OpenContext;

const HOUR: i64 = 3600;

impl Subject {
    /// Writes a datagram into a file of its own, which is then finished.
    pub(super) fn finish_with(&mut self, payload: &str) {
        assert!(self.write(payload));
        let generation = self.file().generation;
        self.file().keeper.request(KeeperRequest::FinishFull(generation));
        self.until("the next file", |file| file.generation > generation);
        // Whatever is asked for next is done after what was finished has been put away.
        self.reopen();
    }

    /// What is in the files, in no order, without those that are empty.
    fn contents(&self) -> Vec<String> {
        let texts = self.logs().into_iter().map(|(_, text)| text.trim_end().to_owned());
        let mut texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
        texts.sort();
        texts
    }
}

fn keeping(files: u64) -> FileSettings {
    FileSettings { keep: Keep { files, bytes: 0 }, ..PLAIN }
}

#[test]
fn the_oldest_files_are_removed_beyond_what_is_kept() {
    let settings = FileSettings { keep: Keep { files: 3, bytes: 0 }, sync: Sync::WhenFinished, ..rotating(1) };
    let mut subject = Subject::open("log", settings);
    for number in 0..8 {
        assert!(subject.write(&format!("{number}")));
        subject.until("the next file", |file| !file.is_changing);
    }
    let ledger = Arc::clone(&subject.file().ledger);
    subject.close();
    let contents: Vec<String> = subject.logs().into_iter().map(|(_, content)| content).collect();
    assert_eq!(contents.len(), 4, "the current file and three: {contents:?}");
    assert!(
        ["5\n", "6\n", "7\n", ""].iter().all(|kept| contents.iter().any(|content| content == kept)),
        "{contents:?}"
    );
    let sum = FileLedger::sum([ledger.as_ref()].into_iter());
    assert_eq!((sum.counts.finished, sum.counts.removed, sum.counts.unsynced_bytes), (8, 5, 0));
    assert!(sum.synced_at.is_some());
}

#[test]
fn the_live_file_of_another_sink_that_is_named_like_a_finished_one_stays() {
    let mut subject = Subject::open("x.log", keeping(1));
    let other = path_of(&subject, "x.log.20260101T000000Z");
    let mut keeper = FileKeeper::new(1, OpenContext::default()).expect("a keeper");
    let encoder = Encoder::new(Format::Lines, udpd_base::sink::testing::scenes(1), |_| true);
    let settings = FileSettings { path: other.to_str().expect("UTF-8").to_owned(), ..PLAIN };
    let live = LogFile::open(settings, encoder, WallClock::default(), &mut keeper, Caller::default()).expect("opened");
    ["1", "2", "3"].iter().for_each(|payload| subject.finish_with(payload));
    subject.close();
    assert!(live.handle.as_ref().is_some_and(|handle| handle.is_at(&other)));
    assert_eq!(subject.contents(), ["3"]);
}

#[test]
fn what_others_have_put_beside_files_with_dates_stays() {
    let mut subject = Subject::open("%M%S.log", keeping(1));
    let theirs = ["7777.log", "5959.log.20260101T000000Z", "0000.log", "5959.log"];
    for name in theirs {
        if path_of(&subject, name).symlink_metadata().is_err() {
            fs::write(path_of(&subject, name), "theirs").expect("written");
        }
    }
    for payload in ["1", "2", "3", "4"] {
        subject.finish_with(payload);
        subject.clock.set(1);
    }
    subject.close();
    assert!(theirs.iter().all(|name| path_of(&subject, name).exists()), "{:?}", subject.files());
    let own: Vec<String> = subject.contents().into_iter().filter(|text| text != "theirs").collect();
    assert_eq!(own, ["4"]);
}

#[test]
fn a_file_at_a_path_with_dates_that_is_not_listed_is_written_on_and_never_removed() {
    let mut subject = Subject::open("%Y%m%d%H.log", keeping(1));
    let settings = subject.file().settings.clone();
    assert!(subject.write("theirs"));
    subject.close();
    fs::remove_file(path_of(&subject, ".%Y%m%d%H.log.udpd-index")).expect("a list");
    subject.reopen_with(settings);
    for payload in ["1", "2", "3"] {
        let generation = subject.file().generation;
        subject.clock.set(HOUR);
        assert!(subject.write(payload));
        subject.until("a file of the new time", |file| file.generation > generation);
        subject.reopen();
    }
    assert!(subject.write("4"));
    subject.close();
    assert_eq!(subject.contents(), ["3", "4", "theirs\n1"]);
}

#[test]
fn the_oldest_is_the_one_that_was_finished_first_whatever_the_clock_said_then() {
    for jump in [-HOUR, HOUR, -30 * 8766 * HOUR, 30 * 8766 * HOUR] {
        let mut subject = Subject::open("log", keeping(2));
        ["1", "2", "3"].iter().for_each(|payload| subject.finish_with(payload));
        subject.clock.set(jump);
        subject.finish_with("4");
        assert_eq!(subject.contents(), ["3", "4"], "set by {jump} s");
        subject.restart();
        subject.clock.set(-jump);
        subject.finish_with("5");
        subject.finish_with("6");
        subject.close();
        assert_eq!(subject.contents(), ["5", "6"], "set by {jump} s and back");
    }
}

#[test]
fn a_time_of_change_decides_nothing() {
    let mut subject = Subject::open("log", keeping(2));
    subject.finish_with("1");
    let first = subject.logs().into_iter().find(|(_, text)| text == "1\n").expect("finished").0;
    let future = std::time::SystemTime::now() + Duration::from_secs(1_000_000);
    fs::File::open(path_of(&subject, &first)).expect("there").set_modified(future).expect("touched");
    subject.finish_with("2");
    subject.finish_with("3");
    subject.close();
    assert_eq!(subject.contents(), ["2", "3"]);
}

#[test]
fn a_finished_file_that_is_locked_stays_and_the_others_are_removed() {
    let mut subject = Subject::open("log", keeping(1));
    subject.finish_with("1");
    let first = subject.logs().into_iter().find(|(_, text)| text == "1\n").expect("finished").0;
    let reader = fs::File::open(path_of(&subject, &first)).expect("there");
    reader.lock_shared().expect("locked");
    subject.finish_with("2");
    subject.finish_with("3");
    assert_eq!(subject.contents(), ["1", "3"]);
    drop(reader);
    subject.finish_with("4");
    subject.close();
    assert_eq!(subject.contents(), ["4"]);
}

#[test]
fn without_its_index_nothing_is_removed_that_cannot_be_proven() {
    let mut subject = Subject::open("log", keeping(1));
    subject.finish_with("1");
    let index = path_of(&subject, ".log.udpd-index");
    fs::remove_file(&index).expect("there");
    subject.restart();
    subject.finish_with("2");
    subject.finish_with("3");
    assert_eq!(subject.contents(), ["1", "3"]);
    fs::write(&index, "of another program").expect("written");
    subject.finish_with("4");
    subject.restart();
    subject.finish_with("5");
    subject.close();
    assert_eq!(subject.contents(), ["1", "4", "5"]);
    assert_eq!(fs::read(&index).expect("there"), b"of another program");
}

#[test]
fn the_newest_stays_however_little_is_to_be_kept() {
    let mut subject = Subject::open("log", FileSettings { keep: Keep { files: 0, bytes: 1 }, ..PLAIN });
    ["a first one", "a second one"].iter().for_each(|payload| subject.finish_with(payload));
    subject.close();
    assert_eq!(subject.contents(), ["a second one"]);
}

#[test]
fn the_newest_stays_also_where_it_is_closed_and_not_locked() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("log").to_str().expect("UTF-8").to_owned();
    let name = FileName::new(path.clone(), Duration::ZERO);
    let mut retention =
        FileRetention::new(&name, Treatment { keep: Keep { files: 0, bytes: 1 }, recipe: None, upload: None });
    retention.read();
    let finished = [0, 1, 2].map(|second| PathBuf::from(format!("{path}.20260101T00000{second}Z")));
    for file in &finished {
        fs::write(file, "a record\n").expect("written");
        retention.list_by(file, file.metadata().map(|found| found.ino()));
    }
    assert_eq!(retention.clear(&[], &FileLedger::default()), finished[..2]);
    assert!(retention.clear(&[], &FileLedger::default()).is_empty());
    assert!(finished[2].exists());
}

#[test]
fn files_without_keep_have_no_index() {
    let mut subject = Subject::open("log", PLAIN);
    subject.finish_with("1");
    subject.close();
    assert_eq!(subject.files().len(), subject.logs().len());
}

#[test]
fn a_file_begins_at_once_when_the_clock_is_set_and_every_record_is_in_exactly_one() {
    for jump in [-HOUR, HOUR, -30 * 8766 * HOUR, 30 * 8766 * HOUR] {
        for name in ["log", "%Y%m%d%H.log", "%Y/%m/%d/%H/log"] {
            let mut subject = Subject::open(
                name,
                FileSettings { rotate: Rotate { bytes: 0, every: Duration::from_secs(3600) }, ..PLAIN },
            );
            assert!(subject.write("before"));
            for (set_by, payload) in [(jump, "first"), (-jump, "second")] {
                subject.clock.set(set_by);
                let generation = subject.file().generation;
                // It is noticed by the write, which is the last to the file of the old time.
                assert!(subject.write(payload));
                subject.until("a file of the new time", |file| file.generation > generation);
                let path = subject.file().settings.path.clone();
                let expected = FileName::new(path, Duration::ZERO).at(subject.clock.seconds());
                let handle = subject.file().handle.clone().expect("open");
                assert!(handle.is_at(&expected), "{name} set by {set_by} s: not at {}", expected.display());
            }
            assert!(subject.write("after"));
            subject.close();
            let lines: String = subject.logs().iter().map(|(_, text)| text.as_str()).collect();
            let mut lines: Vec<&str> = lines.lines().collect();
            lines.sort_unstable();
            assert_eq!(lines, ["after", "before", "first", "second"], "{name} set by {jump} s");
        }
    }
}

#[test]
fn names_of_finished_files_never_collide_although_the_clock_goes_back() {
    let mut subject = Subject::open("log", PLAIN);
    for round in 0..20 {
        subject.finish_with(&format!("{round:02}"));
        subject.clock.set(if round % 2 == 0 { -1 } else { 1 });
    }
    subject.close();
    let expected: Vec<String> = (0..20).map(|round| format!("{round:02}")).collect();
    assert_eq!(subject.contents(), expected);
}
