//! The order of the files in the libraries, held by a test: imports run down their file maps and never back.

use std::collections::{BTreeMap, BTreeSet};

use crate::util::imports::{files, import_circles, imports};
use crate::util::source::{Source, all_sources, code_only, words};

const LIBRARIES: [&str; 6] = [
    "crates/bpf/src",
    "crates/framegen/src",
    "crates/hostloss/src",
    "crates/mmsg/src",
    "crates/netlink/src",
    "crates/steer/src",
];

/// The rows of the file map in a library's documentation, from the top down: the files named before the colon, each
/// with whether it is marked as one with unsafe code.
fn file_map(library: &Source) -> Vec<BTreeMap<String, bool>> {
    let section = library.text.split("//! # The files\n").nth(1).expect("a file map in the documentation");
    let section = section.split("//! #").next().expect("never empty");
    let rows = section.lines().filter_map(|line| line.strip_prefix("//! - ")?.split(':').next());
    let files = |row: &str| {
        let named: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        let marked = |at: usize| named.get(at + 1) == Some(&"!");
        let names = named.iter().enumerate().filter(|(_, name)| **name != "!");
        names.map(|(at, name)| ((*name).to_owned(), marked(at))).collect()
    };
    rows.map(files).collect()
}

#[test]
fn no_two_files_of_a_library_import_each_other_in_a_circle() {
    let sources = all_sources();
    for folder in LIBRARIES {
        let circles = import_circles(&sources, &format!("{folder}/lib.rs"));
        assert!(circles.is_empty(), "{folder}: imports run in a circle\n  {}", circles.join("\n  "));
    }
}

#[test]
fn the_files_of_a_library_import_down_its_file_map() {
    let sources = all_sources();
    for folder in LIBRARIES {
        let root = format!("{folder}/lib.rs");
        let source = |path: &str| sources.iter().find(|source| source.path == path).expect("a file of the library");
        let map = file_map(source(&root));
        let path = |name: &String| format!("{folder}/{name}.rs");
        let mapped: Vec<String> = map.iter().flat_map(BTreeMap::keys).map(path).collect();
        let there: BTreeSet<String> = files(&sources, &root).into_iter().filter(|file| *file != root).collect();
        assert_eq!(mapped.iter().cloned().collect::<BTreeSet<_>>(), there, "{root} maps every file");
        assert_eq!(mapped.len(), there.len(), "{root} maps no file twice");
        let row = |file: &str| map.iter().position(|row| row.keys().any(|name| path(name) == file));
        let mut wrong = Vec::new();
        for import in imports(&sources, &root).iter().filter(|import| import.from != root) {
            if row(&import.from) > row(&import.to) {
                wrong.push(format!("{}:{} imports {}, which is above it", import.from, import.line, import.to));
            }
        }
        for (name, marked) in map.iter().flatten() {
            if words(&source(&path(name)).code).any(|(_, word)| word == "unsafe") != *marked {
                wrong.push(format!("{name}: the mark `!` means that there is unsafe code"));
            }
        }
        assert!(wrong.is_empty(), "the file map of {root}\n  {}", wrong.join("\n  "));
    }
}

#[test]
fn no_line_of_a_library_is_wider_than_a_page() {
    // rustfmt holds code to this, and leaves comments and long texts alone.
    const COLUMNS_MAX: usize = 120;
    let mut wrong = Vec::new();
    for source in all_sources().iter().filter(|source| LIBRARIES.iter().any(|folder| source.path.starts_with(folder))) {
        let wide = source.text.lines().enumerate().filter(|(_, line)| line.chars().count() > COLUMNS_MAX);
        wrong.extend(wide.map(|(number, _)| format!("{}:{}", source.path, number + 1)));
    }
    assert!(wrong.is_empty(), "a line has {COLUMNS_MAX} columns at most\n  {}", wrong.join("\n  "));
}

#[test]
fn a_circle_of_imports_is_found_wherever_it_hides() {
    let tree = [
        ("lib.rs", "mod a; mod b; mod c; mod d; mod e; mod f; pub use a::A; use std::io; #[cfg(test)] mod g;"),
        // Directly, by the name that lib.rs hands on.
        ("a.rs", "use crate::b::{self, B as Other};\nfn x() { b::y::<u8>() }"),
        ("b.rs", "// use crate::d::D;\nuse std::{fmt, io};\npub(in super::b) struct B(crate::A);"),
        // Over a parent that uses its child; the inline module is its file.
        ("c/mod.rs", "mod child;\nmod inner { pub(super) use super::child::X; }\nstruct Y;"),
        ("c/child.rs", "fn x() -> u8 { todo(concat!(super::Y)) }"),
        // Only in tests, and by name only: no circle.
        ("d.rs", "use crate::e::E;\n#[cfg(test)]\nmod tests { use super::*; use crate::f::F; }"),
        ("e.rs", "#[cfg(all(test, unix))]\nuse crate::d::D;\nuse crate::f::F;"),
        ("f.rs", "struct F { #[cfg(test)] d: crate::d::D, e: u8 }\nconst TEXT: &str = \"crate::e::E\";"),
        ("g.rs", "use crate::d::D;"),
    ];
    let sources =
        tree.map(|(path, text)| Source { path: format!("made/{path}"), text: text.to_owned(), code: code_only(text) });
    assert_eq!(
        import_circles(&sources, "made/lib.rs"),
        ["made/a.rs:1 -> made/b.rs:3 -> made/a.rs", "made/c/child.rs:1 -> made/c/mod.rs:2 -> made/c/child.rs"]
    );
    let of_lib = imports(&sources, "made/lib.rs").into_iter().filter(|import| import.from == "made/lib.rs");
    assert_eq!(of_lib.map(|import| import.to).collect::<Vec<_>>(), ["made/a.rs"]);
}
