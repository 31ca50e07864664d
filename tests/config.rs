//! Every configuration that must not start, against the built binary.
//!
//! The files under `tests/corpus/bad` say in their first line what is expected of them:
//! `# expect LINE:COLUMN KEY | words that the message must hold`. Files that no editor should touch (a byte order mark,
//! broken UTF-8, a NUL, deep nesting, a megabyte) are made here. Those under `tests/corpus/good` must be accepted.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use udpd_base::exit::ExitCode;
use udpd_engine::config::{Config, HostView};

use crate::util::*;

/// Nothing may appear here: it is where the files of the corpus would have their sinks and sockets.
const WOULD_BE_CREATED: &str = "/tmp/udpd-corpus";

/// A file, and what must be said of it.
#[derive(Debug)]
struct Case {
    file: PathBuf,
    /// `LINE:COLUMN`
    place: String,
    key: String,
    words: String,
}

impl Case {
    fn made(directory: &Path, name: &str, content: &[u8], expect: &str) -> Self {
        let file = directory.join(name);
        fs::write(&file, content).expect("a file of the corpus");
        Self::expecting(file, expect)
    }

    fn expecting(file: PathBuf, expect: &str) -> Self {
        let (place_and_key, words) = expect.split_once(" | ").expect("words behind a bar");
        let (place, key) = place_and_key.split_once(' ').expect("a place and a key");
        Self { file, place: place.into(), key: key.into(), words: words.into() }
    }

    /// The message must hold a line with the place, the key, what is wrong, and a cure.
    fn complaint(&self, message: &str) -> Option<String> {
        let start = format!("{}:{}: {}: ", self.file.display(), self.place, self.key);
        let line = message.lines().find(|line| line.contains(&start));
        match line {
            Some(line) if line.contains(&self.words) && line.contains("; ") => None,
            Some(line) => Some(format!("{:?} is not said of {start}\n  {line}", self.words)),
            None => Some(format!("nothing is said of {start}\n  {message}")),
        }
    }
}

fn corpus(kind: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(kind);
    let entries = fs::read_dir(directory).expect("the corpus");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}

fn written_cases() -> Vec<Case> {
    let with_expectation = |file: PathBuf| {
        let text = fs::read_to_string(&file).expect("a text file");
        let first = text.lines().next().unwrap_or_default();
        let expect =
            first.strip_prefix("# expect ").unwrap_or_else(|| panic!("{file:?} does not say what is expected"));
        Case::expecting(file, expect)
    };
    corpus("bad").into_iter().map(with_expectation).collect()
}

/// The cases that cannot be kept as text.
fn made_cases(directory: &Path) -> Vec<Case> {
    let valid =
        "[[listener]]\nname = \"a\"\naddress = \"127.0.0.1:5514\"\nsinks = [\"out\"]\n[sink.out]\ntype = \"null\"\n";
    let after = |head: &[u8]| [head, valid.as_bytes()].concat();
    let deep = format!("a = {}{}\n{valid}", "[".repeat(10_000), "]".repeat(10_000));
    let dotted = format!("{} = 1\n{valid}", vec!["a"; 10_000].join("."));
    let huge = format!("{valid}#{}\n", "x".repeat(1 << 20));
    let many = format!("{valid}{}", (0..500).map(|n| format!("unknown_{n} = 1\n")).collect::<String>());
    let crowd: String = (0..1100)
        .map(|n| format!("[[listener]]\nname = \"l{n}\"\naddress = \"127.0.0.1:{}\"\nsinks = [\"out\"]\n", n + 1))
        .collect();
    let crowd = format!("{crowd}[sink.out]\ntype = \"null\"\n");
    fs::create_dir(directory.join("directory.toml")).expect("a directory");
    vec![
        Case::made(directory, "empty.toml", b"", "1:1 listener | defines no listener"),
        Case::made(directory, "blank.toml", b"\n \n", "1:1 sink | defines no sink"),
        Case::made(directory, "bom.toml", &after(b"\xEF\xBB\xBF"), "1:1 file | save it as UTF-8 without BOM"),
        Case::made(directory, "utf16.toml", b"\xFF\xFE[\x00", "1:1 file | is UTF-16"),
        Case::made(directory, "latin1.toml", &after(b"# gut\n# f\xFCr\n"), "2:4 file | byte 0xFC is not UTF-8"),
        Case::made(directory, "cut.toml", &[valid.as_bytes(), b"# \xE2\x82"].concat(), "7:3 file | is not UTF-8"),
        Case::made(directory, "nul.toml", &after(b"# a\0b\n"), "1:4 syntax | NUL byte"),
        Case::made(directory, "control.toml", &after(b"# a\x01b\n"), "1:4 syntax | is not TOML"),
        Case::made(directory, "return.toml", valid.replace('\n', "\r").as_bytes(), "1:14 listener | carriage return"),
        Case::made(directory, "deep.toml", deep.as_bytes(), "1:85 a | nesting is too deep"),
        Case::made(directory, "dotted.toml", dotted.as_bytes(), "1:1 syntax | nesting is too deep"),
        Case::made(directory, "huge.toml", huge.as_bytes(), "1:1 file | larger than 1 MiB"),
        Case::made(directory, "many.toml", many.as_bytes(), "7:1 sink.out.unknown_0 | unknown key"),
        Case::made(directory, "crowd.toml", crowd.as_bytes(), "4097:1 listener | define at most 1024"),
        Case::made(directory, "elf.toml", b"\x7fELF\x02\x01\x01\0\0\0", "1:8 syntax | NUL byte"),
        Case::expecting(directory.join("directory.toml"), "1:1 file | is a directory"),
        Case::expecting(directory.join("absent.toml"), "1:1 file | create it, name another with -c FILE"),
        Case::expecting(PathBuf::from("/dev/null"), "1:1 file | is not a regular file"),
    ]
}

