//! Finished files are compressed: their records are on the disk at every moment, whatever a crash leaves and whatever
//! another program does to the files.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::tests::{PLAIN, Subject, counts, path_of};
use super::*;
use crate::Keep;
use udpd_base::codec::{Method, unpacked};

fn compressing(files: u64) -> FileSettings {
    FileSettings { compress: Some(Method::Gzip), keep: Keep { files, bytes: 0 }, ..PLAIN }
}

impl Subject {
    /// Waits until so many files are compressed and none waits.
    fn until_compressed(&mut self, files: u64) {
        self.until("files are compressed", |file| {
            let counts = counts(file);
            counts.compressed == files && counts.uncompressed == 0
        });
    }

    /// What is in the files that are not written any more, by name, unpacked.
    fn unpacked(&self) -> Vec<(String, String)> {
        let read = |name: &String| {
            let mut text = String::new();
            let file = File::open(path_of(self, name)).expect("there");
            unpacked(file).and_then(|mut file| file.read_to_string(&mut text)).expect("whole");
            text.trim_end().to_owned()
        };
        let files = self.logs().into_iter().map(|(name, _)| (name.clone(), read(&name)));
        files.filter(|(_, text)| !text.is_empty()).collect()
    }

    /// The same without the names.
    fn texts(&self) -> Vec<String> {
        let mut texts: Vec<String> = self.unpacked().into_iter().map(|(_, text)| text).collect();
        texts.sort();
        texts
    }
}

/// The only file with this text, which is there in one form.
fn only(subject: &Subject, text: &str) -> PathBuf {
    let found: Vec<String> =
        subject.unpacked().into_iter().filter(|(_, own)| own == text).map(|(name, _)| name).collect();
    assert_eq!(found.len(), 1, "{text}: {:?}", subject.unpacked());
    path_of(subject, &found[0])
}

#[test]
fn a_finished_file_is_compressed_and_keeps_its_time_and_its_mode() {
    let mut subject = Subject::open("log", FileSettings { sync: Sync::WhenFinished, ..compressing(0) });
    subject.finish_with(&"one".repeat(1000));
    subject.until_compressed(1);
    subject.finish_with("two");
    subject.until_compressed(2);
    assert!(subject.write("current"));
    let counts = subject.counts();
    assert_eq!((counts.compressed_from_bytes, counts.compress_failures), (3001 + 4, 0));
    assert!(counts.compressed_to_bytes < 200, "{}", counts.compressed_to_bytes);
    subject.close();
    let files = subject.unpacked();
    assert_eq!(files.len(), 3);
    assert!(files.iter().all(|(name, _)| name == "log" || name.ends_with("Z.gz") || name.ends_with("Z-1.gz")));
    let metadata = only(&subject, "two").metadata().expect("there");
    assert_eq!(metadata.mode() & 0o777, 0o640 & path_of(&subject, "log").metadata().expect("there").mode());
    assert!(metadata.modified().expect("a time") <= path_of(&subject, "log").metadata().unwrap().modified().unwrap());
}

#[test]
fn keep_counts_a_file_once_in_either_form_and_removes_the_oldest_also_after_a_restart() {
    let mut subject = Subject::open("log", compressing(2));
    for (number, payload) in ["1", "2", "3"].iter().enumerate() {
        subject.finish_with(payload);
        subject.until_compressed(number as u64 + 1);
    }
    assert_eq!(subject.texts(), ["2", "3"]);
    subject.restart();
    subject.finish_with("4");
    subject.until_compressed(1);
    // Those of before, with or without compression.
    let settings = FileSettings { compress: None, ..subject.file().settings.clone() };
    subject.file().settings = settings;
    subject.restart();
    subject.finish_with("5");
    subject.close();
    assert_eq!(subject.texts(), ["4", "5"]);
}

/// Has a file finished and not compressed, and the daemon ended; returns its name.
fn finished_and_ended(subject: &mut Subject) -> PathBuf {
    subject.file().settings.compress = None;
    subject.restart();
    subject.finish_with("precious");
    subject.close();
    only(subject, "precious")
}

/// Begins again, and waits until the file is there in its compressed form alone.
fn begin_again(subject: &mut Subject, settings: FileSettings) {
    subject.reopen_with(settings);
    subject.until("compressed", |file| {
        counts(file).uncompressed == 0
            && fs::read_dir(file.settings.path.rsplit_once('/').expect("a directory").0)
                .expect("readable")
                .flatten()
                .any(|entry| entry.path().extension().is_some_and(|extension| extension == "gz"))
    });
}

