//! Files that another process moves or removes, and reopening: no record is lost that a process can still read.

use std::fs;
use std::path::Path;
use std::thread;

use super::tests::{PLAIN, Subject, counts, path_of, rotating};
use super::*;
use crate::Reopened;
use udpd_base::sink::outbox::OutboxDestination;

impl Subject {
    /// All lines in all files, sorted.
    fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> =
            self.files().iter().flat_map(|(_, text)| text.lines()).map(str::to_owned).collect();
        lines.sort();
        lines
    }

    /// Waits until the path leads to the file that is written.
    fn until_in_place(&mut self) {
        let path = self.file().settings.path.clone();
        self.until("a file in its place", |file| {
            file.handle.as_ref().is_some_and(|handle| handle.is_at(Path::new(&path)))
        });
    }
}

#[test]
fn a_file_that_is_moved_is_closed_and_the_path_leads_to_a_new_one() {
    let mut subject = Subject::open("log", PLAIN);
    assert!(subject.write("before"));
    fs::rename(path_of(&subject, "log"), path_of(&subject, "theirs")).expect("moved");
    subject.file().keeper.request(KeeperRequest::Look);
    subject.until_in_place();
    assert!(subject.write("after"));
    subject.close();
    let expected = [("log", "after\n"), ("theirs", "before\n")].map(|(name, text)| (name.to_owned(), text.to_owned()));
    assert_eq!(subject.files(), expected);
}

#[test]
fn a_directory_that_is_removed_is_made_again() {
    let mut subject = Subject::open("deep/log", PLAIN);
    assert!(subject.write("lost with its directory"));
    // If this is slow, the next file is in it already.
    while fs::remove_dir_all(path_of(&subject, "deep")).is_err() {}
    subject.file().keeper.request(KeeperRequest::Look);
    subject.until_in_place();
    assert!(subject.write("after"));
    subject.close();
    assert_eq!(subject.files(), [("deep/log".to_owned(), "after\n".to_owned())]);
}

#[test]
fn a_request_about_a_file_that_is_closed_already_changes_nothing() {
    let mut subject = Subject::open("log", PLAIN);
    for round in 0..20 {
        assert!(subject.write("before"), "round {round}");
        fs::rename(path_of(&subject, "log"), path_of(&subject, &format!("theirs {round}"))).expect("moved");
        let at = subject.file().at();
        // The keeper gives the file up at the first of them; the others are about a file that is none any more.
        for request in [
            KeeperRequest::Look,
            KeeperRequest::FinishFull(at.generation),
            KeeperRequest::FinishDue(at.generation),
            KeeperRequest::Sync(at),
        ] {
            subject.file().keeper.request(request);
        }
        subject.until("a new file", |file| file.handle.is_some() && file.generation > at.generation);
        assert!(subject.write("after"), "round {round}");
        fs::rename(path_of(&subject, "log"), path_of(&subject, &format!("second {round}"))).expect("moved");
        let generation = subject.file().generation;
        subject.file().keeper.request(KeeperRequest::Look);
        subject.until("another file", |file| file.handle.is_some() && file.generation > generation);
    }
    subject.close();
    let lines: usize = subject.files().iter().map(|(_, content)| content.lines().count()).sum();
    assert_eq!(lines, 40);
}

#[test]
fn a_file_that_was_moved_is_synced_too() {
    let mut subject = Subject::open("log", FileSettings { sync: Sync::WhenFinished, ..PLAIN });
    assert!(subject.write("before"));
    let ledger = Arc::clone(&subject.file().ledger);
    let sync_errors = move || FileLedger::sum([ledger.as_ref()].into_iter()).counts.unsynced_bytes;
    assert_eq!(sync_errors(), 7);
    fs::rename(path_of(&subject, "log"), path_of(&subject, "theirs")).expect("moved");
    subject.file().keeper.request(KeeperRequest::Look);
    subject.until("what was moved to be safe", |_| sync_errors() == 0);
    subject.close();
}

#[test]
fn a_file_that_is_moved_again_and_again_under_load_loses_nothing_and_fails_nothing() {
    let mut subject = Subject::open("log", PLAIN);
    let mover = thread::spawn({
        let (path, aside) = (path_of(&subject, "log"), path_of(&subject, "theirs"));
        move || {
            for number in 0..20 {
                while fs::rename(&path, format!("{}-{number}", aside.display())).is_err() {
                    thread::yield_now();
                }
            }
        }
    });
    let mut count = 0;
    while !mover.is_finished() {
        assert!(subject.write(&format!("{count:06}")), "datagram {count} was not delivered");
        count += 1;
    }
    mover.join().expect("the mover ends");
    subject.close();
    let expected: Vec<String> = (0..count).map(|number| format!("{number:06}")).collect();
    assert_eq!(subject.lines(), expected);
    assert_eq!(subject.tally.dropped.sink_error, 0);
}

#[test]
fn a_file_that_is_moved_while_nothing_comes_does_not_get_the_next_datagram() {
    let mut subject = Subject::open("log", PLAIN);
    assert!(subject.write("before"));
    fs::rename(path_of(&subject, "log"), path_of(&subject, "theirs")).expect("moved");
    // No request to look comes, and nothing is written.
    subject.until_in_place();
    assert!(subject.write("after"));
    subject.close();
    let expected = [("log", "after\n"), ("theirs", "before\n")].map(|(name, text)| (name.to_owned(), text.to_owned()));
    assert_eq!(subject.files(), expected);
}