fn assert_no_complaints(complaints: &[String], cases: usize) {
    assert!(complaints.is_empty(), "{} of {cases} files:\n{}", complaints.len(), complaints.join("\n"));
    assert!(!Path::new(WOULD_BE_CREATED).exists(), "{WOULD_BE_CREATED} was created by a check");
}

#[test]
fn udpd_check_and_udpd_run_end_with_78_on_every_bad_file_and_create_nothing() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let working = tempfile::tempdir().expect("a working directory");
    let mut cases = written_cases();
    cases.extend(made_cases(directory.path()));
    assert!(cases.len() >= 90, "the corpus holds only {} files", cases.len());
    let complaint = |command: &str, case: &Case| {
        let mut udpd = Command::new(UDPD);
        let udpd = udpd.arg(command).arg("-c").arg(&case.file).current_dir(working.path());
        let output = udpd.output().expect("udpd can be started");
        let message = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(78) => case.complaint(&message),
            code => Some(format!("{command}: {:?} ends with {code:?}: {message}", case.file)),
        }
    };
    for command in ["check", "run"] {
        let complaints: Vec<String> = cases.iter().filter_map(|case| complaint(command, case)).collect();
        assert_no_complaints(&complaints, cases.len());
    }
    let left = fs::read_dir(working.path()).expect("the working directory").count();
    assert_eq!(left, 0, "a check left files in its working directory");
}

#[test]
fn every_good_file_is_accepted() {
    for file in corpus("good") {
        if let Err(failure) = Config::load(&file, &HostView::default()) {
            panic!("{failure}");
        }
    }
}

#[test]
fn a_file_that_cannot_be_read_is_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("secret.toml");
    fs::write(&file, "").expect("a file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).expect("rights");
    if fs::File::open(&file).is_ok() {
        // Root reads it all the same, and there is nothing to be seen.
        return;
    }
    let failure = Config::load(&file, &HostView::default()).expect_err("unreadable");
    assert_eq!(failure.code, ExitCode::Configuration);
    assert!(failure.message.contains("1:1: file: cannot be read: Permission denied"), "{failure}");
    assert!(failure.message.contains("namei -l"), "{failure}");
}

#[test]
fn check_and_run_read_the_older_spelling_of_a_queue_and_say_once_what_it_is_read_as() {
    let setup = Setup::new().null("out").keys("queue_batches = 100");
    let said = "sink.out.queue_batches: is the older spelling of queue_bytes; udpd reads 100 batches as 3200KiB; \
                write queue_bytes = \"3200KiB\" instead";
    let shown = setup.check().succeeds(&[]).stdout;
    let is_warning = |line: &&str| line.starts_with("warning: ") && line.ends_with(&format!(":1: {said}"));
    assert_eq!(shown.lines().filter(is_warning).count(), 1, "{shown}");
    let ended = setup.start().end(0);
    ended.assert_logged(said, 1);
    ended.assert_logged("older spelling", 1);
}