/// Writes the compressed form of a file with the time of that file.
fn compress_by_hand(plain: &PathBuf, to: &PathBuf) {
    let mut packed = flate2::write::GzEncoder::new(File::create(to).expect("made"), Default::default());
    io::Write::write_all(&mut packed, &fs::read(plain).expect("there")).expect("written");
    let packed = packed.finish().expect("whole");
    packed.set_modified(plain.metadata().expect("there").modified().expect("a time")).expect("set");
}

/// Adds a compressed form to this list.
fn list_packed(subject: &Subject, list: &str, packed: &Path) {
    let (list, name) = (path_of(subject, list), packed.file_name().expect("a name").display());
    let line = format!("{} {name}\n", packed.metadata().expect("there").ino());
    fs::write(&list, fs::read_to_string(&list).expect("a list") + &line).expect("written");
}

#[test]
fn whatever_a_crash_leaves_the_next_start_ends_with_one_whole_form() {
    for state in ["nothing yet", "a part", "listed", "named", "both forms"] {
        let mut subject = Subject::open("log", compressing(9));
        let settings = subject.file().settings.clone();
        let plain = finished_and_ended(&mut subject);
        let name = plain.file_name().expect("a name").to_str().expect("UTF-8").to_owned();
        let temporary = path_of(&subject, &format!(".{name}.gz.udpd-new"));
        let list = path_of(&subject, ".log.udpd-index");
        let append = |line: String| {
            let before = fs::read_to_string(&list).expect("a list");
            fs::write(&list, before + &line).expect("written");
        };
        if state != "nothing yet" {
            fs::write(&temporary, "a part of it").expect("written");
        }
        if ["listed", "named", "both forms"].contains(&state) {
            append(format!("{} {name}.gz\n", temporary.metadata().expect("there").ino()));
        }
        if ["named", "both forms"].contains(&state) {
            compress_by_hand(&plain, &temporary);
            fs::rename(&temporary, Method::Gzip.path_of(&plain)).expect("named");
        }
        if state == "named" {
            fs::remove_file(&plain).expect("removed");
        }
        begin_again(&mut subject, settings);
        subject.finish_with("next");
        subject.close();
        let file = only(&subject, "precious");
        assert!(file.extension().is_some_and(|extension| extension == "gz"), "{state}: {file:?}");
        assert!(!temporary.exists() && !plain.exists(), "{state}: {:?}", subject.files());
    }
}

#[test]
fn keep_by_bytes_removes_the_plain_form_of_a_compressed_file_before_any_other_file() {
    let mut subject = Subject::open("log", compressing(9));
    let settings = subject.file().settings.clone();
    let plain = finished_and_ended(&mut subject);
    let packed = Method::Gzip.path_of(&plain);
    compress_by_hand(&plain, &packed);
    list_packed(&subject, ".log.udpd-index", &packed);
    let long = "long".repeat(20);
    let bytes = packed.metadata().expect("there").len() + long.len() as u64 + 1;
    subject.reopen_with(FileSettings { compress: None, keep: Keep { files: 0, bytes }, ..settings });
    subject.finish_with(&long);
    subject.close();
    assert_eq!(subject.texts(), [&long, "precious"]);
    assert_eq!(only(&subject, "precious"), packed);
}

#[test]
fn a_path_that_comes_again_is_not_written_on_where_a_power_loss_has_left_its_file_in_both_forms() {
    let mut subject = Subject::open("%Y.log", FileSettings { compress: None, ..compressing(9) });
    let settings = FileSettings { compress: Some(Method::Gzip), ..subject.file().settings.clone() };
    assert!(subject.write("precious"));
    subject.close();
    let plain = only(&subject, "precious");
    let packed = Method::Gzip.path_of(&plain);
    compress_by_hand(&plain, &packed);
    list_packed(&subject, ".%Y.log.udpd-index", &packed);
    subject.reopen_with(settings);
    assert!(subject.write("next"));
    subject.close();
    assert_eq!(only(&subject, "precious"), packed);
    assert_eq!(only(&subject, "next"), plain);
}

#[test]
fn a_file_that_was_changed_after_it_was_compressed_stays_beside_it() {
    let mut subject = Subject::open("log", compressing(9));
    let settings = subject.file().settings.clone();
    let plain = finished_and_ended(&mut subject);
    subject.reopen_with(settings.clone());
    subject.until_compressed(1);
    subject.close();
    // As an operator does who unpacks it to look for something, and writes to it.
    fs::write(&plain, "precious\nand more\n").expect("written");
    let line = format!("{} {}\n", plain.metadata().expect("there").ino(), plain.file_name().unwrap().to_str().unwrap());
    let list = path_of(&subject, ".log.udpd-index");
    fs::write(&list, line + &fs::read_to_string(&list).expect("a list").replacen("udpd index 1\n", "", 1)).ok();
    let text = fs::read_to_string(&list).expect("a list");
    fs::write(&list, format!("udpd index 1\n{text}")).expect("written");
    subject.reopen_with(settings);
    subject.finish_with("next");
    subject.until_compressed(1);
    subject.close();
    assert_eq!(fs::read_to_string(&plain).expect("there"), "precious\nand more\n");
    only(&subject, "precious");
}

