//! What is listed, in which order, and what is forgotten, whatever a crash or another program does to the index.

use std::fs;
use std::time::Duration;

use seeds::Chance;
use udpd_base::testing::simulated;
use udpd_base::testing::simulated_disk::SimulatedDisk;

use super::*;

struct Subject {
    directory: tempfile::TempDir,
    name: FileName,
}

impl Subject {
    fn new(pattern: &str) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let pattern = directory.path().join(pattern).to_str().expect("UTF-8").to_owned();
        Self { directory, name: FileName::new(pattern, Duration::ZERO) }
    }

    /// Makes a file and returns what it is called and its number.
    fn make(&self, name: &str) -> (PathBuf, u64) {
        let path = self.directory.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(&path, name).expect("written");
        let inode = path.metadata().expect("there").ino();
        (path, inode)
    }

    fn index(&self) -> Index {
        Index::open(&self.name).expect("an index, or none")
    }

    fn add(&self, index: &mut Index, name: &str) {
        let (path, inode) = self.make(name);
        index.add(&path, inode).expect("listed");
    }

    fn names(&self, index: &mut Index) -> Vec<String> {
        let below = |file: FinishedFile| {
            any_form(&file).path.strip_prefix(self.directory.path()).expect("below").display().to_string()
        };
        index.present().into_iter().map(below).collect()
    }

    fn bytes(&self, index: &Index) -> Vec<u8> {
        fs::read(index.path()).expect("there is an index")
    }
}

fn any_form(file: &FinishedFile) -> &FinishedForm {
    file.forms().next().expect("a file that is there")
}

/// The name of a file that was finished so many seconds after a full minute.
fn at(second: usize) -> String {
    format!("log.20261121T0642{second:02}Z")
}

#[test]
fn the_order_is_that_of_the_lines_also_after_a_restart_and_whatever_the_names_say() {
    let subject = Subject::new("log");
    let mut index = subject.index();
    let order = [at(30), at(59), at(10), format!("{}-1", at(10))];
    order.iter().for_each(|name| subject.add(&mut index, name));
    assert_eq!(subject.names(&mut index), order);
    let mut again = subject.index();
    assert_eq!(subject.names(&mut again), order);
    subject.add(&mut again, &at(11));
    assert_eq!(subject.names(&mut subject.index()).last(), Some(&at(11)));
}

#[test]
fn what_is_gone_another_file_or_no_name_of_this_sink_is_not_listed() {
    let subject = Subject::new("%Y/log");
    let mut index = subject.index();
    for year in ["2024/log", "2025/log", "2026/log"] {
        subject.add(&mut index, year);
    }
    fs::remove_file(subject.directory.path().join("2024/log")).expect("removed");
    let theirs = subject.directory.path().join("theirs");
    fs::write(&theirs, "theirs").expect("written");
    fs::rename(&theirs, subject.directory.path().join("2025/log")).expect("replaced");
    let (passwords, inode) = subject.make("passwords");
    let line = format!("{inode} passwords\n{inode} ../{}\n", passwords.display());
    fs::write(index.path(), [subject.bytes(&index), line.into_bytes()].concat()).expect("forged");
    assert_eq!(subject.names(&mut subject.index()), ["2026/log"]);
}

#[test]
fn cut_anywhere_it_loses_the_lines_behind_the_cut_and_goes_on() {
    let subject = Subject::new("log");
    let mut index = subject.index();
    let names: Vec<String> = (0..4).map(at).collect();
    names.iter().for_each(|name| subject.add(&mut index, name));
    let whole = subject.bytes(&index);
    for cut in 0..=whole.len() {
        fs::write(index.path(), &whole[..cut]).expect("cut");
        let mut cut_index = subject.index();
        let lines = whole[..cut].iter().filter(|&&byte| byte == b'\n').count().saturating_sub(1);
        assert_eq!(subject.names(&mut cut_index), names[..lines], "cut at {cut}");
        subject.add(&mut cut_index, &at(50));
        let expected = [&names[..lines], &[at(50)]].concat();
        assert_eq!(subject.names(&mut subject.index()), expected, "added after a cut at {cut}");
    }
}

#[test]
fn it_is_as_long_as_what_is_there() {
    let subject = Subject::new("log");
    let mut index = subject.index();
    for number in 0..1_000 {
        let name = format!("{}-{number}", at(1));
        subject.add(&mut index, &name);
        fs::remove_file(subject.directory.path().join(name)).expect("removed");
        if number % 7 == 0 {
            index.present();
        }
    }
    assert!(subject.bytes(&index).len() < 200 * 60, "{} bytes", subject.bytes(&index).len());
}