#[test]
fn while_no_other_file_can_be_begun_a_moved_one_is_written_on() {
    let mut subject = Subject::open("log", PLAIN);
    assert!(subject.write("1"));
    fs::rename(path_of(&subject, "log"), path_of(&subject, "theirs")).expect("moved");
    fs::create_dir(path_of(&subject, "log")).expect("in the way");
    let refused = subject.reopen().refused;
    assert!(refused.len() == 1 && refused[0].contains("/log: "), "{refused:?}");
    assert!(subject.write("2"), "its reader still gets it");
    fs::remove_dir(path_of(&subject, "log")).expect("out of the way");
    subject.until_in_place();
    assert!(subject.write("3"));
    subject.close();
    let expected = [("log", "3\n"), ("theirs", "1\n2\n")].map(|(name, text)| (name.to_owned(), text.to_owned()));
    assert_eq!(subject.files(), expected);
}

#[test]
fn while_no_other_file_can_be_begun_a_removed_one_takes_nothing() {
    let mut subject = Subject::open("log", PLAIN);
    assert!(subject.write("gone with its file"));
    fs::create_dir(path_of(&subject, "other")).expect("made");
    let exchange = rustix::fs::RenameFlags::EXCHANGE;
    let (path, other) = (path_of(&subject, "log"), path_of(&subject, "other"));
    rustix::fs::renameat_with(rustix::fs::CWD, &path, rustix::fs::CWD, &other, exchange).expect("exchanged");
    fs::remove_file(&other).expect("removed");
    subject.until("no file to write to", |file| file.handle.is_none());
    assert!(!subject.write("lost"));
    assert_eq!((subject.tally.dropped.sink_error, subject.file().outbox.lost()), (1, (1, 5)));
    fs::remove_dir(&path).expect("out of the way");
    subject.until_in_place();
    assert_eq!(subject.file().lost_before, None, "what it cost has been said");
    assert!(subject.write("after"));
    subject.close();
    assert_eq!(subject.files(), [("log".to_owned(), "after\n".to_owned())]);
}

#[test]
fn what_is_written_to_a_file_after_its_removal_is_doubtful() {
    for sync in [Sync::Never, Sync::WhenFinished] {
        let mut subject = Subject::open("log", FileSettings { sync, ..PLAIN });
        assert!(subject.write("before"));
        subject.file().keeper.mailbox.is_looking.store(true, Ordering::Release);
        subject.file().keeper.request(KeeperRequest::Look);
        subject.until("a look", |file| !file.keeper.mailbox.is_looking.load(Ordering::Acquire));
        let mut handle = subject.file().handle.clone().expect("open");
        fs::remove_file(path_of(&subject, "log")).expect("removed");
        // As the consumer does until the keeper tells it.
        subject.file().note_written(handle.write(b"late\n").expect("written") as u64);
        subject.until_in_place();
        subject.until("the ledger to know", |file| counts(file).unsynced_bytes == 0);
        assert_eq!(subject.counts().doubtful_bytes, 5);
        subject.close();
    }
}

#[test]
fn a_file_that_was_not_moved_stays_when_files_are_reopened() {
    let mut subject = Subject::open("log", PLAIN);
    assert!(subject.write("before"));
    let answer = subject.reopen();
    assert_eq!(answer, Reopened { unmoved: 1, ..Reopened::default() });
    assert!(subject.write("after"));
    subject.close();
    assert_eq!(subject.files(), [("log".to_owned(), "before\nafter\n".to_owned())]);
    assert!(subject.reopener.ask().is_none(), "it has ended");
}

#[test]
fn reopening_is_done_when_the_old_file_is_closed_and_synced_and_not_before() {
    let mut subject = Subject::open("log", FileSettings { sync: Sync::WhenFinished, ..PLAIN });
    assert!(subject.write("before"));
    fs::rename(path_of(&subject, "log"), path_of(&subject, "theirs")).expect("moved");
    let answer = subject.reopener.ask().expect("a keeper");
    subject.file().note_written(0);
    while path_of(&subject, "log").symlink_metadata().is_err() {
        thread::yield_now();
    }
    // The next file is there; the consumer has not gone over to it.
    assert!(answer.try_recv().is_err());
    subject.until_in_place();
    assert_eq!(answer.recv().expect("an answer"), Reopened { begun: 1, ..Reopened::default() });
    assert_eq!(subject.counts().unsynced_bytes, 0);
    subject.close();
}

#[test]
fn a_foreign_file_in_the_place_of_ours_is_never_renamed() {
    let mut subject = Subject::open("log", rotating(1));
    fs::write(path_of(&subject, "new"), "theirs\n").expect("written");
    fs::rename(path_of(&subject, "new"), path_of(&subject, "log")).expect("replaced");
    let generation = subject.file().generation;
    subject.file().keeper.request(KeeperRequest::FinishFull(generation));
    subject.until("another file", |file| file.generation > generation);
    subject.close();
    assert_eq!(subject.files(), [("log".to_owned(), "theirs\n".to_owned())]);
}