#[test]
fn what_cannot_be_compressed_stays_as_it_is_and_counts_as_a_failure() {
    let mut subject = Subject::open("log", compressing(9));
    let settings = subject.file().settings.clone();
    let plain = finished_and_ended(&mut subject);
    // A directory is in the place of the temporary file.
    let name = format!(".{}.gz.udpd-new", plain.file_name().expect("a name").to_str().expect("UTF-8"));
    fs::create_dir(path_of(&subject, &name)).expect("made");
    subject.reopen_with(settings);
    subject.until("a failure", |file| counts(file).compress_failures == 1);
    assert_eq!(subject.counts().uncompressed, 1);
    fs::remove_dir(path_of(&subject, &name)).expect("still there");
    subject.close();
    assert_eq!(only(&subject, "precious"), plain);
}

#[test]
fn a_locked_file_stays_as_it_is_and_the_next_is_compressed() {
    let mut subject = Subject::open("log", compressing(9));
    let settings = subject.file().settings.clone();
    let plain = finished_and_ended(&mut subject);
    let reader = File::open(&plain).expect("there");
    reader.lock_shared().expect("locked");
    subject.reopen_with(settings);
    subject.finish_with("next");
    subject.until("the next is compressed", |file| counts(file).compressed == 1);
    assert_eq!(subject.counts().compress_failures, 0);
    subject.close();
    assert_eq!(only(&subject, "precious"), plain);
    assert_ne!(only(&subject, "next").extension(), None);
}

#[test]
fn a_path_that_comes_again_is_never_compressed_over_what_it_was_before() {
    let mut subject = Subject::open("%H.log", compressing(0));
    let days = ["the first day", "the second day", "the third day"];
    for (day, text) in days.iter().enumerate() {
        assert!(subject.write(text));
        // An hour later another file is begun, and after a day that of this hour once more.
        for (hours, compressed) in [(1, day + 1), (23, day + 1)] {
            subject.clock.set(hours * 3600);
            let generation = subject.file().generation;
            subject.file().keeper.request(KeeperRequest::FinishDue(generation));
            subject.until("the next file", |file| file.generation > generation);
            subject.until_compressed(compressed as u64);
        }
    }
    subject.close();
    let names: Vec<String> = subject.unpacked().into_iter().map(|(name, _)| name).collect();
    assert!(names.len() == 3 && names.iter().all(|name| name.ends_with(".gz")), "{names:?}");
    let mut expected = days.to_vec();
    expected.sort();
    assert_eq!(subject.texts(), expected);
}

#[test]
fn what_a_crash_has_left_of_a_record_is_not_compressed_with_it() {
    let mut subject = Subject::open("%Y-%H%M%S.log", compressing(0));
    let settings = subject.file().settings.clone();
    assert!(subject.write("whole"));
    let path = subject.file().handle.clone().expect("open");
    let name = subject.logs().into_iter().next().expect("a file").0;
    subject.close();
    drop(path);
    let torn = path_of(&subject, &name);
    fs::write(&torn, "whole\ntorn").expect("written");
    subject.clock.set(7200);
    subject.reopen_with(settings);
    subject.until_compressed(1);
    subject.close();
    assert!(!torn.exists());
    assert_eq!(fs::read_to_string(path_of(&subject, &format!("{name}.torn"))).expect("set aside"), "torn");
    assert_eq!(only(&subject, "whole"), Method::Gzip.path_of(&torn));
}

#[test]
fn an_end_in_the_middle_leaves_the_file_and_nothing_else() {
    let mut subject = Subject::open("log", compressing(0));
    for round in 0..20 {
        subject.finish_with(&format!("round {round} {}", "x".repeat(10_000)));
        subject.restart();
    }
    subject.finish_with("the last");
    subject.until("nothing waits", |file| counts(file).uncompressed == 0);
    subject.close();
    let texts = subject.texts();
    assert_eq!(texts.len(), 21);
    for round in 0..20 {
        assert_eq!(texts.iter().filter(|text| text.starts_with(&format!("round {round} "))).count(), 1, "{round}");
    }
}
