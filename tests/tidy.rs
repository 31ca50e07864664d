//! The style of the tree, held by a test: what a reviewer would otherwise have to remember.
//!
//! Each test lists everything that is wrong, with file and line, so that one run is enough to put it right. What
//! depends on the dependencies is in `tidy_dependencies`.

use std::collections::BTreeMap;
use std::path::Path;

use crate::util::source::{all_sources, code_only, functions, line_of, words};

const LINES_MAX: usize = 800;

/// The only files with unsafe code. A new one is a decision, made here, in the open.
const UNSAFE_FILES: &[&str] = &[
    "crates/bpf/src/calls.rs",
    "crates/bpf/src/mapped.rs",
    "crates/hostloss/src/drops/perf.rs",
    "crates/mmsg/src/sys.rs",
    "crates/mmsg/src/arena.rs",
    "crates/mmsg/src/region.rs",
    "crates/mmsg/src/passed.rs",
    "crates/mmsg/src/batch.rs",
    "crates/mmsg/src/batch_tests.rs",
    "crates/mmsg/src/ring.rs",
    "crates/mmsg/src/uring.rs",
    "crates/mmsg/src/uring_tests.rs",
    "crates/mmsg/src/span.rs",
    "crates/mmsg/src/send.rs",
    "crates/mmsg/src/send_tests.rs",
    "crates/mmsg/src/xdp/move_frame.rs",
    "crates/mmsg/src/xdp/move_frame_tests.rs",
    "crates/mmsg/src/xdp/engine.rs",
    "crates/mmsg/src/xdp/rings.rs",
    "crates/mmsg/src/xdp/socket.rs",
    "crates/netlink/src/groups.rs",
    "crates/steer/src/sys.rs",
];

/// Fails with the whole list, or passes when it is empty.
#[track_caller]
fn assert_none(rule: &str, wrong: &[String]) {
    assert!(wrong.is_empty(), "{rule}\n  {}\n", wrong.join("\n  "));
}