#[test]
fn a_file_that_gets_none_of_the_names_it_is_listed_by_stands_there_once() {
    let subject = Subject::new("log");
    let mut index = subject.index();
    subject.add(&mut index, &at(0));
    let (_, inode) = subject.make("log");
    for number in 0..1_000 {
        index.add(&subject.directory.path().join(format!("{}-{number}", at(1))), inode).expect("listed");
    }
    assert_eq!(index.entries.len(), 2, "the one that is there and the last try");
    let lines = subject.bytes(&index).split(|byte| *byte == b'\n').count();
    assert!(lines < STALE_LINES_MAX + 10, "the file is as long as what is there: {lines} lines");
    fs::rename(subject.directory.path().join("log"), subject.directory.path().join(format!("{}-999", at(1))))
        .expect("the last try");
    assert_eq!(subject.names(&mut subject.index()), [at(0), format!("{}-999", at(1))]);
}

#[test]
fn a_name_that_is_used_again_is_the_newest() {
    let subject = Subject::new("%H.log");
    let mut index = subject.index();
    for hour in ["10.log", "11.log", "12.log"] {
        subject.add(&mut index, hour);
    }
    let (path, inode) = subject.make("10.log");
    assert!(index.has(&path, inode));
    index.add(&path, inode).expect("listed");
    let expected = ["11.log", "12.log", "10.log"];
    assert_eq!(subject.names(&mut index), expected);
    assert_eq!(subject.names(&mut subject.index()), expected);
    subject.make("13.log");
    assert_eq!(index.unlisted(&path), 1);
}

#[test]
fn what_is_in_its_place_and_no_index_is_left_as_it_is() {
    let subject = Subject::new("log");
    let (path, _) = subject.make(".log.udpd-index");
    assert!(Index::open(&subject.name).is_err());
    fs::remove_file(&path).expect("removed");
    let (target, _) = subject.make("target");
    std::os::unix::fs::symlink(&target, &path).expect("a link");
    assert!(Index::open(&subject.name).is_err());
    fs::remove_file(&path).expect("removed");
    let mut index = subject.index();
    let (beside, _) = subject.make(".log.udpd-index.new");
    let (finished, inode) = subject.make(&at(0));
    assert!(index.add(&finished, inode).is_err());
    assert_eq!(fs::read(&beside).expect("there"), b".log.udpd-index.new");
    fs::write(&beside, HEADER).expect("what a crash of ours has left");
    index.add(&finished, inode).expect("listed");
    assert_eq!(fs::read(&target).expect("there"), b"target");
}

#[test]
fn a_long_path_with_codes_has_an_index_of_its_own_too() {
    let long = "x".repeat(120);
    let one = Index::path_of(&FileName::new(format!("/log/%Y/{long}/{long}"), Duration::ZERO));
    let other = Index::path_of(&FileName::new(format!("/log/%m/{long}/{long}"), Duration::ZERO));
    assert!(one != other && one.file_name().expect("a name").len() < 60, "{}", one.display());
    let short = Index::path_of(&FileName::new("/log/%Y/x.log".to_owned(), Duration::ZERO));
    assert_eq!(short, Path::new("/log/.%Y%-x.log.udpd-index"));
}

#[test]
fn a_power_loss_that_leaves_the_name_of_a_compressed_form_leaves_its_line() {
    let mut with_name = 0;
    for seed in 0..200 {
        let mut chance = Chance::new(seed);
        let subject = Subject::new("log");
        let (plain, inode) = subject.make(&at(1));
        let (temporary, packed) = subject.make(".part");
        subject.index().add(&plain, inode).expect("listed");
        let disk = SimulatedDisk::of(subject.directory.path(), Chance::new(seed));
        let simulation = simulated::enter(disk.clone());
        subject.index().add_compressed(&plain, Method::Gzip, packed).expect("listed");
        let target = Method::Gzip.path_of(&plain);
        disk::rename_to_new(&temporary, &target).expect("named");
        disk.lose_power(&mut chance);
        drop(simulation);
        if target.exists() {
            with_name += 1;
            let lines = String::from_utf8(subject.bytes(&subject.index())).expect("text");
            assert!(lines.contains(&format!("{packed} {}.gz\n", at(1))), "seed {seed}: {lines}");
        }
    }
    assert!(with_name > 50, "{with_name}");
}
