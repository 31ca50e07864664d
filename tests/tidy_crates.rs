//! The order of the files in the two libraries, held by a test: imports run down their file maps and never back.

use crate::util::imports::{import_circles, imports};
use crate::util::source::{Source, all_sources, code_only};

#[test]
fn no_two_files_of_mmsg_import_each_other_in_a_circle() {
    let circles = import_circles(&all_sources(), "crates/mmsg/src/lib.rs");
    assert!(circles.is_empty(), "imports run in a circle\n  {}", circles.join("\n  "));
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
