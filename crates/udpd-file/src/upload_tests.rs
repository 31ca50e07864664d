//! Finished files and the thread that uploads them, in whose place a test takes and answers the jobs: which files it is
//! offered and when, what happens to them, and what `keep` does meanwhile.

use std::fs;
use std::path::PathBuf;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::tests::{PLAIN, Subject, path_of};
use super::*;
use crate::Keep;
use crate::upload::{ServiceSlot, UploadJob, UploadJobs, UploadOutcome, UploadService, UploadSettings};
use udpd_base::codec::Method;
use udpd_base::exit::Failure;
use udpd_base::os::threads::ThreadRegistry;

/// Gives each job to the test.
#[derive(Debug)]
struct TestService(Sender<UploadJob>);

impl UploadService for TestService {
    fn start(&self, _: &ThreadRegistry, _: &str, _: &[usize]) -> Result<UploadJobs, Failure> {
        Ok(UploadJobs { jobs: self.0.clone(), ends_with: Box::new(()) })
    }

    fn reads(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    fn is_named(&self) -> bool {
        false
    }

    fn place(&self) -> String {
        "a test".to_owned()
    }

    fn memory_bytes(&self) -> usize {
        0
    }
}

fn uploading(remove: bool, files: u64) -> (FileSettings, Receiver<UploadJob>) {
    let (sender, jobs) = unbounded();
    let service = ServiceSlot(Some(Arc::new(TestService(sender))));
    let upload = UploadSettings { remove, service, ..PLAIN.upload };
    (FileSettings { upload, keep: Keep { files, bytes: 0 }, ..PLAIN }, jobs)
}

/// The next job, with what its file holds.
fn next(jobs: &Receiver<UploadJob>) -> (UploadJob, String) {
    let job = jobs.recv_timeout(Duration::from_secs(20)).expect("a job");
    let text = io::read_to_string(job.open().expect("as it was")).expect("readable");
    (job, text.trim_end().to_owned())
}

impl Subject {
    /// Answers a job, and waits until the keeper has taken that.
    fn answer(&mut self, job: UploadJob, outcome: UploadOutcome) {
        job.report(outcome);
        // Whatever is asked for next is done after that.
        self.reopen();
    }

