//! The floors of crates/udpd, held by a test: a file imports only from the rooms below its own.
//!
//! The order is not written here. It is the order of the modules in crates/udpd/lib.rs, from the top floor down, so
//! that a new room gets its floor where it is declared.

use crate::util::imports::{Import, import_circles, imports};
use crate::util::source::all_sources;

const LIBRARY: &str = "crates/udpd/lib.rs";

/// The rooms from the top floor down, as lib.rs declares them.
fn floors(library: &str) -> Vec<&str> {
    library.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect()
}

/// The room of a file.
fn room(path: &str) -> &str {
    path.strip_prefix("crates/udpd/").unwrap_or(path).split(['/', '.']).next().unwrap_or_default()
}

#[test]
fn a_file_of_udpd_imports_only_from_the_floors_below() {
    let sources = all_sources();
    let library = sources.iter().find(|source| source.path == LIBRARY).expect(LIBRARY);
    let floors = floors(&library.text);
    assert!(floors.len() > 10 && floors.last() == Some(&"exit"), "lib.rs declares the rooms in order: {floors:?}");
    let floor = |path: &str| floors.iter().position(|name| *name == room(path));
    let is_back =
        |import: &&Import| matches!((floor(&import.from), floor(&import.to)), (Some(own), Some(other)) if other < own);
    let imports = imports(&sources, LIBRARY);
    assert!(imports.len() > 500, "only {} imports are seen in crates/udpd", imports.len());
    let wrong: Vec<String> = imports.iter().filter(is_back).map(Import::to_string).collect();
    assert!(wrong.is_empty(), "imports run down the floors of {LIBRARY}, never back:\n  {}", wrong.join("\n  "));
}

#[test]
fn no_files_of_udpd_import_each_other_in_a_circle() {
    let wrong = import_circles(&all_sources(), LIBRARY);
    assert!(wrong.is_empty(), "these import each other, and none can be read alone:\n  {}", wrong.join("\n  "));
}

#[test]
fn at_most_five_files_lie_at_the_root_of_udpd() {
    let sources = all_sources();
    let at_root = |path: &&str| path.strip_prefix("crates/udpd/").is_some_and(|inside| !inside.contains('/'));
    let loose: Vec<&str> = sources.iter().map(|source| source.path.as_str()).filter(at_root).collect();
    assert!(loose.len() <= 5, "a file belongs in a room: {loose:?}");
}