fn repository(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn every_file_says_at_its_top_what_it_is_for() {
    let wrong: Vec<String> =
        all_sources().into_iter().filter(|source| !source.text.starts_with("//! ")).map(|source| source.path).collect();
    assert_none("the first line of a file is `//! what it is for`", &wrong);
}

#[test]
fn no_file_is_longer_than_a_reader_bears() {
    let wrong: Vec<String> = all_sources()
        .iter()
        .map(|source| (source.text.lines().count(), &source.path))
        .filter(|(lines, _)| *lines > LINES_MAX)
        .map(|(lines, path)| format!("{path}: {lines} lines"))
        .collect();
    assert_none(&format!("a file has {LINES_MAX} lines at most"), &wrong);
}

#[test]
fn unsafe_code_stays_in_the_files_named_for_it() {
    let mut wrong = Vec::new();
    for source in all_sources().iter().filter(|source| !UNSAFE_FILES.contains(&source.path.as_str())) {
        for (place, _) in words(&source.code).filter(|(_, word)| *word == "unsafe") {
            wrong.push(format!("{}:{}", source.path, line_of(&source.code, place)));
        }
    }
    assert_none(&format!("unsafe code is in these files only: {UNSAFE_FILES:?}"), &wrong);
}

#[test]
fn the_crates_of_udpd_forbid_unsafe_code_altogether() {
    let sources = all_sources();
    let is_root =
        |path: &str| path == "crates/udpd/main.rs" || path.starts_with("crates/udpd-") && path.ends_with("/src/lib.rs");
    let roots: Vec<_> = sources.iter().filter(|source| is_root(&source.path)).collect();
    assert!(roots.len() > 10, "only {} crates of udpd are seen", roots.len());
    let wrong: Vec<String> = roots
        .into_iter()
        .filter(|source| !source.code.contains("#![forbid(unsafe_code)]"))
        .map(|source| source.path.clone())
        .collect();
    assert_none("each crate of udpd begins with #![forbid(unsafe_code)]", &wrong);
}

#[test]
fn no_comment_is_wider_than_a_page() {
    // rustfmt holds code to this, and leaves comments alone.
    const COLUMNS_MAX: usize = 120;
    let mut wrong = Vec::new();
    for source in all_sources() {
        let wide = source.text.lines().enumerate().filter(|(_, line)| line.chars().count() > COLUMNS_MAX);
        let comments = wide.filter(|(_, line)| line.trim_start().starts_with("//"));
        wrong.extend(comments.map(|(number, _)| format!("{}:{}", source.path, number + 1)));
    }
    assert_none(&format!("a comment has {COLUMNS_MAX} columns at most"), &wrong);
}

#[test]
fn every_thread_of_the_daemon_is_started_by_the_registry() {
    let mut wrong = Vec::new();
    let is_exempt = |path: &str| {
        // The registry itself; the bare loops of the bench, which the code that starts them waits for; and tests.
        path == "crates/udpd-base/src/os/threads.rs"
            // What the registry starts a thread by.
            || path == "crates/udpd-base/src/seams/waits.rs"
            || path.starts_with("crates/udpd-base/src/testing/")
            || path.starts_with("crates/udpd-bench/src/")
            || path.ends_with("tests.rs")
    };
    for source in
        all_sources().iter().filter(|source| source.path.starts_with("crates/udpd") && !is_exempt(&source.path))
    {
        let code = source.code.split("#[cfg(test)]").next().unwrap_or_default();
        let started = ["thread::spawn", "thread::Builder", "thread::scope"];
        let places = started.iter().flat_map(|what| code.match_indices(what));
        wrong.extend(places.map(|(place, _)| format!("{}:{}", source.path, line_of(code, place))));
    }
    assert_none("a thread is started here whose death is not heard: use ThreadRegistry::spawn", &wrong);
}

#[test]
fn every_test_a_promise_names_exists() {
    let page = std::fs::read_to_string(repository("docs/promises.md")).expect("docs/promises.md");
    // Every second piece between backticks is code; those with a Rust file in them name a test.
    let named: Vec<&str> = page.split('`').skip(1).step_by(2).filter(|code| code.contains(".rs")).collect();
    assert!(!named.is_empty(), "docs/promises.md names no test; write each as `path/to/file.rs::name_of_the_test`");
    let mut seen = BTreeMap::new();
    let mut wrong: Vec<String> = named.into_iter().filter_map(|code| missing_test(code, &mut seen).err()).collect();
    let rigs = page.split('`').skip(1).step_by(2).filter(|code| code.starts_with("tests/rigs/"));
    wrong.extend(rigs.filter(|rig| !repository(rig).exists()).map(|rig| format!("{rig}: no such rig")));
    assert_none("docs/promises.md names tests that do not exist", &wrong);
}

#[test]
fn a_row_of_the_promises_is_one_promise_and_its_tests() {
    let page = std::fs::read_to_string(repository("docs/promises.md")).expect("docs/promises.md");
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| promise |"));
    let mut seen = std::collections::BTreeSet::new();
    let mut wrong = Vec::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        if cells.len() != 2 || cells[1].is_empty() {
            wrong.push(format!("not two columns: {row}"));
        } else if cells[0].chars().count() > 160 {
            wrong.push(format!("too long to read aloud: {}", cells[0]));
        } else if !seen.insert(cells[0]) {
            wrong.push(format!("twice: {}", cells[0]));
        }
    }
    assert_none("a row has a promise of at most 160 characters, once, and the tests that hold it", &wrong);
}

/// Checks `path/to/file.rs::name` (or `...::tests::name`): the file is there and has that function.
fn missing_test(named: &str, seen: &mut BTreeMap<String, String>) -> Result<(), String> {
    let (file, test) = named.split_once("::").ok_or(format!("{named}: which test of that file? path::name"))?;
    let name = test.rsplit("::").next().unwrap_or(test);
    if !seen.contains_key(file) {
        let text = std::fs::read_to_string(repository(file)).map_err(|error| format!("{file}: {error}"))?;
        seen.insert(file.to_owned(), code_only(&text));
    }
    if functions(&seen[file]).contains(&name) { Ok(()) } else { Err(format!("{file} has no fn {name}")) }
}

#[test]
fn the_eye_of_these_tests_sees_code_and_not_what_looks_like_it() {
    let text = r##"
fn one<'a>(x: &'a str) -> char { let _ = "fn two() { unsafe"; '{' } // unsafe {
/* unsafe /* nested */ { */
fn three() -> fn(u8) { let _ = r#"} unsafe "# ; let _ = b'\''; let _ = b"\"unsafe";
    todo(3)
}
trait T { fn declared(&self, [u8; 3]); }
"##;
    let code = code_only(text);
    assert!(!words(&code).any(|(_, word)| word == "unsafe"), "{code}");
    assert_eq!(functions(&code), ["one", "three", "declared"]);
}
