//! The floors of crates/udpd, held by a test: a file imports only from the rooms below its own.
//!
//! The order is not written here. It is the order of the modules in crates/udpd/lib.rs, from the top floor down, so
//! that a new room gets its floor where it is declared.

use crate::util::source::{all_sources, line_of, words};

/// Imports that still run back, each with what will end it. Nothing is ever added here.
const STILL_BACK: &[(&str, &str)] = &[("plan/mod.rs", "pipeline"), ("plan/limits.rs", "commands")];

/// The rooms from the top floor down, as lib.rs declares them.
fn floors(library: &str) -> Vec<&str> {
    library.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect()
}

#[test]
fn a_file_of_udpd_imports_only_from_the_floors_below() {
    let sources = all_sources();
    let library = sources.iter().find(|source| source.path == "crates/udpd/lib.rs").expect("crates/udpd/lib.rs");
    let floors = floors(&library.text);
    assert!(floors.len() > 10 && floors.last() == Some(&"exit"), "lib.rs declares the rooms in order: {floors:?}");
    let floor = |room: &str| floors.iter().position(|name| *name == room);
    let mut wrong = Vec::new();
    for source in &sources {
        let Some(inside) = source.path.strip_prefix("crates/udpd/") else { continue };
        let room = inside.split(['/', '.']).next().unwrap_or_default();
        // What a test compares with may lie anywhere.
        let Some(own) = floor(room).filter(|_| !inside.ends_with("tests.rs")) else { continue };
        for (line, imported) in imported_rooms(source.code.split("#[cfg(test)]").next().unwrap_or_default()) {
            let is_back = floor(&imported).is_some_and(|other| other < own);
            if is_back && !STILL_BACK.contains(&(inside, imported.as_str())) {
                wrong.push(format!("{}:{line}: {room} imports crate::{imported}, a floor above it", source.path));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "imports run down the floors of crates/udpd/lib.rs, never back:\n  {}",
        wrong.join("\n  ")
    );
}

/// The rooms named after `crate::`, alone or as the heads of `crate::{a, b::c}`, each with its line.
fn imported_rooms(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (place, _) in code.match_indices("crate::") {
        let rest = &code[place + "crate::".len()..];
        let line = line_of(code, place);
        match rest.strip_prefix('{') {
            Some(group) => found.extend(group_heads(group).into_iter().map(|head| (line, head))),
            None => found.extend(words(rest).next().map(|(_, word)| (line, word.to_owned()))),
        }
    }
    found
}

/// The first word of each part of a brace group whose opening brace has been read.
fn group_heads(group: &str) -> Vec<String> {
    let mut depth = 1;
    let mut parts = vec![String::new()];
    for character in group.chars() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => parts.push(String::new()),
            _ => parts.last_mut().expect("never empty").push(character),
        }
        if depth == 0 {
            break;
        }
    }
    parts.iter().filter_map(|part| words(part).next().map(|(_, word)| word.to_owned())).collect()
}

#[test]
fn the_eye_of_this_test_sees_imports_alone_and_in_groups() {
    let imports = imported_rooms("use crate::pool;\nuse crate::{ledger::{A, B}, sink};");
    assert_eq!(imports, [(1, "pool".to_owned()), (2, "ledger".to_owned()), (2, "sink".to_owned())]);
}

#[test]
fn at_most_five_files_lie_at_the_root_of_udpd() {
    let sources = all_sources();
    let at_root = |path: &&str| path.strip_prefix("crates/udpd/").is_some_and(|inside| !inside.contains('/'));
    let loose: Vec<&str> = sources.iter().map(|source| source.path.as_str()).filter(at_root).collect();
    assert!(loose.len() <= 5, "a file belongs in a room: {loose:?}");
}