    /// What is in the finished files, in no order.
    fn finished_texts(&self) -> Vec<String> {
        let finished = self.logs().into_iter().filter(|(name, _)| name != "log");
        let mut texts: Vec<String> = finished.map(|(_, text)| text.trim_end().to_owned()).collect();
        texts.sort();
        texts
    }
}

#[test]
fn each_file_is_offered_once_in_order_and_stays_or_is_removed_as_the_sink_says() {
    for remove in [false, true] {
        let (settings, jobs) = uploading(remove, 0);
        let mut subject = Subject::open("log", settings);
        for text in ["1", "2", "3"] {
            subject.finish_with(text);
        }
        for text in ["1", "2", "3"] {
            let (job, found) = next(&jobs);
            assert_eq!(found, text);
            assert!(jobs.is_empty(), "one at a time");
            subject.answer(job, UploadOutcome::Uploaded);
        }
        let counts = subject.counts();
        assert_eq!((counts.uploaded, counts.uploaded_bytes, counts.not_uploaded, counts.removed), (3, 6, 0, 0));
        let left: &[&str] = if remove { &[] } else { &["1", "2", "3"] };
        assert_eq!(subject.finished_texts(), left);
        // A restart does not offer them again, and takes up what waits.
        subject.finish_with("4");
        assert_eq!(next(&jobs).1, "4");
        subject.restart();
        let (job, found) = next(&jobs);
        assert_eq!(found, "4");
        subject.answer(job, UploadOutcome::Uploaded);
        assert!(jobs.is_empty());
        subject.close();
    }
}

#[test]
fn a_file_that_did_not_get_there_is_offered_again_and_others_are_meanwhile() {
    let (settings, jobs) = uploading(true, 0);
    let mut subject = Subject::open("log", settings);
    subject.finish_with("1");
    subject.finish_with("2");
    let (job, _) = next(&jobs);
    subject.answer(job, UploadOutcome::Returned);
    let (job, found) = next(&jobs);
    assert_eq!(found, "2");
    subject.answer(job, UploadOutcome::Uploaded);
    assert_eq!(subject.finished_texts(), ["1"]);
    let (job, found) = next(&jobs);
    assert_eq!(found, "1");
    subject.answer(job, UploadOutcome::Uploaded);
    assert_eq!((subject.finished_texts().len(), subject.counts().uploaded), (0, 2));
}

#[test]
fn a_file_that_was_changed_while_it_was_uploaded_stays_and_is_offered_as_it_is_now() {
    let (settings, jobs) = uploading(true, 0);
    let mut subject = Subject::open("log", settings);
    subject.finish_with("1");
    let (job, _) = next(&jobs);
    fs::write(&job.path, "another").expect("written");
    subject.answer(job, UploadOutcome::Uploaded);
    assert_eq!((subject.finished_texts(), subject.counts().uploaded), (vec!["another".to_owned()], 0));
    let (job, found) = next(&jobs);
    assert_eq!(found, "another");
    subject.answer(job, UploadOutcome::Uploaded);
    assert_eq!(subject.finished_texts().len(), 0);
}

#[test]
fn a_file_is_compressed_first_and_goes_in_that_form() {
    let (settings, jobs) = uploading(true, 0);
    let mut subject = Subject::open("log", FileSettings { compress: Some(Method::Gzip), ..settings });
    subject.finish_with("one");
    let job = jobs.recv_timeout(Duration::from_secs(20)).expect("a job");
    let mut text = String::new();
    let file = job.open().expect("as it was");
    udpd_base::codec::unpacked(file)
        .and_then(|mut file| io::Read::read_to_string(&mut file, &mut text))
        .expect("whole");
    assert_eq!((job.path.extension().and_then(|own| own.to_str()), text.as_str()), (Some("gz"), "one\n"));
    subject.answer(job, UploadOutcome::Uploaded);
    assert_eq!((subject.finished_texts().len(), subject.counts().compressed, subject.counts().uploaded), (0, 1, 1));
    subject.close();
}

#[test]
fn what_a_crash_has_left_of_a_record_is_moved_aside_before_a_file_is_uploaded() {
    let mut subject = Subject::open("log", FileSettings { keep: Keep { files: 9, bytes: 0 }, ..PLAIN });
    subject.finish_with("whole");
    let path = path_of(&subject, &subject.logs().iter().find(|(name, _)| name != "log").expect("finished").0);
    subject.close();
    fs::write(&path, "whole\ntorn").expect("written");
    let (settings, jobs) = uploading(false, 9);
    let path_of_sink = path_of(&subject, "log").to_str().expect("UTF-8").to_owned();
    subject.reopen_with(FileSettings { path: path_of_sink, ..settings });
    assert_eq!(next(&jobs).1, "whole");
}

#[test]
fn keep_leaves_what_was_not_uploaded_until_that_is_twice_as_much() {
    let (settings, jobs) = uploading(false, 2);
    let mut subject = Subject::open("log", settings);
    for text in ["1", "2", "3", "4"] {
        subject.finish_with(text);
    }
    assert_eq!(subject.finished_texts(), ["1", "2", "3", "4"]);
    let (job, found) = next(&jobs);
    assert_eq!(found, "1");
    subject.answer(job, UploadOutcome::Uploaded);
    subject.finish_with("5");
    assert_eq!(subject.finished_texts(), ["2", "3", "4", "5"], "the one that was uploaded goes first");
    assert_eq!((subject.counts().removed, subject.counts().removed_unsent), (1, 0));
    subject.finish_with("6");
    assert_eq!(subject.finished_texts(), ["3", "4", "5", "6"]);
    assert_eq!((subject.counts().removed, subject.counts().removed_unsent), (2, 1));
    // "2", which was offered before it was removed.
    let job = jobs.recv_timeout(Duration::from_secs(20)).expect("a job");
    assert!(job.open().is_err());
    subject.answer(job, UploadOutcome::Returned);
    for text in ["3", "4", "5", "6"] {
        let (job, found) = next(&jobs);
        assert_eq!(found, text);
        subject.answer(job, UploadOutcome::Uploaded);
    }
    subject.finish_with("7");
    let (job, _) = next(&jobs);
    subject.answer(job, UploadOutcome::Uploaded);
    assert_eq!(subject.finished_texts(), ["6", "7"], "all are there, so keep is kept");
    let counts = subject.counts();
    assert_eq!((counts.finished, counts.uploaded, counts.removed_unsent, counts.removed), (7, 6, 1, 5));
}

#[test]
fn a_file_of_a_period_is_uploaded_when_that_is_over_and_its_directory_goes_with_it() {
    let (settings, jobs) = uploading(true, 0);
    let mut subject = Subject::open("%Y/%m%d-%H%M%S.log", settings);
    assert!(subject.write("1"));
    assert!(jobs.is_empty(), "it may be written again");
    subject.until("a new second", |file| {
        std::thread::yield_now();
        file.when_due();
        file.is_changing
    });
    subject.until("the next file", |file| !file.is_changing);
    let (job, found) = next(&jobs);
    assert_eq!(found, "1");
    let path = job.path.clone();
    subject.answer(job, UploadOutcome::Uploaded);
    assert!(!path.exists());
    subject.close();
}
